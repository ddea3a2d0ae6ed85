//! Wills: kept while their connection lives, dropped by an orderly DISCONNECT, published otherwise, at once or after their delay.
//!
//! They live in memory: those of a gateway that dies are not published.

use super::connect::Expiry;
use crate::limits::WILLS_BYTES_MAX;
use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, Reason, Will};
use crate::types::SessionId;
use bytes::Bytes;
use foldhash::fast::FixedState;
use std::collections::{BTreeSet, HashMap};

const NS_PER_S: u64 = 1_000_000_000;

/// A will as the message that it may become. It does not hold on to the read buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptWill {
    publish: Publish,
    delay_s: u32,
}

impl KeptWill {
    /// From CONNECT; properties are those of the message to come [MQTT-3.1.3.2].
    pub fn new(will: &Will) -> Self {
        let asked = &will.properties;
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let properties = PublishProperties {
            payload_format: asked.payload_format,
            message_expiry_s: asked.message_expiry_s,
            response_topic: asked.response_topic.as_ref().map(|text| text.detached()),
            correlation_data: asked.correlation_data.as_ref().map(copy),
            user: asked.user.iter().map(|(name, value)| (name.detached(), value.detached())).collect(),
            content_type: asked.content_type.as_ref().map(|text| text.detached()),
            ..Default::default()
        };
        let publish = Publish {
            dup: false,
            qos: will.qos,
            retain: will.retain,
            topic: will.topic.detached(),
            packet_id: 0,
            properties: (properties != PublishProperties::default()).then(|| Box::new(properties)),
            payload: copy(&will.payload),
        };
        Self { publish, delay_s: asked.delay_s.unwrap_or(0) }
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        let properties = self.publish.properties.as_deref().map_or(0, |properties| {
            let user: usize = properties.user.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
            user + properties.response_topic.as_ref().map_or(0, |text| text.len())
                + properties.content_type.as_ref().map_or(0, |text| text.len())
                + properties.correlation_data.as_ref().map_or(0, Bytes::len)
        });
        self.publish.topic.len() + self.publish.payload.len() + properties
    }
}

/// How a connection ended, as far as a will is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// DISCONNECT with reason 0x00, or any in 3.1.1: no will [MQTT-3.14.4-3].
    Orderly,
    /// Anything else, DISCONNECT with another reason included [MQTT-3.1.2-8].
    Abnormal,
}

impl Ending {
    /// What a DISCONNECT with this reason is; 3.1.1 has none but 0x00.
    pub fn of_disconnect(reason: Reason) -> Self {
        if reason == Reason::SUCCESS { Self::Orderly } else { Self::Abnormal }
    }
}

/// The wills of all sessions.
#[derive(Debug, Default)]
pub struct Wills {
    kept: HashMap<SessionId, Kept, FixedState>,
    due: BTreeSet<(u64, SessionId)>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    will: KeptWill,
    /// Monotonic ns at which it is published, once its connection has ended.
    due_ns: Option<u64>,
}

impl Wills {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is room for one more, to be asked before its client is let in: a refusal is 0x97.
    pub fn has_room(&self, will: &KeptWill) -> bool {
        self.bytes + will.bytes() <= WILLS_BYTES_MAX
    }

    /// Keeps the will of a session's new connection in place of a former one. `false`: there is no room, it is not kept.
    pub fn keep(&mut self, session: SessionId, will: KeptWill) -> bool {
        self.take(session);
        if !self.has_room(&will) {
            return false;
        }
        self.bytes += will.bytes();
        self.kept.insert(session, Kept { will, due_ns: None });
        true
    }

    /// The session's connection has ended. The will to publish now, if any; a delayed one comes from [`Wills::due`], not later than
    /// the session ends [MQTT-3.1.3.2.2].
    pub fn disconnected(&mut self, session: SessionId, how: Ending, expiry: Expiry, now_ns: u64) -> Option<Publish> {
        let delay_s = match (self.kept.get(&session)?.will.delay_s, expiry) {
            (_, Expiry::WithConnection) => 0,
            (delay_s, Expiry::AfterSeconds(seconds)) => delay_s.min(seconds),
            (delay_s, Expiry::Never) => delay_s,
        };
        if how == Ending::Orderly || delay_s == 0 {
            let will = self.take(session)?;
            return (how == Ending::Abnormal).then_some(will.publish);
        }
        let due_ns = now_ns.saturating_add(u64::from(delay_s) * NS_PER_S);
        let kept = self.kept.get_mut(&session)?;
        if let Some(former) = kept.due_ns.replace(due_ns) {
            self.due.remove(&(former, session));
        }
        self.due.insert((due_ns, session));
        None
    }

