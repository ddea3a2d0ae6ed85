//! Frames between a gateway and its upstream. rumqttc's packets write everything and read what is complicated.
//!
//! Raw frames are looked at first, because rumqttc's v5 decoder eats a whole frame whose inside is short and then asks for more
//! bytes. That hits legal ones: DISCONNECT with a reason and no property length (`e0 01 8b`), or with nothing at all (`e0 00`);
//! and the CONNACK of a peer that speaks only 3.1.1 (`20 02 00 01`), which must become a sentence. Acknowledgements are two bytes
//! of identifier and perhaps a reason, read here without a copy.

use super::connect::Session;
use super::mqtt::DriverConfig;
use crate::limits::UPSTREAM_IN_PACKET_MAX;
use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, QoS, Reason, Text};
use crate::replication::answers::reason_words;
use crate::replication::link::{LinkAck, LinkAckKind};
use bytes::BytesMut;
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;

/// QoS 2 messages in flight to a peer that speaks 3.1.1.
const WINDOW_V311: u16 = 20;

/// What came in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// An acknowledgement of ours.
    Ack(LinkAck),
    /// The peer says why it closes (5.0).
    Disconnect(Reason, Option<String>),
    /// PINGRESP, or a packet of which we make no use: a sign of life.
    Other,
}

/// CONNACK.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub session_present: bool,
    pub receive_maximum: u16,
    pub maximum_packet_size: u32,
    pub retain_available: bool,
    /// Replaces our keep-alive; 0 turns it off.
    pub keep_alive_s: Option<u16>,
}

/// Length of the frame at the front of `input`: header and all. `None`: more bytes are needed.
pub(super) fn frame_len(input: &[u8]) -> Result<Option<(usize, usize)>, String> {
    let mut remaining = 0usize;
    for (index, byte) in input.iter().skip(1).take(4).enumerate() {
        remaining |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            if remaining > UPSTREAM_IN_PACKET_MAX {
                return Err(format!(
                    "the peer sends a packet of {remaining} bytes; at most {UPSTREAM_IN_PACKET_MAX} are taken"
                ));
            }
            let header = index + 2;
            return Ok((input.len() >= header + remaining).then_some((header, header + remaining)));
        }
    }
    if input.len() >= 5 { Err("the peer sends a malformed length".into()) } else { Ok(None) }
}

/// Reads one whole frame.
pub(super) fn read(frame: &[u8], header: usize, v5: bool) -> Result<Incoming, String> {
    let kind = frame.first().copied().unwrap_or_default();
    let body = frame.get(header..).unwrap_or_default();
    let ack = match kind {
        0x40 => LinkAckKind::PubAck,
        0x50 => LinkAckKind::PubRec,
        0x70 => LinkAckKind::PubComp,
        0xE0 if v5 => return Ok(disconnect(frame, body)),
        0xE0 => return Err("the peer sends DISCONNECT, which MQTT 3.1.1 forbids it".into()),
        0x20 => return Err("the peer sends a second CONNACK".into()),
        0xD0 if body.is_empty() => return Ok(Incoming::Other),
        _ if matches!(kind >> 4, 3 | 6 | 9 | 11) => return Ok(Incoming::Other),
        _ => return Err(format!("the peer sends what no server sends (first byte 0x{kind:02x})")),
    };
    let (packet_id, reason) = match *body {
        [high, low] => (u16::from_be_bytes([high, low]), 0),
        [high, low, reason, ..] if v5 => (u16::from_be_bytes([high, low]), reason),
        _ => return Err("the peer sends a malformed acknowledgement".into()),
    };
    Ok(Incoming::Ack(LinkAck { packet_id, kind: ack, reason: Reason(reason) }))
}

/// The words that came with a refusal, if any.
pub(super) fn ack_words(frame: &[u8]) -> Option<String> {
    match v5::Packet::read(&mut BytesMut::from(frame), None).ok()? {
        v5::Packet::PubAck(ack) => ack.properties?.reason_string,
        v5::Packet::PubRec(ack) => ack.properties?.reason_string,
        _ => None,
    }
}

fn disconnect(frame: &[u8], body: &[u8]) -> Incoming {
    let reason = Reason(body.first().copied().unwrap_or_default());
    let words = match v5::Packet::read(&mut BytesMut::from(frame), None) {
        Ok(v5::Packet::Disconnect(packet)) => packet.properties.and_then(|properties| properties.reason_string),
        _ => None, // short, or a code that rumqttc does not know: the code is enough
    };
    Incoming::Disconnect(reason, words)
}

