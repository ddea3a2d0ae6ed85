//! The looked-up state: the newest control record of each key, in memory, and what of it the state store has not seen yet.

use super::control::{ControlKind, ControlRecord};
use super::store::Change;
use crate::types::Seq;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Kind number under which segment summaries stand in the state store. Store only: never in a control frame.
pub(crate) const STORE_KIND_SEGMENT: u16 = 0xFF01;
/// Kinds from here on are the store's own.
pub(crate) const STORE_KINDS: u16 = 0xFF00;
/// Bytes before the value in the state store: sequence, version, flags.
const STORED_HEAD: usize = 10;

/// A live control record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The frame that holds its newest copy.
    pub seq: Seq,
    /// Version of the value's struct.
    pub version: u8,
    /// Whether a reader that does not know the kind must refuse to start.
    pub required: bool,
    /// The value (postcard).
    pub value: Bytes,
}

/// What is committed and not yet in the store, one per key.
#[derive(Clone, Debug)]
struct Ripe {
    entry: Option<Entry>,
    /// The store has no value for the key, so a removal cancels it.
    new: bool,
}

/// A change that waits for its commit.
#[derive(Clone, Debug)]
struct Fresh {
    seq: Seq,
    key: Vec<u8>,
    entry: Option<Entry>,
    absent_before: bool,
}

/// Live control records by kind and key.
#[derive(Clone, Debug, Default)]
pub struct State {
    kinds: BTreeMap<u16, BTreeMap<Vec<u8>, Entry>>,
    fresh: VecDeque<Fresh>,
    ripe: HashMap<Vec<u8>, Ripe, foldhash::fast::FixedState>,
    synced: Seq,
}

/// Key in the state store.
pub(crate) fn store_key(kind: u16, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 + key.len());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(key);
    bytes
}

/// Value in the state store.
pub(crate) fn store_value(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(STORED_HEAD + entry.value.len());
    bytes.extend_from_slice(&entry.seq.to_le_bytes());
    bytes.extend_from_slice(&[entry.version, u8::from(entry.required)]);
    bytes.extend_from_slice(&entry.value);
    bytes
}

/// An entry from its value in the state store.
pub(crate) fn entry_of_store_value(bytes: &[u8]) -> Option<Entry> {
    let (head, value) = bytes.split_first_chunk::<STORED_HEAD>()?;
    let (seq, rest) = head.split_first_chunk::<8>()?;
    let [version, flags] = *rest.first_chunk::<2>()?;
    Some(Entry {
        seq: u64::from_le_bytes(*seq),
        version,
        required: flags & 1 != 0,
        value: Bytes::copy_from_slice(value),
    })
}

impl State {
    /// The newest record of a key, unless it is removed.
    pub fn get(&self, kind: ControlKind, key: &[u8]) -> Option<&Entry> {
        self.kinds.get(&(kind as u16))?.get(key)
    }

