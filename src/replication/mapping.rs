//! A stored record becomes the publish that goes upstream: mapped topic, remaining expiry, and where it came from.
//!
//! `forebay-source` is always ours, as `<gateway id>/<log id>/<stream>/<partition>/<offset>`: it names the record in the log that
//! the peer receives it from. A record that had itself come from a forwarding peer keeps the first source it ever had as
//! `forebay-origin`. Both are only carried, never interpreted again. `forebay-acks` was a wish to this gateway and ends here. The
//! other properties go on as they came. MQTT 3.1.1 has no room for any of them.

use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, QoS, Text};
use crate::types::{LogId, Offset};
use bytes::Bytes;

/// Name of the user property that names a record for ever.
pub const SOURCE: &str = "forebay-source";
/// Name of the user property with the source at the first gateway, where there were several.
pub const ORIGIN: &str = "forebay-origin";
/// Name of the user property with which a publisher asks for a level of acknowledgement.
const ACKS: &str = "forebay-acks";
/// Bytes of a topic [MQTT-1.5.3].
const TOPIC_BYTES_MAX: usize = 65_535;

/// What the mapping needs of a stored record.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Number of its partition in the stream.
    pub partition: u16,
    /// Its offset.
    pub offset: Offset,
    /// Topic as it was published.
    pub topic: &'a Text,
    /// Retain flag as it was published.
    pub retain: bool,
    /// Properties as they were published.
    pub properties: Option<&'a PublishProperties>,
    /// Source that a forwarding peer attached, if it came from one.
    pub source: Option<&'a Bytes>,
    /// Seconds since it came in, where that is known; else its expiry goes on whole.
    pub age_s: Option<u64>,
    /// Payload.
    pub payload: &'a Bytes,
}

/// Why a record is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// Its message expiry interval has passed [MQTT-3.3.2-5]: pass over it, counted.
    Expired,
    /// Its mapped topic is longer than MQTT can express, or not a topic name: refuse it.
    Topic,
}

/// The mapping of one stream to one upstream.
#[derive(Clone, Debug)]
pub struct Mapper {
    /// The template's parts: text, with the topic between them.
    parts: Vec<String>,
    /// `gateway/log id/stream/`.
    source: String,
    v5: bool,
}

impl Mapper {
    /// For the template of `settings::MqttUpstream::topic`: `{topic}`, `{stream}` and `{gateway}` are filled in.
    pub fn new(template: &str, gateway: &str, log_id: LogId, stream: &str, v5: bool) -> Self {
        let parts = template
            .split("{topic}")
            .map(|part| part.replace("{stream}", stream).replace("{gateway}", gateway))
            .collect();
        Self { parts, source: format!("{gateway}/{log_id}/{stream}/"), v5 }
    }

