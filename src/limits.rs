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

// net and broker
/// Bytes of the read buffer that the connections of one I/O thread share.
pub const READ_BUFFER: usize = 64 << 10;
/// Bytes below which the rest of the read buffer is not worth a read.
pub const READ_SPACE_MIN: usize = 8 << 10;
/// Events that one wait on the epoll set brings at most.
pub const EPOLL_EVENTS_MAX: usize = 1_024;
/// Output buffers, inboxes and the like that one I/O thread keeps for reuse.
pub const BUFFER_POOL_MAX: usize = 256;
/// Bytes above which a buffer is given back to the allocator instead of the pool.
pub const POOLED_BUFFER_BYTES_MAX: usize = 16 << 10;
/// Packets above which an inbox is given back to the allocator instead of the pool.
pub const POOLED_INBOX_PACKETS_MAX: usize = 128;
/// Outputs of one turn for which an I/O thread keeps room.
pub const OUTPUTS_KEPT_MAX: usize = 8_192;
/// Slices of one vectored send.
pub const SEND_SLICES_MAX: usize = 64;
/// Bytes queued to one socket at which the connection is closed: more than the engine may queue before it learns of the clog.
pub const SOCKET_QUEUE_BYTES_MAX: usize = 16 << 20;
/// Unanswered QoS 1 and 2 publishes at which a 3.1 or 3.1.1 connection, which has no Receive Maximum, is not read.
pub const UNANSWERED_PUBLISHES_MAX: u32 = 4_096;
/// Nanoseconds within which CONNECT must be there.
pub const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;
/// Nanoseconds that the last bytes of a connection may take to leave, and its peer to close.
pub const CLOSE_TIMEOUT_NS: u64 = 2_000_000_000;
/// Nanoseconds after which unacknowledged bytes or unanswered probes end a TCP connection.
pub const TCP_DEAD_NS: u64 = 60_000_000_000;
/// Nanoseconds between two looks at idle limits.
pub const IDLE_SCAN_NS: u64 = 500_000_000;
/// Nanoseconds of a tick while there is something to do.
pub const TICK_NS: u64 = 20_000_000;
/// Nanoseconds of a tick while there is nothing to do.
pub const IDLE_TICK_NS: u64 = 100_000_000;
/// Connections accepted in one go before other sockets get their turn.
pub const ACCEPTS_PER_TURN: usize = 64;
/// Pending connections of a listener that the kernel keeps.
pub const LISTEN_BACKLOG: i32 = 1_024;
/// Threads that serve sockets; a connection's number holds its thread in six bits.
pub const IO_THREADS_MAX: usize = 64;
/// Connections of one I/O thread; a connection's number holds its slot in eighteen bits.
pub const CONNECTIONS_PER_THREAD_MAX: usize = 1 << 18;
/// Outputs waiting in the mailbox of an I/O thread above which the others stop reading their sockets.
pub const MAILBOX_OUTPUTS_MAX: usize = 65_536;
/// Questions of the admin side under way at once.
pub const ADMIN_REQUESTS_MAX: usize = 64;
/// Nanoseconds within which an orderly stop ends, finished or not.
pub const STOP_TIMEOUT_NS: u64 = 4_500_000_000;
/// Nanoseconds between two measurements of space.
pub const SPACE_INTERVAL_NS: u64 = 5_000_000_000;
/// Nanoseconds of a sync above which the committer lingers before it takes the next group.
pub const SLOW_SYNC_NS: u64 = 1_000_000;

