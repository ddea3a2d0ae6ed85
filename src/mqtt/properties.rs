//! The properties of MQTT 5.0, one struct per place where they may stand [MQTT-2.2.2].

use super::packet::QoS;
use super::text::Text;
use bytes::Bytes;

/// User properties: ordered pairs, names may repeat.
pub type UserProperties = Vec<(Text, Text)>;

/// Of CONNECT [MQTT-3.1.2.11].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectProperties {
    /// Seconds; absent means 0, 0xFFFF_FFFF never.
    pub session_expiry_s: Option<u32>,
    /// Not 0; absent means 65,535.
    pub receive_maximum: Option<u16>,
    /// Bytes, not 0; absent means no limit.
    pub maximum_packet_size: Option<u32>,
    /// Absent means 0.
    pub topic_alias_maximum: Option<u16>,
    /// Asks for response information.
    pub request_response_information: Option<bool>,
    /// Absent means true.
    pub request_problem_information: Option<bool>,
    /// User properties.
    pub user: UserProperties,
    /// Authentication method.
    pub authentication_method: Option<Text>,
    /// Authentication data, only with a method.
    pub authentication_data: Option<Bytes>,
}

/// Of the will in CONNECT [MQTT-3.1.3.2].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WillProperties {
    /// Seconds between the end of the connection and the will.
    pub delay_s: Option<u32>,
    /// 0 bytes, 1 UTF-8.
    pub payload_format: Option<bool>,
    /// Seconds.
    pub message_expiry_s: Option<u32>,
    /// Content type.
    pub content_type: Option<Text>,
    /// Response topic.
    pub response_topic: Option<Text>,
    /// Correlation data.
    pub correlation_data: Option<Bytes>,
    /// User properties.
    pub user: UserProperties,
}

/// Of CONNACK [MQTT-3.2.2.3].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnAckProperties {
    /// Seconds, if other than asked for.
    pub session_expiry_s: Option<u32>,
    /// Of the server.
    pub receive_maximum: Option<u16>,
    /// 0 or 1; absent means 2.
    pub maximum_qos: Option<QoS>,
    /// Absent means true.
    pub retain_available: Option<bool>,
    /// Bytes, of the server.
    pub maximum_packet_size: Option<u32>,
    /// Made by the server for an empty one.
    pub assigned_client_id: Option<Text>,
    /// Of the server; absent means 0.
    pub topic_alias_maximum: Option<u16>,
    /// For people.
    pub reason_string: Option<Text>,
    /// User properties.
    pub user: UserProperties,
    /// Absent means true.
    pub wildcard_available: Option<bool>,
    /// Absent means true.
    pub subscription_ids_available: Option<bool>,
    /// Absent means true.
    pub shared_available: Option<bool>,
    /// Seconds; replaces the client's.
    pub server_keep_alive_s: Option<u16>,
    /// Response information.
    pub response_information: Option<Text>,
    /// Another server to use.
    pub server_reference: Option<Text>,
    /// Authentication method.
    pub authentication_method: Option<Text>,
    /// Authentication data.
    pub authentication_data: Option<Bytes>,
}

/// Of PUBLISH [MQTT-3.3.2.3].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishProperties {
    /// 0 bytes, 1 UTF-8.
    pub payload_format: Option<bool>,
    /// Seconds.
    pub message_expiry_s: Option<u32>,
    /// Not 0.
    pub topic_alias: Option<u16>,
    /// Response topic.
    pub response_topic: Option<Text>,
    /// Correlation data.
    pub correlation_data: Option<Bytes>,
    /// User properties.
    pub user: UserProperties,
    /// Only from server to client; one per matching subscription that has one.
    pub subscription_ids: Vec<u32>,
    /// Content type.
    pub content_type: Option<Text>,
}

/// Of PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckProperties {
    /// For people.
    pub reason_string: Option<Text>,
    /// User properties.
    pub user: UserProperties,
}

/// Of SUBSCRIBE [MQTT-3.8.2.1].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscribeProperties {
    /// 1 to 268,435,455.
    pub subscription_id: Option<u32>,
    /// User properties.
    pub user: UserProperties,
}

/// Of DISCONNECT [MQTT-3.14.2.2].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisconnectProperties {
    /// Seconds; only from the client.
    pub session_expiry_s: Option<u32>,
    /// For people.
    pub reason_string: Option<Text>,
    /// User properties.
    pub user: UserProperties,
    /// Another server to use; only from the server.
    pub server_reference: Option<Text>,
}

/// Of AUTH [MQTT-3.15.2.2].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthProperties {
    /// Authentication method.
    pub authentication_method: Option<Text>,
    /// Authentication data.
    pub authentication_data: Option<Bytes>,
    /// For people.
    pub reason_string: Option<Text>,
    /// User properties.
    pub user: UserProperties,
}
