//! An MQTT client that does what it is told and nothing else: no retries, no answers of its own.

use super::wire::Wire;
use super::{ms, secs};
use bytes::Bytes;
use forebay::mqtt::decode::Peer;
use forebay::mqtt::properties::{ConnectProperties, DisconnectProperties, PublishProperties, SubscribeProperties};
use forebay::mqtt::{
    Ack, ConnAck, Connect, Disconnect, Packet, Publish, QoS, Reason, Subscribe, SubscribeOptions, Version,
};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Protocol version.
    pub version: Version,
    /// Client identifier.
    pub id: String,
    /// Whether the session ends with the connection; else it is kept for an hour.
    pub clean: bool,
    /// Of MQTT 5.
    pub receive_maximum: Option<u16>,
    /// User name and password.
    pub user: Option<(String, String)>,
}

impl Options {
    /// A session that ends with the connection.
    pub fn new(version: Version, id: &str) -> Self {
        Self { version, id: id.to_owned(), clean: true, receive_maximum: None, user: None }
    }

    /// A session that is kept.
    pub fn durable(version: Version, id: &str) -> Self {
        Self { clean: false, ..Self::new(version, id) }
    }

    /// The CONNECT.
    pub fn connect(&self) -> Connect {
        let v5 = self.version == Version::V5;
        Connect {
            version: self.version,
            clean_start: self.clean,
            keep_alive_s: 0,
            client_id: self.id.as_str().into(),
            will: None,
            username: self.user.as_ref().map(|(name, _)| name.as_str().into()),
            password: self.user.as_ref().map(|(_, password)| Bytes::from(password.clone())),
            properties: ConnectProperties {
                session_expiry_s: (v5 && !self.clean).then_some(3_600),
                receive_maximum: self.receive_maximum.filter(|_| v5),
                ..ConnectProperties::default()
            },
        }
    }
}

/// A connected client.
#[derive(Debug)]
pub struct Client {
    /// The connection.
    pub wire: Wire,
    /// What the server said to CONNECT.
    pub connack: ConnAck,
}

fn unexpected(packet: Option<Packet>, wanted: &str) -> io::Error {
    io::Error::other(format!("expected {wanted}, found {packet:?}"))
}

/// A TCP connection to 127.0.0.1.
pub fn tcp(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), secs(5))
}

impl Client {
    /// Connects; an error also when CONNACK refuses.
    pub fn connect(port: u16, options: &Options) -> io::Result<Self> {
        let client = Self::greet(port, options)?;
        if client.connack.reason != Reason::SUCCESS {
            return Err(io::Error::other(format!("CONNACK with {:?}", client.connack.reason)));
        }
        Ok(client)
    }

    /// Connects and gives whatever CONNACK came.
    pub fn greet(port: u16, options: &Options) -> io::Result<Self> {
        let mut wire = Wire::new(tcp(port)?, Peer::Server)?;
        wire.set_version(options.version);
        wire.send(&[Packet::Connect(Box::new(options.connect()))])?;
        match wire.receive(secs(10))? {
            Some(Packet::ConnAck(connack)) => Ok(Self { wire, connack: *connack }),
            other => Err(unexpected(other, "CONNACK")),
        }
    }

    /// Publishes without waiting.
    pub fn publish(&mut self, topic: &str, payload: impl Into<Bytes>, qos: QoS, packet_id: u16) -> io::Result<()> {
        self.wire.send(&[Packet::Publish(Publish::new(topic, payload).at(qos, packet_id))])
    }

    /// Publishes with user properties (MQTT 5), without waiting.
    pub fn publish_with(
        &mut self,
        topic: &str,
        payload: impl Into<Bytes>,
        qos: QoS,
        packet_id: u16,
        user: &[(&str, &str)],
    ) -> io::Result<()> {
        let user = user.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let properties = Some(Box::new(PublishProperties { user, ..PublishProperties::default() }));
        self.wire.send(&[Packet::Publish(Publish { properties, ..Publish::new(topic, payload).at(qos, packet_id) })])
    }

