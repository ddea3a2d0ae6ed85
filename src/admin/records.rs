//! A stored record as the line of JSON that `tail`, `sub` and the API print.

use super::from;
use crate::limits::ADMIN_RECORDS_BYTES_MAX;
use crate::log::record::StoredRecord;
use crate::mqtt::Text;
use crate::types::LogPosition;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The user property that carries a record's source through MQTT 5.
pub const SOURCE_PROPERTY: &str = "forebay-source";

/// One record. Fields that are not known are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line<'a> {
    /// Stream name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<Cow<'a, str>>,
    /// Partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u16>,
    /// Offset in the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Log id, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_id: Option<Cow<'a, str>>,
    /// Ingest time, ms since 1970 (UTC), as the wall clock said then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts_ms: Option<i64>,
    /// Topic.
    pub topic: Cow<'a, str>,
    /// QoS at which it was published (or delivered, in `sub`).
    pub qos: u8,
    /// Client identifier of the publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Cow<'a, str>>,
    /// Where it came from, if a forwarding peer said so: `<gateway id>/<log id>/<stream>/<partition>/<offset>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Cow<'a, str>>,
    /// Payload, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Cow<'a, str>>,
    /// Payload in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_b64: Option<Cow<'a, str>>,
}

impl<'a> Line<'a> {
    /// Of a message alone.
    pub fn message(topic: &'a str, qos: u8, payload: &'a [u8]) -> Self {
        let (text, b64) = match core::str::from_utf8(payload) {
            Ok(text) => (Some(Cow::Borrowed(text)), None),
            Err(_) => (None, Some(Cow::Owned(base64(payload)))),
        };
        Self { topic: Cow::Borrowed(topic), qos, payload: text, payload_b64: b64, ..Self::default() }
    }

    /// Of a record of `stream` in the log `log_id`.
    pub fn record(record: &'a StoredRecord, stream: &'a str, log_id: &'a str) -> Self {
        Self {
            stream: Some(Cow::Borrowed(stream)),
            partition: Some(record.partition.partition),
            offset: Some(record.offset),
            log_id: Some(Cow::Borrowed(log_id)),
            ts_ms: record.ingest.wall_ms,
            client: Some(Cow::Borrowed(record.client.as_str())),
            source: source(record).map(Cow::Borrowed),
            ..Self::message(record.topic.as_str(), record.qos.bits(), &record.payload)
        }
    }

    /// Fills in what a source names.
    pub fn with_source(mut self, source: &'a str) -> Self {
        if let Some(named) = Source::parse(source) {
            self.stream = Some(Cow::Borrowed(named.stream));
            self.partition = Some(named.partition);
            self.offset = Some(named.offset);
            self.log_id = Some(Cow::Borrowed(named.log_id));
        }
        self.source = Some(Cow::Borrowed(source));
        self
    }

    /// The line, with its end.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(&mut *out, self)?;
        out.push(b'\n');
        Ok(())
    }
}

/// The answer to a question for records: a line each, and last where to read on. Ends early, at the first record that does not fit
/// any more.
pub fn page(
    records: &[StoredRecord],
    next: LogPosition,
    limit: usize,
    stream: &str,
    log_id: &str,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = Vec::new();
    let mut next = next;
    for (count, record) in records.iter().enumerate() {
        if count == limit || body.len() > ADMIN_RECORDS_BYTES_MAX {
            next = record.position;
            break;
        }
        Line::record(record, stream, log_id).write(&mut body)?;
    }
    serde_json::to_writer(&mut body, &Next { next: Cow::Owned(from::write_position(next)) })?;
    body.push(b'\n');
    Ok(body)
}

/// The last line of a page.
#[derive(Debug, Serialize, Deserialize)]
pub struct Next<'a> {
    /// Where to read on, as `from=` takes it.
    pub next: Cow<'a, str>,
}

fn source(record: &StoredRecord) -> Option<&str> {
    let stored = record.source.as_deref().and_then(|source| core::str::from_utf8(source).ok());
    let property = || {
        let user = &record.properties.as_ref()?.user;
        user.iter()
            .find(|(name, _)| name.as_bytes() == SOURCE_PROPERTY.as_bytes())
            .map(|(_, value)| Text::as_str(value))
    };
    stored.or_else(property)
}

