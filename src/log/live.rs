//! The log as the core holds it: partitions with their ends, the open group, the tail, what is known of the segments, and the
//! live control records. Nothing here touches a store: sealed groups go out, committed sequences come in.

use super::batch::{OpenBatch, record_bound};
use super::control::{
    BootTimeV1, ControlKind, ControlRecord, GapCause, GapV1, PartitionStartV1, encode_envelope, envelope_bytes,
    gap_key, partition_key, to_value,
};
use super::format::{FRAME_HEADER_BYTES, SEGMENT_DATA_START};
use super::frame::{FLAG_LAST, Frame, FrameHeader, FrameKind, Group};
use super::record::NewRecord;
use super::recovery::Recovered;
use super::segments::{SegmentSummary, summary_to_value};
use super::state::{STORE_KIND_SEGMENT, State, store_key};
use super::store::Change;
use super::tail::{Tail, TailRead};
use crate::limits::{
    FOOTER_SHARE, FRAME_ALIGN, GROUP_BYTES_MAX, GROUP_CONTROL_ROOM, GROUP_PARTITIONS_MAX, INDEX_STEP_BYTES, OFFSET_JUMP,
};
use crate::types::{BootId, LogId, LogPosition, Now, Offset, PartitionId, Seq};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Sizes and identities that a [`Log`] needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The kernel's boot id.
    pub boot: BootId,
    /// Bytes of a segment.
    pub segment_size: u64,
    /// Bytes of the largest packet, at most a quarter of a segment.
    pub max_packet_size: u32,
    /// Bytes of recent frames kept in memory.
    pub tail_bytes: usize,
}

impl LogConfig {
    /// Bytes above which no group grows. The largest packet always fits, and a group always fits into an empty segment.
    pub fn max_group_bytes(&self) -> usize {
        let record = self.max_packet_size as usize + 1024 + 2 * GROUP_CONTROL_ROOM;
        let room = self.segment_size - SEGMENT_DATA_START - self.segment_size / FOOTER_SHARE - FRAME_ALIGN as u64;
        (self.segment_size as usize / 4 + 2 * GROUP_CONTROL_ROOM).min(GROUP_BYTES_MAX).max(record).min(room as usize)
    }
}

/// What became of an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its place in the log; `position.seq` is what a waiting ack compares with.
    pub position: LogPosition,
    /// Its number in the partition.
    pub offset: Offset,
    /// Bytes by which the group grew, about.
    pub bytes: usize,
}

/// A place where a partition's offsets can be found, in the part of the log that no summary covers yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecentEntry {
    pub(crate) partition: PartitionId,
    pub(crate) offset: Offset,
    pub(crate) seq: Seq,
}

/// One partition.
#[derive(Debug)]
pub(super) struct Partition {
    id: PartitionId,
    pub(super) start: Offset,
    pub(super) leo: Offset,
    synced_leo: Offset,
    /// Stored bytes, about: of summaries and of what was sealed since.
    bytes: u64,
    /// Of these, what no summary covers.
    pub(super) recent_bytes: u64,
    since_entry: u64,
    pub(super) open: OpenBatch,
}

/// A sealed group that is not committed yet.
#[derive(Debug)]
struct Uncommitted {
    last_seq: Seq,
    bytes: usize,
    ends: Vec<(u32, Offset)>,
}

/// The log in memory.
#[derive(Debug)]
pub struct Log {
    pub(super) config: LogConfig,
    log_id: LogId,
    epoch: u32,
    max_group_bytes: usize,
    slots: HashMap<PartitionId, u32, foldhash::fast::FixedState>,
    partitions: Vec<Partition>,
    // The open group: its batches in the order of their first record, and its control frame.
    touched: heapless::Vec<u32, GROUP_PARTITIONS_MAX>,
    open_bytes: usize,
    control: Vec<u8>,
    control_seq: Seq,
    control_count: u32,
    next_seq: Seq,
    // Sealed groups that nobody took yet (a group was full before its turn ended), and those not committed.
    ready: VecDeque<Group>,
    uncommitted: VecDeque<Uncommitted>,
    uncommitted_bytes: usize,
    pub(super) last_seq: Seq,
    synced: Seq,
    pub(super) state: State,
    pub(super) tail: Tail,
    pub(super) segments: VecDeque<SegmentSummary>,
    pub(super) recent: VecDeque<RecentEntry>,
    pub(super) segment_changes: Vec<Change>,
    pub(super) freeing: Option<super::retention::Freeing>,
    burn_new: bool,
    boot_mapped: bool,
}

