//! Where the two decoders disagree, and which clause of the standard settles it.
//!
//! An entry is more than our word: `holds` looks at the bytes, or at what the other decoder made of them, and finds the fault (or,
//! where the other refuses, the permission) by itself.

use crate::other::{NUL, Read};
use forebay::mqtt::decode::DecodeError;
use forebay::mqtt::properties::{ConnAckProperties, ConnectProperties};
use forebay::mqtt::{Packet, Publish, Reason, Text, Version};

/// We refuse, the other accepts: our message, the clause, and where the other's packet or the bytes show it.
struct Stricter {
    ours: &'static str,
    clause: &'static str,
    holds: fn(&[u8], Version, &Read) -> bool,
}

const STRICTER: &[Stricter] = &[
    Stricter {
        ours: "bytes after the end of the packet's fields",
        clause: "2.1.4 (3.1.1: 2.2.3): the remaining length counts the bytes of this packet, and they are all its fields",
        holds: |bytes, _, read| read.written_len < bytes.len(),
    },
    Stricter {
        ours: "not in the fewest bytes [MQTT-1.5.5]",
        clause: "1.5.5: the encoded value MUST use the minimum number of bytes",
        holds: |bytes, version, read| version == Version::V5 && read.written_len < bytes.len(),
    },
    Stricter {
        ours: "remaining length not in the fewest bytes [MQTT-1.5.5]",
        clause: "1.5.5, 2.1.4: the remaining length too is a variable byte integer",
        holds: |bytes, version, read| version == Version::V5 && read.written_len < bytes.len(),
    },
    Stricter {
        ours: "not UTF-8, or U+0000 in it [MQTT-1.5.4-1]",
        clause: "1.5.4-2 (3.1.1: 1.5.3-2): text MUST NOT include U+0000",
        holds: |_, _, read| format!("{:?}", read.packet).contains(NUL),
    },
    Stricter {
        ours: "0 where it is not allowed",
        clause: "3.1.2.11.3, 3.1.2.11.4, 3.2.2.3.3, 3.2.2.3.6: it is a Protocol Error to set it to 0",
        holds: |_, _, read| match &read.packet {
            Packet::Connect(p) => {
                let ConnectProperties { receive_maximum, maximum_packet_size, .. } = p.properties;
                receive_maximum == Some(0) || maximum_packet_size == Some(0)
            }
            Packet::ConnAck(p) => {
                let ConnAckProperties { receive_maximum, maximum_packet_size, .. } = p.properties;
                receive_maximum == Some(0) || maximum_packet_size == Some(0)
            }
            _ => false,
        },
    },
    Stricter {
        ours: "topic alias 0 [MQTT-3.3.2-8]",
        clause: "3.3.2-8: a PUBLISH MUST NOT contain a topic alias of 0",
        holds: |_, _, read| publish(&read.packet).and_then(|p| p.properties.as_ref()?.topic_alias) == Some(0),
    },
    Stricter {
        ours: "subscription identifier 0 [MQTT-3.8.2.1.2]",
        clause: "3.8.2.1.2 and 3.3.2.3.8: it is a Protocol Error if it is 0",
        holds: |_, _, read| match &read.packet {
            Packet::Subscribe(p) => p.properties.subscription_id == Some(0),
            other => {
                publish(other).and_then(|p| p.properties.as_ref()).is_some_and(|p| p.subscription_ids.contains(&0))
            }
        },
    },
    Stricter {
        ours: "empty topic name and no alias [MQTT-4.7.3-1]",
        clause: "4.7.3-1: topic names MUST be at least one character long",
        holds: |_, _, read| {
            let none = |p: &Publish| p.properties.as_ref().is_none_or(|p| p.topic_alias.is_none());
            publish(&read.packet).is_some_and(|p| p.topic.is_empty() && none(p))
        },
    },
    Stricter {
        ours: "empty topic name [MQTT-4.7.3-1]",
        clause: "4.7.3-1: topic names MUST be at least one character long, the will's and the response topic too",
        holds: |_, _, read| {
            let empty = |topic: &Option<Text>| topic.as_ref().is_some_and(Text::is_empty);
            match &read.packet {
                Packet::Connect(p) => {
                    p.will.as_ref().is_some_and(|w| w.topic.is_empty() || empty(&w.properties.response_topic))
                }
                other => publish(other).and_then(|p| p.properties.as_ref()).is_some_and(|p| empty(&p.response_topic)),
            }
        },
    },
    Stricter {
        ours: "topic filter [MQTT-4.7.1-1]",
        clause: "4.7.1-1, 4.7.1-2 (3.1.1: 4.7.1-2, 4.7.1-3): a wildcard MUST occupy an entire level",
        holds: |_, _, read| {
            filters(&read.packet)
                .iter()
                .any(|filter| filter.as_str().split('/').any(|level| level.len() > 1 && level.contains(['+', '#'])))
        },
    },
    Stricter {
        ours: "no local on a shared subscription [MQTT-3.8.3-4]",
        clause: "3.8.3-4: it is a Protocol Error to set No Local on a shared subscription",
        holds: |_, _, read| {
            matches!(&read.packet, Packet::Subscribe(p)
            if p.filters.iter().any(|(filter, options)| options.no_local && filter.as_str().starts_with("$share/")))
        },
    },
    Stricter {
        ours: "no reason code at all [MQTT-3.8.4-6]",
        clause: "3.8.4-6 (3.1.1: 3.8.4-5): a code for each filter, of which there is at least one",
        holds: |_, _, read| matches!(&read.packet, Packet::SubAck(p) | Packet::UnsubAck(p) if p.reasons.is_empty()),
    },
    Stricter {
        ours: "flags of the fixed header do not fit the packet type [MQTT-2.1.3-1]",
        clause: "3.3.1-2: DUP MUST be 0 for QoS 0",
        holds: |bytes, _, _| bytes[0] & 0xFE == 0x38,
    },
    Stricter {
        ours: "authentication data without a method [MQTT-3.1.2.11.10]",
        clause: "3.1.2.11.10: it is a Protocol Error to include data if there is no method",
        holds: |_, _, read| {
            matches!(&read.packet, Packet::Connect(p)
            if p.properties.authentication_method.is_none() && p.properties.authentication_data.is_some())
        },
    },
    Stricter {
        ours: "AUTH without a method [MQTT-3.15.2.2.2]",
        clause: "3.15.2.2.2: it is a Protocol Error to omit the authentication method",
        holds: |_, _, read| matches!(&read.packet, Packet::Auth(p) if p.properties.authentication_method.is_none()),
    },
    Stricter {
        ours: "a session with a refusal [MQTT-3.2.2-6]",
        clause: "3.2.2-6 (3.1.1: 3.2.2-4): with another code than 0, session present MUST be 0",
        holds: |_, _, read| matches!(&read.packet, Packet::ConnAck(p) if p.session_present && p.reason != Reason::SUCCESS),
    },
    Stricter {
        ours: "will flags without a will [MQTT-3.1.2-11]",
        clause: "3.1.2-13 (3.1.1: 3.1.2-15): without a will, will retain MUST be 0",
        holds: |bytes, _, read| {
            matches!(&read.packet, Packet::Connect(p) if p.will.is_none()) && connect_flags(bytes) & 0x24 == 0x20
        },
    },
    Stricter {
        ours: "password without user name [MQTT-3.1.2-22]",
        clause: "3.1.1: 3.1.2-22: without a user name the password flag MUST be 0",
        holds: |_, version, read| {
            version != Version::V5
                && matches!(&read.packet, Packet::Connect(p) if p.username.is_none() && p.password.is_some())
        },
    },
];

