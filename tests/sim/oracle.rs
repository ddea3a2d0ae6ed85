//! What must hold, whatever happens. The oracle sees what the gateway cannot take back: groups that were synced, acknowledgements that
//! left, records that reached the centre, messages that reached subscribers. It is asked at each of these and after each restart.

use super::message::{Key, Promise};
use super::plan::Plan;
use bytes::Bytes;
use forebay::log::control::{ControlKind, GapV1, PartitionStartV1, from_value, gap_of_key, partition_of_key};
use forebay::log::frame::Group;
use forebay::log::record::StoredRecord;
use forebay::mqtt::{QoS, Text};
use forebay::types::{Acks, Offset, PartitionId, Seq};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is wrong, in a sentence.
pub type Check = Result<(), String>;

/// A record as it is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub seq: Seq,
    pub topic: Text,
    pub client: Text,
    pub qos: QoS,
    pub payload: Bytes,
}

impl Stored {
    fn of(record: &StoredRecord) -> Self {
        Self {
            seq: record.position.seq,
            topic: record.topic.clone(),
            client: record.client.clone(),
            qos: record.qos,
            payload: record.payload.clone(),
        }
    }
}

/// Offsets of one partition with their records.
type Records = BTreeMap<Offset, Stored>;

/// A group that was handed to the committer.
struct Sealed {
    last_seq: Seq,
    records: Vec<(PartitionId, Offset, Stored)>,
    gaps: Vec<(PartitionId, Offset, Offset)>,
    starts: Vec<(PartitionId, Offset)>,
}

pub struct Oracle {
    dead_letter: PartitionId,
    forwarded: BTreeSet<PartitionId>,
    replicated: BTreeSet<PartitionId>,
    plan: Plan,
    promises: BTreeMap<Key, Promise>,
    acked: BTreeMap<Key, Acks>,
    /// Refused at least once: what comes of a second try is out of the publisher's order.
    refused: BTreeSet<Key>,
    sealed: VecDeque<Sealed>,
    truth: BTreeMap<PartitionId, Records>,
    /// Freed by retention: offsets below are not looked for.
    starts: BTreeMap<PartitionId, Offset>,
    gaps: BTreeMap<PartitionId, BTreeMap<Offset, Offset>>,
    places: BTreeMap<Key, Vec<(PartitionId, Offset)>>,
    /// Ends of the partitions at the last start.
    lived: BTreeMap<PartitionId, Offset>,
    newest: BTreeMap<(u16, PartitionId), u32>,
    high_watermarks: BTreeMap<PartitionId, Offset>,
    centre: Centre,
    delivered: BTreeMap<(usize, Key), u32>,
}

/// What the centre has committed.
#[derive(Default)]
struct Centre {
    keys: BTreeMap<Key, u32>,
    offsets: BTreeMap<(PartitionId, Offset), u32>,
    newest: BTreeMap<PartitionId, Offset>,
    /// How often it forgot its sessions: each time what was in flight may come twice.
    forgot: u32,
}

impl Oracle {
    pub fn new(plan: &Plan) -> Self {
        let dead_letter = plan.partitions("dead-letter").first().copied().unwrap_or_default();
        Self {
            dead_letter,
            forwarded: plan.forwarded().into_iter().collect(),
            replicated: plan.partitions("critical").into_iter().filter(|_| plan.shape.replica).collect(),
            plan: plan.clone(),
            promises: BTreeMap::new(),
            acked: BTreeMap::new(),
            refused: BTreeSet::new(),
            sealed: VecDeque::new(),
            truth: BTreeMap::new(),
            starts: BTreeMap::new(),
            gaps: BTreeMap::new(),
            places: BTreeMap::new(),
            lived: BTreeMap::new(),
            newest: BTreeMap::new(),
            high_watermarks: BTreeMap::new(),
            centre: Centre::default(),
            delivered: BTreeMap::new(),
        }
    }

    // ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A publisher begins to publish a message.
    pub fn promised(&mut self, key: Key, promise: Promise) {
        self.promises.insert(key, promise);
    }

