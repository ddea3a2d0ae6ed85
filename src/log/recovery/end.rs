//! Where the newest segment ends: which frames count, what was torn off, and what of it might have been synced.
//!
//! A frame counts when its group is complete, or when a later frame says that it was synced. Frames of one write carry the same
//! "synced up to" in their headers: what a later write says was synced and is not there is damage, what stands behind the last
//! complete group of the last write is torn.

use super::RecoveryReport;
use super::survey::{Losses, bad};
use crate::limits::{FRAME_ALIGN, READ_CHUNK_BYTES, STAMP_AHEAD_MAX};
use crate::log::damage::{Damage, DamageKind};
use crate::log::format::{RawHeader, SEGMENT_DATA_START, decode_unchecked};
use crate::log::frame::{FrameHeader, FrameKind};
use crate::log::scan::{Found, SegmentPlan, Walk, read_full};
use crate::log::segments::SegmentIndex;
use crate::log::store::{LogStore, StoreError};
use crate::types::{Offset, PartitionId, Seq};
use bytes::Bytes;

/// A frame that does not count yet.
struct Open {
    place: u64,
    raw: RawHeader,
    body: Bytes,
}

/// Something behind the last frame that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leftover {
    place: u64,
    until: u64,
    header: Option<RawHeader>,
}

/// The end of the newest segment.
pub(super) struct End {
    pub(super) plan: SegmentPlan,
    /// The frames that count.
    pub(super) index: SegmentIndex,
    /// Where the last of them ends, and its sequence (the one before the first, if there is none).
    pub(super) place: u64,
    pub(super) settled: Seq,
    /// Sequence of the frame that follows, as far as the frames tell.
    pub(super) next: Seq,
    /// Highest sequence that a frame says is synced, and the first byte of the write that says so.
    pub(super) known_synced: Seq,
    pub(super) unsynced_from: u64,
    /// What stands behind, in order of place.
    pub(super) leftovers: Vec<Leftover>,
    /// An end mark stands at the end.
    pub(super) marked: bool,
    /// The last frame is the closing one.
    pub(super) closed: bool,
    /// The last thing is a PAD: what a former recovery burnt was not recorded.
    pub(super) scarred: bool,
    pub(super) losses: Losses,
    pub(super) bytes_read: u64,
}

/// What the end says about offsets that may have been given.
pub(super) enum Verdict {
    /// Nothing was cut off.
    Clean,
    /// These were, and no others.
    Ranges(Vec<(PartitionId, Offset, Offset)>),
    /// Nothing tells which.
    Unknown,
}

/// Reads the newest segment, if it has no footer.
pub(super) fn find(store: &dyn LogStore, plan: &SegmentPlan, report: &mut RecoveryReport) -> Result<End, StoreError> {
    let mut walk = Walk::new(store, *plan, Seq::MAX);
    let mut end = End::new(plan);
    let mut open: Vec<Open> = Vec::new();
    loop {
        let orderly = end.closed && open.is_empty() && end.leftovers.is_empty();
        if orderly && walk.marked(walk.place())? {
            end.marked = true;
            break;
        }
        match walk.next(|_| true)? {
            Found::Frame { place, raw, body } if raw.header.kind == FrameKind::Pad => {
                end.pad(&mut open, Open { place, raw, body }, report);
            }
            Found::Frame { place, raw, body } => end.frame(&mut open, Open { place, raw, body }, report),
            Found::Bad { place, until, header } => end.leftovers.push(Leftover { place, until, header }),
            Found::End { marked } => {
                end.marked = marked;
                break;
            }
        }
    }
    for frame in open {
        let until = frame.place + frame.raw.frame_bytes();
        end.leftovers.push(Leftover { place: frame.place, until, header: Some(frame.raw) });
    }
    end.leftovers.sort_unstable_by_key(|leftover| leftover.place);
    end.losses.scanned(&end.index);
    end.bytes_read = walk.bytes_read();
    report.scanned.0 += 1;
    report.scanned.1 += end.bytes_read;
    Ok(end)
}

impl End {
    fn new(plan: &SegmentPlan) -> Self {
        let header = &plan.header;
        Self {
            plan: *plan,
            index: SegmentIndex::new(header.number, header.first_seq, SEGMENT_DATA_START),
            place: SEGMENT_DATA_START,
            settled: header.previous_last,
            next: header.first_seq,
            known_synced: header.previous_last,
            unsynced_from: 0,
            leftovers: Vec::new(),
            marked: false,
            closed: false,
            scarred: false,
            losses: Losses::default(),
            bytes_read: 0,
        }
    }

    /// Takes a frame: it settles what it says is synced, and its group if it ends one.
    fn frame(&mut self, open: &mut Vec<Open>, frame: Open, report: &mut RecoveryReport) {
        let synced = frame.raw.synced.min(frame.raw.header.seq - 1);
        if synced > self.known_synced {
            self.known_synced = synced;
            self.unsynced_from = frame.place;
        }
        let known = open.iter().take_while(|open| open.raw.header.seq <= synced).count();
        for earlier in open.drain(..known) {
            self.settle(&earlier, report);
        }
        if self.next <= synced {
            self.missing(synced, frame.place, report);
        }
        let ends_group = frame.raw.header.is_last();
        open.push(frame);
        let whole = open.iter().zip(self.next..).all(|(open, seq)| open.raw.header.seq == seq);
        if ends_group && whole {
            for frame in open.drain(..) {
                self.settle(&frame, report);
            }
        }
    }

