//! Where a message goes: the sessions whose filters match its topic, and the stream and partition that store it.
//!
//! [`tree`] finds matching filters at a cost that follows the matching ones only; [`subscriptions`] merges what it finds into one
//! entry per session; [`streams`] picks stream and partition. All of it depends on nothing but the topic, the subscriptions and
//! the streams, so [`cache`] keeps the answer per topic until one of them changes: the usual publish costs one hash of its topic.

pub mod cache;
pub mod murmur2;
pub mod streams;
pub mod subscriptions;
pub mod tree;

pub use streams::{Routed, StreamRoute, TopicRoute};
pub use subscriptions::{MatchSet, Matched, Own, SubscribeError, Subscription};

use crate::mqtt::Text;
use crate::types::{LogPosition, SessionId};
use cache::TopicCache;
use std::sync::Arc;
use streams::Streams;
use subscriptions::Subscriptions;

/// Everything that the router knows about one topic.
///
/// `A` is what the caller attaches, such as the connections behind the sessions of `matches`; it begins as its default each time
/// the entry is made anew.
#[derive(Clone, Debug, Default)]
pub struct TopicEntry<A> {
    /// Who gets the message.
    pub matches: Arc<MatchSet>,
    /// What stores it.
    pub route: TopicRoute,
    /// The caller's.
    pub attached: A,
}

/// Subscriptions and streams, with a cache in front.
#[derive(Debug)]
pub struct Router<A = ()> {
    subscriptions: Subscriptions,
    streams: Streams,
    /// Counts the changes of streams; those of subscriptions are counted there.
    streams_generation: u64,
    cache: TopicCache<TopicEntry<A>>,
}

impl<A: Default> Router<A> {
    /// A router without subscriptions; every topic goes to stream 0 until [`Router::set_streams`]. The seed keeps clients from
    /// choosing topics that collide.
    pub fn new(hash_seed: u64) -> Self {
        Self {
            subscriptions: Subscriptions::new(hash_seed),
            streams: Streams::new(hash_seed),
            streams_generation: 0,
            cache: TopicCache::new(hash_seed),
        }
    }

    /// Sets the streams, in file order, and the one that takes what none of them matches.
    ///
    /// # Errors
    /// When the filters do not fit the tree's bounds; the former streams stay.
    pub fn set_streams(&mut self, streams: &[StreamRoute], default: &StreamRoute) -> Result<(), SubscribeError> {
        self.streams.set(streams, default)?;
        self.streams_generation += 1;
        Ok(())
    }

    /// Adds a subscription, or replaces the session's former one with the same filter [MQTT-3.8.4-3]. `true`: there was one.
    ///
    /// # Errors
    /// When a bound is reached; nothing has changed then.
    pub fn subscribe(
        &mut self,
        session: SessionId,
        filter: &Text,
        subscription: Subscription,
    ) -> Result<bool, SubscribeError> {
        self.subscriptions.subscribe(session, filter.as_bytes(), subscription)
    }

    /// Removes a subscription. `false`: there was none [MQTT-3.10.4-1].
    pub fn unsubscribe(&mut self, session: SessionId, filter: &Text) -> bool {
        self.subscriptions.unsubscribe(session, filter.as_bytes())
    }

    /// Removes all subscriptions of a session.
    pub fn drop_session(&mut self, session: SessionId) {
        self.subscriptions.drop_session(session);
    }

    /// The session's subscription with exactly this filter.
    pub fn subscription(&self, session: SessionId, filter: &Text) -> Option<&Subscription> {
        self.subscriptions.get(session, filter.as_bytes())
    }

    /// The session's filters with their subscriptions.
    pub fn session_subscriptions(&self, session: SessionId) -> impl Iterator<Item = (Text, &Subscription)> {
        self.subscriptions.of_session(session)
    }

    /// Subscriptions of all sessions.
    pub fn subscription_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// Grows with every change of subscriptions or streams.
    pub fn generation(&self) -> u64 {
        self.subscriptions.generation() + self.streams_generation
    }

    /// Everything about a topic, at the price of one look-up as long as nothing changed.
    pub fn topic(&mut self, topic: &Text) -> &mut TopicEntry<A> {
        let generation = self.subscriptions.generation() + self.streams_generation;
        let (subscriptions, streams) = (&self.subscriptions, &self.streams);
        self.cache.get_or_make(topic.as_bytes(), generation, |topic| {
            let matches = Arc::new(subscriptions.matches(topic));
            let weight = matches.entries.len();
            (TopicEntry { matches, route: streams.route(topic), attached: A::default() }, weight)
        })
    }

    /// The sessions that get what is published to a topic.
    pub fn matches(&mut self, topic: &Text) -> Arc<MatchSet> {
        Arc::clone(&self.topic(topic).matches)
    }

    /// What one session's subscriptions that held at log position `at` make of a topic. Reading the log for it costs no walk of
    /// the tree, except between two of its subscriptions to the same topic.
    pub fn matches_session(&mut self, session: SessionId, topic: &Text, at: LogPosition) -> Option<Matched> {
        let set = &self.topic(topic).matches;
        let entry = set.get(session)?;
        if at >= entry.since_all {
            return Some(entry.clone());
        }
        if at < entry.since {
            return None;
        }
        self.subscriptions.matches_session(session, topic.as_bytes(), at)
    }

    /// Stream and partition of a message.
    pub fn route(&mut self, topic: &Text, client: &[u8], key: Option<&[u8]>) -> Routed {
        self.topic(topic).route.routed(client, key)
    }
}

#[cfg(test)]
mod tests;
