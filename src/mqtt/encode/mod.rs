//! Packets to bytes, in the shortest form that the standard allows.
//!
//! The layout of each packet is written down once, against `sink::Sink`: a first pass counts and judges, a second writes. So a
//! length never disagrees with what follows it, and nothing is written of a packet that cannot be.
//!
//! What a strict peer would refuse to read is refused here: identifiers and properties of 0 where 0 is not allowed, reason codes
//! of another packet, texts that are too long, and, in 3.1.1, what it has no words for (a refusal in PUBACK must not turn into a
//! success). Which side may send what is the caller's to know: the session expiry in DISCONNECT and subscription identifiers in
//! PUBLISH belong to one side only.

mod connect;
mod properties;
mod publish;
mod sink;
mod subscribe;

use super::packet::{Ack, Auth, Disconnect, Packet, Publish, Version};
use super::reason::Reason;
use super::wire::{kind, varint_len};
use crate::limits::REMAINING_LENGTH_MAX;
use core::fmt;
use sink::{Counter, Layout, Sink};

/// Why a packet cannot be written. The output is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// Larger than MQTT can express, or than the peer takes [MQTT-3.1.2-24].
    TooLarge,
    /// The version has no way to say it, or forbids it.
    Forbidden(&'static str),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the packet is too large"),
            Self::Forbidden(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for EncodeError {}

/// Appends a packet to `out`.
///
/// # Errors
/// It is too large for MQTT, or must not be sent in this version; `out` is unchanged.
pub fn encode(packet: &Packet, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match packet {
        Packet::Publish(publish) => encode_publish(publish, version, out),
        _ => write(first_byte(packet), &Body { packet, version }, out),
    }
}

/// Appends a packet to `out` if it is not larger than the peer takes: `max_packet_size` bytes, header included. What is only for
/// people (reason string, user properties of packets that are no messages) is left out if that helps [MQTT-3.2.2-19]
/// [MQTT-3.2.2-20] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.14.2-3] [MQTT-3.14.2-4].
///
/// # Errors
/// As [`encode`]; `TooLarge` also if it is larger than the peer takes, so that it must not be sent [MQTT-3.1.2-24].
pub fn encode_within(
    packet: &Packet,
    version: Version,
    max_packet_size: u32,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    if encoded_len(packet, version) <= max_packet_size as usize {
        return encode(packet, version, out);
    }
    if !packet.has_diagnostics() {
        return Err(EncodeError::TooLarge);
    }
    let bare = packet.clone().without_diagnostics();
    if encoded_len(&bare, version) > max_packet_size as usize {
        return Err(EncodeError::TooLarge);
    }
    encode(&bare, version, out)
}

/// Bytes that [`encode`] would append, if it can.
pub fn encoded_len(packet: &Packet, version: Version) -> usize {
    match packet {
        Packet::Publish(publish) => publish_len(publish, version),
        _ => packet_len(&Body { packet, version }),
    }
}

/// Bytes that [`encode_publish`] would append, if it can.
pub fn publish_len(publish: &Publish, version: Version) -> usize {
    packet_len(&publish::Body { publish, v5: version == Version::V5 })
}

/// Appends a PUBLISH to `out` [MQTT-3.3].
///
/// # Errors
/// It is too large for MQTT, or must not be sent in this version; `out` is unchanged.
#[inline]
pub fn encode_publish(publish: &Publish, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let first = publish::first_byte(publish);
    write(first, &publish::Body { publish, v5: version == Version::V5 }, out)
}

fn packet_len(body: &impl Layout) -> usize {
    let counted = Counter::of(body);
    1 + varint_len(counted.bytes) + counted.bytes
}

#[inline]
fn write(first: u8, body: &impl Layout, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let counted = Counter::of(body);
    if let Some(fault) = counted.fault {
        return Err(fault);
    }
    if counted.bytes > REMAINING_LENGTH_MAX as usize {
        return Err(EncodeError::TooLarge);
    }
    out.reserve(1 + varint_len(counted.bytes) + counted.bytes);
    out.push(first);
    out.varint(counted.bytes);
    body.put(out);
    Ok(())
}

/// Type and flags [MQTT-2.1.2] [MQTT-2.1.3-1].
fn first_byte(packet: &Packet) -> u8 {
    let (kind, flags) = match packet {
        Packet::Connect(_) => (kind::CONNECT, 0),
        Packet::ConnAck(_) => (kind::CONNACK, 0),
        Packet::Publish(publish) => return publish::first_byte(publish),
        Packet::PubAck(_) => (kind::PUBACK, 0),
        Packet::PubRec(_) => (kind::PUBREC, 0),
        Packet::PubRel(_) => (kind::PUBREL, 2),
        Packet::PubComp(_) => (kind::PUBCOMP, 0),
        Packet::Subscribe(_) => (kind::SUBSCRIBE, 2),
        Packet::SubAck(_) => (kind::SUBACK, 0),
        Packet::Unsubscribe(_) => (kind::UNSUBSCRIBE, 2),
        Packet::UnsubAck(_) => (kind::UNSUBACK, 0),
        Packet::PingReq => (kind::PINGREQ, 0),
        Packet::PingResp => (kind::PINGRESP, 0),
        Packet::Disconnect(_) => (kind::DISCONNECT, 0),
        Packet::Auth(_) => (kind::AUTH, 0),
    };
    kind << 4 | flags
}

/// What follows the fixed header.
struct Body<'a> {
    packet: &'a Packet,
    version: Version,
}

impl Layout for Body<'_> {
    #[inline]
    fn put<S: Sink>(&self, sink: &mut S) {
        let version = self.version;
        let v5 = version == Version::V5;
        match self.packet {
            Packet::Connect(connect) => connect::connect(connect, version, sink),
            Packet::ConnAck(connack) => connect::connack(connack, version, sink),
            Packet::Publish(publish) => publish::Body { publish, v5 }.put(sink),
            Packet::PubAck(ack) | Packet::PubRec(ack) => {
                if !v5 && ack.reason.is_failure() {
                    sink.refuse("3.1.1 cannot refuse a message in an acknowledgement");
                }
                acknowledge(ack, v5, Reason::in_publish_ack, sink);
            }
            Packet::PubRel(ack) | Packet::PubComp(ack) => acknowledge(ack, v5, Reason::in_release, sink),
            Packet::Subscribe(subscribe) => subscribe::subscribe(subscribe, v5, sink),
            Packet::SubAck(suback) => subscribe::suback(suback, v5, sink),
            Packet::Unsubscribe(unsubscribe) => subscribe::unsubscribe(unsubscribe, v5, sink),
            Packet::UnsubAck(unsuback) => subscribe::unsuback(unsuback, v5, sink),
            Packet::PingReq | Packet::PingResp => {}
            Packet::Disconnect(disconnect) => closing(disconnect, v5, sink),
            Packet::Auth(auth) => authenticate(auth, v5, sink),
        }
    }
}

