//! A small gateway of a log and a committer, for the tests of this folder.

use super::commit::{Committed, Committer};
use super::memory::{MemLogStore, MemStateStore};
use super::read::{ReadRequest, ReadResult, Reader};
use super::record::{NewRecord, StoredRecord};
use super::recovery::{RecoveryContext, RecoveryReport, recover};
use super::store::StateStore;
use super::{Appended, Log, LogConfig};
use crate::log::damage::Damage;
use crate::mqtt::{Publish, QoS, Text};
use crate::types::{BootId, LogId, Now, PartitionId, StreamId};
use bytes::Bytes;
use std::sync::Arc;

pub(crate) const SEGMENT: u64 = 16 << 10;

pub(crate) fn p(stream: u32, partition: u16) -> PartitionId {
    PartitionId { stream: StreamId(stream), partition }
}

pub(crate) fn publish(topic: &str, payload: &[u8]) -> Publish {
    Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: Text::from(topic),
        packet_id: 1,
        properties: None,
        payload: Bytes::copy_from_slice(payload),
    }
}

pub(crate) fn config() -> LogConfig {
    LogConfig { boot: BootId([1; 16]), segment_size: SEGMENT, max_packet_size: 4096, tail_bytes: 64 << 10 }
}

pub(crate) struct Kit {
    pub(crate) store: Arc<MemLogStore>,
    pub(crate) state: MemStateStore,
    pub(crate) log: Log,
    pub(crate) committer: Committer<MemLogStore>,
    pub(crate) report: RecoveryReport,
    pub(crate) now: Now,
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::open(Arc::new(MemLogStore::new(SEGMENT, 1)), MemStateStore::new(), false)
    }

    pub(crate) fn open(store: Arc<MemLogStore>, mut state: MemStateStore, state_trusted: bool) -> Self {
        let context = RecoveryContext { state_trusted, new_log_id: LogId([7; 16]), salt_seed: 99 };
        let (recovered, tail) = recover(&*store, &mut state, &context).unwrap();
        let report = recovered.report.clone();
        let log = Log::new(recovered, config());
        let committer = Committer::new(Arc::clone(&store), tail);
        let now = Now { mono_ns: 5_000_000_000, wall_ms: Some(1_000_000), wall_synced: false };
        Self { store, state, log, committer, report, now }
    }

    /// As after a crash of the process; the state store is trusted or lost.
    pub(crate) fn reopen(self, state_trusted: bool) -> Self {
        self.store.kill();
        let state = if state_trusted { self.state } else { MemStateStore::new() };
        Self::open(self.store, state, state_trusted)
    }

    pub(crate) fn append(&mut self, partition: PartitionId, payload: &[u8]) -> Appended {
        let publish = publish("a/b", payload);
        let record = NewRecord { publish: &publish, client: b"sensor", key: None, source: None };
        self.log.append(partition, record, &self.now)
    }

    /// Seals everything and commits it with one call.
    pub(crate) fn commit(&mut self) -> Committed {
        let groups: Vec<_> = std::iter::from_fn(|| self.log.seal()).collect();
        let done = self.committer.commit(groups).unwrap();
        self.log.committed(done.synced, done.sealed.clone());
        done
    }

    pub(crate) fn apply(&mut self) {
        if let Some((stamp, changes)) = self.log.take_changes() {
            self.state.apply(&changes, stamp).unwrap();
        }
    }

    pub(crate) fn close(&mut self) {
        let groups = self.log.close();
        let done = self.committer.commit(groups).unwrap();
        self.log.committed(done.synced, done.sealed);
        self.apply();
    }

    /// All records that the reader finds, and what it could not read.
    pub(crate) fn read(&self, partitions: Option<&[PartitionId]>) -> (Vec<StoredRecord>, Vec<Damage>) {
        let mut reader = Reader::new();
        let mut request = ReadRequest {
            until: self.log.synced_seq(),
            max_bytes: 1 << 16,
            partitions: partitions.map(Arc::from),
            ..ReadRequest::default()
        };
        let mut records = Vec::new();
        let mut all_damage = Vec::new();
        loop {
            match reader.read(&*self.store, &request) {
                ReadResult::Frames { frames, next, hint, damage } => {
                    records.extend(frames.iter().flat_map(|frame| frame.records()).map(Result::unwrap));
                    all_damage.extend(damage);
                    assert!(next > request.from || hint != request.hint, "no progress");
                    request = ReadRequest { from: next, hint, ..request };
                }
                ReadResult::End { .. } => return (records, all_damage),
                ReadResult::Failed(error) => panic!("{error}"),
            }
        }
    }

    /// Offsets and payloads of one partition.
    pub(crate) fn payloads(&self, partition: PartitionId) -> Vec<(u64, Vec<u8>)> {
        let (records, _) = self.read(Some(&[partition]));
        records.into_iter().map(|record| (record.offset, record.payload.to_vec())).collect()
    }
}
