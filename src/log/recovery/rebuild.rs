//! The looked-up state: taken from the trusted store and brought up to date, or rebuilt from footers and control frames. Payloads
//! are not read.

use super::{RecoveryError, RecoveryReport};
use crate::log::control::{ControlKind, ControlRecords, LogStartV1, from_value};
use crate::log::damage::{Damage, DamageKind};
use crate::log::format::{FRAME_HEADER_BYTES, check_frame, decode_header, frame_bytes};
use crate::log::frame::FrameKind;
use crate::log::scan::{SegmentPlan, read_full};
use crate::log::segments::{Controls, KeyPlace, SegmentSummary, summary_of_value, summary_to_value};
use crate::log::state::{Entry, STORE_KIND_SEGMENT, STORE_KINDS, State, entry_of_store_value, store_key, store_value};
use crate::log::store::{Change, LogStore, StateStore, StoreError};
use crate::types::Seq;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Changes that go to the state store at once.
const APPLY_CHUNK: usize = 1024;

/// What a trusted state store says.
pub(crate) struct Base {
    pub(crate) stamp: Seq,
    pub(crate) state: State,
    pub(crate) summaries: BTreeMap<u64, SegmentSummary>,
}

/// Loads the state store, if it may be trusted; else says why not.
pub(super) fn base(store: &dyn StateStore, trusted: bool) -> (Option<Base>, String) {
    let stamp = match store.stamp() {
        Err(error) => return (None, format!("it cannot be read: {error}")),
        Ok(None) => return (None, "it is empty".into()),
        Ok(Some(_)) if !trusted => return (None, "the power was cut since it was written".into()),
        Ok(Some(stamp)) => stamp,
    };
    let mut found = Base { stamp, state: State::default(), summaries: BTreeMap::new() };
    let mut broken = false;
    let scanned = store.scan(&[], &mut |key, value| {
        let kept = take(&mut found, key, value);
        broken |= kept.is_none();
        !broken
    });
    match scanned {
        Err(error) => (None, format!("it cannot be read: {error}")),
        Ok(()) if broken => (None, "it holds what cannot be read".into()),
        Ok(()) => (Some(found), String::new()),
    }
}

fn take(found: &mut Base, key: &[u8], value: &[u8]) -> Option<()> {
    let (kind, key) = key.split_first_chunk::<2>()?;
    let kind = u16::from_be_bytes(*kind);
    if kind == STORE_KIND_SEGMENT {
        let summary = summary_of_value(value)?;
        found.summaries.insert(summary.number, summary);
    } else if kind < STORE_KINDS {
        found.state.load(kind, key.to_vec(), Some(entry_of_store_value(value)?));
    }
    Some(())
}

/// Where the newest record of each key stands.
#[derive(Default)]
pub(super) struct Newest {
    keys: HashMap<Vec<u8>, (u64, KeyPlace), foldhash::fast::FixedState>,
    /// Only what is newer counts: the rest is in the trusted state.
    after: Seq,
}

impl Newest {
    /// For what the trusted state lacks, or for everything.
    pub(super) fn new(base: Option<&Base>) -> Self {
        Self { keys: HashMap::default(), after: base.map_or(0, |base| base.stamp) }
    }

    /// Takes in what one segment says; from the oldest to the newest.
    fn add(&mut self, segment: u64, keys: impl IntoIterator<Item = (Vec<u8>, KeyPlace)>) {
        for (key, place) in keys.into_iter().filter(|(_, place)| place.seq > self.after) {
            if place.tombstone && self.after == 0 {
                self.keys.remove(&key); // nothing is there that it would have to remove later
            } else {
                self.keys.insert(key, (segment, place));
            }
        }
    }

