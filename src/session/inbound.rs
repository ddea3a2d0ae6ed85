//! QoS 1 and 2 from a client: what is a duplicate, and in which order acknowledgements are made.
//!
//! PUBACKs leave in the order of their PUBLISHes, and so do PUBRECs [MQTT-4.6.0-2] [MQTT-4.6.0-3]; one kind may overtake the other. An
//! acknowledgement at level -1 is made when the high watermark has passed its record; later ones of its kind stand in line behind
//! it. As long as none waits, nothing is kept here but the identifiers of QoS 2 messages that were received and not released.
//!
//! The caller makes those identifiers durable in the same group as their records, and their removal before PUBCOMP.

use super::packet_ids::PacketIds;
use crate::mqtt::properties::AckProperties;
use crate::mqtt::{Ack, Packet, Publish, QoS, Reason, Version};
use crate::types::Seq;
use std::collections::VecDeque;

/// The acknowledgement of a PUBLISH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// PUBACK or PUBREC.
    pub kind: AnswerKind,
    /// Packet identifier.
    pub packet_id: u16,
    /// Reason.
    pub reason: Reason,
    /// Properties, where there are any.
    pub properties: Option<Box<AckProperties>>,
    /// Frame that must be synced before it leaves; 0 is none.
    pub gate: Seq,
}

impl Answer {
    /// The packet.
    pub fn into_packet(self) -> Packet {
        let ack = Ack { packet_id: self.packet_id, reason: self.reason, properties: self.properties };
        match self.kind {
            AnswerKind::PubAck => Packet::PubAck(ack),
            AnswerKind::PubRec => Packet::PubRec(ack),
        }
    }

    /// Whether nothing more follows for its message, so that it counts for the Receive Maximum.
    pub fn is_final(&self) -> bool {
        self.kind == AnswerKind::PubAck || self.reason.is_failure()
    }
}

/// What acknowledges a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// QoS 1.
    PubAck,
    /// QoS 2.
    PubRec,
}

impl AnswerKind {
    /// That of a QoS; `None` for QoS 0.
    pub fn of(qos: QoS) -> Option<Self> {
        match qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce => Some(Self::PubAck),
            QoS::ExactlyOnce => Some(Self::PubRec),
        }
    }
}

/// What a PUBLISH at QoS 1 or 2 is to this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A message to store.
    New,
    /// QoS 2: received before and not released: PUBREC again, gated on the newest frame of the log, since that of its record may not
    /// be synced yet [MQTT-4.3.3-10].
    Again,
    /// The acknowledgement of its first copy is still to come and serves this one: nothing is to be done.
    Attached,
}

/// A message whose acknowledgement waits for the high watermark; to be given back to [`Inbound::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    kind: AnswerKind,
    number: u64,
}

/// The state of one session.
#[derive(Debug, Default)]
pub struct Inbound {
    received: PacketIds,
    /// PUBACKs and PUBRECs; made when the first one waits.
    lines: Option<Box<[Line; 2]>>,
}

/// Acknowledgements of one kind that are not made yet or stand behind one that is not. The first one always waits.
#[derive(Debug, Default)]
struct Line {
    queue: VecDeque<Place>,
    /// Number of the first place.
    first: u64,
    /// Identifiers in the queue, each once: so its length is bounded by their range.
    packet_ids: PacketIds,
}

#[derive(Debug)]
enum Place {
    Waiting {
        packet_id: u16,
        since_ns: u64,
        claimed: bool,
    },
    /// `claimed`: the client has sent the message on its present connection. One that it has not sent there yet is not acknowledged:
    /// it will be sent again, and two acknowledgements could let the second be taken for that of the identifier's next message.
    Ready {
        answer: Answer,
        claimed: bool,
    },
    /// The client has used the identifier for another message: it does not wait for this one any more.
    Abandoned,
}

impl Inbound {
    /// With identifiers that were received and not released, as the log kept them.
    pub fn restore(received: impl IntoIterator<Item = u16>) -> Self {
        let mut inbound = Self::default();
        received.into_iter().for_each(|packet_id| {
            inbound.received.insert(packet_id);
        });
        inbound
    }

