//! Bytes to packets: strict, incremental, without copying.
//!
//! [`Decoder::decode`] looks at the bytes of one connection that nobody has read yet. The first byte is judged as soon as it is
//! there, the length as soon as it is complete; then nothing happens until the whole packet has come, so that bytes may come one at
//! a time at no cost. Topics, payloads and all other fields are slices of the input.
//!
//! What is wrong has a reason code as MQTT 5 wants it: malformed (it cannot be read), protocol error (it can, but must not be), or
//! something more exact where the standard has it. In 3.1.1 the connection is just closed.

mod closing;
mod connect;
mod properties;
mod publish;
mod reader;
mod subscribe;

use super::packet::{Packet, Version};
use super::reason::Reason;
use super::wire::kind;
use bytes::{Buf, Bytes};
use core::fmt;
use reader::Reader;

/// Who sent the packets: what may come, and what may stand in it, differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client: we are its server.
    Client,
    /// A server: we are its client.
    Server,
}

/// Why bytes are not a packet that may come here. The connection cannot go on: nobody knows where the next packet begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// For DISCONNECT or CONNACK in MQTT 5 [MQTT-4.13.1-1].
    pub reason: Reason,
    /// For people.
    pub message: &'static str,
}

impl DecodeError {
    pub(super) const fn malformed(message: &'static str) -> Self {
        Self { reason: Reason::MALFORMED_PACKET, message }
    }

    pub(super) const fn protocol(message: &'static str) -> Self {
        Self { reason: Reason::PROTOCOL_ERROR, message }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02X})", self.message, self.reason.0)
    }
}

impl core::error::Error for DecodeError {}

/// Decodes what comes over one connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    peer: Peer,
    version: Option<Version>,
    max_packet_size: u32,
}

/// A fixed header [MQTT-2.1.1].
#[derive(Clone, Copy)]
struct Header {
    /// Type and flags.
    first: u8,
    /// Bytes of the header itself.
    len: usize,
    /// Bytes that follow.
    remaining: usize,
    /// Whether the length was written in the fewest bytes.
    shortest: bool,
}

impl Header {
    fn total(&self) -> usize {
        self.len + self.remaining
    }
}

impl Decoder {
    /// For a connection to `peer`. Packets of more than `max_packet_size` bytes, header included, are refused.
    ///
    /// From a client, CONNECT comes first and tells the version. What comes from a server can be read only after
    /// [`Decoder::set_version`].
    pub fn new(peer: Peer, max_packet_size: u32) -> Self {
        Self { peer, version: None, max_packet_size }
    }

    /// The version in which the connection speaks: that of the CONNECT that was decoded, or was set. After an error in a CONNECT it
    /// is the version in which a CONNACK may say so, if there is one.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Sets the version.
    pub fn set_version(&mut self, version: Version) {
        self.version = Some(version);
    }

    /// Sets the largest packet, in bytes: a server may allow less before a client has shown who it is.
    pub fn set_max_packet_size(&mut self, max_packet_size: u32) {
        self.max_packet_size = max_packet_size;
    }

    /// Takes the packet at the front of `input`. `Ok(None)`: it is not complete, see [`Decoder::needed`].
    ///
    /// A CONNECT sets the version of all that follows. That CONNECT comes only once [MQTT-3.1.0-2] is for the caller to see.
    ///
    /// # Errors
    /// What comes is not MQTT, or must not come from this peer, or is too large. `input` is left as it was.
    pub fn decode(&mut self, input: &mut Bytes) -> Result<Option<Packet>, DecodeError> {
        let Some(header) = self.header(input)? else { return Ok(None) };
        let Some(body) = input.get(header.len..header.total()) else { return Ok(None) };
        let packet = self.body(header, Reader::new(body, input))?;
        input.advance(header.total());
        Ok(Some(packet))
    }

    /// Bytes still missing for the packet at the front of `input`, at least 1: what to read before it is worth while to call
    /// [`Decoder::decode`] again. Never more than the largest packet.
    pub fn needed(&self, input: &[u8]) -> usize {
        match self.header(input) {
            Ok(Some(header)) => header.total().saturating_sub(input.len()).max(1),
            Ok(None) => 2_usize.saturating_sub(input.len()).max(1),
            Err(_) => 1,
        }
    }

    /// Reads and judges the fixed header. `None`: it is not complete.
    #[inline]
    fn header(&self, input: &[u8]) -> Result<Option<Header>, DecodeError> {
        let [first, rest @ ..] = input else { return Ok(None) };
        self.judge(*first)?;
        let mut remaining = 0_usize;
        for (index, &byte) in rest.iter().take(4).enumerate() {
            remaining |= usize::from(byte & 0x7F) << (7 * index);
            if byte & 0x80 != 0 {
                continue;
            }
            let header = Header { first: *first, len: index + 2, remaining, shortest: index == 0 || byte != 0 };
            if header.total() > self.max_packet_size as usize {
                return Err(DecodeError { reason: Reason::PACKET_TOO_LARGE, message: "packet larger than allowed" });
            }
            // 3.1.1 does not ask for the fewest bytes; CONNECT is judged once its version is known.
            if !header.shortest && self.version == Some(Version::V5) {
                return Err(DecodeError::malformed("remaining length not in the fewest bytes [MQTT-1.5.5]"));
            }
            return Ok(Some(header));
        }
        if rest.len() < 4 { Ok(None) } else { Err(DecodeError::malformed("remaining length of more than four bytes")) }
    }

