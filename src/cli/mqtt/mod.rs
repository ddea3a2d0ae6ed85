//! The command line's MQTT client: rumqttc's event loop, one face for 3.1.1 and 5.0.
//!
//! It serves `pub`, `sub` and the demo's QoS 1 sensors. Its limits are known (no QoS 2 over a restart, nothing kept safely over a
//! reconnect): whoever uses it drops the whole client on any error and makes a new one.

pub mod args;
mod v4;
mod v5;

use crate::types::Acks;
use bytes::Bytes;
use core::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whom to connect to, and as whom.
#[derive(Clone)]
pub struct Options {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Client identifier, not empty.
    pub client_id: String,
    /// User name and password.
    pub login: Option<(String, String)>,
    /// Seconds, at least 5.
    pub keep_alive_s: u16,
    /// Clean session, or clean start.
    pub clean: bool,
    /// 5.0: seconds that the session outlives the connection.
    pub session_expiry_s: Option<u32>,
    /// 5.0 if true, else 3.1.1.
    pub v5: bool,
    /// Messages under way in each direction at most.
    pub inflight: u16,
    /// Whether [`Client::ack`] acknowledges what comes, rather than the event loop.
    pub manual_acks: bool,
    /// TLS, with these roots and certificates.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

/// What happened.
#[derive(Debug)]
pub enum Seen {
    /// CONNACK said yes.
    Connected,
    /// A PUBLISH left, with this packet id; 0 at QoS 0. Ids come in the order of the publishes.
    Sent(u16),
    /// A PUBLISH of ours is done: PUBACK, or PUBCOMP.
    Acked(u16),
    /// QoS 2: the peer has it.
    Received(u16),
    /// The peer refused a PUBLISH of ours.
    Refused(u16, String),
    /// A message.
    Message(Box<Message>),
    /// One verdict per filter: the granted QoS, or why not.
    Subscribed(Vec<Result<u8, String>>),
    /// QoS 2: the peer released a message that we have; PUBCOMP is on its way.
    Released(u16),
    /// Our DISCONNECT left.
    Disconnected,
    /// The peer's DISCONNECT (5.0).
    Ended(String),
    /// Pings, and what else needs no answer.
    Other,
}

/// A message that came in.
#[derive(Debug)]
pub struct Message {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// QoS of the delivery.
    pub qos: u8,
    /// Packet id; 0 at QoS 0.
    pub packet_id: u16,
    /// Value of the user property `forebay-source`.
    pub source: Option<String>,
    receipt: Receipt,
}

#[derive(Debug)]
enum Receipt {
    V4(rumqttc::Publish),
    V5(rumqttc::v5::mqttbytes::v5::Publish),
}

/// A message to publish.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// QoS.
    pub qos: u8,
    /// Retain flag.
    pub retain: bool,
    /// 5.0: level of acknowledgement asked for.
    pub acks: Option<Acks>,
}

/// The sending half; clones send through the same connection.
#[derive(Clone)]
pub enum Client {
    /// MQTT 3.1.1.
    V4(rumqttc::Client),
    /// MQTT 5.0.
    V5(rumqttc::v5::Client),
}

/// The half that runs the connection: nothing moves unless [`Events::wait`] is called.
pub enum Events {
    /// MQTT 3.1.1.
    V4(Box<rumqttc::Connection>),
    /// MQTT 5.0.
    V5(Box<rumqttc::v5::Connection>),
}

/// What is said of a connection that just ends.
const CLOSED: &str =
    "the broker closed the connection without a word, as MQTT 3.1.1 brokers do when they refuse something";
/// What is said of a peer that does not answer.
const SILENT: &str = "the broker does not answer in time";
/// What is said when the peer goes on with a hand-shake that rumqttc has forgotten: it then fails again at each connection.
const UNFINISHED: &str = "the broker goes on with a QoS 2 hand-shake of a former connection, which this client has not kept; \
                          subscribe once without -c, which ends that session";

/// Why the connection ended, or did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A client that connects at the first [`Events::wait`]. `queue` requests wait in between.
pub fn client(options: &Options, queue: usize) -> (Client, Events) {
    match options.v5 {
        true => {
            let (client, connection) = rumqttc::v5::Client::new(v5::options(options), queue);
            (Client::V5(client), Events::V5(Box::new(connection)))
        }
        false => {
            let (client, mut connection) = rumqttc::Client::new(v4::options(options), queue);
            connection.eventloop.set_network_options(network());
            (Client::V4(client), Events::V4(Box::new(connection)))
        }
    }
}

fn network() -> rumqttc::NetworkOptions {
    let mut network = rumqttc::NetworkOptions::new();
    network.set_tcp_nodelay(true);
    network
}

/// As rumqttc puts host and port together: an IPv6 address needs its brackets.
fn host(options: &Options) -> String {
    let v6 = options.host.parse::<std::net::Ipv6Addr>().is_ok();
    if v6 { format!("[{}]", options.host) } else { options.host.clone() }
}