    /// All records of a kind, by key.
    pub fn scan(&self, kind: ControlKind) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.kinds.get(&(kind as u16)).into_iter().flatten().map(|(key, entry)| (key.as_slice(), entry))
    }

    /// The records of a kind whose key begins with `prefix`, by key.
    pub fn scan_prefix<'a>(
        &'a self,
        kind: ControlKind,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a Entry)> {
        let kind = self.kinds.get(&(kind as u16));
        kind.into_iter()
            .flat_map(move |records| {
                records.range::<[u8], _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
            })
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.as_slice(), entry))
    }

    /// Every record of every kind, those unknown to this version included.
    pub fn all(&self) -> impl Iterator<Item = (u16, &[u8], &Entry)> {
        self.kinds.iter().flat_map(|(kind, records)| records.iter().map(|(key, entry)| (*kind, key.as_slice(), entry)))
    }

    /// The newest record of a key of any kind.
    pub(crate) fn entry(&self, kind: u16, key: &[u8]) -> Option<&Entry> {
        self.kinds.get(&kind)?.get(key)
    }

    /// Live records.
    pub fn len(&self) -> usize {
        self.kinds.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a record over that is durable and in the store already: at recovery.
    pub(crate) fn load(&mut self, kind: u16, key: Vec<u8>, entry: Option<Entry>) {
        let records = self.kinds.entry(kind).or_default();
        match entry {
            Some(entry) => {
                records.insert(key, entry);
            }
            None => {
                records.remove(&key);
            }
        }
    }

    /// Applies a record of the open group; the store learns of it once it is committed.
    pub(crate) fn apply(&mut self, record: ControlRecord, seq: Seq) {
        let ControlRecord { kind, version, required, key, value } = record;
        let entry = value.map(|value| Entry { seq, version, required, value: Bytes::from(value) });
        let records = self.kinds.entry(kind).or_default();
        let stored = store_key(kind, &key);
        let before = match &entry {
            Some(entry) => records.insert(key, entry.clone()),
            None => records.remove(&key),
        };
        self.fresh.push_back(Fresh { seq, key: stored, entry, absent_before: before.is_none() });
    }

    /// Everything up to `seq` is committed.
    pub(crate) fn committed(&mut self, seq: Seq) {
        self.synced = self.synced.max(seq);
        while self.fresh.front().is_some_and(|fresh| fresh.seq <= self.synced) {
            let Some(fresh) = self.fresh.pop_front() else { break };
            self.ripen(fresh);
        }
    }

    fn ripen(&mut self, fresh: Fresh) {
        // A key that is not ripe is in the store exactly if the state had it before.
        let new = match self.ripe.get(&fresh.key) {
            Some(ripe) => ripe.new,
            None => fresh.absent_before,
        };
        if new && fresh.entry.is_none() {
            self.ripe.remove(&fresh.key);
        } else {
            self.ripe.insert(fresh.key, Ripe { entry: fresh.entry, new });
        }
    }

    /// What is committed and not yet handed out, one change per key, with the frame up to which it holds. `None` if nothing
    /// changed.
    pub(crate) fn take_changes(&mut self) -> Option<(Seq, Vec<Change>)> {
        if self.ripe.is_empty() {
            return None;
        }
        let mut changes: Vec<Change> =
            self.ripe.drain().map(|(key, ripe)| Change { key, value: ripe.entry.as_ref().map(store_value) }).collect();
        changes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Some((self.synced, changes))
    }

    /// Changes that wait to be handed out, committed or not.
    pub(crate) fn waiting(&self) -> usize {
        self.ripe.len() + self.fresh.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &[u8], value: &[u8]) -> ControlRecord {
        ControlRecord::put(ControlKind::ReceivedQos2, key.to_vec(), value.to_vec())
    }

    fn remove(key: &[u8]) -> ControlRecord {
        ControlRecord::remove(ControlKind::ReceivedQos2, key.to_vec())
    }

    #[test]
    fn a_change_is_seen_at_once_but_handed_out_only_when_committed() {
        let mut state = State::default();
        state.apply(put(b"a", b"1"), 5);
        assert_eq!(state.get(ControlKind::ReceivedQos2, b"a").unwrap().value, &b"1"[..]);
        assert!(state.take_changes().is_none());
        state.committed(5);
        let (stamp, changes) = state.take_changes().unwrap();
        assert_eq!((stamp, changes.len()), (5, 1));
        assert_eq!(entry_of_store_value(changes[0].value.as_ref().unwrap()).unwrap().seq, 5);
        assert!(state.take_changes().is_none());
    }

    #[test]
    fn an_uncommitted_value_does_not_hide_the_committed_one() {
        let mut state = State::default();
        state.apply(put(b"a", b"1"), 5);
        state.apply(put(b"a", b"2"), 6);
        state.committed(5);
        let (stamp, changes) = state.take_changes().unwrap();
        assert_eq!(stamp, 5);
        assert_eq!(entry_of_store_value(changes[0].value.as_ref().unwrap()).unwrap().value, &b"1"[..]);
    }

    #[test]
    fn what_the_store_never_saw_cancels_out() {
        let mut state = State::default();
        state.apply(put(b"a", b"1"), 5);
        state.apply(remove(b"a"), 6);
        state.committed(6);
        assert!(state.take_changes().is_none());
    }

    #[test]
    fn what_the_store_has_is_removed() {
        let mut state = State::default();
        state.apply(put(b"a", b"1"), 5);
        state.apply(remove(b"a"), 6);
        state.committed(5);
        assert_eq!(state.take_changes().unwrap().1.len(), 1);
        state.committed(6);
        let (_, changes) = state.take_changes().unwrap();
        assert_eq!(changes[0].value, None);
        // Put and removed again before anything was handed out: the store lacks it, so nothing.
        state.apply(put(b"a", b"3"), 7);
        state.apply(remove(b"a"), 8);
        state.committed(8);
        assert!(state.take_changes().is_none());
    }

    #[test]
    fn a_removal_that_was_not_handed_out_is_not_forgotten_by_a_new_value_and_its_removal() {
        let mut state = State::default();
        state.apply(put(b"a", b"1"), 5);
        state.committed(5);
        state.take_changes();
        for (seq, record) in [(6, remove(b"a")), (7, put(b"a", b"2")), (8, remove(b"a"))] {
            state.apply(record, seq);
        }
        state.committed(8);
        assert_eq!(state.take_changes().unwrap().1, [Change { key: store_key(10, b"a"), value: None }]);
    }

    #[test]
    fn keys_are_found_by_prefix_in_order() {
        let mut state = State::default();
        for key in [&b"b1"[..], b"a2", b"a1", b"a"] {
            state.apply(put(key, b""), 1);
        }
        let found: Vec<&[u8]> = state.scan_prefix(ControlKind::ReceivedQos2, b"a").map(|(key, _)| key).collect();
        assert_eq!(found, [&b"a"[..], b"a1", b"a2"]);
    }
}
