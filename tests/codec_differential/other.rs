//! mqtt-proto, a decoder of other authors and of another design, and its packets put into our words.

use bytes::Bytes;
use forebay::mqtt::properties::*;
use forebay::mqtt::*;
use mqtt_proto::{v3, v5};

/// What the other decoder makes of the bytes of one packet: the packet in our words, and the bytes it would take to write it.
#[derive(Debug)]
pub struct Read {
    pub packet: Packet,
    pub written_len: usize,
    /// Its own view, for looking into what ours cannot hold.
    pub debug: String,
}

/// Reads one packet. The error is the other's own words.
pub fn read(bytes: &[u8], version: Version) -> Result<Read, String> {
    if version == Version::V5 {
        let packet = v5::Packet::decode(bytes).map_err(|error| format!("{error:?}"))?.ok_or("incomplete")?;
        let written_len = packet.encode_len().map_err(|error| format!("{error:?}"))?;
        let debug = format!("{packet:?}");
        Ok(Read { packet: of_v5(packet), written_len, debug })
    } else {
        let packet = v3::Packet::decode(bytes).map_err(|error| format!("{error:?}"))?.ok_or("incomplete")?;
        let written_len = packet.encode_len().map_err(|error| format!("{error:?}"))?;
        let debug = format!("{packet:?}");
        Ok(Read { packet: of_v3(packet), written_len, debug })
    }
}

/// Stands for U+0000, which our texts cannot hold.
pub const NUL: &str = "<U+0000>";

fn text(text: &str) -> Text {
    Text::from(text.replace('\0', NUL))
}

fn maybe(value: Option<std::sync::Arc<str>>) -> Option<Text> {
    value.map(|value| text(&value))
}

fn user(list: Vec<v5::UserProperty>) -> UserProperties {
    list.into_iter().map(|pair| (text(&pair.name), text(&pair.value))).collect()
}

fn qos(qos: mqtt_proto::QoS) -> QoS {
    QoS::from_bits(qos as u8).unwrap()
}

fn qos_and_id(both: mqtt_proto::QosPid) -> (QoS, u16) {
    match both {
        mqtt_proto::QosPid::Level0 => (QoS::AtMostOnce, 0),
        mqtt_proto::QosPid::Level1(id) => (QoS::AtLeastOnce, id.value()),
        mqtt_proto::QosPid::Level2(id) => (QoS::ExactlyOnce, id.value()),
    }
}

fn version(protocol: mqtt_proto::Protocol) -> Version {
    match protocol {
        mqtt_proto::Protocol::V310 => Version::V31,
        mqtt_proto::Protocol::V311 => Version::V311,
        mqtt_proto::Protocol::V500 => Version::V5,
    }
}

fn boxed<P: Default + PartialEq>(properties: P) -> Option<Box<P>> {
    (properties != P::default()).then(|| Box::new(properties))
}

fn plain_ack(id: mqtt_proto::Pid) -> Ack {
    Ack::new(id.value(), Reason::SUCCESS)
}

