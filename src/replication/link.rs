//! An upstream link as the core sees it: orders to its driver, events from it.

use crate::mqtt::{Publish, Reason};

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