    /// The publish for a record; QoS, packet id and DUP are the link's to set.
    ///
    /// # Errors
    /// The record has expired, or its mapped topic cannot be sent.
    pub fn map(&self, record: Outgoing<'_>) -> Result<Publish, Unmapped> {
        let expiry = record.properties.and_then(|properties| properties.message_expiry_s);
        let left = match (expiry, record.age_s) {
            (Some(expiry), Some(age)) if age >= u64::from(expiry) => return Err(Unmapped::Expired),
            (Some(expiry), Some(age)) => Some(expiry.saturating_sub(u32::try_from(age).unwrap_or(u32::MAX))),
            (expiry, _) => expiry,
        };
        Ok(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: record.retain,
            topic: self.topic(record.topic)?,
            packet_id: 0,
            properties: self.v5.then(|| Box::new(self.properties(&record, left))),
            payload: record.payload.clone(),
        })
    }

    fn topic(&self, topic: &Text) -> Result<Text, Unmapped> {
        if self.parts.len() == 2 && self.parts.iter().all(String::is_empty) {
            return Ok(topic.clone()); // `{topic}`, the default: nothing is copied
        }
        let mapped = self.parts.join(topic.as_str());
        // A device's topic holds no wildcard, the template was checked: only the length can be wrong. Checked all the same,
        // since what is wrong here would end the connection again and again.
        if mapped.is_empty() || mapped.len() > TOPIC_BYTES_MAX || mapped.contains(['+', '#', '\0']) {
            return Err(Unmapped::Topic);
        }
        Ok(Text::from(mapped))
    }

    fn properties(&self, record: &Outgoing<'_>, message_expiry_s: Option<u32>) -> PublishProperties {
        let mut properties = record.properties.cloned().unwrap_or_default();
        properties.message_expiry_s = message_expiry_s;
        properties.topic_alias = None;
        properties.subscription_ids.clear();
        let first = properties.user.iter().find(|(name, _)| name.as_bytes() == ORIGIN.as_bytes());
        let origin = first
            .map(|(_, value)| value.clone())
            .filter(|_| record.source.is_some())
            .or_else(|| record.source.and_then(|source| Text::new(source.clone())));
        properties.user.retain(|(name, _)| ![SOURCE, ORIGIN, ACKS].iter().any(|own| own.as_bytes() == name.as_bytes()));
        let source = format!("{}{}/{}", self.source, record.partition, record.offset);
        properties.user.push((Text::from_static(SOURCE), Text::from(source)));
        if let Some(origin) = origin {
            properties.user.push((Text::from_static(ORIGIN), origin));
        }
        properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(topic: &'a Text, payload: &'a Bytes, properties: Option<&'a PublishProperties>) -> Outgoing<'a> {
        Outgoing { partition: 2, offset: 41, topic, retain: true, properties, source: None, age_s: Some(10), payload }
    }

    fn mapper(template: &str, v5: bool) -> Mapper {
        Mapper::new(template, "gw-1", LogId([0xAB; 16]), "telemetry", v5)
    }

    fn user(publish: &Publish) -> Vec<(String, String)> {
        let properties = publish.properties.as_ref().unwrap();
        properties.user.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_record_carries_its_place_and_keeps_what_the_device_said() {
        let (topic, payload) = (Text::from("sensors/a"), Bytes::from_static(b"21.5"));
        let properties = PublishProperties {
            content_type: Some(Text::from("text/plain")),
            message_expiry_s: Some(60),
            user: vec![("unit".into(), "C".into()), (ACKS.into(), "1".into()), ("unit".into(), "again".into())],
            ..Default::default()
        };
        let publish =
            mapper("plant7/{stream}/{gateway}/{topic}", true).map(record(&topic, &payload, Some(&properties)));
        let publish = publish.unwrap();
        assert_eq!(publish.topic.as_str(), "plant7/telemetry/gw-1/sensors/a");
        assert!(publish.retain);
        let source = format!("gw-1/{}/telemetry/2/41", "ab".repeat(16));
        let expected = [("unit", "C"), ("unit", "again"), (SOURCE, source.as_str())];
        assert_eq!(user(&publish), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let sent = publish.properties.unwrap();
        assert_eq!(sent.content_type, Some(Text::from("text/plain")));
        assert_eq!(sent.message_expiry_s, Some(50), "what is left of it");
        assert_eq!(publish.payload.as_ptr(), payload.as_ptr(), "the payload is shared, not copied");
    }

    #[test]
    fn expired_records_are_not_sent_and_an_unknown_age_expires_nothing() {
        let (topic, payload) = (Text::from("t"), Bytes::new());
        let properties = PublishProperties { message_expiry_s: Some(10), ..Default::default() };
        let mut old = record(&topic, &payload, Some(&properties));
        for v5 in [true, false] {
            assert_eq!(mapper("{topic}", v5).map(old).unwrap_err(), Unmapped::Expired);
        }
        old.age_s = None;
        let publish = mapper("{topic}", true).map(old).unwrap();
        assert_eq!(publish.properties.unwrap().message_expiry_s, Some(10));
    }

    #[test]
    fn a_foreign_source_is_kept_as_the_origin_over_any_number_of_hops() {
        let (topic, payload) = (Text::from("t"), Bytes::new());
        let source = Bytes::from_static(b"edge/1/s/0/7");
        let came = PublishProperties { user: vec![(SOURCE.into(), "edge/1/s/0/7".into())], ..Default::default() };
        let mut hop = record(&topic, &payload, Some(&came));
        hop.source = Some(&source);
        let first = mapper("{topic}", true).map(hop).unwrap();
        let ours = user(&first)[0].1.clone();
        assert_eq!(user(&first)[1], (ORIGIN.to_owned(), "edge/1/s/0/7".to_owned()));
        let middle = Bytes::from(ours.clone());
        let mut hop = record(&topic, &payload, first.properties.as_deref());
        hop.source = Some(&middle);
        let second = mapper("{topic}", true).map(hop).unwrap();
        assert_eq!(user(&second)[1], (ORIGIN.to_owned(), "edge/1/s/0/7".to_owned()));
        assert_eq!(user(&second).len(), 2);
    }

    #[test]
    fn a_device_cannot_forge_source_or_origin() {
        let (topic, payload) = (Text::from("t"), Bytes::new());
        let forged = PublishProperties {
            user: vec![(SOURCE.into(), "x/y/z/0/0".into()), (ORIGIN.into(), "x/y/z/0/0".into())],
            ..Default::default()
        };
        let publish = mapper("{topic}", true).map(record(&topic, &payload, Some(&forged))).unwrap();
        assert_eq!(user(&publish).len(), 1);
        assert!(user(&publish)[0].1.starts_with("gw-1/"));
    }

    #[test]
    fn mqtt_3_1_1_has_no_room_for_properties_and_a_topic_may_become_too_long() {
        let (topic, payload) = (Text::from("t".repeat(65_000)), Bytes::new());
        let publish = mapper("{topic}", false).map(record(&topic, &payload, None)).unwrap();
        assert_eq!(publish.properties, None);
        let long = format!("{}/{{topic}}", "p".repeat(1_000));
        assert_eq!(mapper(&long, false).map(record(&topic, &payload, None)).unwrap_err(), Unmapped::Topic);
    }
}