const _: () = assert!(READ_SPACE_MIN < READ_BUFFER && READ_BUFFER <= TURN_BYTES_MAX);
const _: () = assert!(SOCKET_QUEUE_BYTES_MAX > SOCKET_QUEUE_HIGH + 4 * TURN_BYTES_MAX);
/// Bytes of an incomplete packet above which its whole length is set aside from [`PARTIAL_SHARE`] before reading on.
pub const PARTIAL_FREE: usize = 16 << 10;
/// The memory budget divided by this may be set aside for large incomplete packets.
pub const PARTIAL_SHARE: u64 = 4;
/// Nanoseconds that a large packet may take to come in whole.
pub const PACKET_TIMEOUT_NS: u64 = 120_000_000_000;
// The engine.
/// Records in one answer to a question of the admin side.
pub const RECORDS_PER_ANSWER_MAX: usize = 1_000;
/// Questions for records that are answered at once.
pub const QUESTIONS_MAX: usize = 16;
/// The tail in memory takes this part of the memory budget: one in so many.
pub const TAIL_SHARE: usize = 16;
/// What is appended and not yet synced takes at most this part of the memory budget.
pub const UNCOMMITTED_SHARE: usize = 4;
// admin and the command line
/// Admin connections over TCP at once; later ones wait in the kernel's backlog.
pub const ADMIN_CONNECTIONS_MAX: usize = 32;
/// Admin connections over the control socket at once; apart, so that a flood over TCP does not lock the owner out.
pub const ADMIN_CONTROL_CONNECTIONS_MAX: usize = 16;
/// Bytes of an admin request's line and headers.
pub const ADMIN_HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of an admin request.
pub const ADMIN_HEADERS_MAX: usize = 64;
/// Bytes of an admin request's body.
pub const ADMIN_BODY_BYTES_MAX: usize = 4 << 10;
/// Seconds for an admin request's headers to arrive, and for an idle connection to be kept.
pub const ADMIN_HEADER_SECONDS: u64 = 10;
/// Seconds that a response may make no progress.
pub const ADMIN_WRITE_STALL_SECONDS: u64 = 10;
/// Seconds that the engine may take to answer an admin question.
pub const ADMIN_REPLY_SECONDS: u64 = 10;
/// Questions to the engine that wait.
pub const ADMIN_QUEUE_MAX: usize = 64;
/// Records in one answer.
pub const ADMIN_RECORDS_MAX: usize = 1_000;
/// Records in one answer where no limit is asked for.
pub const ADMIN_RECORDS_DEFAULT: usize = 100;
/// Bytes of lines in one answer, beyond which it ends (one record always fits).
pub const ADMIN_RECORDS_BYTES_MAX: usize = 4 << 20;
/// Bytes of an answer that the command line reads: one record of the largest packet, escaped, and some more.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 512 << 20;
/// Bytes that recovery may write when a stopped data directory is merely looked at.
pub const VIEW_BYTES_MAX: usize = 128 << 20;
/// Bytes of a token file.
pub const TOKEN_FILE_BYTES_MAX: u64 = 4 << 10;
/// Characters of a token at least.
pub const TOKEN_CHARACTERS_MIN: usize = 16;
/// Messages that `forebay pub` has under way.
pub const PUB_INFLIGHT_MAX: u16 = 100;
/// Bytes of a line or file that `forebay pub` sends.
pub const PUB_PAYLOAD_BYTES_MAX: u64 = PACKET_SIZE_MAX as u64;
/// Sensors in a demo.
pub const DEMO_SENSORS_MAX: u32 = 200;
/// Readings that a demo publishes in all.
pub const DEMO_READINGS_MAX: u64 = 5_000_000;
/// Readings of one demo sensor that are sent and not acknowledged.
pub const DEMO_WINDOW: usize = 32;
/// Connections through the demo's link cutter at once.
pub const DEMO_LINK_CONNECTIONS_MAX: usize = 16;
// storage and configuration
/// Segment files that are open at once for readers.
pub const OPEN_SEGMENTS_MAX: usize = 16;
/// Spare segments kept ready at most; more are removed.
pub const SPARE_SEGMENTS_MAX: usize = 2;
/// Buffers of one vectored write to a segment; more are written in several.
pub const WRITE_BUFFERS_MAX: usize = 256;
/// Bytes of zeros written at a time while a spare is filled.
pub const ZERO_FILL_BYTES: usize = 256 << 10;
/// Bytes of a spare that may be dirty before they are synced, so that filling does not hold up the committer's syncs.
pub const ZERO_FILL_SYNC_BYTES: u64 = 4 << 20;
/// Foreign files that are named in a report; the rest is counted.
pub const FOREIGN_NAMES_MAX: usize = 5;
/// Files and folders looked at when the space of data_dir is measured.
pub const USAGE_ENTRIES_MAX: usize = 100_000;
/// Longest gateway id, in bytes.
pub const GATEWAY_ID_MAX: usize = 64;
/// Longest name of a stream or an upstream, in bytes.
pub const STREAM_NAME_MAX: usize = 64;
/// Topic filters of all streams together.
pub const STREAM_FILTERS_MAX: usize = 4_096;
/// Listeners in the configuration.
pub const LISTENERS_MAX: usize = 16;
/// Bytes of a configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Milliseconds between sled's own flushes, in which it also gives back space. Nothing waits for them.
pub const STATE_FLUSH_MS: u64 = 10_000;
/// Times that the state is opened again while its former handle is still closing.
pub const STATE_REOPEN_TRIES: u32 = 50;
/// Least memory budget, in bytes.
pub const MEMORY_BUDGET_MIN: u64 = 8 << 20;
/// In-flight messages per connection and direction that may be configured at most.
pub const INFLIGHT_MAX: u16 = 1_024;
// ── mqtt ──
/// User properties that a publisher may attach to one message; with more it is refused (0x97).
pub const USER_PROPERTIES_MAX: usize = 1_024;
/// User properties in one packet at which decoding stops: five bytes on the wire each become some seventy in memory. A little more
/// than a publisher may attach, so that what a gateway adds on the way does not make a record that no centre takes.
pub const USER_PROPERTIES_DECODED_MAX: usize = USER_PROPERTIES_MAX + 64;
/// Filters in one SUBSCRIBE or UNSUBSCRIBE.
pub const FILTERS_PER_PACKET_MAX: usize = 4_096;
/// Subscription identifiers in one PUBLISH.
pub const SUBSCRIPTION_IDS_MAX: usize = 4_096;
/// Text and binary fields have two bytes of length [MQTT-1.5.4] [MQTT-1.5.6].
pub const FIELD_BYTES_MAX: usize = 65_535;

