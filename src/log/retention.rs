//! Retention: which of the oldest segments may go, and how they go without losing what a rebuild needs.
//!
//! Segments go whole and oldest first, so what remains is always a suffix of the log. Before one goes, every live control record
//! whose newest copy lies in it is appended again, each partition's start and end are written down, and the new start of the log
//! is: when all that is synced, the segments are given back. A tombstone needs no copy: what it removed lay before it, and is gone.

use super::control::{
    ControlKind, ControlRecord, GapV1, LogStartV1, PartitionStartV1, from_value, gap_of_key, partition_key, to_value,
};
use super::live::Log;
use super::state::{STORE_KIND_SEGMENT, store_key};
use super::store::Change;
use crate::limits::CLEANER_RESERVE_SEGMENTS;
use crate::types::{Offset, PartitionId, Seq, StreamId};
use std::collections::BTreeMap;

/// What retention must know of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionPolicy {
    /// Which.
    pub partition: PartitionId,
    /// Everything below this offset has been passed by every upstream that carries the partition; `None` if none does: then it is
    /// given up beyond `keep_bytes` only, not for space.
    pub passed: Option<Offset>,
    /// Bytes of the partition's stream to keep, all its partitions together; `None` keeps until the space is needed.
    pub keep_bytes: Option<u64>,
    /// What no upstream has passed yet is kept beyond `keep_bytes`, and when space is needed.
    pub retain_unforwarded: bool,
}

/// Segments that may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPlan {
    /// Their numbers: the oldest ones, ascending. Empty: nothing may go, or need go.
    pub numbers: Vec<u64>,
    /// Last frame in them.
    pub last_seq: Seq,
    /// First offset afterwards of each partition that loses some.
    pub starts: Vec<(PartitionId, Offset)>,
    /// Records that go although some upstream has not passed them.
    pub lost: Vec<(PartitionId, u64)>,
    /// Bytes that come free.
    pub bytes: u64,
}

/// Segments being given up: what must be synced before they may go.
#[derive(Clone, Debug)]
pub(crate) struct Freeing {
    numbers: Vec<u64>,
    after: Seq,
}

/// Bytes that must come free so that the budget holds with the cleaner's reserve in it.
pub fn bytes_needed(used_bytes: u64, budget_bytes: u64, segment_size: u64) -> u64 {
    (used_bytes + CLEANER_RESERVE_SEGMENTS * segment_size).saturating_sub(budget_bytes)
}

/// Which of the oldest segments may go: as many as exceed what their streams are to keep, and for `needed_bytes` of space also
/// others that some upstream carries and every one has passed. A partition without a policy (its stream was removed) holds nothing back.
pub fn plan(log: &Log, policies: &[PartitionPolicy], needed_bytes: u64, segment_size: u64) -> RetentionPlan {
    let policies: BTreeMap<PartitionId, &PartitionPolicy> =
        policies.iter().map(|policy| (policy.partition, policy)).collect();
    let mut kept: BTreeMap<StreamId, u64> = BTreeMap::new();
    for partition in log.partitions() {
        *kept.entry(partition.stream).or_default() += log.bytes_of(partition);
    }
    let mut plan = RetentionPlan::default();
    let mut starts: BTreeMap<PartitionId, Offset> = BTreeMap::new();
    let mut lost: BTreeMap<PartitionId, u64> = BTreeMap::new();
    for segment in log.segments() {
        let mut left = kept.clone();
        for range in &segment.ranges {
            let stream = left.entry(range.partition.stream).or_default();
            *stream = stream.saturating_sub(range.bytes);
        }
        let pressed = plan.bytes < needed_bytes;
        let may_go = segment.ranges.iter().all(|range| {
            let Some(policy) = policies.get(&range.partition) else { return true };
            let passed = policy.passed.is_none_or(|passed| range.next <= passed);
            let over = |keep| left.get(&range.partition.stream).copied().unwrap_or(0) >= keep;
            (passed || !policy.retain_unforwarded)
                && ((pressed && policy.passed.is_some()) || policy.keep_bytes.is_some_and(over))
        });
        if !may_go {
            break;
        }
        for range in &segment.ranges {
            starts.insert(range.partition, range.next);
            let passed = policies.get(&range.partition).and_then(|policy| policy.passed).unwrap_or(range.next);
            let unforwarded = range.next.saturating_sub(passed.max(range.first));
            if unforwarded > 0 {
                *lost.entry(range.partition).or_default() += unforwarded;
            }
        }
        kept = left;
        plan.numbers.push(segment.number);
        plan.last_seq = segment.last_seq;
        plan.bytes += segment_size;
    }
    plan.starts = starts.into_iter().collect();
    plan.lost = lost.into_iter().collect();
    plan
}

