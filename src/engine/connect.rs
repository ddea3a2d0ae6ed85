//! From CONNECT to the end of a connection: sessions found, taken over, resumed, kept and ended; wills; hand-shakes to the client.

use super::deliver::Reading;
use super::io::{CloseCause, Event, Output, Outputs, Severity};
use super::reader::LogReader;
use super::{Conn, Engine, Session};
use crate::log::control::{ControlKind, ControlRecord};
use crate::mqtt::properties::DisconnectProperties;
use crate::mqtt::{Ack, Connect, Disconnect, Packet, Publish, Reason, Text, Version};
use crate::session::aliases::TopicAliases;
use crate::session::connect::{self as rules, Accepted, Expiry, Policy, Refusal};
use crate::session::durable;
use crate::session::inbound::Inbound;
use crate::session::outbound::{Acked, Outbound};
use crate::session::registry::Ended;
use crate::session::will::Ending;
use crate::types::{ConnId, Now, SessionId};

impl Engine {
    pub(super) fn opened(&mut self, conn: ConnId, listener: u16, peer: String) {
        let state = Conn {
            listener,
            peer,
            version: Version::V311,
            session: None,
            expiry: Expiry::WithConnection,
            aliases: TopicAliases::default(),
            max_packet_size: u32::MAX,
            problem_information: false,
            ack_offsets: false,
            clogged: false,
            closing: false,
            held: None,
            held_since_ns: None,
            last_gate: 0,
        };
        self.conns.insert(conn, state);
    }

    /// CONNECT: lets the client in or tells it why not [MQTT-3.1].
    pub(super) fn connect(&mut self, now: Now, conn: ConnId, connect: Connect, out: &mut Outputs) {
        let Some(policy) = self.policy_of(conn) else { return };
        let registry = &self.registry;
        let client_ids = &mut self.client_ids;
        let assign = || client_ids.assign(|id| registry.of_client(id).is_some());
        let checked = match rules::check(&connect, &policy, assign) {
            Ok(_) if self.stopping != super::Stopping::No => {
                Err(Refusal { reason: Reason::SERVER_SHUTTING_DOWN, text: "the gateway is stopping" })
            }
            other => other,
        };
        if let Some(state) = self.conns.get_mut(&conn) {
            state.version = connect.version;
        }
        let accepted = match checked {
            Ok(accepted) => accepted,
            Err(refusal) => return self.refuse_connect(conn, connect.version, &refusal, out),
        };
        // A refusal changes nothing: the former session and its connection stay.
        if accepted.will.as_ref().is_some_and(|will| !self.wills.has_room(will)) {
            let refusal = Refusal { reason: Reason::QUOTA_EXCEEDED, text: "there is no room for this will" };
            return self.refuse_connect(conn, connect.version, &refusal, out);
        }
        let opened = self.registry.connect(
            conn,
            &accepted.client_id,
            accepted.username.as_ref(),
            accepted.clean_start,
            accepted.expiry,
            now.mono_ns,
        );
        let Ok(opened) = opened else {
            let refusal =
                Refusal { reason: Reason::QUOTA_EXCEEDED, text: "there are as many sessions as there may be" };
            return self.refuse_connect(conn, connect.version, &refusal, out);
        };
        if let Some(former) = opened.taken_from {
            self.taken_over(now, former, out);
        }
        if let Some(ended) = opened.ended {
            self.end_session(now, ended, out);
        }
        self.wills.resumed(opened.id);
        if let Some(will) = accepted.will.clone() {
            self.wills.keep(opened.id, will);
        }
        let session = self.sessions.entry(opened.id).or_insert_with(|| Session::new(accepted.client_id.clone()));
        session.persistent = accepted.expiry.is_persistent();
        session.conn = Some(conn);
        if let Some(state) = self.conns.get_mut(&conn) {
            state.session = Some(opened.id);
            state.expiry = accepted.expiry;
            state.max_packet_size = accepted.max_packet_size;
            state.problem_information = accepted.problem_information;
            state.ack_offsets = accepted.ack_offsets;
        }
        if opened.changed {
            let user = accepted.username.as_ref().map(Text::as_bytes);
            let value =
                durable::SessionV1 { client: accepted.client_id.as_bytes(), user, expiry: accepted.expiry }.encode();
            self.log.control(ControlRecord::put(ControlKind::Session, durable::session_key(opened.id), value));
        }
        out.push(Output::Accepted {
            conn,
            version: accepted.version,
            max_packet_size: accepted.max_packet_size,
            receive_max: accepted.receive_max,
            idle_limit_ns: accepted.idle_limit_ns,
        });
        let welcome = Packet::ConnAck(Box::new(rules::welcome(&accepted, &policy, opened.present)));
        // It may leave before the session's record is synced: what would be missed after a power cut (subscriptions, received
        // identifiers) is answered only after its own sync, which covers this one.
        out.push(Output::Send { conn, packet: welcome });
        self.resume(now, opened.id, conn, opened.present, &accepted, out);
    }

