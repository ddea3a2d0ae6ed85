//! What was synced survives a power cut at any instant: the log over a store that forgets, tears and reorders what was not
//! synced, sector by sector, and dies in the middle of anything, also of recovery, rolling, sealing and recycling.
//!
//! Promises, checked after every restart:
//! - every record of a committed group is there, with its bytes, at its offset; in order;
//! - of a group that was not committed all is there or nothing, and what is there is a prefix of what was sent;
//! - offsets are contiguous except for recorded gaps, and none is given to other bytes;
//! - the control state is exactly that of the last group that is there;
//! - nothing undamaged is reported as damage, and the leader epoch grows with each disorderly stop.
//!
//! `FOREBAY_SEEDS=500 cargo test --test power_cut` tries as many seeds, `FOREBAY_SEED=17` one.

#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expected by failing")]

use bytes::Bytes;
use forebay::limits::GROUP_CONTROL_ROOM;
use forebay::log::commit::Committer;
use forebay::log::control::{ControlKind, ControlRecord, GapV1, from_value, gap_of_key};
use forebay::log::frame::Group;
use forebay::log::memory::{MemLogStore, MemStateStore};
use forebay::log::read::{ReadRequest, ReadResult, Reader};
use forebay::log::record::NewRecord;
use forebay::log::recovery::{RecoveryContext, recover};
use forebay::log::retention::{PartitionPolicy, plan};
use forebay::log::store::{LogStore, StateStore};
use forebay::log::{Log, LogConfig, TailRead};
use forebay::mqtt::{Publish, QoS, Text};
use forebay::types::{BootId, LogId, LogPosition, Now, Offset, PartitionId, Seq, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEGMENT: u64 = 32 << 10;
const PARTITIONS: u64 = 4;
const RECORD_MAX: usize = 3000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn partition(n: u64) -> PartitionId {
    PartitionId { stream: StreamId(1 + n as u32 % 2), partition: n as u16 / 2 }
}

type Records = BTreeMap<PartitionId, BTreeMap<Offset, u64>>;

/// What one group was made of.
#[derive(Clone, Debug, Default)]
struct Sent {
    records: Vec<(PartitionId, Offset, u64)>,
    /// The control state afterwards.
    state: BTreeMap<Vec<u8>, Vec<u8>>,
    last_seq: Seq,
}

/// What must hold.
#[derive(Default)]
struct Oracle {
    /// Groups of this life by number.
    groups: BTreeMap<u64, Sent>,
    /// The last group of which a publisher was told.
    committed: u64,
    /// Records that are known to be there: payload number by partition and offset.
    there: Records,
    state: BTreeMap<Vec<u8>, Vec<u8>>,
    starts: BTreeMap<PartitionId, Offset>,
}

struct Gateway {
    log: Log,
    committer: Committer<MemLogStore>,
    open: Sent,
    group: u64,
    queue: Vec<Group>,
}

struct World {
    seed: u64,
    random: Random,
    store: Arc<MemLogStore>,
    state: MemStateStore,
    oracle: Oracle,
    payload: u64,
    now: Now,
    boots: u8,
    /// The last epoch in which something was committed.
    epoch: u32,
}

fn payload_bytes(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let mut random = Random(number);
    while bytes.len() < length.max(8) {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length.max(8));
    bytes
}

fn number_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(*payload.first_chunk().expect("8 bytes"))
}