fn of_v3(packet: v3::Packet) -> Packet {
    match packet {
        v3::Packet::Connect(p) => Packet::Connect(Box::new(Connect {
            version: version(p.protocol),
            clean_start: p.clean_session,
            keep_alive_s: p.keep_alive,
            client_id: text(&p.client_id),
            will: p.last_will.map(|will| {
                Box::new(Will {
                    topic: text(&will.topic_name),
                    payload: will.message,
                    qos: qos(will.qos),
                    retain: will.retain,
                    properties: WillProperties::default(),
                })
            }),
            username: maybe(p.username),
            password: p.password,
            properties: ConnectProperties::default(),
        })),
        v3::Packet::Connack(p) => Packet::ConnAck(Box::new(ConnAck {
            session_present: p.session_present,
            reason: Reason(p.code as u8),
            properties: ConnAckProperties::default(),
        })),
        v3::Packet::Publish(p) => {
            let (qos, packet_id) = qos_and_id(p.qos_pid);
            Packet::Publish(Publish {
                dup: p.dup,
                qos,
                retain: p.retain,
                topic: text(&p.topic_name),
                packet_id,
                properties: None,
                payload: p.payload,
            })
        }
        v3::Packet::Puback(id) => Packet::PubAck(plain_ack(id)),
        v3::Packet::Pubrec(id) => Packet::PubRec(plain_ack(id)),
        v3::Packet::Pubrel(id) => Packet::PubRel(plain_ack(id)),
        v3::Packet::Pubcomp(id) => Packet::PubComp(plain_ack(id)),
        v3::Packet::Subscribe(p) => Packet::Subscribe(Box::new(Subscribe {
            packet_id: p.pid.value(),
            filters: p
                .topics
                .into_iter()
                .map(|(filter, most)| {
                    (text(&filter), SubscribeOptions { qos: qos(most), ..SubscribeOptions::default() })
                })
                .collect(),
            properties: SubscribeProperties::default(),
        })),
        v3::Packet::Suback(p) => {
            let code = |code| match code {
                v3::SubscribeReturnCode::MaxLevel0 => Reason(0),
                v3::SubscribeReturnCode::MaxLevel1 => Reason(1),
                v3::SubscribeReturnCode::MaxLevel2 => Reason(2),
                v3::SubscribeReturnCode::Failure => Reason(0x80),
            };
            Packet::SubAck(Box::new(SubAck {
                packet_id: p.pid.value(),
                reasons: p.topics.into_iter().map(code).collect(),
                properties: AckProperties::default(),
            }))
        }
        v3::Packet::Unsubscribe(p) => Packet::Unsubscribe(Box::new(Unsubscribe {
            packet_id: p.pid.value(),
            filters: p.topics.iter().map(|filter| text(filter)).collect(),
            user: Vec::new(),
        })),
        v3::Packet::Unsuback(id) => Packet::UnsubAck(Box::new(SubAck {
            packet_id: id.value(),
            reasons: Vec::new(),
            properties: AckProperties::default(),
        })),
        v3::Packet::Pingreq => Packet::PingReq,
        v3::Packet::Pingresp => Packet::PingResp,
        v3::Packet::Disconnect => Packet::Disconnect(Box::new(Disconnect {
            reason: Reason::SUCCESS,
            properties: DisconnectProperties::default(),
        })),
    }
}

/// The four acknowledgements of PUBLISH are four types there, with the same fields.
macro_rules! ack {
    ($p:expr) => {
        Ack {
            packet_id: $p.pid.value(),
            reason: Reason($p.reason_code as u8),
            properties: boxed(AckProperties {
                reason_string: maybe($p.properties.reason_string),
                user: user($p.properties.user_properties),
            }),
        }
    };
}

macro_rules! suback {
    ($p:expr) => {
        Box::new(SubAck {
            packet_id: $p.pid.value(),
            reasons: $p.topics.into_iter().map(|code| Reason(code as u8)).collect(),
            properties: AckProperties {
                reason_string: maybe($p.properties.reason_string),
                user: user($p.properties.user_properties),
            },
        })
    };
}

fn of_v5(packet: v5::Packet) -> Packet {
    match packet {
        v5::Packet::Connect(p) => Packet::Connect(Box::new(connect(p))),
        v5::Packet::Connack(p) => Packet::ConnAck(Box::new(connack(p))),
        v5::Packet::Publish(p) => Packet::Publish(publish(p)),
        v5::Packet::Puback(p) => Packet::PubAck(ack!(p)),
        v5::Packet::Pubrec(p) => Packet::PubRec(ack!(p)),
        v5::Packet::Pubrel(p) => Packet::PubRel(ack!(p)),
        v5::Packet::Pubcomp(p) => Packet::PubComp(ack!(p)),
        v5::Packet::Subscribe(p) => Packet::Subscribe(Box::new(subscribe(p))),
        v5::Packet::Suback(p) => Packet::SubAck(suback!(p)),
        v5::Packet::Unsubscribe(p) => Packet::Unsubscribe(Box::new(Unsubscribe {
            packet_id: p.pid.value(),
            filters: p.topics.iter().map(|filter| text(filter)).collect(),
            user: user(p.properties.user_properties),
        })),
        v5::Packet::Unsuback(p) => Packet::UnsubAck(suback!(p)),
        v5::Packet::Pingreq => Packet::PingReq,
        v5::Packet::Pingresp => Packet::PingResp,
        v5::Packet::Disconnect(p) => Packet::Disconnect(Box::new(Disconnect {
            reason: Reason(p.reason_code as u8),
            properties: DisconnectProperties {
                session_expiry_s: p.properties.session_expiry_interval,
                reason_string: maybe(p.properties.reason_string),
                user: user(p.properties.user_properties),
                server_reference: maybe(p.properties.server_reference),
            },
        })),
        v5::Packet::Auth(p) => Packet::Auth(Box::new(Auth {
            reason: Reason(p.reason_code as u8),
            properties: AuthProperties {
                authentication_method: maybe(p.properties.auth_method),
                authentication_data: p.properties.auth_data,
                reason_string: maybe(p.properties.reason_string),
                user: user(p.properties.user_properties),
            },
        })),
    }
}

