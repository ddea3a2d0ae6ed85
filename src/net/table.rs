//! The connections of one I/O thread: their inputs for the engine, the engine's outputs for them.

use super::connection::{Connection, ConnectionLimits, Ending, Intake, Life, Received};
use super::outbox::{OutputPool, Sent, SharedBytes};
use super::socket::Socket;
use crate::engine::io::{CloseCause, Input, Output};
use crate::limits::{
    CLOSE_TIMEOUT_NS, CONNECTIONS_PER_THREAD_MAX, IDLE_SCAN_NS, IO_THREADS_MAX, SOCKET_QUEUE_BYTES_MAX,
    SOCKET_QUEUE_HIGH, SOCKET_QUEUE_LOW,
};
use crate::mqtt::Publish;
use crate::net::listener::Permit;
use crate::session::ack_queue::AckQueue;
use crate::types::{ConnId, Seq};
use slab::Slab;
use std::task::{Context, Poll, Waker};

const THREAD_BITS: u32 = IO_THREADS_MAX.trailing_zeros();
const SLOT_BITS: u32 = CONNECTIONS_PER_THREAD_MAX.trailing_zeros();

/// The I/O thread that a connection belongs to.
pub fn thread_of(conn: ConnId) -> usize {
    usize::try_from(conn.0).unwrap_or_default() & (IO_THREADS_MAX - 1)
}

fn slot_of(conn: ConnId) -> usize {
    usize::try_from(conn.0 >> THREAD_BITS).unwrap_or_default() & (CONNECTIONS_PER_THREAD_MAX - 1)
}

fn lookup(connections: &mut Slab<Connection>, id: ConnId) -> Option<&mut Connection> {
    connections.get_mut(slot_of(id)).filter(|connection| connection.id == id)
}

/// As [`lookup`], unless it is closing.
fn open(connections: &mut Slab<Connection>, id: ConnId) -> Option<&mut Connection> {
    lookup(connections, id).filter(|connection| connection.life == Life::Open)
}

/// Something that the engine is told in the next turn, before any packets.
#[derive(Debug)]
enum Note {
    Opened { conn: ConnId, listener: u16, peer: String },
    Writable(ConnId),
    Clogged(ConnId),
    Closed(ConnId),
}

/// All connections of one I/O thread.
#[derive(Debug, Default)]
pub struct Table {
    thread: usize,
    serial: u64,
    connections: Slab<Connection>,
    acks: AckQueue,
    intake: Intake,
    pool: OutputPool,
    shared: SharedBytes,
    notes: Vec<Note>,
    /// Connections with packets, or an end, for the engine.
    ready: Vec<ConnId>,
    /// Connections with something to send.
    dirty: Vec<ConnId>,
    /// Connections that the tick looks at again.
    throttled: Vec<ConnId>,
    /// Connections whose socket refused bytes: each needs a draining task.
    refused: Vec<ConnId>,
    turn_bytes: usize,
    scanned_ns: u64,
    /// The next turn must not wait for sockets.
    pressing: bool,
}

impl Table {
    /// An empty table of I/O thread `thread`. Large incomplete packets may take `partial_max` bytes together.
    pub fn new(thread: usize, partial_max: usize) -> Self {
        let intake = Intake { reserved_max: partial_max, ..Intake::default() };
        Self { thread, intake, ..Self::default() }
    }

    /// Begins a turn.
    pub fn set_now(&mut self, now_ns: u64) {
        self.intake.now_ns = now_ns;
    }

    /// Bytes read in this turn so far.
    pub fn turn_bytes(&self) -> usize {
        self.turn_bytes
    }

    /// Whether the next turn has something to do even if no socket is ready.
    pub fn is_pressing(&self) -> bool {
        self.pressing || !self.notes.is_empty()
    }

    /// Connections, closing ones included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Acknowledgements that wait for a commit.
    pub fn waiting_acks(&self) -> usize {
        self.acks.len()
    }

