//! A living gateway: the real engine, committer, ack queues and reader, composed as `broker/` composes them, a piece at a time and
//! without threads. Which piece goes next is the loop's choice, so every interleaving of its threads may come.

use super::message::Key;
use super::net::Net;
use super::oracle::{Check, Oracle};
use super::plan::{Bug, Plan};
use super::rng::Rng;
use super::store::Disk;
use super::trace::Trace;
use forebay::engine::Engine;
use forebay::engine::io::{AdminCommand, AdminReply, CloseCause, Input, Output, Outputs, ReadRequest, ReadResult};
use forebay::limits::{READS_OUTSTANDING_MAX, UNCOMMITTED_SHARE};
use forebay::log::commit::Committer;
use forebay::log::frame::Group;
use forebay::log::memory::MemStateStore;
use forebay::log::read::Reader;
use forebay::log::segments::SegmentSummary;
use forebay::log::store::{Change, LogStore, StateStore};
use forebay::mqtt::Packet;
use forebay::replication::link::{LinkEvent, LinkOrder};
use forebay::session::ack_queue::AckQueue;
use forebay::types::{ConnId, Now, PartitionId, Seq, Ticket, UpstreamId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Time between ticks of an I/O thread.
const TICK_NS: u64 = 20_000_000;
/// Ticket of the status; the loop has one question under way at most.
const STATUS: Ticket = Ticket(1);

/// What a piece of the gateway works with besides itself.
pub struct Surroundings<'w> {
    pub now: Now,
    /// Since the beginning of the run, for the trace.
    pub at_ns: u64,
    pub rng: &'w mut Rng,
    pub net: &'w mut Net,
    pub oracle: &'w mut Oracle,
    pub trace: &'w mut Trace,
}

impl Surroundings<'_> {
    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.at_ns, what);
    }
}

enum Mail {
    Read { ticket: Ticket, result: ReadResult },
    Upstream { event: LinkEvent },
    Space { used_bytes: u64 },
    CommitFailed { error: String },
    Status,
    Stop,
}

enum Work {
    Read { ticket: Ticket, request: ReadRequest },
    Apply { stamp: Seq, changes: Vec<Change> },
    Free { numbers: Vec<u64> },
    Prepare,
}

#[derive(Default)]
struct IoThread {
    acks: AckQueue,
    foreign: Outputs,
    next_tick_ns: u64,
}

pub struct Gateway {
    engine: Engine,
    committer: Committer<Disk>,
    disk: Arc<Disk>,
    reader: Reader,
    bug: Bug,
    threads: Vec<IoThread>,
    mail: VecDeque<Mail>,
    slot: VecDeque<Group>,
    slot_bytes_max: usize,
    /// After a failure the committer tries again then.
    retry_ns: Option<u64>,
    committed: Seq,
    told: Seq,
    sealed: Vec<SegmentSummary>,
    work: VecDeque<Work>,
    pub orders: VecDeque<LinkOrder>,
    names: Vec<(String, PartitionId)>,
    closing: Option<Seq>,
    last_group: Seq,
    /// Records between the upstream's cursors and the ends, at the last status.
    pub lag: Option<u64>,
    pub commits_failed: u64,
}

impl Gateway {
    pub fn new(plan: &Plan, engine: Engine, committer: Committer<Disk>, disk: Arc<Disk>, committed: Seq) -> Self {
        let streams = ["telemetry", "bulk", "local", "critical", "default", "dead-letter"];
        let names =
            streams.iter().flat_map(|name| plan.partitions(name).into_iter().map(|id| ((*name).to_owned(), id)));
        let budget = plan.settings().device.memory_budget as usize;
        Self {
            engine,
            committer,
            disk,
            reader: Reader::new(),
            bug: plan.bug,
            threads: (0..plan.shape.io_threads).map(|_| IoThread::default()).collect(),
            mail: VecDeque::new(),
            slot: VecDeque::new(),
            slot_bytes_max: budget / UNCOMMITTED_SHARE + 128 * 1024,
            retry_ns: None,
            committed,
            told: committed,
            sealed: Vec::new(),
            work: VecDeque::new(),
            orders: VecDeque::new(),
            names: names.collect(),
            closing: None,
            last_group: committed,
            lag: None,
            commits_failed: 0,
        }
    }

    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The driver of the link has something to tell.
    pub fn tell(&mut self, event: LinkEvent) {
        self.mail.push_back(Mail::Upstream { event });
    }

    pub fn ask_status(&mut self) {
        self.mail.push_back(Mail::Status);
    }

