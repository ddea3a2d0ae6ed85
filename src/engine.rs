//! The engine: what the broker does, as one pure function of its state, the time and an input.
//!
//! [`Engine::step`] takes one [`Input`] and appends to a list of [`Output`]s; [`Engine::finish_turn`] ends a turn: it seals
//! what was appended for the committer and lets readers go on. The engine never calls a store, a socket or a clock: reads, commits
//! and deliveries are outputs now and inputs later, so the same code runs in the simulator.
//!
//! ```text
//! publish.rs    PUBLISH in: stream, partition, level, obstacles, append         [design §6]
//! commit.rs     a commit came back: high watermark, answers, held publishers    [design §6]
//! deliver.rs    messages out: pushed while a session keeps up, read otherwise   [design §7]
//! connect.rs    CONNECT to the end of a connection: sessions, takeover, wills   [design §7]
//! subscribe.rs  SUBSCRIBE, UNSUBSCRIBE
//! forward.rs    the log goes upstream                                           [design §8]
//! space.rs      retention and the disk budget                                   [design §5]
//! admin.rs      status, records, pause
//! reader.rs     one reader of the log, from memory or by asking for a read
//! ```

mod admin;
mod commit;
mod connect;
mod counters;
mod deliver;
mod forward;
pub mod io;
mod publish;
mod reader;
mod reads;
mod space;
mod start;
pub mod status;
mod subscribe;

use crate::limits::DAMAGE_REPORTS_MAX;
use crate::log::Log;
use crate::log::damage::Damage;
use crate::mqtt::{Packet, Reason, Text, Version};
use crate::replication::ReplicaSet;
use crate::router::Router;
use crate::session::aliases::TopicAliases;
use crate::session::connect::{ClientIds, Expiry};
use crate::session::inbound::Inbound;
use crate::session::outbound::Outbound;
use crate::session::registry::Registry;
use crate::session::will::Wills;
use crate::settings::{self, Settings};
use crate::types::{BootId, ConnId, IngestTime, LogPosition, Now, PartitionId, Seq, SessionId, StreamId, Ticket};
use counters::Counters;
use deliver::{Delivery, Reading};
use foldhash::fast::FixedState;
use forward::Upstream;
use io::{Input, Output, Outputs, ReadResult, Severity};
use publish::{Taken, Waiting};
use reads::{Asker, Reads};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

pub use start::EngineStart;

type Map<K, V> = HashMap<K, V, FixedState>;

/// The broker without its sockets, files and clock.
pub struct Engine {
    settings: Arc<Settings>,
    gateway_id: String,
    boot: BootId,
    log_id_text: String,
    log: Log,
    router: Router,
    registry: Registry,
    client_ids: ClientIds,
    wills: Wills,
    conns: Map<ConnId, Conn>,
    sessions: Map<SessionId, Session>,
    streams: BTreeMap<StreamId, Stream>,
    partitions: BTreeMap<PartitionId, Partition>,
    /// The partitions with replicas besides the local log.
    replicated: Vec<PartitionId>,
    upstreams: Vec<Upstream>,
    dead_letter: PartitionId,
    any_committed_read: bool,
    /// Messages of the open group, for sessions.
    fresh: Vec<Delivery>,
    /// Messages that durable sessions get once they are synced.
    unsynced: VecDeque<Delivery>,
    /// Sessions that are behind and may take more.
    runnable: VecDeque<SessionId>,
    /// Sessions whose last read failed.
    stalled: Vec<SessionId>,
    /// Segment and byte of what was found damaged, so that it is said once.
    damage_seen: BTreeSet<(u64, u64)>,
    reads: Reads,
    /// Connections that are held, each once.
    held: VecDeque<ConnId>,
    /// Grows with every change that may let a held publish in.
    conditions: u64,
    memory_full: bool,
    replicated_waiting: usize,
    fault: Option<String>,
    full: bool,
    space_due: bool,
    forward_due: bool,
    used_bytes: u64,
    /// Bytes in data_dir that are not the log's.
    other_bytes: u64,
    free_bytes: Option<u64>,
    /// Since when a commit is awaited.
    commit_waits_since: Option<u64>,
    counters: Counters,
    admin: admin::Questions,
    bounds: Bounds,
    started_ns: u64,
    last_upkeep_ns: u64,
    stopping: Stopping,
}

/// How far an orderly stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    /// Nothing more is let in; what was is being synced.
    Draining,
    /// Everything is synced and answered.
    Drained,
    /// Clients and upstreams are being let go.
    Disconnecting,
    /// The closing frame is with the committer.
    Closed,
}

