//! What SUBSCRIBE may ask for in this version, filter by filter.

use super::extensions::{FROM, OFFSETS, REPLAY_PREFIX, value};
use crate::limits::TOPIC_LEVELS_MAX;
use crate::mqtt::{QoS, Reason, Subscribe, Version, topic};

/// A subscription that cannot be granted: what stands in SUBACK, and why, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reason code; in MQTT 3.1.1 the only failure code, 0x80 [MQTT-3.9.3-2].
    pub reason: Reason,
    /// Reason string.
    pub text: &'static str,
}

impl Refused {
    /// For this version of the protocol.
    pub fn new(version: Version, reason: Reason, text: &'static str) -> Self {
        let reason = if version == Version::V5 { reason } else { Reason::UNSPECIFIED };
        Self { reason, text }
    }
}

/// Checks the `index`-th filter of a SUBSCRIBE and says what is granted for it [MQTT-3.8.4-6].
///
/// # Errors
/// When it asks for what this version does not have (shared subscriptions, replay), or has too many levels.
pub fn check(version: Version, subscribe: &Subscribe, index: usize) -> Result<QoS, Refused> {
    let refused = |reason, text| Err(Refused::new(version, reason, text));
    let Some((filter, options)) = subscribe.filters.get(index) else {
        return refused(Reason::PROTOCOL_ERROR, "there is no such filter");
    };
    let user = &subscribe.properties.user;
    if value(user, FROM).is_some() || value(user, OFFSETS).is_some() || filter.as_bytes().starts_with(REPLAY_PREFIX) {
        return refused(Reason::IMPLEMENTATION_SPECIFIC, "replay is not supported by this version");
    }
    if topic::is_shared(filter.as_bytes()) {
        return refused(Reason::SHARED_NOT_SUPPORTED, "shared subscriptions are not supported by this version");
    }
    if topic::depth(filter.as_bytes()) > TOPIC_LEVELS_MAX {
        return refused(Reason::TOPIC_FILTER_INVALID, "the filter has more than 128 levels");
    }
    Ok(options.qos)
}

/// The reason code that grants a QoS [MQTT-3.9.3-2].
pub fn granted(qos: QoS) -> Reason {
    Reason(qos.bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::properties::SubscribeProperties;
    use crate::mqtt::{SubscribeOptions, Text};

    fn asked(version: Version, filter: &str, user: &[(&str, &str)]) -> Result<QoS, Reason> {
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..Default::default() };
        let user = user.iter().map(|(name, value)| (Text::from(*name), Text::from(*value))).collect();
        let subscribe = Subscribe {
            packet_id: 1,
            filters: vec![(Text::from(filter), options)],
            properties: SubscribeProperties { subscription_id: None, user },
        };
        check(version, &subscribe, 0).map_err(|refused| refused.reason)
    }

    #[test]
    fn what_is_not_there_yet_is_refused_rather_than_ignored() {
        assert_eq!(asked(Version::V5, "$share/g/a", &[]), Err(Reason(0x9E)));
        assert_eq!(asked(Version::V5, "$replay/earliest/a", &[]), Err(Reason(0x83)));
        assert_eq!(asked(Version::V5, "a", &[(FROM, "earliest")]), Err(Reason(0x83)));
        assert_eq!(asked(Version::V5, "a", &[(OFFSETS, "1")]), Err(Reason(0x83)));
        for filter in ["$share/g/a", "$replay/earliest/a"] {
            assert_eq!(asked(Version::V311, filter, &[]), Err(Reason(0x80)));
        }
    }

    #[test]
    fn the_qos_asked_for_is_granted() {
        assert_eq!(asked(Version::V311, "a/+/#", &[]), Ok(QoS::AtLeastOnce));
        assert_eq!(asked(Version::V5, "$SYS/#", &[("other", "x")]), Ok(QoS::AtLeastOnce));
        assert_eq!(granted(QoS::ExactlyOnce), Reason(2));
        assert_eq!(asked(Version::V5, &"a/".repeat(TOPIC_LEVELS_MAX), &[]), Err(Reason(0x8F)));
    }
}