impl Log {
    /// The log as recovery found it. What recovery has to record (epoch, gaps) stands in the first group.
    pub fn new(recovered: Recovered, config: LogConfig) -> Self {
        let max_group_bytes = config.max_group_bytes();
        let last = recovered.synced;
        let mut log = Self {
            log_id: recovered.log_id,
            epoch: recovered.epoch,
            max_group_bytes,
            slots: HashMap::default(),
            partitions: Vec::new(),
            touched: heapless::Vec::new(),
            open_bytes: 0,
            control: Vec::new(),
            control_seq: 0,
            control_count: 0,
            next_seq: recovered.next_seq,
            ready: VecDeque::new(),
            uncommitted: VecDeque::new(),
            uncommitted_bytes: 0,
            last_seq: last,
            synced: last,
            state: recovered.state,
            tail: Tail::new(config.tail_bytes, recovered.next_seq),
            segments: recovered.segments.into(),
            recent: recovered.recent.into(),
            segment_changes: Vec::new(),
            freeing: None,
            burn_new: recovered.burn_new,
            boot_mapped: false,
            config,
        };
        log.boot_mapped = log.state.get(ControlKind::BootTime, &log.config.boot.0).is_some();
        for found in &recovered.partitions {
            let slot = log.insert(found.id, found.start, found.leo);
            if let Some(partition) = log.partitions.get_mut(slot as usize) {
                partition.recent_bytes = found.recent_bytes;
                partition.bytes = found.recent_bytes;
            }
        }
        for segment in &log.segments {
            for range in &segment.ranges {
                let slot = log.slots.get(&range.partition).copied().unwrap_or(u32::MAX);
                if let Some(partition) = log.partitions.get_mut(slot as usize) {
                    partition.bytes += range.bytes;
                }
            }
        }
        for record in recovered.pending {
            log.control(record);
        }
        log
    }

    fn insert(&mut self, id: PartitionId, start: Offset, leo: Offset) -> u32 {
        let slot = self.partitions.len() as u32;
        self.slots.insert(id, slot);
        self.partitions.push(Partition {
            id,
            start,
            leo,
            synced_leo: leo,
            bytes: 0,
            recent_bytes: 0,
            since_entry: INDEX_STEP_BYTES,
            open: OpenBatch::default(),
        });
        slot
    }

    /// Makes a partition known; nothing happens if it is. Its first offset is 0, unless recovery could not tell whether there had
    /// been others.
    pub fn add_partition(&mut self, p: PartitionId) {
        if self.slots.contains_key(&p) {
            return;
        }
        let first = if self.burn_new { OFFSET_JUMP } else { 0 };
        self.insert(p, first, first);
        if self.burn_new {
            let start = PartitionStartV1 { start: first, leo: first };
            self.control(ControlRecord::put(ControlKind::PartitionStart, partition_key(p), to_value(&start)));
        }
    }

    pub(super) fn partition(&self, p: PartitionId) -> Option<&Partition> {
        self.partitions.get(*self.slots.get(&p)? as usize)
    }

    fn slot(&mut self, p: PartitionId) -> u32 {
        match self.slots.get(&p) {
            Some(slot) => *slot,
            None => {
                self.add_partition(p);
                self.slots.get(&p).copied().unwrap_or_default()
            }
        }
    }

