//! Control records: durable changes to the looked-up state. An envelope (kind, version, length) around postcard values.

use super::format::{u16_at, u32_at};
use super::frame::{Frame, FrameKind};
use crate::types::{Offset, PartitionId, Seq, StreamId};
use serde::{Deserialize, Serialize};

/// Kinds of control records. Numbers are never reused. Even kinds above 0x8000 would be optional extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum ControlKind {
    /// Identity of the gateway: id and log id. Key: empty.
    Gateway = 1,
    /// A stream of the catalogue. Key: its name. Value: number and partition count.
    Stream = 2,
    /// First offset of a partition that is still there, and its LEO when that was written. Key: partition.
    PartitionStart = 3,
    /// Offsets that no reader will get, with the cause. Key: partition and first offset.
    Gap = 4,
    /// Leader epoch. Key: empty.
    Epoch = 5,
    /// In-sync replicas of a stream's partition. Key: partition.
    Isr = 6,
    /// Maps a boot's monotonic time to wall time. Key: boot id.
    BootTime = 7,
    /// A persistent session. Key: session number. Value: client id, user, expiry.
    Session = 8,
    /// One of its subscriptions. Key: session number and filter.
    Subscription = 9,
    /// A QoS 2 identifier received and not yet released. Key: session number and packet id.
    ReceivedQos2 = 10,
    /// The session's cursor. Key: session number.
    SessionCursor = 11,
    /// An upstream's cursor in a partition. Key: upstream name and partition.
    UpstreamCursor = 12,
    /// An upstream's released QoS 2 hand-shakes in a partition. Key: upstream name and partition.
    UpstreamReleased = 13,
    /// An upstream's session: how its packet ids map to partitions. Key: upstream name.
    UpstreamSession = 14,
    /// The oldest segment that still counts, and its first frame: what is older was freed. Key: empty.
    LogStart = 15,
}

impl ControlKind {
    /// Every kind that this version knows.
    pub const ALL: [Self; 15] = [
        Self::Gateway,
        Self::Stream,
        Self::PartitionStart,
        Self::Gap,
        Self::Epoch,
        Self::Isr,
        Self::BootTime,
        Self::Session,
        Self::Subscription,
        Self::ReceivedQos2,
        Self::SessionCursor,
        Self::UpstreamCursor,
        Self::UpstreamReleased,
        Self::UpstreamSession,
        Self::LogStart,
    ];

    /// From its number; `None` if this version does not know it.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// Newest version of its value that this version of the program can read.
    pub fn newest_version(self) -> u8 {
        1
    }
}

/// One change of the looked-up state, as it stands in a control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRecord {
    /// What it is about.
    pub kind: u16,
    /// Version of the value's struct. Structs are never edited: a new version is a new struct.
    pub version: u8,
    /// Whether a reader that does not know the kind must refuse to start.
    pub required: bool,
    /// Key within the kind.
    pub key: Vec<u8>,
    /// The value (postcard); `None` is a tombstone.
    pub value: Option<Vec<u8>>,
}

impl ControlRecord {
    /// A version 1 record of a kind that every reader must know.
    pub fn put(kind: ControlKind, key: Vec<u8>, value: Vec<u8>) -> Self {
        Self { kind: kind as u16, version: 1, required: true, key, value: Some(value) }
    }

    /// Its removal.
    pub fn remove(kind: ControlKind, key: Vec<u8>) -> Self {
        Self { kind: kind as u16, version: 1, required: true, key, value: None }
    }
}

/// Bytes of an envelope before its key.
const ENVELOPE_BYTES: usize = 12;
const ENVELOPE_REQUIRED: u8 = 1;
const ENVELOPE_TOMBSTONE: u8 = 2;

/// Bytes that a record takes in a control frame.
pub(crate) fn envelope_bytes(record: &ControlRecord) -> usize {
    ENVELOPE_BYTES + record.key.len() + record.value.as_ref().map_or(0, Vec::len)
}

/// Appends a record's envelope to the body of a control frame.
pub(crate) fn encode_envelope(record: &ControlRecord, out: &mut Vec<u8>) {
    let required = if record.required { ENVELOPE_REQUIRED } else { 0 };
    let tombstone = if record.value.is_none() { ENVELOPE_TOMBSTONE } else { 0 };
    let value = record.value.as_deref().unwrap_or_default();
    out.extend_from_slice(&record.kind.to_le_bytes());
    out.extend_from_slice(&[record.version, required | tombstone]);
    out.extend_from_slice(&(record.key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&record.key);
    out.extend_from_slice(value);
}

/// A control record in a frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRef<'a> {
    /// What it is about.
    pub kind: u16,
    /// Version of the value's struct.
    pub version: u8,
    /// Whether a reader that does not know the kind must refuse to start.
    pub required: bool,
    /// Key within the kind.
    pub key: &'a [u8],
    /// The value (postcard); `None` is a tombstone.
    pub value: Option<&'a [u8]>,
}

