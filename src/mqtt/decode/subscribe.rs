//! SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK.

use super::reader::Reader;
use super::{DecodeError, properties};
use crate::limits::FILTERS_PER_PACKET_MAX;
use crate::mqtt::packet::{QoS, SubAck, Subscribe, SubscribeOptions, Unsubscribe};
use crate::mqtt::properties::{AckProperties, SubscribeProperties, UserProperties};
use crate::mqtt::reason::Reason;
use crate::mqtt::topic;
use crate::mqtt::wire::subscribe_option as option;

const TOO_MANY: DecodeError =
    DecodeError { reason: Reason::QUOTA_EXCEEDED, message: "more filters than are taken in one packet" };

/// [MQTT-3.8].
pub(super) fn subscribe(reader: &mut Reader<'_>, v5: bool) -> Result<Subscribe, DecodeError> {
    let packet_id = reader.packet_id()?;
    let properties = if v5 { properties::subscribe(reader)? } else { SubscribeProperties::default() };
    if reader.is_empty() {
        return Err(DecodeError::protocol("SUBSCRIBE without a filter [MQTT-3.8.3-2]"));
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        if filters.len() >= FILTERS_PER_PACKET_MAX {
            return Err(TOO_MANY);
        }
        let filter = reader.filter(v5)?;
        let options = options(reader.u8()?, v5)?;
        if options.no_local && topic::is_shared(filter.as_bytes()) {
            return Err(DecodeError::protocol("no local on a shared subscription [MQTT-3.8.3-4]"));
        }
        filters.push((filter, options));
    }
    Ok(Subscribe { packet_id, filters, properties })
}

/// The byte after a filter [MQTT-3.8.3.1]; in 3.1.1 it has only the QoS [MQTT-3-8].
fn options(byte: u8, v5: bool) -> Result<SubscribeOptions, DecodeError> {
    let reserved = if v5 { option::RESERVED } else { !option::QOS_MASK };
    if byte & reserved != 0 {
        return Err(DecodeError::malformed("reserved bits of the subscription options [MQTT-3.8.3-5]"));
    }
    let qos = QoS::from_bits(byte & option::QOS_MASK).ok_or(DecodeError::protocol("QoS 3 [MQTT-3.8.3.1]"))?;
    let retain_handling = byte >> option::RETAIN_HANDLING_SHIFT & option::RETAIN_HANDLING_MASK;
    if retain_handling == 3 {
        return Err(DecodeError::protocol("retain handling 3 [MQTT-3.8.3.1]"));
    }
    let no_local = byte & option::NO_LOCAL != 0;
    let retain_as_published = byte & option::RETAIN_AS_PUBLISHED != 0;
    Ok(SubscribeOptions { qos, no_local, retain_as_published, retain_handling })
}

/// [MQTT-3.9].
pub(super) fn suback(reader: &mut Reader<'_>, v5: bool) -> Result<SubAck, DecodeError> {
    let packet_id = reader.packet_id()?;
    let properties = if v5 { properties::ack(reader)? } else { AckProperties::default() };
    let allowed = if v5 { Reason::in_suback } else { |reason: Reason| matches!(reason.0, 0..=2 | 0x80) };
    Ok(SubAck { packet_id, reasons: reasons(reader, allowed)?, properties })
}

/// [MQTT-3.11]. In 3.1.1 it has nothing but the identifier.
pub(super) fn unsuback(reader: &mut Reader<'_>, v5: bool) -> Result<SubAck, DecodeError> {
    let packet_id = reader.packet_id()?;
    if !v5 {
        return Ok(SubAck { packet_id, reasons: Vec::new(), properties: AckProperties::default() });
    }
    let properties = properties::ack(reader)?;
    Ok(SubAck { packet_id, reasons: reasons(reader, Reason::in_unsuback)?, properties })
}

/// One reason per filter of the request, of which there is at least one.
fn reasons(reader: &mut Reader<'_>, allowed: fn(Reason) -> bool) -> Result<Vec<Reason>, DecodeError> {
    if reader.is_empty() {
        return Err(DecodeError::protocol("no reason code at all [MQTT-3.8.4-6]"));
    }
    let mut reasons = Vec::with_capacity(reader.remaining());
    while !reader.is_empty() {
        let reason = Reason(reader.u8()?);
        if !allowed(reason) {
            return Err(DecodeError::malformed("a reason code that this acknowledgement does not have [MQTT-3.9.3-2]"));
        }
        reasons.push(reason);
    }
    Ok(reasons)
}

/// [MQTT-3.10].
pub(super) fn unsubscribe(reader: &mut Reader<'_>, v5: bool) -> Result<Unsubscribe, DecodeError> {
    let packet_id = reader.packet_id()?;
    let user = if v5 { properties::unsubscribe(reader)? } else { UserProperties::new() };
    if reader.is_empty() {
        return Err(DecodeError::protocol("UNSUBSCRIBE without a filter [MQTT-3.10.3-2]"));
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        if filters.len() >= FILTERS_PER_PACKET_MAX {
            return Err(TOO_MANY);
        }
        filters.push(reader.filter(v5)?);
    }
    Ok(Unsubscribe { packet_id, filters, user })
}