fn connect(p: v5::Connect) -> Connect {
    Connect {
        version: version(p.protocol),
        clean_start: p.clean_start,
        keep_alive_s: p.keep_alive,
        client_id: text(&p.client_id),
        will: p.last_will.map(|will| {
            Box::new(Will {
                topic: text(&will.topic_name),
                payload: will.payload,
                qos: qos(will.qos),
                retain: will.retain,
                properties: WillProperties {
                    delay_s: will.properties.delay_interval,
                    payload_format: will.properties.payload_is_utf8,
                    message_expiry_s: will.properties.message_expiry_interval,
                    content_type: maybe(will.properties.content_type),
                    response_topic: will.properties.response_topic.map(|topic| text(&topic)),
                    correlation_data: will.properties.correlation_data,
                    user: user(will.properties.user_properties),
                },
            })
        }),
        username: maybe(p.username),
        password: p.password,
        properties: ConnectProperties {
            session_expiry_s: p.properties.session_expiry_interval,
            receive_maximum: p.properties.receive_max,
            maximum_packet_size: p.properties.max_packet_size,
            topic_alias_maximum: p.properties.topic_alias_max,
            request_response_information: p.properties.request_response_info,
            request_problem_information: p.properties.request_problem_info,
            user: user(p.properties.user_properties),
            authentication_method: maybe(p.properties.auth_method),
            authentication_data: p.properties.auth_data,
        },
    }
}

fn connack(p: v5::Connack) -> ConnAck {
    ConnAck {
        session_present: p.session_present,
        reason: Reason(p.reason_code as u8),
        properties: ConnAckProperties {
            session_expiry_s: p.properties.session_expiry_interval,
            receive_maximum: p.properties.receive_max,
            maximum_qos: p.properties.max_qos.map(qos),
            retain_available: p.properties.retain_available,
            maximum_packet_size: p.properties.max_packet_size,
            assigned_client_id: maybe(p.properties.assigned_client_id),
            topic_alias_maximum: p.properties.topic_alias_max,
            reason_string: maybe(p.properties.reason_string),
            user: user(p.properties.user_properties),
            wildcard_available: p.properties.wildcard_subscription_available,
            subscription_ids_available: p.properties.subscription_id_available,
            shared_available: p.properties.shared_subscription_available,
            server_keep_alive_s: p.properties.server_keep_alive,
            response_information: maybe(p.properties.response_info),
            server_reference: maybe(p.properties.server_reference),
            authentication_method: maybe(p.properties.auth_method),
            authentication_data: p.properties.auth_data,
        },
    }
}

fn publish(p: v5::Publish) -> Publish {
    let (qos, packet_id) = qos_and_id(p.qos_pid);
    let properties = PublishProperties {
        payload_format: p.properties.payload_is_utf8,
        message_expiry_s: p.properties.message_expiry_interval,
        topic_alias: p.properties.topic_alias,
        response_topic: p.properties.response_topic.map(|topic| text(&topic)),
        correlation_data: p.properties.correlation_data,
        user: user(p.properties.user_properties),
        subscription_ids: p.properties.subscription_id.map(|id| id.value()).into_iter().collect(),
        content_type: maybe(p.properties.content_type),
    };
    let payload: Bytes = p.payload;
    Publish {
        dup: p.dup,
        qos,
        retain: p.retain,
        topic: text(&p.topic_name),
        packet_id,
        properties: boxed(properties),
        payload,
    }
}

fn subscribe(p: v5::Subscribe) -> Subscribe {
    Subscribe {
        packet_id: p.pid.value(),
        filters: p
            .topics
            .into_iter()
            .map(|(filter, options)| {
                let options = SubscribeOptions {
                    qos: qos(options.max_qos),
                    no_local: options.no_local,
                    retain_as_published: options.retain_as_published,
                    retain_handling: options.retain_handling as u8,
                };
                (text(&filter), options)
            })
            .collect(),
        properties: SubscribeProperties {
            subscription_id: p.properties.subscription_id.map(|id| id.value()),
            user: user(p.properties.user_properties),
        },
    }
}
