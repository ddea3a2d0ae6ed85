//! Space: oldest segments go when every upstream has passed them and the streams' limits say so, or when the budget presses.

use super::Engine;
use super::io::{Output, Outputs};
use crate::limits::CLEANER_RESERVE_SEGMENTS;
use crate::log::retention::{PartitionPolicy, bytes_needed, plan};
use crate::types::{Offset, PartitionId};

impl Engine {
    /// What the store thread measured.
    pub(super) fn space(&mut self, used_bytes: u64, log_bytes: u64, free_bytes: u64) {
        self.used_bytes = used_bytes;
        self.other_bytes = used_bytes.saturating_sub(log_bytes);
        self.free_bytes = Some(free_bytes);
        self.space_due = true;
    }

    /// Plans what may go, and whether publishes to streams that refuse must stop. What goes is first written again as far as it is
    /// still needed; the segments are given up once that is synced.
    pub(super) fn manage_space(&mut self, out: &mut Outputs) {
        let numbers = self.log.take_freed();
        if !numbers.is_empty() {
            self.space_due = true;
            out.push(Output::FreeSegments { numbers });
        }
        if !std::mem::take(&mut self.space_due) {
            return;
        }
        let budget = self.settings.gateway.disk_budget;
        let segment = self.settings.device.segment_size;
        let in_use = self.bytes_in_use();
        // What may go goes a segment before publishes would have to stop.
        let needed = bytes_needed(in_use + segment, budget, segment);
        if !self.log.is_freeing() {
            let plan = plan(&self.log, &self.policies(), needed, segment);
            for (partition, records) in &plan.lost {
                self.counters.lost(Some(partition.stream), "retention", *records);
            }
            self.log.retain(&plan);
        }
        // The reserve is the cleaner's: what is on its way to the disk, and the spare.
        let budget_full = in_use + CLEANER_RESERVE_SEGMENTS * segment > budget;
        let full = budget_full || self.disk_full();
        if self.full && !full {
            self.conditions += 1;
        }
        self.full = full;
    }

    /// Segments are counted here, since a measure lags behind; what is not the log's (sled, a quarantine) is measured.
    pub(super) fn bytes_in_use(&self) -> u64 {
        (self.log.segments().len() as u64 + 1) * self.settings.device.segment_size + self.other_bytes
    }

    /// Whether the file system has no room for what is on its way and the cleaner's work, whatever the budget says.
    pub(super) fn disk_full(&self) -> bool {
        self.free_bytes.is_some_and(|free| free < CLEANER_RESERVE_SEGMENTS * self.settings.device.segment_size)
    }

    fn policies(&self) -> Vec<PartitionPolicy> {
        let policy = |id: PartitionId| {
            let stream = self.streams.get(&id.stream)?;
            let passed = self.passed(id);
            // What nobody asked to keep gives way to what somebody did; counted as lost.
            let gives_way = passed.is_none() && !stream.asked_for;
            Some(PartitionPolicy {
                partition: id,
                passed: if gives_way { Some(0) } else { passed },
                keep_bytes: stream.settings.retention_bytes,
                retain_unforwarded: stream.settings.retain_unforwarded && !gives_way,
            })
        };
        self.log.partitions().filter_map(policy).collect()
    }

    /// Offset below which every upstream that carries the partition is durably done with it; `None` if none carries it.
    fn passed(&self, id: PartitionId) -> Option<Offset> {
        self.upstreams.iter().filter_map(|upstream| upstream.link.durable_cursor(id)).min()
    }
}