/// Reads the first frame, which must be CONNACK.
///
/// # Errors
/// The reason code that the core acts on, and a sentence.
pub(super) fn connack(frame: &[u8], header: usize, config: &DriverConfig) -> Result<Accepted, (Reason, String)> {
    let body = frame.get(header..).unwrap_or_default();
    let kind = frame.first().copied().unwrap_or_default();
    match (kind, config.v5, body) {
        (0x20, true, [_, _]) => {
            Err((Reason::UNSUPPORTED_VERSION, "the peer speaks only MQTT 3.1.1: set protocol = \"3.1.1\"".into()))
        }
        (0x20, false, [flags, 0]) => Ok(Accepted {
            session_present: flags & 1 == 1,
            // 3.1.1 cannot say how many it takes. Mosquitto 2.0 takes 20 at QoS 2; the 21st it drops, answers with a PUBREC (which
            // has no reason code here) and closes: lost without a word. So not more than that.
            receive_maximum: if config.qos == 2 { WINDOW_V311 } else { u16::MAX },
            maximum_packet_size: u32::MAX,
            retain_available: true,
            keep_alive_s: None,
        }),
        (0x20, false, [_, code]) => Err(refused_v4(*code)),
        (0x20, true, [_, code, ..]) => connack_v5(frame, Reason(*code), config),
        // A 5.0 server that does not take 3.1.1 answers in its own format [MQTT-3.1.2-2].
        (0x20, false, [_, code, ..]) => Err((Reason(*code), reason_words(Reason(*code)))),
        (0xE0, true, _) => match disconnect(frame, body) {
            Incoming::Disconnect(reason, words) => Err((reason, sentence(reason, words))),
            _ => Err((Reason::PROTOCOL_ERROR, "the peer answers CONNECT with something else".into())),
        },
        _ => {
            Err((Reason::PROTOCOL_ERROR, "the peer answers CONNECT with something else: is it an MQTT broker?".into()))
        }
    }
}

fn connack_v5(frame: &[u8], code: Reason, config: &DriverConfig) -> Result<Accepted, (Reason, String)> {
    let packet = v5::Packet::read(&mut BytesMut::from(frame), None);
    let properties = match &packet {
        Ok(v5::Packet::ConnAck(packet)) => packet.properties.clone(),
        _ if code.is_failure() => None, // a code that rumqttc does not know
        _ => return Err((Reason::MALFORMED_PACKET, "the peer's CONNACK is malformed".into())),
    };
    let words = properties.as_ref().and_then(|properties| properties.reason_string.clone());
    if code != Reason::SUCCESS {
        return Err((code, sentence(code, words)));
    }
    if let Some(most) = properties.as_ref().and_then(|properties| properties.max_qos)
        && most < config.qos
    {
        let text = format!("the peer takes QoS {most} at most, the upstream is set to qos = {}", config.qos);
        return Err((Reason::QOS_NOT_SUPPORTED, text));
    }
    Ok(Accepted {
        session_present: matches!(&packet, Ok(v5::Packet::ConnAck(packet)) if packet.session_present),
        receive_maximum: properties.as_ref().and_then(|p| p.receive_max).unwrap_or(u16::MAX),
        maximum_packet_size: properties.as_ref().and_then(|p| p.max_packet_size).unwrap_or(u32::MAX),
        retain_available: properties.as_ref().and_then(|p| p.retain_available) != Some(0),
        keep_alive_s: properties.as_ref().and_then(|p| p.server_keep_alive),
    })
}

/// The return codes of 3.1.1 [MQTT-3.2.2 table 3.1], as reason codes and in words.
fn refused_v4(code: u8) -> (Reason, String) {
    match code {
        1 => (Reason::UNSUPPORTED_VERSION, "the peer does not speak MQTT 3.1.1: set protocol = \"5\"".into()),
        2 => (Reason::CLIENT_ID_NOT_VALID, reason_words(Reason::CLIENT_ID_NOT_VALID)),
        3 => (Reason::SERVER_UNAVAILABLE, reason_words(Reason::SERVER_UNAVAILABLE)),
        4 => (Reason::BAD_USERNAME_OR_PASSWORD, reason_words(Reason::BAD_USERNAME_OR_PASSWORD)),
        5 => (Reason::NOT_AUTHORIZED, reason_words(Reason::NOT_AUTHORIZED)),
        _ => (Reason::UNSPECIFIED, format!("refused with return code {code}")),
    }
}

/// A reason with the peer's own words.
pub(super) fn sentence(reason: Reason, words: Option<String>) -> String {
    match words {
        Some(words) => format!("{}: {words}", reason_words(reason)),
        None => reason_words(reason),
    }
}

