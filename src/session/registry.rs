//! Who owns a client identifier: sessions by number, takeover, clean start, and the end of those whose time is up.

use super::connect::Expiry;
use crate::limits::{EXPIRIES_PER_CALL_MAX, SESSIONS_MAX};
use crate::mqtt::Text;
use crate::types::{ConnId, SessionId};
use foldhash::fast::FixedState;
use std::collections::{BTreeSet, HashMap};

const NS_PER_S: u64 = 1_000_000_000;

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Client identifier.
    pub client: Text,
    /// User name of its owner.
    pub user: Option<Text>,
    /// How long it outlives its connection.
    pub expiry: Expiry,
    /// Its connection, if it has one.
    pub conn: Option<ConnId>,
    /// Whether it was ever to outlive a connection, so that the log may hold records of it.
    pub durable: bool,
    /// Monotonic ns at which it ends; only while it has no connection.
    expires_ns: Option<u64>,
}

/// A session that is no more. What else belongs to it (subscriptions, hand-shakes, cursor, records in the log) is to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number, which is never used again.
    pub id: SessionId,
    /// What it was.
    pub session: Session,
}

/// A client's session after CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub id: SessionId,
    /// Whether it was there before [MQTT-3.2.2-3].
    pub present: bool,
    /// Whether its record in the log is to be written: it is durable, and new or changed.
    pub changed: bool,
    /// The connection that it was taken from; to be closed, in MQTT 5 with 0x8E [MQTT-3.1.4-3].
    pub taken_from: Option<ConnId>,
    /// The session that ended for it.
    pub ended: Option<Ended>,
}

/// As many sessions as there may be, all alive. MQTT 5: 0x97.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySessions;

/// All sessions.
#[derive(Debug)]
pub struct Registry {
    by_client: HashMap<Text, SessionId, FixedState>,
    sessions: HashMap<SessionId, Session, FixedState>,
    expiries: BTreeSet<(u64, SessionId)>,
    next_id: u64,
    online: usize,
}

impl Registry {
    /// None. The seed keeps clients from choosing identifiers that collide.
    pub fn new(hash_seed: u64) -> Self {
        let hasher = FixedState::with_seed(hash_seed);
        Self {
            by_client: HashMap::with_hasher(hasher.clone()),
            sessions: HashMap::with_hasher(hasher),
            expiries: BTreeSet::new(),
            next_id: 1,
            online: 0,
        }
    }

    /// Puts back a session read from the log. `offline_s`: for how long it is known to have been without a connection; its time
    /// runs on from there. `false`: it ended with its connection, its time is up, or its client has a session already (which a sound
    /// log does not hold); its records are to be removed.
    pub fn restore(
        &mut self,
        id: SessionId,
        client: Text,
        user: Option<Text>,
        expiry: Expiry,
        offline_s: u64,
        now_ns: u64,
    ) -> bool {
        self.next_id = self.next_id.max(id.0.saturating_add(1));
        let left_s = match expiry {
            _ if self.by_client.contains_key(&client) => return false,
            Expiry::WithConnection => return false,
            Expiry::AfterSeconds(seconds) if u64::from(seconds) <= offline_s => return false,
            Expiry::AfterSeconds(seconds) => Some(u64::from(seconds) - offline_s),
            Expiry::Never => None,
        };
        let expires_ns = left_s.map(|left_s| now_ns.saturating_add(left_s * NS_PER_S));
        self.expiries.extend(expires_ns.map(|at| (at, id)));
        self.by_client.insert(client.clone(), id);
        self.sessions.insert(id, Session { client, user, expiry, conn: None, durable: true, expires_ns });
        true
    }

    /// A client that was let in gets its session: the one it has, or a new one after a clean start, when the former one ends with
    /// the connection it is taken from, when its time is up, or when its owner was another user.
    ///
    /// # Errors
    /// When there are [`SESSIONS_MAX`]; nothing has changed then.
    pub fn connect(
        &mut self,
        conn: ConnId,
        client: &Text,
        user: Option<&Text>,
        clean_start: bool,
        expiry: Expiry,
        now_ns: u64,
    ) -> Result<Opened, TooManySessions> {
        let former = self.by_client.get(client).copied();
        let taken_from = former.and_then(|id| self.sessions.get(&id)?.conn);
        if !clean_start
            && let Some(id) = former
            && let Some(session) = self.sessions.get_mut(&id)
            && session.expiry.is_persistent()
            && session.user.as_ref() == user
            && session.expires_ns.is_none_or(|at| at > now_ns)
        {
            if let Some(at) = session.expires_ns.take() {
                self.expiries.remove(&(at, id));
            }
            self.online += usize::from(session.conn.is_none());
            session.conn = Some(conn);
            let changed = session.expiry != expiry;
            session.expiry = expiry;
            return Ok(Opened { id, present: true, changed, taken_from, ended: None });
        }
        if former.is_none() && self.sessions.len() >= SESSIONS_MAX {
            return Err(TooManySessions);
        }
        let ended = former.and_then(|id| self.remove(id));
        let id = SessionId(self.next_id);
        self.next_id += 1;
        let durable = expiry.is_persistent();
        let client = client.detached();
        self.by_client.insert(client.clone(), id);
        let user = user.map(Text::detached);
        self.sessions.insert(id, Session { client, user, expiry, conn: Some(conn), durable, expires_ns: None });
        self.online += 1;
        Ok(Opened { id, present: false, changed: durable, taken_from, ended })
    }

