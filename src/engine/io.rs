//! What goes into a step of the engine and what comes out. Nothing here touches the world.

use crate::log::frame::Group;
pub use crate::log::read::{ReadHint, ReadRequest, ReadResult};
use crate::log::store::Change;
use crate::mqtt::{Packet, Publish, Reason, Version};
use crate::replication::link::{LinkEvent, LinkOrder};
use crate::settings::Settings;
use crate::types::{ConnId, LogPosition, Seq, Ticket, UpstreamId};
use std::collections::VecDeque;
use std::sync::Arc;

/// One input of a step.
pub enum Input<'a> {
    /// A transport stands; CONNECT comes as its first packet.
    Opened {
        /// The connection.
        conn: ConnId,
        /// Index of the listener in the settings.
        listener: u16,
        /// Peer address, for people.
        peer: String,
    },
    /// Decoded packets in order. The engine takes what it can from the front; a held PUBLISH stays, the shell stops reading that
    /// connection until [`Output::Release`] and then offers the inbox again.
    Packets {
        /// The connection.
        conn: ConnId,
        /// What was decoded.
        inbox: &'a mut VecDeque<Packet>,
    },
    /// Bytes queued to the socket fell below `SOCKET_QUEUE_LOW` after `Output::Blocked`-like pressure: pushing may go on.
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// Bytes queued to the socket rose above `SOCKET_QUEUE_HIGH`: stop pushing.
    Clogged {
        /// The connection.
        conn: ConnId,
    },
    /// The transport is gone (or is being closed by the shell for `cause`).
    Closed {
        /// The connection.
        conn: ConnId,
        /// Why.
        cause: CloseCause,
    },
    /// Everything up to this frame is synced.
    Committed {
        /// Last synced frame.
        seq: Seq,
        /// Bytes written for it since the last such input.
        written_bytes: u64,
        /// Segments sealed since the last such input.
        sealed: Vec<crate::log::segments::SegmentSummary>,
    },
    /// The log cannot be written. Nothing after `synced` is durable; the committer keeps the groups and tries again.
    CommitFailed {
        /// What the system said.
        error: String,
    },
    /// Answer to [`Output::Read`].
    Read {
        /// Which question.
        ticket: Ticket,
        /// What was found.
        result: ReadResult,
    },
    /// From an upstream's driver.
    Upstream {
        /// Which upstream.
        id: UpstreamId,
        /// What happened.
        event: LinkEvent,
    },
    /// Segments freed, space measured.
    Space {
        /// Bytes that data_dir takes.
        used_bytes: u64,
        /// Of these, the log's segments and spares.
        log_bytes: u64,
        /// Bytes free on the file system.
        free_bytes: u64,
    },
    /// A question from the admin side.
    Admin {
        /// Answered with the same ticket.
        ticket: Ticket,
        /// What is asked.
        command: AdminCommand,
    },
    /// Time passes: at least every 100 ms.
    Tick,
    /// The process is to stop: refuse new work, close clients, end with a closing frame.
    Stop,
}

/// Why a transport ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// The peer closed, or the network failed.
    Peer(String),
    /// The bytes were not MQTT: the reason code says what was wrong.
    Malformed(Reason, String),
    /// Our side had said [`Output::Close`].
    Ordered,
}

/// Outputs of a step, in order, kept by the caller between steps so that nothing is allocated anew.
pub type Outputs = Vec<Output>;

