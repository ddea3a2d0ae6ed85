//! Committing: sealed groups become bytes in the active segment, with one vectored write and one sync for all that wait. Used by
//! the committer thread and by the simulator.
//!
//! A failed write or sync poisons the segment: it is left as it is, sync is never called on it again, and everything that was
//! not acknowledged is written anew to a new segment, whose header says how far the older ones are valid.

use super::format::{END_MARK_BYTES, SEGMENT_DATA_START, SegmentHeader, encode_header, mix};
use super::frame::{Frame, FrameHeader, FrameKind, Group};
use super::segments::{SegmentIndex, SegmentSummary};
use super::store::{LogStore, StoreError};
use crate::limits::{COMMIT_WRITE_BYTES_MAX, FAILED_SEGMENTS_MAX, FOOTER_SHARE, FRAME_ALIGN, WRITE_BUFFERS_MAX};
use crate::types::{LogId, PartitionId, Seq};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// The segment being written.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) number: u64,
    pub(crate) salt: u32,
    /// Where the next frame goes.
    pub(crate) place: u64,
    pub(crate) index: SegmentIndex,
}

/// Where recovery left the log: what a [`Committer`] goes on from.
#[derive(Clone, Debug)]
pub struct CommitTail {
    pub(crate) log_id: LogId,
    pub(crate) active: Option<Active>,
    /// Number of the next segment.
    pub(crate) next_number: u64,
    /// The newest segment that holds something valid, and its salt.
    pub(crate) previous: (u64, u32),
    pub(crate) synced: Seq,
    pub(crate) salt_seed: u64,
}

impl CommitTail {
    /// Of a log in which nothing stands yet.
    pub fn fresh(log_id: LogId, salt_seed: u64) -> Self {
        Self { log_id, active: None, next_number: 1, previous: (0, 0), synced: 0, salt_seed }
    }
}

/// What a commit achieved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Everything up to this frame is synced.
    pub synced: Seq,
    /// Segments sealed or abandoned meanwhile, in order.
    pub sealed: Vec<SegmentSummary>,
    /// Bytes written to segments.
    pub written_bytes: u64,
    /// Syncs.
    pub syncs: u32,
}

/// The log cannot be written now. The groups are kept; commit again (with none or with more) after a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitError {
    /// What failed.
    pub error: StoreError,
    /// What was achieved before.
    pub done: Committed,
}

impl core::fmt::Display for CommitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the log cannot be written: {}", self.error)
    }
}

impl std::error::Error for CommitError {}

static ZEROS: [u8; FRAME_ALIGN + END_MARK_BYTES] = [0; FRAME_ALIGN + END_MARK_BYTES];

/// Writes groups to a store and syncs them.
#[derive(Debug)]
pub struct Committer<S: LogStore + ?Sized> {
    log_id: LogId,
    active: Option<Active>,
    next_number: u64,
    previous: (u64, u32),
    synced: Seq,
    salt_seed: u64,
    waiting: VecDeque<Group>,
    /// Segments that were begun and failed before anything in them was synced.
    failed: VecDeque<u64>,
    headers: Vec<[u8; super::format::FRAME_HEADER_BYTES]>,
    store: Arc<S>,
}

impl<S: LogStore + ?Sized> Committer<S> {
    /// Goes on where recovery left the log.
    pub fn new(store: Arc<S>, tail: CommitTail) -> Self {
        Self {
            log_id: tail.log_id,
            active: tail.active,
            next_number: tail.next_number,
            previous: tail.previous,
            synced: tail.synced,
            salt_seed: tail.salt_seed,
            waiting: VecDeque::new(),
            failed: VecDeque::new(),
            headers: Vec::new(),
            store,
        }
    }

    /// Last frame that is synced.
    pub fn synced(&self) -> Seq {
        self.synced
    }

