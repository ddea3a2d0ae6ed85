//! Where things are: from offsets and times to positions, and how much lies behind them. Lower bounds: the reader finds the rest.

use super::control::{BootTimeV1, ControlKind, from_value};
use super::frame::{Frame, FrameKind};
use super::live::Log;
use crate::types::{IngestTime, LogPosition, Offset, PartitionId, Seq};
use std::sync::Arc;

impl Log {
    /// Stored bytes of a partition from an offset on, about (evenly spread within a segment).
    pub fn bytes_after(&self, p: PartitionId, offset: Offset) -> u64 {
        let Some(partition) = self.partition(p) else { return 0 };
        let mut covered = partition.start;
        let mut bytes = 0;
        for range in self.segments.iter().rev().filter_map(|segment| segment.range(p)) {
            covered = covered.max(range.next);
            if range.next <= offset {
                break;
            }
            bytes += share(range.bytes, range.first, range.next, offset);
        }
        bytes + share(partition.recent_bytes, covered, partition.leo, offset)
    }

    /// Where reading may begin to find an offset: no record of the partition at or after it stands before.
    pub fn locate(&self, p: PartitionId, offset: Offset) -> LogPosition {
        if let Some(seq) = self.at_the_end(p, offset) {
            return LogPosition { seq, index: 0 };
        }
        let recent = self.recent.iter().rev().find(|entry| entry.partition == p && entry.offset <= offset);
        if let Some(entry) = recent {
            return LogPosition { seq: entry.seq, index: 0 };
        }
        let mut found = None;
        for range in self.segments.iter().rev().filter_map(|segment| segment.range(p)) {
            if range.next <= offset {
                break; // it stands behind this segment
            }
            found = Some(range.first_seq);
            if range.first <= offset {
                break;
            }
        }
        // No summary and no entry of the recent index covers it: somewhere in what is not sealed yet.
        let unsealed = self.segments.back().map_or(1, |segment| segment.last_seq + 1);
        LogPosition { seq: found.unwrap_or(unsealed), index: 0 }
    }

    /// The frame that holds, or will hold, an offset that is not sealed yet.
    fn at_the_end(&self, p: PartitionId, offset: Offset) -> Option<Seq> {
        let Some(partition) = self.partition(p) else { return Some(self.last_seq + 1) };
        match partition.open.is_empty() {
            false => (offset >= partition.open.base_offset()).then(|| partition.open.seq()),
            true => (offset >= partition.leo).then_some(self.last_seq + 1),
        }
    }

    /// Where reading may begin to find what came in at or after a wall time, over all partitions: every batch before it is known
    /// to be older, or its clock was not set and what follows it is older too.
    pub fn locate_time(&self, wall_ms: i64) -> LogPosition {
        let mut seq = self.segments.back().map_or(0, |segment| segment.last_seq + 1);
        for segment in self.segments.iter().rev() {
            match segment.wall_ms {
                Some((_, last)) if last < wall_ms => break,
                _ => seq = segment.first_seq,
            }
        }
        LogPosition { seq, index: 0 }
    }

    /// When the record at an offset came in, about: exactly while it is in memory, else the earliest time of its segment.
    pub fn ingest_time(&self, p: PartitionId, offset: Offset) -> Option<IngestTime> {
        let partition = self.partition(p)?;
        if offset >= partition.leo {
            return None;
        }
        if !partition.open.is_empty() && offset >= partition.open.base_offset() {
            let mono_ms = partition.open.mono_ms();
            return Some(IngestTime { boot: self.config.boot, mono_ms, wall_ms: None, wall_synced: false });
        }
        let from = self.locate(p, offset).seq;
        if from >= self.tail.first_seq() || self.tail_holds(p, offset) {
            let holds = |frame: &&Arc<Frame>| frame.header.partition == p && frame.header.next_offset() > offset;
            return self.tail.from(from).find(holds).and_then(|frame| frame.batch_time());
        }
        let segment = self.segments.iter().find(|segment| segment.range(p).is_some_and(|range| range.next > offset))?;
        let wall_ms = segment.wall_ms.map(|(first, _)| first);
        Some(IngestTime { wall_ms, wall_synced: wall_ms.is_some(), ..IngestTime::default() })
    }

    fn tail_holds(&self, p: PartitionId, offset: Offset) -> bool {
        let first =
            self.tail.from(0).find(|frame| frame.header.kind == FrameKind::Batch && frame.header.partition == p);
        first.is_some_and(|frame| frame.header.base_offset <= offset)
    }

    /// Wall time, ms since 1970, of an ingest time: as recorded if the clock was set, else by what is known of its boot.
    pub fn wall_ms(&self, time: &IngestTime) -> Option<i64> {
        if time.wall_synced {
            return time.wall_ms;
        }
        let entry = self.state.get(ControlKind::BootTime, &time.boot.0)?;
        let mapping: BootTimeV1 = from_value(&entry.value)?;
        Some(mapping.wall_ms_at_zero.saturating_add_unsigned(time.mono_ms))
    }
}

/// The part of `bytes`, evenly spread over the offsets from `first` to `next`, that lies at or after `offset`.
fn share(bytes: u64, first: Offset, next: Offset, offset: Offset) -> u64 {
    let all = next.saturating_sub(first);
    let wanted = next.saturating_sub(offset.max(first));
    if all == 0 { 0 } else { (u128::from(bytes) * u128::from(wanted) / u128::from(all)) as u64 }
}
