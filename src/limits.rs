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

// The log.

/// Partitions that one group touches at most; the group is sealed before another one joins.
pub const GROUP_PARTITIONS_MAX: usize = 256;
/// Bytes of control records for which there is always room in the group of the record just appended.
pub const GROUP_CONTROL_ROOM: usize = 4 << 10;
/// Bytes of a group above which a turn should not go on filling it (a larger single record still fits).
pub const GROUP_BYTES_MAX: usize = 4 << 20;
/// Bytes of one write, which is what a power cut can tear; several groups share it.
pub const COMMIT_WRITE_BYTES_MAX: u64 = 8 << 20;
/// Buffers of one vectored write (the system's IOV_MAX).
pub const WRITE_BUFFERS_MAX: usize = 1024;
/// Sequences that are skipped when nothing tells how many frames were lost.
pub const SEQ_JUMP: u64 = 1 << 20;
/// A stamp of the state store further than this beyond the log's end is taken for damage, not for evidence.
pub const STAMP_AHEAD_MAX: u64 = 1 << 32;
/// Share of a segment that its footer may take, as a divisor.
pub const FOOTER_SHARE: u64 = 8;
/// Keys of control records that are remembered for one segment's footer; with more, a rebuild reads its control frames.
pub const SEGMENT_KEYS_MAX: usize = 16_384;
/// Segments that a failing medium may leave behind at once; older failed attempts are given back first.
pub const FAILED_SEGMENTS_MAX: usize = 2;
/// Bytes that the reader of segments takes from the medium at once.
pub const READ_CHUNK_BYTES: usize = 256 << 10;
/// Bytes that it takes at least, whatever was asked for.
pub const READ_CHUNK_BYTES_MIN: usize = 32 << 10;
/// Bytes that one read passes over at most in search of what was asked for.
pub const READ_SCAN_BYTES_MAX: u64 = 4 << 20;
/// Reports of damage that one recovery or read lists; more are only counted.
pub const DAMAGE_REPORTS_MAX: usize = 256;
/// Segments whose footers a reader remembers.
pub const READER_FOOTERS_MAX: usize = 32;

const _: () = assert!(READ_CHUNK_BYTES >= READ_CHUNK_BYTES_MIN && READ_CHUNK_BYTES_MIN >= 4096);
const _: () = assert!(GROUP_CONTROL_ROOM as u64 * 8 <= SEGMENT_SIZE_MIN);
