//! The last part of recovery: where partitions begin and end, what is burnt, and how the log is made ready to go on.

use super::end::{Blank, End, Verdict, blank};
use super::rebuild::{self, Rebuilt};
use super::survey::{Losses, Survey};
use super::{Recovered, RecoveredPartition, RecoveryContext, RecoveryError, RecoveryReport, StateOutcome};
use crate::limits::{FOOTER_SHARE, FRAME_ALIGN, OFFSET_JUMP, READ_CHUNK_BYTES, SEQ_JUMP, STAMP_AHEAD_MAX};
use crate::log::commit::{Active, CommitTail};
use crate::log::control::{
    ControlKind, ControlRecord, EpochV1, GapCause, GapV1, PartitionStartV1, from_value, gap_key, gap_of_key,
    partition_of_key, to_value,
};
use crate::log::damage::{Damage, DamageKind};
use crate::log::format::{END_MARK_BYTES, FRAME_HEADER_BYTES, encode_pad};
use crate::log::live::RecentEntry;
use crate::log::scan::read_full;
use crate::log::segments::{PartitionRange, SegmentSummary};
use crate::log::state::State;
use crate::log::store::{LogStore, StateStore, StoreError};
use crate::types::{LogId, Offset, PartitionId, Seq};
use std::collections::BTreeMap;
use std::io::IoSlice;

/// Everything that was read.
pub(super) struct Found<'a> {
    pub(super) survey: &'a Survey,
    pub(super) segments: Vec<SegmentSummary>,
    pub(super) end: Option<End>,
    pub(super) last: Seq,
    /// The state store's stamp, trusted or not: it was synced up to there.
    pub(super) stamp: Seq,
    pub(super) losses: Losses,
    pub(super) rebuilt: Rebuilt,
    pub(super) log_id: LogId,
}

/// A partition while it is being found out.
#[derive(Clone, Debug, Default)]
struct Course {
    start: Offset,
    leo: Offset,
    /// An end that was written down: it does not lie before that.
    recorded_leo: Offset,
    /// The newest frame that tells where it ends.
    told_by: Seq,
    gaps: Vec<(Offset, Offset)>,
    missing: Vec<(Offset, Offset)>,
}

impl Course {
    /// Its records go on at `first`: what lies between is missing, unless a gap record says why.
    fn goes_on(&mut self, first: Offset) {
        self.lacks(self.leo, first);
        self.leo = self.leo.max(first);
    }

    /// These offsets stand nowhere: missing, as far as no gap record says why.
    fn lacks(&mut self, first: Offset, until: Offset) {
        let mut from = first;
        for (gap_first, gap_until) in &self.gaps {
            if from >= until {
                break;
            }
            if *gap_first > from {
                self.missing.push((from, until.min(*gap_first)));
            }
            from = from.max(*gap_until);
        }
        if from < until {
            self.missing.push((from, until));
        }
    }
}

/// A directory without a log.
pub(super) fn fresh(
    store: &dyn LogStore,
    state_store: &mut dyn StateStore,
    context: &RecoveryContext,
    survey: &Survey,
    mut report: RecoveryReport,
    stamp: Seq,
) -> Result<(Recovered, CommitTail), RecoveryError> {
    report.fresh = true;
    let (empty, _) = odd_ones(store, survey, 0, &mut report)?;
    give_back(store, survey, empty, 0, &mut report);
    if stamp > 0 {
        report.state = StateOutcome::Rebuilt("there is no log to it".into());
    }
    if let Err(error) = state_store.clear() {
        report.state_error = Some(error);
    }
    let epoch = ControlRecord::put(ControlKind::Epoch, Vec::new(), to_value(&EpochV1 { epoch: 1 }));
    let log_id = context.new_log_id;
    let recovered = Recovered { log_id, epoch: 1, next_seq: 1, pending: vec![epoch], report, ..Recovered::default() };
    let next_number = survey.highest + 1;
    Ok((recovered, CommitTail { next_number, ..CommitTail::fresh(log_id, context.salt_seed) }))
}