    /// A connection of the session is gone. `expiry` is what holds from now on (DISCONNECT may have changed it). `Some`: the session
    /// ended with it. Nothing happens if the session has another connection by now.
    pub fn disconnected(&mut self, id: SessionId, conn: ConnId, expiry: Expiry, now_ns: u64) -> Option<Ended> {
        let session = self.sessions.get_mut(&id).filter(|session| session.conn == Some(conn))?;
        session.expiry = expiry;
        let expires_ns = match expiry {
            Expiry::WithConnection => return self.remove(id),
            Expiry::AfterSeconds(seconds) => Some(now_ns.saturating_add(u64::from(seconds) * NS_PER_S)),
            Expiry::Never => None,
        };
        session.conn = None;
        session.expires_ns = expires_ns;
        self.online -= 1;
        self.expiries.extend(expires_ns.map(|at| (at, id)));
        None
    }

    /// Ends sessions whose time is up, at most [`EXPIRIES_PER_CALL_MAX`] of them in one call.
    pub fn expire(&mut self, now_ns: u64) -> Vec<Ended> {
        let up = self.expiries.iter().take_while(|(at, _)| *at <= now_ns).take(EXPIRIES_PER_CALL_MAX);
        let ids: Vec<SessionId> = up.map(|(_, id)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// When the next session ends, in monotonic ns.
    pub fn next_expiry_ns(&self) -> Option<u64> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// A session.
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The connection of a session.
    pub fn conn(&self, id: SessionId) -> Option<ConnId> {
        self.sessions.get(&id)?.conn
    }

    /// The session of a client.
    pub fn of_client(&self, client: &Text) -> Option<SessionId> {
        self.by_client.get(client).copied()
    }

    /// All sessions, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// Sessions with a connection.
    pub fn online(&self) -> usize {
        self.online
    }

    /// Sessions without one.
    pub fn offline(&self) -> usize {
        self.sessions.len() - self.online
    }

    fn remove(&mut self, id: SessionId) -> Option<Ended> {
        let session = self.sessions.remove(&id)?;
        if let Some(at) = session.expires_ns {
            self.expiries.remove(&(at, id));
        }
        self.online -= usize::from(session.conn.is_some());
        self.by_client.remove(&session.client);
        Some(Ended { id, session })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Expiry = Expiry::Never;
    const CONN: Expiry = Expiry::WithConnection;

    fn open(registry: &mut Registry, conn: u64, clean: bool, expiry: Expiry, now_s: u64) -> Opened {
        registry.connect(ConnId(conn), &Text::from("c"), None, clean, expiry, now_s * NS_PER_S).unwrap()
    }

    #[test]
    fn a_persistent_session_is_there_when_its_client_returns() {
        let mut registry = Registry::new(1);
        let first = open(&mut registry, 1, false, NEVER, 0);
        assert!(!first.present && first.changed);
        assert_eq!(registry.disconnected(first.id, ConnId(1), NEVER, 0), None);
        assert_eq!((registry.online(), registry.offline()), (0, 1));
        let again = open(&mut registry, 2, false, NEVER, 9);
        assert_eq!(again, Opened { id: first.id, present: true, changed: false, taken_from: None, ended: None });
        assert!(open(&mut registry, 3, false, Expiry::AfterSeconds(5), 9).changed);
        assert_eq!((registry.online(), registry.offline()), (1, 0));
    }

    #[test]
    fn a_clean_start_ends_the_former_session() {
        let mut registry = Registry::new(1);
        let first = open(&mut registry, 1, false, NEVER, 0);
        let second = open(&mut registry, 2, true, CONN, 0);
        assert!(!second.present && !second.changed && second.id != first.id);
        assert_eq!(second.taken_from, Some(ConnId(1)));
        let ended = second.ended.unwrap();
        assert!(ended.id == first.id && ended.session.durable);
        assert_eq!(
            registry.disconnected(first.id, ConnId(1), NEVER, 0),
            None,
            "the old connection's end changes nothing"
        );
        assert_eq!(registry.conn(second.id), Some(ConnId(2)));
        assert_eq!(registry.disconnected(second.id, ConnId(2), CONN, 0).unwrap().id, second.id);
        assert_eq!((registry.online(), registry.offline(), registry.of_client(&Text::from("c"))), (0, 0, None));
    }

    #[test]
    fn a_takeover_keeps_a_persistent_session_and_ends_one_that_goes_with_its_connection() {
        let mut registry = Registry::new(1);
        let first = open(&mut registry, 1, false, NEVER, 0);
        let second = open(&mut registry, 2, false, CONN, 0);
        assert_eq!((second.id, second.present, second.taken_from), (first.id, true, Some(ConnId(1))));
        assert_eq!(registry.disconnected(first.id, ConnId(1), NEVER, 0), None);
        let third = open(&mut registry, 3, false, NEVER, 0);
        assert_eq!((third.present, third.taken_from), (false, Some(ConnId(2))));
        assert!(third.ended.unwrap().session.durable, "the log holds records of when it was persistent");
    }

    #[test]
    fn an_offline_session_ends_when_its_time_is_up() {
        let mut registry = Registry::new(1);
        let first = open(&mut registry, 1, false, Expiry::AfterSeconds(10), 0);
        assert!(registry.expire(u64::MAX).is_empty(), "not while it has a connection");
        registry.disconnected(first.id, ConnId(1), Expiry::AfterSeconds(10), 5 * NS_PER_S);
        assert_eq!(registry.next_expiry_ns(), Some(15 * NS_PER_S));
        assert!(registry.expire(15 * NS_PER_S - 1).is_empty());
        let again = open(&mut registry, 2, false, Expiry::AfterSeconds(10), 14);
        assert!(again.present && registry.next_expiry_ns().is_none());
        registry.disconnected(first.id, ConnId(2), Expiry::AfterSeconds(10), 14 * NS_PER_S);
        let late = open(&mut registry, 3, false, Expiry::AfterSeconds(10), 24);
        assert!(!late.present, "even before anybody has swept it away");
        assert_eq!(late.ended.unwrap().id, first.id);
        registry.disconnected(late.id, ConnId(3), Expiry::AfterSeconds(1), 30 * NS_PER_S);
        assert_eq!(registry.expire(31 * NS_PER_S).len(), 1);
        assert_eq!((registry.offline(), registry.next_expiry_ns()), (0, None));
    }

    #[test]
    fn another_user_does_not_get_the_session() {
        let mut registry = Registry::new(1);
        let (client, user) = (Text::from("c"), Text::from("u"));
        let first = registry.connect(ConnId(1), &client, Some(&user), false, NEVER, 0).unwrap();
        let second = registry.connect(ConnId(2), &client, None, false, NEVER, 0).unwrap();
        assert!(!second.present);
        assert_eq!(second.ended.unwrap().id, first.id);
    }

    #[test]
    fn sessions_have_a_bound_that_a_returning_client_does_not_meet() {
        let mut registry = Registry::new(1);
        for n in 0..SESSIONS_MAX as u64 {
            registry.connect(ConnId(n), &Text::from(n.to_string()), None, true, CONN, 0).unwrap();
        }
        let connect = |registry: &mut Registry, client: &str| {
            registry.connect(ConnId(1 << 40), &Text::from(client), None, true, CONN, 0).map(|opened| opened.present)
        };
        assert_eq!(connect(&mut registry, "new"), Err(TooManySessions));
        assert_eq!(connect(&mut registry, "7"), Ok(false));
    }

    #[test]
    fn restored_sessions_keep_their_number_and_the_rest_of_their_time() {
        let mut registry = Registry::new(1);
        let mut restore = |id, client: &str, expiry, offline_s| {
            registry.restore(SessionId(id), Text::from(client), None, expiry, offline_s, 0)
        };
        assert!(restore(7, "c", Expiry::AfterSeconds(10), 4));
        assert!(restore(3, "d", NEVER, 1 << 40));
        assert!(!restore(9, "e", Expiry::AfterSeconds(10), 10));
        assert!(!restore(8, "f", CONN, 0));
        assert!(!restore(6, "c", NEVER, 0), "a client has one session");
        assert_eq!(registry.next_expiry_ns(), Some(6 * NS_PER_S));
        assert_eq!(open(&mut registry, 1, false, NEVER, 1).id, SessionId(7));
        assert_eq!(registry.connect(ConnId(2), &Text::from("new"), None, false, NEVER, 0).unwrap().id, SessionId(10));
    }
}
