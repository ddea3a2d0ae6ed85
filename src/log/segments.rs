//! What is known of each segment without reading it.

use crate::types::{Offset, PartitionId, Seq};
use serde::{Deserialize, Serialize};

/// Offsets of one partition in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRange {
    /// The partition.
    pub partition: PartitionId,
    /// First offset in the segment.
    pub first: Offset,
    /// Offset after the last one.
    pub next: Offset,
    /// Frame of the first one.
    pub first_seq: Seq,
    /// Bytes of its frames.
    pub bytes: u64,
}

/// A sealed (or abandoned) segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentSummary {
    /// Its number.
    pub number: u64,
    /// First frame.
    pub first_seq: Seq,
    /// Last frame.
    pub last_seq: Seq,
    /// Bytes in use.
    pub bytes: u64,
    /// Offsets per partition, ascending by partition.
    pub ranges: Vec<PartitionRange>,
    /// Earliest and latest ingest time, wall ms, of batches whose clock was synchronised.
    pub wall_ms: Option<(i64, i64)>,
    /// Control records in it.
    pub control_records: u32,
}