    pub fn stop(&mut self) {
        self.mail.push_back(Mail::Stop);
    }

    /// Whether an orderly stop is complete.
    pub fn is_closed(&self) -> bool {
        self.closing.is_some_and(|closing| self.committed >= closing) && self.work.is_empty()
    }

    // ── an I/O thread's turn ────────────────────────────────────────────────────────────────────────────────────────────────

    pub fn turn(&mut self, index: usize, world: &mut Surroundings<'_>) -> Check {
        let mut outputs = Outputs::new();
        let foreign = std::mem::take(&mut self.threads[index].foreign);
        if self.committed > self.told {
            self.told = self.committed;
            let sealed = std::mem::take(&mut self.sealed);
            self.engine.step(world.now, Input::Committed { seq: self.told, written_bytes: 0, sealed }, &mut outputs);
        }
        while let Some(mail) = self.mail.pop_front() {
            let id = UpstreamId(0);
            let input = match mail {
                Mail::Read { ticket, result } => Input::Read { ticket, result },
                Mail::Upstream { event } => Input::Upstream { id, event },
                Mail::Space { used_bytes } => Input::Space { used_bytes, log_bytes: used_bytes, free_bytes: 1 << 40 },
                Mail::CommitFailed { error } => Input::CommitFailed { error },
                Mail::Status => Input::Admin { ticket: STATUS, command: AdminCommand::Status },
                Mail::Stop => Input::Stop,
            };
            self.engine.step(world.now, input, &mut outputs);
        }
        self.sockets(index, world, &mut outputs);
        if world.now.mono_ns >= self.threads[index].next_tick_ns {
            self.threads[index].next_tick_ns = world.now.mono_ns + TICK_NS;
            self.engine.step(world.now, Input::Tick, &mut outputs);
        }
        self.engine.finish_turn(world.now, &mut outputs);
        let own = self.hand_over(index, outputs, world)?;
        for output in foreign.into_iter().chain(own) {
            self.apply(index, output, world)?;
        }
        if world.rng.permille(200) {
            self.commit(world)?; // the committer is done between the engine's part of a turn and the release
        }
        self.release(index, world)?;
        world.net.sweep();
        Ok(())
    }

    /// What came in through this thread's connections.
    fn sockets(&mut self, index: usize, world: &mut Surroundings<'_>, outputs: &mut Outputs) {
        let threads = self.threads.len() as u64;
        let mine: Vec<ConnId> =
            world.net.pipes.keys().copied().filter(|id| (id.0 % threads) as usize == index).collect();
        for conn in mine {
            let Some(pipe) = world.net.pipes.get_mut(&conn).filter(|pipe| !pipe.told) else { continue };
            let engine = &mut self.engine;
            if !std::mem::replace(&mut pipe.opened, true) {
                engine.step(world.now, Input::Opened { conn, listener: 0, peer: format!("peer-{}", conn.0) }, outputs);
            }
            if pipe.closing {
                (pipe.told, pipe.ended) = (true, true);
                engine.step(world.now, Input::Closed { conn, cause: CloseCause::Ordered }, outputs);
                self.threads[index].acks.forget(conn);
                continue;
            }
            match pipe.pressure() {
                Some(true) => engine.step(world.now, Input::Clogged { conn }, outputs),
                Some(false) => engine.step(world.now, Input::Writable { conn }, outputs),
                None => {}
            }
            if pipe.held {
                continue;
            }
            let come = world.rng.index(pipe.to_server.len() + 1);
            pipe.inbox.extend(pipe.to_server.drain(..come));
            if !pipe.inbox.is_empty() {
                engine.step(world.now, Input::Packets { conn, inbox: &mut pipe.inbox }, outputs);
            }
            if pipe.client_gone && pipe.inbox.is_empty() && pipe.to_server.is_empty() {
                (pipe.told, pipe.ended) = (true, true);
                engine.step(world.now, Input::Closed { conn, cause: CloseCause::Peer("gone".to_owned()) }, outputs);
                self.threads[index].acks.forget(conn);
            }
        }
    }

