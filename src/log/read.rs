//! Reading segments: the one reader of catch-up sessions, upstreams, `tail` and `log verify`, in bounded memory.

use super::damage::Damage;
use super::frame::Frame;
use crate::types::{LogPosition, Offset, PartitionId, Seq};
use std::sync::Arc;

/// A catch-up read.
#[derive(Clone, Debug, Default)]
pub struct ReadRequest {
    /// First position wanted.
    pub from: LogPosition,
    /// Not beyond this frame (the synced end when the request was made).
    pub until: Seq,
    /// Bytes of frames to bring at most, except that one frame always comes.
    pub max_bytes: usize,
    /// Only batches of these partitions; `None` is all.
    pub partitions: Option<Arc<[PartitionId]>>,
    /// Where the bytes lie, if known from the last read.
    pub hint: Option<ReadHint>,
    /// The reader wants this partition from this offset on and nothing before it: the sparse index may be used to skip.
    pub find: Option<(PartitionId, Offset)>,
}

/// What a catch-up read found.
#[derive(Clone, Debug)]
pub enum ReadResult {
    /// Frames in log order, all at or after the position asked for (the first may begin before it).
    Frames {
        /// Data frames of the partitions asked for. May be empty: the read passed over much that was not asked for.
        frames: Vec<Arc<Frame>>,
        /// Where to read on.
        next: LogPosition,
        /// Where those bytes lie, to be given back with the next read.
        hint: Option<ReadHint>,
        /// What could not be read on the way.
        damage: Vec<Damage>,
    },
    /// Nothing stands below `until` any more.
    End {
        /// Where to read on.
        next: LogPosition,
    },
    /// The medium failed.
    Failed(String),
}

/// Where a reader stopped: a segment and a byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHint {
    /// Segment number.
    pub segment: u64,
    /// Byte offset of the next frame.
    pub offset: u64,
}

/// Reads segments for whoever asks; remembers only which segments there are and what their footers say.
#[derive(Debug, Default)]
pub struct Reader {
    _private: (),
}
