//! Topic aliases that a client sets on its connection [MQTT-3.3.2.3.4].

use crate::limits::{TOPIC_ALIAS_BYTES_MAX, TOPIC_ALIASES_MAX};
use crate::mqtt::{Publish, Reason, Text};
use heapless::Vec as FixedVec;

/// The topics behind the aliases of one connection. Takes one pointer until the first alias comes.
#[derive(Debug, Default)]
pub struct TopicAliases {
    topics: Option<Box<FixedVec<Text, { TOPIC_ALIASES_MAX as usize }>>>,
}

impl TopicAliases {
    /// Puts the full topic in place of an alias, or learns the alias, and takes it out of the properties: what is stored and passed
    /// on has none.
    ///
    /// # Errors
    /// The reason with which the connection is to be closed: [`Reason::TOPIC_ALIAS_INVALID`] for 0 or more than announced
    /// [MQTT-3.3.2-8] [MQTT-3.3.2-9], [`Reason::PROTOCOL_ERROR`] for one that was not set and for an empty topic without one,
    /// [`Reason::QUOTA_EXCEEDED`] when the topics together are longer than [`TOPIC_ALIAS_BYTES_MAX`].
    pub fn resolve(&mut self, publish: &mut Publish) -> Result<(), Reason> {
        let alias = publish.properties.as_mut().and_then(|properties| properties.topic_alias.take());
        let Some(alias) = alias else {
            return if publish.topic.is_empty() { Err(Reason::PROTOCOL_ERROR) } else { Ok(()) };
        };
        if alias == 0 || alias > TOPIC_ALIASES_MAX {
            return Err(Reason::TOPIC_ALIAS_INVALID);
        }
        let index = usize::from(alias) - 1;
        if publish.topic.is_empty() {
            let known = self.topics.as_deref().and_then(|topics| topics.get(index)).filter(|topic| !topic.is_empty());
            publish.topic = known.ok_or(Reason::PROTOCOL_ERROR)?.clone();
            return Ok(());
        }
        let topics = self.topics.get_or_insert_default();
        if topics.len() <= index {
            // Within the capacity, as the alias is.
            let _ = topics.resize_default(index + 1);
        }
        let others: usize =
            topics.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, topic)| topic.len()).sum();
        if others + publish.topic.len() > TOPIC_ALIAS_BYTES_MAX {
            return Err(Reason::QUOTA_EXCEEDED);
        }
        if let Some(topic) = topics.get_mut(index)
            && *topic != publish.topic
        {
            *topic = publish.topic.detached();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::QoS;
    use crate::mqtt::properties::PublishProperties;
    use bytes::Bytes;

    fn resolve(aliases: &mut TopicAliases, topic: &str, alias: Option<u16>) -> Result<String, Reason> {
        let properties = PublishProperties { topic_alias: alias, ..Default::default() };
        let mut publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: Text::from(topic),
            packet_id: 0,
            properties: Some(Box::new(properties)),
            payload: Bytes::new(),
        };
        aliases.resolve(&mut publish)?;
        assert_eq!(publish.properties.unwrap().topic_alias, None);
        Ok(publish.topic.as_str().to_owned())
    }

    #[test]
    fn an_alias_stands_for_the_topic_that_was_sent_with_it_last() {
        let mut aliases = TopicAliases::default();
        assert_eq!(resolve(&mut aliases, "a", Some(16)), Ok("a".into()));
        assert_eq!(resolve(&mut aliases, "b", Some(1)), Ok("b".into()));
        assert_eq!(resolve(&mut aliases, "", Some(16)), Ok("a".into()));
        assert_eq!(resolve(&mut aliases, "c", Some(16)), Ok("c".into()));
        assert_eq!(resolve(&mut aliases, "", Some(16)), Ok("c".into()));
        assert_eq!(resolve(&mut aliases, "", Some(1)), Ok("b".into()));
        assert_eq!(resolve(&mut aliases, "d", None), Ok("d".into()));
    }

    #[test]
    fn unknown_and_impossible_aliases_are_refused() {
        let mut aliases = TopicAliases::default();
        assert_eq!(resolve(&mut aliases, "a", Some(0)), Err(Reason::TOPIC_ALIAS_INVALID));
        assert_eq!(resolve(&mut aliases, "a", Some(17)), Err(Reason::TOPIC_ALIAS_INVALID));
        assert_eq!(resolve(&mut aliases, "", Some(3)), Err(Reason::PROTOCOL_ERROR));
        assert_eq!(resolve(&mut aliases, "a", Some(5)), Ok("a".into()));
        assert_eq!(resolve(&mut aliases, "", Some(3)), Err(Reason::PROTOCOL_ERROR), "a gap between set ones");
        assert_eq!(resolve(&mut aliases, "", None), Err(Reason::PROTOCOL_ERROR));
    }

    #[test]
    fn the_topics_of_one_connection_have_a_bound() {
        let mut aliases = TopicAliases::default();
        let long = "x".repeat(TOPIC_ALIAS_BYTES_MAX);
        assert!(resolve(&mut aliases, &long, Some(1)).is_ok());
        assert!(resolve(&mut aliases, &long, Some(1)).is_ok());
        assert_eq!(resolve(&mut aliases, "y", Some(2)), Err(Reason::QUOTA_EXCEEDED));
    }
}