    /// The client is back in its session before the delay has passed: its will is not published [MQTT-3.1.3-9]. (After a takeover
    /// call [`Wills::disconnected`] for the old connection first: a will without delay is published.)
    pub fn resumed(&mut self, session: SessionId) {
        if self.kept.get(&session).is_some_and(|kept| kept.due_ns.is_some()) {
            self.take(session);
        }
    }

    /// The session has ended, by time or by a clean start: the will that was delayed is published now.
    pub fn ended(&mut self, session: SessionId) -> Option<Publish> {
        let delayed = self.kept.get(&session)?.due_ns.is_some();
        self.take(session).filter(|_| delayed).map(|will| will.publish)
    }

    /// The next will whose delay has passed, with its session. To be called until `None`.
    pub fn due(&mut self, now_ns: u64) -> Option<(SessionId, Publish)> {
        let (due_ns, session) = *self.due.first()?;
        if due_ns > now_ns {
            return None;
        }
        self.take(session).map(|will| (session, will.publish))
    }

    /// When the next delay passes, in monotonic ns.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    fn take(&mut self, session: SessionId) -> Option<KeptWill> {
        let kept = self.kept.remove(&session)?;
        if let Some(due_ns) = kept.due_ns {
            self.due.remove(&(due_ns, session));
        }
        self.bytes -= kept.will.bytes();
        Some(kept.will)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::properties::WillProperties;
    use crate::mqtt::{QoS, Text};

    const S: SessionId = SessionId(1);

    fn will(delay_s: u32) -> KeptWill {
        KeptWill::new(&Will {
            topic: Text::from("gone"),
            payload: Bytes::from_static(b"x"),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: WillProperties { delay_s: Some(delay_s), ..Default::default() },
        })
    }

    fn kept(delay_s: u32) -> Wills {
        let mut wills = Wills::new();
        assert!(wills.keep(S, will(delay_s)));
        wills
    }

    #[test]
    fn an_orderly_end_drops_it_and_any_other_publishes_it() {
        assert_eq!(kept(0).disconnected(S, Ending::Orderly, Expiry::Never, 0), None);
        let published = kept(0).disconnected(S, Ending::Abnormal, Expiry::Never, 0).unwrap();
        assert_eq!((published.topic.as_str(), published.properties), ("gone", None));
        assert_eq!(Ending::of_disconnect(Reason::DISCONNECT_WITH_WILL), Ending::Abnormal);
        let mut wills = kept(9);
        assert_eq!(wills.disconnected(S, Ending::Orderly, Expiry::Never, 0), None);
        assert_eq!((wills.due(u64::MAX), wills.bytes), (None, 0));
    }

    #[test]
    fn a_delayed_one_waits_for_its_time_and_not_longer_than_the_session() {
        let mut wills = kept(10);
        assert_eq!(wills.disconnected(S, Ending::Abnormal, Expiry::Never, 5), None);
        assert_eq!(wills.next_due_ns(), Some(10 * NS_PER_S + 5));
        assert_eq!(wills.due(10 * NS_PER_S), None);
        assert!(wills.due(10 * NS_PER_S + 5).is_some());
        assert_eq!(wills.due(u64::MAX), None);

        let mut wills = kept(10);
        wills.disconnected(S, Ending::Abnormal, Expiry::AfterSeconds(3), 0);
        assert_eq!(wills.next_due_ns(), Some(3 * NS_PER_S));
        assert!(kept(10).disconnected(S, Ending::Abnormal, Expiry::WithConnection, 0).is_some());
    }

    #[test]
    fn a_client_that_comes_back_in_time_silences_it_and_a_clean_start_does_not() {
        let mut wills = kept(10);
        wills.disconnected(S, Ending::Abnormal, Expiry::Never, 0);
        wills.resumed(S);
        assert_eq!((wills.due(u64::MAX), wills.ended(S)), (None, None));

        let mut wills = kept(10);
        wills.disconnected(S, Ending::Abnormal, Expiry::Never, 0);
        assert!(wills.ended(S).is_some());
        assert_eq!((wills.due(u64::MAX), wills.bytes), (None, 0));
    }

    #[test]
    fn all_of_them_together_have_a_bound() {
        let mut wills = Wills::new();
        let big = KeptWill { publish: Publish { payload: vec![0; 60_000].into(), ..will(0).publish }, delay_s: 0 };
        let room = WILLS_BYTES_MAX / big.bytes();
        assert!((0..room as u64).all(|n| wills.keep(SessionId(n), big.clone())));
        assert!(!wills.has_room(&big));
        assert!(!wills.keep(SessionId(9_999), big.clone()));
        assert!(wills.keep(SessionId(0), big.clone()), "in place of its own");
    }
}