    /// Judges the first byte: may this type come from this peer, with these flags [MQTT-2.1.3-1]?
    #[inline]
    fn judge(&self, first: u8) -> Result<(), DecodeError> {
        let (packet, flags) = (first >> 4, first & 0x0F);
        let flags_fit = match packet {
            kind::PUBLISH => flags & 0x06 != 0x06 && (flags & 0x08 == 0 || flags & 0x06 != 0),
            // 3.1 has DUP there too.
            kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE => {
                flags == 0x02 || (flags == 0x0A && self.version == Some(Version::V31))
            }
            _ => flags == 0,
        };
        if packet == 0 {
            return Err(DecodeError::malformed("packet type 0 [MQTT-2.1.2]"));
        }
        if !flags_fit {
            return Err(DecodeError::malformed("flags of the fixed header do not fit the packet type [MQTT-2.1.3-1]"));
        }
        let Some(version) = self.version else {
            let first_of_client = self.peer == Peer::Client && packet == kind::CONNECT;
            return if first_of_client {
                Ok(())
            } else {
                Err(DecodeError::protocol("expected CONNECT [MQTT-3.1.0-1]"))
            };
        };
        let may_come = match packet {
            kind::CONNECT | kind::SUBSCRIBE | kind::UNSUBSCRIBE | kind::PINGREQ => self.peer == Peer::Client,
            kind::CONNACK | kind::SUBACK | kind::UNSUBACK | kind::PINGRESP => self.peer == Peer::Server,
            kind::DISCONNECT => self.peer == Peer::Client || version == Version::V5,
            kind::AUTH if version != Version::V5 => return Err(DecodeError::malformed("packet type 15 is of MQTT 5")),
            _ => true,
        };
        if may_come { Ok(()) } else { Err(DecodeError::protocol("this packet type cannot come from this side")) }
    }

    /// Reads what follows the fixed header.
    #[inline]
    fn body(&mut self, header: Header, mut reader: Reader<'_>) -> Result<Packet, DecodeError> {
        let reader = &mut reader;
        let packet = header.first >> 4;
        if packet == kind::CONNECT {
            return self.connect(header, reader);
        }
        let version = self.version.ok_or(DecodeError::protocol("expected CONNECT [MQTT-3.1.0-1]"))?;
        let v5 = version == Version::V5;
        let packet = match packet {
            kind::PUBLISH => Packet::Publish(publish::publish(header.first, reader, v5, self.peer)?),
            kind::PUBACK => Packet::PubAck(publish::ack(reader, v5, Reason::in_publish_ack)?),
            kind::PUBREC => Packet::PubRec(publish::ack(reader, v5, Reason::in_publish_ack)?),
            kind::PUBREL => Packet::PubRel(publish::ack(reader, v5, Reason::in_release)?),
            kind::PUBCOMP => Packet::PubComp(publish::ack(reader, v5, Reason::in_release)?),
            kind::CONNACK => Packet::ConnAck(Box::new(connect::connack(reader, version)?)),
            kind::SUBSCRIBE => Packet::Subscribe(Box::new(subscribe::subscribe(reader, v5)?)),
            kind::SUBACK => Packet::SubAck(Box::new(subscribe::suback(reader, v5)?)),
            kind::UNSUBSCRIBE => Packet::Unsubscribe(Box::new(subscribe::unsubscribe(reader, v5)?)),
            kind::UNSUBACK => Packet::UnsubAck(Box::new(subscribe::unsuback(reader, v5)?)),
            kind::PINGREQ => Packet::PingReq,
            kind::PINGRESP => Packet::PingResp,
            kind::DISCONNECT => Packet::Disconnect(Box::new(closing::disconnect(reader, v5)?)),
            _ => Packet::Auth(Box::new(closing::auth(reader)?)),
        };
        reader.finish()?;
        Ok(packet)
    }

    fn connect(&mut self, header: Header, reader: &mut Reader<'_>) -> Result<Packet, DecodeError> {
        let asked = connect::version(reader)?;
        // Even if what follows is wrong, the answer is given in the version that was asked for, or the nearest.
        let adopted = *self.version.get_or_insert(asked.answer);
        let Some(version) = asked.version else {
            return Err(DecodeError {
                reason: Reason::UNSUPPORTED_VERSION,
                message: "protocol version [MQTT-3.1.2-2]",
            });
        };
        if version == Version::V5 && !header.shortest {
            return Err(DecodeError::malformed("remaining length not in the fewest bytes [MQTT-1.5.5]"));
        }
        if version != adopted {
            return Err(DecodeError::protocol("a second CONNECT, of another version [MQTT-3.1.0-2]"));
        }
        let connect = connect::connect(reader, version)?;
        reader.finish()?;
        Ok(Packet::Connect(Box::new(connect)))
    }
}

#[cfg(test)]
mod tests;
