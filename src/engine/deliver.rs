//! Messages go out to sessions. What is stored is pushed in log order: to sessions that end with their connection when its group
//! is sealed, to durable ones when it is synced, since a durable cursor must not point beyond what survives. A session that
//! cannot take a message at QoS 1 or 2 stops being pushed to and reads the log from there, so that no session has a queue.

use super::Engine;
use super::forward::age_ms;
use super::io::{Output, Outputs};
use super::reader::{LogReader, Next};
use super::reads::Asker;
use crate::limits::READ_BYTES_MAX;
use crate::log::record::StoredRecord;
use crate::mqtt::encode::publish_len;
use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Ack, Packet, Publish, QoS, Reason};
use crate::router::{MatchSet, Matched, Own};
use crate::session::outbound::Passed;
use crate::settings::ReadLevel;
use crate::types::{ConnId, LogPosition, Now, Offset, PartitionId, Seq, SessionId};
use std::sync::Arc;

/// A message on its way to the sessions that match it.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Its place in the log; zero if it is not stored.
    pub(super) position: LogPosition,
    pub(super) stored: Option<(PartitionId, Offset)>,
    pub(super) publish: Arc<Publish>,
    pub(super) matches: Arc<MatchSet>,
    pub(super) publisher: SessionId,
}

/// How a session gets what the log holds.
#[derive(Debug)]
pub(super) enum Reading {
    /// It has everything up to now and is pushed to.
    Live,
    /// It reads the log.
    Behind(Box<LogReader>),
}

/// Who is pushed to in one pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// Sessions that end with their connection.
    Ephemeral,
    /// Durable sessions.
    Durable,
    /// All, for what is not stored.
    Everyone,
}

enum Pushed {
    /// Sent, or not for this session.
    Done,
    /// No room now: the session is to read the log from here.
    Blocked,
}

impl Engine {
    /// A QoS 0 message outside the configured streams goes to who is there now.
    pub(super) fn deliver_unstored(&mut self, publisher: SessionId, publish: Publish, out: &mut Outputs) {
        let matches = self.router.matches(&publish.topic);
        if matches.entries.is_empty() {
            return;
        }
        let publish = Arc::new(Publish { dup: false, packet_id: 0, ..publish });
        let delivery = Delivery { position: LogPosition::default(), stored: None, publish, matches, publisher };
        self.push_to(&delivery, Audience::Everyone, out);
    }

    /// After a group was sealed: its messages go to sessions that end with their connection, in log order.
    pub(super) fn push_fresh(&mut self, out: &mut Outputs) {
        let mut fresh = std::mem::take(&mut self.fresh);
        if !fresh.is_sorted_by_key(|delivery| delivery.position) {
            fresh.sort_by_key(|delivery| delivery.position);
        }
        for delivery in fresh.drain(..) {
            self.push_to(&delivery, Audience::Ephemeral, out);
            let durable = delivery
                .matches
                .entries
                .iter()
                .any(|entry| self.sessions.get(&entry.session).is_some_and(|session| session.persistent));
            if durable {
                self.unsynced.push_back(delivery);
            }
        }
        self.fresh = fresh;
    }

    /// After a commit: durable sessions get what is synced now.
    pub(super) fn push_synced(&mut self, synced: Seq, out: &mut Outputs) {
        while let Some(delivery) = self.unsynced.pop_front_if(|delivery| delivery.position.seq <= synced) {
            self.push_to(&delivery, Audience::Durable, out);
        }
    }

    fn push_to(&mut self, delivery: &Delivery, audience: Audience, out: &mut Outputs) {
        // Connections that get the very same bytes: QoS 0, no subscription identifier, RETAIN as usual.
        let mut same: Vec<ConnId> = Vec::new();
        for entry in delivery.matches.for_publisher(Some(delivery.publisher)) {
            let Some(session) = self.sessions.get(&entry.session) else { continue };
            let Some(conn) = session.conn else { continue };
            let wanted = match audience {
                Audience::Everyone => true,
                Audience::Ephemeral => !session.persistent,
                Audience::Durable => session.persistent,
            };
            if !wanted || (delivery.stored.is_some() && matches!(session.reading, Reading::Behind(_))) {
                continue;
            }
            let qos = entry.qos.min(delivery.publish.qos);
            let plain = entry.ids.is_empty() && !(entry.retain_as_published && delivery.publish.retain);
            if qos == QoS::AtMostOnce && plain && !self.hidden(delivery.stored) {
                match self.conns.get(&conn) {
                    Some(state) if state.clogged => self.counters.lost(None, "qos0_slow", 1),
                    Some(state) if state.max_packet_size == u32::MAX => same.push(conn),
                    Some(state) if publish_len(&delivery.publish, state.version) <= state.max_packet_size as usize => {
                        same.push(conn);
                    }
                    _ => {}
                }
                continue;
            }
            let pushed = self.push_one(entry, conn, delivery.position, delivery.stored, &delivery.publish, out);
            if matches!(pushed, Pushed::Blocked) {
                self.fall_behind(entry.session, delivery.position);
            }
        }
        if !same.is_empty() {
            self.counters.delivered += same.len() as u64;
            // A live message has RETAIN 0 unless its publisher's flag was asked for [MQTT-3.3.1-9].
            let as_is = delivery.publish.qos == QoS::AtMostOnce && !delivery.publish.retain;
            let lowered = || Arc::new(Publish { qos: QoS::AtMostOnce, retain: false, ..(*delivery.publish).clone() });
            let publish = if as_is { Arc::clone(&delivery.publish) } else { lowered() };
            out.push(Output::Deliver { subscribers: same.into(), publish });
        }
    }

