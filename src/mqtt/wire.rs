//! The numbers on the wire: packet types and property identifiers.

/// Control packet types: the upper four bits of the first byte [MQTT-2.1.2].
pub(super) mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
    pub const AUTH: u8 = 15;
}

/// Property identifiers of MQTT 5.0 [MQTT-2.2.2.2]. Each is a variable byte integer that fits in one byte.
pub(super) mod property {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_ID: u8 = 0x0B;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTHENTICATION_METHOD: u8 = 0x15;
    pub const AUTHENTICATION_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub const RESPONSE_INFORMATION: u8 = 0x1A;
    pub const SERVER_REFERENCE: u8 = 0x1C;
    pub const REASON_STRING: u8 = 0x1F;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const MAXIMUM_QOS: u8 = 0x24;
    pub const RETAIN_AVAILABLE: u8 = 0x25;
    pub const USER: u8 = 0x26;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub const WILDCARD_AVAILABLE: u8 = 0x28;
    pub const SUBSCRIPTION_IDS_AVAILABLE: u8 = 0x29;
    pub const SHARED_AVAILABLE: u8 = 0x2A;
}

/// Bits of the flags in CONNECT [MQTT-3.1.2.3].
pub(super) mod connect_flag {
    pub const RESERVED: u8 = 0x01;
    pub const CLEAN: u8 = 0x02;
    pub const WILL: u8 = 0x04;
    pub const WILL_QOS_SHIFT: u8 = 3;
    pub const WILL_RETAIN: u8 = 0x20;
    pub const PASSWORD: u8 = 0x40;
    pub const USERNAME: u8 = 0x80;
}

/// Bits of the options in SUBSCRIBE [MQTT-3.8.3.1].
pub(super) mod subscribe_option {
    pub const QOS_MASK: u8 = 0x03;
    pub const NO_LOCAL: u8 = 0x04;
    pub const RETAIN_AS_PUBLISHED: u8 = 0x08;
    pub const RETAIN_HANDLING_SHIFT: u8 = 4;
    pub const RETAIN_HANDLING_MASK: u8 = 0x03;
    pub const RESERVED: u8 = 0xC0;
}

/// Bytes of a variable byte integer.
pub(super) fn varint_len(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}
