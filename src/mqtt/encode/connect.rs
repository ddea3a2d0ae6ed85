//! CONNECT and CONNACK.

use super::sink::Sink;
use crate::mqtt::packet::{ConnAck, Connect, Version};
use crate::mqtt::wire::connect_flag as flag;

/// [MQTT-3.1]. Written in the version that it asks for; that of the connection must be the same.
pub(super) fn connect<S: Sink>(connect: &Connect, version: Version, sink: &mut S) {
    if connect.version != version {
        sink.refuse("a CONNECT of another version");
    }
    let v5 = version == Version::V5;
    if !v5 && connect.password.is_some() && connect.username.is_none() {
        sink.refuse("3.1.1 has no password without user name");
    }
    let (name, level) = match version {
        Version::V31 => (b"MQIsdp".as_slice(), 3),
        Version::V311 => (b"MQTT".as_slice(), 4),
        Version::V5 => (b"MQTT".as_slice(), 5),
    };
    sink.field(name);
    sink.u8(level);
    sink.u8(flags(connect));
    sink.u16(connect.keep_alive_s);
    if v5 {
        sink.section(&connect.properties);
    }
    sink.text(&connect.client_id);
    if let Some(will) = &connect.will {
        if will.topic.is_empty() {
            sink.refuse("empty will topic");
        }
        if v5 {
            sink.section(&will.properties);
        }
        sink.text(&will.topic);
        sink.field(&will.payload);
    }
    if let Some(username) = &connect.username {
        sink.text(username);
    }
    if let Some(password) = &connect.password {
        sink.field(password);
    }
}

fn flags(connect: &Connect) -> u8 {
    let mut flags = 0;
    let mut set = |bit: u8, on: bool| flags |= if on { bit } else { 0 };
    set(flag::CLEAN, connect.clean_start);
    set(flag::USERNAME, connect.username.is_some());
    set(flag::PASSWORD, connect.password.is_some());
    if let Some(will) = &connect.will {
        set(flag::WILL, true);
        set(will.qos.bits() << flag::WILL_QOS_SHIFT, true);
        set(flag::WILL_RETAIN, will.retain);
    }
    flags
}

/// [MQTT-3.2]. 3.1 has no session present.
pub(super) fn connack<S: Sink>(connack: &ConnAck, version: Version, sink: &mut S) {
    let v5 = version == Version::V5;
    let known = if v5 { connack.reason.in_connack() } else { connack.reason.0 <= 5 };
    if !known {
        sink.refuse("a code that CONNACK does not have in this version");
    }
    if connack.session_present && connack.reason.0 != 0 {
        sink.refuse("a session with a refusal");
    }
    sink.u8(u8::from(connack.session_present && version != Version::V31));
    sink.u8(connack.reason.0);
    if v5 {
        sink.section(&connack.properties);
    }
}
