//! One connection: bytes in become packets in a bounded inbox, and what its peer may do is counted here.

use super::listener::Permit;
use super::outbox::{Outbox, OutputPool};
use super::socket::Socket;
use crate::engine::io::CloseCause;
use crate::limits::{
    BUFFER_POOL_MAX, CONNECT_TIMEOUT_NS, INBOX_PACKETS_MAX, PACKET_TIMEOUT_NS, PARTIAL_FREE, POOLED_INBOX_PACKETS_MAX,
    READ_BUFFER, READ_SPACE_MIN, UNANSWERED_PUBLISHES_MAX,
};
use crate::mqtt::decode::{Decoder, Peer};
use crate::mqtt::encode::encode;
use crate::mqtt::properties::{ConnAckProperties, DisconnectProperties};
use crate::mqtt::{Ack, ConnAck, Disconnect, Packet, Publish, QoS, Reason, Version};
use crate::types::ConnId;
use bytes::{Bytes, BytesMut};
use smol::io::AsyncRead;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The read buffer that the connections of one I/O thread share. What was read leaves it as shared slices.
#[derive(Debug, Default)]
pub struct ReadBuffer(BytesMut);

impl ReadBuffer {
    fn space(&mut self) -> &mut [u8] {
        if self.0.len() < READ_SPACE_MIN {
            self.0.clear();
            // The old bytes serve again unless a slice of them still lives.
            if !self.0.try_reclaim(READ_BUFFER) {
                self.0 = BytesMut::with_capacity(READ_BUFFER);
            }
            self.0.resize(READ_BUFFER, 0);
        }
        &mut self.0
    }

    fn take(&mut self, len: usize) -> Bytes {
        self.0.split_to(len.min(self.0.len())).freeze()
    }
}

/// Spare inboxes of one I/O thread: an idle connection has none.
#[derive(Debug, Default)]
pub struct InboxPool(Vec<VecDeque<Packet>>);

impl InboxPool {
    fn take(&mut self) -> VecDeque<Packet> {
        self.0.pop().unwrap_or_default()
    }

    fn give(&mut self, inbox: VecDeque<Packet>) {
        if self.0.len() < BUFFER_POOL_MAX && (1..=POOLED_INBOX_PACKETS_MAX).contains(&inbox.capacity()) {
            self.0.push(inbox);
        }
    }
}

/// What the connections of one I/O thread share for reading.
#[derive(Debug, Default)]
pub struct Intake {
    /// The read buffer.
    pub buffer: ReadBuffer,
    /// Spare inboxes.
    pub inboxes: InboxPool,
    /// Bytes set aside for large packets that are not there yet.
    pub reserved: usize,
    /// Their bound; one packet is always let through.
    pub reserved_max: usize,
    /// Monotonic ns of this turn.
    pub now_ns: u64,
}

/// Memory set aside for one large packet, so that whoever began to read one can end it.
#[derive(Debug)]
struct Reservation {
    bytes: usize,
    since_ns: u64,
}

/// A rate limit: the bucket holds one second's bytes.
#[derive(Debug)]
struct Bucket {
    bytes_per_s: u64,
    tokens: i64,
    filled_ns: u64,
}

impl Bucket {
    fn fill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns).min(1_000_000_000);
        let bytes = u128::from(self.bytes_per_s) * u128::from(elapsed_ns) / 1_000_000_000;
        if bytes > 0 {
            self.filled_ns = now_ns;
            let full = i64::try_from(self.bytes_per_s).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX)).min(full);
        }
    }
}

/// Why a connection ends, as found on this side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer closed, or the network failed.
    Gone(String),
    /// The peer did what the standard forbids.
    Malformed(Reason, String),
    /// CONNECT did not come, keep-alive ran out, or a packet took too long.
    Overdue,
}

impl Ending {
    /// As the engine is told.
    pub fn cause(&self) -> CloseCause {
        match self {
            Self::Gone(text) => CloseCause::Peer(text.clone()),
            Self::Malformed(reason, text) => CloseCause::Malformed(*reason, text.clone()),
            Self::Overdue => CloseCause::Peer("nothing came in time".into()),
        }
    }

    /// What the peer is told; `None` if it is gone.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Gone(_) => None,
            Self::Malformed(reason, _) => Some(*reason),
            Self::Overdue => Some(Reason::KEEP_ALIVE_TIMEOUT),
        }
    }
}

/// What one attempt to read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes.
    Bytes(usize),
    /// The end of the stream.
    End,
}

/// Where a connection stands between the accept and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Packets go both ways.
    Open,
    /// The last bytes leave; what comes in is thrown away.
    Closing {
        /// Dropped then, whatever is left.
        until_ns: u64,
    },
}

