//! Which stream stores a topic, and in which of its partitions.

use super::murmur2::partition;
use super::subscriptions::SubscribeError;
use super::tree::FilterTree;
use crate::mqtt::Text;
use crate::mqtt::topic::levels;
use crate::settings::KeyRule;
use crate::types::{PartitionId, StreamId};

/// What the router has to know of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRoute {
    /// Its number in the catalogue.
    pub id: StreamId,
    /// Its filters.
    pub filters: Vec<Text>,
    /// Its partitions, at least 1.
    pub partitions: u16,
    /// From what the partition follows.
    pub key: KeyRule,
}

/// What stores one topic, as far as the topic alone decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicRoute {
    /// The stream.
    pub stream: StreamId,
    /// Place of the stream in the list given to the router; `None` is the default stream, which stores no QoS 0.
    pub index: Option<u16>,
    partitions: u16,
    /// `None`: the client identifier decides.
    partition: Option<u16>,
}

impl TopicRoute {
    /// Where a message of this client goes; a key given with the message decides instead of the stream's rule.
    pub fn routed(&self, client: &[u8], key: Option<&[u8]>) -> Routed {
        let partition = match (key, self.partition) {
            (Some(key), _) => partition(key, self.partitions),
            (None, Some(fixed)) => fixed,
            (None, None) => partition(client, self.partitions),
        };
        Routed { partition: PartitionId { stream: self.stream, partition }, configured: self.index.is_some() }
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Stream and partition.
    pub partition: PartitionId,
    /// Whether a configured stream took it; the default one stores no QoS 0.
    pub configured: bool,
}

/// The streams in file order.
#[derive(Debug)]
pub struct Streams {
    hash_seed: u64,
    /// For each filter the first stream that has it.
    tree: FilterTree<Option<u16>>,
    list: Vec<StreamRoute>,
    default: StreamRoute,
}

impl Streams {
    /// Only a default stream, number 0.
    pub fn new(hash_seed: u64) -> Self {
        let default = StreamRoute { id: StreamId(0), filters: Vec::new(), partitions: 1, key: KeyRule::Topic };
        Self { hash_seed, tree: FilterTree::new(hash_seed), list: Vec::new(), default }
    }

    /// Replaces all of them.
    ///
    /// # Errors
    /// When the filters do not fit the tree's bounds; the former ones stay.
    pub fn set(&mut self, streams: &[StreamRoute], default: &StreamRoute) -> Result<(), SubscribeError> {
        let mut tree = FilterTree::<Option<u16>>::new(self.hash_seed);
        // STREAMS_MAX is far below the range of u16.
        for (index, stream) in (0u16..).zip(streams) {
            for filter in &stream.filters {
                tree.insert(filter.as_bytes())?.1.get_or_insert(index);
            }
        }
        (self.tree, self.list, self.default) = (tree, streams.to_vec(), default.clone());
        Ok(())
    }

    /// The first stream in file order with a filter that matches the topic, else the default one.
    pub fn route(&self, topic: &[u8]) -> TopicRoute {
        let mut index = None::<u16>;
        self.tree.visit(topic, |stream| index = index.into_iter().chain(*stream).min());
        let stream = index.and_then(|index| self.list.get(usize::from(index))).unwrap_or(&self.default);
        let partition = match stream.key {
            _ if stream.partitions <= 1 => Some(0),
            KeyRule::Topic => Some(partition(topic, stream.partitions)),
            KeyRule::Level(number) => {
                let level = levels(topic).nth(usize::from(number).saturating_sub(1)).unwrap_or_default();
                Some(partition(level, stream.partitions))
            }
            KeyRule::Client => None,
        };
        TopicRoute { stream: stream.id, index, partitions: stream.partitions, partition }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(key: KeyRule) -> Streams {
        let mut streams = Streams::new(1);
        let one = StreamRoute { id: StreamId(1), filters: vec![Text::from("#")], partitions: 16, key };
        let default = StreamRoute { id: StreamId(2), filters: Vec::new(), partitions: 1, key: KeyRule::Topic };
        streams.set(&[one], &default).unwrap();
        streams
    }

    fn placed(streams: &Streams, topic: &str, key: Option<&[u8]>) -> u16 {
        streams.route(topic.as_bytes()).routed(b"client", key).partition.partition
    }

    #[test]
    fn the_partition_follows_the_streams_rule() {
        assert_eq!(placed(&streams(KeyRule::Topic), "a/b", None), partition(b"a/b", 16));
        assert_eq!(placed(&streams(KeyRule::Client), "a/b", None), partition(b"client", 16));
        assert_eq!(placed(&streams(KeyRule::Level(1)), "a/b", None), partition(b"a", 16));
        assert_eq!(placed(&streams(KeyRule::Level(2)), "a/b", None), partition(b"b", 16));
        assert_eq!(placed(&streams(KeyRule::Level(3)), "a/b", None), partition(b"", 16), "a missing level is empty");
    }

    #[test]
    fn a_key_with_the_message_decides_instead() {
        for rule in [KeyRule::Topic, KeyRule::Client, KeyRule::Level(1)] {
            assert_eq!(placed(&streams(rule), "a/b", Some(b"abc")), partition(b"abc", 16));
        }
    }
}