/// The parts of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source<'a> {
    /// Gateway id.
    pub gateway: &'a str,
    /// Log id, hexadecimal.
    pub log_id: &'a str,
    /// Stream name.
    pub stream: &'a str,
    /// Partition.
    pub partition: u16,
    /// Offset.
    pub offset: u64,
}

impl<'a> Source<'a> {
    /// Reads `<gateway id>/<log id>/<stream>/<partition>/<offset>`; a gateway id may hold slashes, the rest cannot.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.rsplitn(5, '/');
        let offset = parts.next()?.parse().ok()?;
        let partition = parts.next()?.parse().ok()?;
        let stream = parts.next()?;
        let log_id = parts.next()?;
        let gateway = parts.next()?;
        Some(Self { gateway, log_id, stream, partition, offset })
    }
}

/// Standard base64 with padding [RFC 4648 §4].
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = ALPHABET.get((three >> (18 - 6 * place)) as usize & 63);
            out.push(if place > chunk.len() { '=' } else { letter.map_or('=', |letter| char::from(*letter)) });
        }
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::mqtt::QoS;
    use crate::mqtt::properties::PublishProperties;
    use crate::types::{IngestTime, LogPosition, PartitionId, StreamId};
    use bytes::Bytes;

    pub(crate) fn record(seq: u64, offset: u64, payload: &'static [u8]) -> StoredRecord {
        StoredRecord {
            partition: PartitionId { stream: StreamId(3), partition: 1 },
            offset,
            position: LogPosition { seq, index: 0 },
            topic: Text::from("sensors/a/temperature"),
            client: Text::from("thermo-1"),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            key: None,
            source: None,
            ingest: IngestTime { wall_ms: Some(1_796_112_000_000), ..IngestTime::default() },
            payload: Bytes::from_static(payload),
        }
    }

    fn line(record: &StoredRecord) -> String {
        let mut out = Vec::new();
        Line::record(record, "telemetry", "0af1").write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_is_one_line_with_the_names_of_the_surface() {
        assert_eq!(
            line(&record(9, 41, b"{\"v\":1}\n")),
            "{\"stream\":\"telemetry\",\"partition\":1,\"offset\":41,\"log_id\":\"0af1\",\"ts_ms\":1796112000000,\
             \"topic\":\"sensors/a/temperature\",\"qos\":1,\"client\":\"thermo-1\",\"payload\":\"{\\\"v\\\":1}\\n\"}\n"
        );
    }

    #[test]
    fn a_payload_that_is_not_text_is_base64() {
        let json = line(&record(9, 41, &[0xff, 0x00, 0x10]));
        assert!(json.contains("\"payload_b64\":\"/wAQ\"") && !json.contains("\"payload\":"), "{json}");
    }

    #[test]
    fn a_source_is_shown_whether_stored_apart_or_as_a_property() {
        let mut apart = record(1, 1, b"x");
        apart.source = Some(Bytes::from_static(b"gw/ab/s/0/7"));
        let mut property = record(1, 1, b"x");
        let user = vec![(Text::from(SOURCE_PROPERTY), Text::from("gw/ab/s/0/7"))];
        property.properties = Some(Box::new(PublishProperties { user, ..PublishProperties::default() }));
        for record in [apart, property] {
            assert!(line(&record).contains("\"source\":\"gw/ab/s/0/7\""));
        }
    }

    #[test]
    fn a_source_is_read_from_its_end() {
        let source = Source::parse("plant/7/00ff/edge/2/18446744073709551615").unwrap();
        assert_eq!((source.gateway, source.log_id, source.stream), ("plant/7", "00ff", "edge"));
        assert_eq!((source.partition, source.offset), (2, u64::MAX));
        assert_eq!(Source::parse("00ff/edge/2/1"), None);
        assert_eq!(Source::parse("gw/00ff/edge/2/x"), None);
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in cases {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