    /// The engine sealed a group.
    pub fn sealed(&mut self, group: &Group) -> Check {
        let mut sealed =
            Sealed { last_seq: group.last_seq(), records: Vec::new(), gaps: Vec::new(), starts: Vec::new() };
        for frame in &group.frames {
            for record in frame.records() {
                let record = record.map_err(|error| format!("a sealed record cannot be read: {error}"))?;
                if self.truth.get(&record.partition).is_some_and(|records| records.contains_key(&record.offset)) {
                    return Err(format!("offset {} of {} is given twice", record.offset, record.partition));
                }
                sealed.records.push((record.partition, record.offset, Stored::of(&record)));
            }
            for record in frame.control_records() {
                let Some(value) = record.value else { continue };
                if record.kind == ControlKind::Gap as u16 {
                    let found = from_value::<GapV1>(value).zip(gap_of_key(record.key));
                    sealed.gaps.extend(found.map(|(gap, (partition, first))| (partition, first, gap.until)));
                } else if record.kind == ControlKind::PartitionStart as u16 {
                    let found = partition_of_key(record.key).zip(from_value::<PartitionStartV1>(value));
                    sealed.starts.extend(found.map(|(partition, value)| (partition, value.start)));
                }
            }
        }
        self.sealed.push_back(sealed);
        Ok(())
    }

    /// The committer says that everything up to `seq` is synced.
    pub fn synced(&mut self, seq: Seq) -> Check {
        while let Some(group) = self.sealed.pop_front_if(|group| group.last_seq <= seq) {
            for (partition, first, until) in group.gaps {
                self.gap(partition, first, until);
            }
            for (partition, start) in group.starts {
                self.start(partition, start)?;
            }
            for (partition, offset, stored) in group.records {
                self.add(partition, offset, stored)?;
            }
        }
        Ok(())
    }

    /// Offsets that no reader will get.
    pub fn gap(&mut self, partition: PartitionId, first: Offset, until: Offset) {
        let end = self.gaps.entry(partition).or_default().entry(first).or_default();
        *end = until.max(*end);
    }

    /// A partition begins here from now on: what is before was given up, or never was.
    fn start(&mut self, partition: PartitionId, start: Offset) -> Check {
        let known = self.starts.entry(partition).or_default();
        *known = start.max(*known);
        let mut records = self.truth.remove(&partition).unwrap_or_default();
        let kept = records.split_off(&start);
        self.truth.insert(partition, kept);
        records.iter().try_for_each(|(offset, stored)| self.may_go(partition, *offset, stored))
    }

    fn add(&mut self, partition: PartitionId, offset: Offset, stored: Stored) -> Check {
        let records = self.truth.entry(partition).or_default();
        let end = records.last_key_value().map_or(0, |(last, _)| last + 1);
        let end = end.max(self.starts.get(&partition).copied().unwrap_or(0));
        if offset < end {
            return Err(format!("offset {offset} of {partition} comes after {end}"));
        }
        self.explained(partition, end, offset)?;
        let key =
            Key::of(&stored.payload).ok_or_else(|| format!("{partition}/{offset} holds bytes that nobody sent"))?;
        let unwelcome = self.plan.refused_for_good(&stored.payload);
        self.truth.entry(partition).or_default().insert(offset, stored);
        if partition == self.dead_letter {
            return Ok(());
        }
        let places = self.places.entry(key).or_default();
        places.push((partition, offset));
        // What its replica has refused is a new message when it comes again.
        let again = |promise: &Promise| promise.level == Acks::Replicated && unwelcome;
        if places.len() > 1 && self.promises.get(&key).is_some_and(|promise| promise.once && !again(promise)) {
            return Err(format!("{key} at QoS 2 in a durable session is stored more than once: {places:?}"));
        }
        let ordered = self.promises.get(&key).is_some_and(|promise| promise.ordered) && !self.refused.contains(&key);
        if places.len() == 1 && ordered {
            let newest = self.newest.entry((key.publisher, partition)).or_default();
            if key.number < *newest {
                return Err(format!("{key} is stored first behind #{newest} of the same publisher in {partition}"));
            }
            *newest = key.number;
        }
        Ok(())
    }

    /// Every offset from `from` to `until` lies in a recorded gap.
    fn explained(&self, partition: PartitionId, from: Offset, until: Offset) -> Check {
        let mut at = from;
        while at < until {
            let gap = self.gaps.get(&partition).and_then(|gaps| gaps.range(..=at).next_back());
            match gap {
                Some((_, end)) if *end > at => at = *end,
                _ => return Err(format!("offset {at} of {partition} is missing, and no gap record says why")),
            }
        }
        Ok(())
    }

