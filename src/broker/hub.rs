//! What the threads share: the engine behind its one Mutex, and a mailbox for everyone.
//!
//! Order matters in three places, and all three are kept by doing the hand-over while the engine is locked: groups reach the
//! committer as they were sealed, outputs reach another I/O thread as they were made, and a thread takes what others left for it
//! before it steps the engine itself.

use super::committer::CommitSlot;
use super::store_thread::StoreQueue;
use crate::admin::AdminRequest;
use crate::engine::Engine;
use crate::engine::io::{AdminCommand, AdminReply, Input, Output, Outputs, ReadResult, Severity};
use crate::limits::{ADMIN_REQUESTS_MAX, MAILBOX_OUTPUTS_MAX};
use crate::log::commit::Committed;
use crate::log::segments::SegmentSummary;
use crate::net::{Bell, Incoming, thread_of};
use crate::replication::link::{LinkEvent, LinkOrder};
use crate::types::{ConnId, Now, Seq, Ticket, UpstreamId};
use smol::channel::Sender;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something for the engine from a thread that does not step it.
#[derive(Debug)]
pub(super) enum Mail {
    Read { ticket: Ticket, result: ReadResult },
    Upstream { id: UpstreamId, event: LinkEvent },
    Space { used_bytes: u64, log_bytes: u64, free_bytes: u64 },
    Admin { ticket: Ticket, command: AdminCommand },
    CommitFailed { error: String },
    Stop,
}

impl From<Mail> for Input<'static> {
    fn from(mail: Mail) -> Self {
        match mail {
            Mail::Read { ticket, result } => Input::Read { ticket, result },
            Mail::Upstream { id, event } => Input::Upstream { id, event },
            Mail::Space { used_bytes, log_bytes, free_bytes } => Input::Space { used_bytes, log_bytes, free_bytes },
            Mail::Admin { ticket, command } => Input::Admin { ticket, command },
            Mail::CommitFailed { error } => Input::CommitFailed { error },
            Mail::Stop => Input::Stop,
        }
    }
}

/// The engine, and up to where it was told of commits.
pub(super) struct Core {
    engine: Engine,
    told: Seq,
}

/// An I/O thread, as the others see it.
#[derive(Debug)]
struct IoMailbox {
    bell: Arc<Bell>,
    outputs: Mutex<Vec<Output>>,
    waiting: AtomicUsize,
    incoming: Mutex<Vec<Incoming>>,
}

/// What the threads share.
pub(super) struct Hub {
    core: Mutex<Core>,
    mail: Mutex<Vec<Mail>>,
    io: Vec<IoMailbox>,
    /// Last frame that is synced: read at every turn, written by the committer.
    committed: AtomicU64,
    /// Bytes written to the log that the engine was not told of yet.
    written_bytes: AtomicU64,
    sealed: Mutex<Vec<SegmentSummary>>,
    pub(super) slot: CommitSlot,
    pub(super) store: StoreQueue,
    orders: Vec<Sender<LinkOrder>>,
    replies: Mutex<HashMap<Ticket, Sender<AdminReply>>>,
    tickets: AtomicU64,
    /// Turns finished: what the watchdog looks at.
    turns: AtomicU64,
    last_group: AtomicU64,
    /// The closing frame, once the engine has made it.
    closing: AtomicU64,
    stopping: AtomicBool,
    quit: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a thread ends the process (see threads.rs), so a poisoned lock is never looked at for long.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// `orders` by upstream, `bells` by I/O thread; frames up to `committed` are in the log already.
    pub(super) fn new(
        engine: Engine,
        committed: Seq,
        bells: Vec<Arc<Bell>>,
        orders: Vec<Sender<LinkOrder>>,
    ) -> Arc<Self> {
        let mailbox = |bell| IoMailbox {
            bell,
            outputs: Mutex::default(),
            waiting: AtomicUsize::new(0),
            incoming: Mutex::default(),
        };
        Arc::new(Self {
            core: Mutex::new(Core { engine, told: committed }),
            mail: Mutex::default(),
            io: bells.into_iter().map(mailbox).collect(),
            committed: AtomicU64::new(committed),
            written_bytes: AtomicU64::new(0),
            sealed: Mutex::default(),
            slot: CommitSlot::default(),
            store: StoreQueue::default(),
            orders,
            replies: Mutex::default(),
            tickets: AtomicU64::new(1),
            turns: AtomicU64::new(0),
            last_group: AtomicU64::new(committed),
            closing: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            quit: AtomicBool::new(false),
        })
    }

