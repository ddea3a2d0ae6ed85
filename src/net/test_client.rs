//! A client for tests: real sockets, packets by our own codec, no waiting unless asked for.

use crate::mqtt::decode::{Decoder, Peer};
use crate::mqtt::encode::encode;
use crate::mqtt::properties::*;
use crate::mqtt::*;
use bytes::{Bytes, BytesMut};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// An MQTT client.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) decoder: Decoder,
    bytes: BytesMut,
    /// The other side closed.
    pub(crate) ended: bool,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, decoder: Decoder::new(Peer::Server, 1 << 24), bytes: BytesMut::new(), ended: false }
    }

    pub(crate) fn send(&mut self, packet: &Packet, version: Version) {
        let mut bytes = Vec::new();
        encode(packet, version, &mut bytes).unwrap();
        self.stream.set_nonblocking(false).unwrap();
        self.stream.write_all(&bytes).unwrap();
        self.stream.set_nonblocking(true).unwrap();
    }

    fn fill(&mut self) {
        let mut chunk = [0; 65_536];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(read) => self.bytes.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.ended = true,
        }
    }

    /// Connects and waits for CONNACK.
    pub(crate) fn connected(address: SocketAddr, version: Version) -> Self {
        let mut client = Self::new(address);
        client.send(&connect(version), version);
        client.decoder.set_version(version);
        assert!(matches!(client.wait(), Some(Packet::ConnAck(it)) if it.reason == Reason::SUCCESS));
        client
    }

    /// The next packet, or `None` if the other side closed; fails after ten seconds.
    pub(crate) fn wait(&mut self) -> Option<Packet> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(packet) = self.receive() {
                return Some(packet);
            }
            if self.ended {
                return None;
            }
            assert!(Instant::now() < until, "nothing came");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// A packet, if one is there.
    pub(crate) fn receive(&mut self) -> Option<Packet> {
        self.fill();
        let mut bytes = self.bytes.split().freeze();
        let packet = self.decoder.decode(&mut bytes).unwrap();
        self.bytes = BytesMut::from(bytes);
        packet
    }
}

pub(crate) fn connect(version: Version) -> Packet {
    Packet::Connect(Box::new(Connect {
        version,
        clean_start: true,
        keep_alive_s: 0,
        client_id: Text::default(),
        will: None,
        username: None,
        password: None,
        properties: ConnectProperties::default(),
    }))
}

/// To the topic `a/b`.
pub(crate) fn publish(qos: QoS, packet_id: u16, payload: &[u8]) -> Publish {
    let (topic, payload) = (Text::from("a/b"), Bytes::copy_from_slice(payload));
    Publish { dup: false, qos, retain: false, topic, packet_id, properties: None, payload }
}