    /// What to do with a PUBLISH.
    pub fn arrival(&mut self, kind: AnswerKind, packet_id: u16, dup: bool) -> Arrival {
        let in_line = self.line(kind).is_some_and(|line| line.packet_ids.contains(packet_id));
        match kind {
            _ if in_line && (dup || kind == AnswerKind::PubRec) => {
                self.claim(kind, packet_id);
                Arrival::Attached
            }
            AnswerKind::PubRec if self.received.contains(packet_id) => Arrival::Again,
            AnswerKind::PubAck if in_line => {
                // Another message under the same identifier: the client forgot the first one, its answer would be taken for this one's.
                self.abandon(kind, packet_id);
                Arrival::New
            }
            _ => Arrival::New,
        }
    }

    /// A QoS 2 message is stored: its identifier is taken until [`Inbound::release`].
    pub fn received(&mut self, packet_id: u16) {
        self.received.insert(packet_id);
    }

    /// PUBREL came. Whether the identifier was taken. PUBCOMP follows in any case, with 0x92
    /// in MQTT 5 if it was not [MQTT-4.3.3-11], gated on the newest frame of the log: the removal, be it this or an earlier one, must be
    /// synced first, else a new message under the identifier could be swallowed as a duplicate after a power cut.
    pub fn release(&mut self, packet_id: u16) -> bool {
        self.abandon(AnswerKind::PubRec, packet_id);
        self.received.remove(packet_id)
    }

    /// Identifiers that were received and not released.
    pub fn received_ids(&self) -> impl Iterator<Item = u16> {
        self.received.iter()
    }

    /// Makes an acknowledgement. It is emitted at once, or stands in line.
    pub fn answer(&mut self, answer: Answer, emit: impl FnMut(Answer)) {
        self.enter(answer.kind, answer.packet_id, Place::Ready { answer, claimed: true }, emit);
    }

    /// The acknowledgement is to wait for the high watermark.
    pub fn wait(&mut self, kind: AnswerKind, packet_id: u16, now_ns: u64, emit: impl FnMut(Answer)) -> Waiting {
        let number = self.enter(kind, packet_id, Place::Waiting { packet_id, since_ns: now_ns, claimed: true }, emit);
        Waiting { kind, number }
    }

    /// What it waited for has come: emits the acknowledgement and what stood behind it, as far as the order allows. Nothing happens if
    /// it does not wait any more. A PUBREC that refuses frees its identifier; the caller removes what is durable of it.
    pub fn resolve(
        &mut self,
        waiting: Waiting,
        reason: Reason,
        properties: Option<Box<AckProperties>>,
        gate: Seq,
        emit: impl FnMut(Answer),
    ) {
        let mut refused = None;
        let Some(line) = self.line_mut(waiting.kind) else { return };
        let index = waiting.number.checked_sub(line.first).and_then(|index| usize::try_from(index).ok());
        if let Some(place) = index.and_then(|index| line.queue.get_mut(index))
            && let Place::Waiting { packet_id, claimed, .. } = *place
        {
            *place =
                Place::Ready { answer: Answer { kind: waiting.kind, packet_id, reason, properties, gate }, claimed };
            if waiting.kind == AnswerKind::PubRec && reason.is_failure() {
                refused = Some(packet_id);
            }
        }
        line.advance(emit);
        if let Some(packet_id) = refused {
            self.received.remove(packet_id);
        }
    }

    /// Whether it still waits: the client has neither released its identifier nor used it for another message.
    pub fn is_waiting(&self, waiting: Waiting) -> bool {
        let place = |line: &Line| {
            let index = waiting.number.checked_sub(line.first).and_then(|index| usize::try_from(index).ok())?;
            Some(matches!(line.queue.get(index)?, Place::Waiting { .. }))
        };
        self.line(waiting.kind).and_then(place).unwrap_or(false)
    }

    /// Since when the longest waiting acknowledgement waits, in monotonic ns.
    pub fn oldest_wait_ns(&self) -> Option<u64> {
        let oldest = |line: &Line| {
            line.queue.iter().find_map(|place| match place {
                Place::Waiting { since_ns, .. } => Some(*since_ns),
                _ => None,
            })
        };
        self.lines.iter().flat_map(|lines| lines.iter()).filter_map(oldest).min()
    }

