//! The property sections of MQTT 5.0 [MQTT-2.2.2]: each property at most once but for user properties and, in PUBLISH from a
//! server, subscription identifiers; only those that belong to the packet.

use super::reader::Reader;
use super::{DecodeError, Peer};
use crate::limits::{SUBSCRIPTION_IDS_MAX, USER_PROPERTIES_DECODED_MAX};
use crate::mqtt::packet::QoS;
use crate::mqtt::properties::{
    AckProperties, AuthProperties, ConnAckProperties, ConnectProperties, DisconnectProperties, PublishProperties,
    SubscribeProperties, UserProperties, WillProperties,
};
use crate::mqtt::reason::Reason;
use crate::mqtt::text::Text;
use crate::mqtt::wire::property as id;

type Result<T> = core::result::Result<T, DecodeError>;

/// Reads one property section, handing each property's identifier to `take`, which reads its value.
fn section<'a>(reader: &mut Reader<'a>, mut take: impl FnMut(u8, &mut Reader<'a>) -> Result<()>) -> Result<()> {
    let len = reader.varint()? as usize;
    let mut part = reader.part(len)?;
    while !part.is_empty() {
        let property = part.u8()?;
        take(property, &mut part)?;
    }
    Ok(())
}

/// Puts a value where none may be yet.
fn once<'a, T>(
    slot: &mut Option<T>,
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
) -> Result<()> {
    if slot.is_some() {
        return Err(DecodeError::protocol("a property that stands twice"));
    }
    *slot = Some(read(reader)?);
    Ok(())
}

fn user(list: &mut UserProperties, reader: &mut Reader<'_>) -> Result<()> {
    if list.len() >= USER_PROPERTIES_DECODED_MAX {
        return Err(DecodeError { reason: Reason::QUOTA_EXCEEDED, message: "more user properties than are taken" });
    }
    let pair = user_pair(reader)?;
    list.push(pair);
    Ok(())
}

fn user_pair(reader: &mut Reader<'_>) -> Result<(Text, Text)> {
    Ok((reader.text()?, reader.text()?))
}

fn subscription_id(reader: &mut Reader<'_>) -> Result<u32> {
    match reader.varint()? {
        0 => Err(DecodeError::protocol("subscription identifier 0 [MQTT-3.8.2.1.2]")),
        value => Ok(value),
    }
}

fn topic_alias(reader: &mut Reader<'_>) -> Result<u16> {
    match reader.u16()? {
        0 => Err(DecodeError { reason: Reason::TOPIC_ALIAS_INVALID, message: "topic alias 0 [MQTT-3.3.2-8]" }),
        value => Ok(value),
    }
}

fn maximum_qos(reader: &mut Reader<'_>) -> Result<QoS> {
    match reader.u8()? {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        _ => Err(DecodeError::protocol("maximum QoS that is neither 0 nor 1 [MQTT-3.2.2.3.4]")),
    }
}

fn foreign<T>() -> Result<T> {
    Err(DecodeError::malformed("a property that is unknown or does not belong to this packet [MQTT-2.2.2.2]"))
}

pub(super) fn connect(reader: &mut Reader<'_>) -> Result<ConnectProperties> {
    let mut p = ConnectProperties::default();
    section(reader, |property, r| match property {
        id::SESSION_EXPIRY => once(&mut p.session_expiry_s, r, Reader::u32),
        id::RECEIVE_MAXIMUM => once(&mut p.receive_maximum, r, Reader::u16_not_zero),
        id::MAXIMUM_PACKET_SIZE => once(&mut p.maximum_packet_size, r, Reader::u32_not_zero),
        id::TOPIC_ALIAS_MAXIMUM => once(&mut p.topic_alias_maximum, r, Reader::u16),
        id::REQUEST_RESPONSE_INFORMATION => once(&mut p.request_response_information, r, Reader::flag),
        id::REQUEST_PROBLEM_INFORMATION => once(&mut p.request_problem_information, r, Reader::flag),
        id::USER => user(&mut p.user, r),
        id::AUTHENTICATION_METHOD => once(&mut p.authentication_method, r, Reader::text),
        id::AUTHENTICATION_DATA => once(&mut p.authentication_data, r, Reader::binary),
        _ => foreign(),
    })?;
    if p.authentication_data.is_some() && p.authentication_method.is_none() {
        return Err(DecodeError::protocol("authentication data without a method [MQTT-3.1.2.11.10]"));
    }
    Ok(p)
}

pub(super) fn will(reader: &mut Reader<'_>) -> Result<WillProperties> {
    let mut p = WillProperties::default();
    section(reader, |property, r| match property {
        id::WILL_DELAY => once(&mut p.delay_s, r, Reader::u32),
        id::PAYLOAD_FORMAT => once(&mut p.payload_format, r, Reader::flag),
        id::MESSAGE_EXPIRY => once(&mut p.message_expiry_s, r, Reader::u32),
        id::CONTENT_TYPE => once(&mut p.content_type, r, Reader::text),
        id::RESPONSE_TOPIC => once(&mut p.response_topic, r, Reader::topic_not_empty),
        id::CORRELATION_DATA => once(&mut p.correlation_data, r, Reader::binary),
        id::USER => user(&mut p.user, r),
        _ => foreign(),
    })?;
    Ok(p)
}

