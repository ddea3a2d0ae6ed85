//! A batch being filled: the records of one partition in the open group. Payload bytes are copied once, into the body of the
//! frame that is written; topics and client ids go to a dictionary behind the records.

use super::format::{FRAME_HEADER_BYTES, put};
use super::record::NewRecord;
use crate::limits::FRAME_ALIGN;
use crate::mqtt::properties::PublishProperties;
use crate::types::{BootId, Now, Offset, Seq};
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::HashMap;

/// Version of batches that is written.
pub const BATCH_VERSION: u8 = 1;
/// Bytes before the first record.
pub const PRELUDE_BYTES: usize = 40;
/// Time flag: there is a wall time.
pub(crate) const TIME_WALL: u8 = 1;
/// Time flag: the wall clock was synchronised.
pub(crate) const TIME_SYNCED: u8 = 2;
/// Record flag: retain.
pub(crate) const RECORD_RETAIN: u8 = 4;
/// Where the dictionary's place stands in the prelude.
pub(crate) const PRELUDE_DICTIONARY: usize = 4;

/// Bytes as postcard's byte string: written in one go, read without copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Raw<'a>(#[serde(borrow)] pub(crate) &'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Record, version 1. Never edited; see FORMAT.md.
#[derive(Serialize, Deserialize)]
pub(crate) struct RecordV1<'a> {
    pub(crate) flags: u8,
    pub(crate) topic: u32,
    pub(crate) client: u32,
    pub(crate) delta_ms: u64,
    #[serde(borrow)]
    pub(crate) properties: Option<PropertiesV1<'a>>,
    #[serde(borrow)]
    pub(crate) key: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(crate) source: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(crate) payload: Raw<'a>,
}

/// Properties of a record, version 1. Never edited; see FORMAT.md.
#[derive(Serialize, Deserialize)]
pub(crate) struct PropertiesV1<'a> {
    pub(crate) payload_format: Option<bool>,
    pub(crate) message_expiry_s: Option<u32>,
    #[serde(borrow)]
    pub(crate) content_type: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(crate) response_topic: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(crate) correlation_data: Option<Raw<'a>>,
    #[serde(borrow)]
    pub(crate) user: Vec<(Raw<'a>, Raw<'a>)>,
}

/// Topics and client ids of a batch, version 1. Never edited; see FORMAT.md.
#[derive(Serialize, Deserialize)]
pub(crate) struct DictionaryV1<'a> {
    #[serde(borrow)]
    pub(crate) topics: Vec<Raw<'a>>,
    #[serde(borrow)]
    pub(crate) clients: Vec<Raw<'a>>,
}

impl<'a> PropertiesV1<'a> {
    /// `None` when nothing of them is stored (alias and subscription ids alone).
    fn of(properties: &'a PublishProperties) -> Option<Self> {
        let stored = Self {
            payload_format: properties.payload_format,
            message_expiry_s: properties.message_expiry_s,
            content_type: properties.content_type.as_ref().map(|text| Raw(text.as_bytes())),
            response_topic: properties.response_topic.as_ref().map(|text| Raw(text.as_bytes())),
            correlation_data: properties.correlation_data.as_ref().map(|bytes| Raw(bytes)),
            user: properties.user.iter().map(|(name, value)| (Raw(name.as_bytes()), Raw(value.as_bytes()))).collect(),
        };
        let nothing = stored.payload_format.is_none()
            && stored.message_expiry_s.is_none()
            && stored.content_type.is_none()
            && stored.response_topic.is_none()
            && stored.correlation_data.is_none()
            && stored.user.is_empty();
        (!nothing).then_some(stored)
    }
}

/// Appends what postcard writes to a vector, slices in one copy.
struct Appender<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appender<'_> {
    type Output = ();

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends the postcard form of `value`. Our structs hold only what postcard can write, so it cannot fail.
pub(crate) fn append_postcard<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    let written = postcard::serialize_with_flavor(value, Appender(out));
    debug_assert!(written.is_ok());
}

/// Words of one batch and their numbers.
#[derive(Debug, Default)]
struct Dictionary {
    numbers: HashMap<Bytes, u32, foldhash::fast::FixedState>,
    words: Vec<Bytes>,
    /// Bytes that the words take in the trailer, at most.
    bytes: usize,
    last: u32,
}

impl Dictionary {
    /// The number of a word, and the bytes by which the trailer grew. `own` makes the copy that is kept.
    fn number(&mut self, word: &[u8], own: impl FnOnce() -> Bytes) -> u32 {
        // One sensor after the other, or one publisher in a burst: often the same word again.
        if self.words.get(self.last as usize).is_some_and(|last| *last == word) {
            return self.last;
        }
        self.last = match self.numbers.get(word) {
            Some(number) => *number,
            None => {
                let number = self.words.len() as u32;
                let word = own();
                self.bytes += word.len() + 3;
                self.words.push(word.clone());
                self.numbers.insert(word, number);
                number
            }
        };
        self.last
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.words.clear();
        self.bytes = 0;
        self.last = 0;
    }