    /// Sends off what is not for this thread's connections, in order.
    fn hand_over(&mut self, index: usize, outputs: Outputs, world: &mut Surroundings<'_>) -> Result<Outputs, String> {
        let threads = self.threads.len();
        let mut own = Outputs::new();
        for output in outputs {
            let conn = match &output {
                Output::Accepted { conn, .. }
                | Output::Send { conn, .. }
                | Output::Ack { conn, .. }
                | Output::Hold { conn }
                | Output::Release { conn }
                | Output::Close { conn } => Some(*conn),
                _ => None,
            };
            match (conn, output) {
                (Some(conn), output) if conn.0 as usize % threads == index => own.push(output),
                (Some(conn), output) => self.threads[conn.0 as usize % threads].foreign.push(output),
                (None, Output::Deliver { subscribers, publish }) => {
                    for (thread, state) in self.threads.iter_mut().enumerate() {
                        let (subscribers, publish) = (Arc::clone(&subscribers), Arc::clone(&publish));
                        let deliver = Output::Deliver { subscribers, publish };
                        if thread == index { own.push(deliver) } else { state.foreign.push(deliver) }
                    }
                }
                (None, output) => self.dispatch(output, world)?,
            }
        }
        let reads = self.work.iter().filter(|work| matches!(work, Work::Read { .. })).count();
        if reads > READS_OUTSTANDING_MAX {
            return Err(format!("{reads} reads are under way"));
        }
        let bytes: usize = self.slot.iter().map(|group| group.bytes).sum();
        if bytes > self.slot_bytes_max {
            return Err(format!("{bytes} bytes wait for the committer, {} are the bound", self.slot_bytes_max));
        }
        Ok(own)
    }

    fn dispatch(&mut self, output: Output, world: &mut Surroundings<'_>) -> Check {
        match output {
            Output::Commit(group) => {
                world.note(format_args!(
                    "sealed {}..={}, {} records",
                    group.first_seq(),
                    group.last_seq(),
                    group.records
                ));
                world.oracle.sealed(&group)?;
                self.last_group = group.last_seq();
                self.slot.push_back(group);
            }
            Output::Read { ticket, request } => self.work.push_back(Work::Read { ticket, request }),
            Output::Apply { stamp, changes } => self.work.push_back(Work::Apply { stamp, changes }),
            Output::FreeSegments { numbers } => self.work.push_back(Work::Free { numbers }),
            Output::Upstream { order, .. } => {
                if let LinkOrder::Publish(list) = &order {
                    list.iter().try_for_each(|publish| world.oracle.forwards(&publish.payload))?;
                }
                self.orders.push_back(order);
            }
            Output::Reply { body: AdminReply::Status(status), .. } => {
                for stream in &status.streams {
                    for partition in &stream.partitions {
                        let of = |(name, id): &&(String, PartitionId)| {
                            *name == stream.name && id.partition == partition.partition
                        };
                        let Some((_, id)) = self.names.iter().find(of) else { continue };
                        world.oracle.ends(*id, partition.leo, partition.synced, partition.hw)?;
                    }
                }
                self.lag = status.upstreams.first().map(|upstream| upstream.lag_records);
            }
            Output::Stopped => self.closing = Some(self.last_group),
            Output::Event(event) => world.note(format_args!("{}: {}", event.part, event.text)),
            _ => {}
        }
        Ok(())
    }

