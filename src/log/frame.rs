//! Frames and groups as the core hands them to the committer. `format.rs` has their bytes.

use crate::types::{Offset, PartitionId, Seq};
use bytes::Bytes;
use std::sync::Arc;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Filler up to the end of a segment; no content.
    Pad = 0,
    /// Records of one partition.
    Batch = 1,
    /// Control records.
    Control = 2,
    /// The footer of a sealed segment.
    Footer = 3,
    /// The closing frame of an orderly stop.
    Close = 4,
}

/// What the core knows of a frame's header; the committer adds the synced sequence and the CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame holds.
    pub kind: FrameKind,
    /// [`FLAG_LAST`] and others.
    pub flags: u16,
    /// The frame's number.
    pub seq: Seq,
    /// Leader epoch of its writer.
    pub epoch: u32,
    /// Partition of a batch; zero otherwise.
    pub partition: PartitionId,
    /// Records, or control records, in it.
    pub count: u32,
    /// Offset of the first record of a batch.
    pub base_offset: Offset,
}

/// The frame is the last of its group: a group without it is dropped whole at recovery.
pub const FLAG_LAST: u16 = 1;

/// One frame: header values and the body's bytes, shared between committer, tail and readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Header values.
    pub header: FrameHeader,
    /// The body, without header and padding.
    pub body: Bytes,
}

/// The frames of one commit, in order; the last carries [`FLAG_LAST`].
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// At least one.
    pub frames: Vec<Arc<Frame>>,
    /// Bytes that they take in a segment, headers and padding included.
    pub bytes: usize,
    /// Records in them.
    pub records: usize,
}

impl Group {
    /// Number of the last frame; what a waiting ack compares with.
    pub fn last_seq(&self) -> Seq {
        self.frames.last().map_or(0, |frame| frame.header.seq)
    }
}