    fn policy_of(&self, conn: ConnId) -> Option<Policy> {
        let listener = self.settings.listeners.get(usize::from(self.conns.get(&conn)?.listener))?;
        Some(Policy {
            allow_anonymous: self.settings.auth.allow_anonymous,
            max_inflight: listener.max_inflight,
            max_packet_size: listener.max_packet_size,
        })
    }

    fn refuse_connect(&mut self, conn: ConnId, version: Version, refusal: &Refusal, out: &mut Outputs) {
        if let Some(answer) = refusal.answer(version) {
            out.push(Output::Accepted {
                conn,
                version,
                max_packet_size: u32::MAX,
                receive_max: None,
                idle_limit_ns: None,
            });
            out.push(Output::Send { conn, packet: Packet::ConnAck(Box::new(answer)) });
        }
        self.close(conn, refusal.text, out);
    }

    /// A session that was there goes on: what is released is released again, what is in flight comes again when the reader
    /// passes it, with the same identifier [MQTT-4.4.0-1].
    fn resume(&mut self, now: Now, id: SessionId, conn: ConnId, present: bool, accepted: &Accepted, out: &mut Outputs) {
        let end = self.end();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.inbound.resumed(now.mono_ns);
        let releases = session.outbound.resume(accepted.send_max);
        if !present {
            session.outbound.reached(end);
            return;
        }
        for packet_id in releases {
            out.push(Output::Send { conn, packet: Packet::PubRel(Ack::new(packet_id, Reason::SUCCESS)) });
        }
        let from = session.outbound.cursor();
        session.reading = Reading::Behind(Box::new(LogReader::new(from, None)));
        self.make_runnable(id);
    }

    /// Another connection has the session now [MQTT-3.1.4-3].
    fn taken_over(&mut self, now: Now, former: ConnId, out: &mut Outputs) {
        let Some((id, _)) = self.session_of(former) else { return };
        self.detach(now, former, id, Ending::Abnormal, out);
        self.disconnect(former, Reason::SESSION_TAKEN_OVER, "the session was taken over", out);
    }

    /// DISCONNECT from the client [MQTT-3.14].
    pub(super) fn said_goodbye(&mut self, now: Now, conn: ConnId, disconnect: &Disconnect, out: &mut Outputs) {
        let Some((id, version)) = self.session_of(conn) else { return };
        let Some(state) = self.conns.get_mut(&conn) else { return };
        match rules::expiry_after(state.expiry, disconnect) {
            Ok(expiry) => state.expiry = expiry,
            Err(reason) => return self.disconnect(conn, reason, "a session that was to end cannot be kept", out),
        }
        let orderly = version != Version::V5 || disconnect.reason == Reason::SUCCESS;
        self.detach(now, conn, id, if orderly { Ending::Orderly } else { Ending::Abnormal }, out);
        self.close(conn, "the client said DISCONNECT", out);
    }

    /// The transport is gone.
    pub(super) fn closed(&mut self, now: Now, conn: ConnId, cause: &CloseCause, out: &mut Outputs) {
        let Some(state) = self.conns.get(&conn) else { return };
        if let CloseCause::Malformed(reason, text) = cause {
            let text = format!("{}: {text} (0x{:02X})", state.peer, reason.0);
            out.push(Output::Event(Event { severity: Severity::Info, part: "session", text }));
        }
        if let Some(id) = state.session {
            self.detach(now, conn, id, Ending::Abnormal, out);
        }
        self.conns.remove(&conn);
    }

