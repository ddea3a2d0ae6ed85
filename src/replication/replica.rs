//! The replicas of one partition: who is in sync, and the high watermark.
//!
//! The local log is a replica whose LEO is its *synced* end; an upstream with `replica = true` is one whose LEO is its cursor. A
//! replica is in sync if within `replica_lag_max` it has reached what was the local LEO at that moment (Kafka's
//! `replica.lag.time.max.ms`). A change of the in-sync set counts once it is durable; until then the members of both the old and
//! the new set hold the high watermark back, so that it never rests on a set that a restart would not find.

use super::durable::{IsrV1, StateChange, StateKind, decode, encode, partition_key};
use crate::limits::LEO_SAMPLES_MAX;
use crate::types::{Offset, PartitionId, Seq};
use std::collections::VecDeque;

/// Name of the local log among the replicas.
pub const LOCAL: &str = "local";

#[derive(Clone, Debug)]
struct Replica {
    name: String,
    lag_max_ns: u64,
    leo: Offset,
    caught_up_ns: u64,
    in_sync: bool,
    /// Membership in the change that is on its way to the log.
    proposed: bool,
}

/// The replicas of one partition.
#[derive(Clone, Debug)]
pub struct ReplicaSet {
    partition: PartitionId,
    min_insync: usize,
    local_leo: Offset,
    hw: Offset,
    /// Without the local one, in the order of the configuration.
    replicas: Vec<Replica>,
    /// (time, local LEO until then), ascending: when a follower's LEO was last the end.
    samples: VecDeque<(u64, Offset)>,
    /// A change of the set is on its way; in which frame, once that is known.
    changing: Option<Option<Seq>>,
    /// The recorded set names replicas that are no longer configured.
    stale: bool,
}

impl ReplicaSet {
    /// The set as it was last recorded (`isr`: the value of its control record). `replicas`: name, lag in ns within which it is in
    /// sync, its LEO. Without a record only the local log is in sync, until the others have caught up.
    pub fn new(
        partition: PartitionId,
        min_insync: u16,
        local_leo: Offset,
        replicas: &[(String, u64, Offset)],
        isr: Option<&[u8]>,
        mono_ns: u64,
    ) -> Self {
        let recorded = isr.and_then(decode::<IsrV1>).map(|value| value.replicas).unwrap_or_default();
        let replicas: Vec<Replica> = replicas
            .iter()
            .map(|(name, lag_max_ns, leo)| {
                let in_sync = recorded.contains(name);
                // A follower is given its lag from the start on: it may have been up to date when we went down.
                Replica {
                    name: name.clone(),
                    lag_max_ns: *lag_max_ns,
                    leo: (*leo).min(local_leo),
                    caught_up_ns: mono_ns,
                    in_sync,
                    proposed: in_sync,
                }
            })
            .collect();
        let stale = recorded.iter().any(|name| name != LOCAL && !replicas.iter().any(|replica| replica.name == *name));
        let mut set = Self {
            partition,
            min_insync: usize::from(min_insync.max(1)),
            local_leo,
            hw: 0,
            replicas,
            samples: VecDeque::new(),
            changing: None,
            stale,
        };
        set.advance();
        set
    }

    /// High watermark: everything below is on every in-sync replica. Never goes back.
    pub fn high_watermark(&self) -> Offset {
        self.hw
    }

    /// Members of the in-sync set, the local log included.
    pub fn in_sync(&self) -> usize {
        1 + self.replicas.iter().filter(|replica| replica.in_sync).count()
    }

    /// Whether enough replicas are in sync for acks=-1 with this minimum (`NOT_ENOUGH_REPLICAS` otherwise); never less than two.
    pub fn enough(&self) -> bool {
        self.in_sync() >= self.min_insync.max(2)
    }

    /// All assigned replicas (AR), the local log first.
    pub fn assigned(&self) -> impl Iterator<Item = &str> {
        std::iter::once(LOCAL).chain(self.replicas.iter().map(|replica| replica.name.as_str()))
    }

    /// Those in sync (ISR), the local log first.
    pub fn isr(&self) -> impl Iterator<Item = &str> {
        let members = self.replicas.iter().filter(|replica| replica.in_sync);
        std::iter::once(LOCAL).chain(members.map(|replica| replica.name.as_str()))
    }

    /// Those out of sync (OSR = AR − ISR).
    pub fn osr(&self) -> impl Iterator<Item = &str> {
        self.replicas.iter().filter(|replica| !replica.in_sync).map(|replica| replica.name.as_str())
    }

    /// LEO of a replica by name; the local one's is its synced end.
    pub fn leo(&self, name: &str) -> Option<Offset> {
        if name == LOCAL {
            return Some(self.local_leo);
        }
        self.replicas.iter().find(|replica| replica.name == name).map(|replica| replica.leo)
    }