impl Log {
    /// Begins to give segments up: what must be kept of them joins the open group. One plan at a time: while another is under
    /// way, nothing happens and the answer is false.
    pub fn retain(&mut self, plan: &RetentionPlan) -> bool {
        let Some(last_number) = plan.numbers.last().filter(|_| self.freeing.is_none()) else { return false };
        for record in self.live_until(plan) {
            self.control(record);
        }
        for (partition, start) in &plan.starts {
            self.advance_start(*partition, Some(*start), 0);
            let value = PartitionStartV1 { start: self.start(*partition), leo: self.leo(*partition) };
            self.control(ControlRecord::put(ControlKind::PartitionStart, partition_key(*partition), to_value(&value)));
        }
        let start = LogStartV1 { segment: last_number + 1, seq: plan.last_seq + 1 };
        let after = self.control(ControlRecord::put(ControlKind::LogStart, Vec::new(), to_value(&start)));
        self.freeing = Some(Freeing { numbers: plan.numbers.clone(), after });
        true
    }

    /// Live control records whose newest copy goes, and removals of those that have lost their meaning.
    fn live_until(&self, plan: &RetentionPlan) -> Vec<ControlRecord> {
        let starts: BTreeMap<PartitionId, Offset> = plan.starts.iter().copied().collect();
        let written_anew = |kind: u16, key: &[u8]| {
            kind == ControlKind::LogStart as u16
                || (kind == ControlKind::PartitionStart as u16
                    && plan.starts.iter().any(|(partition, _)| partition_key(*partition) == key))
        };
        let mut records = Vec::new();
        for (kind, key, entry) in self.state.all() {
            let passed = kind == ControlKind::Gap as u16
                && gap_of_key(key).zip(from_value::<GapV1>(&entry.value)).is_some_and(|((partition, _), gap)| {
                    starts.get(&partition).is_some_and(|start| gap.until <= *start)
                });
            // Batches that need a boot's mapping stand before it in the log, so they go with it.
            let old_boot = kind == ControlKind::BootTime as u16 && entry.seq <= plan.last_seq && !self.is_boot(key);
            if passed || old_boot {
                let (version, required) = (entry.version, entry.required);
                records.push(ControlRecord { kind, version, required, key: key.to_vec(), value: None });
            } else if entry.seq <= plan.last_seq && !written_anew(kind, key) {
                let (version, required) = (entry.version, entry.required);
                let value = Some(entry.value.to_vec());
                records.push(ControlRecord { kind, version, required, key: key.to_vec(), value });
            }
        }
        records
    }

    /// Segments that may be given back now: what had to be kept of them is synced.
    pub fn take_freed(&mut self) -> Vec<u64> {
        if self.freeing.as_ref().is_none_or(|freeing| freeing.after > self.synced_seq()) {
            return Vec::new();
        }
        let Some(freeing) = self.freeing.take() else { return Vec::new() };
        let last = freeing.numbers.last().copied().unwrap_or(0);
        while self.segments.front().is_some_and(|segment| segment.number <= last) {
            let Some(segment) = self.segments.pop_front() else { break };
            let key = store_key(STORE_KIND_SEGMENT, &segment.number.to_be_bytes());
            self.segment_changes.push(Change { key, value: None });
            for range in &segment.ranges {
                self.advance_start(range.partition, None, range.bytes);
            }
        }
        freeing.numbers
    }

    /// Whether segments are being given up.
    pub fn is_freeing(&self) -> bool {
        self.freeing.is_some()
    }
}