    /// A session loses its connection; it stays if it was to.
    fn detach(&mut self, now: Now, conn: ConnId, id: SessionId, how: Ending, out: &mut Outputs) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.session = None;
        let expiry = state.expiry;
        let (end, synced) = (self.end(), self.synced_end());
        let Some(session) = self.sessions.get_mut(&id).filter(|session| session.conn == Some(conn)) else { return };
        session.conn = None;
        match &session.reading {
            Reading::Live if session.persistent => session.outbound.reached(synced),
            Reading::Live => session.outbound.reached(end),
            Reading::Behind(_) => {}
        }
        session.reading = Reading::Live;
        // Where nothing was delivered since the last one, the saved cursor is as good: a client that comes and goes writes nothing.
        let saved = self.log.state().get(ControlKind::SessionCursor, &durable::session_key(id)).is_some();
        if session.persistent && expiry.is_persistent() && (session.cursor_dirty || !saved || expiry != Expiry::Never) {
            self.save_cursor(now, id);
        }
        if let Some(will) = self.wills.disconnected(id, how, expiry, now.mono_ns) {
            self.publish_internal(now, id, will, out);
        }
        if let Some(ended) = self.registry.disconnected(id, conn, expiry, now.mono_ns) {
            self.end_session(now, ended, out);
        }
    }

    /// A session is no more: so are its subscriptions, hand-shakes and records.
    fn end_session(&mut self, now: Now, ended: Ended, out: &mut Outputs) {
        if let Some(will) = self.wills.ended(ended.id) {
            self.publish_internal(now, ended.id, will, out);
        }
        if ended.session.durable {
            self.remove_session_records(ended.id);
        }
        self.router.drop_session(ended.id);
        self.sessions.remove(&ended.id);
    }

    /// Removes everything that the log keeps of a session.
    pub(super) fn remove_session_records(&mut self, id: SessionId) {
        let prefix = durable::session_key(id);
        for kind in
            [ControlKind::Session, ControlKind::Subscription, ControlKind::ReceivedQos2, ControlKind::SessionCursor]
        {
            let keys: Vec<Vec<u8>> = self.log.state().scan_prefix(kind, &prefix).map(|(key, _)| key.to_vec()).collect();
            for key in keys {
                self.log.control(ControlRecord::remove(kind, key));
            }
        }
    }

    /// Sessions whose time is up, and wills whose delay has passed.
    pub(super) fn expire_sessions(&mut self, now: Now, out: &mut Outputs) {
        for ended in self.registry.expire(now.mono_ns) {
            self.end_session(now, ended, out);
        }
        while let Some((id, will)) = self.wills.due(now.mono_ns) {
            self.publish_internal(now, id, will, out);
        }
    }

    /// Closes a connection; in MQTT 5 it is told why first [MQTT-4.13].
    pub(super) fn disconnect(&mut self, conn: ConnId, reason: Reason, text: &'static str, out: &mut Outputs) {
        let Some(state) = self.conns.get(&conn) else { return };
        let told = state.version == Version::V5 && (state.session.is_some() || reason == Reason::SESSION_TAKEN_OVER);
        if told && !state.closing {
            let reason_string = state.problem_information.then(|| Text::from_static(text));
            let properties = DisconnectProperties { reason_string, ..Default::default() };
            let packet = Packet::Disconnect(Box::new(Disconnect { reason, properties }));
            out.push(Output::Send { conn, packet });
        }
        self.close(conn, text, out);
    }

    /// Closes a connection after what is queued for it was sent.
    pub(super) fn close(&mut self, conn: ConnId, text: &'static str, out: &mut Outputs) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if std::mem::replace(&mut state.closing, true) {
            return;
        }
        let text = format!("{}: closed: {text}", state.peer);
        out.push(Output::Event(Event { severity: Severity::Debug, part: "session", text }));
        out.push(Output::Close { conn });
    }

    pub(super) fn resolve_alias(&mut self, conn: ConnId, publish: &mut Publish) -> Result<(), Reason> {
        self.conns.get_mut(&conn).map_or(Ok(()), |state| state.aliases.resolve(publish))
    }

    pub(super) fn writable(&mut self, conn: ConnId) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.clogged = false;
        if let Some(id) = state.session {
            self.make_runnable(id);
        }
    }

    pub(super) fn puback(&mut self, conn: ConnId, ack: &Ack, out: &mut Outputs) {
        self.acked(conn, out, |outbound| outbound.puback(ack.packet_id));
    }

    pub(super) fn pubcomp(&mut self, conn: ConnId, ack: &Ack, out: &mut Outputs) {
        self.acked(conn, out, |outbound| outbound.pubcomp(ack.packet_id));
    }

    /// PUBREC: PUBREL follows [MQTT-4.3.3-4], or the message is done if the client refused it.
    pub(super) fn pubrec(&mut self, conn: ConnId, ack: &Ack, out: &mut Outputs) {
        let Some((_, version)) = self.session_of(conn) else { return };
        let reason = match self.acked(conn, out, |outbound| outbound.pubrec(ack.packet_id, ack.reason)) {
            Some(Acked::Release) => Reason::SUCCESS,
            Some(Acked::Unknown) if version == Version::V5 => Reason::PACKET_ID_NOT_FOUND,
            Some(Acked::Unknown) => Reason::SUCCESS,
            Some(Acked::Done | Acked::Wrong) | None => return,
        };
        out.push(Output::Send { conn, packet: Packet::PubRel(Ack::new(ack.packet_id, reason)) });
    }

    /// An acknowledgement of the client moves its window: it may take more.
    fn acked(&mut self, conn: ConnId, out: &mut Outputs, take: impl FnOnce(&mut Outbound) -> Acked) -> Option<Acked> {
        let (id, _) = self.session_of(conn)?;
        let session = self.sessions.get_mut(&id)?;
        let acked = take(&mut session.outbound);
        session.cursor_dirty = true;
        if acked == Acked::Wrong {
            self.disconnect(conn, Reason::PROTOCOL_ERROR, "an acknowledgement out of turn", out);
        } else {
            self.make_runnable(id);
        }
        Some(acked)
    }

    /// Writes cursors that moved, at most once a second per session [design §7].
    pub(super) fn save_cursors(&mut self, now: Now) {
        let due: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                session.persistent
                    && session.cursor_dirty
                    && now.mono_ns.saturating_sub(session.cursor_saved_ns) >= CURSOR_INTERVAL_NS
            })
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.save_cursor(now, id);
        }
    }

    pub(super) fn save_all_cursors(&mut self, now: Now) {
        let dirty = self.sessions.iter().filter(|(_, session)| session.persistent && session.cursor_dirty);
        let ids: Vec<SessionId> = dirty.map(|(id, _)| *id).collect();
        for id in ids {
            self.save_cursor(now, id);
        }
    }

    fn save_cursor(&mut self, now: Now, id: SessionId) {
        let synced = self.synced_end();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if matches!(session.reading, Reading::Live) && session.conn.is_some() {
            session.outbound.reached(synced);
        }
        let position = session.outbound.cursor();
        session.cursor_dirty = false;
        session.cursor_saved_ns = now.mono_ns;
        // Only a session that expires needs to know since when it is alone.
        let expires = matches!(self.registry.get(id).map(|session| session.expiry), Some(Expiry::AfterSeconds(_)));
        let offline_wall_ms = if session.conn.is_none() && expires && now.wall_synced { now.wall_ms } else { None };
        let value = durable::SessionCursorV1 { position, beyond: session.outbound.beyond().collect(), offline_wall_ms }
            .encode();
        self.log.control(ControlRecord::put(ControlKind::SessionCursor, durable::session_key(id), value));
    }
}

/// Least time between two cursor records of a session.
const CURSOR_INTERVAL_NS: u64 = 1_000_000_000;

impl Session {
    /// A new one.
    pub(super) fn new(client: Text) -> Self {
        Self {
            client,
            persistent: false,
            conn: None,
            inbound: Inbound::default(),
            outbound: Outbound::new(1),
            reading: Reading::Live,
            runnable: false,
            cursor_dirty: false,
            cursor_saved_ns: 0,
        }
    }
}
