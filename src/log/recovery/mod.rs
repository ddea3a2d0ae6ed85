//! Recovery: what a directory of segments and a doubtful state store come to.
//!
//! 1. *Survey* (`survey.rs`): which segments there are, how far each is valid by the word of the newer ones.
//! 2. *Views*: what each holds: from the trusted state store, its footer, or a scan.
//! 3. *The end* (`end.rs`): where the newest segment ends; what was torn off; what of it might have been synced.
//! 4. *State* (`rebuild.rs`): the newest control record of each key.
//! 5. *Partitions* (`partitions.rs`): starts, ends, holes. What cannot be told is burnt: its offsets become a gap, never other records.
//! 6. The end is written again and synced, the cut is covered by a PAD, the state store is brought up to date.
//!
//! 7. Segments that hold nothing that counts are given back, now that what says so is durable.
//!
//! Nothing is deleted that might hold a record. Opening needs no free space: everything is written in place.

mod end;
mod partitions;
mod rebuild;
pub(crate) mod survey;
#[cfg(test)]
mod tests;

use self::end::End;
use self::partitions::Found;
use self::rebuild::{Base, Newest, Rebuilt};
use self::survey::{Losses, Survey};
use super::commit::CommitTail;
use super::control::ControlRecord;
use super::damage::Damage;
use super::format::FORMAT_MAJOR;
use super::live::RecentEntry;
use super::scan::read_footer;
use super::segments::SegmentSummary;
use super::state::State;
use super::store::{LogStore, StateStore, StoreError};
use crate::limits::DAMAGE_REPORTS_MAX;
use crate::types::{LogId, Offset, PartitionId, Seq};
use core::fmt;

/// What recovery must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryContext {
    /// The state store was closed in order with an fsync of our own, or the kernel has not been restarted since it was written.
    pub state_trusted: bool,
    /// Random: the identity of the log, if none exists yet.
    pub new_log_id: LogId,
    /// Random: from which the salts of new segments follow.
    pub salt_seed: u64,
}

/// A partition as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveredPartition {
    /// Which.
    pub id: PartitionId,
    /// First offset that is there.
    pub start: Offset,
    /// The next offset to be written.
    pub leo: Offset,
    /// Stored bytes in the segment being written.
    pub(crate) recent_bytes: u64,
}

/// What was found: a [`Log`](super::Log) is made of it.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Identity of the log.
    pub log_id: LogId,
    /// Leader epoch to write with: raised after a disorderly stop.
    pub epoch: u32,
    /// Number of the next frame.
    pub next_seq: Seq,
    /// Last frame that is there; it and everything before it is durable.
    pub synced: Seq,
    /// Partitions that were ever written.
    pub partitions: Vec<RecoveredPartition>,
    /// Sealed and abandoned segments, oldest first.
    pub segments: Vec<SegmentSummary>,
    /// Live control records.
    pub state: State,
    /// What happened, for people.
    pub report: RecoveryReport,
    pub(crate) recent: Vec<RecentEntry>,
    pub(crate) pending: Vec<ControlRecord>,
    /// Even partitions that nothing is known of may have had records.
    pub(crate) burn_new: bool,
}

/// Where the looked-up state came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StateOutcome {
    /// There was nothing yet.
    #[default]
    Fresh,
    /// The state store, and the log from its stamp on.
    Replayed {
        /// Its stamp.
        stamp: Seq,
    },
    /// The log alone; why the state store did not serve.
    Rebuilt(String),
}

/// What recovery found and did, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// There was no log.
    pub fresh: bool,
    /// The last stop was an orderly one.
    pub orderly: bool,
    /// Where the state came from.
    pub state: StateOutcome,
    /// The state store could not be brought up to date: it is of no use now.
    pub state_error: Option<StoreError>,
    /// What is broken, at most [`DAMAGE_REPORTS_MAX`] of it.
    pub damage: Vec<Damage>,
    /// How many more there are.
    pub more_damage: u64,
    /// Segment and bytes of a torn end that was cut off.
    pub torn: Option<(u64, u64, u64)>,
    /// Offsets that were burnt: partition, from, to (exclusive).
    pub burnt: Vec<(PartitionId, Offset, Offset)>,
    /// Segments that were scanned, and bytes of them.
    pub scanned: (u64, u64),
    /// Segments given back: without content, or freed before.
    pub recycled: Vec<u64>,
}

impl RecoveryReport {
    pub(crate) fn damaged(&mut self, damage: Damage) {
        if self.damage.len() < DAMAGE_REPORTS_MAX {
            self.damage.push(damage);
        } else {
            self.more_damage += 1;
        }
    }
}

