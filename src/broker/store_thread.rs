//! The store thread: whatever may block on the medium and no acknowledgement waits for. Catch-up reads come first, then freeing
//! segments, then applying state, then zero-filling a spare segment.

use super::clock;
use super::hub::{Hub, Mail};
use crate::limits::SPACE_INTERVAL_NS;
use crate::log::read::{ReadRequest, Reader};
use crate::log::store::{Change, LogStore, StateStore};
use crate::storage::{DataDir, FileStore};
use crate::types::{Seq, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What waits for the store thread. Reads are bounded by the engine (`READS_OUTSTANDING_MAX`), segments by their number, changes
/// by the number of keys: a later change of a key replaces an earlier one.
#[derive(Debug, Default)]
pub(super) struct StoreQueue {
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    reads: VecDeque<(Ticket, ReadRequest)>,
    free: Vec<u64>,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Frame up to which `changes` hold, if they are to be applied.
    stamp: Option<Seq>,
    prepare: bool,
    quit: bool,
}

/// One piece of work.
enum Job {
    Read(Ticket, ReadRequest),
    Free(Vec<u64>),
    Apply(Seq, Vec<Change>),
    Prepare,
    Measure,
    Quit,
}

impl StoreQueue {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, add: impl FnOnce(&mut Work)) {
        add(&mut self.lock());
        self.changed.notify_one();
    }

    /// A catch-up read; its answer comes as mail.
    pub(super) fn read(&self, ticket: Ticket, request: ReadRequest) {
        self.add(|work| work.reads.push_back((ticket, request)));
    }

    /// Segments that nothing needs any more.
    pub(super) fn free(&self, numbers: Vec<u64>) {
        self.add(|work| work.free.extend(numbers));
    }

    /// Changes of the looked-up state, which hold up to frame `stamp`.
    pub(super) fn apply(&self, stamp: Seq, changes: Vec<Change>) {
        self.add(|work| {
            work.stamp = Some(stamp);
            work.changes.extend(changes.into_iter().map(|change| (change.key, change.value)));
        });
    }

    /// A segment was begun: the next one should find a spare.
    pub(super) fn prepare(&self) {
        self.add(|work| work.prepare = true);
    }

    /// Ends the thread once it has applied what waits.
    pub(super) fn quit(&self) {
        self.add(|work| work.quit = true);
    }

    fn next(&self, measure_in: Duration) -> Job {
        let idle = |work: &mut Work| {
            work.reads.is_empty() && work.free.is_empty() && work.stamp.is_none() && !work.prepare && !work.quit
        };
        let waited = self.changed.wait_timeout_while(self.lock(), measure_in, idle);
        let mut work = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !work.quit
            && let Some((ticket, request)) = work.reads.pop_front()
        {
            return Job::Read(ticket, request);
        }
        if !work.free.is_empty() {
            return Job::Free(std::mem::take(&mut work.free));
        }
        if let Some(stamp) = work.stamp.take() {
            let changes = std::mem::take(&mut work.changes);
            return Job::Apply(stamp, changes.into_iter().map(|(key, value)| Change { key, value }).collect());
        }
        if work.quit {
            return Job::Quit;
        }
        if std::mem::take(&mut work.prepare) { Job::Prepare } else { Job::Measure }
    }
}

/// The store thread and what it works on.
pub(super) struct StoreThread<S> {
    pub(super) hub: Arc<Hub>,
    pub(super) store: Arc<FileStore>,
    pub(super) state: S,
    pub(super) data_dir: DataDir,
    /// Bytes that everything in data_dir may take.
    pub(super) disk_budget: u64,
}

impl<S: StateStore> StoreThread<S> {
    /// Works until the queue ends; then makes the state durable, so that the next start need not rebuild it.
    pub(super) fn run(mut self) {
        let interval = Duration::from_nanos(SPACE_INTERVAL_NS);
        let mut reader = Reader::default();
        let mut troubles = Troubles::default();
        let mut measured = Instant::now();
        self.measure(&mut troubles);
        // The first spare, before anyone waits for it.
        self.hub.store.prepare();
        loop {
            match self.hub.store.next(interval.saturating_sub(measured.elapsed())) {
                Job::Read(ticket, request) => {
                    let result = reader.read(&*self.store, &request);
                    self.hub.send(Mail::Read { ticket, result });
                }
                Job::Free(numbers) => {
                    for number in numbers {
                        troubles.note("free segments", self.store.recycle(number));
                    }
                    self.measure(&mut troubles);
                    measured = Instant::now();
                }
                Job::Apply(stamp, changes) => troubles.note("apply state", self.state.apply(&changes, stamp)),
                Job::Prepare => {
                    // The log has gone on to its next segment: the engine hears of it, whether there is room for a spare or not.
                    let used_bytes = self.measure(&mut troubles);
                    measured = Instant::now();
                    if used_bytes.saturating_add(self.store.segment_size()) <= self.disk_budget {
                        troubles.note("prepare a segment", self.store.prepare_spare());
                    }
                }
                Job::Measure => {
                    clock::look_up_synced();
                    self.measure(&mut troubles);
                    measured = Instant::now();
                }
                Job::Quit => break,
            }
        }
        troubles.note("make the state durable", self.state.flush());
    }

    /// Tells the engine how much space is used and free; returns the former.
    fn measure(&self, troubles: &mut Troubles) -> u64 {
        match self.data_dir.usage() {
            Ok(usage) => {
                let (used_bytes, free_bytes) = (usage.used_bytes, usage.free_bytes);
                let log_bytes = self.store.bytes_used().unwrap_or(0);
                self.hub.send(Mail::Space { used_bytes, log_bytes, free_bytes });
                used_bytes
            }
            Err(error) => {
                troubles.note::<(), _>("measure space", Err(error));
                0
            }
        }
    }
}

/// What does not work is logged when it begins and when it is over, not each time.
#[derive(Debug, Default)]
struct Troubles(BTreeMap<&'static str, String>);

impl Troubles {
    fn note<T, E: std::fmt::Display>(&mut self, what: &'static str, result: Result<T, E>) {
        match result {
            Ok(_) if self.0.remove(what).is_some() => ::log::info!(target: "broker", "{what}: works again"),
            Ok(_) => {}
            Err(error) => {
                let text = error.to_string();
                if self.0.get(what) != Some(&text) {
                    ::log::error!(target: "broker", "cannot {what}: {text}");
                    self.0.insert(what, text);
                }
            }
        }
    }
}
