//! Retention: which of the oldest segments may go, and how they go without losing what a rebuild needs.

use crate::types::{Offset, PartitionId, Seq};

/// What retention must know of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionPolicy {
    /// Which.
    pub partition: PartitionId,
    /// Everything below this offset has been passed by every upstream that carries the partition; `None` if none does, so that
    /// nothing is held back.
    pub passed: Option<Offset>,
    /// Bytes of the partition to keep; `None` keeps until the space is needed.
    pub keep_bytes: Option<u64>,
    /// What no upstream has passed yet is kept beyond `keep_bytes` and when space is needed.
    pub retain_unforwarded: bool,
}

/// Segments being given up: what must be synced before they may go.
#[derive(Clone, Debug)]
pub(crate) struct Freeing {
    pub(crate) numbers: Vec<u64>,
    pub(crate) after: Seq,
}