    /// Sends one message to one session at its QoS.
    fn push_one(
        &mut self,
        entry: &Matched,
        conn: ConnId,
        position: LogPosition,
        stored: Option<(PartitionId, Offset)>,
        publish: &Publish,
        out: &mut Outputs,
    ) -> Pushed {
        let hidden = self.hidden(stored);
        let Some(session) = self.sessions.get_mut(&entry.session) else { return Pushed::Done };
        let Some(state) = self.conns.get(&conn) else { return Pushed::Done };
        let qos = entry.qos.min(publish.qos);
        if hidden {
            return Pushed::Blocked;
        }
        if state.clogged {
            if qos == QoS::AtMostOnce && stored.is_none() {
                self.counters.lost(None, "qos0_slow", 1);
                return Pushed::Done;
            }
            return Pushed::Blocked;
        }
        let mut message = publish.clone();
        message.qos = qos;
        message.retain = entry.retain_as_published && publish.retain;
        identify(&mut message, entry);
        if state.max_packet_size != u32::MAX && publish_len(&message, state.version) > state.max_packet_size as usize {
            // Too large for this client: as if it had been sent [MQTT-3.1.2-25].
            self.counters.lost(stored.map(|(id, _)| id.stream), "packet_too_large", 1);
            return Pushed::Done;
        }
        if qos != QoS::AtMostOnce {
            let position = stored.is_some().then_some(position);
            let Some(packet_id) = session.outbound.send(qos, position) else { return Pushed::Blocked };
            message.packet_id = packet_id;
        }
        session.cursor_dirty = true;
        self.counters.delivered += 1;
        out.push(Output::Send { conn, packet: Packet::Publish(message) });
        Pushed::Done
    }

    /// Whether a record is not yet to be seen: its stream is read below the high watermark.
    fn hidden(&self, stored: Option<(PartitionId, Offset)>) -> bool {
        let Some((id, offset)) = stored else { return false };
        self.any_committed_read
            && self.streams.get(&id.stream).is_some_and(|s| s.settings.read == ReadLevel::Committed)
            && self.high_watermark(id) <= offset
    }