/// Looks at the segments whose headers do not serve. Which may be given back, and whether one of them may have held something.
fn odd_ones(
    store: &dyn LogStore,
    survey: &Survey,
    last: Seq,
    report: &mut RecoveryReport,
) -> Result<(Vec<u64>, bool), StoreError> {
    let mut held = false;
    let mut empty: Vec<u64> = survey.void.clone();
    for number in &survey.blank {
        match blank(store, *number, last)? {
            Blank::Empty => empty.push(*number),
            Blank::Torn => {
                held = true;
                report.torn = Some((*number, 0, store.segment_size()));
            }
            Blank::Lost => {
                held = true;
                report.damaged(whole(DamageKind::Header, *number));
            }
        }
    }
    survey.headless.iter().for_each(|number| report.damaged(whole(DamageKind::Header, *number)));
    survey.foreign.iter().for_each(|number| report.damaged(whole(DamageKind::Foreign, *number)));
    Ok((empty, held))
}

/// Gives segments back: those that hold nothing, and those that were freed and came back. Only once what says so is durable.
fn give_back(store: &dyn LogStore, survey: &Survey, mut empty: Vec<u64>, log_start: u64, report: &mut RecoveryReport) {
    empty.extend(survey.plans.iter().map(|plan| plan.header.number).filter(|number| *number < log_start));
    empty.sort_unstable();
    for number in empty {
        if store.recycle(number).is_ok() {
            report.recycled.push(number);
        }
    }
}

fn whole(kind: DamageKind, segment: u64) -> Damage {
    Damage { kind, segment, place: (0, 0), seqs: None, offsets: None }
}