    /// The next PUBACK or PUBREC; `None` if there is none in time.
    pub fn ack(&mut self, timeout: Duration) -> io::Result<Option<Ack>> {
        match self.wire.receive(timeout)? {
            None => Ok(None),
            Some(Packet::PubAck(ack) | Packet::PubRec(ack)) => Ok(Some(ack)),
            other => Err(unexpected(other, "PUBACK or PUBREC")),
        }
    }

    /// Ends a QoS 2 exchange: PUBREL, and waits for PUBCOMP.
    pub fn release(&mut self, packet_id: u16) -> io::Result<Ack> {
        self.wire.send(&[Packet::PubRel(Ack::new(packet_id, Reason::SUCCESS))])?;
        match self.wire.receive(secs(10))? {
            Some(Packet::PubComp(ack)) => Ok(ack),
            other => Err(unexpected(other, "PUBCOMP")),
        }
    }

    /// Subscribes and waits for SUBACK.
    pub fn subscribe(&mut self, filter: &str, qos: QoS) -> io::Result<()> {
        let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
        let properties = SubscribeProperties::default();
        let subscribe = Subscribe { packet_id: 1, filters: vec![(filter.into(), options)], properties };
        self.wire.send(&[Packet::Subscribe(Box::new(subscribe))])?;
        match self.wire.receive(secs(10))? {
            Some(Packet::SubAck(suback)) if suback.reasons.iter().all(|reason| !reason.is_failure()) => Ok(()),
            other => Err(unexpected(other, "SUBACK")),
        }
    }

    /// PINGREQ and PINGRESP: whether the connection is alive.
    pub fn ping(&mut self) -> io::Result<()> {
        self.wire.send(&[Packet::PingReq])?;
        match self.wire.receive(secs(10))? {
            Some(Packet::PingResp) => Ok(()),
            other => Err(unexpected(other, "PINGRESP")),
        }
    }

    /// Waits for the server's end of the connection: its DISCONNECT, if it sends one. `None` if it does not close in time.
    pub fn end(&mut self, timeout: Duration) -> Option<Option<Reason>> {
        let mut reason = None;
        loop {
            match self.wire.receive(timeout) {
                Ok(None) => return None,
                Ok(Some(Packet::Disconnect(disconnect))) => reason = Some(disconnect.reason),
                Ok(Some(_)) => {}
                Err(_) => return Some(reason),
            }
        }
    }

    /// An orderly end.
    pub fn disconnect(mut self) {
        let disconnect = Disconnect { reason: Reason::SUCCESS, properties: DisconnectProperties::default() };
        let _ = self.wire.send(&[Packet::Disconnect(Box::new(disconnect))]);
        // The server closes; what it has read by then it has dealt with.
        while let Ok(Some(_)) = self.wire.receive(ms(500)) {}
    }
}

/// Reads everything that a durable session gets until nothing has come for `quiet`, answering as a good client does: each QoS 2
/// message once.
pub fn drain(client: &mut Client, quiet: Duration, mut take: impl FnMut(&Publish)) -> io::Result<u64> {
    let (mut taken, mut held) = (0, std::collections::HashSet::new());
    while let Some(packet) = client.wire.receive(quiet)? {
        let answer = match &packet {
            Packet::Publish(publish) => {
                if publish.qos != QoS::ExactlyOnce || held.insert(publish.packet_id) {
                    take(publish);
                    taken += 1;
                }
                let ack = Ack::new(publish.packet_id, Reason::SUCCESS);
                match publish.qos {
                    QoS::AtMostOnce => continue,
                    QoS::AtLeastOnce => Packet::PubAck(ack),
                    QoS::ExactlyOnce => Packet::PubRec(ack),
                }
            }
            Packet::PubRel(ack) => {
                held.remove(&ack.packet_id);
                Packet::PubComp(Ack::new(ack.packet_id, Reason::SUCCESS))
            }
            _ => continue,
        };
        client.wire.send(&[answer])?;
    }
    Ok(taken)
}
