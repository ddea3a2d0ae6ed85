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
        let (wait, enough) = pace.wait();
        if !wait.is_zero() {
            let too_few = |slot: &mut Slot| slot.bytes < enough && !slot.hurry;
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
    /// How long to wait, and the bytes that end it early.
    fn wait(&self) -> (Duration, u64) {
        let since = self.last_begin.map_or(Duration::MAX, |begin| begin.elapsed());
        let rest = self.interval.saturating_sub(since);
        if rest >= self.linger { (rest, self.bytes) } else { (self.linger, u64::MAX) }
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
    let mut pace = Pace { interval, bytes, last_begin: None, linger: Duration::ZERO };
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
                hub.publish_commit(done);
                return true;
            }
            Err(failed) => failed,
        };
        ::log::error!(target: "broker", "{failed}; nothing is acknowledged until it can be, next try in {} ms", wait.as_millis());
        hub.publish_commit(failed.done);
        hub.send(Mail::CommitFailed { error: failed.error.to_string() });
        if !hub.slot.back_off(wait) {
            return false;
        }
        wait = (wait * 2).min(Duration::from_nanos(COMMIT_RETRY_MAX_NS));
        groups = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineStart};
    use crate::log::commit::CommitTail;
    use crate::log::frame::{FLAG_LAST, Frame, FrameHeader, FrameKind};
    use crate::log::memory::MemLogStore;
    use crate::log::recovery::Recovered;
    use crate::net::Bell;
    use crate::types::{BootId, LogId, Now, PartitionId, Seq};
    use bytes::Bytes;
    use std::sync::mpsc;

    fn group(seq: Seq) -> Group {
        let (kind, flags, partition) = (FrameKind::Batch, FLAG_LAST, PartitionId::default());
        let header = FrameHeader { kind, flags, seq, epoch: 1, partition, count: 1, base_offset: seq - 1 };
        let frame = Arc::new(Frame { header, body: Bytes::from_static(&[0; 64]) });
        Group { frames: vec![frame], bytes: 128, records: 1 }
    }

    fn hub() -> Arc<Hub> {
        let loaded = crate::config::from_str("[gateway]\nid = \"gw\"\n", "test.toml");
        let Ok(loaded) = loaded else { panic!("settings") };
        let mut recovered = Recovered::default();
        (recovered.next_seq, recovered.epoch) = (1, 1);
        let engine = Engine::new(EngineStart {
            settings: Arc::new(loaded.settings),
            recovered,
            gateway_id: "gw".into(),
            boot: BootId([1; 16]),
            seed: 1,
            now: Now::default(),
        });
        Hub::new(engine.unwrap(), 0, vec![Arc::new(Bell::new().unwrap())], Vec::new())
    }

    /// Runs a committer on `store` while `with` looks on; returns the records of each commit.
    fn committing(store: &Arc<MemLogStore>, interval_ns: u64, bytes: u64, with: impl FnOnce(&Hub)) -> Vec<usize> {
        let (hub, (sender, commits)) = (hub(), mpsc::channel());
        let committer = Committer::new(Arc::clone(store), CommitTail::fresh(LogId([1; 16]), 1));
        let thread = {
            let hub = Arc::clone(&hub);
            let measure = move |_, records| sender.send(records).unwrap();
            std::thread::spawn(move || run(&hub, committer, interval_ns, bytes, measure))
        };
        with(&hub);
        hub.slot.quit();
        thread.join().unwrap();
        commits.iter().collect()
    }

    fn until_committed(hub: &Hub, seq: Seq) {
        let begin = Instant::now();
        while hub.committed() < seq {
            assert!(begin.elapsed() < Duration::from_secs(10), "frame {seq} is not committed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn store() -> Arc<MemLogStore> {
        Arc::new(MemLogStore::new(1 << 20, 1))
    }

    #[test]
    fn everything_that_waits_at_the_end_is_committed() {
        let store = store();
        let commits = committing(&store, 0, 0, |hub| (1..=5).for_each(|seq| hub.slot.put(group(seq))));
        assert_eq!(commits.iter().sum::<usize>(), 5);
    }

    #[test]
    fn a_failed_sync_acknowledges_nothing_and_is_made_good_in_a_new_segment() {
        let store = store();
        store.fail_syncs(1);
        committing(&store, 0, 0, |hub| {
            hub.slot.put(group(1));
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(hub.committed(), 0);
            hub.slot.put(group(2));
            until_committed(hub, 2);
        });
    }

    #[test]
    fn an_interval_gathers_groups_and_enough_bytes_or_the_stop_end_it_early() {
        let store = store();
        let interval_ns = 60_000_000_000;
        let commits = committing(&store, interval_ns, 128 * 10, |hub| {
            // The first one finds nothing to wait for: no commit was before it.
            hub.slot.put(group(1));
            until_committed(hub, 1);
            (2..=4).for_each(|seq| hub.slot.put(group(seq)));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(hub.committed(), 1);
            (5..=12).for_each(|seq| hub.slot.put(group(seq)));
            until_committed(hub, 11);
            hub.slot.hurry();
            hub.slot.put(group(13));
            until_committed(hub, 13);
        });
        assert!(commits.len() <= 4, "{commits:?}");
    }

    #[test]
    fn only_a_slow_medium_is_lingered_for() {
        let mut pace = Pace { interval: Duration::ZERO, bytes: 1, last_begin: None, linger: Duration::ZERO };
        pace.synced(Duration::from_micros(900));
        assert_eq!(pace.wait().0, Duration::ZERO);
        pace.synced(Duration::from_millis(5));
        assert_eq!(pace.wait(), (Duration::from_micros(250), u64::MAX));
    }
}
