//! Control records: durable changes to the looked-up state. An envelope (kind, version, length) around postcard values.

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