    /// The local log is synced up to `leo`. `true` if the high watermark moved.
    pub fn local_synced(&mut self, mono_ns: u64, leo: Offset) -> bool {
        if leo <= self.local_leo {
            return false;
        }
        for replica in &mut self.replicas {
            if replica.leo >= self.local_leo {
                replica.caught_up_ns = mono_ns; // up to this moment it had everything
            }
        }
        if self.samples.back().is_none_or(|(at, _)| mono_ns.saturating_sub(*at) >= self.sample_every_ns()) {
            if self.samples.len() == LEO_SAMPLES_MAX {
                self.samples.pop_front();
            }
            self.samples.push_back((mono_ns, self.local_leo));
        }
        self.local_leo = leo;
        self.advance()
    }

    /// So far apart that the samples cover the longest lag that counts.
    fn sample_every_ns(&self) -> u64 {
        let longest = self.replicas.iter().map(|replica| replica.lag_max_ns).max().unwrap_or(0);
        longest / (LEO_SAMPLES_MAX as u64 / 2)
    }

    /// A replica has everything below `leo`. `true` if the high watermark moved.
    pub fn replica_reached(&mut self, mono_ns: u64, name: &str, leo: Offset) -> bool {
        let (end, samples) = (self.local_leo, &self.samples);
        let Some(replica) = self.replicas.iter_mut().find(|replica| replica.name == name) else { return false };
        replica.leo = replica.leo.max(leo);
        let caught_up = if replica.leo >= end {
            Some(mono_ns)
        } else {
            samples.iter().rev().find(|(_, l)| *l <= replica.leo).map(|s| s.0)
        };
        replica.caught_up_ns = replica.caught_up_ns.max(caught_up.unwrap_or(0));
        self.advance()
    }

    /// Time passes: who fell behind leaves, who caught up joins, by a control record that is to be appended now; then say in which
    /// frame with [`ReplicaSet::recorded`]. One change at a time.
    pub fn tick(&mut self, mono_ns: u64) -> Option<StateChange> {
        if self.changing.is_some() {
            return None;
        }
        let (end, hw) = (self.local_leo, self.hw);
        let mut changed = std::mem::take(&mut self.stale);
        for replica in &mut self.replicas {
            if replica.leo >= end {
                replica.caught_up_ns = mono_ns;
            }
            let within = mono_ns.saturating_sub(replica.caught_up_ns) <= replica.lag_max_ns;
            // Who joins must be at the high watermark: it never goes back.
            replica.proposed = within && (replica.in_sync || replica.leo >= hw);
            changed |= replica.proposed != replica.in_sync;
        }
        if !changed {
            return None;
        }
        self.changing = Some(None);
        let mut names: Vec<String> = self.replicas.iter().filter(|r| r.proposed).map(|r| r.name.clone()).collect();
        names.push(LOCAL.to_owned());
        names.sort();
        let value = encode(&IsrV1 { replicas: names });
        Some(StateChange { kind: StateKind::Isr, key: partition_key(self.partition), value })
    }

    /// The change that [`ReplicaSet::tick`] handed out has joined this frame.
    pub fn recorded(&mut self, seq: Seq) {
        if let Some(at @ None) = &mut self.changing {
            *at = Some(seq);
        }
    }

    /// Frames up to `seq` are synced: a recorded change of the set counts. `true` if the high watermark moved.
    pub fn synced(&mut self, seq: Seq) -> bool {
        if self.changing.flatten().is_none_or(|recorded| recorded > seq) {
            return false;
        }
        self.changing = None;
        for replica in &mut self.replicas {
            replica.in_sync = replica.proposed;
        }
        self.advance()
    }