fn config(boot: u8) -> LogConfig {
    let max_packet_size = SEGMENT as u32 / 8;
    LogConfig { boot: BootId([boot; 16]), segment_size: SEGMENT, max_packet_size, tail_bytes: 16 << 10 }
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            random: Random(seed.wrapping_mul(7919)),
            store: Arc::new(MemLogStore::new(SEGMENT, seed)),
            state: MemStateStore::new(),
            oracle: Oracle::default(),
            payload: 0,
            now: Now { mono_ns: 1_000_000_000, wall_ms: Some(1_700_000_000_000), wall_synced: false },
            boots: 1,
            epoch: 0,
        }
    }

    /// Recovers, with crashes in the middle of it, until it succeeds; checks everything.
    fn start(&mut self, mut trusted: bool, orderly: bool) -> Gateway {
        let mut crashes = if self.random.one_in(3) { 2 } else { 0 };
        let (recovered, tail) = loop {
            let (new_log_id, salt_seed) = (LogId([9; 16]), self.random.next());
            let context = RecoveryContext { state_trusted: trusted, new_log_id, salt_seed };
            if crashes > 0 {
                self.store.crash_after(self.random.below(12));
            }
            match recover(&*self.store, &mut self.state, &context) {
                Ok(found) if !self.store.is_dead() => break found,
                Err(error) if !self.store.is_dead() => panic!("seed {}: {error}", self.seed),
                _ => {
                    crashes -= 1;
                    self.store.kill();
                    if self.random.one_in(2) {
                        self.store.power_cut();
                        trusted = false;
                        if self.random.one_in(2) {
                            self.state.forget();
                        }
                    }
                }
            }
        };
        self.store.kill(); // no crash is planned any more
        let report = &recovered.report;
        assert!(report.damage.is_empty(), "seed {}: {report:#?}", self.seed);
        assert_eq!(report.state_error, None);
        if orderly {
            assert!(report.orderly && report.burnt.is_empty(), "seed {}: {report:?}", self.seed);
            assert_eq!(recovered.epoch, self.epoch);
        } else if !report.orderly {
            // The closing frame may be there although nobody was told.
            assert!(recovered.epoch > self.epoch, "seed {}: epoch {} {}", self.seed, recovered.epoch, self.epoch);
        }
        let mut log = Log::new(recovered, config(self.boots));
        self.check(&log);
        for n in 0..PARTITIONS {
            log.add_partition(partition(n));
        }
        let committer = Committer::new(Arc::clone(&self.store), tail);
        let open = Sent { state: self.oracle.state.clone(), ..Sent::default() };
        Gateway { log, committer, open, group: self.oracle.committed, queue: Vec::new() }
    }

    /// Reads everything that is there through the reader of segments.
    fn read_all(&mut self, until: Seq, only: Option<PartitionId>) -> Records {
        let mut reader = Reader::new();
        let mut there = Records::new();
        let mut request = ReadRequest { until, partitions: only.map(|one| Arc::from([one])), ..ReadRequest::default() };
        let mut last = LogPosition::default();
        for _ in 0..1_000_000 {
            request.max_bytes = self.random.below(8192) as usize;
            match reader.read(&*self.store, &request) {
                ReadResult::Frames { frames, next, hint, damage } => {
                    assert!(damage.is_empty(), "seed {}: {damage:?}", self.seed);
                    assert!(next > request.from || hint != request.hint, "seed {}: no progress", self.seed);
                    for record in frames.iter().flat_map(|frame| frame.records()) {
                        let record = record.expect("a checked batch decodes");
                        assert!(record.position >= last, "log order");
                        last = record.position;
                        let number = number_of(&record.payload);
                        assert_eq!(record.payload, payload_bytes(number, record.payload.len()));
                        assert_eq!(record.topic.as_bytes(), format!("t/{}", number % 7).as_bytes());
                        assert_eq!(record.client.as_bytes(), format!("c{}", number % 3).as_bytes());
                        let earlier = there.entry(record.partition).or_default().insert(record.offset, number);
                        assert_eq!(earlier, None, "seed {}: offset {} twice", self.seed, record.offset);
                    }
                    request.from = next;
                    request.hint = if self.random.one_in(4) { None } else { hint };
                }
                ReadResult::End { .. } => return there,
                ReadResult::Failed(error) => panic!("{error}"),
            }
        }
        panic!("the reader does not end");
    }

    /// The promises.
    fn check(&mut self, log: &Log) {
        let seed = self.seed;
        let last = log.state().get(ControlKind::Session, b"group").map_or(0, |entry| number_of(&entry.value));
        assert!(last >= self.oracle.committed, "seed {seed}: group {last} of {} committed", self.oracle.committed);
        // What is there now: what was known before, and the groups up to the last one.
        for (group, sent) in std::mem::take(&mut self.oracle.groups) {
            if group <= last {
                for (partition, offset, number) in sent.records {
                    self.oracle.there.entry(partition).or_default().insert(offset, number);
                }
                self.oracle.state = sent.state;
            }
        }
        self.oracle.committed = last;
        let entries = log.state().scan(ControlKind::ReceivedQos2);
        let state: BTreeMap<Vec<u8>, Vec<u8>> =
            entries.map(|(key, entry)| (key.to_vec(), entry.value.to_vec())).collect();
        assert_eq!(state, self.oracle.state, "seed {seed}: control state of group {last}");
        let found = self.read_all(log.last_seq(), None);
        let gaps: BTreeMap<(PartitionId, Offset), Offset> = log
            .state()
            .scan(ControlKind::Gap)
            .filter_map(|(key, entry)| Some((gap_of_key(key)?, from_value::<GapV1>(&entry.value)?.until)))
            .collect();
        let mut all: BTreeSet<PartitionId> = self.oracle.there.keys().copied().collect();
        all.extend(found.keys());
        for p in all {
            let start = log.start(p);
            assert!(start >= self.oracle.starts.get(&p).copied().unwrap_or(0), "seed {seed}: start went back");
            let from_start = |records: &Records| -> BTreeMap<Offset, u64> {
                let records = records.get(&p).into_iter().flatten().map(|(offset, number)| (*offset, *number));
                records.filter(|(offset, _)| *offset >= start).collect()
            };
            let known = from_start(&self.oracle.there);
            let read = from_start(&found);
            assert_eq!(known, read, "seed {seed}: records of {p}");
            let mut next = start;
            let mut number = 0;
            for (offset, payload) in &read {
                while next < *offset {
                    let gap = gaps.get(&(p, next));
                    next = *gap.unwrap_or_else(|| panic!("seed {seed}: {p} lacks {next}, no gap says why"));
                }
                assert_eq!(next, *offset, "seed {seed}: {p}");
                assert!(*payload > number, "seed {seed}: order");
                number = *payload;
                next = offset + 1;
            }
            assert!(log.leo(p) >= next, "seed {seed}: LEO of {p}");
            assert!(log.synced_leo(p) >= next.min(log.leo(p)), "seed {seed}: synced LEO of {p}");
            // By partition alone the reader finds the same, beginning where the log says.
            if self.random.one_in(4) {
                assert_eq!(from_start(&self.read_all(log.last_seq(), Some(p))), read);
                self.check_locate(log, p, &read);
            }
            self.oracle.there.insert(p, known);
        }
    }

    fn check_locate(&mut self, log: &Log, p: PartitionId, read: &BTreeMap<Offset, u64>) {
        let any = self.random.below(read.len().max(1) as u64) as usize;
        let Some((offset, number)) = read.iter().nth(any) else { return };
        let mut request = ReadRequest {
            from: log.locate(p, *offset),
            until: log.last_seq(),
            max_bytes: 4096,
            partitions: Some(Arc::from([p])),
            hint: None,
            find: Some((p, *offset)),
        };
        let mut reader = Reader::new();
        loop {
            let ReadResult::Frames { frames, next, hint, .. } = reader.read(&*self.store, &request) else {
                panic!("seed {}: {p} {offset} not found from {:?}", self.seed, request.from);
            };
            let mut records = frames.iter().flat_map(|frame| frame.records()).map(|record| record.expect("decodes"));
            if let Some(record) = records.find(|record| record.offset == *offset) {
                assert_eq!(number_of(&record.payload), *number);
                return;
            }
            request.from = next;
            request.hint = hint;
        }
    }

    fn append(&mut self, gateway: &mut Gateway) {
        if gateway.log.open_bytes() + RECORD_MAX + 500 + GROUP_CONTROL_ROOM > gateway.log.max_group_bytes() {
            self.seal(gateway);
        }
        self.payload += 1;
        let number = self.payload;
        let p = partition(self.random.below(PARTITIONS));
        let bound = if self.random.one_in(20) { RECORD_MAX as u64 } else { 200 };
        let payload = payload_bytes(number, self.random.below(bound) as usize);
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: number.is_multiple_of(2),
            topic: Text::from(format!("t/{}", number % 7)),
            packet_id: 1,
            properties: None,
            payload: Bytes::from(payload),
        };
        let client = format!("c{}", number % 3);
        let record = NewRecord { publish: &publish, client: client.as_bytes(), key: None, source: None };
        let appended = gateway.log.append(p, record, &self.now);
        let known = self.oracle.there.get(&p).and_then(|known| known.keys().next_back());
        assert!(known.is_none_or(|known| appended.offset > *known), "seed {}: offset given twice", self.seed);
        gateway.open.records.push((p, appended.offset, number));
        self.now.mono_ns += 1_000_000;
    }

    /// Seals what is open as one group and remembers what is in it.
    fn seal(&mut self, gateway: &mut Gateway) {
        gateway.group += 1;
        for _ in 0..self.random.below(4) {
            let key = vec![self.random.below(30) as u8];
            if self.random.one_in(3) {
                gateway.open.state.remove(&key);
                gateway.log.control(ControlRecord::remove(ControlKind::ReceivedQos2, key));
            } else {
                let value = self.random.next().to_le_bytes().to_vec();
                gateway.open.state.insert(key.clone(), value.clone());
                gateway.log.control(ControlRecord::put(ControlKind::ReceivedQos2, key, value));
            }
        }
        let counter = gateway.group.to_le_bytes().to_vec();
        gateway.log.control(ControlRecord::put(ControlKind::Session, b"group".to_vec(), counter));
        let group = gateway.log.seal().expect("something is open");
        assert!(group.bytes <= gateway.log.max_group_bytes());
        gateway.open.last_seq = group.last_seq();
        gateway.queue.push(group);
        assert!(gateway.log.seal().is_none(), "the log split a group");
        self.oracle.groups.insert(gateway.group, gateway.open.clone());
        gateway.open.records.clear();
    }

    fn commit(&mut self, gateway: &mut Gateway) {
        let done = match gateway.committer.commit(gateway.queue.drain(..)) {
            Ok(done) => done,
            Err(error) => error.done,
        };
        // What the committer says is synced is what publishers are told.
        let told =
            self.oracle.groups.iter().filter(|(_, sent)| sent.last_seq <= done.synced).map(|(group, _)| *group).max();
        self.oracle.committed = self.oracle.committed.max(told.unwrap_or(0));
        if done.synced > gateway.log.synced_seq() {
            self.epoch = gateway.log.epoch();
        }
        gateway.log.committed(done.synced, done.sealed);
    }

    fn retain(&mut self, gateway: &mut Gateway) {
        let mut policies = Vec::new();
        for n in 0..PARTITIONS {
            let partition = partition(n);
            let passed = Some(gateway.log.synced_leo(partition).saturating_sub(self.random.below(200)));
            policies.push(PartitionPolicy { partition, passed, keep_bytes: Some(40 << 10), retain_unforwarded: true });
        }
        let plan = plan(&gateway.log, &policies, 0, SEGMENT);
        assert!(plan.lost.is_empty());
        if gateway.log.retain(&plan) {
            for (p, start) in &plan.starts {
                let policy = policies.iter().find(|policy| policy.partition == *p);
                assert!(policy.is_some_and(|policy| policy.passed >= Some(*start)));
            }
        }
    }

    fn free(&mut self, gateway: &mut Gateway) {
        let numbers = gateway.log.take_freed();
        if numbers.is_empty() {
            return;
        }
        for n in 0..PARTITIONS {
            self.oracle.starts.insert(partition(n), gateway.log.start(partition(n)));
        }
        for number in numbers {
            let _ = self.store.recycle(number);
        }
    }

    fn apply(&mut self, gateway: &mut Gateway) {
        if let Some((stamp, changes)) = gateway.log.take_changes() {
            self.state.apply(&changes, stamp).expect("in memory");
        }
    }

    /// A reader that keeps up finds in the tail what it would find in segments.
    fn check_tail(&mut self, gateway: &Gateway) {
        let synced = gateway.log.synced_seq();
        let from = LogPosition { seq: self.random.below(gateway.log.next_seq() + 1), index: 0 };
        match gateway.log.read_tail(from, synced, 4096) {
            TailRead::Frames { frames, next } => {
                assert!(frames.iter().map(|frame| frame.header.seq).eq(from.seq..next.seq));
                assert!(next.seq <= synced + 1);
            }
            TailRead::Miss => assert!(from.seq <= synced),
            TailRead::End => assert!(from.seq > synced),
        }
    }

    /// One life of the gateway, until it dies or stops. Whether the state may be trusted at the next start, and whether the stop
    /// was an orderly one.
    fn live(&mut self, mut gateway: Gateway) -> (bool, bool) {
        self.store.crash_after(self.random.below(120));
        for _ in 0..self.random.below(60) {
            for _ in 0..self.random.below(40) {
                self.append(&mut gateway);
            }
            self.seal(&mut gateway);
            match self.random.below(30) {
                0 => self.store.fail_syncs(1),
                1 => self.store.fail_writes(1),
                2 => self.store.fail_syncs(3),
                _ => {}
            }
            if !self.random.one_in(4) {
                self.commit(&mut gateway);
            }
            self.check_tail(&gateway);
            if self.random.one_in(2) {
                self.apply(&mut gateway);
            }
            if self.random.one_in(5) {
                self.retain(&mut gateway);
            }
            self.free(&mut gateway);
            if self.store.is_dead() {
                break;
            }
        }
        if !self.store.is_dead() && self.random.one_in(2) && self.stop(&mut gateway) {
            return (true, true);
        }
        self.die()
    }

    /// An orderly stop; false if it did not succeed.
    fn stop(&mut self, gateway: &mut Gateway) -> bool {
        self.store.fail_syncs(0);
        self.store.fail_writes(0);
        gateway.queue.extend(gateway.log.close());
        self.commit(gateway);
        if gateway.log.synced_seq() < gateway.log.last_seq() {
            return false;
        }
        self.apply(gateway);
        // After an orderly stop even a power cut changes nothing.
        self.store.power_cut();
        true
    }

    fn die(&mut self) -> (bool, bool) {
        self.store.fail_syncs(0);
        self.store.fail_writes(0);
        if self.random.one_in(3) {
            self.store.kill();
            return (true, false);
        }
        self.store.power_cut();
        self.boots = self.boots.wrapping_add(1);
        self.now.mono_ns = 1_000_000_000;
        self.now.wall_synced = self.random.one_in(2);
        if self.random.one_in(2) {
            self.state.forget();
        }
        (false, false)
    }

    fn run(&mut self) {
        let (mut trusted, mut orderly) = (false, false);
        for _ in 0..8 {
            let gateway = self.start(trusted, orderly);
            (trusted, orderly) = self.live(gateway);
        }
        self.start(trusted, orderly);
    }
}

#[test]
fn what_was_synced_survives() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SEEDS").unwrap_or(20),
    };
    for seed in seeds {
        World::new(seed).run();
    }
}