    /// Appends a record to the open group. If it does not fit there, that group is sealed first and kept for [`Log::seal`].
    /// Control records that belong to the record are appended right after it: there is room for [`GROUP_CONTROL_ROOM`] bytes of
    /// them in the same group. A record is at most `max_packet_size` bytes and a little; the caller checks that.
    pub fn append(&mut self, p: PartitionId, record: NewRecord<'_>, now: &Now) -> Appended {
        let slot = self.slot(p);
        let bound = record_bound(&record);
        let needed = self.open_bytes + bound + GROUP_CONTROL_ROOM;
        // A single record may be larger than the usual bound: it gets a group of its own, which still fits into a segment.
        if (needed > self.max_group_bytes || self.touched.is_full()) && self.open_bytes > 0 {
            self.seal_open(None);
        }
        if now.wall_synced && !self.boot_mapped {
            self.map_boot(now);
        }
        let Some(partition) = self.partitions.get_mut(slot as usize) else {
            return Appended { position: LogPosition::default(), offset: 0, bytes: 0 };
        };
        let before = partition.open.bytes();
        if partition.open.is_empty() {
            partition.open.open(self.next_seq, partition.leo, self.config.boot, now);
            self.next_seq += 1;
            // There is room: a full list was sealed above.
            let _ = self.touched.push(slot);
        }
        let index = partition.open.append(&record, now);
        let offset = partition.leo;
        partition.leo += 1;
        let bytes = partition.open.bytes() - before;
        self.open_bytes += bytes;
        Appended { position: LogPosition { seq: partition.open.seq(), index }, offset, bytes }
    }

    /// Appends a control record to the open group and applies it to the state in memory at once. Returns the frame whose sync
    /// makes it durable.
    pub fn control(&mut self, record: ControlRecord) -> Seq {
        let bytes = envelope_bytes(&record);
        let belongs = self.control.len() + bytes <= GROUP_CONTROL_ROOM;
        let fits = self.open_bytes + bytes + FRAME_HEADER_BYTES + FRAME_ALIGN <= self.max_group_bytes;
        if !belongs && !fits && self.open_bytes > 0 {
            self.seal_open(None);
        }
        if self.control_count == 0 {
            self.control_seq = self.next_seq;
            self.next_seq += 1;
            self.open_bytes += FRAME_HEADER_BYTES + FRAME_ALIGN;
        }
        encode_envelope(&record, &mut self.control);
        self.open_bytes += bytes;
        self.control_count += 1;
        self.state.apply(record, self.control_seq);
        self.control_seq
    }

    fn map_boot(&mut self, now: &Now) {
        self.boot_mapped = true;
        let Some(wall_ms) = now.wall_ms else { return };
        let value = BootTimeV1 { wall_ms_at_zero: wall_ms.saturating_sub_unsigned(now.mono_ns / 1_000_000) };
        self.control(ControlRecord::put(ControlKind::BootTime, self.config.boot.0.to_vec(), to_value(&value)));
    }

    /// Declares that no reader will get the offsets of a partition from its end to `until`: it goes on from there, and a gap
    /// record says why. Nothing happens if the end is there already.
    pub fn burn(&mut self, p: PartitionId, until: Offset, cause: GapCause) {
        let slot = self.slot(p);
        let Some(partition) = self.partitions.get(slot as usize) else { return };
        let first = partition.leo;
        if until <= first {
            return;
        }
        if !partition.open.is_empty() {
            self.seal_open(None); // a batch has no holes
        }
        self.control(ControlRecord::put(ControlKind::Gap, gap_key(p, first), to_value(&GapV1 { until, cause })));
        if let Some(partition) = self.partitions.get_mut(slot as usize) {
            partition.leo = until;
        }
    }

    /// Live control records, those of the open group included.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the state store has not seen yet and is committed, coalesced, with the frame up to which it holds.
    pub fn take_changes(&mut self) -> Option<(Seq, Vec<Change>)> {
        let taken = self.state.take_changes();
        if self.segment_changes.is_empty() {
            return taken;
        }
        let (stamp, mut changes) = taken.unwrap_or((self.synced, Vec::new()));
        changes.append(&mut self.segment_changes);
        Some((stamp, changes))
    }

    /// Changes that [`Log::take_changes`] has not handed out, committed or not.
    pub fn changes_waiting(&self) -> usize {
        self.state.waiting() + self.segment_changes.len()
    }