    /// HW = the smallest LEO over those in sync and those about to join; it waits while they are fewer than the minimum.
    fn advance(&mut self) -> bool {
        if self.in_sync() < self.min_insync {
            return false;
        }
        let members = self.replicas.iter().filter(|replica| replica.in_sync || replica.proposed);
        let smallest = members.map(|replica| replica.leo).fold(self.local_leo, Offset::min);
        let moved = smallest > self.hw;
        self.hw = self.hw.max(smallest);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn set(min_insync: u16, local: Offset, remote: Offset, isr: &[&str]) -> ReplicaSet {
        let isr = encode(&IsrV1 { replicas: isr.iter().map(|name| (*name).to_owned()).collect() });
        ReplicaSet::new(PartitionId::default(), min_insync, local, &[("dc".to_owned(), 10 * S, remote)], Some(&isr), 0)
    }

    fn settle(set: &mut ReplicaSet, mono_ns: u64, seq: Seq) -> bool {
        let changed = set.tick(mono_ns).is_some();
        set.recorded(seq);
        set.synced(seq);
        changed
    }

    #[test]
    fn the_high_watermark_is_the_smallest_leo_in_sync() {
        let mut set = set(2, 10, 5, &[LOCAL, "dc"]);
        assert_eq!(set.high_watermark(), 5);
        assert!(set.replica_reached(S, "dc", 8));
        assert_eq!(set.high_watermark(), 8);
        assert!(!set.local_synced(S, 20), "the follower does not have it yet");
        assert!(set.replica_reached(S, "dc", 20));
        assert_eq!(set.high_watermark(), 20);
        assert!(!set.replica_reached(S, "dc", 3), "a cursor never goes back");
        assert_eq!(set.leo("dc"), Some(20));
    }

    #[test]
    fn a_replica_ahead_of_the_synced_end_does_not_carry_the_high_watermark_with_it() {
        let mut set = set(2, 10, 10, &[LOCAL, "dc"]);
        set.replica_reached(S, "dc", 15);
        assert_eq!(set.high_watermark(), 10);
    }

    #[test]
    fn who_lags_leaves_after_the_lag_and_comes_back_when_it_has_reached_the_watermark() {
        let mut set = set(1, 10, 10, &[LOCAL, "dc"]);
        set.local_synced(S, 20);
        assert!(!settle(&mut set, 10 * S, 1), "it was at the end until second 1");
        assert_eq!(set.high_watermark(), 10);
        assert!(settle(&mut set, 11 * S + 1, 2));
        assert_eq!((set.in_sync(), set.high_watermark()), (1, 20), "with a minimum of 1 the local log goes on alone");
        assert_eq!(set.osr().collect::<Vec<_>>(), ["dc"]);
        set.replica_reached(12 * S, "dc", 19);
        assert!(!settle(&mut set, 12 * S, 3), "not yet at the watermark, and not at the end within the lag");
        set.replica_reached(13 * S, "dc", 20);
        assert!(settle(&mut set, 13 * S, 4));
        assert_eq!(set.isr().collect::<Vec<_>>(), [LOCAL, "dc"]);
    }

    #[test]
    fn in_sync_means_having_reached_what_was_the_end_then_not_what_is_the_end_now() {
        let mut set = set(2, 0, 0, &[LOCAL, "dc"]);
        // The log grows by 100 a second; the follower is always five seconds behind, never at the end.
        for second in 1..100 {
            set.local_synced(second * S, second * 100);
            set.replica_reached(second * S, "dc", second.saturating_sub(5) * 100);
            assert!(!settle(&mut set, second * S, second), "second {second}");
        }
        // It stands still: out after ten seconds of lag, which began five seconds ago.
        let left = (100..120).find(|second| {
            set.local_synced(second * S, second * 100);
            settle(&mut set, second * S, *second)
        });
        assert!(matches!(left, Some(103..=106)), "{left:?}");
        assert!(!set.enough());
    }

    #[test]
    fn below_the_minimum_the_watermark_stands_still_and_level_minus_one_is_refused() {
        let mut set = set(2, 10, 10, &[LOCAL, "dc"]);
        set.local_synced(S, 20);
        assert!(settle(&mut set, 30 * S, 1));
        assert!(!set.enough());
        assert_eq!(set.high_watermark(), 10);
        set.local_synced(31 * S, 30);
        assert_eq!(set.high_watermark(), 10, "never advances while the set is below the minimum");
        assert!(!set.replica_reached(32 * S, "dc", 30));
        settle(&mut set, 32 * S, 2);
        assert_eq!((set.high_watermark(), set.enough()), (30, true));
    }

    #[test]
    fn a_change_of_the_set_counts_only_once_it_is_durable() {
        let mut set = set(1, 10, 10, &[LOCAL, "dc"]);
        set.local_synced(S, 20);
        assert!(set.tick(20 * S).is_some());
        assert!(set.tick(21 * S).is_none(), "one change at a time");
        set.recorded(7);
        assert!(!set.synced(6));
        assert_eq!((set.in_sync(), set.high_watermark()), (2, 10));
        assert!(set.synced(7));
        assert_eq!((set.in_sync(), set.high_watermark()), (1, 20));
        // Joining: it holds the watermark back from the moment it is proposed.
        set.replica_reached(22 * S, "dc", 20);
        assert!(set.tick(22 * S).is_some());
        set.local_synced(22 * S, 30);
        assert_eq!(set.high_watermark(), 20);
    }

    #[test]
    fn at_a_start_the_set_is_the_last_recorded_one_and_removed_replicas_leave_it() {
        let set_a = set(2, 10, 3, &[LOCAL, "dc"]);
        assert_eq!((set_a.in_sync(), set_a.high_watermark()), (2, 3));
        let set_b = set(2, 10, 3, &[LOCAL]);
        assert_eq!((set_b.in_sync(), set_b.high_watermark()), (1, 0));
        let mut set_c = set(1, 10, 10, &[LOCAL, "dc", "gone"]);
        let change = set_c.tick(0).unwrap();
        assert_eq!(decode::<IsrV1>(&change.value).unwrap().replicas, ["dc", LOCAL]);
    }
}
