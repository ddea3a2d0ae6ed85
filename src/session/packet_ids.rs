//! A set of packet identifiers that costs an idle session nothing beside itself.

use crate::limits::PACKET_IDS_INLINE;
use heapless::Vec as FixedVec;

/// Packet identifiers: the first few in place, as many as there are beyond that. Bounded by the range of identifiers.
#[derive(Clone, Debug, Default)]
pub struct PacketIds {
    inline: FixedVec<u16, PACKET_IDS_INLINE, u8>,
    /// Ascending, which is the order in which clients use them, so that adding one rarely moves others.
    spill: Vec<u16>,
}

impl PacketIds {
    /// Whether it is in the set.
    pub fn contains(&self, packet_id: u16) -> bool {
        self.inline.contains(&packet_id) || self.spill.binary_search(&packet_id).is_ok()
    }

    /// Adds it. `false`: it was there.
    pub fn insert(&mut self, packet_id: u16) -> bool {
        if self.inline.contains(&packet_id) {
            return false;
        }
        match self.spill.binary_search(&packet_id) {
            Ok(_) => false,
            Err(place) => {
                if self.inline.push(packet_id).is_err() {
                    self.spill.insert(place, packet_id);
                }
                true
            }
        }
    }

    /// Takes it out. `false`: it was not there.
    pub fn remove(&mut self, packet_id: u16) -> bool {
        if let Some(place) = self.inline.iter().position(|other| *other == packet_id) {
            self.inline.swap_remove(place);
            return true;
        }
        let Ok(place) = self.spill.binary_search(&packet_id) else { return false };
        self.spill.remove(place);
        if self.spill.is_empty() {
            self.spill = Vec::new();
        }
        true
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.inline.len() + self.spill.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.inline.is_empty() && self.spill.is_empty()
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.inline.iter().chain(&self.spill).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 1u16..40), 0..300)) {
            let (mut ids, mut want) = (PacketIds::default(), BTreeSet::new());
            for (add, id) in steps {
                if add {
                    prop_assert_eq!(ids.insert(id), want.insert(id));
                } else {
                    prop_assert_eq!(ids.remove(id), want.remove(&id));
                }
                prop_assert_eq!(ids.contains(id), want.contains(&id));
                prop_assert_eq!((ids.len(), ids.is_empty()), (want.len(), want.is_empty()));
            }
            prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>(), want);
        }
    }

    #[test]
    fn an_empty_one_is_small() {
        assert!(size_of::<PacketIds>() <= 48);
    }
}
