//! The control packets of MQTT 3.1.1 and 5.0 as values. Text and payloads share the bytes that were read.

use super::properties::{
    AckProperties, AuthProperties, ConnAckProperties, ConnectProperties, DisconnectProperties, PublishProperties,
    SubscribeProperties, WillProperties,
};
use super::reason::Reason;
use super::text::Text;
use bytes::Bytes;

/// The protocol version of a connection, by its level in CONNECT [MQTT-3.1.2-2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1 (level 3, `MQIsdp`); everything after CONNECT is as 3.1.1.
    V31,
    /// MQTT 3.1.1 (level 4).
    V311,
    /// MQTT 5.0 (level 5).
    V5,
}

/// Quality of service [MQTT-4.3].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QoS {
    /// At most once.
    #[default]
    AtMostOnce = 0,
    /// At least once.
    AtLeastOnce = 1,
    /// Exactly once.
    ExactlyOnce = 2,
}

impl QoS {
    /// From the two bits on the wire; 3 is malformed [MQTT-3.3.1-4].
    pub fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }

    /// The two bits on the wire.
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// Any control packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Client requests a connection.
    Connect(Box<Connect>),
    /// Server answers it.
    ConnAck(Box<ConnAck>),
    /// A message.
    Publish(Publish),
    /// QoS 1: taken over.
    PubAck(Ack),
    /// QoS 2, first answer.
    PubRec(Ack),
    /// QoS 2, release.
    PubRel(Ack),
    /// QoS 2, done.
    PubComp(Ack),
    /// Subscribe request.
    Subscribe(Box<Subscribe>),
    /// Its answer.
    SubAck(Box<SubAck>),
    /// Unsubscribe request.
    Unsubscribe(Box<Unsubscribe>),
    /// Its answer.
    UnsubAck(Box<SubAck>),
    /// Keep-alive.
    PingReq,
    /// Its answer.
    PingResp,
    /// Orderly end, from either side in 5.0.
    Disconnect(Box<Disconnect>),
    /// Extended authentication (5.0).
    Auth(Box<Auth>),
}

impl Packet {
    /// Whether it has a reason string or user properties, and is no request: what a peer can do without.
    pub fn has_diagnostics(&self) -> bool {
        let said = |p: &AckProperties| p.reason_string.is_some() || !p.user.is_empty();
        match self {
            Self::ConnAck(connack) => connack.properties.reason_string.is_some() || !connack.properties.user.is_empty(),
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => {
                ack.properties.as_deref().is_some_and(said)
            }
            Self::SubAck(ack) | Self::UnsubAck(ack) => said(&ack.properties),
            Self::Disconnect(end) => end.properties.reason_string.is_some() || !end.properties.user.is_empty(),
            Self::Auth(auth) => auth.properties.reason_string.is_some() || !auth.properties.user.is_empty(),
            Self::Connect(_) | Self::Publish(_) | Self::Subscribe(_) | Self::Unsubscribe(_) => false,
            Self::PingReq | Self::PingResp => false,
        }
    }

    /// The same without reason string and user properties, where [`Packet::has_diagnostics`]: for a packet that would be too large,
    /// or a client that asked for no problem information (which concerns neither CONNACK nor DISCONNECT) [MQTT-3.1.2-29].
    pub fn without_diagnostics(mut self) -> Self {
        match &mut self {
            Self::ConnAck(connack) => {
                connack.properties.reason_string = None;
                connack.properties.user.clear();
            }
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => ack.properties = None,
            Self::SubAck(ack) | Self::UnsubAck(ack) => ack.properties = AckProperties::default(),
            Self::Disconnect(end) => {
                end.properties.reason_string = None;
                end.properties.user.clear();
            }
            Self::Auth(auth) => {
                auth.properties.reason_string = None;
                auth.properties.user.clear();
            }
            Self::Connect(_) | Self::Publish(_) | Self::Subscribe(_) | Self::Unsubscribe(_) => {}
            Self::PingReq | Self::PingResp => {}
        }
        self
    }
}

/// CONNECT [MQTT-3.1].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Protocol version asked for.
    pub version: Version,
    /// Clean session (3.1.1) or clean start (5.0).
    pub clean_start: bool,
    /// Keep-alive in seconds; 0 turns it off.
    pub keep_alive_s: u16,
    /// Client identifier, possibly empty.
    pub client_id: Text,
    /// Will message.
    pub will: Option<Box<Will>>,
    /// User name.
    pub username: Option<Text>,
    /// Password: any bytes.
    pub password: Option<Bytes>,
    /// Properties (5.0).
    pub properties: ConnectProperties,
}