/// How much of the bounds in `limits.rs` this device uses.
struct Bounds {
    /// Bytes appended and not yet synced above which publishers wait.
    uncommitted_bytes: usize,
}

/// A connection.
struct Conn {
    listener: u16,
    peer: String,
    version: Version,
    session: Option<SessionId>,
    /// How long the session outlives this connection.
    expiry: Expiry,
    aliases: TopicAliases,
    max_packet_size: u32,
    problem_information: bool,
    ack_offsets: bool,
    clogged: bool,
    closing: bool,
    held: Option<Held>,
    /// Since when the PUBLISH at the front of its inbox waits, over all its holds.
    held_since_ns: Option<u64>,
    /// Highest frame that an answer of it waits for.
    last_gate: Seq,
}

#[derive(Clone, Copy)]
struct Held {
    conditions: u64,
    /// Whether the connection is closed at `ack_timeout` (the waiting rule for 3.1.1).
    gives_up: bool,
}

/// Why a PUBLISH waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Memory,
    Fault,
    Space,
    Replicas,
}

impl Hold {
    /// The cause under which a QoS 0 message is counted that is lost to it.
    fn cause(self) -> &'static str {
        match self {
            Self::Memory | Self::Replicas => "qos0_slow",
            Self::Fault => "sync_failed",
            Self::Space => "disk_full",
        }
    }
}

/// A session: what MQTT makes of it, and where it stands in the log.
struct Session {
    client: Text,
    persistent: bool,
    conn: Option<ConnId>,
    inbound: Inbound,
    outbound: Outbound,
    reading: Reading,
    /// Stands in `runnable`.
    runnable: bool,
    cursor_dirty: bool,
    cursor_saved_ns: u64,
}

/// A stream of the catalogue.
struct Stream {
    name: String,
    settings: settings::Stream,
    partitions: u16,
    /// Whether an upstream with `replica = true` carries it.
    replicated: bool,
    /// Whether the configuration names it, unlike a built-in one or one that is not configured any more.
    asked_for: bool,
    /// Whether it is in the configuration; one that is not is read-only until retained away.
    configured: bool,
}

/// A partition.
struct Partition {
    /// In-sync replicas when that was last looked at.
    in_sync: usize,
    replicas: ReplicaSet,
    waiting: VecDeque<Waiting>,
}

/// Time between looks at time-outs, cursors and lags.
const UPKEEP_NS: u64 = 100_000_000;

impl Engine {
    /// Takes one input; what follows from it is appended to `out`.
    pub fn step(&mut self, now: Now, input: Input<'_>, out: &mut Outputs) {
        match input {
            Input::Opened { conn, listener, peer } => self.opened(conn, listener, peer),
            Input::Packets { conn, inbox } => self.packets(now, conn, inbox, out),
            Input::Writable { conn } => self.writable(conn),
            Input::Clogged { conn } => {
                if let Some(state) = self.conns.get_mut(&conn) {
                    state.clogged = true;
                }
            }
            Input::Closed { conn, cause } => self.closed(now, conn, &cause, out),
            Input::Committed { seq, written_bytes, sealed } => {
                self.counters.written_bytes += written_bytes;
                self.committed(now, seq, sealed, out);
            }
            Input::CommitFailed { error } => self.commit_failed(error, out),
            Input::Read { ticket, result } => self.read_answered(ticket, result, out),
            Input::Upstream { id, event } => self.upstream_event(now, id, event, out),
            Input::Space { used_bytes, log_bytes, free_bytes } => self.space(used_bytes, log_bytes, free_bytes),
            Input::Admin { ticket, command } => self.ask(now, ticket, command, out),
            Input::Tick => self.tick(now, out),
            Input::Stop => {
                if self.stopping == Stopping::No {
                    self.stopping = Stopping::Draining;
                }
            }
        }
    }

    /// Ends a turn: what was appended goes to the committer, readers go on, held publishers are looked at again.
    pub fn finish_turn(&mut self, now: Now, out: &mut Outputs) {
        if self.stopping == Stopping::Closed {
            return;
        }
        self.manage_space(out);
        while let Some(group) = self.log.seal() {
            self.counters.commit_records += group.records as u64;
            self.commit_waits_since.get_or_insert(now.mono_ns);
            out.push(Output::Commit(group));
        }
        self.push_fresh(out);
        let more = self.pump_sessions(now, out) | self.pump_links(now, out);
        self.release_held(out);
        self.continue_stop(now, out);
        if more || self.log.open_bytes() > 0 {
            out.push(Output::Wake { at_ns: now.mono_ns });
        }
    }

