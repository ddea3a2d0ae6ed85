//! Which segments there are, which of them count, and how far.

use super::rebuild::{Base, Newest};
use super::{RecoveryError, RecoveryReport};
use crate::log::damage::{Damage, DamageKind};
use crate::log::format::{RawHeader, SEGMENT_DATA_START, SegmentHeader, SegmentHeaderRead};
use crate::log::frame::{FrameHeader, FrameKind};
use crate::log::scan::{Found, SegmentPlan, Walk, read_footer, read_segment_header};
use crate::log::segments::{SegmentIndex, SegmentSummary};
use crate::log::store::{LogStore, StoreError};
use crate::types::{LogId, Offset, PartitionId, Seq};
use std::collections::{BTreeMap, HashMap};

/// The segments of a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Identity of the log, if any segment tells it.
    pub(crate) log_id: Option<LogId>,
    /// Those that hold something that counts, ascending. Of some the header is made up from the successor's.
    pub(crate) plans: Vec<SegmentPlan>,
    /// In which of these the header cannot be read.
    pub(crate) headless: Vec<u64>,
    /// Those in which nothing counts: begun and never used, or failed and written anew.
    pub(crate) void: Vec<u64>,
    /// The newest ones, without a header: never used, or nothing in them can be checked.
    pub(crate) blank: Vec<u64>,
    /// Those of another log.
    pub(crate) foreign: Vec<u64>,
    /// Highest number of all.
    pub(crate) highest: u64,
}

impl Survey {
    /// First sequence that the segments can hold.
    pub(crate) fn first_seq(&self) -> Seq {
        self.plans.first().map_or(1, |plan| plan.header.first_seq)
    }
}

/// Reads all headers and decides what counts. `Newer` stops everything.
pub(crate) fn survey(store: &dyn LogStore) -> Result<Survey, RecoveryError> {
    let mut headers = BTreeMap::new();
    for number in store.list()? {
        match read_segment_header(store, number)? {
            SegmentHeaderRead::Newer(major) => return Err(RecoveryError::Newer { segment: number, major }),
            SegmentHeaderRead::Valid(header) if header.number == number => headers.insert(number, Some(header)),
            // A header of a former life, or none.
            SegmentHeaderRead::Valid(_) | SegmentHeaderRead::None => headers.insert(number, None),
        };
    }
    Ok(judge(&headers, store.segment_size()))
}

/// What counts, by the headers alone. `None` is a segment without one.
pub(crate) fn judge(headers: &BTreeMap<u64, Option<SegmentHeader>>, segment_size: u64) -> Survey {
    let log_id = identity(headers);
    let mut survey = Survey { log_id, highest: headers.keys().next_back().copied().unwrap_or(0), ..Survey::default() };
    // From the newest to the oldest, since the newer ones say how far the older are valid.
    let mut newer: Option<SegmentHeader> = None;
    let mut valid_to = Seq::MAX;
    for (number, header) in headers.iter().rev() {
        let made_up =
            || newer.filter(|newer| newer.previous == *number).map(|newer| headless(&newer, *number, segment_size));
        let header = match header {
            Some(header) if Some(header.log_id) != log_id => {
                survey.foreign.push(*number);
                continue;
            }
            Some(header) => *header,
            None if newer.is_none() => {
                survey.blank.push(*number);
                continue;
            }
            None => match made_up() {
                Some(header) => {
                    survey.headless.push(*number);
                    header
                }
                None => {
                    survey.void.push(*number);
                    continue;
                }
            },
        };
        if valid_to < header.first_seq {
            survey.void.push(*number);
            continue;
        }
        let named = newer.is_some_and(|newer| newer.previous == *number && newer.previous_last != Seq::MAX);
        survey.plans.push(SegmentPlan { header, valid_to, exact: named });
        valid_to = valid_to.min(header.previous_last);
        newer = Some(header);
    }
    for list in [&mut survey.headless, &mut survey.void, &mut survey.blank, &mut survey.foreign] {
        list.reverse();
    }
    survey.plans.reverse();
    survey
}

