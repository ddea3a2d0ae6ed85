//! Subscriptions of all sessions, and what they make of a topic: one entry per session, overlapping ones merged.

use super::tree::{FilterTree, NodeId, TreeFull};
use crate::limits::{SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_PER_SESSION_MAX};
use crate::mqtt::{QoS, SubscribeOptions, Text};
use crate::types::{LogPosition, SessionId};
use bytes::Bytes;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// One subscription without its filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// What the client asked for.
    pub options: SubscribeOptions,
    /// Subscription identifier [MQTT-3.8.2.1.2].
    pub id: Option<u32>,
    /// First log position for which it holds.
    pub since: LogPosition,
}

/// Why a subscription cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeError {
    /// The filter has too many levels.
    Levels,
    /// The session has as many subscriptions as one may have.
    Session,
    /// All sessions together have, or the filters take as much space as they may.
    Full,
}

impl From<TreeFull> for SubscribeError {
    fn from(full: TreeFull) -> Self {
        match full {
            TreeFull::Levels => Self::Levels,
            TreeFull::Space => Self::Full,
        }
    }
}

/// What one session's subscriptions make of a topic: one copy of the message [MQTT-3.3.5-1].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// The session.
    pub session: SessionId,
    /// Highest QoS of the matching subscriptions.
    pub qos: QoS,
    /// Whether any of them wants the RETAIN flag as published.
    pub retain_as_published: bool,
    /// Their subscription identifiers, ascending [MQTT-3.3.4-3] [MQTT-3.3.4-4].
    pub ids: Box<[u32]>,
    /// From here on at least one of them holds.
    pub since: LogPosition,
    /// From here on all of them hold, and the entry is right as it stands.
    pub since_all: LogPosition,
    /// What the session gets of its own messages.
    pub own: Own,
}

impl Matched {
    /// Whether a QoS 0 copy for it is the same as for any other such entry, whoever published.
    pub fn is_plain(&self) -> bool {
        !self.retain_as_published && self.ids.is_empty() && self.own == Own::Same
    }
}

/// What a session gets of its own messages [MQTT-3.8.3-3].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// The same as of others: no matching subscription is no-local.
    Same,
    /// Nothing: all of them are.
    Nothing,
    /// What those make of it that are not.
    Other(Box<Matched>),
}

/// Who gets the messages of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchSet {
    /// By session, ascending.
    pub entries: Box<[Matched]>,
    /// Highest QoS of any entry: 0 means that no copy needs a packet identifier.
    pub max_qos: QoS,
    /// Whether every entry is plain ([`Matched::is_plain`]), so that one encoded QoS 0 message serves them all.
    pub plain: bool,
    /// [`super::Router::generation`] of the subscriptions when the set was made.
    pub generation: u64,
}

impl MatchSet {
    /// The entry of a session.
    pub fn get(&self, session: SessionId) -> Option<&Matched> {
        let index = self.entries.binary_search_by_key(&session, |entry| entry.session).ok()?;
        self.entries.get(index)
    }

    /// The entries as they are for a message of this publisher: its own is left out or replaced as its no-local subscriptions
    /// want it. `None` is a publisher without a session (a will, the broker itself).
    pub fn for_publisher(&self, publisher: Option<SessionId>) -> impl Iterator<Item = &Matched> {
        self.entries.iter().filter_map(move |entry| match &entry.own {
            Own::Same => Some(entry),
            _ if Some(entry.session) != publisher => Some(entry),
            Own::Nothing => None,
            Own::Other(own) => Some(&**own),
        })
    }
}

/// A subscription in its filter's node.
#[derive(Clone, Copy, Debug)]
struct Held {
    session: SessionId,
    subscription: Subscription,
}

/// All subscriptions.
#[derive(Debug)]
pub struct Subscriptions {
    /// By session, ascending, in each node.
    tree: FilterTree<Vec<Held>>,
    /// The nodes in which a session has a subscription.
    by_session: HashMap<SessionId, Vec<NodeId>, FixedState>,
    count: usize,
    generation: u64,
}

impl Subscriptions {
    /// None.
    pub fn new(hash_seed: u64) -> Self {
        Self {
            tree: FilterTree::new(hash_seed),
            by_session: HashMap::with_hasher(FixedState::with_seed(hash_seed)),
            count: 0,
            generation: 0,
        }
    }