const _: () = assert!(FILTERS_PER_PACKET_MAX >= SUBSCRIPTIONS_PER_SESSION_MAX);
// ── router, session ──
/// Subscriptions of all sessions together.
pub const SUBSCRIPTIONS_MAX: usize = 200_000;
/// Nodes of a tree of filters: one for each distinct prefix of levels.
pub const FILTER_NODES_MAX: usize = 262_144;
/// Bytes of the distinct level names in a tree of filters.
pub const FILTER_NAME_BYTES_MAX: usize = 8 << 20;
/// Bytes of the longest topic that the topic cache keeps; longer ones are matched anew each time.
pub const TOPIC_CACHE_KEY_MAX: usize = 1_024;
/// Matches held by all entries of the topic cache together.
pub const TOPIC_CACHE_MATCHES_MAX: usize = 100_000;
/// Bytes of a client identifier; longer ones are refused.
pub const CLIENT_ID_BYTES_MAX: usize = 1_024;
/// Bytes of a user name; longer ones are refused.
pub const USER_NAME_BYTES_MAX: usize = 1_024;
/// Topic aliases that a client may set, announced in CONNACK.
pub const TOPIC_ALIASES_MAX: u16 = 16;
/// Bytes of the topics behind the aliases of one connection.
pub const TOPIC_ALIAS_BYTES_MAX: usize = 16 << 10;
/// Bytes of one will with its topic and properties.
pub const WILL_BYTES_MAX: usize = 64 << 10;
/// Bytes of all wills together.
pub const WILLS_BYTES_MAX: usize = 4 << 20;
/// Packet identifiers of a session that are kept without an allocation.
pub const PACKET_IDS_INLINE: usize = 8;
/// Messages that a session may have acknowledged beyond its oldest unacknowledged one.
pub const OUTBOUND_BEYOND_MAX: usize = 256;
/// Sessions that one call ends because their time is up.
pub const EXPIRIES_PER_CALL_MAX: usize = 256;

const _: () = assert!(FILTER_NODES_MAX < u32::MAX as usize - 2);
const _: () = assert!(WILL_BYTES_MAX <= WILLS_BYTES_MAX);
/// Nanoseconds before the first new try of a commit that failed.
pub const COMMIT_RETRY_MIN_NS: u64 = 100_000_000;
/// Nanoseconds between such tries at most.
pub const COMMIT_RETRY_MAX_NS: u64 = 5_000_000_000;
/// Nanoseconds that the last bytes may take to leave when the process stops.
pub const UNSENT_AT_STOP_NS: u64 = 300_000_000;

// The log.

/// Partitions that one group touches at most; the group is sealed before another one joins.
pub const GROUP_PARTITIONS_MAX: usize = 256;
/// Bytes of control records for which there is always room in the group of the record just appended.
pub const GROUP_CONTROL_ROOM: usize = 4 << 10;
/// Bytes of a group above which a turn should not go on filling it (a larger single record still fits).
pub const GROUP_BYTES_MAX: usize = 4 << 20;
/// Bytes of one write, which is what a power cut can tear; several groups share it.
pub const COMMIT_WRITE_BYTES_MAX: u64 = 8 << 20;
/// Sequences that are skipped when nothing tells how many frames were lost.
pub const SEQ_JUMP: u64 = 1 << 20;
/// A stamp of the state store further than this beyond the log's end is taken for damage, not for evidence.
pub const STAMP_AHEAD_MAX: u64 = 1 << 32;
/// Share of a segment that its footer may take, as a divisor.
pub const FOOTER_SHARE: u64 = 8;
/// Keys of control records that are remembered for one segment's footer; with more, a rebuild reads its control frames.
pub const SEGMENT_KEYS_MAX: usize = 16_384;
/// Boots whose times are kept for one segment; with more, its age is unknown.
pub const SEGMENT_BOOTS_MAX: usize = 16;
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
// ── replication and upstream
/// QoS 1 and 2 messages in flight to one upstream, whatever it would take.
pub const UPSTREAM_WINDOW_MAX: u16 = 1_024;
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

// ── net and broker ──
/// Open files beside the connections: segments, sled, sockets of ours, the admin side.
pub const DESCRIPTORS_BESIDE_CONNECTIONS: u64 = 256;
const _: () = assert!(IO_THREADS_MAX.is_power_of_two() && CONNECTIONS_PER_THREAD_MAX.is_power_of_two());