impl Found<'_> {
    /// Decides, makes durable, and hands over.
    pub(super) fn open(
        mut self,
        store: &dyn LogStore,
        state_store: &mut dyn StateStore,
        context: &RecoveryContext,
        mut report: RecoveryReport,
    ) -> Result<(Recovered, CommitTail), RecoveryError> {
        self.missing_segments(&mut report);
        let (empty, held) = odd_ones(store, self.survey, self.last, &mut report)?;
        let lost_tail = self.stamp > self.last && self.stamp - self.last < STAMP_AHEAD_MAX;
        let verdict = match &self.end {
            _ if held || lost_tail => Verdict::Unknown,
            Some(end) => end.verdict(),
            None => Verdict::Clean,
        };
        let clean = matches!(verdict, Verdict::Clean);
        report.orderly = clean && self.end.as_ref().is_some_and(|end| end.closed);
        let mut pending = Vec::new();
        let epoch = self.epoch(report.orderly, &mut pending);
        let (partitions, burn_new) = self.partitions(&verdict, &mut pending, &mut report);
        let next_seq = self.next_seq(clean, lost_tail || held);
        let active = self.continue_at(store, next_seq, &mut report)?;
        give_back(store, self.survey, empty, self.rebuilt.log_start.segment, &mut report);
        let newest =
            self.end.as_ref().map(|end| end.index.summary()).filter(|summary| summary.last_seq >= summary.first_seq);
        let (recent, recent_ranges) = match (&active, newest) {
            (Some(active), Some(summary)) => {
                let entry = |entry: &crate::log::segments::IndexEntry| RecentEntry {
                    partition: entry.partition,
                    offset: entry.offset,
                    seq: entry.seq,
                };
                (active.index.entries().iter().map(entry).collect(), summary.ranges)
            }
            (None, Some(summary)) => {
                self.segments.push(summary);
                (Vec::new(), Vec::new())
            }
            _ => (Vec::new(), Vec::new()),
        };
        if let Err(error) = rebuild::apply(state_store, &self.rebuilt, &self.segments, self.last) {
            report.state_error = Some(error);
        }
        let tail = CommitTail {
            log_id: self.log_id,
            active,
            next_number: self.survey.highest + 1,
            previous: self.previous(),
            synced: self.last,
            salt_seed: context.salt_seed,
        };
        let recovered = Recovered {
            log_id: self.log_id,
            epoch,
            next_seq,
            synced: self.last,
            partitions: with_bytes(partitions, &recent_ranges),
            segments: self.segments,
            state: self.rebuilt.state,
            report,
            recent,
            pending,
            burn_new,
        };
        Ok((recovered, tail))
    }

    /// Segments that the headers speak of and that are not there.
    fn missing_segments(&mut self, report: &mut RecoveryReport) {
        let mut before = None;
        for plan in &self.survey.plans {
            let header = &plan.header;
            let expected = before.replace(header.number);
            let made_up = self.survey.headless.contains(&header.number);
            if made_up
                || header.previous == 0
                || expected == Some(header.previous)
                || header.previous < self.rebuilt.log_start.segment
            {
                continue;
            }
            let first = self.segments.iter().rev().find(|segment| segment.number < header.number);
            let first = first.map_or(1, |segment| segment.last_seq + 1);
            let seqs = (first <= header.previous_last).then_some((first, header.previous_last));
            report.damaged(Damage { seqs, ..whole(DamageKind::MissingSegment, header.previous) });
            self.losses.unknown(header.previous, header.previous_last);
        }
    }

    fn epoch(&self, orderly: bool, pending: &mut Vec<ControlRecord>) -> u32 {
        let recorded = self.rebuilt.state.get(ControlKind::Epoch, &[]);
        let recorded = recorded.and_then(|entry| from_value::<EpochV1>(&entry.value)).map_or(0, |value| value.epoch);
        let written = self.end.as_ref().map_or(0, |end| end.index.epoch());
        let epoch = recorded.max(written) + u32::from(!orderly);
        if epoch != recorded {
            pending.push(ControlRecord::put(ControlKind::Epoch, Vec::new(), to_value(&EpochV1 { epoch })));
        }
        epoch
    }

    /// Where partitions begin and end. What is missing or burnt becomes gap records.
    fn partitions(
        &self,
        verdict: &Verdict,
        pending: &mut Vec<ControlRecord>,
        report: &mut RecoveryReport,
    ) -> (Vec<RecoveredPartition>, bool) {
        let mut courses = recorded(&self.rebuilt.state);
        for segment in &self.segments {
            for range in &segment.ranges {
                let told_by = self.losses.told_by(segment.number, range.partition);
                follow(&mut courses, range, told_by.unwrap_or(segment.last_seq));
            }
        }
        if let Some(end) = &self.end {
            for range in &end.index.summary().ranges {
                follow(&mut courses, range, end.index.last_seq_of(range.partition).unwrap_or(0));
            }
        }
        for (partition, until) in self.losses.known() {
            courses.entry(partition).or_default().goes_on(until);
        }
        courses.values_mut().for_each(|course| course.goes_on(course.recorded_leo));
        for (partition, first, until) in self.losses.holes() {
            courses.entry(partition).or_default().lacks(first, until);
        }
        let mut burnt = BTreeMap::new();
        match verdict {
            Verdict::Ranges(ranges) => {
                for (partition, _, until) in ranges {
                    courses.entry(*partition).or_default();
                    burnt.insert(*partition, *until);
                }
            }
            Verdict::Unknown => burnt.extend(courses.iter().map(|(id, course)| (*id, course.leo + OFFSET_JUMP))),
            Verdict::Clean => {
                let shadowed = courses.iter().filter(|(_, course)| course.told_by < self.losses.unknown_until());
                burnt.extend(shadowed.map(|(id, course)| (*id, course.leo + OFFSET_JUMP)));
            }
        }
        let mut partitions = Vec::with_capacity(courses.len());
        for (id, mut course) in courses {
            for (first, until) in course.missing {
                let segment = self.segments.last().map_or(0, |segment| segment.number);
                let offsets = Some((id, first, until));
                report.damaged(Damage { offsets, ..whole(DamageKind::MissingOffsets, segment) });
                pending.push(gap(id, first, until, GapCause::Damaged));
            }
            if let Some(until) = burnt.get(&id).copied().filter(|until| *until > course.leo) {
                pending.push(gap(id, course.leo, until, GapCause::TornEnd));
                report.burnt.push((id, course.leo, until));
                course.leo = until;
            }
            partitions.push(RecoveredPartition { id, start: course.start, leo: course.leo, recent_bytes: 0 });
        }
        let unknown = matches!(verdict, Verdict::Unknown) || self.losses.unknown_until() > 0;
        (partitions, unknown)
    }

    /// The number of the next frame: beyond everything that may ever have been one.
    fn next_seq(&self, clean: bool, lost: bool) -> Seq {
        let next = self.end.as_ref().map_or(self.last + 1, |end| end.next);
        let seen = self.end.as_ref().map_or(self.last, End::seen);
        let only_scarred = self.end.as_ref().is_some_and(|end| end.scarred && end.leftovers.is_empty() && end.marked);
        if clean || (only_scarred && !lost) {
            return next;
        }
        let stamp = if self.stamp < self.last.saturating_add(STAMP_AHEAD_MAX) { self.stamp } else { 0 };
        next.max(seen + 1).max(stamp + 1) + SEQ_JUMP
    }

    /// The newest segment that holds something valid.
    fn previous(&self) -> (u64, u32) {
        let Some(plan) = self.survey.plans.last() else { return (0, 0) };
        match &self.end {
            Some(end) if end.index.last_seq() < plan.header.first_seq => {
                (plan.header.previous, plan.header.previous_salt)
            }
            _ => (plan.header.number, plan.header.salt),
        }
    }

    /// Makes the end durable, covers what is cut off, and says where the next frame goes; `None`: into a new segment.
    fn continue_at(
        &self,
        store: &dyn LogStore,
        next_seq: Seq,
        report: &mut RecoveryReport,
    ) -> Result<Option<Active>, StoreError> {
        let Some(end) = &self.end else { return Ok(None) };
        let header = &end.plan.header;
        if end.settled > end.known_synced || end.unsynced_from == 0 {
            write_again(store, header.number, end.unsynced_from, end.place)?;
        }
        let mut place = end.place;
        let cut = next_seq != end.next || !end.marked || !end.leftovers.is_empty();
        if cut {
            place = end.cut_until().max(end.place + FRAME_HEADER_BYTES as u64).next_multiple_of(FRAME_ALIGN as u64);
            report.torn = Some((header.number, end.place, place));
        }
        let reserve = END_MARK_BYTES as u64 + (end.index.footer_bound() as u64).min(header.size / FOOTER_SHARE);
        let usable = header.size == store.segment_size() && place + reserve <= header.size;
        if cut && usable {
            let pad = encode_pad(end.next - 1, end.index.epoch(), next_seq, place - end.place, header.salt, end.place);
            store.write_at(header.number, place, &[IoSlice::new(&[0; END_MARK_BYTES])])?;
            store.write_at(header.number, end.place, &[IoSlice::new(&pad)])?;
        }
        store.sync(header.number)?;
        Ok(usable.then(|| Active { number: header.number, salt: header.salt, place, index: end.index.clone() }))
    }
}

