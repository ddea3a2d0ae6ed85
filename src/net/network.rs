//! One I/O thread's sockets and the tasks that serve them.

use super::connection::ConnectionLimits;
use super::listener::{Accepted, Incoming, Listener, Quota};
use super::reactor::{Bell, Reactor};
use super::socket::Socket;
use super::table::Table;
use crate::engine::io::{Input, Output};
use crate::limits::{ACCEPTS_PER_TURN, TURN_BYTES_MAX};
use crate::types::{ConnId, Seq};
use smol::LocalExecutor;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

/// Nanoseconds after which a listener that could not accept (no descriptors left) tries again.
const ACCEPT_RETRY_NS: u64 = 100_000_000;
/// Place of the receiving task among a connection's tasks.
const RECEIVING: usize = 0;
/// Place of the draining task.
const DRAINING: usize = 1;

/// The network side of one I/O thread. Tasks wait for its sockets and its coarse time only.
#[derive(Debug)]
pub struct Network {
    executor: LocalExecutor<'static>,
    reactor: Rc<Reactor>,
    table: Rc<RefCell<Table>>,
    accepted: Rc<RefCell<Vec<Incoming>>>,
    /// Bounds of the connections, by listener.
    limits: Vec<ConnectionLimits>,
    listening: Vec<smol::Task<()>>,
}

impl Network {
    /// The network side of I/O thread `thread`; `limits` by listener, `partial_max` bytes for large incomplete packets.
    /// `bell` is how the other threads wake this one.
    pub fn new(thread: usize, bell: Arc<Bell>, limits: Vec<ConnectionLimits>, partial_max: usize) -> io::Result<Self> {
        Ok(Self {
            executor: LocalExecutor::new(),
            reactor: Reactor::new(bell)?,
            table: Rc::new(RefCell::new(Table::new(thread, partial_max))),
            accepted: Rc::default(),
            limits,
            listening: Vec::new(),
        })
    }

    /// Accepts connections; [`Network::accepted`] hands them out, so that they can be spread over the I/O threads.
    pub fn listen(&mut self, socket: TcpListener, index: u16, quota: Quota) -> io::Result<()> {
        let listener = Listener::new(socket, index, quota, &self.reactor)?;
        let (reactor, accepted) = (Rc::clone(&self.reactor), Rc::clone(&self.accepted));
        self.listening.push(self.executor.spawn(accept(listener, reactor, accepted)));
        Ok(())
    }

    /// Closes the listening sockets.
    pub fn stop_listening(&mut self) {
        self.listening.clear();
        self.accepted.borrow_mut().clear();
        // The tasks end, and their sockets close, when the executor drops them.
        while self.executor.try_tick() {}
    }

    /// What was accepted since the last call.
    pub fn accepted(&mut self) -> Vec<Incoming> {
        std::mem::take(&mut *self.accepted.borrow_mut())
    }

    /// Serves a connection that this thread or another accepted.
    pub fn adopt(&mut self, incoming: Incoming) -> io::Result<()> {
        let Some(limits) = self.limits.get(usize::from(incoming.listener)) else { return Ok(()) };
        let socket = Socket::new(incoming.stream, &self.reactor)?;
        let peer = incoming.peer.to_string();
        let mut table = self.table.borrow_mut();
        if let Some(id) = table.insert(socket, incoming.permit, *limits, incoming.listener, peer) {
            let task = self.executor.spawn(receive(Rc::clone(&self.table), id));
            table.keep_task(id, RECEIVING, task);
        }
        Ok(())
    }

    /// Waits for sockets or the bell, at most `timeout_ns`, then lets `now_ns` be the time and the tasks read, until nothing is
    /// ready or the turn is full.
    pub fn wait(&mut self, timeout_ns: u64, now_ns: impl FnOnce() -> u64) -> io::Result<()> {
        let pressing = self.table.borrow().is_pressing();
        self.reactor.wait(if pressing { 0 } else { timeout_ns })?;
        self.reactor.answer();
        let now_ns = now_ns();
        self.reactor.set_now(now_ns);
        self.table.borrow_mut().set_now(now_ns);
        while self.table.borrow().turn_bytes() < TURN_BYTES_MAX && self.executor.try_tick() {}
        Ok(())
    }

    /// As [`Network::wait`], but reads nothing: another thread has to catch up first.
    pub fn pause(&mut self, timeout_ns: u64, now_ns: impl FnOnce() -> u64) -> io::Result<()> {
        self.reactor.wait(timeout_ns)?;
        self.reactor.answer();
        let now_ns = now_ns();
        self.reactor.set_now(now_ns);
        self.table.borrow_mut().set_now(now_ns);
        Ok(())
    }

    /// Hands over to the engine what came in.
    pub fn inputs(&mut self, step: impl FnMut(Input<'_>)) {
        self.table.borrow_mut().inputs(step);
    }

    /// Takes an output for a connection of this thread; gives any other back.
    pub fn apply(&mut self, output: Output) -> Option<Output> {
        self.table.borrow_mut().apply(output)
    }

    /// Frames up to `committed` are synced: lets the acknowledgements go that waited for them.
    pub fn release(&mut self, committed: Seq) {
        self.table.borrow_mut().release(committed);
    }

    /// Ends a turn: one send per connection with something to send.
    pub fn flush(&mut self) {
        let refused = self.table.borrow_mut().flush();
        for id in refused {
            let task = self.executor.spawn(drain(Rc::clone(&self.table), id));
            self.table.borrow_mut().keep_task(id, DRAINING, task);
        }
    }

    /// Rate limits, idle limits; to be called with each tick of the engine.
    pub fn tick(&mut self) {
        self.table.borrow_mut().tick();
    }

    /// Connections, closing ones included.
    pub fn connections(&self) -> usize {
        self.table.borrow().len()
    }

    /// Whether any connection still has bytes to send.
    pub fn has_unsent(&self) -> bool {
        self.table.borrow().has_unsent()
    }

    /// Acknowledgements that wait for a commit.
    pub fn waiting_acks(&self) -> usize {
        self.table.borrow().waiting_acks()
    }
}

/// Reads a connection to its end. Between two reads others have their turn.
async fn receive(table: Rc<RefCell<Table>>, id: ConnId) {
    while poll_fn(|cx| table.borrow_mut().poll_receive(cx, id)).await {
        smol::future::yield_now().await;
    }
}

/// Sends the backlog of a connection whose socket refused bytes.
async fn drain(table: Rc<RefCell<Table>>, id: ConnId) {
    poll_fn(|cx| table.borrow_mut().poll_drain(cx, id)).await;
}

async fn accept(listener: Listener, reactor: Rc<Reactor>, accepted: Rc<RefCell<Vec<Incoming>>>) {
    let mut failing = false;
    loop {
        for _ in 0..ACCEPTS_PER_TURN {
            match poll_fn(|cx| listener.poll_accept(cx)).await {
                Ok(Accepted::Connection(incoming)) => {
                    failing = false;
                    accepted.borrow_mut().push(incoming);
                }
                Ok(Accepted::Refused(peer)) => {
                    ::log::debug!(target: "net", "connection of {peer} refused: max_connections is reached")
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        ::log::error!(
                            target: "net",
                            "cannot accept connections: {error}; raise the limit of open files (LimitNOFILE)"
                        );
                    }
                    reactor.sleep_until(reactor.now_ns().saturating_add(ACCEPT_RETRY_NS)).await;
                }
            }
        }
        smol::future::yield_now().await;
    }
}