    /// Takes in the control frames of a segment, by its footer or by a scan.
    pub(super) fn add_controls(
        &mut self,
        store: &dyn LogStore,
        plan: &SegmentPlan,
        controls: Controls,
        report: &mut RecoveryReport,
    ) -> Result<(), StoreError> {
        match controls {
            Controls::Keys(keys) => self.add(plan.header.number, keys),
            Controls::Places(places) => self.add(plan.header.number, read_places(store, plan, &places, report)?),
        }
        Ok(())
    }
}

/// The newest records of a view that only names its control frames.
fn read_places(
    store: &dyn LogStore,
    plan: &SegmentPlan,
    places: &[u64],
    report: &mut RecoveryReport,
) -> Result<Vec<(Vec<u8>, KeyPlace)>, StoreError> {
    let mut newest = BTreeMap::new();
    for place in places {
        let Some((seq, body)) = read_control(store, plan, *place)? else {
            report.damaged(lost(plan, *place, None));
            continue;
        };
        for record in ControlRecords::new(&body) {
            let found = KeyPlace { seq, place: *place, tombstone: record.value.is_none() };
            newest.insert(store_key(record.kind, record.key), found);
        }
    }
    Ok(newest.into_iter().collect())
}

fn lost(plan: &SegmentPlan, place: u64, seq: Option<Seq>) -> Damage {
    Damage {
        kind: DamageKind::Frame,
        segment: plan.header.number,
        place: (place, place + FRAME_HEADER_BYTES as u64),
        seqs: seq.map(|seq| (seq, seq)),
        offsets: None,
    }
}

/// Reads a control frame; `None` if it does not check.
fn read_control(store: &dyn LogStore, plan: &SegmentPlan, place: u64) -> Result<Option<(Seq, Bytes)>, StoreError> {
    let header = &plan.header;
    // Most control frames are small: one read brings them whole.
    let mut frame = vec![0u8; 1024.min(header.size.saturating_sub(place) as usize)];
    let read = read_full(store, header.number, place, &mut frame)?;
    frame.truncate(read);
    let Some(raw) = decode_header(&frame, header.salt, place) else { return Ok(None) };
    let whole = frame_bytes(raw.length as usize);
    if raw.header.kind != FrameKind::Control || place + whole as u64 > header.size {
        return Ok(None);
    }
    if whole > frame.len() {
        frame.resize(whole, 0);
        read_full(store, header.number, place, &mut frame)?;
    }
    frame.truncate(FRAME_HEADER_BYTES + raw.length as usize);
    let frame = Bytes::from(frame);
    let checks = frame
        .split_at_checked(FRAME_HEADER_BYTES)
        .is_some_and(|(head, body)| check_frame(head, body, header.salt, place));
    Ok(checks.then(|| (raw.header.seq, frame.slice(FRAME_HEADER_BYTES..))))
}

/// Whether this version can go on with a record that it may not understand.
fn known(kind: u16, version: u8, required: bool) -> Result<(), RecoveryError> {
    let understood = ControlKind::from_number(kind).is_some_and(|kind| version <= kind.newest_version());
    if understood || !required { Ok(()) } else { Err(RecoveryError::UnknownControl { kind, version }) }
}

/// The oldest segment that counts, by what was recorded; zeros if nothing was ever freed.
fn log_start(
    store: &dyn LogStore,
    plans: &[SegmentPlan],
    newest: &Newest,
    state: &State,
) -> Result<LogStartV1, StoreError> {
    let mut found = state.get(ControlKind::LogStart, &[]).and_then(|entry| from_value::<LogStartV1>(&entry.value));
    if let Some((segment, place)) = newest.keys.get(&store_key(ControlKind::LogStart as u16, &[]))
        && let Some(plan) = plan_of(plans, *segment)
        && let Some((_, body)) = read_control(store, plan, place.place)?
    {
        let records = ControlRecords::new(&body).filter(|record| record.kind == ControlKind::LogStart as u16);
        found = records.filter_map(|record| from_value(record.value?)).last().or(found);
    }
    Ok(found.unwrap_or(LogStartV1 { segment: 0, seq: 0 }))
}