    /// Adds or replaces; see [`super::Router::subscribe`].
    ///
    /// # Errors
    /// When a bound is reached; nothing has changed then.
    pub fn subscribe(
        &mut self,
        session: SessionId,
        filter: &[u8],
        subscription: Subscription,
    ) -> Result<bool, SubscribeError> {
        if let Some(held) = self.held_mut(session, filter) {
            held.subscription = subscription;
            self.generation += 1;
            return Ok(true);
        }
        if self.by_session.get(&session).is_some_and(|nodes| nodes.len() >= SUBSCRIPTIONS_PER_SESSION_MAX) {
            return Err(SubscribeError::Session);
        }
        if self.count >= SUBSCRIPTIONS_MAX {
            return Err(SubscribeError::Full);
        }
        let (node, list) = self.tree.insert(filter)?;
        let place = list.partition_point(|held| held.session < session);
        list.insert(place, Held { session, subscription });
        self.by_session.entry(session).or_default().push(node);
        self.count += 1;
        self.generation += 1;
        Ok(false)
    }

    /// Removes one; see [`super::Router::unsubscribe`].
    pub fn unsubscribe(&mut self, session: SessionId, filter: &[u8]) -> bool {
        let Some(node) = self.tree.find(filter) else { return false };
        if !self.take(session, node) {
            return false;
        }
        if let Some(nodes) = self.by_session.get_mut(&session) {
            nodes.retain(|other| *other != node);
            if nodes.is_empty() {
                self.by_session.remove(&session);
            }
        }
        self.generation += 1;
        true
    }

    /// Removes all of a session.
    pub fn drop_session(&mut self, session: SessionId) {
        let Some(nodes) = self.by_session.remove(&session) else { return };
        for node in nodes {
            self.take(session, node);
        }
        self.generation += 1;
    }

    /// The session's subscription with exactly this filter.
    pub fn get(&self, session: SessionId, filter: &[u8]) -> Option<&Subscription> {
        let list = self.tree.value(self.tree.find(filter)?)?;
        let index = list.binary_search_by_key(&session, |held| held.session).ok()?;
        list.get(index).map(|held| &held.subscription)
    }