    /// Bytes of groups that an earlier failure left waiting.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|group| group.bytes).sum()
    }

    /// Writes the groups, after those that an earlier failure left, and syncs: with one sync, unless a segment ends among them.
    /// On an error they stay here, and the next call writes to a new segment.
    pub fn commit(&mut self, groups: impl IntoIterator<Item = Group>) -> Result<Committed, CommitError> {
        self.waiting.extend(groups.into_iter().filter(|group| !group.frames.is_empty()));
        let mut done = Committed { synced: self.synced, ..Committed::default() };
        while !self.waiting.is_empty() {
            if let Err(error) = self.commit_run(&mut done) {
                return Err(CommitError { error, done });
            }
        }
        Ok(done)
    }

    /// Writes as many groups as fit into the active segment, at least one, and syncs them.
    fn commit_run(&mut self, done: &mut Committed) -> Result<(), StoreError> {
        let mut count = self.fitting();
        if count == 0 {
            self.check_front()?;
            self.roll(done)?;
            count = self.fitting();
        }
        let result = self.write_run(count, done);
        if result.is_err() {
            self.poison(done);
            return result;
        }
        for number in self.failed.drain(..) {
            // Nothing in them is valid: the header of the segment just synced says so. Kept if it cannot be given back.
            let _ = self.store.recycle(number);
        }
        Ok(())
    }

    /// A group that no segment can hold is a bug of the caller, but it must not create segments without end.
    fn check_front(&self) -> Result<(), StoreError> {
        let size = self.store.segment_size();
        let fixed = SEGMENT_DATA_START + END_MARK_BYTES as u64 + size / FOOTER_SHARE;
        let bytes = self.waiting.front().map_or(0, |group| group.bytes as u64);
        if fixed + bytes <= size {
            return Ok(());
        }
        Err(StoreError {
            operation: "write",
            subject: "a group".into(),
            kind: std::io::ErrorKind::InvalidInput,
            message: format!("its {bytes} bytes are more than a segment of {size} holds"),
        })
    }

    /// How many of the waiting groups fit into what is left of the active segment, its footer being kept free.
    fn fitting(&self) -> usize {
        let Some(active) = &self.active else { return 0 };
        let size = self.store.segment_size();
        let mut footer = active.index.footer_bound() as u64;
        let mut end = active.place;
        let mut count = 0;
        for group in &self.waiting {
            end += group.bytes as u64;
            footer += footer_growth(group);
            let room = end + END_MARK_BYTES as u64 + footer.min(size / FOOTER_SHARE) <= size;
            let tearable = count == 0 || end - active.place <= COMMIT_WRITE_BYTES_MAX;
            if !room || !tearable {
                break;
            }
            count += 1;
        }
        count
    }

    fn write_run(&mut self, count: usize, done: &mut Committed) -> Result<(), StoreError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        let mut place = active.place;
        let frames = || self.waiting.iter().take(count).flat_map(|group| group.frames.iter());
        self.headers.clear();
        for frame in frames() {
            self.headers.push(encode_header(&frame.header, &frame.body, self.synced, active.salt, place));
            place += frame.bytes() as u64;
        }
        let start = active.place;
        let written = write_frames(&*self.store, active.number, start, &self.headers, frames());
        done.written_bytes += written?;
        self.store.sync(active.number)?;
        done.syncs += 1;
        let mut place = active.place;
        for frame in self.waiting.drain(..count).flat_map(|group| group.frames) {
            let bytes = frame.bytes() as u64;
            active.index.add(&frame.header, &frame.body, place, bytes);
            place += bytes;
            self.synced = self.synced.max(frame.header.seq);
        }
        active.place = place;
        self.previous = (active.number, active.salt);
        done.synced = self.synced;
        Ok(())
    }

    /// The active segment is not to be used any more: what is synced in it stays valid.
    fn poison(&mut self, done: &mut Committed) {
        let Some(active) = self.active.take() else { return };
        let summary = active.index.summary();
        if summary.last_seq < summary.first_seq {
            self.failed.push_back(active.number);
        } else {
            done.sealed.push(summary);
        }
    }

    /// Seals the active segment, if there is one, and begins the next. Its header goes out with its first frames.
    fn roll(&mut self, done: &mut Committed) -> Result<(), StoreError> {
        if let Some(active) = self.active.take() {
            // Without a footer the segment is scanned: nothing else is lost, so a failure here is not one of the log.
            if let Ok(bytes) = self.write_footer(&active) {
                done.written_bytes += bytes;
                done.syncs += u32::from(bytes > 0);
            }
            done.sealed.push(active.index.summary());
        }
        while self.failed.len() >= FAILED_SEGMENTS_MAX {
            let Some(number) = self.failed.pop_front() else { break };
            let _ = self.store.recycle(number);
        }
        let number = self.next_number;
        self.store.create(number)?;
        self.next_number += 1;
        let salt = mix(self.salt_seed, number) as u32;
        let first_seq = self.waiting.front().map_or(self.synced + 1, Group::first_seq);
        let header = SegmentHeader {
            log_id: self.log_id,
            number,
            salt,
            previous_salt: self.previous.1,
            first_seq,
            previous_last: self.synced,
            size: self.store.segment_size(),
            previous: self.previous.0,
        };
        let bytes = header.encode();
        if let Err(error) = self.store.write_at(number, 0, &[IoSlice::new(&bytes)]) {
            self.failed.push_back(number);
            return Err(error);
        }
        done.written_bytes += bytes.len() as u64;
        let index = SegmentIndex::new(number, first_seq, SEGMENT_DATA_START);
        self.active = Some(Active { number, salt, place: SEGMENT_DATA_START, index });
        Ok(())
    }

    /// Writes the footer at the very end of the segment and syncs it; 0 bytes if it does not fit.
    fn write_footer(&self, active: &Active) -> Result<u64, StoreError> {
        let size = self.store.segment_size();
        let room = size.saturating_sub(active.place + END_MARK_BYTES as u64);
        let Some(body) = active.index.encode_footer(room as usize) else { return Ok(0) };
        let header = FrameHeader {
            kind: FrameKind::Footer,
            flags: 0,
            seq: active.index.last_seq(),
            epoch: active.index.epoch(),
            partition: PartitionId::default(),
            count: 0,
            base_offset: 0,
        };
        let frame = Frame { header, body: body.into() };
        let place = size - frame.bytes() as u64;
        let bytes = encode_header(&frame.header, &frame.body, self.synced, active.salt, place);
        self.store.write_at(active.number, place, &[IoSlice::new(&bytes), IoSlice::new(&frame.body)])?;
        self.store.sync(active.number)?;
        Ok(frame.bytes() as u64)
    }
}

