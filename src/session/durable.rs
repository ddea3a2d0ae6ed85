//! What the log keeps of a session, as control records: keys in byte order, values in postcard.
//!
//! | kind | key | value |
//! |---|---|---|
//! | `Session` | session | [`SessionV1`] |
//! | `Subscription` | session, filter | [`SubscriptionV1`] |
//! | `ReceivedQos2` | session, packet id | [`ReceivedQos2V1`] |
//! | `SessionCursor` | session | [`SessionCursorV1`] |
//!
//! Numbers in keys are big-endian, so that everything of one session stands together. A struct is never edited: a new version is a
//! new struct, and the version stands in the record's envelope.

use super::connect::Expiry;
use crate::mqtt::{QoS, SubscribeOptions, Text};
use crate::types::{LogPosition, Offset, PartitionId, SessionId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version that this file writes, and the only one there is so far.
pub const VERSION: u8 = 1;

/// A record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurableError {
    /// It was written by a later version.
    Version(u8),
    /// The key is not one of its kind.
    Key,
    /// The value is damaged.
    Value,
}

impl core::fmt::Display for DurableError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Version(version) => write!(f, "value of version {version}, which this program does not know"),
            Self::Key => f.write_str("key that is not one of its kind"),
            Self::Value => f.write_str("damaged value"),
        }
    }
}

impl core::error::Error for DurableError {}

/// A persistent session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionV1<'a> {
    /// Client identifier.
    #[serde(borrow)]
    pub client: &'a [u8],
    /// User name of its owner.
    #[serde(borrow)]
    pub user: Option<&'a [u8]>,
    /// How long it outlives its connection.
    pub expiry: Expiry,
}

/// One of its subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionV1 {
    qos: u8,
    no_local: bool,
    retain_as_published: bool,
    retain_handling: u8,
    /// Subscription identifier.
    pub id: Option<u32>,
    /// First log position for which it holds.
    pub since: LogPosition,
}

impl SubscriptionV1 {
    /// From its parts.
    pub fn new(options: SubscribeOptions, id: Option<u32>, since: LogPosition) -> Self {
        let SubscribeOptions { qos, no_local, retain_as_published, retain_handling } = options;
        Self { qos: qos.bits(), no_local, retain_as_published, retain_handling, id, since }
    }

    /// What the client asked for.
    pub fn options(&self) -> SubscribeOptions {
        SubscribeOptions {
            qos: QoS::from_bits(self.qos).unwrap_or_default(),
            no_local: self.no_local,
            retain_as_published: self.retain_as_published,
            retain_handling: self.retain_handling,
        }
    }
}

/// What came in under a QoS 2 identifier that was not released yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedQos2V1 {
    /// Where it is stored.
    pub partition: PartitionId,
    /// And as what.
    pub offset: Offset,
}

/// How far a session is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCursorV1 {
    /// Everything below is done.
    pub position: LogPosition,
    /// Beyond it: done as well, ascending, as many as [`crate::limits::OUTBOUND_BEYOND_MAX`] and a window.
    pub beyond: Vec<LogPosition>,
    /// When it lost its connection, in ms since 1970 if the clock was set; `None` while it has one.
    pub offline_wall_ms: Option<i64>,
}

/// Key of a session, and the beginning of all its other keys.
pub fn session_key(session: SessionId) -> Vec<u8> {
    session.0.to_be_bytes().to_vec()
}

/// Key of a subscription.
pub fn subscription_key(session: SessionId, filter: &Text) -> Vec<u8> {
    [&session.0.to_be_bytes(), filter.as_bytes()].concat()
}

/// Key of a received QoS 2 identifier.
pub fn received_key(session: SessionId, packet_id: u16) -> Vec<u8> {
    [&session.0.to_be_bytes()[..], &packet_id.to_be_bytes()].concat()
}

/// Reads [`session_key`].
///
/// # Errors
/// [`DurableError::Key`].
pub fn read_session_key(key: &[u8]) -> Result<SessionId, DurableError> {
    match split_key(key)? {
        (session, []) => Ok(session),
        _ => Err(DurableError::Key),
    }
}

/// Reads [`subscription_key`].
///
/// # Errors
/// [`DurableError::Key`].
pub fn read_subscription_key(key: &[u8]) -> Result<(SessionId, Text), DurableError> {
    let (session, filter) = split_key(key)?;
    let filter = Text::new(Bytes::copy_from_slice(filter)).filter(|filter| !filter.is_empty());
    Ok((session, filter.ok_or(DurableError::Key)?))
}

/// Reads [`received_key`].
///
/// # Errors
/// [`DurableError::Key`].
pub fn read_received_key(key: &[u8]) -> Result<(SessionId, u16), DurableError> {
    let (session, packet_id) = split_key(key)?;
    let packet_id = packet_id.try_into().map(u16::from_be_bytes).map_err(|_| DurableError::Key)?;
    if packet_id == 0 { Err(DurableError::Key) } else { Ok((session, packet_id)) }
}

fn split_key(key: &[u8]) -> Result<(SessionId, &[u8]), DurableError> {
    let (session, rest) = key.split_first_chunk::<8>().ok_or(DurableError::Key)?;
    Ok((SessionId(u64::from_be_bytes(*session)), rest))
}

impl<'a> SessionV1<'a> {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a value of any version that there is.
    ///
    /// # Errors
    /// [`DurableError::Version`], [`DurableError::Value`].
    pub fn decode(version: u8, value: &'a [u8]) -> Result<Self, DurableError> {
        decode(version, value)
    }