/// One output of a step.
#[derive(Debug)]
pub enum Output {
    /// The connection's protocol version is known from here on (after CONNECT); outgoing packets are encoded for it.
    Accepted {
        /// The connection.
        conn: ConnId,
        /// Version to encode and decode with.
        version: Version,
        /// Bytes of the largest packet that the client takes; larger ones are not sent [MQTT-3.1.2-24].
        max_packet_size: u32,
        /// QoS 1 and 2 messages that may come in unacknowledged, as announced; `None` is no bound.
        receive_max: Option<u16>,
        /// Nanoseconds without a packet after which the shell closes with KEEP_ALIVE_TIMEOUT (1.5 × keep alive); `None` never.
        idle_limit_ns: Option<u64>,
    },
    /// Send a packet.
    Send {
        /// To whom.
        conn: ConnId,
        /// What.
        packet: Packet,
    },
    /// Send the same QoS 0 message to many: encoded once per version.
    Deliver {
        /// To whom.
        subscribers: Arc<[ConnId]>,
        /// What; it is sent at QoS 0 and without RETAIN, whatever it says.
        publish: Arc<Publish>,
    },
    /// An acknowledgement of a publisher: PUBACK, PUBREC, PUBCOMP (and PUBREL, SUBACK after a synced change) in a queue per thread.
    Ack {
        /// To whom.
        conn: ConnId,
        /// What.
        packet: Packet,
        /// The frame that must be synced before it leaves; 0 is none.
        gate: Seq,
    },
    /// The front of the inbox is a PUBLISH that must wait: do not read this connection, suspend its keep-alive.
    Hold {
        /// The connection.
        conn: ConnId,
    },
    /// It may go on.
    Release {
        /// The connection.
        conn: ConnId,
    },
    /// Send what is queued (a DISCONNECT or CONNACK may be last), then close.
    Close {
        /// The connection.
        conn: ConnId,
    },
    /// A sealed group for the committer.
    Commit(Group),
    /// Read the log for a reader.
    Read {
        /// Comes back with the answer.
        ticket: Ticket,
        /// What is wanted.
        request: ReadRequest,
    },
    /// Changes for the state store, covered by the log up to `stamp`.
    Apply {
        /// Frame up to which they hold.
        stamp: Seq,
        /// The changes.
        changes: Vec<Change>,
    },
    /// For an upstream's driver.
    Upstream {
        /// Which.
        id: UpstreamId,
        /// What to do.
        order: LinkOrder,
    },
    /// Give these segments up; nothing needs them any more.
    FreeSegments {
        /// Segment numbers, ascending.
        numbers: Vec<u64>,
    },
    /// Answer to an [`Input::Admin`].
    Reply {
        /// Which question.
        ticket: Ticket,
        /// The answer.
        body: AdminReply,
    },
    /// Call `step` with [`Input::Tick`] not later than this (monotonic ns); the usual tick otherwise.
    Wake {
        /// Monotonic nanoseconds.
        at_ns: u64,
    },
    /// Something a person may want to know; the shell logs it (rate-limited).
    Event(Event),
    /// The closing frame is in the last [`Output::Commit`]; once it is synced the process may end.
    Stopped,
}

/// How grave an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something does not work or is lost.
    Error,
    /// Something may need a person.
    Warning,
    /// A change of state.
    Info,
    /// For developers.
    Debug,
}

/// Something that happened, in words.
#[derive(Clone, Debug)]
pub struct Event {
    /// How grave.
    pub severity: Severity,
    /// Where, as `session`, `upstream`, `log`: the target of the log line.
    pub part: &'static str,
    /// What.
    pub text: String,
}

/// Questions of the admin side.
#[derive(Clone, Debug)]
pub enum AdminCommand {
    /// The whole status.
    Status,
    /// Records of one partition, from an offset or a time.
    Records {
        /// Stream name.
        stream: String,
        /// Partition; `None` is all of them, in log order.
        partition: Option<u16>,
        /// Where to begin.
        from: ReadFrom,
        /// Records at most.
        limit: usize,
    },
    /// Stop or go on forwarding.
    Pause {
        /// Upstream name.
        upstream: String,
        /// Pause, or resume.
        paused: bool,
    },
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// The oldest record that is there.
    Earliest,
    /// The end.
    Latest,
    /// This offset (of each partition asked for).
    Offset(u64),
    /// The first record that came in at or after this wall time, ms since 1970.
    Time(i64),
    /// This position in the log: to read on.
    Position(LogPosition),
}

/// Answers to the admin side.
#[derive(Clone, Debug)]
pub enum AdminReply {
    /// The whole status.
    Status(Box<super::status::Status>),
    /// Records, and where to read on.
    Records {
        /// In log order.
        records: Vec<crate::log::record::StoredRecord>,
        /// Position after the last one.
        next: LogPosition,
    },
    /// Done.
    Done,
    /// It cannot be done, because.
    Refused(String),
}

/// Everything that may change at run time.
pub type SharedSettings = Arc<Settings>;