/// The other refuses, we accept: how its error begins, the clause, and where the packet or the bytes show that it may be so.
struct Wider {
    theirs: &'static str,
    clause: &'static str,
    holds: fn(&[u8], Version, &Packet) -> bool,
}

const WIDER: &[Wider] = &[
    Wider {
        theirs: "InvalidPayloadFormat",
        clause: "3.3.2.3.2, 3.1.3.2.3: a receiver MAY validate the payload; a gateway hands it on",
        holds: |_, _, packet| {
            let not_utf8 =
                |format: Option<bool>, payload: &[u8]| format == Some(true) && str::from_utf8(payload).is_err();
            match packet {
                Packet::Connect(p) => {
                    p.will.as_ref().is_some_and(|w| not_utf8(w.properties.payload_format, &w.payload))
                }
                Packet::Publish(p) => p.properties.as_ref().is_some_and(|q| not_utf8(q.payload_format, &p.payload)),
                _ => false,
            }
        },
    },
    Wider {
        theirs: "DuplicatedProperty(SubscriptionIdentifier)",
        clause: "3.3.2.3.8: multiple identifiers are included if the publication matches several subscriptions",
        holds: |_, _, packet| {
            publish(packet).and_then(|p| p.properties.as_ref()).is_some_and(|p| p.subscription_ids.len() > 1)
        },
    },
    Wider {
        theirs: "InvalidReasonCode(Disconnect, 140)",
        clause: "2.4: 0x8C belongs to CONNACK and DISCONNECT",
        holds: |_, _, packet| matches!(packet, Packet::Disconnect(p) if p.reason == Reason::BAD_AUTHENTICATION_METHOD),
    },
    Wider {
        theirs: "InvalidConnackFlags",
        clause: "MQTT 3.1, 3.2: the first byte of CONNACK is reserved, not used",
        holds: |_, version, packet| version == Version::V31 && matches!(packet, Packet::ConnAck(_)),
    },
    Wider {
        theirs: "InvalidHeader",
        clause: "MQTT 3.1, 2.1: DUP is set when PUBREL, SUBSCRIBE or UNSUBSCRIBE is sent again",
        holds: |bytes, version, _| version == Version::V31 && matches!(bytes[0], 0x6A | 0x8A | 0xAA),
    },
    Wider {
        theirs: "InvalidConnectFlags",
        clause: "MQTT 3.1, 3.1: bit 0 of the connect flags is not used",
        holds: |_, _, packet| matches!(packet, Packet::Connect(p) if p.version == Version::V31),
    },
    Wider {
        theirs: "incomplete",
        clause: "MQTT 3.1, 3.1: the remaining length takes precedence over the user name flag",
        holds: |bytes, _, packet| {
            matches!(packet, Packet::Connect(p) if p.version == Version::V31
            && (p.username.is_none() && connect_flags(bytes) & 0x80 != 0 || p.password.is_none() && connect_flags(bytes) & 0x40 != 0))
        },
    },
    Wider {
        theirs: "InvalidTopicFilter",
        clause: "3.1.1 knows no shared subscriptions: $share/x is a filter like another",
        holds: |_, version, packet| {
            version != Version::V5 && filters(packet).iter().any(|f| f.as_str().starts_with("$share/"))
        },
    },
];

