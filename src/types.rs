//! The plain values that every part speaks: identifiers, offsets, positions and time passed in as data.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A record's number in its partition: from 0, contiguous except for recorded gaps, never given to other bytes.
pub type Offset = u64;

/// Number of a frame in the log: grows over all segments and partitions, from 1. 0 means "before the first frame".
pub type Seq = u64;

/// A stream's number in the catalogue; names map to it once and for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamId(pub u32);

/// One ordered part of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartitionId {
    /// The stream it belongs to.
    pub stream: StreamId,
    /// Its number in the stream, from 0.
    pub partition: u16,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream.0, self.partition)
    }
}

/// A logical place in the one series of frames: totally ordered over all partitions, unchanged by relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPosition {
    /// The frame.
    pub seq: Seq,
    /// The record within the frame, from 0.
    pub index: u32,
}

/// 128 random bits made when a data directory is first used; with stream, partition and offset it names a record for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogId(pub [u8; 16]);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The kernel's boot id: monotonic times are comparable only within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BootId(pub [u8; 16]);

/// A network connection of this process. Never reused while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A session's number, stable over restarts; client identifiers map to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// An upstream's number: its place in the settings' list, valid for one run of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamId(pub u16);

/// Matches a question of the core to the shell's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The level at which a publisher is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Acks {
    /// 0: the record is queued for commit; nothing is promised.
    Queued,
    /// 1: the record's frame is synced on the gateway; survives a power cut.
    #[default]
    Synced,
    /// -1: the high watermark has passed the record; survives the loss of the gateway.
    Replicated,
}

impl Acks {
    /// Reads `0`, `1` or `-1`; anything else is `None`.
    pub fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Queued),
            1 => Some(Self::Synced),
            -1 => Some(Self::Replicated),
            _ => None,
        }
    }

    /// The number as users write it.
    pub fn number(self) -> i8 {
        match self {
            Self::Queued => 0,
            Self::Synced => 1,
            Self::Replicated => -1,
        }
    }
}

/// Time, passed in as data. The core never asks a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic nanoseconds since an arbitrary start within this boot.
    pub mono_ns: u64,
    /// Milliseconds since 1970 (UTC) as the wall clock says, if it says anything.
    pub wall_ms: Option<i64>,
    /// Whether the wall clock is known to be set (NTP or the like).
    pub wall_synced: bool,
}

/// When a record came in: monotonic within a boot, and what the wall clock said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngestTime {
    /// The boot in which `mono_ms` counts.
    pub boot: BootId,
    /// Monotonic milliseconds within that boot.
    pub mono_ms: u64,
    /// Milliseconds since 1970 (UTC) as the wall clock said then; `None` if it said nothing.
    pub wall_ms: Option<i64>,
    /// Whether the wall clock was known to be set.
    pub wall_synced: bool,
}
