//! A bounded map from topics to what was worked out for them, until it is out of date.
//!
//! When it is full, a hand goes round the places and takes the first that was not used since it last came by: about what "least
//! recently used" would take, without moving anything on a hit.

use crate::limits::{TOPIC_CACHE_KEY_MAX, TOPIC_CACHE_MATCHES_MAX, TOPIC_CACHE_MAX};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::sync::Arc;

/// Topics with a value each.
#[derive(Debug)]
pub struct TopicCache<V> {
    places: HashMap<Arc<[u8]>, usize, FixedState>,
    slots: Vec<Slot<V>>,
    hand: usize,
    /// Sum of the slots' weights.
    weight: usize,
    /// Place of what is not kept: its topic is too long, or it weighs too much.
    passing: V,
}

#[derive(Debug)]
struct Slot<V> {
    topic: Arc<[u8]>,
    value: V,
    generation: u64,
    weight: usize,
    used: bool,
}

/// The index of no slot: the value is the passing one.
const PASSING: usize = usize::MAX;

impl<V: Default> TopicCache<V> {
    /// Empty. The seed keeps clients from choosing topics that collide.
    pub fn new(hash_seed: u64) -> Self {
        let places = HashMap::with_hasher(FixedState::with_seed(hash_seed));
        Self { places, slots: Vec::new(), hand: 0, weight: 0, passing: V::default() }
    }

    /// The value of a topic as of `generation`, made with its weight (how many matches it holds) if there is none of that age.
    pub fn get_or_make(&mut self, topic: &[u8], generation: u64, make: impl FnOnce(&[u8]) -> (V, usize)) -> &mut V {
        let former = self.places.get(topic).copied();
        let index = match former.and_then(|index| Some((index, self.slots.get_mut(index)?))) {
            Some((index, slot)) if slot.generation == generation => {
                slot.used = true;
                index
            }
            _ => {
                let (value, weight) = make(topic);
                self.keep(former, topic, generation, value, weight)
            }
        };
        self.slots.get_mut(index).map_or(&mut self.passing, |slot| &mut slot.value)
    }

    /// Puts a value where it belongs and says where that is.
    fn keep(&mut self, former: Option<usize>, topic: &[u8], generation: u64, value: V, weight: usize) -> usize {
        let slot = |topic| Slot { topic, value, generation, weight, used: false };
        // Out of date: the former value goes first, so that its weight does not count.
        if let Some(index) = former
            && let Some(old) = self.slots.get_mut(index)
            && self.weight - old.weight + weight <= TOPIC_CACHE_MATCHES_MAX
        {
            self.weight = self.weight - old.weight + weight;
            *old = slot(Arc::clone(&old.topic));
            return index;
        }
        if let Some(index) = former {
            self.drop_slot(index);
        }
        if topic.len() > TOPIC_CACHE_KEY_MAX || weight > TOPIC_CACHE_MATCHES_MAX {
            self.passing = slot(Arc::from(&[][..])).value;
            return PASSING;
        }
        while self.slots.len() >= TOPIC_CACHE_MAX || self.weight + weight > TOPIC_CACHE_MATCHES_MAX {
            self.turn_hand();
        }
        let topic: Arc<[u8]> = Arc::from(topic);
        let index = self.slots.len();
        self.places.insert(Arc::clone(&topic), index);
        self.slots.push(slot(topic));
        self.weight += weight;
        index
    }

    /// Looks at one slot: a used one gets another round, an unused one goes.
    fn turn_hand(&mut self) {
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        match self.slots.get_mut(self.hand) {
            Some(slot) if slot.used => slot.used = false,
            // The last slot, which is young, moves here and has a round before it.
            _ => self.drop_slot(self.hand),
        }
        self.hand += 1;
    }

    fn drop_slot(&mut self, index: usize) {
        if index >= self.slots.len() {
            return;
        }
        let gone = self.slots.swap_remove(index);
        self.weight -= gone.weight;
        self.places.remove(&gone.topic);
        if let Some(moved) = self.slots.get(index)
            && let Some(place) = self.places.get_mut(&moved.topic)
        {
            *place = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get(cache: &mut TopicCache<(u64, u32)>, topic: &str, generation: u64, weight: usize) -> (u64, u32) {
        let value = cache.get_or_make(topic.as_bytes(), generation, |_| ((generation, 0), weight));
        value.1 += 1;
        *value
    }

    #[test]
    fn a_value_is_kept_until_it_is_out_of_date() {
        let mut cache = TopicCache::new(1);
        assert_eq!(get(&mut cache, "a", 1, 0), (1, 1));
        assert_eq!(get(&mut cache, "a", 1, 0), (1, 2));
        assert_eq!(get(&mut cache, "a", 2, 0), (2, 1));
        assert_eq!(cache.slots.len(), 1);
    }

    #[test]
    fn a_topic_in_use_outlives_a_flood_of_others() {
        let mut cache = TopicCache::new(1);
        for n in 0..10 * TOPIC_CACHE_MAX as u32 {
            assert_eq!(get(&mut cache, "mine", 1, 1), (1, n + 1));
            get(&mut cache, &format!("flood/{n}"), 1, 1);
        }
        assert_eq!(cache.slots.len(), TOPIC_CACHE_MAX);
    }

    #[test]
    fn long_topics_and_heavy_values_pass_through() {
        let mut cache = TopicCache::new(1);
        let long = "x".repeat(TOPIC_CACHE_KEY_MAX + 1);
        assert_eq!(get(&mut cache, &long, 1, 1), (1, 1));
        assert_eq!(get(&mut cache, &long, 1, 1), (1, 1));
        assert_eq!(get(&mut cache, "heavy", 1, TOPIC_CACHE_MATCHES_MAX + 1), (1, 1));
        assert_eq!((cache.slots.len(), cache.weight), (0, 0));
        get(&mut cache, "a", 1, TOPIC_CACHE_MATCHES_MAX);
        get(&mut cache, "b", 1, 1);
        assert_eq!((cache.slots.len(), cache.weight), (1, 1));
    }

    proptest! {
        #[test]
        fn places_slots_and_weights_agree(
            steps in prop::collection::vec((0u8..40, 0u64..3, 0usize..TOPIC_CACHE_MATCHES_MAX), 1..200)
        ) {
            let mut cache = TopicCache::new(1);
            for (topic, generation, weight) in steps {
                let topic = topic.to_string();
                prop_assert_eq!(get(&mut cache, &topic, generation, weight).0, generation);
                prop_assert_eq!(cache.places.len(), cache.slots.len());
                prop_assert!(cache.places.iter().all(|(topic, index)| cache.slots[*index].topic == *topic));
                prop_assert_eq!(cache.weight, cache.slots.iter().map(|slot| slot.weight).sum::<usize>());
                prop_assert!(cache.weight <= TOPIC_CACHE_MATCHES_MAX);
            }
        }
    }
}
