//! Packets over a blocking socket, through our own codec.

use bytes::Bytes;
use forebay::mqtt::decode::{Decoder, Peer};
use forebay::mqtt::encode::encode;
use forebay::mqtt::{Packet, Version};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// One connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    decoder: Decoder,
    unread: Vec<u8>,
    ready: VecDeque<Packet>,
}

impl Wire {
    /// Over a connected socket, to a peer of this kind.
    pub fn new(stream: TcpStream, peer: Peer) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self { stream, decoder: Decoder::new(peer, 64 << 20), unread: Vec::new(), ready: VecDeque::new() })
    }

    /// The version that is spoken; 5 until it is known.
    pub fn version(&self) -> Version {
        self.decoder.version().unwrap_or(Version::V5)
    }

    /// Sets it.
    pub fn set_version(&mut self, version: Version) {
        self.decoder.set_version(version);
    }

    /// Writes bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes packets in one write.
    pub fn send(&mut self, packets: &[Packet]) -> io::Result<()> {
        let mut out = Vec::new();
        for packet in packets {
            encode(packet, self.version(), &mut out).map_err(|error| io::Error::other(error.to_string()))?;
        }
        self.stream.write_all(&out)
    }

    /// The next packet; `None` if there is none within `timeout`; an error once the peer has closed.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<Packet>> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(packet) = self.ready.pop_front() {
                return Ok(Some(packet));
            }
            let left = end.saturating_duration_since(Instant::now());
            if !self.fill(left.max(Duration::from_micros(100)))? && left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// A packet that has been read already.
    pub fn at_hand(&mut self) -> Option<Packet> {
        self.ready.pop_front()
    }

    /// Reads what is there; whether something came.
    fn fill(&mut self, timeout: Duration) -> io::Result<bool> {
        self.stream.set_read_timeout(Some(timeout))?;
        let mut chunk = [0_u8; 64 << 10];
        let read = match self.stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(error),
        };
        self.unread.extend_from_slice(&chunk[..read]);
        let mut bytes = Bytes::from(core::mem::take(&mut self.unread));
        while let Some(packet) = self.decoder.decode(&mut bytes).map_err(|error| io::Error::other(error.to_string()))? {
            self.ready.push_back(packet);
        }
        self.unread = bytes.to_vec();
        Ok(true)
    }

    /// Closes without a word.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
