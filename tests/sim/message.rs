//! Messages that say who they are: publisher and number stand at the front of the payload, the rest follows from them.

use bytes::Bytes;
use forebay::types::Acks;

/// Which message: its publisher, and the how-many-th of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub publisher: u16,
    pub number: u32,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p{}#{}", self.publisher, self.number)
    }
}

/// First byte of what the centre will never take.
const POISON: u8 = b'X';
const PLAIN: u8 = b'.';

impl Key {
    /// The payload, of at least 8 bytes.
    pub fn payload(self, len: usize, poison: bool) -> Bytes {
        let mut bytes = vec![if poison { POISON } else { PLAIN }, 0];
        bytes.extend_from_slice(&self.publisher.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        let fill = self.number.wrapping_mul(31).wrapping_add(u32::from(self.publisher)) as u8;
        bytes.resize(len.max(8), fill);
        bytes.into()
    }

    /// The key of a payload; `None` if the bytes are not one of ours, or not whole.
    pub fn of(payload: &[u8]) -> Option<Self> {
        let head: [u8; 8] = *payload.first_chunk()?;
        let key = Self {
            publisher: u16::from_le_bytes([head[2], head[3]]),
            number: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
        };
        let poison = match head[0] {
            POISON => true,
            PLAIN => false,
            _ => return None,
        };
        (key.payload(payload.len(), poison) == payload).then_some(key)
    }

    /// Whether the centre refuses it for good.
    pub fn is_poison(payload: &[u8]) -> bool {
        payload.first() == Some(&POISON)
    }
}

/// What a publisher was promised for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    pub level: Acks,
    /// Published at QoS 2 in a durable session: to be stored once.
    pub once: bool,
    /// Its first copy stands in the log in the order of its publisher. Not so where a refusal may wait behind acknowledgements at -1,
    /// unknown to its publisher.
    pub ordered: bool,
}