    /// The session's filters with their subscriptions.
    pub fn of_session(&self, session: SessionId) -> impl Iterator<Item = (Text, &Subscription)> {
        let nodes = self.by_session.get(&session).map_or(&[][..], Vec::as_slice);
        nodes.iter().filter_map(move |node| {
            let list = self.tree.value(*node)?;
            let index = list.binary_search_by_key(&session, |held| held.session).ok()?;
            Some((Text::new(Bytes::from(self.tree.filter(*node)))?, &list.get(index)?.subscription))
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Grows with every change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What all sessions' subscriptions make of a topic.
    pub fn matches(&self, topic: &[u8]) -> MatchSet {
        let mut lists: Vec<&[Held]> = Vec::new();
        self.tree.visit(topic, |list| lists.push(list));
        let entries: Box<[Matched]> = match lists.as_slice() {
            // The usual cases first: lists are in order and hold each session once.
            [] => Box::default(),
            [only] => only.iter().map(|held| merge(core::slice::from_ref(held))).collect(),
            _ => {
                let mut all: Vec<Held> = lists.concat();
                all.sort_by_key(|held| held.session);
                all.chunk_by(|a, b| a.session == b.session).map(merge).collect()
            }
        };
        MatchSet {
            max_qos: entries.iter().map(|entry| entry.qos).max().unwrap_or_default(),
            plain: entries.iter().all(Matched::is_plain),
            generation: self.generation,
            entries,
        }
    }

    /// What those of one session's subscriptions that held at `at` make of a topic.
    pub fn matches_session(&self, session: SessionId, topic: &[u8], at: LogPosition) -> Option<Matched> {
        let mut held: Vec<Held> = Vec::new();
        self.tree.visit(topic, |list| {
            let found = list.binary_search_by_key(&session, |held| held.session).ok();
            held.extend(found.and_then(|index| list.get(index)).filter(|held| held.subscription.since <= at));
        });
        (!held.is_empty()).then(|| merge(&held))
    }

    fn held_mut(&mut self, session: SessionId, filter: &[u8]) -> Option<&mut Held> {
        let list = self.tree.value_mut(self.tree.find(filter)?)?;
        let index = list.binary_search_by_key(&session, |held| held.session).ok()?;
        list.get_mut(index)
    }

    /// Takes a session's subscription out of a node. `false`: there was none.
    fn take(&mut self, session: SessionId, node: NodeId) -> bool {
        let Some(list) = self.tree.value_mut(node) else { return false };
        let Ok(index) = list.binary_search_by_key(&session, |held| held.session) else { return false };
        list.remove(index);
        if list.is_empty() {
            self.tree.remove(node);
        } else if list.len() * 4 < list.capacity() {
            list.shrink_to(list.len() * 2);
        }
        self.count -= 1;
        true
    }
}

/// Merges subscriptions of one session, at least one.
fn merge(held: &[Held]) -> Matched {
    let local = held.iter().filter(|held| held.subscription.options.no_local).count();
    let mut merged = merge_all(held.iter());
    merged.own = match local {
        0 => Own::Same,
        _ if local == held.len() => Own::Nothing,
        _ => Own::Other(Box::new(merge_all(held.iter().filter(|held| !held.subscription.options.no_local)))),
    };
    merged
}

fn merge_all<'h>(held: impl Iterator<Item = &'h Held> + Clone) -> Matched {
    let subscriptions = || held.clone().map(|held| &held.subscription);
    let mut ids: Vec<u32> = subscriptions().filter_map(|subscription| subscription.id).collect();
    ids.sort_unstable();
    Matched {
        session: held.clone().next().map(|held| held.session).unwrap_or_default(),
        qos: subscriptions().map(|subscription| subscription.options.qos).max().unwrap_or_default(),
        retain_as_published: subscriptions().any(|subscription| subscription.options.retain_as_published),
        ids: ids.into_boxed_slice(),
        since: subscriptions().map(|subscription| subscription.since).min().unwrap_or_default(),
        since_all: subscriptions().map(|subscription| subscription.since).max().unwrap_or_default(),
        own: Own::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(qos: QoS, id: Option<u32>) -> Subscription {
        Subscription { options: SubscribeOptions { qos, ..Default::default() }, id, since: LogPosition::default() }
    }

    #[test]
    fn overlapping_subscriptions_make_one_entry_with_the_highest_qos_and_all_identifiers() {
        let mut all = Subscriptions::new(1);
        all.subscribe(SessionId(7), b"a/#", subscription(QoS::AtLeastOnce, Some(5))).unwrap();
        all.subscribe(SessionId(7), b"a/b", subscription(QoS::ExactlyOnce, Some(2))).unwrap();
        all.subscribe(SessionId(3), b"a/+", subscription(QoS::AtMostOnce, None)).unwrap();
        let set = all.matches(b"a/b");
        assert_eq!(set.entries.len(), 2);
        assert_eq!((set.entries[0].session, set.entries[0].is_plain()), (SessionId(3), true));
        assert_eq!((set.entries[1].qos, &*set.entries[1].ids), (QoS::ExactlyOnce, &[2, 5][..]));
        assert_eq!((set.max_qos, set.plain), (QoS::ExactlyOnce, false));
        assert_eq!(all.matches(b"a").entries.len(), 1);
    }

    #[test]
    fn a_session_has_as_many_subscriptions_as_one_may_have_and_no_more() {
        let mut all = Subscriptions::new(1);
        for n in 0..SUBSCRIPTIONS_PER_SESSION_MAX {
            assert_eq!(all.subscribe(SessionId(1), n.to_string().as_bytes(), Subscription::default()), Ok(false));
        }
        assert_eq!(all.subscribe(SessionId(1), b"more", Subscription::default()), Err(SubscribeError::Session));
        assert_eq!(all.subscribe(SessionId(1), b"0", Subscription::default()), Ok(true), "replacing needs no room");
        assert_eq!(all.subscribe(SessionId(2), b"more", Subscription::default()), Ok(false));
        assert_eq!(all.of_session(SessionId(1)).count(), SUBSCRIPTIONS_PER_SESSION_MAX);
        all.drop_session(SessionId(1));
        assert_eq!((all.len(), all.of_session(SessionId(1)).count()), (1, 0));
    }

    #[test]
    fn a_match_entry_stays_small() {
        assert!(size_of::<Held>() <= 48);
        assert!(size_of::<Matched>() <= 80);
    }
}
