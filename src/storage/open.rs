//! Opening a data directory: lock, identity, both stores, recovery; and what was found, in words.

use super::data_dir::DataDir;
use super::error::OpenError;
use super::file_store::FileStore;
use super::identity::{boot_id, gateway_id, random, random_u64};
use super::sled_state::SledState;
use crate::engine::io::{Event, Severity};
use crate::log::commit::CommitTail;
use crate::log::recovery::{Recovered, RecoveryContext, RecoveryError, RecoveryReport, StateOutcome, recover};
use crate::log::store::StateStore;
use crate::settings::Settings;
use crate::types::{BootId, LogId};
use std::path::Path;
use std::sync::Arc;

/// Everything that the broker needs of an opened data directory.
pub struct Opened {
    /// The directory; its lock is held as long as this lives.
    pub data_dir: DataDir,
    /// The segments, shared by the committer and the readers.
    pub store: Arc<FileStore>,
    /// The looked-up state, for the one thread that applies changes to it. `flush` it at an orderly stop, after the closing frame is
    /// synced and the last change applied.
    pub state: SledState,
    /// What the log is made of.
    pub recovered: Recovered,
    /// What the committer goes on from.
    pub tail: CommitTail,
    /// Name of this gateway.
    pub gateway_id: String,
    /// The kernel's boot id.
    pub boot: BootId,
    /// What a person should know, for the log.
    pub events: Vec<Event>,
}

/// Opens `gateway.data_dir`, made if it is missing. Deletes nothing that might hold a record, and needs no free space where the
/// directory has been used before. The error is a sentence that says what to do.
pub fn open(settings: &Settings) -> Result<Opened, OpenError> {
    open_in(DataDir::open(&settings.gateway.data_dir)?, settings)
}

/// The same for a directory that must be there already: for `tail` and other looks at a stopped gateway.
pub fn open_existing(settings: &Settings) -> Result<Opened, OpenError> {
    open_in(DataDir::open_existing(&settings.gateway.data_dir)?, settings)
}

fn open_in(data_dir: DataDir, settings: &Settings) -> Result<Opened, OpenError> {
    let mut notes = data_dir.notes().to_vec();
    let boot = boot_id().map_err(OpenError::from_store)?;
    let id = gateway_id(data_dir.path(), settings.gateway.id.as_deref(), &mut notes).map_err(OpenError::from_store)?;
    let store = FileStore::open(&data_dir.log_dir(), settings.device.segment_size).map_err(OpenError::from_store)?;
    notes.extend_from_slice(store.notes());
    let mut state = SledState::open(&data_dir, settings.device.state_cache, boot);
    let context = RecoveryContext {
        state_trusted: state.trusted(),
        new_log_id: LogId(random().map_err(OpenError::from_store)?),
        salt_seed: random_u64().map_err(OpenError::from_store)?,
    };
    let (recovered, tail) = recovered(&store, &mut state, context, &data_dir.state_dir())?;
    if recovered.report.state_error.is_none() {
        state.settled();
    }
    notes.extend_from_slice(state.notes());
    let mut events: Vec<Event> =
        notes.into_iter().map(|text| Event { severity: Severity::Warning, part: "storage", text }).collect();
    tell(&recovered.report, &mut events);
    Ok(Opened { data_dir, store: Arc::new(store), state, recovered, tail, gateway_id: id, boot, events })
}

/// Recovers the log; where the state turns out to be broken on the way, once more without it.
fn recovered(
    store: &FileStore,
    state: &mut SledState,
    context: RecoveryContext,
    state_dir: &Path,
) -> Result<(Recovered, CommitTail), OpenError> {
    match recover(store, state, &context) {
        Ok(found) => return Ok(found),
        Err(RecoveryError::Store(error))
            if context.state_trusted && Path::new(&error.subject).starts_with(state_dir) =>
        {
            state.quarantine(&error.to_string()).map_err(OpenError::from_store)?;
        }
        Err(error) => return Err(refused(error)),
    }
    recover(store, state, &RecoveryContext { state_trusted: false, ..context }).map_err(refused)
}

fn refused(error: RecoveryError) -> OpenError {
    match error {
        RecoveryError::Store(error) => OpenError::from_store(error),
        error => OpenError::Log(error.to_string()),
    }
}

/// What recovery did, in sentences.
fn tell(report: &RecoveryReport, events: &mut Vec<Event>) {
    let mut say = |severity, text| events.push(Event { severity, part: "log", text });
    if report.fresh {
        say(Severity::Info, "a new log is begun".to_owned());
    } else if !report.orderly {
        say(Severity::Info, "the last stop was not an orderly one: the end of the log was checked".to_owned());
    }
    if let Some((segment, from, to)) = report.torn {
        let text = format!(
            "segment {segment}: a torn end of {} bytes was cut off; nothing of it had been acknowledged",
            to.saturating_sub(from)
        );
        say(Severity::Info, text);
    }
    if let StateOutcome::Rebuilt(why) = &report.state {
        say(Severity::Info, format!("the state was rebuilt from the log ({why})"));
    }
    if let Some(error) = &report.state_error {
        say(
            Severity::Warning,
            format!("the state cannot be kept on the medium: {error}; it is rebuilt at the next start"),
        );
    }
    for damage in &report.damage {
        say(Severity::Error, format!("damage found: {damage}"));
    }
    if report.more_damage > 0 {
        say(Severity::Error, format!("damage found in {} more places", report.more_damage));
    }
    for (partition, from, to) in &report.burnt {
        let text = format!(
            "partition {partition}: offsets {from} to {} are given up, since it cannot be told whether records stood there",
            to.saturating_sub(1)
        );
        say(Severity::Error, text);
    }
}

impl Opened {
    /// Closes the state in order: flushed, its files synced by us, marked. For whoever opened only to look; the broker does it in its
    /// store thread.
    pub fn close(mut self) -> Result<(), crate::log::store::StoreError> {
        self.state.flush()
    }
}
