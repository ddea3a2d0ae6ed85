//! A publish comes in: which stream stores it, at which level it is acknowledged, whether it may come in now at all.

use super::deliver::Delivery;
use super::io::{Output, Outputs};
use super::{Engine, Hold, Stopping};
use crate::log::Appended;
use crate::log::control::{ControlKind, ControlRecord};
use crate::log::record::NewRecord;
use crate::mqtt::properties::AckProperties;
use crate::mqtt::{Ack, Packet, Publish, QoS, Reason, Text, Version};
use crate::session::durable::{self, ReceivedQos2V1};
use crate::session::extensions::{PublishExtensions, SOURCE};
use crate::session::inbound::{self, Answer, AnswerKind, Arrival};
use crate::settings::WhenFull;
use crate::types::{Acks, ConnId, Now, Offset, PartitionId, Seq, SessionId};
use std::sync::Arc;

/// What became of a PUBLISH.
pub(super) enum Taken {
    /// Dealt with: stored, answered, refused, or its connection is being closed.
    Done,
    /// It must wait; it goes back to the front of its inbox.
    Held(Publish, Hold),
}

/// A publish whose answer waits for the high watermark.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) offset: Offset,
    /// The record is its own: not a later one that stands for it.
    pub(super) own: bool,
    pub(super) session: SessionId,
    pub(super) place: inbound::Waiting,
    pub(super) packet_id: u16,
    pub(super) qos: QoS,
    pub(super) since_ns: u64,
    pub(super) with_source: bool,
}

/// Where a publish comes from.
struct Origin {
    session: SessionId,
    client: Text,
    key: Option<Text>,
    source: Option<Text>,
}

/// A PUBLISH that is to be answered.
#[derive(Clone, Copy)]
struct Asked {
    session: SessionId,
    qos: QoS,
    packet_id: u16,
}

impl Asked {
    fn of(session: SessionId, publish: &Publish) -> Self {
        Self { session, qos: publish.qos, packet_id: publish.packet_id }
    }
}

/// Where a publish goes and how it is acknowledged.
struct Plan {
    partition: Option<PartitionId>,
    level: Acks,
}

impl Engine {
    /// Takes a PUBLISH of an accepted connection [MQTT-3.3].
    pub(super) fn publish(&mut self, now: Now, conn: ConnId, publish: Publish, out: &mut Outputs) -> Taken {
        let Some((session, version)) = self.session_of(conn) else { return Taken::Done };
        let mut publish = publish;
        if let Err(reason) = self.resolve_alias(conn, &mut publish) {
            self.disconnect(conn, reason, "topic alias", out);
            return Taken::Done;
        }
        if let Err(reason) = inbound::check_publish(version, &publish) {
            self.disconnect(conn, reason, "retained messages are not available", out);
            return Taken::Done;
        }
        if self.answer_repeated(now, session, &publish, out) {
            return Taken::Done;
        }
        let extensions = match PublishExtensions::read(publish.properties.as_deref()) {
            Ok(extensions) => extensions,
            Err(reason) => {
                self.refuse(conn, session, &publish, reason, "forebay-acks: expected 0, 1 or -1", out);
                return Taken::Done;
            }
        };
        let (acks, key, source) = (extensions.acks, extensions.key.cloned(), extensions.source.cloned());
        let client = self.client_of(session);
        let plan = match self.plan(&publish, &client, acks, key.as_ref()) {
            Ok(plan) => plan,
            Err(text) => {
                self.refuse(conn, session, &publish, Reason::IMPLEMENTATION_SPECIFIC, text, out);
                return Taken::Done;
            }
        };
        let Some(partition) = plan.partition else {
            self.counters.received(None, publish.qos);
            self.deliver_unstored(session, publish, out);
            return Taken::Done;
        };
        if let Some((hold, reason, text)) = self.obstacle(partition, plan.level) {
            let waits = hold == Hold::Memory || (version != Version::V5 && publish.qos != QoS::AtMostOnce);
            if waits {
                return Taken::Held(publish, hold);
            }
            if publish.qos == QoS::AtMostOnce {
                self.counters.lost(Some(partition.stream), hold.cause(), 1);
                return Taken::Done;
            }
            self.refuse(conn, session, &publish, reason, text, out);
            return Taken::Done;
        }
        let origin = Origin { session, client, key, source };
        self.store(now, publish, &origin, partition, plan.level, out);
        Taken::Done
    }

