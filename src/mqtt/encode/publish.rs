//! PUBLISH: the hot path.

use super::packet_id;
use super::sink::{Layout, Sink};
use crate::mqtt::packet::{Publish, QoS};
use crate::mqtt::wire::kind;

/// Type, DUP, QoS, RETAIN. DUP is for QoS 1 and 2 only [MQTT-3.3.1-2].
#[inline]
pub(super) fn first_byte(publish: &Publish) -> u8 {
    let dup = publish.dup && publish.qos != QoS::AtMostOnce;
    kind::PUBLISH << 4 | u8::from(dup) << 3 | publish.qos.bits() << 1 | u8::from(publish.retain)
}

/// What follows the fixed header [MQTT-3.3.2].
pub(super) struct Body<'a> {
    pub publish: &'a Publish,
    pub v5: bool,
}

impl Layout for Body<'_> {
    #[inline]
    fn put<S: Sink>(&self, sink: &mut S) {
        let publish = self.publish;
        let properties = publish.properties.as_deref().filter(|_| self.v5);
        if publish.topic.is_empty() && properties.is_none_or(|p| p.topic_alias.is_none()) {
            sink.refuse("empty topic name and no alias");
        }
        sink.text(&publish.topic);
        if publish.qos != QoS::AtMostOnce {
            packet_id(publish.packet_id, sink);
        }
        match properties {
            Some(properties) => sink.section(properties),
            None if self.v5 => sink.u8(0),
            None => {}
        }
        sink.bytes(&publish.payload);
    }
}