/// Bounds of a connection, from its listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Bytes of the largest packet that it may send.
    pub max_packet_size: u32,
    /// Bytes per second that are read from it.
    pub rate: Option<u64>,
}

/// One connection of an I/O thread.
#[derive(Debug)]
pub struct Connection {
    pub(super) id: ConnId,
    pub(super) socket: Socket,
    pub(super) life: Life,
    pub(super) inbox: VecDeque<Packet>,
    pub(super) outbox: Outbox,
    /// The engine asked not to read on; keep-alive is suspended.
    pub(super) held: bool,
    /// The outbox is above its high mark, and the engine knows.
    pub(super) clogged: bool,
    /// Stands in the table's list of connections with something to send.
    pub(super) dirty: bool,
    /// Stands in the table's list of connections with something for the engine.
    pub(super) queued: bool,
    /// A task waits for the socket to take the backlog.
    pub(super) draining: bool,
    /// Stands in the table's list of connections that are looked at again by the tick.
    pub(super) throttled: bool,
    /// Why it ends; told to the engine once the inbox is empty.
    pub(super) ending: Option<Ending>,
    /// The engine was told of its end.
    pub(super) told: bool,
    pub(super) idle_limit_ns: Option<u64>,
    pub(super) last_packet_ns: u64,
    /// Bytes of the largest packet that the peer takes.
    pub(super) peer_max_packet: usize,
    pub(super) version: Option<Version>,
    pub(super) tasks: [Option<smol::Task<()>>; 2],
    connack_sent: bool,
    decoder: Decoder,
    /// The beginning of a packet whose end has not come.
    rest: BytesMut,
    /// Bytes for which the inbox had no room.
    undecoded: Bytes,
    /// What the engine announced as Receive Maximum.
    receive_max: Option<u16>,
    /// QoS 1 and 2 publishes decoded and not finally acknowledged.
    unacked: u32,
    /// Of those, the ones that have had no answer at all.
    unanswered: u32,
    bucket: Option<Box<Bucket>>,
    reservation: Option<Box<Reservation>>,
    /// The receiving task, while it must not read.
    blocked: Option<Waker>,
    _permit: Permit,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(id: ConnId, socket: Socket, permit: Permit, limits: ConnectionLimits, now_ns: u64) -> Self {
        let bucket = limits.rate.map(|bytes_per_s| {
            let tokens = i64::try_from(bytes_per_s).unwrap_or(i64::MAX);
            Box::new(Bucket { bytes_per_s, tokens, filled_ns: now_ns })
        });
        Self {
            id,
            socket,
            life: Life::Open,
            inbox: VecDeque::new(),
            outbox: Outbox::default(),
            held: false,
            clogged: false,
            dirty: false,
            queued: false,
            draining: false,
            throttled: false,
            ending: None,
            told: false,
            idle_limit_ns: Some(CONNECT_TIMEOUT_NS),
            last_packet_ns: now_ns,
            peer_max_packet: usize::MAX,
            version: None,
            tasks: [None, None],
            connack_sent: false,
            decoder: Decoder::new(Peer::Client, limits.max_packet_size),
            rest: BytesMut::new(),
            undecoded: Bytes::new(),
            receive_max: None,
            unacked: 0,
            unanswered: 0,
            bucket,
            reservation: None,
            blocked: None,
            _permit: permit,
        }
    }