fn plan_of(plans: &[SegmentPlan], number: u64) -> Option<&SegmentPlan> {
    plans.get(plans.binary_search_by_key(&number, |plan| plan.header.number).ok()?)
}

/// What [`state`] made.
pub(super) struct Rebuilt {
    pub(super) state: State,
    /// Keys that the trusted state store lacks or has differently; `None`: it is to be filled anew.
    pub(super) touched: Option<Vec<Vec<u8>>>,
    /// The oldest segment that counts.
    pub(super) log_start: LogStartV1,
}

/// The state after all segments.
pub(super) fn state(
    store: &dyn LogStore,
    plans: &[SegmentPlan],
    newest: Newest,
    base: Option<Base>,
    report: &mut RecoveryReport,
) -> Result<Rebuilt, RecoveryError> {
    let trusted = base.is_some();
    let mut state = base.map(|base| base.state).unwrap_or_default();
    for (kind, _, entry) in state.all() {
        known(kind, entry.version, entry.required)?;
    }
    let log_start = log_start(store, plans, &newest, &state)?;
    let mut frames: Vec<(u64, KeyPlace)> =
        newest.keys.values().copied().filter(|(segment, _)| *segment >= log_start.segment).collect();
    frames.sort_unstable_by_key(|(segment, place)| (*segment, place.place));
    frames.dedup_by_key(|(segment, place)| (*segment, place.place));
    for (segment, place) in frames {
        let Some(plan) = plan_of(plans, segment) else { continue };
        let Some((seq, body)) = read_control(store, plan, place.place)? else {
            report.damaged(lost(plan, place.place, Some(place.seq)));
            continue;
        };
        for record in ControlRecords::new(&body) {
            let wanted = newest.keys.get(&store_key(record.kind, record.key));
            if wanted.is_none_or(|(number, newest)| (*number, newest.place) != (segment, place.place)) {
                continue;
            }
            known(record.kind, record.version, record.required)?;
            let entry = record.value.map(|value| Entry {
                seq,
                version: record.version,
                required: record.required,
                value: Bytes::copy_from_slice(value),
            });
            state.load(record.kind, record.key.to_vec(), entry);
        }
    }
    Ok(Rebuilt { state, touched: trusted.then(|| newest.keys.into_keys().collect()), log_start })
}

/// Brings the state store up to date. A stop in between leaves it without a stamp that could be believed.
pub(super) fn apply(
    state_store: &mut dyn StateStore,
    rebuilt: &Rebuilt,
    segments: &[SegmentSummary],
    stamp: Seq,
) -> Result<(), StoreError> {
    let mut changes = Vec::new();
    match &rebuilt.touched {
        None => {
            state_store.clear()?;
            for (kind, key, entry) in rebuilt.state.all() {
                changes.push(Change { key: store_key(kind, key), value: Some(store_value(entry)) });
                if changes.len() >= APPLY_CHUNK {
                    state_store.apply(&changes, 0)?;
                    changes.clear();
                }
            }
        }
        Some(touched) => {
            changes.extend(touched.iter().map(|key| {
                let found = key
                    .split_first_chunk::<2>()
                    .and_then(|(kind, rest)| rebuilt.state.entry(u16::from_be_bytes(*kind), rest).map(store_value));
                Change { key: key.clone(), value: found }
            }));
        }
    }
    let mut stale = Vec::new();
    state_store.scan(&STORE_KIND_SEGMENT.to_be_bytes(), &mut |key, _| {
        stale.push(key.to_vec());
        true
    })?;
    for summary in segments {
        let key = store_key(STORE_KIND_SEGMENT, &summary.number.to_be_bytes());
        stale.retain(|old| *old != key);
        changes.push(Change { key, value: Some(summary_to_value(summary)) });
    }
    changes.extend(stale.into_iter().map(|key| Change { key, value: None }));
    state_store.apply(&changes, stamp)
}
