//! Frames and groups as the core hands them to the committer. `format.rs` has their bytes.

use super::format::frame_bytes;
use crate::types::{Offset, PartitionId, Seq};
use bytes::Bytes;
use std::sync::Arc;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// The scar of a torn end: spans bytes that were cut off; no content.
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

impl FrameKind {
    /// From the number in a header; `None` if this version does not know it.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Pad),
            1 => Some(Self::Batch),
            2 => Some(Self::Control),
            3 => Some(Self::Footer),
            4 => Some(Self::Close),
            _ => None,
        }
    }

    /// Whether frames of this kind have a sequence of their own.
    pub fn numbered(self) -> bool {
        matches!(self, Self::Batch | Self::Control | Self::Close)
    }
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

impl FrameHeader {
    /// Offset after the last record of a batch.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.saturating_add(u64::from(self.count))
    }

    /// Whether it is the last of its group.
    pub fn is_last(&self) -> bool {
        self.flags & FLAG_LAST != 0
    }
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

impl Frame {
    /// Bytes that it takes in a segment.
    pub fn bytes(&self) -> usize {
        frame_bytes(self.body.len())
    }
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

    /// Number of the first frame.
    pub fn first_seq(&self) -> Seq {
        self.frames.first().map_or(0, |frame| frame.header.seq)
    }
}
