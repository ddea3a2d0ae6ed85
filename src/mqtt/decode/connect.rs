//! CONNECT and CONNACK.

use super::reader::Reader;
use super::{DecodeError, properties};
use crate::mqtt::packet::{ConnAck, Connect, QoS, Version, Will};
use crate::mqtt::properties::{ConnAckProperties, ConnectProperties, WillProperties};
use crate::mqtt::reason::Reason;
use crate::mqtt::wire::connect_flag as flag;

/// The version that a CONNECT asks for.
pub(super) struct Asked {
    /// The version, if we speak it.
    pub version: Option<Version>,
    /// The version that an answer is written in.
    pub answer: Version,
}

/// Protocol name and level [MQTT-3.1.2.1]. Another name is another protocol, which gets no answer.
pub(super) fn version(reader: &mut Reader<'_>) -> Result<Asked, DecodeError> {
    let name = reader.raw()?;
    let level = reader.u8()?;
    let asked = |version| Ok(Asked { version: Some(version), answer: version });
    match (name, level) {
        (b"MQTT", 4) => asked(Version::V311),
        (b"MQTT", 5) => asked(Version::V5),
        (b"MQIsdp", 3) => asked(Version::V31),
        // The upper bit marks a bridge of Mosquitto's, which tries again without it if the answer is one that it understands.
        (b"MQTT", _) if level & 0x7F >= 5 => Ok(Asked { version: None, answer: Version::V5 }),
        (b"MQTT" | b"MQIsdp", _) => Ok(Asked { version: None, answer: Version::V311 }),
        _ => Err(DecodeError { reason: Reason::UNSUPPORTED_VERSION, message: "protocol name [MQTT-3.1.2-1]" }),
    }
}

/// What follows the level in a CONNECT [MQTT-3.1].
pub(super) fn connect(reader: &mut Reader<'_>, version: Version) -> Result<Connect, DecodeError> {
    let flags = reader.u8()?;
    judge(flags, version)?;
    let keep_alive_s = reader.u16()?;
    let properties = if version == Version::V5 { properties::connect(reader)? } else { ConnectProperties::default() };
    let client_id = reader.text()?;
    let will = if flags & flag::WILL != 0 { Some(Box::new(will(reader, flags, version)?)) } else { None };
    // 3.1: "the remaining length takes precedence over the user name flag": what is announced may be missing.
    let there = |reader: &Reader<'_>, bit: u8| flags & bit != 0 && !(version == Version::V31 && reader.is_empty());
    let username = if there(reader, flag::USERNAME) { Some(reader.text()?) } else { None };
    let password = if there(reader, flag::PASSWORD) { Some(reader.binary()?) } else { None };
    let clean_start = flags & flag::CLEAN != 0;
    Ok(Connect { version, clean_start, keep_alive_s, client_id, will, username, password, properties })
}

fn judge(flags: u8, version: Version) -> Result<(), DecodeError> {
    let fault = if flags & flag::RESERVED != 0 && version != Version::V31 {
        "reserved flag of CONNECT [MQTT-3.1.2-3]"
    } else if flags & flag::WILL == 0 && flags & (flag::WILL_RETAIN | 3 << flag::WILL_QOS_SHIFT) != 0 {
        "will flags without a will [MQTT-3.1.2-11]"
    } else if version != Version::V5 && flags & flag::PASSWORD != 0 && flags & flag::USERNAME == 0 {
        "password without user name [MQTT-3.1.2-22]"
    } else {
        return Ok(());
    };
    Err(DecodeError::malformed(fault))
}

fn will(reader: &mut Reader<'_>, flags: u8, version: Version) -> Result<Will, DecodeError> {
    let qos = QoS::from_bits(flags >> flag::WILL_QOS_SHIFT & 3)
        .ok_or(DecodeError::malformed("will QoS 3 [MQTT-3.1.2-12]"))?;
    let properties = if version == Version::V5 { properties::will(reader)? } else { WillProperties::default() };
    let topic = reader.topic_not_empty()?;
    let payload = reader.binary()?;
    Ok(Will { topic, payload, qos, retain: flags & flag::WILL_RETAIN != 0, properties })
}

/// CONNACK [MQTT-3.2].
pub(super) fn connack(reader: &mut Reader<'_>, version: Version) -> Result<ConnAck, DecodeError> {
    // A server that speaks only 3.1.1 answers in its own form.
    let old_form = version == Version::V5 && reader.remaining() == 2;
    let flags = reader.u8()?;
    let reason = Reason(reader.u8()?);
    if old_form && reason == Reason(1) {
        return Err(DecodeError { reason: Reason::UNSUPPORTED_VERSION, message: "the server does not speak MQTT 5" });
    }
    // 3.1 has nothing in the first byte.
    let session_present = version != Version::V31 && flags & 1 != 0;
    if version != Version::V31 && flags & !1 != 0 {
        return Err(DecodeError::malformed("reserved flags of CONNACK [MQTT-3.2.2-1]"));
    }
    let known = if version == Version::V5 { reason.in_connack() } else { reason.0 <= 5 };
    if !known {
        return Err(DecodeError::malformed("a reason code that CONNACK does not have [MQTT-3.2.2-8]"));
    }
    if session_present && reason != Reason::SUCCESS {
        return Err(DecodeError::protocol("a session with a refusal [MQTT-3.2.2-6]"));
    }
    let properties = if version == Version::V5 { properties::connack(reader)? } else { ConnAckProperties::default() };
    Ok(ConnAck { session_present, reason, properties })
}