    fn packets(&mut self, now: Now, conn: ConnId, inbox: &mut VecDeque<Packet>, out: &mut Outputs) {
        while let Some(packet) = inbox.pop_front() {
            let Some(state) = self.conns.get(&conn) else { return inbox.clear() };
            if state.closing {
                return inbox.clear();
            }
            if state.session.is_none() != matches!(packet, Packet::Connect(_)) {
                // The first packet is CONNECT, and the only one [MQTT-3.1.0-1] [MQTT-3.1.0-2].
                self.disconnect(conn, Reason::PROTOCOL_ERROR, "CONNECT out of place", out);
                return inbox.clear();
            }
            match packet {
                Packet::Publish(publish) => match self.publish(now, conn, publish, out) {
                    Taken::Done => {
                        if let Some(state) = self.conns.get_mut(&conn) {
                            state.held_since_ns = None;
                        }
                    }
                    Taken::Held(publish, why) => {
                        inbox.push_front(Packet::Publish(publish));
                        return self.hold(now, conn, why, out);
                    }
                },
                other => self.packet(now, conn, other, out),
            }
        }
    }

    fn packet(&mut self, now: Now, conn: ConnId, packet: Packet, out: &mut Outputs) {
        match packet {
            Packet::Connect(connect) => self.connect(now, conn, *connect, out),
            Packet::PubRel(ack) => self.pubrel(conn, &ack, out),
            Packet::PubAck(ack) => self.puback(conn, &ack, out),
            Packet::PubRec(ack) => self.pubrec(conn, &ack, out),
            Packet::PubComp(ack) => self.pubcomp(conn, &ack, out),
            Packet::Subscribe(subscribe) => self.subscribe(conn, &subscribe, out),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(conn, &unsubscribe, out),
            Packet::PingReq => out.push(Output::Send { conn, packet: Packet::PingResp }),
            Packet::Disconnect(disconnect) => self.said_goodbye(now, conn, &disconnect, out),
            // No method was agreed on, so no AUTH may come [MQTT-4.12.0-1].
            Packet::Auth(_) => self.disconnect(conn, Reason::PROTOCOL_ERROR, "AUTH without a method", out),
            Packet::Publish(_) | Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                self.disconnect(conn, Reason::PROTOCOL_ERROR, "a packet that only a server sends", out);
            }
        }
    }

    fn hold(&mut self, now: Now, conn: ConnId, why: Hold, out: &mut Outputs) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        self.memory_full |= why == Hold::Memory;
        state.held = Some(Held { conditions: self.conditions, gives_up: why != Hold::Memory });
        state.held_since_ns.get_or_insert(now.mono_ns);
        self.held.push_back(conn);
        out.push(Output::Hold { conn });
    }

    fn tick(&mut self, now: Now, out: &mut Outputs) {
        self.links_tick(now, out);
        if now.mono_ns.saturating_sub(self.last_upkeep_ns) < UPKEEP_NS {
            return;
        }
        self.last_upkeep_ns = now.mono_ns;
        for id in std::mem::take(&mut self.stalled) {
            self.make_runnable(id);
        }
        self.check_ack_timeouts(now, out);
        self.expire_sessions(now, out);
        self.save_cursors(now);
        for index in 0..self.replicated.len() {
            let Some(id) = self.replicated.get(index).copied() else { break };
            self.high_watermark_moved(now, id, out);
        }
        if let Some((stamp, changes)) = self.log.take_changes() {
            out.push(Output::Apply { stamp, changes });
        }
    }

    /// Stopping goes in steps, a turn each: what was appended is synced and answered, clients are told, the log is closed.
    fn continue_stop(&mut self, now: Now, out: &mut Outputs) {
        let synced = self.log.open_bytes() == 0 && self.log.synced_seq() >= self.log.last_seq();
        self.stopping = match self.stopping {
            Stopping::No => return,
            Stopping::Draining if synced || self.fault.is_some() => Stopping::Drained,
            Stopping::Draining => Stopping::Draining,
            Stopping::Drained => {
                let conns: Vec<ConnId> = self.conns.keys().copied().collect();
                for conn in conns {
                    self.disconnect(conn, Reason::SERVER_SHUTTING_DOWN, "the gateway is stopping", out);
                }
                self.stop_links(now, out);
                Stopping::Disconnecting
            }
            Stopping::Disconnecting if self.conns.is_empty() && synced => {
                self.save_all_cursors(now);
                out.extend(self.log.close().into_iter().map(Output::Commit));
                out.push(Output::Stopped);
                Stopping::Closed
            }
            Stopping::Disconnecting => Stopping::Disconnecting,
            Stopping::Closed => Stopping::Closed,
        };
        if matches!(self.stopping, Stopping::Drained) {
            out.push(Output::Wake { at_ns: now.mono_ns });
        }
    }

    /// The frame that everything appended so far is synced with.
    fn newest_gate(&self) -> Seq {
        self.log.next_seq().saturating_sub(1)
    }

    /// The position from which on everything is yet to be sealed.
    fn end(&self) -> LogPosition {
        LogPosition { seq: self.log.last_seq() + 1, index: 0 }
    }

    /// The position behind everything that is synced.
    fn synced_end(&self) -> LogPosition {
        LogPosition { seq: self.log.synced_seq() + 1, index: 0 }
    }

    /// Milliseconds since a record came in, as far as that is known.
    fn age_ms(&self, time: &IngestTime, now: Now) -> Option<u64> {
        forward::age_ms(&self.log, self.boot, time, now)
    }

    fn conn_of(&self, session: SessionId) -> Option<(ConnId, Version)> {
        let conn = self.sessions.get(&session)?.conn?;
        Some((conn, self.conns.get(&conn)?.version))
    }

    /// Last frame handed to the committer.
    pub fn last_seq(&self) -> Seq {
        self.log.last_seq()
    }

    /// The answer to a read goes to whoever asked.
    fn read_answered(&mut self, ticket: Ticket, result: ReadResult, out: &mut Outputs) {
        let failed = matches!(result, ReadResult::Failed(_));
        if let ReadResult::Failed(error) = &result {
            self.event(out, Severity::Error, "log", format!("reading failed: {error}"));
        }
        if let ReadResult::Frames { damage, .. } = &result {
            self.report_damage(damage, out);
        }
        let Some(asker) = self.reads.answered(ticket) else { return };
        match asker {
            Asker::Session(id) => {
                if let Some(session) = self.sessions.get_mut(&id)
                    && let Reading::Behind(reader) = &mut session.reading
                    && reader.asked() == Some(ticket)
                {
                    reader.answered(result);
                }
            }
            Asker::Upstream(id) => {
                if let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) {
                    let readers = [&mut upstream.reader, &mut upstream.refused_reader];
                    if let Some(reader) = readers.into_iter().find(|reader| reader.asked() == Some(ticket)) {
                        reader.answered(result);
                    }
                }
            }
            Asker::Admin(question) => self.admin.answered(question, ticket, result),
        }
        match asker {
            // Tried again with the next upkeep, not at once.
            Asker::Session(id) if failed => self.stalled.push(id),
            asker => self.go_on(asker, out),
        }
        for turned_away in self.reads.take_turned_away() {
            self.go_on(turned_away, out);
        }
    }

    /// Says once what cannot be read, and counts the records [design §10].
    fn report_damage(&mut self, damage: &[Damage], out: &mut Outputs) {
        for damage in damage {
            if self.damage_seen.len() >= DAMAGE_REPORTS_MAX
                || !self.damage_seen.insert((damage.segment, damage.place.0))
            {
                continue;
            }
            if let Some((partition, first, until)) = damage.offsets {
                self.counters.lost(Some(partition.stream), "damaged", until.saturating_sub(first));
            }
            self.event(out, Severity::Error, "log", damage.to_string());
        }
    }

    fn go_on(&mut self, asker: Asker, out: &mut Outputs) {
        match asker {
            Asker::Session(id) => self.make_runnable(id),
            Asker::Upstream(_) => self.forward_due = true,
            Asker::Admin(question) => self.continue_question(question, out),
        }
    }

    fn session_of(&self, conn: ConnId) -> Option<(SessionId, Version)> {
        let state = self.conns.get(&conn)?;
        Some((state.session?, state.version))
    }

    fn client_of(&self, session: SessionId) -> Text {
        self.sessions.get(&session).map(|session| session.client.clone()).unwrap_or_default()
    }

    fn wants_problem_information(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|state| state.problem_information)
    }

    fn wants_offsets(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|state| state.ack_offsets)
    }

    fn note_gate(&mut self, conn: ConnId, seq: Seq) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.last_gate = state.last_gate.max(seq);
        }
    }

    fn stream_name(&self, stream: StreamId) -> &str {
        self.streams.get(&stream).map_or("-", |stream| stream.name.as_str())
    }

    /// `<gateway id>/<log id>/<stream>/<partition>/<offset>` [surface §4].
    fn source_text(&self, id: PartitionId, offset: u64) -> String {
        format!("{}/{}/{}/{}/{offset}", self.gateway_id, self.log.log_id(), self.stream_name(id.stream), id.partition)
    }
}