    /// The gateway has started again: what recovery and the reader find in the log, in log order, and where partitions begin.
    pub fn recovered(&mut self, found: &[StoredRecord], starts: &[(PartitionId, Offset)]) -> Check {
        let mut there: BTreeMap<PartitionId, Records> = BTreeMap::new();
        for record in found {
            let former = there.entry(record.partition).or_default().insert(record.offset, Stored::of(record));
            if former.is_some() {
                return Err(format!("the reader brings offset {} of {} twice", record.offset, record.partition));
            }
        }
        starts.iter().try_for_each(|(partition, start)| self.start(*partition, *start))?;
        for (partition, records) in &self.truth {
            let start = self.starts.get(partition).copied().unwrap_or(0);
            let empty = Records::new();
            let there = there.get(partition).unwrap_or(&empty);
            for (offset, stored) in records.range(start..) {
                match there.get(offset) {
                    Some(found) if found == stored => {}
                    Some(found) => {
                        return Err(format!("{partition}/{offset} was {stored:?} and is {found:?} after a restart"));
                    }
                    None => {
                        let key = Key::of(&stored.payload);
                        let acked = key.and_then(|key| self.acked.get(&key));
                        return Err(format!(
                            "{partition}/{offset} was synced and is lost after a restart (frame {}, {key:?}, acked at {acked:?})",
                            stored.seq
                        ));
                    }
                }
            }
        }
        // What was written, not synced, and survived: it must be what was sealed, and is in the log from now on.
        let sealed: BTreeMap<(PartitionId, Offset), Stored> = std::mem::take(&mut self.sealed)
            .into_iter()
            .flat_map(|group| group.records)
            .map(|(partition, offset, stored)| ((partition, offset), stored))
            .collect();
        let mut survivors: Vec<(PartitionId, Offset, Stored)> = Vec::new();
        for (partition, records) in there {
            let known = self.truth.get(&partition);
            for (offset, stored) in records {
                if known.is_some_and(|known| known.contains_key(&offset)) {
                    continue;
                }
                match sealed.get(&(partition, offset)) {
                    Some(written) if *written == stored => survivors.push((partition, offset, stored)),
                    _ => return Err(format!("{partition}/{offset} was never written as it is found: {stored:?}")),
                }
            }
        }
        survivors.sort_by_key(|(_, offset, stored)| (stored.seq, *offset));
        for (partition, offset, stored) in survivors {
            self.add(partition, offset, stored)?;
        }
        let end = |records: &Records| records.last_key_value().map_or(0, |(last, _)| last + 1);
        self.lived = self.truth.iter().map(|(partition, records)| (*partition, end(records))).collect();
        self.high_watermarks.clear();
        Ok(())
    }

    /// A record is given up by retention.
    fn may_go(&self, partition: PartitionId, offset: Offset, stored: &Stored) -> Check {
        let key = Key::of(&stored.payload).ok_or("a record without a key")?;
        let sent = !self.forwarded.contains(&partition)
            || self.reached_centre(key)
            || self.plan.refused_for_good(&stored.payload);
        if sent { Ok(()) } else { Err(format!("{partition}/{offset} ({key}) was freed before the centre had it")) }
    }

    // ── acknowledgements ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A successful PUBACK or PUBREC for this message left the gateway.
    pub fn acked(&mut self, key: Key) -> Check {
        let level = self.promises.get(&key).map_or(Acks::Queued, |promise| promise.level);
        if level == Acks::Queued {
            return Ok(());
        }
        if !self.places.contains_key(&key) {
            return Err(format!("{key} is acknowledged at level {} before its record is synced", level.number()));
        }
        if level == Acks::Replicated && !self.reached_centre(key) && !self.refused_unseen(key) {
            return Err(format!("{key} is acknowledged at level -1 before the centre has it"));
        }
        self.acked.insert(key, level);
        Ok(())
    }

    /// The one case in which the gateway cannot know: a QoS 2 message that was stored in a former life, and that the centre has refused
    /// since. Its identifier is remembered, the refusal is not, so it is acknowledged when it comes again.
    fn refused_unseen(&self, key: Key) -> bool {
        let first = self.places.get(&key).and_then(|places| places.first());
        let stored = first.and_then(|(partition, offset)| self.truth.get(partition)?.get(offset));
        let old = first.is_some_and(|(partition, offset)| *offset < self.lived.get(partition).copied().unwrap_or(0));
        let once = self.promises.get(&key).is_some_and(|promise| promise.once);
        once && old && stored.is_none_or(|stored| self.plan.refused_for_good(&stored.payload))
    }

    /// The engine refuses this message.
    pub fn refused(&mut self, key: Key) {
        self.refused.insert(key);
    }

    /// A look at a partition's ends.
    pub fn ends(&mut self, partition: PartitionId, leo: Offset, synced: Offset, high: Offset) -> Check {
        if high > synced || synced > leo {
            return Err(format!("{partition}: HW {high}, synced {synced}, LEO {leo} are out of order"));
        }
        let former = self.high_watermarks.insert(partition, high).unwrap_or(0);
        if high < former {
            return Err(format!("{partition}: the high watermark went back from {former} to {high}"));
        }
        if self.replicated.contains(&partition) {
            let passed = self.truth.get(&partition).into_iter().flat_map(|records| records.range(former..high));
            for (offset, stored) in passed {
                let key = Key::of(&stored.payload).ok_or("a record without a key")?;
                if !self.reached_centre(key) && !self.plan.refused_for_good(&stored.payload) {
                    return Err(format!("{partition}: HW {high} has passed {offset} ({key}), which the centre lacks"));
                }
            }
        }
        Ok(())
    }