/// The flags of a CONNECT, wherever the header and the protocol name end.
fn connect_flags(bytes: &[u8]) -> u8 {
    let header = 2 + bytes[1..].iter().take_while(|byte| **byte & 0x80 != 0).count();
    let name = usize::from(bytes[header]) << 8 | usize::from(bytes[header + 1]);
    bytes[header + 2 + name + 1]
}

fn publish(packet: &Packet) -> Option<&Publish> {
    if let Packet::Publish(publish) = packet { Some(publish) } else { None }
}

fn filters(packet: &Packet) -> Vec<&Text> {
    match packet {
        Packet::Subscribe(p) => p.filters.iter().map(|(filter, _)| filter).collect(),
        Packet::Unsubscribe(p) => p.filters.iter().collect(),
        _ => Vec::new(),
    }
}

/// The clause by which we refuse what the other accepts.
pub fn stricter(bytes: &[u8], version: Version, error: &DecodeError, read: &Read) -> Option<&'static str> {
    let entry = STRICTER.iter().find(|entry| entry.ours == error.message)?;
    (entry.holds)(bytes, version, read).then_some(entry.clause)
}

/// The clause by which we accept what the other refuses.
pub fn wider(bytes: &[u8], version: Version, packet: &Packet, error: &str) -> Option<&'static str> {
    let entries = WIDER.iter().filter(|entry| error.contains(entry.theirs));
    entries.into_iter().find(|entry| (entry.holds)(bytes, version, packet)).map(|entry| entry.clause)
}

/// The clause by which both accept, and read differently.
pub fn otherwise(version: Version, packet: &Packet, read: &Read) -> Option<&'static str> {
    match (packet, &read.packet) {
        (Packet::ConnAck(ours), Packet::ConnAck(theirs)) if version == Version::V31 && ours.reason == theirs.reason => {
            Some("MQTT 3.1, 3.2: the first byte of CONNACK is reserved, not used: there is no session present")
        }
        _ => None,
    }
}

/// All clauses of this file.
pub fn clauses() -> impl Iterator<Item = &'static str> {
    STRICTER.iter().map(|entry| entry.clause).chain(WIDER.iter().map(|entry| entry.clause))
}

/// Packets that need an explanation which no row of the cases needs.
pub const EXAMPLES: &[(Version, &str)] = &[
    (Version::V5, "40050007008000"),         // PUBACK, property length 0 in two bytes
    (Version::V5, "4082000007"),             // PUBACK, remaining length 2 in two bytes
    (Version::V5, "4009000710051f00026100"), // PUBACK, reason string with U+0000
    (Version::V5, "300700016103080000"),     // PUBLISH, empty response topic
    (Version::V5, "820800070000022b6200"),   // SUBSCRIBE to +b
    (Version::V5, "9003000700"),             // SUBACK without codes
    (Version::V5, "f0021800"),               // AUTH without a method
    (Version::V311, "20020105"),             // CONNACK, refused with a session
    (Version::V311, "100f00044d5154540422003c0003636964"), // CONNECT, will retain without a will
    (Version::V5, "3007000161020101ff"),     // PUBLISH, said to be UTF-8
    (Version::V5, "e0018c"),                 // DISCONNECT, bad authentication method
    (Version::V31, "2002ff00"),              // CONNACK of 3.1
    (Version::V31, "6a020007"),              // PUBREL of 3.1, once more
    (Version::V31, "101100064d51497364700303003c0003636964"), // CONNECT of 3.1, reserved flag
    (Version::V31, "101100064d51497364700382003c0003636964"), // CONNECT of 3.1, user name announced and missing
    (Version::V311, "820d000700082473686172652f7800"), // SUBSCRIBE of 3.1.1 to $share/x
];