impl Client {
    /// Publishes; waits while the queue is full.
    pub fn publish(&self, message: Outgoing) -> Result<(), Trouble> {
        match self {
            Self::V4(client) => v4::publish(client, message),
            Self::V5(client) => v5::publish(client, message),
        }
    }

    /// Subscribes to all of them in one packet.
    pub fn subscribe(&self, filters: &[String], qos: u8) -> Result<(), Trouble> {
        match self {
            Self::V4(client) => v4::subscribe(client, filters, qos),
            Self::V5(client) => v5::subscribe(client, filters, qos),
        }
    }

    /// Acknowledges a message, where acks are manual.
    pub fn ack(&self, message: &Message) -> Result<(), Trouble> {
        let acked = match (self, &message.receipt) {
            (Self::V4(client), Receipt::V4(publish)) => client.try_ack(publish).is_ok(),
            (Self::V5(client), Receipt::V5(publish)) => client.try_ack(publish).is_ok(),
            _ => true,
        };
        acked
            .then_some(())
            .ok_or_else(|| Trouble("more messages wait to be acknowledged than there are identifiers".into()))
    }

    /// DISCONNECT, after what was asked for before.
    pub fn disconnect(&self) {
        // Where the connection is gone, so is the need.
        match self {
            Self::V4(client) => drop(client.disconnect()),
            Self::V5(client) => drop(client.disconnect()),
        }
    }
}

impl Events {
    /// What happens next; `None` once every [`Client`] is gone. After an error this value is to be dropped.
    pub fn wait(&mut self) -> Option<Result<Seen, Trouble>> {
        match self {
            Self::V4(connection) => connection.recv().ok().map(v4::seen),
            Self::V5(connection) => connection.recv().ok().map(v5::seen),
        }
    }

    /// After an error: what had happened before it and was not told yet, as packets that left.
    pub fn rest(&mut self) -> Vec<Seen> {
        match self {
            Self::V4(connection) => {
                connection.eventloop.state.events.drain(..).filter_map(|event| v4::seen(Ok(event)).ok()).collect()
            }
            Self::V5(connection) => {
                connection.eventloop.state.events.drain(..).filter_map(|event| v5::seen(Ok(event)).ok()).collect()
            }
        }
    }

    /// The same as [`Events::wait`] within a time; `Err(())` when it is over, and then this value is to be dropped: what was under way may be lost.
    #[allow(clippy::result_unit_err, reason = "over is over")]
    pub fn wait_within(&mut self, time: Duration) -> Result<Option<Result<Seen, Trouble>>, ()> {
        use rumqttc::RecvTimeoutError;
        use rumqttc::v5;
        match self {
            Self::V4(connection) => match connection.recv_timeout(time) {
                Ok(event) => Ok(Some(v4::seen(event))),
                Err(RecvTimeoutError::Disconnected) => Ok(None),
                Err(RecvTimeoutError::Timeout) => Err(()),
            },
            Self::V5(connection) => match connection.recv_timeout(time) {
                Ok(event) => Ok(Some(self::v5::seen(event))),
                Err(v5::RecvTimeoutError::Disconnected) => Ok(None),
                Err(v5::RecvTimeoutError::Timeout) => Err(()),
            },
        }
    }
}

/// `ImplementationSpecificError` as `implementation specific error`.
fn words(name: &impl fmt::Debug) -> String {
    let mut out = String::new();
    for c in format!("{name:?}").chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// `quota exceeded: the disk is full`.
fn with_reason(reason: &impl fmt::Debug, text: Option<&String>) -> String {
    match text {
        Some(text) => format!("{}: {text}", words(reason)),
        None => words(reason),
    }
}

fn io_trouble(error: &std::io::Error) -> Trouble {
    use std::io::ErrorKind;
    let said = match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused: does a broker listen there?".into(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
            "the broker closed the connection without a word, as MQTT 3.1.1 brokers do when they refuse something"
                .into()
        }
        _ => error.to_string(),
    };
    Trouble(said)
}

fn too_large(size: usize, max: usize) -> Trouble {
    Trouble(format!("a packet of {size} bytes is larger than the broker takes, which is {max}"))
}

fn refused(reason: &impl fmt::Debug) -> Trouble {
    let reason = words(reason);
    let hint = if reason.contains("auth") || reason.contains("user") {
        ": check user name (-u) and --password-file"
    } else if reason.contains("protocol") {
        ": try another protocol version with -V"
    } else {
        ""
    };
    Trouble(format!("the broker refused the connection, {reason}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words() {
        assert_eq!(words(&rumqttc::v5::mqttbytes::v5::PubAckReason::QuotaExceeded), "quota exceeded");
        assert!(refused(&rumqttc::ConnectReturnCode::BadUserNamePassword).0.contains("--password-file"));
        assert!(refused(&rumqttc::ConnectReturnCode::RefusedProtocolVersion).0.contains("-V"));
    }
}