/// A packet identifier: not 0 [MQTT-2.2.1-3] [MQTT-2.3.1-1].
fn packet_id<S: Sink>(id: u16, sink: &mut S) {
    if id == 0 {
        sink.refuse("packet identifier 0");
    }
    sink.u16(id);
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP: two bytes, or three, or with properties [MQTT-3.4.2.1]. 3.1.1 has only the identifier.
#[inline]
fn acknowledge<S: Sink>(ack: &Ack, v5: bool, allowed: fn(Reason) -> bool, sink: &mut S) {
    packet_id(ack.packet_id, sink);
    let properties = ack.properties.as_deref().filter(|p| p.reason_string.is_some() || !p.user.is_empty());
    if !v5 || (ack.reason == Reason::SUCCESS && properties.is_none()) {
        return;
    }
    if !allowed(ack.reason) {
        sink.refuse("a reason code that this acknowledgement does not have");
    }
    sink.u8(ack.reason.0);
    if let Some(properties) = properties {
        sink.section(properties);
    }
}

/// DISCONNECT [MQTT-3.14]. In 3.1.1 it is a client's good-bye and says nothing else.
fn closing<S: Sink>(disconnect: &Disconnect, v5: bool, sink: &mut S) {
    let Disconnect { reason, properties: p } = disconnect;
    if !v5 {
        if *reason != Reason::SUCCESS {
            sink.refuse("3.1.1 has no reason in DISCONNECT");
        }
        return;
    }
    if !reason.in_disconnect() {
        sink.refuse("a reason code that DISCONNECT does not have");
    }
    if p.session_expiry_s.is_some() && p.server_reference.is_some() {
        sink.refuse("a session expiry is the client's to send, a server reference the server's");
    }
    let bare =
        p.session_expiry_s.is_none() && p.reason_string.is_none() && p.user.is_empty() && p.server_reference.is_none();
    if *reason == Reason::SUCCESS && bare {
        return;
    }
    sink.u8(reason.0);
    if !bare {
        sink.section(p);
    }
}

/// AUTH [MQTT-3.15].
fn authenticate<S: Sink>(auth: &Auth, v5: bool, sink: &mut S) {
    let Auth { reason, properties: p } = auth;
    if !v5 {
        sink.refuse("AUTH is of MQTT 5");
    }
    if !reason.in_auth() {
        sink.refuse("a reason code that AUTH does not have");
    }
    let bare = p.authentication_method.is_none() && p.authentication_data.is_none() && p.reason_string.is_none();
    if *reason == Reason::SUCCESS && bare && p.user.is_empty() {
        return;
    }
    if p.authentication_method.is_none() {
        sink.refuse("AUTH without a method");
    }
    sink.u8(reason.0);
    sink.section(p);
}

#[cfg(test)]
mod tests;
