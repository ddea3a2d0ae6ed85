//! The committer thread: takes all groups that wait, writes them with one sync, and tells the I/O threads. It never locks the
//! engine. While it syncs, the next groups gather.

use super::hub::{Hub, Mail};
use crate::limits::{COMMIT_RETRY_MAX_NS, COMMIT_RETRY_MIN_NS, SLOW_SYNC_NS};
use crate::log::commit::Committer;
use crate::log::frame::Group;
use crate::log::store::LogStore;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Sealed groups on their way to the committer. Bounded in bytes by the engine, which lets no publish in while what is not synced
/// takes its share of the memory budget.
#[derive(Debug, Default)]
pub(super) struct CommitSlot {
    state: Mutex<Slot>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Slot {
    groups: Vec<Group>,
    bytes: u64,
    hurry: bool,
    quit: bool,
}

impl CommitSlot {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a group.
    pub(super) fn put(&self, group: Group) {
        let mut slot = self.lock();
        slot.bytes += group.bytes as u64;
        slot.groups.push(group);
        drop(slot);
        self.changed.notify_one();
    }

    /// No waiting for more from here on: the process is to stop.
    pub(super) fn hurry(&self) {
        self.lock().hurry = true;
        self.changed.notify_one();
    }

    /// Ends the committer once it has taken what waits.
    pub(super) fn quit(&self) {
        let mut slot = self.lock();
        slot.hurry = true;
        slot.quit = true;
        drop(slot);
        self.changed.notify_one();
    }

    /// Waits for a group, then as long as `pace` says for more of them, and takes all. `None`: the end.
    fn take(&self, pace: &Pace) -> Option<Vec<Group>> {
        let nothing = |slot: &mut Slot| slot.groups.is_empty() && !slot.quit;
        let mut slot = self.changed.wait_while(self.lock(), nothing).unwrap_or_else(PoisonError::into_inner);
        if slot.groups.is_empty() {
            return None;
        }
        let wait = pace.wait();
        if !wait.is_zero() {
            let too_few = |slot: &mut Slot| slot.bytes < pace.bytes && !slot.hurry;
            let waited = self.changed.wait_timeout_while(slot, wait, too_few);
            slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        slot.bytes = 0;
        Some(std::mem::take(&mut slot.groups))
    }

    /// Waits before another try, unless the process is to stop; returns false at the end.
    fn back_off(&self, wait: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), wait, |slot| !slot.quit);
        !waited.unwrap_or_else(PoisonError::into_inner).0.quit
    }
}

/// How long to wait for more before a commit.
#[derive(Debug)]
struct Pace {
    /// At least this between two commits, on media that wear.
    interval: Duration,
    /// Bytes that end the wait early.
    bytes: u64,
    last_begin: Option<Instant>,
    /// On a slow medium a closed window falls into two halves that take turns; a twentieth of a sync joins them again
    /// (5 ms per sync, 10 × 20: 34.5 k/s instead of 18.6).
    linger: Duration,
}

impl Pace {
    fn wait(&self) -> Duration {
        let since = self.last_begin.map_or(Duration::MAX, |begin| begin.elapsed());
        self.interval.saturating_sub(since).max(self.linger)
    }

    fn synced(&mut self, took: Duration) {
        let slow = took > Duration::from_nanos(SLOW_SYNC_NS);
        self.linger = if slow { took / 20 } else { Duration::ZERO };
    }
}

/// Commits until the slot ends. `measure` gets each commit's time and records.
pub(super) fn run<S: LogStore + ?Sized>(
    hub: &Arc<Hub>,
    mut committer: Committer<S>,
    interval_ns: u64,
    bytes: u64,
    measure: impl Fn(Duration, usize),
) {
    let interval = Duration::from_nanos(interval_ns);
    let mut pace = Pace { interval, bytes: bytes.max(1), last_begin: None, linger: Duration::ZERO };
    while let Some(groups) = hub.slot.take(&pace) {
        let begin = Instant::now();
        pace.last_begin = Some(begin);
        let records = groups.iter().map(|group| group.records).sum();
        if !commit(hub, &mut committer, groups) {
            return;
        }
        let took = begin.elapsed();
        pace.synced(took);
        measure(took, records);
    }
}

/// Commits, trying again for as long as it takes; false if the process ends first.
fn commit<S: LogStore + ?Sized>(hub: &Hub, committer: &mut Committer<S>, mut groups: Vec<Group>) -> bool {
    let mut wait = Duration::from_nanos(COMMIT_RETRY_MIN_NS);
    loop {
        let failed = match committer.commit(groups) {
            Ok(done) => {
                hub.publish_commit(done.synced, done.sealed);
                return true;
            }
            Err(failed) => failed,
        };
        ::log::error!(target: "broker", "{failed}; nothing is acknowledged until it can be, next try in {} ms", wait.as_millis());
        hub.publish_commit(failed.done.synced, failed.done.sealed);
        hub.send(Mail::CommitFailed { error: failed.error.to_string() });
        if !hub.slot.back_off(wait) {
            return false;
        }
        wait = (wait * 2).min(Duration::from_nanos(COMMIT_RETRY_MAX_NS));
        groups = Vec::new();
    }
}
