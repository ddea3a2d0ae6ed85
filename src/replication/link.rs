//! An upstream link as plain data: orders to its driver and events from it; what it asks of the engine, and what it shows.

use super::durable::StateChange;
use crate::mqtt::{Publish, Reason};
use crate::types::{LogId, Offset, PartitionId};

/// What the core tells a driver.
#[derive(Clone, Debug)]
pub enum LinkOrder {
    /// Connect now.
    Connect {
        /// Whether the peer must forget the session.
        clean_start: bool,
    },
    /// Close the connection, if there is one; back to idle. In order if `graceful` (DISCONNECT).
    Disconnect {
        /// Say DISCONNECT first.
        graceful: bool,
    },
    /// Send these in order; packet ids, topic mapping and source properties are set, sizes are checked.
    Publish(Vec<Publish>),
    /// PUBREL for these packet ids, in order; "released" is durable.
    Release(Vec<u16>),
}

/// What a driver tells the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// CONNACK said yes.
    Up {
        /// The peer kept our session.
        session_present: bool,
        /// Unacknowledged QoS 1 and 2 messages that the peer takes at once.
        receive_maximum: u16,
        /// Bytes of the largest packet that the peer takes.
        maximum_packet_size: u32,
    },
    /// Acknowledgements, in the order of arrival.
    Acks(Vec<LinkAck>),
    /// Bytes went out since the last such event.
    Sent {
        /// Bytes on the wire.
        bytes: u64,
    },
    /// The connection is gone, with all its memory. No event of it follows.
    Down(LinkDown),
}

/// One acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAck {
    /// Which packet.
    pub packet_id: u16,
    /// Which kind.
    pub kind: LinkAckKind,
    /// Its reason code; success in 3.1.1.
    pub reason: Reason,
}

/// Kinds of acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAckKind {
    /// QoS 1: done.
    PubAck,
    /// QoS 2: received.
    PubRec,
    /// QoS 2: done.
    PubComp,
}

/// Why a link went down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDown {
    /// In words, for `status`.
    pub reason: String,
    /// What kind of trouble.
    pub kind: DownKind,
}

/// Kinds of trouble, as far as the core acts differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownKind {
    /// Network, time-out, orderly end: try again.
    Network,
    /// CONNACK refused with this reason (name, credentials, protocol): try again, slower, say why.
    Refused(Reason),
    /// Someone else has our client id (0x8E): an alarm.
    TakenOver,
    /// The peer closed without a word while messages were in flight (3.1.1's way to refuse).
    ClosedInFlight,
    /// We closed it because we were told to.
    Ordered,
}

/// What a [`super::Link`] is to do.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Name of the upstream: its durable state is kept under it.
    pub name: String,
    /// QoS 2 if true, else QoS 1.
    pub exactly_once: bool,
    /// Whom the session is with, as `host:port/client-id/5`; another one means a clean start.
    pub peer: String,
    /// The log whose offsets are forwarded.
    pub log_id: LogId,
    /// Own bound of messages in flight (the peer's Receive Maximum may be less).
    pub window: u16,
    /// Own bound of their bytes, not yet answered.
    pub window_bytes: usize,
    /// Whether a record that is refused for good stops the link, instead of being dead-lettered.
    pub stop_on_refusal: bool,
    /// For jitter and session stamps; another one at each start.
    pub seed: u64,
}

/// A partition to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStart {
    /// Which.
    pub partition: PartitionId,
    /// Where to begin if nothing is remembered.
    pub start: Offset,
    /// The end of the local log (synced). A remembered cursor beyond it is not this log's: alarm, and go on from here.
    pub end: Offset,
}

/// What a link asks of the engine.
#[derive(Clone, Debug)]
pub enum LinkOutput {
    /// For the driver.
    Order(LinkOrder),
    /// Append this control record; then say in which frame with [`super::Link::recorded`].
    State(StateChange),
    /// Everything below `offset` is acknowledged by the peer (or dead-lettered): the replica's LEO. Not durable here yet.
    Cursor {
        /// The partition.
        partition: PartitionId,
        /// First offset that is not.
        offset: Offset,
    },
    /// The peer will never take this record. Dead-letter it (in the same group as the next records), then call
    /// [`super::Link::settled`]; the cursor waits for that.
    Refused {
        /// The partition.
        partition: PartitionId,
        /// The record.
        offset: Offset,
        /// Its reason code.
        reason: Reason,
        /// In words.
        text: String,
    },
    /// Read again from [`super::Link::lanes`]: the connection came up anew.
    Rewind,
    /// For people.
    Event(LinkGravity, String),
}

/// How grave an event of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkGravity {
    /// A person should look.
    Error,
    /// It may need a person.
    Warning,
    /// A change of state.
    Info,
}

/// What the reader does with a record that it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Map it and offer it.
    Send,
    /// It is in flight, released or done: read on.
    Pass,
    /// Stop reading here; come back after the next event, sync or tick.
    Full,
}

/// States of a link, for `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// CONNACK said yes.
    Connected,
    /// On the way there.
    Connecting,
    /// Until the next try.
    Waiting,
    /// By order.
    Paused,
    /// By a refusal with `on_refusal = "stop"`.
    Stopped,
}

impl LinkState {
    /// As `status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Records acknowledged by the peer.
    pub forwarded: u64,
    /// Bytes on the wire.
    pub sent_bytes: u64,
    /// Records refused for good.
    pub refused: u64,
    /// Records published again that the peer may have had: QoS 1 after a cut, QoS 2 after the session was lost.
    pub possible_doubles: u64,
    /// Connections that came up.
    pub connections: u64,
}
