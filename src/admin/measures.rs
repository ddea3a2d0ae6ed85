//! What the threads measure as they run and the engine cannot know: how long acks and commits took.
//!
//! Plain atomics, so that an I/O thread or the committer adds to them without a lock; `/metrics` reads them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds in seconds: from a fast virtual disk's sync to an ack that waited for its time-out.
const SECONDS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Upper bounds in records of one commit.
const RECORDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0];

/// A histogram with fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than `bounds`: the last is for what exceeds them all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// From the unit of the values to that of `bounds`.
    scale: f64,
}

/// What a [`Histogram`] held at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Upper bound and count of each bucket, not cumulative; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of the values.
    pub sum: f64,
    /// Number of the values.
    pub count: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64], scale: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), scale }
    }

    /// Adds `times` times the same value, in microseconds for times and in pieces for numbers.
    pub fn add(&self, value: u64, times: u64) {
        let scaled = value as f64 * self.scale;
        let bucket = self.bounds.partition_point(|bound| *bound < scaled);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(times, Relaxed);
        }
        self.sum.fetch_add(value.saturating_mul(times), Relaxed);
    }

    /// What it holds now. Values that are added meanwhile may be in the sum and not yet in the buckets.
    pub fn snapshot(&self) -> Snapshot {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.zip(self.counts.iter()).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        Snapshot { buckets, sum: self.sum.load(Relaxed) as f64 * self.scale, count }
    }
}

/// All that is measured.
#[derive(Debug)]
pub struct Measures {
    /// From a PUBLISH's arrival to its ack, µs, by level: 0, 1, -1. Those of one commit may be added together.
    pub ack_micros: [Histogram; 3],
    /// From taking a group to its sync, µs.
    pub commit_micros: Histogram,
    /// Records of one commit.
    pub commit_records: Histogram,
}

impl Default for Measures {
    fn default() -> Self {
        let seconds = || Histogram::new(SECONDS, 1e-6);
        Self {
            ack_micros: [seconds(), seconds(), seconds()],
            commit_micros: seconds(),
            commit_records: Histogram::new(RECORDS, 1.0),
        }
    }
}

impl Measures {
    /// `times` acks of a level took this long.
    pub fn acked(&self, level: crate::types::Acks, micros: u64, times: u64) {
        use crate::types::Acks::{Queued, Replicated, Synced};
        let [queued, synced, replicated] = &self.ack_micros;
        let histogram = match level {
            Queued => queued,
            Synced => synced,
            Replicated => replicated,
        };
        histogram.add(micros, times);
    }

    /// A commit of this many records took this long.
    pub fn committed(&self, micros: u64, records: u64) {
        self.commit_micros.add(micros, 1);
        self.commit_records.add(records, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Acks;

    #[test]
    fn a_value_counts_in_the_first_bucket_that_holds_it() {
        let measures = Measures::default();
        measures.acked(Acks::Synced, 1_000, 3);
        measures.acked(Acks::Synced, 1_001, 1);
        measures.acked(Acks::Synced, 60_000_000, 1);
        let snapshot = measures.ack_micros[1].snapshot();
        let count_at = |bound: f64| snapshot.buckets.iter().find(|(upper, _)| *upper == bound).unwrap().1;
        assert_eq!((count_at(0.001), count_at(0.002_5), count_at(f64::INFINITY)), (3, 1, 1));
        assert_eq!(snapshot.count, 5);
        assert!((snapshot.sum - 60.004_001).abs() < 1e-9, "{}", snapshot.sum);
        assert_eq!(measures.ack_micros[0].snapshot().count, 0);
    }
}
