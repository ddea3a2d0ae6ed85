//! PUBLISH and its acknowledgements: the hot path. Without properties nothing is allocated, and every byte of a topic is looked at
//! once.

use super::reader::Reader;
use super::{DecodeError, Peer, properties};
use crate::mqtt::packet::{Ack, Publish, QoS};
use crate::mqtt::reason::Reason;

/// [MQTT-3.3]. The flags in `first` were judged with the fixed header.
#[inline]
pub(super) fn publish(first: u8, reader: &mut Reader<'_>, v5: bool, peer: Peer) -> Result<Publish, DecodeError> {
    let qos = QoS::from_bits(first >> 1 & 3).ok_or(DecodeError::malformed("QoS 3 [MQTT-3.3.1-4]"))?;
    let topic = reader.topic()?;
    let packet_id = if qos == QoS::AtMostOnce { 0 } else { reader.packet_id()? };
    let properties = if v5 { properties::publish(reader, peer)? } else { None };
    if topic.is_empty() && properties.as_ref().is_none_or(|p| p.topic_alias.is_none()) {
        return Err(DecodeError::protocol("empty topic name and no alias [MQTT-4.7.3-1]"));
    }
    let payload = reader.take_rest();
    Ok(Publish { dup: first & 0x08 != 0, qos, retain: first & 0x01 != 0, topic, packet_id, properties, payload })
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP [MQTT-3.4] … [MQTT-3.7]: in MQTT 5 the properties may be left out, and the reason too if it is
/// success.
#[inline]
pub(super) fn ack(reader: &mut Reader<'_>, v5: bool, allowed: fn(Reason) -> bool) -> Result<Ack, DecodeError> {
    let packet_id = reader.packet_id()?;
    if !v5 || reader.is_empty() {
        return Ok(Ack::new(packet_id, Reason::SUCCESS));
    }
    let reason = Reason(reader.u8()?);
    if !allowed(reason) {
        return Err(DecodeError::malformed("a reason code that this acknowledgement does not have [MQTT-3.4.2-1]"));
    }
    if reader.is_empty() {
        return Ok(Ack::new(packet_id, reason));
    }
    let properties = properties::ack(reader)?;
    let none = properties.reason_string.is_none() && properties.user.is_empty();
    Ok(Ack { packet_id, reason, properties: (!none).then(|| Box::new(properties)) })
}
