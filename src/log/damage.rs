//! What is found broken, as a value and in words.

use crate::types::{Offset, PartitionId, Seq};
use core::fmt;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DamageKind {
    /// A frame, or bytes where frames should be, that do not check.
    Frame,
    /// Frames that should be there, by what follows them or by what was known to be synced.
    MissingFrames,
    /// A segment whose header cannot be read: nothing in it can be checked.
    Header,
    /// A segment that is not there.
    MissingSegment,
    /// A segment of another log.
    Foreign,
    /// Offsets of a partition that stand nowhere, and no gap record says why.
    MissingOffsets,
}

/// Something broken, as exactly as it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What.
    pub kind: DamageKind,
    /// In which segment.
    pub segment: u64,
    /// Bytes in the segment, from and to.
    pub place: (u64, u64),
    /// Frames from and to (inclusive), where that can be told.
    pub seqs: Option<(Seq, Seq)>,
    /// The partition and its offsets from and to (exclusive), where that can be told.
    pub offsets: Option<(PartitionId, Offset, Offset)>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DamageKind::Frame => "bytes that do not check",
            DamageKind::MissingFrames => "frames missing",
            DamageKind::Header => "no readable header, so nothing in it can be checked; it is left as it is",
            DamageKind::MissingSegment => "the segment is missing",
            DamageKind::Foreign => "it belongs to another log; it is left as it is",
            DamageKind::MissingOffsets => "offsets missing",
        };
        write!(f, "segment {}: {what}", self.segment)?;
        if self.place.1 > self.place.0 {
            write!(f, ", bytes {} to {}", self.place.0, self.place.1)?;
        }
        if let Some((first, last)) = self.seqs {
            write!(f, ", frames {first} to {last}")?;
        }
        if let Some((partition, first, until)) = self.offsets {
            write!(f, ", partition {partition} offsets {first} to {}", until.saturating_sub(1))?;
        }
        Ok(())
    }
}