    /// Bytes in the open group, about (never less than they will be).
    pub fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Bytes in memory that are not committed: open and sealed.
    pub fn uncommitted_bytes(&self) -> usize {
        self.open_bytes + self.uncommitted_bytes
    }

    /// Bytes above which no group grows.
    pub fn max_group_bytes(&self) -> usize {
        self.max_group_bytes
    }

    /// Bytes of recent frames in memory.
    pub fn tail_bytes(&self) -> usize {
        self.tail.bytes()
    }

    /// The next group to commit: one that was full before its turn ended, else the open one, sealed now. `None` if there is
    /// nothing. Call until `None` if everything must go.
    pub fn seal(&mut self) -> Option<Group> {
        if self.ready.is_empty() {
            self.seal_open(None);
        }
        self.ready.pop_front()
    }

    /// Everything that waits, in order; the last frame of the last group is the closing one of an orderly stop. Nothing may be
    /// appended afterwards.
    pub fn close(&mut self) -> Vec<Group> {
        self.seal_open(Some(FrameKind::Close));
        self.ready.drain(..).collect()
    }

    fn header(&self, kind: FrameKind, seq: Seq, count: u32) -> FrameHeader {
        FrameHeader { kind, flags: 0, seq, epoch: self.epoch, partition: PartitionId::default(), count, base_offset: 0 }
    }

    /// Seals the open group into `ready`, with a last frame of a kind without content if asked for.
    fn seal_open(&mut self, last: Option<FrameKind>) {
        let mut frames: Vec<Frame> = Vec::with_capacity(self.touched.len() + 2);
        let mut ends = Vec::with_capacity(self.touched.len());
        let mut records = 0;
        for slot in &self.touched {
            let Some(partition) = self.partitions.get_mut(*slot as usize) else { continue };
            let count = partition.open.count();
            let header = FrameHeader {
                kind: FrameKind::Batch,
                flags: 0,
                seq: partition.open.seq(),
                epoch: self.epoch,
                partition: partition.id,
                count,
                base_offset: partition.open.base_offset(),
            };
            let frame = Frame { header, body: partition.open.seal() };
            let bytes = frame.bytes() as u64;
            partition.bytes += bytes;
            partition.recent_bytes += bytes;
            if partition.since_entry >= INDEX_STEP_BYTES {
                partition.since_entry = 0;
                let entry = RecentEntry { partition: partition.id, offset: header.base_offset, seq: header.seq };
                self.recent.push_back(entry);
            }
            partition.since_entry += bytes;
            ends.push((*slot, partition.leo));
            records += count as usize;
            frames.push(frame);
        }
        self.touched.clear();
        if self.control_count > 0 {
            let header = self.header(FrameKind::Control, self.control_seq, self.control_count);
            frames.push(Frame { header, body: Bytes::from(std::mem::take(&mut self.control)) });
            self.control_count = 0;
        }
        if let Some(kind) = last {
            let header = self.header(kind, self.next_seq, 0);
            self.next_seq += 1;
            frames.push(Frame { header, body: Bytes::new() });
        }
        self.open_bytes = 0;
        frames.sort_unstable_by_key(|frame| frame.header.seq);
        if let Some(frame) = frames.last_mut() {
            frame.header.flags |= FLAG_LAST;
            self.finish_group(frames, ends, records);
        }
    }

    fn finish_group(&mut self, frames: Vec<Frame>, ends: Vec<(u32, Offset)>, records: usize) {
        let frames: Vec<Arc<Frame>> = frames.into_iter().map(Arc::new).collect();
        let bytes = frames.iter().map(|frame| frame.bytes()).sum();
        let group = Group { frames, bytes, records };
        self.last_seq = group.last_seq();
        for frame in &group.frames {
            self.tail.push(Arc::clone(frame));
        }
        self.uncommitted.push_back(Uncommitted { last_seq: self.last_seq, bytes, ends });
        self.uncommitted_bytes += bytes;
        self.ready.push_back(group);
    }