    // ── the centre ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The gateway sends a record to the centre: only what is synced may leave.
    pub fn forwards(&self, payload: &[u8]) -> Check {
        let key = Key::of(payload).ok_or("the gateway forwards bytes that nobody sent")?;
        if self.places.contains_key(&key) { Ok(()) } else { Err(format!("{key} is forwarded before it is synced")) }
    }

    /// The centre commits a record; `source` is where it says that it comes from (MQTT 5 only).
    pub fn arrived(&mut self, payload: &[u8], source: Option<(PartitionId, Offset)>) -> Check {
        let key = Key::of(payload).ok_or("the centre gets bytes that nobody sent")?;
        *self.centre.keys.entry(key).or_default() += 1;
        let places = self.places.get(&key).cloned().unwrap_or_default();
        let (partition, offset) = match source {
            Some((partition, offset)) => {
                if !places.contains(&(partition, offset)) {
                    return Err(format!("{key} says that it is {partition}/{offset}, and is {places:?}"));
                }
                (partition, offset)
            }
            // Without a source only what is stored once can be told apart.
            None if places.len() == 1 => places[0],
            None => return Ok(()),
        };
        let times = self.centre.offsets.entry((partition, offset)).or_default();
        *times += 1;
        if self.plan.shape.link_qos == 2 && *times > 1 + self.centre.forgot {
            return Err(format!("{partition}/{offset} ({key}) reaches the centre {times} times over a QoS 2 link"));
        }
        if *times == 1 {
            let newest = self.centre.newest.entry(partition).or_default();
            if offset < *newest {
                return Err(format!("{partition}/{offset} ({key}) reaches the centre behind offset {newest}"));
            }
            *newest = offset;
        }
        Ok(())
    }

    /// The centre has lost its sessions.
    pub fn centre_forgot(&mut self) {
        self.centre.forgot += 1;
    }

    pub fn reached_centre(&self, key: Key) -> bool {
        self.centre.keys.contains_key(&key)
    }

    // ── subscribers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A subscriber gets a message. What a durable one sees must be synced, else its cursor could point beyond the log.
    pub fn delivered(&mut self, subscriber: usize, durable: bool, payload: &[u8]) -> Check {
        let key = Key::of(payload).ok_or("a subscriber gets bytes that nobody sent")?;
        *self.delivered.entry((subscriber, key)).or_default() += 1;
        if durable && !self.places.contains_key(&key) {
            return Err(format!("the durable subscriber {subscriber} gets {key} before it is synced"));
        }
        Ok(())
    }

    // ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Everything has had its time: what was promised must be there.
    pub fn finished(&self) -> Check {
        let empty = Records::new();
        let dead: BTreeSet<Key> =
            self.truth.get(&self.dead_letter).unwrap_or(&empty).values().filter_map(|s| Key::of(&s.payload)).collect();
        for (partition, records) in self.truth.iter().filter(|(partition, _)| self.forwarded.contains(partition)) {
            for (offset, stored) in records {
                let Some(key) = Key::of(&stored.payload) else { continue };
                if self.plan.refused_for_good(&stored.payload) {
                    if !dead.contains(&key) {
                        return Err(format!("{partition}/{offset} ({key}) was refused and is not in dead-letter"));
                    }
                } else if !self.reached_centre(key) {
                    let acked = self.acked.get(&key);
                    return Err(format!("{partition}/{offset} ({key}, acked at {acked:?}) never reached the centre"));
                }
            }
        }
        Ok(())
    }

    /// A durable subscriber has seen every record from frame `since` on whose topic `matches`.
    pub fn saw_all(&self, subscriber: usize, since: Seq, matches: impl Fn(&Text) -> bool) -> Check {
        for (partition, records) in self.truth.iter().filter(|(partition, _)| **partition != self.dead_letter) {
            for (offset, stored) in
                records.iter().filter(|(_, s)| s.seq >= since && s.qos != QoS::AtMostOnce && matches(&s.topic))
            {
                let Some(key) = Key::of(&stored.payload) else { continue };
                if !self.delivered.contains_key(&(subscriber, key)) {
                    let at = stored.seq;
                    return Err(format!(
                        "the durable subscriber {subscriber} never got {partition}/{offset} ({key}) of frame {at}, since {since}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Records in the log, acknowledged messages, records at the centre: for the summary.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.truth.values().map(BTreeMap::len).sum(), self.acked.len(), self.centre.keys.len())
    }
}
