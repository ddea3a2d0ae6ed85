//! Records: one message with its properties, as it is appended and as it is read back.

use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, QoS, Text};
use crate::types::{IngestTime, LogPosition, Offset, PartitionId};
use bytes::Bytes;

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// The message; dup and packet id are not stored.
    pub publish: &'a Publish,
    /// Client identifier of the publisher.
    pub client: &'a [u8],
    /// Partition key, where it was asked for.
    pub key: Option<&'a [u8]>,
    /// Source attached by a forwarding peer.
    pub source: Option<&'a [u8]>,
}

/// A record read back. Text and payload share the frame's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its partition.
    pub partition: PartitionId,
    /// Its number in the partition.
    pub offset: Offset,
    /// Its place in the log.
    pub position: LogPosition,
    /// Topic.
    pub topic: Text,
    /// Client identifier of the publisher.
    pub client: Text,
    /// QoS at which it was published.
    pub qos: QoS,
    /// Retain flag of the publish.
    pub retain: bool,
    /// Properties but alias and subscription identifiers.
    pub properties: Option<Box<PublishProperties>>,
    /// Partition key, where it was asked for.
    pub key: Option<Bytes>,
    /// Source attached by a forwarding peer.
    pub source: Option<Bytes>,
    /// When it came in.
    pub ingest: IngestTime,
    /// Payload.
    pub payload: Bytes,
}