    /// Takes a connection in; `None` if there are too many.
    pub fn insert(
        &mut self,
        socket: Socket,
        permit: Permit,
        limits: ConnectionLimits,
        listener: u16,
        peer: String,
    ) -> Option<ConnId> {
        if self.connections.len() >= CONNECTIONS_PER_THREAD_MAX {
            return None;
        }
        let entry = self.connections.vacant_entry();
        self.serial += 1;
        let number =
            (self.serial << (THREAD_BITS + SLOT_BITS)) | ((entry.key() as u64) << THREAD_BITS) | self.thread as u64;
        let id = ConnId(number);
        entry.insert(Connection::new(id, socket, permit, limits, self.intake.now_ns));
        self.notes.push(Note::Opened { conn: id, listener, peer });
        Some(id)
    }

    /// Keeps the task that serves a connection, so that it ends with it.
    pub fn keep_task(&mut self, id: ConnId, index: usize, task: smol::Task<()>) {
        if let Some(place) = lookup(&mut self.connections, id).and_then(|connection| connection.tasks.get_mut(index)) {
            *place = Some(task);
        }
    }

    /// One read of a connection, for its receiving task; false ends the task.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>, id: ConnId) -> Poll<bool> {
        let Some(connection) = lookup(&mut self.connections, id) else { return Poll::Ready(false) };
        let Poll::Ready(received) = connection.poll_receive(cx, &mut self.intake) else {
            if connection.waits_for_tick() && !connection.throttled {
                connection.throttled = true;
                self.throttled.push(id);
            }
            return Poll::Pending;
        };
        if let Received::Bytes(read) = received {
            self.turn_bytes += read;
        }
        if connection.life == Life::Open {
            queue(connection, &mut self.ready);
        } else if received == Received::End {
            self.remove(id);
        }
        Poll::Ready(received != Received::End)
    }

    /// Sends what a socket refused before, for its draining task; ready when nothing is left.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>, id: ConnId) -> Poll<()> {
        let Some(connection) = lookup(&mut self.connections, id) else { return Poll::Ready(()) };
        let sent = connection.outbox.send(&mut connection.socket, cx, &self.shared, &mut self.pool);
        let drained = !matches!(sent, Ok(Sent::Refused));
        connection.draining = !drained;
        if connection.clogged && connection.outbox.len() < SOCKET_QUEUE_LOW {
            connection.clogged = false;
            self.notes.push(Note::Writable(id));
        }
        self.after_send(id, sent);
        if drained { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Hands over to the engine what came since the last turn: ends, clogs, packets. A connection whose packets it leaves is
    /// offered again, once released if it was held.
    pub fn inputs(&mut self, mut step: impl FnMut(Input<'_>)) {
        self.turn_bytes = 0;
        self.pressing = false;
        for note in self.notes.drain(..) {
            step(match note {
                Note::Opened { conn, listener, peer } => Input::Opened { conn, listener, peer },
                Note::Writable(conn) => Input::Writable { conn },
                Note::Clogged(conn) => Input::Clogged { conn },
                Note::Closed(conn) => Input::Closed { conn, cause: CloseCause::Ordered },
            });
        }
        for id in std::mem::take(&mut self.ready) {
            let Some(connection) = lookup(&mut self.connections, id) else { continue };
            connection.queued = false;
            if connection.held || connection.life != Life::Open {
                continue;
            }
            if !connection.inbox.is_empty() {
                step(Input::Packets { conn: id, inbox: &mut connection.inbox });
            }
            if !connection.inbox.is_empty() {
                queue(connection, &mut self.ready);
                continue;
            }
            connection.stow_inbox(&mut self.intake.inboxes);
            match connection.ending.take() {
                Some(ending) => {
                    connection.told = true;
                    step(Input::Closed { conn: id, cause: ending.cause() });
                    self.end(id, &ending);
                }
                None => connection.resume(),
            }
        }
    }

    /// Takes an output that concerns a connection of this thread; gives any other back.
    pub fn apply(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Ack { conn, packet, gate } => {
                if let Some(connection) = open(&mut self.connections, conn)
                    && let Some(packet) = self.acks.push(conn, packet, gate)
                {
                    connection.send(&packet, &mut self.pool);
                    touch(connection, &mut self.dirty);
                }
            }
            Output::Send { conn, packet } => {
                if let Some(connection) = open(&mut self.connections, conn) {
                    connection.send(&packet, &mut self.pool);
                    touch(connection, &mut self.dirty);
                }
            }
            Output::Deliver { subscribers, publish } => self.deliver(&subscribers, &publish),
            Output::Accepted { conn, version, max_packet_size, receive_max, idle_limit_ns } => {
                if let Some(connection) = lookup(&mut self.connections, conn) {
                    connection.accepted(version, max_packet_size, receive_max, idle_limit_ns);
                }
            }
            Output::Hold { conn } => {
                if let Some(connection) = lookup(&mut self.connections, conn) {
                    connection.held = true;
                    connection.detach();
                }
            }
            Output::Release { conn } => self.release_hold(conn),
            Output::Close { conn } => self.close(conn),
            other => return Some(other),
        }
        None
    }

    fn deliver(&mut self, subscribers: &[ConnId], publish: &Publish) {
        let mut message = self.shared.message(publish);
        for id in subscribers.iter().filter(|id| thread_of(**id) == self.thread) {
            let Some(connection) = open(&mut self.connections, *id) else { continue };
            let Some(version) = connection.version else { continue };
            if connection.outbox.add_shared(&mut self.pool, &mut message, version, connection.peer_max_packet) {
                touch(connection, &mut self.dirty);
            }
        }
    }

    fn release_hold(&mut self, id: ConnId) {
        let Some(connection) = lookup(&mut self.connections, id) else { return };
        connection.held = false;
        connection.last_packet_ns = self.intake.now_ns;
        if connection.inbox.is_empty() && connection.ending.is_none() {
            connection.resume();
        } else {
            queue(connection, &mut self.ready);
            self.pressing = true;
        }
    }

    fn close(&mut self, id: ConnId) {
        let Some(connection) = lookup(&mut self.connections, id) else { return };
        if connection.life == Life::Open {
            connection.life = Life::Closing { until_ns: self.intake.now_ns.saturating_add(CLOSE_TIMEOUT_NS) };
            connection.held = false;
            connection.inbox.clear();
            connection.stow_inbox(&mut self.intake.inboxes);
            connection.release_reservation(&mut self.intake);
            connection.resume();
            touch(connection, &mut self.dirty);
        }
    }

    /// The shell's own closing: at once if the peer is gone, else with a last word.
    fn end(&mut self, id: ConnId, ending: &Ending) {
        let Some(reason) = ending.reason() else { return self.remove(id) };
        if let Some(connection) = open(&mut self.connections, id) {
            connection.farewell(reason, &mut self.pool);
        }
        self.close(id);
    }

    fn remove(&mut self, id: ConnId) {
        if lookup(&mut self.connections, id).is_none() {
            return;
        }
        let mut connection = self.connections.remove(slot_of(id));
        connection.release_reservation(&mut self.intake);
        self.acks.forget(id);
        if !connection.told {
            self.notes.push(Note::Closed(id));
        }
    }

    /// Frames up to `committed` are synced: what waited for them joins the outboxes.
    pub fn release(&mut self, committed: Seq) {
        let Self { acks, connections, pool, dirty, .. } = self;
        acks.release(committed, |id, packets| {
            let Some(connection) = open(connections, id) else { return };
            packets.for_each(|packet| connection.send(&packet, pool));
            touch(connection, dirty);
        });
    }

    /// Ends a turn: one send per connection with something to send. Returns those that need a draining task.
    pub fn flush(&mut self) -> Vec<ConnId> {
        for id in std::mem::take(&mut self.dirty) {
            let Some(connection) = lookup(&mut self.connections, id) else { continue };
            connection.dirty = false;
            connection.resume();
            let sent = if connection.draining {
                connection.outbox.defer(&self.shared, &mut self.pool);
                Ok(Sent::Refused)
            } else {
                let mut cx = Context::from_waker(Waker::noop());
                connection.outbox.send(&mut connection.socket, &mut cx, &self.shared, &mut self.pool)
            };
            if matches!(sent, Ok(Sent::Refused)) && !connection.draining {
                connection.draining = true;
                self.refused.push(id);
            }
            if connection.outbox.len() > SOCKET_QUEUE_HIGH && !connection.clogged {
                connection.clogged = true;
                self.notes.push(Note::Clogged(id));
            }
            self.after_send(id, sent);
        }
        self.shared.clear();
        // What the engine left without holding it, because its turn was full, is for the next turn.
        let Self { ready, connections, .. } = self;
        self.pressing |= ready.iter().any(|id| open(connections, *id).is_some_and(|connection| !connection.held));
        std::mem::take(&mut self.refused)
    }

    fn after_send(&mut self, id: ConnId, sent: std::io::Result<Sent>) {
        let Some(connection) = lookup(&mut self.connections, id) else { return };
        let trouble = match sent {
            Err(error) => Some(error.to_string()),
            Ok(_) if connection.outbox.len() > SOCKET_QUEUE_BYTES_MAX => Some("it reads too slowly".into()),
            Ok(_) => None,
        };
        match (connection.life, trouble) {
            (Life::Open, Some(text)) => {
                connection.ending.get_or_insert(Ending::Gone(text));
                queue(connection, &mut self.ready);
                self.pressing = true;
            }
            (Life::Closing { .. }, Some(_)) => self.remove(id),
            // The last bytes are on their way: the transport is gone for the engine, and lingers here until the peer closes,
            // since closing with unread input would reset the connection and take those bytes back.
            (Life::Closing { .. }, None) if connection.outbox.is_empty() => {
                connection.socket.shutdown_write();
                if !std::mem::replace(&mut connection.told, true) {
                    self.notes.push(Note::Closed(id));
                }
            }
            _ => {}
        }
    }

    /// Looks at what only time changes: rate limits each time, idle limits now and then.
    pub fn tick(&mut self) {
        let now_ns = self.intake.now_ns;
        for id in std::mem::take(&mut self.throttled) {
            let Some(connection) = lookup(&mut self.connections, id) else { continue };
            connection.refill(now_ns);
            connection.throttled = connection.waits_for_tick();
            if connection.throttled {
                self.throttled.push(id);
            }
        }
        if now_ns.saturating_sub(self.scanned_ns) < IDLE_SCAN_NS {
            return;
        }
        self.scanned_ns = now_ns;
        let mut over = Vec::new();
        for (_, connection) in &mut self.connections {
            match connection.life {
                Life::Open => {
                    if connection.ending.is_none() && connection.is_overdue(now_ns) {
                        connection.ending = Some(Ending::Overdue);
                        queue(connection, &mut self.ready);
                        self.pressing = true;
                    }
                }
                Life::Closing { until_ns } if until_ns <= now_ns => over.push(connection.id),
                Life::Closing { .. } => {}
            }
        }
        over.into_iter().for_each(|id| self.remove(id));
    }

    /// Whether any connection still has bytes to send.
    pub fn has_unsent(&self) -> bool {
        self.connections.iter().any(|(_, connection)| !connection.outbox.is_empty())
    }
}

fn queue(connection: &mut Connection, ready: &mut Vec<ConnId>) {
    if !connection.queued && (!connection.inbox.is_empty() || connection.ending.is_some()) {
        connection.queued = true;
        ready.push(connection.id);
    }
}

fn touch(connection: &mut Connection, dirty: &mut Vec<ConnId>) {
    if !connection.dirty {
        connection.dirty = true;
        dirty.push(connection.id);
    }
}
