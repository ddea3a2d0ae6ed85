//! Records: one message with its properties, as it is appended and as it is read back.

use super::batch::{
    BATCH_VERSION, DictionaryV1, PRELUDE_BYTES, PRELUDE_DICTIONARY, PropertiesV1, RECORD_RETAIN, Raw, RecordV1,
    TIME_SYNCED, TIME_WALL,
};
use super::format::{u32_at, u64_at};
use super::frame::{Frame, FrameKind};
use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, QoS, Text};
use crate::types::{BootId, IngestTime, LogPosition, Offset, PartitionId};
use bytes::Bytes;
use core::fmt;

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

/// A batch whose CRC is right but whose content this version cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// Frame and record.
    pub position: LogPosition,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} of frame {}: {}", self.position.index, self.position.seq, self.what)
    }
}

impl std::error::Error for RecordError {}

/// When the first record of a batch came in, from the first bytes of its body.
pub(crate) fn batch_time(body: &[u8]) -> Option<IngestTime> {
    let flags = *body.get(2)?;
    let wall_ms = u64_at(body, 32)?.cast_signed();
    Some(IngestTime {
        boot: BootId(*body.get(8..)?.first_chunk()?),
        mono_ms: u64_at(body, 24)?,
        wall_ms: (flags & TIME_WALL != 0).then_some(wall_ms),
        wall_synced: flags & TIME_SYNCED != 0,
    })
}

impl Frame {
    /// The records of a batch, in order; nothing for other kinds.
    pub fn records(&self) -> Records<'_> {
        self.records_from(0)
    }

    /// The records from an index on; those before it are passed over without being decoded.
    pub fn records_from(&self, index: u32) -> Records<'_> {
        if self.header.kind != FrameKind::Batch {
            return Records::nothing(self);
        }
        let mut records = Records::open(self);
        while records.index < index && records.pass_over() {}
        records
    }

    /// One record of a batch.
    pub fn record(&self, index: u32) -> Option<Result<StoredRecord, RecordError>> {
        self.records_from(index).next()
    }

    /// When the first record of a batch came in.
    pub fn batch_time(&self) -> Option<IngestTime> {
        if self.header.kind == FrameKind::Batch { batch_time(&self.body) } else { None }
    }
}

/// Iterator over the records of a batch. After an error it ends.
#[derive(Debug)]
pub struct Records<'a> {
    frame: &'a Frame,
    time: IngestTime,
    topics: Vec<Text>,
    clients: Vec<Text>,
    place: usize,
    end: usize,
    index: u32,
    failed: Option<&'static str>,
}

impl<'a> Records<'a> {
    fn nothing(frame: &'a Frame) -> Self {
        Self {
            frame,
            time: IngestTime::default(),
            topics: Vec::new(),
            clients: Vec::new(),
            place: 0,
            end: 0,
            index: frame.header.count,
            failed: None,
        }
    }

    fn open(frame: &'a Frame) -> Self {
        Self::prelude(frame).unwrap_or_else(|what| Self { index: 0, failed: Some(what), ..Self::nothing(frame) })
    }

    fn prelude(frame: &'a Frame) -> Result<Self, &'static str> {
        let body = &frame.body;
        if body.first() != Some(&BATCH_VERSION) {
            return Err("its batch version is not known");
        }
        if body.get(1) != Some(&0) {
            return Err("its compression is not known");
        }
        let end = u32_at(body, PRELUDE_DICTIONARY).ok_or("its prelude is cut")? as usize;
        let trailer = body.get(end..).ok_or("its dictionary lies outside")?;
        let dictionary: DictionaryV1<'_> =
            postcard::from_bytes(trailer).map_err(|_| "its dictionary cannot be read")?;
        Ok(Self {
            frame,
            time: batch_time(body).ok_or("its prelude is cut")?,
            topics: texts(body, &dictionary.topics)?,
            clients: texts(body, &dictionary.clients)?,
            place: PRELUDE_BYTES,
            end,
            index: 0,
            failed: None,
        })
    }

    /// Bytes of the record at the front.
    fn front(&self) -> Option<&'a [u8]> {
        let length = u32_at(&self.frame.body, self.place)? as usize;
        let start = self.place + 4;
        self.frame.body.get(start..start.checked_add(length)?).filter(|_| start + length <= self.end)
    }

    fn pass_over(&mut self) -> bool {
        let Some(front) = self.front() else { return false };
        self.place += 4 + front.len();
        self.index += 1;
        self.index < self.frame.header.count
    }

    fn decode(&mut self) -> Result<StoredRecord, &'static str> {
        let bytes = self.front().ok_or("its length is wrong")?;
        let stored: RecordV1<'_> = postcard::from_bytes(bytes).map_err(|_| "it cannot be read")?;
        let body = &self.frame.body;
        let share = |raw: Raw<'_>| body.slice_ref(raw.0);
        let header = &self.frame.header;
        let record = StoredRecord {
            partition: header.partition,
            offset: header.base_offset + u64::from(self.index),
            position: LogPosition { seq: header.seq, index: self.index },
            topic: self.topics.get(stored.topic as usize).cloned().ok_or("its topic is not in the dictionary")?,
            client: self.clients.get(stored.client as usize).cloned().ok_or("its client is not in the dictionary")?,
            qos: QoS::from_bits(stored.flags & 3).ok_or("its QoS is 3")?,
            retain: stored.flags & RECORD_RETAIN != 0,
            properties: stored.properties.map(|stored| properties(body, &stored)).transpose()?.map(Box::new),
            key: stored.key.map(share),
            source: stored.source.map(share),
            ingest: IngestTime {
                mono_ms: self.time.mono_ms.saturating_add(stored.delta_ms),
                wall_ms: self.time.wall_ms.map(|wall| wall.saturating_add_unsigned(stored.delta_ms)),
                ..self.time
            },
            payload: share(stored.payload),
        };
        self.place += 4 + bytes.len();
        self.index += 1;
        Ok(record)
    }
}

fn text(body: &Bytes, raw: Raw<'_>) -> Result<Text, &'static str> {
    Text::new(body.slice_ref(raw.0)).ok_or("a text is not UTF-8")
}

fn texts(body: &Bytes, raws: &[Raw<'_>]) -> Result<Vec<Text>, &'static str> {
    raws.iter().map(|raw| text(body, *raw)).collect()
}

fn properties(body: &Bytes, stored: &PropertiesV1<'_>) -> Result<PublishProperties, &'static str> {
    Ok(PublishProperties {
        payload_format: stored.payload_format,
        message_expiry_s: stored.message_expiry_s,
        topic_alias: None,
        response_topic: stored.response_topic.map(|raw| text(body, raw)).transpose()?,
        correlation_data: stored.correlation_data.map(|raw| body.slice_ref(raw.0)),
        user: stored
            .user
            .iter()
            .map(|(name, value)| Ok((text(body, *name)?, text(body, *value)?)))
            .collect::<Result<_, &'static str>>()?,
        subscription_ids: Vec::new(),
        content_type: stored.content_type.map(|raw| text(body, raw)).transpose()?,
    })
}

impl Iterator for Records<'_> {
    type Item = Result<StoredRecord, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.frame.header.count {
            return None;
        }
        let position = LogPosition { seq: self.frame.header.seq, index: self.index };
        let result = match self.failed {
            Some(what) => Err(what),
            None => self.decode(),
        };
        Some(result.map_err(|what| {
            self.index = self.frame.header.count;
            RecordError { position, what }
        }))
    }
}