/// The log to which most segments belong; of several, the one of the oldest segment.
fn identity(headers: &BTreeMap<u64, Option<SegmentHeader>>) -> Option<LogId> {
    let mut votes: BTreeMap<LogId, (u64, std::cmp::Reverse<u64>)> = BTreeMap::new();
    for header in headers.values().flatten() {
        votes.entry(header.log_id).or_insert((0, std::cmp::Reverse(header.number))).0 += 1;
    }
    votes.into_iter().max_by_key(|(_, vote)| *vote).map(|(log_id, _)| log_id)
}

/// The header of a segment that lost it, as far as its successor knows it. Its first sequence is not known: any will do for
/// reading, since the salt tells its frames.
fn headless(successor: &SegmentHeader, number: u64, segment_size: u64) -> SegmentHeader {
    SegmentHeader {
        log_id: successor.log_id,
        number,
        salt: successor.previous_salt,
        previous_salt: 0,
        first_seq: 1,
        previous_last: Seq::MAX,
        size: segment_size,
        previous: 0,
    }
}

/// What was lost in segments that were scanned, as far as it bears on where partitions end. Each with its segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    /// Offsets that stood in frames that do not check.
    known: Vec<(u64, PartitionId, Offset)>,
    /// Offsets between two batches of a partition.
    holes: Vec<(u64, PartitionId, Offset, Offset)>,
    /// Frames up to this one are missing of which nothing is known: any partition may have gone on in them.
    unknown: Vec<(u64, Seq)>,
    /// Last batch of each partition in each segment that was scanned: a footer tells all of them, a scan what is left.
    told: HashMap<(u64, PartitionId), Seq>,
}

impl Losses {
    /// Frames from `first` to `last` are not there; `headers` of some of them can be read.
    pub(super) fn missing(&mut self, segment: u64, first: Seq, last: Seq, headers: &[FrameHeader]) {
        let mut told = 0;
        for header in headers.iter().filter(|header| (first..=last).contains(&header.seq)) {
            told += 1;
            if header.kind == FrameKind::Batch {
                self.known.push((segment, header.partition, header.next_offset()));
            }
        }
        if told < last - first + 1 {
            self.unknown.push((segment, last));
        }
    }

    /// A segment is not there: nothing is known of frames up to `last`.
    pub(super) fn unknown(&mut self, segment: u64, last: Seq) {
        self.unknown.push((segment, last));
    }

    /// What a scan of a segment shows.
    pub(super) fn scanned(&mut self, index: &SegmentIndex) {
        let number = index.number();
        self.holes.extend(index.holes().iter().map(|(partition, first, until)| (number, *partition, *first, *until)));
        for range in index.summary().ranges {
            let told = index.last_seq_of(range.partition).unwrap_or(0);
            self.told.insert((number, range.partition), told);
        }
    }

    pub(super) fn take(&mut self, other: Self) {
        self.known.extend(other.known);
        self.holes.extend(other.holes);
        self.unknown.extend(other.unknown);
        self.told.extend(other.told);
    }

    /// Segments before `start` do not count any more.
    pub(super) fn forget_before(&mut self, start: u64) {
        self.known.retain(|loss| loss.0 >= start);
        self.holes.retain(|loss| loss.0 >= start);
        self.unknown.retain(|loss| loss.0 >= start);
    }

    /// Last frame of which nothing is known.
    pub(super) fn unknown_until(&self) -> Seq {
        self.unknown.iter().map(|(_, last)| *last).max().unwrap_or(0)
    }

    /// Partition and end of what stood in frames that do not check.
    pub(super) fn known(&self) -> impl Iterator<Item = (PartitionId, Offset)> {
        self.known.iter().map(|(_, partition, until)| (*partition, *until))
    }

    /// Partition and offsets between two of its batches.
    pub(super) fn holes(&self) -> impl Iterator<Item = (PartitionId, Offset, Offset)> {
        self.holes.iter().map(|(_, partition, first, until)| (*partition, *first, *until))
    }