    /// The client is back on another connection: what waits for it waits from now on, until it is sent there again.
    pub fn resumed(&mut self, now_ns: u64) {
        for place in self.lines.iter_mut().flat_map(|lines| lines.iter_mut()).flat_map(|line| line.queue.iter_mut()) {
            match place {
                Place::Waiting { since_ns, claimed, .. } => (*since_ns, *claimed) = (now_ns, false),
                Place::Ready { claimed, .. } => *claimed = false,
                Place::Abandoned => {}
            }
        }
    }

    fn claim(&mut self, kind: AnswerKind, id: u16) {
        for place in self.line_mut(kind).into_iter().flat_map(|line| line.queue.iter_mut()) {
            match place {
                Place::Waiting { packet_id, claimed, .. } if *packet_id == id => *claimed = true,
                Place::Ready { answer, claimed } if answer.packet_id == id => *claimed = true,
                _ => {}
            }
        }
    }

    fn line(&self, kind: AnswerKind) -> Option<&Line> {
        let [pubacks, pubrecs] = self.lines.as_deref()?;
        Some(if kind == AnswerKind::PubAck { pubacks } else { pubrecs })
    }

    fn line_mut(&mut self, kind: AnswerKind) -> Option<&mut Line> {
        let [pubacks, pubrecs] = self.lines.as_deref_mut()?;
        Some(if kind == AnswerKind::PubAck { pubacks } else { pubrecs })
    }

    /// Puts something at the end of its line and says under which number.
    fn enter(&mut self, kind: AnswerKind, packet_id: u16, place: Place, mut emit: impl FnMut(Answer)) -> u64 {
        if let Place::Ready { answer, claimed } = place {
            match self.line_mut(kind) {
                Some(line) if !line.queue.is_empty() => {
                    return line.enter(packet_id, Place::Ready { answer, claimed }, emit);
                }
                _ => {
                    emit(answer);
                    return 0;
                }
            }
        }
        let [pubacks, pubrecs] = &mut **self.lines.get_or_insert_default();
        let line = if kind == AnswerKind::PubAck { pubacks } else { pubrecs };
        line.enter(packet_id, place, emit)
    }

    fn abandon(&mut self, kind: AnswerKind, packet_id: u16) {
        let Some(line) = self.line_mut(kind) else { return };
        if !line.packet_ids.remove(packet_id) {
            return;
        }
        let of_it = |place: &&mut Place| match place {
            Place::Waiting { packet_id: other, .. } => *other == packet_id,
            Place::Ready { answer, .. } => answer.packet_id == packet_id,
            Place::Abandoned => false,
        };
        if let Some(place) = line.queue.iter_mut().find(of_it) {
            *place = Place::Abandoned;
        }
    }
}

impl Line {
    fn enter(&mut self, packet_id: u16, place: Place, emit: impl FnMut(Answer)) -> u64 {
        let number = self.first + self.queue.len() as u64;
        self.packet_ids.insert(packet_id);
        self.queue.push_back(place);
        self.advance(emit);
        number
    }

    fn advance(&mut self, mut emit: impl FnMut(Answer)) {
        while let Some(place) = self.queue.pop_front_if(|place| !matches!(place, Place::Waiting { .. })) {
            self.first += 1;
            if let Place::Ready { answer, claimed } = place {
                self.packet_ids.remove(answer.packet_id);
                if claimed {
                    emit(answer);
                }
            }
        }
    }
}

/// What a PUBLISH may not ask for in this version, whatever its topic.
///
/// # Errors
/// The reason with which an MQTT 5 connection is to be closed: [`Reason::RETAIN_NOT_SUPPORTED`], as CONNACK announced [MQTT-3.2.2-14].
/// In 3.1.1, where it cannot be announced, the flag means nothing.
pub fn check_publish(version: Version, publish: &Publish) -> Result<(), Reason> {
    if version == Version::V5 && publish.retain { Err(Reason::RETAIN_NOT_SUPPORTED) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