/// Why the log cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryError {
    /// The medium failed.
    Store(StoreError),
    /// A segment was written by a later version of the program. Nothing was touched.
    Newer {
        /// Which segment.
        segment: u64,
        /// Major version of its format.
        major: u16,
    },
    /// A control record that must be known is not. Nothing was touched.
    UnknownControl {
        /// Its kind.
        kind: u16,
        /// Its version.
        version: u8,
    },
}

impl From<StoreError> for RecoveryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "the log cannot be read: {error}"),
            Self::Newer { segment, major } => write!(
                f,
                "segment {segment} has format version {major}, this program knows {FORMAT_MAJOR}: it was written by a later \
                 version of forebay; start that one (nothing was changed)"
            ),
            Self::UnknownControl { kind, version } => write!(
                f,
                "the log holds a control record of kind {kind} version {version}, which must be understood and is not: it was \
                 written by a later version of forebay; start that one (nothing was changed)"
            ),
        }
    }
}

impl std::error::Error for RecoveryError {}

/// Opens a log: reads what there is, decides where it ends, makes that durable. See the module's story.
pub fn recover(
    store: &dyn LogStore,
    state_store: &mut dyn StateStore,
    context: &RecoveryContext,
) -> Result<(Recovered, CommitTail), RecoveryError> {
    let survey = survey::survey(store)?;
    let mut report = RecoveryReport::default();
    let (mut base, mut doubt) = rebuild::base(&*state_store, context.state_trusted);
    let stamp = base.as_ref().map_or_else(|| state_store.stamp().ok().flatten().unwrap_or(0), |base| base.stamp);
    let (Some(log_id), Some(newest_plan)) = (survey.log_id, survey.plans.last()) else {
        return partitions::fresh(store, state_store, context, &survey, report, stamp);
    };
    let (end, last) = match read_footer(store, &newest_plan.header)? {
        Some(footer) => (None, footer.summary.last_seq),
        None => {
            let end = end::find(store, newest_plan, &mut report)?;
            let settled = end.settled;
            (Some(end), settled)
        }
    };
    if base.as_ref().is_some_and(|base| base.stamp > last) {
        doubt = "it is newer than the log".into();
        base = None;
    }
    if base.as_ref().is_some_and(|base| base.stamp + 1 < survey.first_seq()) {
        doubt = "it is older than the oldest segment".into();
        base = None;
    }
    let trusted = base.as_ref().map(|base| base.stamp);
    let mut gathered = gather(store, &survey, end.as_ref(), base, report.clone())?;
    if let Some(stamp) = trusted.filter(|stamp| stamp + 1 < gathered.rebuilt.log_start.seq) {
        // What was freed behind its stamp may have been tombstones.
        doubt = format!("its stamp {stamp} lies before the start of the log");
        gathered = gather(store, &survey, end.as_ref(), None, report)?;
    }
    let Gathered { segments, losses, rebuilt, mut report } = gathered;
    report.state = match trusted {
        Some(stamp) if rebuilt.touched.is_some() => StateOutcome::Replayed { stamp },
        _ => StateOutcome::Rebuilt(doubt),
    };
    let found = Found { survey: &survey, segments, end, last, stamp, losses, rebuilt, log_id };
    found.open(store, state_store, context, report)
}

/// What the segments that count come to.
struct Gathered {
    segments: Vec<SegmentSummary>,
    losses: Losses,
    rebuilt: Rebuilt,
    report: RecoveryReport,
}

fn gather(
    store: &dyn LogStore,
    survey: &Survey,
    end: Option<&End>,
    base: Option<Base>,
    mut report: RecoveryReport,
) -> Result<Gathered, RecoveryError> {
    let mut losses = Losses::default();
    let mut newest = Newest::new(base.as_ref());
    let mut segments = survey::summaries(store, survey, base.as_ref(), &mut newest, &mut losses, &mut report)?;
    if let Some(end) = end {
        newest.add_controls(store, &end.plan, end.index.controls(), &mut report)?;
        losses.take(end.losses.clone());
    }
    let rebuilt = rebuild::state(store, &survey.plans, newest, base, &mut report)?;
    // A freed segment may come back with a power cut. What it lacks is no loss.
    let start = rebuilt.log_start.segment;
    segments.retain(|segment| segment.number >= start);
    losses.forget_before(start);
    report.damage.retain(|damage| damage.segment >= start);
    Ok(Gathered { segments, losses, rebuilt, report })
}