/// CONNECT. A kept session outlives the connection: expiry never (5.0), or no clean session.
pub(super) fn write_connect(
    config: &DriverConfig,
    session: Session,
    password: Option<String>,
    out: &mut BytesMut,
) -> Result<(), String> {
    let keep_alive = config.keep_alive.as_millis().div_ceil(1000).min(u128::from(u16::MAX)) as u16;
    let login = (config.username.is_some() || password.is_some())
        .then(|| (config.username.clone().unwrap_or_default(), password.unwrap_or_default()));
    let clean_start = session == Session::Ended;
    let written = if config.v5 {
        let properties = v5::ConnectProperties {
            session_expiry_interval: Some(if clean_start { 0 } else { u32::MAX }),
            max_packet_size: Some(UPSTREAM_IN_PACKET_MAX as u32),
            user_properties: vec![("forebay-forwarder".to_owned(), config.forwarder.clone())],
            ..v5::ConnectProperties::new()
        };
        let client_id = config.client_id.clone();
        let connect = v5::Connect { keep_alive, client_id, clean_start, properties: Some(properties) };
        let login = login.map(|(username, password)| v5::Login { username, password });
        v5::Packet::Connect(connect, None, login).write(out, None).map(drop).map_err(|error| error.to_string())
    } else {
        let mut connect = v4::Connect::new(config.client_id.clone());
        connect.keep_alive = keep_alive;
        connect.clean_session = clean_start;
        connect.login = login.map(|(username, password)| v4::Login { username, password });
        v4::Packet::Connect(connect).write(out, usize::MAX).map(drop).map_err(|error| error.to_string())
    };
    written.map_err(|error| format!("CONNECT cannot be written: {error}"))
}

/// PUBLISH as the core made it; `retain`: the peer keeps retained messages.
pub(super) fn write_publish(publish: Publish, v5: bool, retain: bool, out: &mut BytesMut) -> Result<(), String> {
    let retain = publish.retain && retain;
    let written = if v5 {
        let qos = match publish.qos {
            QoS::AtMostOnce => rumqttc::v5::mqttbytes::QoS::AtMostOnce,
            QoS::AtLeastOnce => rumqttc::v5::mqttbytes::QoS::AtLeastOnce,
            QoS::ExactlyOnce => rumqttc::v5::mqttbytes::QoS::ExactlyOnce,
        };
        let packet = v5::Publish {
            dup: publish.dup,
            qos,
            retain,
            topic: publish.topic.bytes().clone(),
            pkid: publish.packet_id,
            payload: publish.payload,
            properties: publish.properties.map(|properties| publish_properties(*properties)),
        };
        packet.write(out).map(drop).map_err(|error| error.to_string())
    } else {
        let qos = match publish.qos {
            QoS::AtMostOnce => rumqttc::QoS::AtMostOnce,
            QoS::AtLeastOnce => rumqttc::QoS::AtLeastOnce,
            QoS::ExactlyOnce => rumqttc::QoS::ExactlyOnce,
        };
        let mut packet = v4::Publish::from_bytes(publish.topic.as_str(), qos, publish.payload);
        packet.dup = publish.dup;
        packet.retain = retain;
        packet.pkid = publish.packet_id;
        packet.write(out).map(drop).map_err(|error| error.to_string())
    };
    written.map_err(|error| format!("PUBLISH cannot be written: {error}"))
}

fn publish_properties(properties: PublishProperties) -> v5::PublishProperties {
    let string = |text: Text| text.as_str().to_owned();
    v5::PublishProperties {
        payload_format_indicator: properties.payload_format.map(u8::from),
        message_expiry_interval: properties.message_expiry_s,
        topic_alias: None,
        response_topic: properties.response_topic.map(string),
        correlation_data: properties.correlation_data,
        user_properties: properties.user.into_iter().map(|(name, value)| (string(name), string(value))).collect(),
        subscription_identifiers: Vec::new(),
        content_type: properties.content_type.map(string),
    }
}

/// PUBREL.
pub(super) fn write_pubrel(packet_id: u16, v5: bool, out: &mut BytesMut) -> Result<(), String> {
    if v5 {
        v5::PubRel::new(packet_id, None).write(out).map(drop).map_err(|error| error.to_string())
    } else {
        v4::PubRel::new(packet_id).write(out).map(drop).map_err(|error| error.to_string())
    }
}

/// PINGREQ: the same two bytes in both versions.
pub(super) fn write_ping(out: &mut BytesMut) -> Result<(), String> {
    v4::PingReq.write(out).map(drop).map_err(|error| error.to_string())
}

/// DISCONNECT, normal: the session stays.
pub(super) fn write_disconnect(v5: bool, out: &mut BytesMut) -> Result<(), String> {
    if v5 {
        let packet = v5::Disconnect::new(v5::DisconnectReasonCode::NormalDisconnection);
        packet.write(out).map(drop).map_err(|error| error.to_string())
    } else {
        v4::Disconnect.write(out).map(drop).map_err(|error| error.to_string())
    }
}