    /// Everything up to `seq` is synced; these segments were sealed or abandoned since the last call, in order.
    pub fn committed(&mut self, seq: Seq, sealed: Vec<SegmentSummary>) {
        self.synced = self.synced.max(seq);
        while self.uncommitted.front().is_some_and(|group| group.last_seq <= self.synced) {
            let Some(group) = self.uncommitted.pop_front() else { break };
            self.uncommitted_bytes -= group.bytes;
            for (slot, end) in group.ends {
                if let Some(partition) = self.partitions.get_mut(slot as usize) {
                    partition.synced_leo = partition.synced_leo.max(end);
                }
            }
        }
        // A burnt end is the synced end too once the gap record before it is.
        if self.uncommitted.is_empty() && self.touched.is_empty() && self.control_count == 0 {
            for partition in &mut self.partitions {
                partition.synced_leo = partition.leo;
            }
        }
        self.state.committed(self.synced);
        for summary in sealed {
            self.sealed(summary);
        }
    }

    fn sealed(&mut self, summary: SegmentSummary) {
        while self.recent.front().is_some_and(|entry| entry.seq <= summary.last_seq) {
            self.recent.pop_front();
        }
        for range in &summary.ranges {
            let slot = self.slots.get(&range.partition).copied().unwrap_or(u32::MAX);
            if let Some(partition) = self.partitions.get_mut(slot as usize) {
                partition.recent_bytes = partition.recent_bytes.saturating_sub(range.bytes);
                partition.since_entry = INDEX_STEP_BYTES; // the next batch begins the index of the next segment
            }
        }
        let key = store_key(STORE_KIND_SEGMENT, &summary.number.to_be_bytes());
        self.segment_changes.push(Change { key, value: Some(summary_to_value(&summary)) });
        self.segments.push_back(summary);
    }

    pub(super) fn is_boot(&self, key: &[u8]) -> bool {
        self.config.boot.0 == key
    }

    /// A partition gave up `bytes` of stored bytes and begins at `start` now: retention.
    pub(super) fn advance_start(&mut self, p: PartitionId, start: Option<Offset>, bytes: u64) {
        let slot = self.slots.get(&p).copied().unwrap_or(u32::MAX);
        if let Some(partition) = self.partitions.get_mut(slot as usize) {
            partition.bytes = partition.bytes.saturating_sub(bytes);
            partition.start = partition.start.max(start.unwrap_or(0));
        }
    }

    /// Last frame that is synced.
    pub fn synced_seq(&self) -> Seq {
        self.synced
    }

    /// Last frame that is sealed.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// The number that the next new frame will have.
    pub fn next_seq(&self) -> Seq {
        self.next_seq
    }

    /// Log end offset: the next offset to be written. 0 for an unknown partition, as for all of these.
    pub fn leo(&self, p: PartitionId) -> Offset {
        self.partition(p).map_or(0, |partition| partition.leo)
    }

    /// Offset after the last synced record.
    pub fn synced_leo(&self, p: PartitionId) -> Offset {
        self.partition(p).map_or(0, |partition| partition.synced_leo)
    }

    /// First offset that is there.
    pub fn start(&self, p: PartitionId) -> Offset {
        self.partition(p).map_or(0, |partition| partition.start)
    }

    /// All partitions, in the order in which they became known.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.partitions.iter().map(|partition| partition.id)
    }

    /// Stored bytes of a partition, about.
    pub fn bytes_of(&self, p: PartitionId) -> u64 {
        self.partition(p).map_or(0, |partition| partition.bytes)
    }

    /// Recent frames from a position up to a frame (the synced end, as a rule), as many as fit in `max_bytes`, at least one.
    pub fn read_tail(&self, from: LogPosition, until: Seq, max_bytes: usize) -> TailRead {
        self.tail.read(from, until.min(self.last_seq), max_bytes)
    }

    /// Sealed and abandoned segments, oldest first; the one being written is not among them.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &SegmentSummary> {
        self.segments.iter()
    }

    /// Leader epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Identity of the log.
    pub fn log_id(&self) -> LogId {
        self.log_id
    }
}