    /// In-flight messages whose records are gone (retained away, damaged): QoS 2 identifiers are released, the rest is counted.
    fn give_up_missed(&mut self, id: SessionId, conn: ConnId, position: LogPosition, out: &mut Outputs) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let missed = session.outbound.overtaken(position);
        if missed.lost > 0 {
            self.counters.lost(None, "retention", missed.lost as u64);
        }
        for packet_id in missed.release {
            out.push(Output::Send { conn, packet: Packet::PubRel(Ack::new(packet_id, Reason::SUCCESS)) });
        }
    }

    fn fall_behind(&mut self, id: SessionId, position: LogPosition) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.reading = Reading::Behind(Box::new(LogReader::new(position, None)));
        }
    }

    /// Something changed for a session that is behind: it may take more from the log.
    pub(super) fn make_runnable(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id)
            && matches!(session.reading, Reading::Behind(_))
            && !session.runnable
        {
            session.runnable = true;
            self.runnable.push_back(id);
        }
    }

    /// Lets sessions that are behind take from the log, each a bounded piece. Returns whether any is left over.
    pub(super) fn pump_sessions(&mut self, now: Now, out: &mut Outputs) -> bool {
        for _ in 0..self.runnable.len() {
            let Some(id) = self.runnable.pop_front() else { break };
            if let Some(session) = self.sessions.get_mut(&id) {
                session.runnable = false;
            }
            if self.pump_session(now, id, out) {
                self.make_runnable(id);
            }
        }
        !self.runnable.is_empty()
    }

    /// `true`: it used up its share and could go on.
    fn pump_session(&mut self, now: Now, id: SessionId, out: &mut Outputs) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let Some(conn) = session.conn else { return false };
        let persistent = session.persistent;
        let Reading::Behind(mut reader) = std::mem::replace(&mut session.reading, Reading::Live) else { return false };
        // What is not synced must not be seen by who keeps a cursor.
        let until = if persistent { self.log.synced_seq() } else { self.log.last_seq() };
        let mut taken = 0;
        let mut more = false;
        let mut live = false;
        loop {
            if taken >= READ_BYTES_MAX {
                more = true;
                break;
            }
            let reads = &mut self.reads;
            let (frame, from) = match reader.next(&self.log, until, &mut || reads.ticket(Asker::Session(id)), out) {
                Next::Frame(frame, from) => (frame, from),
                Next::End => {
                    live = true;
                    break;
                }
                Next::Waiting => break,
            };
            taken += frame.body.len();
            self.give_up_missed(id, conn, LogPosition { seq: frame.header.seq, index: from }, out);
            let mut blocked = false;
            for record in frame.records_from(from) {
                let Ok(record) = record else { continue };
                if !self.offer_record(now, id, conn, &record, out) {
                    reader.advance(record.position);
                    blocked = true;
                    break;
                }
            }
            if blocked {
                break;
            }
            reader.advance(LogPosition { seq: frame.header.seq + 1, index: 0 });
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.reading = if live { Reading::Live } else { Reading::Behind(reader) };
        }
        more
    }

    /// `false`: it cannot be taken now.
    fn offer_record(
        &mut self,
        now: Now,
        id: SessionId,
        conn: ConnId,
        record: &StoredRecord,
        out: &mut Outputs,
    ) -> bool {
        let stored = Some((record.partition, record.offset));
        let clogged = self.conns.get(&conn).is_none_or(|state| state.clogged);
        let hidden = self.hidden(stored);
        let Some(session) = self.sessions.get_mut(&id) else { return true };
        if clogged || hidden || session.outbound.is_full() {
            return false;
        }
        let (persistent, age_s) =
            (session.persistent, age_ms(&self.log, self.boot, &record.ingest, now).map(|ms| ms / 1000));
        let mut publish = Publish {
            dup: false,
            qos: record.qos,
            retain: false,
            topic: record.topic.clone(),
            packet_id: 0,
            properties: record.properties.clone(),
            payload: record.payload.clone(),
        };
        match session.outbound.offer(record.position) {
            Passed::Done => return true,
            Passed::Again { packet_id, qos } => {
                (publish.dup, publish.packet_id, publish.qos) = (true, packet_id, qos);
                if let Some(entry) = self.router.matches_session(id, &record.topic, record.position) {
                    identify(&mut publish, &entry);
                }
                out.push(Output::Send { conn, packet: Packet::Publish(publish) });
                return true;
            }
            Passed::New => {}
        }
        if persistent && record.qos == QoS::AtMostOnce {
            return true; // QoS 0 is not replayed to durable sessions [design §7]
        }
        let Some(entry) = self.router.matches_session(id, &record.topic, record.position) else { return true };
        let own = self.client_of(id) == record.client;
        let entry = match entry.own {
            Own::Nothing if own => return true,
            Own::Other(other) if own => *other,
            _ => entry,
        };
        publish.retain = record.retain;
        if !still_wanted(&mut publish, age_s) {
            self.counters.lost(Some(record.partition.stream), "expired", 1);
            return true;
        }
        let pushed = self.push_one(&entry, conn, record.position, stored, &publish, out);
        matches!(pushed, Pushed::Done)
    }
}

/// Sets what is left of the message expiry interval [MQTT-3.3.2-6]; `false` if nothing is [MQTT-3.3.2-5].
fn still_wanted(message: &mut Publish, age_s: Option<u64>) -> bool {
    let Some(expiry) = message.properties.as_mut().and_then(|properties| properties.message_expiry_s.as_mut()) else {
        return true;
    };
    let left = u64::from(*expiry).saturating_sub(age_s.unwrap_or(0));
    *expiry = u32::try_from(left).unwrap_or(u32::MAX);
    left > 0 || age_s.is_none()
}

/// Puts the identifiers of the subscriptions that matched into the message [MQTT-3.3.4-3].
fn identify(message: &mut Publish, entry: &Matched) {
    if !entry.ids.is_empty() {
        let properties = message.properties.get_or_insert_with(|| Box::new(PublishProperties::default()));
        properties.subscription_ids = entry.ids.to_vec();
    }
}
