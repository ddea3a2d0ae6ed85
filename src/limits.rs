//! Every bound of the house, in one place, checked at compile time. Profiles set how much of a bound is used.

/// Largest remaining length that MQTT can express [MQTT-2.1.4].
pub const REMAINING_LENGTH_MAX: u32 = 268_435_455;
/// Largest packet that any configuration may allow, in bytes.
pub const PACKET_SIZE_MAX: u32 = 64 << 20;
/// Levels in a topic or filter.
pub const TOPIC_LEVELS_MAX: usize = 128;
/// Partitions of one stream.
pub const PARTITIONS_MAX: u16 = 1024;
/// Streams in the configuration.
pub const STREAMS_MAX: usize = 256;
/// Upstreams in the configuration.
pub const UPSTREAMS_MAX: usize = 16;
/// Smallest segment, in bytes.
pub const SEGMENT_SIZE_MIN: u64 = 64 << 10;
/// Largest segment, in bytes.
pub const SEGMENT_SIZE_MAX: u64 = 1 << 30;
/// Segments that `disk_budget` holds at least.
pub const BUDGET_SEGMENTS_MIN: u64 = 8;
/// Segments kept for the cleaner.
pub const CLEANER_RESERVE_SEGMENTS: u64 = 2;
/// A frame begins at a multiple of this many bytes; also the step of resynchronising.
pub const FRAME_ALIGN: usize = 8;
/// A turn of an I/O thread closes early at this many bytes of records.
pub const TURN_BYTES_MAX: usize = 256 << 10;
/// Offsets that a partition jumps when nothing tells how many were lost.
pub const OFFSET_JUMP: u64 = 1 << 20;
/// A sparse index entry stands for at least this many bytes of one partition.
pub const INDEX_STEP_BYTES: u64 = 64 << 10;
/// Bytes of the built-in stream `default`.
pub const DEFAULT_STREAM_BYTES: u64 = 256 << 20;
/// Sessions in all, online and offline.
pub const SESSIONS_MAX: usize = 20_000;
/// Subscriptions of one session.
pub const SUBSCRIPTIONS_PER_SESSION_MAX: usize = 1_000;
/// Received QoS 2 identifiers of one session; never more than there are packet identifiers.
pub const RECEIVED_QOS2_MAX: usize = 65_535;
/// Reads of the log that are under way at once, for all readers.
pub const READS_OUTSTANDING_MAX: usize = 64;
/// Bytes that one catch-up read brings.
pub const READ_BYTES_MAX: usize = 256 << 10;
/// Publishes that wait for the high watermark, in all.
pub const REPLICATED_WAITING_MAX: usize = 100_000;
/// Bytes queued to one socket above which a session stops being pushed to.
pub const SOCKET_QUEUE_HIGH: usize = 256 << 10;
/// Bytes queued to one socket below which it is pushed to again.
pub const SOCKET_QUEUE_LOW: usize = 64 << 10;
/// Entries of the topic cache.
pub const TOPIC_CACHE_MAX: usize = 4_096;
/// Packets decoded from one connection that wait for the engine.
pub const INBOX_PACKETS_MAX: usize = 1_024;

const _: () = assert!(SOCKET_QUEUE_LOW < SOCKET_QUEUE_HIGH);
const _: () = assert!(SEGMENT_SIZE_MIN < SEGMENT_SIZE_MAX);
const _: () = assert!(FRAME_ALIGN.is_power_of_two());
const _: () = assert!(BUDGET_SEGMENTS_MIN > CLEANER_RESERVE_SEGMENTS);
const _: () = assert!(PACKET_SIZE_MAX < REMAINING_LENGTH_MAX);

// ── replication and upstream
/// QoS 1 and 2 messages in flight to one upstream, whatever it would take.
pub const UPSTREAM_WINDOW_MAX: u16 = 1_024;
/// Bytes of messages in flight to one upstream that it has not yet answered (one message always goes).
pub const UPSTREAM_WINDOW_BYTES: usize = 4 << 20;
/// Offsets between a lane's cursor and the furthest one in flight; bounds what a lane keeps in memory.
pub const LANE_SPAN_MAX: u64 = 4_096;
/// Partitions that one upstream carries: each has a range of packet identifiers of its own.
pub const UPSTREAM_LANES_MAX: usize = 8_192;
/// Times that a record is offered again after a refusal that does not say whether it is for good.
pub const REFUSALS_UNSPECIFIC_MAX: u8 = 5;
/// Closes at the same head after which it is sent alone (3.1.1's way to refuse).
pub const CLOSES_AT_HEAD_MAX: u8 = 3;
/// Samples of a partition's end by which lag in time is told.
pub const LEO_SAMPLES_MAX: usize = 64;
/// Bytes encoded and not yet on the wire, of one upstream, above which no more is encoded.
pub const UPSTREAM_OUT_HIGH: usize = 256 << 10;
/// Bytes of the largest packet that an upstream may send us: acknowledgements and reasons.
pub const UPSTREAM_IN_PACKET_MAX: usize = 64 << 10;
/// Addresses of one upstream's name that are tried.
pub const UPSTREAM_ADDRESSES_MAX: usize = 8;

const _: () = assert!(UPSTREAM_WINDOW_MAX as u64 <= LANE_SPAN_MAX);
const _: () = assert!(UPSTREAM_LANES_MAX <= 65_535);