    /// The engine's part of a turn of I/O thread `thread`: `inputs` steps it with what that thread has. `foreign` gets what other
    /// threads left for its connections, `outputs` what is to be done for them next; everything else is handed over here.
    pub(super) fn turn(
        &self,
        thread: usize,
        now: Now,
        foreign: &mut Outputs,
        outputs: &mut Outputs,
        inputs: impl FnOnce(&mut dyn FnMut(Input<'_>)),
    ) {
        let mut core = lock(&self.core);
        self.take_outputs(thread, foreign);
        let Core { engine, told } = &mut *core;
        let committed = self.committed.load(Ordering::Acquire);
        if committed > *told {
            *told = committed;
            let sealed = std::mem::take(&mut *lock(&self.sealed));
            let written_bytes = self.written_bytes.swap(0, Ordering::Relaxed);
            engine.step(now, Input::Committed { seq: committed, written_bytes, sealed }, outputs);
        }
        for mail in std::mem::take(&mut *lock(&self.mail)) {
            engine.step(now, mail.into(), outputs);
        }
        inputs(&mut |input| engine.step(now, input, outputs));
        engine.finish_turn(now, outputs);
        self.hand_over(thread, outputs);
        drop(core);
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    fn take_outputs(&self, thread: usize, into: &mut Outputs) {
        let Some(mailbox) = self.io.get(thread) else { return };
        if mailbox.waiting.load(Ordering::Acquire) > 0 {
            into.append(&mut lock(&mailbox.outputs));
            mailbox.waiting.store(0, Ordering::Release);
        }
    }

    /// Sends off what is not for `thread`, and leaves in its place an output that does nothing.
    fn hand_over(&self, thread: usize, outputs: &mut Outputs) {
        for output in outputs.iter_mut() {
            match output {
                Output::Wake { .. } | Output::Event(_) => {}
                Output::Deliver { subscribers, publish } => {
                    for other in (0..self.io.len()).filter(|other| *other != thread) {
                        if subscribers.iter().any(|conn| thread_of(*conn) == other) {
                            let (subscribers, publish) = (Arc::clone(subscribers), Arc::clone(publish));
                            self.leave(other, Output::Deliver { subscribers, publish });
                        }
                    }
                }
                _ => match conn_of(output).map(thread_of) {
                    Some(owner) if owner == thread => {}
                    Some(owner) => self.leave(owner, std::mem::replace(output, NOTHING)),
                    None => self.dispatch(std::mem::replace(output, NOTHING)),
                },
            }
        }
        for (_, mailbox) in self.io.iter().enumerate().filter(|(other, _)| *other != thread) {
            if mailbox.waiting.load(Ordering::Acquire) > 0 {
                mailbox.bell.ring();
            }
        }
    }

    fn leave(&self, thread: usize, output: Output) {
        if let Some(mailbox) = self.io.get(thread) {
            let mut outputs = lock(&mailbox.outputs);
            outputs.push(output);
            mailbox.waiting.store(outputs.len(), Ordering::Release);
        }
    }

    fn dispatch(&self, output: Output) {
        match output {
            Output::Commit(group) => {
                self.last_group.store(group.last_seq(), Ordering::Release);
                self.slot.put(group);
            }
            Output::Read { ticket, request } => self.store.read(ticket, request),
            Output::Apply { stamp, changes } => self.store.apply(stamp, changes),
            Output::FreeSegments { numbers } => self.store.free(numbers),
            Output::Upstream { id, order } => {
                if let Some(driver) = self.orders.get(usize::from(id.0)) {
                    // Unbounded, and bounded by the forwarding window; it fails only when the drivers have ended.
                    let _ = driver.try_send(order);
                }
            }
            Output::Reply { ticket, body } => {
                if let Some(reply) = lock(&self.replies).remove(&ticket) {
                    // Whoever asked may have given up.
                    let _ = reply.try_send(body);
                }
            }
            Output::Stopped => self.closing.store(self.last_group.load(Ordering::Acquire), Ordering::Release),
            _ => {}
        }
    }

    /// Puts something before the engine: an I/O thread takes it in its next turn.
    pub(super) fn send(&self, mail: Mail) {
        lock(&self.mail).push(mail);
        if let Some(first) = self.io.first() {
            first.bell.ring();
        }
    }

    /// Puts a question of the admin side before the engine; [`Output::Reply`] answers it.
    pub(super) fn ask(&self, request: AdminRequest) {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let mut replies = lock(&self.replies);
        if replies.len() >= ADMIN_REQUESTS_MAX {
            replies.retain(|_, reply| !reply.is_closed());
        }
        if replies.len() >= ADMIN_REQUESTS_MAX {
            let _ = request.reply.try_send(AdminReply::Refused("too many questions at once; ask again".into()));
            return;
        }
        replies.insert(ticket, request.reply);
        drop(replies);
        self.send(Mail::Admin { ticket, command: request.command });
    }

    /// The committer's news: everything up to `seq` is synced.
    pub(super) fn publish_commit(&self, done: Committed) {
        let Committed { synced: seq, sealed, written_bytes, .. } = done;
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        if !sealed.is_empty() {
            lock(&self.sealed).extend(sealed);
            self.store.prepare();
        }
        self.committed.fetch_max(seq, Ordering::AcqRel);
        self.io.iter().for_each(|mailbox| mailbox.bell.ring());
    }

    /// Last frame that is synced.
    pub(super) fn committed(&self) -> Seq {
        self.committed.load(Ordering::Acquire)
    }

    /// Gives a connection to an I/O thread.
    pub(super) fn give(&self, thread: usize, incoming: Incoming) {
        if let Some(mailbox) = self.io.get(thread) {
            lock(&mailbox.incoming).push(incoming);
            mailbox.bell.ring();
        }
    }

    /// The connections given to an I/O thread.
    pub(super) fn given(&self, thread: usize) -> Vec<Incoming> {
        self.io.get(thread).map(|mailbox| std::mem::take(&mut *lock(&mailbox.incoming))).unwrap_or_default()
    }

    /// Whether another I/O thread is so far behind that this one must not make more work for it.
    pub(super) fn is_crowded(&self, thread: usize) -> bool {
        let behind = |mailbox: &IoMailbox| mailbox.waiting.load(Ordering::Acquire) > MAILBOX_OUTPUTS_MAX;
        self.io.iter().enumerate().any(|(other, mailbox)| other != thread && behind(mailbox))
    }

    /// Number of I/O threads.
    pub(super) fn io_threads(&self) -> usize {
        self.io.len()
    }

    /// Turns finished since the start.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Begins an orderly stop.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.slot.hurry();
        self.send(Mail::Stop);
    }

    /// Whether an orderly stop has begun.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether the closing frame is synced: nothing more will happen.
    pub(super) fn is_closed(&self) -> bool {
        let closing = self.closing.load(Ordering::Acquire);
        closing > 0 && self.committed() >= closing
    }

    /// Ends the I/O threads.
    pub(super) fn quit(&self) {
        self.quit.store(true, Ordering::Release);
        self.io.iter().for_each(|mailbox| mailbox.bell.ring());
    }

    /// Whether the I/O threads are to end.
    pub(super) fn is_quitting(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }
}

/// An output that does nothing.
const NOTHING: Output = Output::Wake { at_ns: u64::MAX };

fn conn_of(output: &Output) -> Option<ConnId> {
    match output {
        Output::Accepted { conn, .. }
        | Output::Send { conn, .. }
        | Output::Ack { conn, .. }
        | Output::Hold { conn }
        | Output::Release { conn }
        | Output::Close { conn } => Some(*conn),
        _ => None,
    }
}

/// Puts an event of the engine into the log.
pub(super) fn report(event: &crate::engine::io::Event) {
    let level = match event.severity {
        Severity::Error => ::log::Level::Error,
        Severity::Warning => ::log::Level::Warn,
        Severity::Info => ::log::Level::Info,
        Severity::Debug => ::log::Level::Debug,
    };
    ::log::log!(target: event.part, level, "{}", event.text);
}