    /// Reads once and decodes. At the end, `ending` says why. Pending while it must not be read.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>, intake: &mut Intake) -> Poll<Received> {
        if self.life == Life::Open {
            if !self.may_read() || !self.reserve(intake) {
                self.blocked = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if !self.undecoded.is_empty() {
                let bytes = std::mem::take(&mut self.undecoded);
                self.decode(bytes, intake);
                return Poll::Ready(Received::Bytes(0));
            }
        }
        match Pin::new(&mut self.socket).poll_read(cx, intake.buffer.space()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0)) => self.end("closed by the peer".into()),
            Poll::Ready(Err(error)) => self.end(error.to_string()),
            Poll::Ready(Ok(read)) => {
                let bytes = intake.buffer.take(read);
                if self.life == Life::Open {
                    if self.reservation.is_some() {
                        // A large packet may take longer than the keep-alive; it has a time limit of its own.
                        self.last_packet_ns = intake.now_ns;
                    }
                    if let Some(bucket) = &mut self.bucket {
                        bucket.tokens = bucket.tokens.saturating_sub(i64::try_from(read).unwrap_or(i64::MAX));
                    }
                    self.decode(bytes, intake);
                }
                Poll::Ready(Received::Bytes(read))
            }
        }
    }

    fn end(&mut self, text: String) -> Poll<Received> {
        self.ending.get_or_insert(Ending::Gone(text));
        Poll::Ready(Received::End)
    }

    fn may_read(&self) -> bool {
        !self.held
            && self.ending.is_none()
            && self.inbox.len() < INBOX_PACKETS_MAX
            && self.bucket.as_ref().is_none_or(|bucket| bucket.tokens > 0)
            // For who has no Receive Maximum. A release must get through, so only what got no answer counts.
            && (self.receive_max.is_some() || self.unanswered < UNANSWERED_PUBLISHES_MAX)
    }

    /// Sets memory aside for a large packet that has begun; false if there is none now.
    fn reserve(&mut self, intake: &mut Intake) -> bool {
        if self.rest.len() < PARTIAL_FREE || self.reservation.is_some() {
            return true;
        }
        let bytes = self.rest.len() + self.decoder.needed(&self.rest);
        if intake.reserved > 0 && intake.reserved + bytes > intake.reserved_max {
            return false;
        }
        intake.reserved += bytes;
        self.reservation = Some(Box::new(Reservation { bytes, since_ns: intake.now_ns }));
        true
    }

    /// Gives back what was set aside: the packet is there, or the connection ends.
    pub fn release_reservation(&mut self, intake: &mut Intake) {
        if let Some(reservation) = self.reservation.take() {
            intake.reserved = intake.reserved.saturating_sub(reservation.bytes);
        }
    }

    /// Lets the receiving task look again, where something that kept it from reading may be over.
    pub fn resume(&mut self) {
        if self.blocked.is_some()
            && (self.life != Life::Open || self.may_read())
            && let Some(waker) = self.blocked.take()
        {
            waker.wake();
        }
    }

    /// Whether only time lets it be read again: its rate limit, or memory for a large packet.
    pub fn waits_for_tick(&self) -> bool {
        self.blocked.is_some() && !self.held && self.inbox.len() < INBOX_PACKETS_MAX
    }

    /// Refills the rate limit and lets the receiving task look again.
    pub fn refill(&mut self, now_ns: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.fill(now_ns);
        }
        self.resume();
    }

    fn decode(&mut self, mut bytes: Bytes, intake: &mut Intake) {
        while self.ending.is_none() && !bytes.is_empty() {
            if self.inbox.len() >= INBOX_PACKETS_MAX {
                self.undecoded = bytes;
                return;
            }
            let decoded = if self.rest.is_empty() {
                self.decoder.decode(&mut bytes)
            } else {
                let missing = self.decoder.needed(&self.rest).max(1);
                let came = bytes.split_to(missing.min(bytes.len()));
                self.rest.extend_from_slice(&came);
                if came.len() < missing {
                    return;
                }
                let mut whole = std::mem::take(&mut self.rest).freeze();
                let decoded = self.decoder.decode(&mut whole);
                if whole.is_empty() {
                    self.release_reservation(intake);
                } else {
                    // The only reference, so this does not copy.
                    self.rest = BytesMut::from(whole);
                }
                decoded
            };
            match decoded {
                Ok(Some(packet)) => self.received(packet, intake),
                // Copied, so that a few bytes do not keep the whole read buffer.
                Ok(None) if self.rest.is_empty() => {
                    self.rest = BytesMut::from(bytes.as_ref());
                    return;
                }
                Ok(None) => {}
                Err(error) => self.ending = Some(Ending::Malformed(error.reason, error.message.to_string())),
            }
        }
    }

    fn received(&mut self, packet: Packet, intake: &mut Intake) {
        self.last_packet_ns = intake.now_ns;
        match &packet {
            Packet::Publish(publish) if publish.qos != QoS::AtMostOnce => {
                self.unacked += 1;
                // One that is sent again may share the answer with its first copy.
                self.unanswered += u32::from(!publish.dup);
                if let Some(max) = self.receive_max.filter(|max| self.unacked > u32::from(*max)) {
                    let text = format!("more than {max} unacknowledged publishes");
                    self.ending = Some(Ending::Malformed(Reason::RECEIVE_MAXIMUM_EXCEEDED, text));
                    return;
                }
            }
            Packet::Connect(connect) if self.version.is_none() => self.version = Some(connect.version),
            _ => {}
        }
        if self.inbox.capacity() == 0 {
            self.inbox = intake.inboxes.take();
        }
        self.inbox.push_back(packet);
    }

    /// Gives an empty inbox back to the pool.
    pub fn stow_inbox(&mut self, inboxes: &mut InboxPool) {
        if self.inbox.is_empty() {
            inboxes.give(std::mem::take(&mut self.inbox));
        }
    }

    /// What a held connection keeps must not pin read buffers: copies what is in its inbox.
    pub fn detach(&mut self) {
        self.undecoded = Bytes::copy_from_slice(&self.undecoded);
        let version = self.version.unwrap_or(Version::V311);
        for packet in &mut self.inbox {
            match packet {
                Packet::Publish(Publish { topic, payload, properties: None, .. }) => {
                    *topic = topic.detached();
                    *payload = Bytes::copy_from_slice(payload);
                }
                _ => {
                    let mut bytes = Vec::new();
                    let mut decoder = Decoder::new(Peer::Client, u32::MAX);
                    decoder.set_version(version);
                    if encode(packet, version, &mut bytes).is_ok()
                        && let Ok(Some(copy)) = decoder.decode(&mut Bytes::from(bytes))
                    {
                        *packet = copy;
                    }
                }
            }
        }
    }

    /// The engine took the connection in (or is about to refuse it in this version).
    pub fn accepted(
        &mut self,
        version: Version,
        max_packet_size: u32,
        receive_max: Option<u16>,
        idle_limit_ns: Option<u64>,
    ) {
        self.version = Some(version);
        self.decoder.set_version(version);
        self.peer_max_packet = usize::try_from(max_packet_size).unwrap_or(usize::MAX);
        self.receive_max = receive_max;
        self.idle_limit_ns = idle_limit_ns;
    }

    /// Queues a packet. One that is larger than the peer takes is left out [MQTT-3.1.2-24]; an answer then goes without its
    /// properties.
    pub fn send(&mut self, packet: &Packet, pool: &mut OutputPool) {
        match packet {
            Packet::PubAck(_) => self.answered(true),
            Packet::PubRec(ack) => self.answered(ack.reason.is_failure()),
            Packet::PubComp(_) => self.unacked = self.unacked.saturating_sub(1),
            Packet::ConnAck(_) => self.connack_sent = true,
            _ => {}
        }
        let version = self.version.unwrap_or(Version::V311);
        let added = self.outbox.add(pool, self.peer_max_packet, |out| encode(packet, version, out).is_ok());
        if !added && let Some(bare) = without_properties(packet) {
            self.outbox.add(pool, self.peer_max_packet, |out| encode(&bare, version, out).is_ok());
        }
    }

    /// A publish got its first answer, which may be the last.
    fn answered(&mut self, done: bool) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.unacked = self.unacked.saturating_sub(u32::from(done));
    }

    /// Queues the last word of the shell's own closing: MQTT 5 says why, 3.1.1 just closes [MQTT-4.13.1-1].
    pub fn farewell(&mut self, reason: Reason, pool: &mut OutputPool) {
        let v5 = self.decoder.version() == Some(Version::V5);
        if self.connack_sent {
            if v5 {
                let properties = DisconnectProperties::default();
                self.send(&Packet::Disconnect(Box::new(Disconnect { reason, properties })), pool);
            }
            return;
        }
        let reason = match (v5, reason) {
            (true, reason) => reason,
            // Unacceptable protocol level: the one return code of 3.1.1 that a CONNECT we cannot read may get [MQTT-3.1.2-2].
            (false, Reason::UNSUPPORTED_VERSION) => Reason(1),
            (false, _) => return,
        };
        self.version = self.decoder.version();
        if reason != Reason::KEEP_ALIVE_TIMEOUT && self.version.is_some() {
            let properties = ConnAckProperties::default();
            self.send(&Packet::ConnAck(Box::new(ConnAck { session_present: false, reason, properties })), pool);
        }
    }

    /// Whether its time is over: CONNECT did not come, 1.5 times the keep-alive passed [MQTT-3.1.2-22], or a large packet takes
    /// for ever. While it is we who do not read, keep-alive does not count.
    pub fn is_overdue(&mut self, now_ns: u64) -> bool {
        if self.blocked.is_some() || self.held {
            self.last_packet_ns = now_ns;
        }
        let idle_ns = now_ns.saturating_sub(self.last_packet_ns);
        let slow = |reservation: &Reservation| now_ns.saturating_sub(reservation.since_ns) > PACKET_TIMEOUT_NS;
        self.idle_limit_ns.is_some_and(|limit_ns| idle_ns > limit_ns) || self.reservation.as_deref().is_some_and(slow)
    }
}

fn without_properties(packet: &Packet) -> Option<Packet> {
    let bare = |ack: &Ack| ack.properties.is_some().then(|| Ack::new(ack.packet_id, ack.reason));
    match packet {
        Packet::PubAck(ack) => bare(ack).map(Packet::PubAck),
        Packet::PubRec(ack) => bare(ack).map(Packet::PubRec),
        Packet::PubRel(ack) => bare(ack).map(Packet::PubRel),
        Packet::PubComp(ack) => bare(ack).map(Packet::PubComp),
        _ => None,
    }
}
