//! Space: oldest segments go when every upstream has passed them and the streams' limits say so, or when the budget presses.

use super::Engine;
use super::io::{Output, Outputs};
use crate::limits::CLEANER_RESERVE_SEGMENTS;
use crate::types::{Now, Offset, PartitionId};

impl Engine {
    /// What the store thread measured.
    pub(super) fn space(&mut self, used_bytes: u64, free_bytes: u64) {
        self.used_bytes = used_bytes;
        self.free_bytes = Some(free_bytes);
        self.space_due = true;
    }

    /// Offset below which every upstream that carries the partition is done with it.
    pub(super) fn forwarded(&self, id: PartitionId) -> Option<Offset> {
        self.upstreams.iter().filter_map(|upstream| upstream.link.cursor(id)).min()
    }

    /// Plans what may go, and whether publishes to `refuse` streams must stop.
    pub(super) fn manage_space(&mut self, _now: Now, out: &mut Outputs) {
        if !std::mem::take(&mut self.space_due) {
            return;
        }
        let budget = self.settings.gateway.disk_budget;
        let segment = self.settings.device.segment_size;
        // What is not segments (sled, the quarantine) counts too.
        let segments = self.log.segments().len() as u64 + 1;
        let other = self.used_bytes.saturating_sub(segments.saturating_mul(segment));
        let most = (budget.saturating_sub(other) / segment).saturating_sub(CLEANER_RESERVE_SEGMENTS).max(1);
        let file_system_full = self.free_bytes.is_some_and(|free| free < segment / 2);
        let full = segments > most || file_system_full;
        if self.full && !full {
            self.conditions += 1;
        }
        self.full = full;
        let _ = out;
    }

    /// Segments whose remains are written again and synced are given up.
    pub(super) fn free_segments(&mut self, out: &mut Outputs) {
        if let Some((after, numbers)) = self.freeing.take() {
            if after > self.log.synced_seq() {
                self.freeing = Some((after, numbers));
                return;
            }
            self.space_due = true;
            out.push(Output::FreeSegments { numbers });
        }
    }

    /// Offset below which a partition's records may go, as far as upstreams are concerned.
    fn retained_below(&self, id: PartitionId) -> Offset {
        let retain = self.streams.get(&id.stream).is_none_or(|stream| stream.settings.retain_unforwarded);
        if retain { self.forwarded(id).unwrap_or(Offset::MAX) } else { Offset::MAX }
    }
}