    /// Last batch of a partition in a segment, if it was scanned.
    pub(super) fn told_by(&self, segment: u64, partition: PartitionId) -> Option<Seq> {
        self.told.get(&(segment, partition)).copied()
    }
}

/// What all segments hold but a newest one that is not sealed; their control records go to `newest`.
pub(super) fn summaries(
    store: &dyn LogStore,
    survey: &Survey,
    base: Option<&Base>,
    newest: &mut Newest,
    losses: &mut Losses,
    report: &mut RecoveryReport,
) -> Result<Vec<SegmentSummary>, StoreError> {
    let mut summaries = Vec::with_capacity(survey.plans.len());
    for (n, plan) in survey.plans.iter().enumerate() {
        let number = plan.header.number;
        let last = n + 1 == survey.plans.len();
        let known = base.and_then(|base| base.summaries.get(&number).filter(|found| found.last_seq <= base.stamp));
        if let Some(summary) = known.filter(|_| !last) {
            summaries.push(summary.clone());
        } else if let Some(footer) = read_footer(store, &plan.header)? {
            newest.add_controls(store, plan, footer.controls, report)?;
            summaries.push(footer.summary);
        } else if !last {
            let index = scan(store, plan, survey.headless.contains(&number), losses, report)?;
            losses.scanned(&index);
            newest.add_controls(store, plan, index.controls(), report)?;
            summaries.push(index.summary());
        }
    }
    Ok(summaries)
}

/// Reads a segment that has no footer and is not the newest: everything valid in it was synced, so what is not there is damage.
fn scan(
    store: &dyn LogStore,
    plan: &SegmentPlan,
    headless: bool,
    losses: &mut Losses,
    report: &mut RecoveryReport,
) -> Result<SegmentIndex, StoreError> {
    let mut walk = Walk::new(store, *plan, plan.valid_to);
    let mut index: Option<SegmentIndex> = None;
    let first = |seq: Seq| if headless { seq } else { plan.header.first_seq };
    let number = plan.header.number;
    let mut next = plan.header.first_seq;
    let mut end = SEGMENT_DATA_START;
    let mut lost = Vec::new();
    loop {
        match walk.next(|_| true)? {
            Found::Frame { place, raw, body } => {
                let header = raw.header;
                let index =
                    index.get_or_insert_with(|| SegmentIndex::new(number, first(header.seq), SEGMENT_DATA_START));
                index.add(&header, &body, place, raw.frame_bytes());
                if header.seq > next && header.kind.numbered() && !(headless && next == plan.header.first_seq) {
                    losses.missing(number, next, header.seq - 1, &lost);
                }
                next = if header.kind.numbered() { header.seq + 1 } else { header.base_offset };
                end = walk.place();
            }
            Found::Bad { place, until, header } => {
                lost.extend(header.map(|raw| raw.header));
                report.damaged(bad(number, place, until, header.as_ref()));
            }
            Found::End { .. } => break,
        }
    }
    if next <= plan.valid_to && plan.exact {
        losses.missing(number, next, plan.valid_to, &lost);
        let seqs = Some((next, plan.valid_to));
        let kind = DamageKind::MissingFrames;
        report.damaged(Damage { kind, segment: number, place: (end, end), seqs, offsets: None });
    }
    report.scanned.0 += 1;
    report.scanned.1 += walk.bytes_read();
    Ok(index.unwrap_or_else(|| SegmentIndex::new(number, plan.header.first_seq, SEGMENT_DATA_START)))
}

/// The report of bytes that do not check.
pub(crate) fn bad(segment: u64, place: u64, until: u64, header: Option<&RawHeader>) -> Damage {
    let header = header.map(|raw| raw.header);
    let batch = header.filter(|header| header.kind == FrameKind::Batch);
    Damage {
        kind: DamageKind::Frame,
        segment,
        place: (place, until),
        seqs: header.map(|header| (header.seq, header.seq)),
        offsets: batch.map(|header| (header.partition, header.base_offset, header.next_offset())),
    }
}