    /// Takes a PAD: what stands before it was settled by the recovery that laid it.
    fn pad(&mut self, open: &mut Vec<Open>, pad: Open, report: &mut RecoveryReport) {
        for earlier in open.drain(..) {
            self.settle(&earlier, report);
        }
        if self.next <= pad.raw.header.seq {
            self.missing(pad.raw.header.seq, pad.place, report);
        }
        self.damage_before(pad.place, report);
        self.place = pad.place + pad.raw.frame_bytes();
        self.index.add(&pad.raw.header, &[], pad.place, pad.raw.frame_bytes());
        self.next = pad.raw.header.base_offset;
        self.known_synced = self.known_synced.max(pad.raw.header.seq);
        self.unsynced_from = pad.place;
        self.scarred = true;
        self.closed = false;
    }

    fn settle(&mut self, frame: &Open, report: &mut RecoveryReport) {
        let header = &frame.raw.header;
        if header.seq > self.next {
            self.missing(header.seq - 1, frame.place, report);
        }
        self.damage_before(frame.place, report);
        self.index.add(header, &frame.body, frame.place, frame.raw.frame_bytes());
        self.place = frame.place + frame.raw.frame_bytes();
        self.settled = header.seq;
        self.next = header.seq + 1;
        self.closed = header.kind == FrameKind::Close;
        self.scarred = false;
    }

    /// Frames from the next one to `last` were synced and are not there.
    fn missing(&mut self, last: Seq, place: u64, report: &mut RecoveryReport) {
        let headers: Vec<FrameHeader> = self.leftovers.iter().filter_map(|left| Some(left.header?.header)).collect();
        self.losses.missing(self.plan.header.number, self.next, last, &headers);
        report.damaged(Damage {
            kind: DamageKind::MissingFrames,
            segment: self.plan.header.number,
            place: (self.place, place),
            seqs: Some((self.next, last)),
            offsets: None,
        });
        self.next = last + 1;
        self.settled = self.settled.max(last);
    }

    /// What is bad before something that counts is damage.
    fn damage_before(&mut self, place: u64, report: &mut RecoveryReport) {
        let number = self.plan.header.number;
        self.leftovers.retain(|leftover| {
            let before = leftover.place < place;
            if before {
                report.damaged(bad(number, leftover.place, leftover.until, leftover.header.as_ref()));
            }
            !before
        });
    }

    /// Whether anything was, or may have been, cut off.
    pub(super) fn verdict(&self) -> Verdict {
        if self.scarred || (self.leftovers.is_empty() && !self.marked) {
            return Verdict::Unknown;
        }
        if self.leftovers.is_empty() {
            return Verdict::Clean;
        }
        // Exactly what was cut off is known if its headers can be read one behind the other up to the end of a group.
        let mut ranges = Vec::new();
        let mut place = self.place;
        let mut ended = false;
        for (seq, leftover) in (self.next..).zip(&self.leftovers) {
            let Some(raw) = leftover.header.filter(|raw| raw.header.seq == seq && leftover.place == place) else {
                return Verdict::Unknown;
            };
            place = leftover.until;
            ended = raw.header.is_last();
            if raw.header.kind == FrameKind::Batch {
                ranges.push((raw.header.partition, raw.header.base_offset, raw.header.next_offset()));
            }
        }
        if ended && self.marked { Verdict::Ranges(ranges) } else { Verdict::Unknown }
    }

    /// Where what was cut off ends, as far as it could ever check again.
    pub(super) fn cut_until(&self) -> u64 {
        self.leftovers.iter().map(|leftover| leftover.until).max().unwrap_or(self.place)
    }

    /// Highest sequence seen, whether it counts or not.
    pub(super) fn seen(&self) -> Seq {
        let cut = self.leftovers.iter().filter_map(|leftover| leftover.header).map(|raw| raw.header.seq).max();
        cut.unwrap_or(0).max(self.next - 1)
    }
}

/// What a newest segment without a readable header may have held. Without its salt nothing in it can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blank {
    /// Nothing newer than the log's end shows: it was begun and not used.
    Empty,
    /// Frames show that may all be of one write, which was not synced.
    Torn,
    /// A frame shows that says that others behind the log's end were synced.
    Lost,
}

/// Looks for frames that are newer than `last`.
pub(super) fn blank(store: &dyn LogStore, number: u64, last: Seq) -> Result<Blank, StoreError> {
    let mut chunk = vec![0u8; READ_CHUNK_BYTES];
    let mut at = 0;
    let mut found = Blank::Empty;
    loop {
        let read = read_full(store, number, at, &mut chunk)?;
        let bytes = chunk.get(..read).unwrap_or_default();
        let newer = |raw: &RawHeader| raw.header.seq > last && raw.header.seq - last < STAMP_AHEAD_MAX;
        let headers = (0..read).step_by(FRAME_ALIGN).filter_map(|n| decode_unchecked(bytes.get(n..)?));
        for raw in headers.filter(newer) {
            found = Blank::Torn;
            if raw.synced > last && raw.synced < raw.header.seq {
                return Ok(Blank::Lost);
            }
        }
        if read < chunk.len() {
            return Ok(found);
        }
        // A header may lie across the border of two chunks.
        at += (read - crate::log::format::FRAME_HEADER_BYTES) as u64;
    }
}