    /// Client identifier and user name as texts of their own.
    ///
    /// # Errors
    /// [`DurableError::Value`] if they are none.
    pub fn texts(&self) -> Result<(Text, Option<Text>), DurableError> {
        let text = |bytes: &[u8]| Text::new(Bytes::copy_from_slice(bytes)).ok_or(DurableError::Value);
        Ok((text(self.client)?, self.user.map(text).transpose()?))
    }
}

impl SubscriptionV1 {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a value of any version that there is.
    ///
    /// # Errors
    /// [`DurableError::Version`], [`DurableError::Value`].
    pub fn decode(version: u8, value: &[u8]) -> Result<Self, DurableError> {
        let read: Self = decode(version, value)?;
        if read.qos > 2 || read.retain_handling > 2 { Err(DurableError::Value) } else { Ok(read) }
    }
}

impl ReceivedQos2V1 {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a value of any version that there is.
    ///
    /// # Errors
    /// [`DurableError::Version`], [`DurableError::Value`].
    pub fn decode(version: u8, value: &[u8]) -> Result<Self, DurableError> {
        decode(version, value)
    }
}

impl SessionCursorV1 {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a value of any version that there is.
    ///
    /// # Errors
    /// [`DurableError::Version`], [`DurableError::Value`].
    pub fn decode(version: u8, value: &[u8]) -> Result<Self, DurableError> {
        let read: Self = decode(version, value)?;
        if read.beyond.is_sorted_by(|a, b| a < b) { Ok(read) } else { Err(DurableError::Value) }
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Into memory, and of types whose lengths are known, this does not fail.
    postcard::to_allocvec(value).unwrap_or_default()
}

fn decode<'a, T: Deserialize<'a>>(version: u8, value: &'a [u8]) -> Result<T, DurableError> {
    if version != VERSION {
        return Err(DurableError::Version(version));
    }
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Ok(value),
        _ => Err(DurableError::Value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::StreamId;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_version_1_stay_what_they_are() {
        let session = SessionV1 { client: b"c", user: Some(b"u"), expiry: Expiry::AfterSeconds(300) };
        assert_eq!(session.encode(), [1, b'c', 1, 1, b'u', 1, 0xac, 2]);
        assert_eq!(SessionV1::decode(1, &session.encode()), Ok(session));
        let options =
            SubscribeOptions { qos: QoS::ExactlyOnce, no_local: true, retain_as_published: false, retain_handling: 1 };
        let subscription = SubscriptionV1::new(options, Some(7), LogPosition { seq: 300, index: 2 });
        assert_eq!(subscription.encode(), [2, 1, 0, 1, 1, 7, 0xac, 2, 2]);
        let read = SubscriptionV1::decode(1, &subscription.encode()).unwrap();
        assert_eq!((read, read.options()), (subscription, options));
        let partition = PartitionId { stream: StreamId(300), partition: 2 };
        let received = ReceivedQos2V1 { partition, offset: 5 };
        assert_eq!(received.encode(), [0xac, 2, 2, 5]);
        assert_eq!(ReceivedQos2V1::decode(1, &received.encode()), Ok(received));
        let cursor = SessionCursorV1 {
            position: LogPosition { seq: 1, index: 2 },
            beyond: vec![LogPosition { seq: 3, index: 4 }],
            offline_wall_ms: Some(-1),
        };
        assert_eq!(cursor.encode(), [1, 2, 1, 3, 4, 1, 1]);
        assert_eq!(SessionCursorV1::decode(1, &cursor.encode()), Ok(cursor));
    }

    #[test]
    fn keys_of_one_session_stand_together_and_are_read_back() {
        let (one, two) = (SessionId(1), SessionId(256));
        assert!(session_key(one) < subscription_key(one, &Text::from("z")));
        assert!(subscription_key(one, &Text::from("z")) < session_key(two));
        assert!(received_key(one, 2) < received_key(one, 256));
        assert_eq!(read_session_key(&session_key(two)), Ok(two));
        assert_eq!(read_subscription_key(&subscription_key(two, &Text::from("a/#"))), Ok((two, Text::from("a/#"))));
        assert_eq!(read_received_key(&received_key(two, 513)), Ok((two, 513)));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        assert_eq!(SessionV1::decode(2, &[]), Err(DurableError::Version(2)));
        assert_eq!(SubscriptionV1::decode(1, &[3, 0, 0, 0, 0, 0, 0]), Err(DurableError::Value));
        assert_eq!(SubscriptionV1::decode(1, &[2, 0, 0, 0, 0, 0, 0, 9]), Err(DurableError::Value), "more than it says");
        assert_eq!(SessionCursorV1::decode(1, &[1, 0, 2, 9, 0, 3, 0, 0]), Err(DurableError::Value), "not ascending");
        assert_eq!(read_session_key(&[0; 9]), Err(DurableError::Key));
        assert_eq!(read_received_key(&[0; 10]), Err(DurableError::Key), "there is no packet identifier 0");
        assert_eq!(read_subscription_key(&[0; 8]), Err(DurableError::Key));
        let session = SessionV1 { client: &[0xff], user: None, expiry: Expiry::Never };
        assert_eq!(session.texts(), Err(DurableError::Value));
    }

    proptest! {
        #[test]
        fn damage_is_an_error_and_never_more(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = SessionV1::decode(1, &bytes).map(|read| read.texts());
            let _ = (SubscriptionV1::decode(1, &bytes), ReceivedQos2V1::decode(1, &bytes));
            let _ = SessionCursorV1::decode(1, &bytes);
            let _ = (read_session_key(&bytes), read_subscription_key(&bytes), read_received_key(&bytes));
        }
    }
}