/// Iterator over the records of a control frame; ends early if the bytes do.
#[derive(Clone, Debug)]
pub struct ControlRecords<'a>(&'a [u8]);

impl<'a> ControlRecords<'a> {
    /// Over the body of a control frame.
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }
}

impl<'a> Iterator for ControlRecords<'a> {
    type Item = ControlRef<'a>;

    fn next(&mut self) -> Option<ControlRef<'a>> {
        let kind = u16_at(self.0, 0)?;
        let [version, flags] = *self.0.get(2..)?.first_chunk()?;
        let key_length = u32_at(self.0, 4)? as usize;
        let value_length = u32_at(self.0, 8)? as usize;
        let (key, rest) = self.0.get(ENVELOPE_BYTES..)?.split_at_checked(key_length)?;
        let (value, rest) = rest.split_at_checked(value_length)?;
        self.0 = rest;
        Some(ControlRef {
            kind,
            version,
            required: flags & ENVELOPE_REQUIRED != 0,
            key,
            value: (flags & ENVELOPE_TOMBSTONE == 0).then_some(value),
        })
    }
}

impl Frame {
    /// The control records of a control frame, in order; nothing for other kinds.
    pub fn control_records(&self) -> ControlRecords<'_> {
        ControlRecords(if self.header.kind == FrameKind::Control { &self.body } else { &[] })
    }
}

/// Key of what belongs to a partition: 6 bytes that sort as partitions do.
pub fn partition_key(partition: PartitionId) -> Vec<u8> {
    let mut key = Vec::with_capacity(6);
    key.extend_from_slice(&partition.stream.0.to_be_bytes());
    key.extend_from_slice(&partition.partition.to_be_bytes());
    key
}

/// The partition in a key that begins with [`partition_key`].
pub fn partition_of_key(key: &[u8]) -> Option<PartitionId> {
    Some(PartitionId {
        stream: StreamId(u32::from_be_bytes(*key.first_chunk()?)),
        partition: u16::from_be_bytes(*key.get(4..)?.first_chunk()?),
    })
}

/// Value of [`ControlKind::PartitionStart`], version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStartV1 {
    /// First offset that is still there.
    pub start: Offset,
    /// LEO when this was written.
    pub leo: Offset,
}

/// Why no reader will get some offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GapCause {
    /// A torn or damaged end after a disorderly stop: nothing tells whether these were ever synced.
    TornEnd,
    /// Synced frames that cannot be read any more.
    Damaged,
    /// Given up for space or age.
    Retention,
    /// A reader's cursor had passed them, so they had been given before.
    Cursor,
    /// Dropped although not every upstream had them, since the space was needed.
    DiskFull,
}

/// Value of [`ControlKind::Gap`], version 1. Key: [`partition_key`] and the first offset, big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapV1 {
    /// Offset after the last one that is missing.
    pub until: Offset,
    /// Why.
    pub cause: GapCause,
}

/// Key of a gap.
pub fn gap_key(partition: PartitionId, first: Offset) -> Vec<u8> {
    let mut key = partition_key(partition);
    key.extend_from_slice(&first.to_be_bytes());
    key
}

/// Partition and first offset of a gap's key.
pub fn gap_of_key(key: &[u8]) -> Option<(PartitionId, Offset)> {
    Some((partition_of_key(key)?, u64::from_be_bytes(*key.get(6..)?.first_chunk()?)))
}

/// Value of [`ControlKind::Epoch`], version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochV1 {
    /// The leader epoch.
    pub epoch: u32,
}

/// Value of [`ControlKind::BootTime`], version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootTimeV1 {
    /// Wall time, ms since 1970 (UTC), at the boot's monotonic 0.
    pub wall_ms_at_zero: i64,
}

/// Value of [`ControlKind::LogStart`], version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStartV1 {
    /// Number of the oldest segment that counts.
    pub segment: u64,
    /// Its first frame.
    pub seq: Seq,
}

/// The postcard form of a value.
pub fn to_value<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    super::batch::append_postcard(value, &mut bytes);
    bytes
}

/// A value from its postcard form.
pub fn from_value<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