pub(super) fn connack(reader: &mut Reader<'_>) -> Result<ConnAckProperties> {
    let mut p = ConnAckProperties::default();
    section(reader, |property, r| match property {
        id::SESSION_EXPIRY => once(&mut p.session_expiry_s, r, Reader::u32),
        id::RECEIVE_MAXIMUM => once(&mut p.receive_maximum, r, Reader::u16_not_zero),
        id::MAXIMUM_QOS => once(&mut p.maximum_qos, r, maximum_qos),
        id::RETAIN_AVAILABLE => once(&mut p.retain_available, r, Reader::flag),
        id::MAXIMUM_PACKET_SIZE => once(&mut p.maximum_packet_size, r, Reader::u32_not_zero),
        id::ASSIGNED_CLIENT_ID => once(&mut p.assigned_client_id, r, Reader::text),
        id::TOPIC_ALIAS_MAXIMUM => once(&mut p.topic_alias_maximum, r, Reader::u16),
        id::REASON_STRING => once(&mut p.reason_string, r, Reader::text),
        id::USER => user(&mut p.user, r),
        id::WILDCARD_AVAILABLE => once(&mut p.wildcard_available, r, Reader::flag),
        id::SUBSCRIPTION_IDS_AVAILABLE => once(&mut p.subscription_ids_available, r, Reader::flag),
        id::SHARED_AVAILABLE => once(&mut p.shared_available, r, Reader::flag),
        id::SERVER_KEEP_ALIVE => once(&mut p.server_keep_alive_s, r, Reader::u16),
        id::RESPONSE_INFORMATION => once(&mut p.response_information, r, Reader::text),
        id::SERVER_REFERENCE => once(&mut p.server_reference, r, Reader::text),
        id::AUTHENTICATION_METHOD => once(&mut p.authentication_method, r, Reader::text),
        id::AUTHENTICATION_DATA => once(&mut p.authentication_data, r, Reader::binary),
        _ => foreign(),
    })?;
    Ok(p)
}

/// `None` if there are none: the usual case costs nothing.
pub(super) fn publish(reader: &mut Reader<'_>, peer: Peer) -> Result<Option<Box<PublishProperties>>> {
    if reader.starts_with_zero() {
        reader.u8()?;
        return Ok(None);
    }
    let mut p = Box::<PublishProperties>::default();
    section(reader, |property, r| match property {
        id::PAYLOAD_FORMAT => once(&mut p.payload_format, r, Reader::flag),
        id::MESSAGE_EXPIRY => once(&mut p.message_expiry_s, r, Reader::u32),
        id::TOPIC_ALIAS => once(&mut p.topic_alias, r, topic_alias),
        id::RESPONSE_TOPIC => once(&mut p.response_topic, r, Reader::topic_not_empty),
        id::CORRELATION_DATA => once(&mut p.correlation_data, r, Reader::binary),
        id::USER => user(&mut p.user, r),
        id::SUBSCRIPTION_ID if peer == Peer::Client => {
            Err(DecodeError::protocol("subscription identifier in a client's PUBLISH [MQTT-3.3.4-6]"))
        }
        id::SUBSCRIPTION_ID if p.subscription_ids.len() >= SUBSCRIPTION_IDS_MAX => {
            Err(DecodeError { reason: Reason::QUOTA_EXCEEDED, message: "more subscription identifiers than are taken" })
        }
        id::SUBSCRIPTION_ID => {
            p.subscription_ids.push(subscription_id(r)?);
            Ok(())
        }
        id::CONTENT_TYPE => once(&mut p.content_type, r, Reader::text),
        _ => foreign(),
    })?;
    Ok(Some(p))
}

/// Of PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
pub(super) fn ack(reader: &mut Reader<'_>) -> Result<AckProperties> {
    let mut p = AckProperties::default();
    section(reader, |property, r| match property {
        id::REASON_STRING => once(&mut p.reason_string, r, Reader::text),
        id::USER => user(&mut p.user, r),
        _ => foreign(),
    })?;
    Ok(p)
}

pub(super) fn subscribe(reader: &mut Reader<'_>) -> Result<SubscribeProperties> {
    let mut p = SubscribeProperties::default();
    section(reader, |property, r| match property {
        id::SUBSCRIPTION_ID => once(&mut p.subscription_id, r, subscription_id),
        id::USER => user(&mut p.user, r),
        _ => foreign(),
    })?;
    Ok(p)
}

pub(super) fn unsubscribe(reader: &mut Reader<'_>) -> Result<UserProperties> {
    let mut list = UserProperties::new();
    section(reader, |property, r| match property {
        id::USER => user(&mut list, r),
        _ => foreign(),
    })?;
    Ok(list)
}

/// The session expiry is taken from either side, though only a client may send it [MQTT-3.14.2-2]: the connection ends with this
/// packet, and to refuse it would only lose its reason.
pub(super) fn disconnect(reader: &mut Reader<'_>) -> Result<DisconnectProperties> {
    let mut p = DisconnectProperties::default();
    section(reader, |property, r| match property {
        id::SESSION_EXPIRY => once(&mut p.session_expiry_s, r, Reader::u32),
        id::REASON_STRING => once(&mut p.reason_string, r, Reader::text),
        id::USER => user(&mut p.user, r),
        id::SERVER_REFERENCE => once(&mut p.server_reference, r, Reader::text),
        _ => foreign(),
    })?;
    Ok(p)
}

pub(super) fn auth(reader: &mut Reader<'_>) -> Result<AuthProperties> {
    let mut p = AuthProperties::default();
    section(reader, |property, r| match property {
        id::AUTHENTICATION_METHOD => once(&mut p.authentication_method, r, Reader::text),
        id::AUTHENTICATION_DATA => once(&mut p.authentication_data, r, Reader::binary),
        id::REASON_STRING => once(&mut p.reason_string, r, Reader::text),
        id::USER => user(&mut p.user, r),
        _ => foreign(),
    })?;
    Ok(p)
}