    fn apply(&mut self, index: usize, output: Output, world: &mut Surroundings<'_>) -> Check {
        match output {
            Output::Accepted { conn, version, .. } => {
                if let Some(pipe) = world.net.pipes.get_mut(&conn) {
                    pipe.version = Some(version);
                }
                Ok(())
            }
            Output::Send { conn, packet } => self.send(conn, packet, world),
            Output::Deliver { subscribers, publish } => {
                let threads = self.threads.len();
                for conn in subscribers.iter().filter(|conn| conn.0 as usize % threads == index) {
                    self.send(*conn, Packet::Publish((*publish).clone()), world)?;
                }
                Ok(())
            }
            Output::Ack { conn, packet, gate } => {
                if let Packet::PubAck(ack) | Packet::PubRec(ack) = &packet
                    && ack.reason.is_failure()
                    && let Some(key) = world.net.pipes.get(&conn).and_then(|pipe| pipe.published.get(&ack.packet_id))
                {
                    let key = *key;
                    world.oracle.refused(key);
                    world.note(format_args!("refusing {key} to {}: 0x{:02X}, gate {gate}", conn.0, ack.reason.0));
                }
                let gate = if self.bug == Bug::AckBeforeSync { 0 } else { gate };
                match self.threads[index].acks.push(conn, packet, gate) {
                    Some(packet) => self.send(conn, packet, world),
                    None => Ok(()),
                }
            }
            Output::Hold { conn } => {
                world.note(format_args!("hold {}", conn.0));
                if let Some(pipe) = world.net.pipes.get_mut(&conn) {
                    pipe.held = true;
                }
                Ok(())
            }
            Output::Release { conn } => {
                if let Some(pipe) = world.net.pipes.get_mut(&conn) {
                    pipe.held = false;
                }
                Ok(())
            }
            Output::Close { conn } => {
                if let Some(pipe) = world.net.pipes.get_mut(&conn) {
                    pipe.closing = true;
                    pipe.inbox.clear();
                    pipe.to_server.clear();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn release(&mut self, index: usize, world: &mut Surroundings<'_>) -> Check {
        let mut released: Vec<(ConnId, Packet)> = Vec::new();
        self.threads[index].acks.release(self.committed, |conn, packets| {
            packets.for_each(|packet| released.push((conn, packet)));
        });
        released.into_iter().try_for_each(|(conn, packet)| self.send(conn, packet, world))
    }

    /// A packet leaves the gateway.
    fn send(&mut self, conn: ConnId, packet: Packet, world: &mut Surroundings<'_>) -> Check {
        let Some(pipe) = world.net.pipes.get_mut(&conn).filter(|pipe| !pipe.closing && !pipe.told) else {
            return Ok(());
        };
        match &packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) if !ack.reason.is_failure() => {
                let key = pipe.published.get(&ack.packet_id).copied();
                let key: Key =
                    key.ok_or_else(|| format!("identifier {} is acknowledged, nobody used it", ack.packet_id))?;
                world.oracle.acked(key)?;
                world.trace.note(world.at_ns, format_args!("ack {key} to {}", conn.0));
            }
            Packet::SubAck(_) => pipe.granted_at = Some(self.engine.last_seq() + 1),
            _ => {}
        }
        pipe.to_client.push_back(packet);
        Ok(())
    }

    // ── the committer ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The committer takes what waits, if it is not backing off.
    pub fn commit(&mut self, world: &mut Surroundings<'_>) -> Check {
        match self.retry_ns {
            Some(at) if world.now.mono_ns < at => return Ok(()),
            None if self.slot.is_empty() => return Ok(()),
            _ => {}
        }
        // While it backs off it takes no more.
        let groups = if self.retry_ns.is_some() { VecDeque::new() } else { std::mem::take(&mut self.slot) };
        let (done, error) = match self.committer.commit(groups) {
            Ok(done) => (done, None),
            Err(failed) => (failed.done, Some(failed.error.to_string())),
        };
        if self.disk.memory.is_dead() {
            return Ok(()); // so nobody hears of it
        }
        world.oracle.synced(done.synced)?;
        self.committed = self.committed.max(done.synced);
        if !done.sealed.is_empty() {
            self.sealed.extend(done.sealed);
            self.work.push_back(Work::Prepare);
        }
        world.note(format_args!(
            "synced up to {}{}",
            self.committed,
            if error.is_some() { ", then failed" } else { "" }
        ));
        self.retry_ns = error.is_some().then(|| world.now.mono_ns + 1_000_000 + world.rng.below(50_000_000));
        if let Some(error) = error {
            self.commits_failed += 1;
            self.mail.push_back(Mail::CommitFailed { error });
        }
        Ok(())
    }

    // ── the store thread ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The store thread does the next thing.
    pub fn store(&mut self, state: &mut MemStateStore, world: &mut Surroundings<'_>) -> Check {
        let Some(work) = self.work.pop_front() else { return Ok(()) };
        match work {
            Work::Read { ticket, request } => {
                let result = self.reader.read(&*self.disk, &request);
                world.note(format_args!("read from {}/{}", request.from.seq, request.from.index));
                self.mail.push_back(Mail::Read { ticket, result });
            }
            Work::Apply { stamp, mut changes } => {
                if self.bug == Bug::DedupLost {
                    let received = forebay::log::control::ControlKind::ReceivedQos2 as u16;
                    changes.retain(|change| !change.key.starts_with(&received.to_be_bytes()));
                }
                state.apply(&changes, stamp).map_err(|error| error.to_string())?;
                world.note(format_args!("applied {} changes up to {stamp}", changes.len()));
            }
            Work::Free { numbers } => {
                for number in numbers {
                    // The process may die in the middle of it; else a segment that was to go is there.
                    let gone = self.disk.recycle(number);
                    if !self.disk.memory.is_dead() {
                        gone.map_err(|error| format!("freeing a segment: {error}"))?;
                    }
                    world.note(format_args!("freed segment {number}"));
                }
                let used_bytes = self.disk.bytes_used().unwrap_or(0);
                self.mail.push_back(Mail::Space { used_bytes });
            }
            Work::Prepare => {
                // No space, or a dying process: the next roll will find out.
                let _ = self.disk.prepare_spare();
            }
        }
        Ok(())
    }
}