    fn raw(&self) -> Vec<Raw<'_>> {
        self.words.iter().map(|word| Raw(word)).collect()
    }
}

/// The batch of one partition in the open group; kept and reused from group to group.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    body: Vec<u8>,
    count: u32,
    base_offset: Offset,
    seq: Seq,
    mono_ms: u64,
    topics: Dictionary,
    clients: Dictionary,
    /// Length of the body when it was last sealed: what to reserve for the next.
    usual: usize,
}

/// Bytes of a text of this length with its varint.
fn text_bound(length: usize) -> usize {
    length + if length < 128 { 1 } else { 3 }
}

/// At most so many bytes does the record add to a group, with a new batch, its dictionary entries and padding.
pub(crate) fn record_bound(record: &NewRecord<'_>) -> usize {
    let publish = record.publish;
    let properties = publish.properties.as_ref().map_or(0, |p| {
        let texts =
            [&p.content_type, &p.response_topic].into_iter().flatten().map(|text| text.len() + 8).sum::<usize>();
        let user = p.user.iter().map(|(name, value)| text_bound(name.len()) + text_bound(value.len())).sum::<usize>();
        texts + user + p.correlation_data.as_ref().map_or(0, |bytes| bytes.len() + 8) + 32
    });
    FRAME_HEADER_BYTES
        + PRELUDE_BYTES
        + FRAME_ALIGN
        + 64
        + publish.topic.len()
        + record.client.len()
        + record.key.map_or(0, |key| key.len())
        + record.source.map_or(0, |source| source.len())
        + properties
        + publish.payload.len()
}

impl OpenBatch {
    /// Whether nothing was appended since it was last sealed.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Records in it.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The frame number that it will have.
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// Offset of its first record.
    pub(crate) fn base_offset(&self) -> Offset {
        self.base_offset
    }

    /// Monotonic ms of its first record.
    pub(crate) fn mono_ms(&self) -> u64 {
        self.mono_ms
    }

    /// Begins a batch.
    pub(crate) fn open(&mut self, seq: Seq, base_offset: Offset, boot: BootId, now: &Now) {
        self.seq = seq;
        self.base_offset = base_offset;
        self.mono_ms = now.mono_ns / 1_000_000;
        self.body.reserve(PRELUDE_BYTES + self.usual + self.usual / 8 + 256);
        let mut prelude = [0u8; PRELUDE_BYTES];
        let wall = if now.wall_ms.is_some() { TIME_WALL } else { 0 };
        let synced = if now.wall_synced { TIME_SYNCED } else { 0 };
        put(&mut prelude, 0, &[BATCH_VERSION, 0, wall | synced, 0]);
        put(&mut prelude, 8, &boot.0);
        put(&mut prelude, 24, &self.mono_ms.to_le_bytes());
        put(&mut prelude, 32, &now.wall_ms.unwrap_or_default().to_le_bytes());
        self.body.extend_from_slice(&prelude);
    }

    /// Adds a record; returns its index. [`OpenBatch::open`] came first.
    pub(crate) fn append(&mut self, record: &NewRecord<'_>, now: &Now) -> u32 {
        let publish = record.publish;
        let topic = self.topics.number(publish.topic.as_bytes(), || publish.topic.bytes().clone());
        let client = self.clients.number(record.client, || Bytes::copy_from_slice(record.client));
        let start = self.body.len();
        self.body.extend_from_slice(&[0; 4]);
        let stored = RecordV1 {
            flags: publish.qos.bits() | if publish.retain { RECORD_RETAIN } else { 0 },
            topic,
            client,
            delta_ms: (now.mono_ns / 1_000_000).saturating_sub(self.mono_ms),
            properties: publish.properties.as_deref().and_then(PropertiesV1::of),
            key: record.key.map(Raw),
            source: record.source.map(Raw),
            payload: Raw(&publish.payload),
        };
        append_postcard(&stored, &mut self.body);
        let length = (self.body.len() - start - 4) as u32;
        put(&mut self.body, start, &length.to_le_bytes());
        self.count += 1;
        self.count - 1
    }

    /// Bytes that its frame would take now, at most; 0 while it is empty.
    pub(crate) fn bytes(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        FRAME_HEADER_BYTES + self.body.len() + self.topics.bytes + self.clients.bytes + 10 + FRAME_ALIGN
    }

    /// Ends the batch: its body with the dictionary behind it. Empty again afterwards.
    pub(crate) fn seal(&mut self) -> Bytes {
        let place = self.body.len() as u32;
        put(&mut self.body, PRELUDE_DICTIONARY, &place.to_le_bytes());
        append_postcard(&DictionaryV1 { topics: self.topics.raw(), clients: self.clients.raw() }, &mut self.body);
        self.topics.clear();
        self.clients.clear();
        self.count = 0;
        self.usual = self.body.len();
        let mut body = std::mem::take(&mut self.body);
        if body.capacity() > 2 * body.len() + 4096 {
            body.shrink_to_fit(); // the tail keeps it for a while
        }
        Bytes::from(body)
    }
}