/// Writes bytes over themselves: they may be in the system's cache alone, and a sync that failed before may have left them there
/// for good.
fn write_again(store: &dyn LogStore, number: u64, from: u64, until: u64) -> Result<(), StoreError> {
    let mut chunk = vec![0u8; READ_CHUNK_BYTES];
    let mut at = from;
    while at < until {
        let wanted = (until - at).min(chunk.len() as u64) as usize;
        let buffer = chunk.get_mut(..wanted).unwrap_or_default();
        let read = read_full(store, number, at, buffer)?;
        if read == 0 {
            break;
        }
        store.write_at(number, at, &[IoSlice::new(buffer.get(..read).unwrap_or_default())])?;
        at += read as u64;
    }
    Ok(())
}

fn gap(id: PartitionId, first: Offset, until: Offset, cause: GapCause) -> ControlRecord {
    ControlRecord::put(ControlKind::Gap, gap_key(id, first), to_value(&GapV1 { until, cause }))
}

/// What control records say of partitions.
fn recorded(state: &State) -> BTreeMap<PartitionId, Course> {
    let mut courses: BTreeMap<PartitionId, Course> = BTreeMap::new();
    for (key, entry) in state.scan(ControlKind::PartitionStart) {
        let Some((id, value)) = partition_of_key(key).zip(from_value::<PartitionStartV1>(&entry.value)) else {
            continue;
        };
        let course = courses.entry(id).or_default();
        course.start = value.start;
        // The records between the two are to be found in segments, or missing.
        course.leo = value.start;
        course.told_by = entry.seq;
        course.recorded_leo = value.leo;
    }
    for (key, entry) in state.scan(ControlKind::Gap) {
        let Some(((id, first), value)) = gap_of_key(key).zip(from_value::<GapV1>(&entry.value)) else { continue };
        let course = courses.entry(id).or_default();
        course.told_by = course.told_by.max(entry.seq);
        course.recorded_leo = course.recorded_leo.max(value.until);
        course.gaps.push((first, value.until));
    }
    courses.values_mut().for_each(|course| course.gaps.sort_unstable());
    courses
}

fn follow(courses: &mut BTreeMap<PartitionId, Course>, range: &PartitionRange, seq: Seq) {
    let course = courses.entry(range.partition).or_default();
    course.goes_on(range.first);
    course.leo = course.leo.max(range.next);
    course.told_by = course.told_by.max(seq);
}

fn with_bytes(mut partitions: Vec<RecoveredPartition>, ranges: &[PartitionRange]) -> Vec<RecoveredPartition> {
    for partition in &mut partitions {
        let range = ranges.iter().find(|range| range.partition == partition.id);
        partition.recent_bytes = range.map_or(0, |range| range.bytes);
    }
    partitions
}