/// At most so many bytes does the group add to the footer.
fn footer_growth(group: &Group) -> u64 {
    let of = |frame: &Arc<Frame>| match frame.header.kind {
        FrameKind::Control => 32 + frame.body.len() as u64 + 26 * u64::from(frame.header.count),
        _ => 136,
    };
    group.frames.iter().map(of).sum()
}

/// Writes frames one behind the other from `start` on, and the end mark; returns the bytes written.
fn write_frames<'a, S: LogStore + ?Sized>(
    store: &S,
    number: u64,
    start: u64,
    headers: &'a [[u8; super::format::FRAME_HEADER_BYTES]],
    frames: impl Iterator<Item = &'a Arc<Frame>>,
) -> Result<u64, StoreError> {
    let mut place = start;
    let mut pending = 0u64;
    let mut buffers: Vec<IoSlice<'a>> = Vec::with_capacity(WRITE_BUFFERS_MAX.min(headers.len() * 3 + 1));
    for (header, frame) in headers.iter().zip(frames) {
        if buffers.len() + 4 > WRITE_BUFFERS_MAX {
            store.write_at(number, place, &buffers)?;
            place += pending;
            pending = 0;
            buffers.clear();
        }
        buffers.push(IoSlice::new(header));
        if !frame.body.is_empty() {
            buffers.push(IoSlice::new(&frame.body));
        }
        let padding = frame.bytes() - header.len() - frame.body.len();
        if let Some(zeros) = ZEROS.get(..padding).filter(|zeros| !zeros.is_empty()) {
            buffers.push(IoSlice::new(zeros));
        }
        pending += frame.bytes() as u64;
    }
    buffers.push(IoSlice::new(ZEROS.get(..END_MARK_BYTES).unwrap_or_default()));
    store.write_at(number, place, &buffers)?;
    Ok(place + pending + END_MARK_BYTES as u64 - start)
}
