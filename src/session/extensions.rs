//! What Forebay adds to MQTT in user properties with the prefix `forebay-`. Plain clients never notice.

use crate::mqtt::properties::{PublishProperties, UserProperties};
use crate::mqtt::{Reason, Text};
use crate::types::Acks;

/// PUBLISH: level of acknowledgement, `0`, `1` or `-1`.
pub const ACKS: &str = "forebay-acks";
/// PUBLISH: partition key instead of the stream's rule.
pub const KEY: &str = "forebay-key";
/// PUBLISH: `<gateway id>/<log id>/<stream>/<partition>/<offset>`, attached by a forwarding peer.
pub const SOURCE: &str = "forebay-source";
/// CONNECT: `1` asks for the source in PUBACK and PUBREC.
pub const ACK_OFFSETS: &str = "forebay-ack-offsets";
/// SUBSCRIBE: replay from here.
pub const FROM: &str = "forebay-from";
/// SUBSCRIBE: deliveries carry the source.
pub const OFFSETS: &str = "forebay-offsets";
/// First level of a filter that asks for replay in MQTT 3.1.1.
pub const REPLAY_PREFIX: &[u8] = b"$replay/";

/// What a publisher asks for beyond MQTT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishExtensions<'p> {
    /// Level of acknowledgement for this message.
    pub acks: Option<Acks>,
    /// Partition key.
    pub key: Option<&'p Text>,
    /// The message comes from a forwarding peer; nothing else is interpreted then.
    pub source: Option<&'p Text>,
}

impl<'p> PublishExtensions<'p> {
    /// Reads them from the properties of a PUBLISH, which stay as they are [MQTT-3.3.2-17]. Of a repeated property the first counts.
    ///
    /// # Errors
    /// [`Reason::IMPLEMENTATION_SPECIFIC`] when `forebay-acks` is anything but `0`, `1` or `-1`: not to be stored.
    pub fn read(properties: Option<&'p PublishProperties>) -> Result<Self, Reason> {
        let Some(properties) = properties.filter(|properties| !properties.user.is_empty()) else {
            return Ok(Self::default());
        };
        if let Some(source) = value(&properties.user, SOURCE) {
            return Ok(Self { source: Some(source), ..Self::default() });
        }
        let acks = match value(&properties.user, ACKS).map(Text::as_bytes) {
            None => None,
            Some(b"0") => Some(Acks::Queued),
            Some(b"1") => Some(Acks::Synced),
            Some(b"-1") => Some(Acks::Replicated),
            Some(_) => return Err(Reason::IMPLEMENTATION_SPECIFIC),
        };
        Ok(Self { acks, key: value(&properties.user, KEY), source: None })
    }
}

/// The value of the first user property of that name.
pub fn value<'p>(properties: &'p UserProperties, name: &str) -> Option<&'p Text> {
    properties.iter().find(|(key, _)| key.as_bytes() == name.as_bytes()).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(pairs: &[(&str, &str)]) -> PublishProperties {
        let user = pairs.iter().map(|(name, value)| (Text::from(*name), Text::from(*value))).collect();
        PublishProperties { user, ..Default::default() }
    }

    #[test]
    fn a_publisher_may_choose_level_and_key() {
        let properties = properties(&[("x", "y"), (ACKS, "-1"), (KEY, "k"), (KEY, "later")]);
        let read = PublishExtensions::read(Some(&properties)).unwrap();
        assert_eq!((read.acks, read.key.map(Text::as_str), read.source), (Some(Acks::Replicated), Some("k"), None));
        assert_eq!(PublishExtensions::read(None), Ok(PublishExtensions::default()));
    }

    #[test]
    fn any_other_level_is_refused() {
        for level in ["2", "", "-2", "+1", "01", "all"] {
            let properties = properties(&[(ACKS, level)]);
            assert_eq!(PublishExtensions::read(Some(&properties)), Err(Reason::IMPLEMENTATION_SPECIFIC), "{level:?}");
        }
    }

    #[test]
    fn nothing_from_a_forwarding_peer_is_interpreted() {
        let properties = properties(&[(ACKS, "nonsense"), (KEY, "k"), (SOURCE, "gw/00/s/0/1")]);
        let read = PublishExtensions::read(Some(&properties)).unwrap();
        assert_eq!((read.acks, read.key, read.source.map(Text::as_str)), (None, None, Some("gw/00/s/0/1")));
    }
}