/// The will in CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic of the will message.
    pub topic: Text,
    /// Its payload.
    pub payload: Bytes,
    /// Its QoS.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// Properties (5.0).
    pub properties: WillProperties,
}

/// CONNACK [MQTT-3.2]. In 3.1.1 `reason` is the return code 0..=5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnAck {
    /// Whether the server held a session for this client.
    pub session_present: bool,
    /// Reason code (5.0) or return code (3.1.1).
    pub reason: Reason,
    /// Properties (5.0).
    pub properties: ConnAckProperties,
}

/// PUBLISH [MQTT-3.3].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Sent before, perhaps.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Topic name; empty only together with a topic alias (5.0).
    pub topic: Text,
    /// Packet identifier; 0 exactly when QoS is 0.
    pub packet_id: u16,
    /// Properties (5.0); `None` when there are none.
    pub properties: Option<Box<PublishProperties>>,
    /// Application message.
    pub payload: Bytes,
}

impl Publish {
    /// A message at QoS 0, without properties.
    pub fn new(topic: impl Into<Text>, payload: impl Into<Bytes>) -> Self {
        Self {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: topic.into(),
            packet_id: 0,
            properties: None,
            payload: payload.into(),
        }
    }

    /// The same at another QoS, under an identifier; at QoS 0 there is none.
    pub fn at(mut self, qos: QoS, packet_id: u16) -> Self {
        self.qos = qos;
        self.packet_id = if qos == QoS::AtMostOnce { 0 } else { packet_id };
        self
    }

    /// The same, to be retained.
    pub fn retained(mut self) -> Self {
        self.retain = true;
        self
    }

    /// The value of the first user property of that name (5.0).
    pub fn user(&self, name: &str) -> Option<&Text> {
        let list = &self.properties.as_deref()?.user;
        list.iter().find(|(given, _)| given.as_bytes() == name.as_bytes()).map(|(_, value)| value)
    }
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Packet identifier, not 0.
    pub packet_id: u16,
    /// Reason (5.0); success in 3.1.1.
    pub reason: Reason,
    /// Properties (5.0); `None` when there are none.
    pub properties: Option<Box<AckProperties>>,
}

impl Ack {
    /// An acknowledgement without properties.
    pub fn new(packet_id: u16, reason: Reason) -> Self {
        Self { packet_id, reason, properties: None }
    }
}

/// Options of one subscription [MQTT-3.8.3.1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubscribeOptions {
    /// Highest QoS at which messages are sent.
    pub qos: QoS,
    /// 5.0: do not send back what this client published.
    pub no_local: bool,
    /// 5.0: keep the RETAIN flag as published.
    pub retain_as_published: bool,
    /// 5.0: 0 send retained, 1 only if new, 2 never.
    pub retain_handling: u8,
}

/// SUBSCRIBE [MQTT-3.8].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Packet identifier, not 0.
    pub packet_id: u16,
    /// Filters with their options, at least one.
    pub filters: Vec<(Text, SubscribeOptions)>,
    /// Properties (5.0).
    pub properties: SubscribeProperties,
}

/// SUBACK and UNSUBACK. A 3.1.1 UNSUBACK has no reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck {
    /// Packet identifier of the request.
    pub packet_id: u16,
    /// One per filter of the request, in order.
    pub reasons: Vec<Reason>,
    /// Properties (5.0).
    pub properties: AckProperties,
}

/// UNSUBSCRIBE [MQTT-3.10].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Packet identifier, not 0.
    pub packet_id: u16,
    /// Filters, at least one.
    pub filters: Vec<Text>,
    /// User properties (5.0).
    pub user: Vec<(Text, Text)>,
}

/// DISCONNECT [MQTT-3.14].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Reason (5.0); normal in 3.1.1.
    pub reason: Reason,
    /// Properties (5.0).
    pub properties: DisconnectProperties,
}

/// AUTH [MQTT-3.15].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Success, continue or re-authenticate.
    pub reason: Reason,
    /// Properties.
    pub properties: AuthProperties,
}