    /// Chooses the partition and the level [design §6]: raised to the stream's least, at least 1 for QoS 2, 0 for QoS 0.
    fn plan(
        &mut self,
        publish: &Publish,
        client: &Text,
        acks: Option<Acks>,
        key: Option<&Text>,
    ) -> Result<Plan, &'static str> {
        let routed = self.router.route(&publish.topic, client.as_bytes(), key.map(Text::as_bytes));
        let partition = routed.partition;
        if publish.qos == QoS::AtMostOnce {
            return Ok(Plan { partition: routed.configured.then_some(partition), level: Acks::Queued });
        }
        let Some(stream) = self.streams.get(&partition.stream) else {
            return Ok(Plan { partition: None, level: Acks::Queued });
        };
        let mut level = acks.unwrap_or(stream.settings.acks).max(stream.settings.acks_min);
        if publish.qos == QoS::ExactlyOnce {
            level = level.max(Acks::Synced);
        }
        if level == Acks::Replicated && !stream.replicated {
            return Err("acks -1 needs an upstream with replica = true");
        }
        Ok(Plan { partition: Some(partition), level })
    }

    /// What stands against an append now, with the reason code for MQTT 5.
    fn obstacle(&self, partition: PartitionId, level: Acks) -> Option<(Hold, Reason, &'static str)> {
        if self.stopping != Stopping::No {
            return Some((Hold::Memory, Reason::SERVER_SHUTTING_DOWN, "the gateway is stopping"));
        }
        if self.log.uncommitted_bytes() >= self.bounds.uncommitted_bytes {
            return Some((Hold::Memory, Reason::SERVER_BUSY, "memory budget reached"));
        }
        if self.fault.is_some() {
            return Some((Hold::Fault, Reason::IMPLEMENTATION_SPECIFIC, "STORAGE_ERROR: the log cannot be written"));
        }
        if self.full && self.streams.get(&partition.stream).is_some_and(|s| s.settings.when_full == WhenFull::Refuse) {
            return Some((Hold::Space, Reason::QUOTA_EXCEEDED, "disk budget reached"));
        }
        if level == Acks::Replicated {
            let short = self.partitions.get(&partition).is_none_or(|p| !p.replicas.enough());
            if short {
                return Some((Hold::Replicas, Reason::IMPLEMENTATION_SPECIFIC, "NOT_ENOUGH_REPLICAS"));
            }
            if self.replicated_waiting >= crate::limits::REPLICATED_WAITING_MAX {
                return Some((Hold::Memory, Reason::SERVER_BUSY, "too many publishes wait for replicas"));
            }
        }
        None
    }

    fn store(
        &mut self,
        now: Now,
        publish: Publish,
        origin: &Origin,
        partition: PartitionId,
        level: Acks,
        out: &mut Outputs,
    ) {
        let session = origin.session;
        let asked = Asked::of(session, &publish);
        let appended = self.append(now, publish, origin, partition);
        let seq = appended.position.seq;
        if asked.qos == QoS::ExactlyOnce {
            self.remember_received(session, asked.packet_id, partition, appended.offset);
        }
        if asked.qos == QoS::AtMostOnce {
            return;
        }
        let Some((conn, _)) = self.conn_of(session) else { return };
        let with_source = level != Acks::Queued && self.wants_offsets(conn);
        self.counters.acked(level, Reason::SUCCESS);
        match level {
            Acks::Queued => self.answer(asked, Reason::SUCCESS, None, 0, out),
            Acks::Synced => {
                let properties = with_source.then(|| self.source_property(partition, appended.offset));
                self.note_gate(conn, seq);
                self.answer(asked, Reason::SUCCESS, properties, seq, out);
            }
            Acks::Replicated => {
                let waits = (partition, appended.offset, true);
                self.answer_when_replicated(now, asked, waits, with_source, out);
            }
        }
    }

    /// The answer is made when the high watermark has passed a record.
    fn answer_when_replicated(
        &mut self,
        now: Now,
        asked: Asked,
        (partition, offset, own): (PartitionId, Offset, bool),
        with_source: bool,
        out: &mut Outputs,
    ) {
        let Asked { session, qos, packet_id } = asked;
        let (Some(kind), Some(state)) = (AnswerKind::of(qos), self.sessions.get_mut(&session)) else { return };
        let Some(conn) = state.conn else { return };
        let place = state.inbound.wait(kind, packet_id, now.mono_ns, |answer| emit(conn, answer, out));
        let waiting = Waiting { offset, own, session, place, packet_id, qos, since_ns: now.mono_ns, with_source };
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.waiting.push_back(waiting);
            self.replicated_waiting += 1;
        }
    }

    /// Appends a message to its partition and notes who is to get it.
    fn append(&mut self, now: Now, publish: Publish, origin: &Origin, partition: PartitionId) -> Appended {
        let session = origin.session;
        let record = NewRecord {
            publish: &publish,
            client: origin.client.as_bytes(),
            key: origin.key.as_ref().map(Text::as_bytes),
            source: origin.source.as_ref().map(Text::as_bytes),
        };
        let appended = self.log.append(partition, record, &now);
        self.counters.received(Some(partition.stream), publish.qos);
        self.counters.payload_bytes += publish.payload.len() as u64;
        let matches = self.router.matches(&publish.topic);
        if !matches.entries.is_empty() {
            let publish = Arc::new(Publish { dup: false, packet_id: 0, ..publish });
            let delivery = Delivery {
                position: appended.position,
                stored: Some((partition, appended.offset)),
                publish,
                matches,
                publisher: session,
            };
            self.fresh.push(delivery);
        }
        appended
    }

    /// A QoS 2 id that is known, or a DUP whose first copy still waits for the high watermark: answered or attached, not stored
    /// again [MQTT-4.3.3-10].
    fn answer_repeated(&mut self, now: Now, id: SessionId, publish: &Publish, out: &mut Outputs) -> bool {
        let Some(kind) = AnswerKind::of(publish.qos) else { return false };
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        match session.inbound.arrival(kind, publish.packet_id, publish.dup) {
            Arrival::New => return false,
            Arrival::Attached => {}
            Arrival::Again => match self.not_replicated(id, publish) {
                Some(last) => {
                    self.answer_when_replicated(now, Asked::of(id, publish), last, false, out);
                }
                // Its record may still be on its way to the disk.
                None => {
                    let gate = self.newest_gate();
                    self.answer(Asked::of(id, publish), Reason::SUCCESS, None, gate, out);
                }
            },
        }
        true
    }

    /// For a message at level -1 that was stored before, perhaps in a former life of the process: the last record of its partition, if
    /// the high watermark has not passed it. That of the message is known at QoS 2 only, and is not behind it.
    fn not_replicated(&mut self, id: SessionId, publish: &Publish) -> Option<(PartitionId, Offset, bool)> {
        let extensions = PublishExtensions::read(publish.properties.as_deref()).ok()?;
        let client = self.client_of(id);
        let plan = self.plan(publish, &client, extensions.acks, extensions.key).ok()?;
        let partition = plan.partition.filter(|_| plan.level == Acks::Replicated)?;
        let received = self.received_as(id, publish.packet_id).filter(|_| publish.qos == QoS::ExactlyOnce);
        let (partition, last) = match received {
            Some(received) => (received.partition, received.offset),
            None => (partition, self.log.leo(partition).checked_sub(1)?),
        };
        (self.high_watermark(partition) <= last).then_some((partition, last, false))
    }

    /// What stands durably under a QoS 2 identifier.
    fn received_as(&self, id: SessionId, packet_id: u16) -> Option<ReceivedQos2V1> {
        let entry = self.log.state().get(ControlKind::ReceivedQos2, &durable::received_key(id, packet_id))?;
        ReceivedQos2V1::decode(entry.version, &entry.value).ok()
    }

    fn remember_received(&mut self, id: SessionId, packet_id: u16, partition: PartitionId, offset: Offset) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.inbound.received(packet_id);
        if session.persistent {
            let key = durable::received_key(id, packet_id);
            self.log.control(ControlRecord::put(
                ControlKind::ReceivedQos2,
                key,
                ReceivedQos2V1 { partition, offset }.encode(),
            ));
        }
    }

    /// Frees a QoS 2 identifier; whether it was taken.
    fn forget_received(&mut self, id: SessionId, packet_id: u16) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let known = session.inbound.release(packet_id);
        if known {
            self.forget_durably(id, packet_id);
        }
        known
    }

    /// Removes what is durable of a received QoS 2 identifier.
    fn forget_durably(&mut self, id: SessionId, packet_id: u16) {
        if self.sessions.get(&id).is_some_and(|session| session.persistent) {
            self.log.control(ControlRecord::remove(ControlKind::ReceivedQos2, durable::received_key(id, packet_id)));
        }
    }

    /// PUBREL: the id is free. PUBCOMP leaves once the release is synced, else a reused id could be swallowed as a duplicate
    /// after a power cut [MQTT-4.3.3-11].
    pub(super) fn pubrel(&mut self, conn: ConnId, ack: &Ack, out: &mut Outputs) {
        let Some((id, version)) = self.session_of(conn) else { return };
        let known = self.forget_received(id, ack.packet_id);
        let reason = if known || version != Version::V5 { Reason::SUCCESS } else { Reason::PACKET_ID_NOT_FOUND };
        // An unknown id may have been released a moment ago, with the release still on its way to the disk.
        let persistent = self.sessions.get(&id).is_some_and(|session| session.persistent);
        let gate = if persistent { self.newest_gate() } else { 0 };
        self.note_gate(conn, gate);
        out.push(Output::Ack { conn, packet: Packet::PubComp(Ack::new(ack.packet_id, reason)), gate });
    }

    /// Makes the answer to a PUBLISH; it leaves in the order of the publishes, once frame `gate` is synced.
    fn answer(
        &mut self,
        asked: Asked,
        reason: Reason,
        properties: Option<Box<AckProperties>>,
        gate: Seq,
        out: &mut Outputs,
    ) {
        let Asked { session, qos, packet_id } = asked;
        let (Some(kind), Some(session)) = (AnswerKind::of(qos), self.sessions.get_mut(&session)) else { return };
        let Some(conn) = session.conn else { return };
        let answer = Answer { kind, packet_id, reason, properties, gate };
        session.inbound.answer(answer, |answer| emit(conn, answer, out));
    }

    /// The high watermark has passed a record, or its replica has refused it: its publisher is told.
    pub(super) fn answer_waiting(
        &mut self,
        partition: PartitionId,
        waiting: Waiting,
        reason: Reason,
        out: &mut Outputs,
    ) {
        self.replicated_waiting = self.replicated_waiting.saturating_sub(1);
        let properties =
            (waiting.with_source && !reason.is_failure()).then(|| self.source_property(partition, waiting.offset));
        let mut gate = 0;
        let Some(session) = self.sessions.get(&waiting.session) else { return };
        if reason.is_failure() && waiting.qos == QoS::ExactlyOnce && session.inbound.is_waiting(waiting.place) {
            // The answer frees the identifier, for good once this is synced.
            if session.persistent {
                let key = durable::received_key(waiting.session, waiting.packet_id);
                self.log.control(ControlRecord::remove(ControlKind::ReceivedQos2, key));
            }
            gate = self.newest_gate();
        }
        let Some(session) = self.sessions.get_mut(&waiting.session) else { return };
        // A connection that is being closed gets no answers any more.
        let conn = session.conn.filter(|conn| self.conns.get(conn).is_some_and(|state| !state.closing));
        session.inbound.resolve(waiting.place, reason, properties, gate, |answer| {
            if let Some(conn) = conn {
                emit(conn, answer, out);
            }
        });
    }

    fn source_property(&self, partition: PartitionId, offset: Offset) -> Box<AckProperties> {
        let source = Text::from(self.source_text(partition, offset));
        Box::new(AckProperties { reason_string: None, user: vec![(Text::from_static(SOURCE), source)] })
    }

    /// Refuses a publish: with the reason in MQTT 5; by closing in 3.1.1, which has no code for it [MQTT-3.3.5-2].
    fn refuse(
        &mut self,
        conn: ConnId,
        session: SessionId,
        publish: &Publish,
        reason: Reason,
        text: &'static str,
        out: &mut Outputs,
    ) {
        if publish.qos == QoS::AtMostOnce {
            return;
        }
        self.counters.acked(Acks::Synced, reason);
        let Some(state) = self.conns.get(&conn) else { return };
        if state.version != Version::V5 {
            self.close(conn, text, out);
            return;
        }
        let properties = state
            .problem_information
            .then(|| Box::new(AckProperties { reason_string: Some(Text::from_static(text)), user: Vec::new() }));
        self.answer(Asked::of(session, publish), reason, properties, 0, out);
    }

    /// A message of our own (a will): routed, stored and delivered like any other; where it cannot be stored it is counted.
    pub(super) fn publish_internal(&mut self, now: Now, id: SessionId, publish: Publish, out: &mut Outputs) {
        let client = self.client_of(id);
        let routed = self.router.route(&publish.topic, client.as_bytes(), None);
        if publish.qos == QoS::AtMostOnce && !routed.configured {
            return self.deliver_unstored(id, publish, out);
        }
        if let Some((hold, _, _)) = self.obstacle(routed.partition, Acks::Queued) {
            return self.counters.lost(Some(routed.partition.stream), hold.cause(), 1);
        }
        self.append(now, publish, &Origin { session: id, client, key: None, source: None }, routed.partition);
    }
}

/// The shell sends it once its frame is synced.
fn emit(conn: ConnId, answer: Answer, out: &mut Outputs) {
    let gate = answer.gate;
    out.push(Output::Ack { conn, packet: answer.into_packet(), gate });
}
