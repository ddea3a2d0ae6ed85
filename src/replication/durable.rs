//! What a link and a replica set keep in the log: the values of their control records, version 1, and the keys.
//!
//! Structs are never edited; a new version is a new struct (log format's rule). Values are postcard.

use crate::types::{LogId, Offset, PartitionId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Which kind of control record a value belongs to. The engine maps it to the log's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// [`CursorV1`] by [`lane_key`].
    Cursor,
    /// [`ReleasedV1`] by [`lane_key`].
    Released,
    /// [`SessionV1`] by [`session_key`].
    Session,
    /// [`IsrV1`] by [`partition_key`].
    Isr,
}

/// A change of durable state: a control record without the log's envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// Its kind.
    pub kind: StateKind,
    /// Its key within the kind.
    pub key: Vec<u8>,
    /// Its value, version 1.
    pub value: Vec<u8>,
}

/// How far an upstream is done with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorV1 {
    /// The first offset that it has not acknowledged.
    pub next: Offset,
}

/// What of a partition is beyond PUBLISH: never to be published again in this session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasedV1 {
    /// The session in which this holds; see [`SessionV1::stamp`].
    pub session: u64,
    /// The first offset that was not acknowledged when this was written.
    pub cursor: Offset,
    /// What the offsets from `cursor` on are; beyond the last run nothing is known.
    pub runs: Vec<RunV1>,
}

/// A run of offsets in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunV1 {
    /// How many.
    pub len: u32,
    /// What they are.
    pub state: RunState,
}

/// States of offsets in [`ReleasedV1`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunState {
    /// Nothing is known: to be published (again).
    Open,
    /// PUBREC came: PUBREL is due, not PUBLISH.
    Released,
    /// Acknowledged, dead-lettered or not there.
    Done,
}

/// The session that a peer holds for us and how its packet identifiers map to partitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionV1 {
    /// Drawn anew for each session, so that what was released in a former one is never taken for this one's.
    pub stamp: u64,
    /// The log whose offsets are in it.
    pub log_id: LogId,
    /// Whom it was agreed with: address, client identifier, protocol and QoS.
    pub peer: String,
    /// Packet identifiers per partition.
    pub range: u16,
    /// Partitions, by their place among the ranges.
    pub slots: Vec<PartitionId>,
}

/// The in-sync replicas of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsrV1 {
    /// Names, ascending; the local log is `local`.
    pub replicas: Vec<String>,
}

/// Key of a partition: stream and number, big-endian, so that keys sort as partitions do.
pub fn partition_key(partition: PartitionId) -> Vec<u8> {
    let mut key = partition.stream.0.to_be_bytes().to_vec();
    key.extend_from_slice(&partition.partition.to_be_bytes());
    key
}

/// Key of an upstream's lane: its name, a zero byte, the partition.
pub fn lane_key(upstream: &str, partition: PartitionId) -> Vec<u8> {
    let mut key = upstream.as_bytes().to_vec();
    key.push(0);
    key.extend(partition_key(partition));
    key
}

/// Key of an upstream's session: its name.
pub fn session_key(upstream: &str) -> Vec<u8> {
    upstream.as_bytes().to_vec()
}

/// The bytes of a value. Postcard cannot fail on these types: they hold no maps of unknown length and need no space of ours.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}

/// The value of the bytes; `None` if they are not whole, or hold more than the value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::StreamId;

    #[test]
    fn a_value_comes_back_and_a_torn_one_does_not() {
        let value = ReleasedV1 {
            session: 7,
            cursor: 1 << 40,
            runs: vec![RunV1 { len: 3, state: RunState::Released }, RunV1 { len: 1, state: RunState::Done }],
        };
        let bytes = encode(&value);
        assert_eq!(decode::<ReleasedV1>(&bytes), Some(value));
        assert_eq!(decode::<ReleasedV1>(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode::<ReleasedV1>(&[bytes.as_slice(), &[0]].concat()), None);
    }

    #[test]
    fn keys_of_different_upstreams_and_partitions_differ() {
        let p = |stream, partition| PartitionId { stream: StreamId(stream), partition };
        assert_ne!(lane_key("a", p(1, 2)), lane_key("a", p(2, 1)));
        assert_ne!(lane_key("a", p(1, 2)), lane_key("ab", p(1, 2)));
        assert!(partition_key(p(1, 65_535)) < partition_key(p(2, 0)));
    }
}
