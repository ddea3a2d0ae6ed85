//! [`StateStore`] on sled 0.34: the log's materialised state, which can be rebuilt at any time.
//!
//! sled may panic where its files are damaged, at the opening and later: every call of it is caught, and becomes an error. A
//! directory that cannot be opened is set aside as `state.quarantine` (one is kept) and rebuilt from the log. Where the medium does
//! not even let a new one be made (a full disk), the state is kept in memory for this run: it is a view of the log, so nothing is
//! lost, the next start rebuilds it again.

use super::data_dir::{DataDir, sync_dir};
use super::error::failed;
use super::trust::Mark;
use crate::limits::{STATE_FLUSH_MS, STATE_REOPEN_TRIES};
use crate::log::store::{Change, StateStore, StoreError};
use crate::types::BootId;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Key of the stamp. All other keys begin with [`DATA`].
const STAMP: &[u8] = b"s";
/// First byte of every key that the core sees.
const DATA: u8 = b'd';

/// The state on sled, or in memory where sled cannot have its files.
pub struct SledState {
    dir: PathBuf,
    quarantine: PathBuf,
    mark_path: PathBuf,
    cache_bytes: u64,
    boot: BootId,
    backing: Backing,
    /// What the mark on the medium says.
    mark: Mark,
    /// A change could not be applied: no later one may, or there would be a hole before its stamp.
    broken: Option<StoreError>,
    trusted: bool,
    notes: Vec<String>,
}

enum Backing {
    Sled(sled::Db),
    /// Flushed and closed; opened again when it is used.
    Closed,
    Memory {
        values: BTreeMap<Vec<u8>, Vec<u8>>,
        stamp: Option<u64>,
    },
}

/// Why sled could not be opened.
enum OpenFailure {
    /// Its files are damaged, as far as one can tell.
    Damaged(String),
    /// The medium or the permissions are in the way.
    Refused(StoreError),
}

impl SledState {
    /// Opens the state. Never fails: the worst is an empty state in memory, with a note that says why. Whether the content may be
    /// relied on is [`SledState::trusted`]; of an untrusted one only the stamp says something: so far the log was synced once.
    pub fn open(data_dir: &DataDir, cache_bytes: u64, boot: BootId) -> Self {
        let mut this = Self {
            dir: data_dir.state_dir(),
            quarantine: data_dir.quarantine_dir(),
            mark_path: data_dir.path().join("state.mark"),
            cache_bytes,
            boot,
            backing: Backing::Closed,
            mark: Mark::Unknown,
            broken: None,
            trusted: false,
            notes: Vec::new(),
        };
        this.mark = Mark::read(&this.mark_path).unwrap_or(Mark::Unknown);
        if let Err(error) = this.open_disk(this.mark.trusted(boot)) {
            this.fall_back(&error);
        }
        this
    }

    /// Whether the content may be relied on up to its stamp; otherwise it is to be cleared and rebuilt from the log.
    pub fn trusted(&self) -> bool {
        self.trusted
    }

    /// Sentences about what was found, for the log.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the state is kept in memory only, for want of space or permission.
    pub fn in_memory(&self) -> bool {
        matches!(self.backing, Backing::Memory { .. })
    }

    /// Says that the content is whole now (opened trusted, or rebuilt): from here on a restart in the same boot may rely on it.
    pub fn settled(&mut self) {
        self.trusted = true;
        if !self.in_memory()
            && let Err(error) = self.set_mark(Mark::Open(self.boot))
        {
            self.notes.push(format!("the state will be rebuilt at the next start: {error}"));
        }
    }

    /// Sets the content aside as `state.quarantine` and goes on with an empty one: for a state that contradicts the log.
    pub fn quarantine(&mut self, why: &str) -> Result<(), StoreError> {
        self.trusted = false;
        if !self.in_memory() {
            self.close_quietly();
            self.set_aside(why)?;
        }
        self.clear()
    }

    /// Closes sled's files; a panic of its own drop is no matter, the files are given up.
    fn close_quietly(&mut self) {
        let closing = std::mem::replace(&mut self.backing, Backing::Closed);
        let _ = catch_unwind(AssertUnwindSafe(move || drop(closing)));
    }

    fn open_disk(&mut self, believe: bool) -> Result<(), StoreError> {
        if !self.dir.exists() {
            return self.start_empty();
        }
        if !self.dir.is_dir() {
            return Err(failed("open", &self.dir)(io::Error::from(ErrorKind::NotADirectory)));
        }
        match self.open_sled() {
            Ok(db) => {
                // Before anything is applied: after a power cut from here on, the content is in doubt.
                self.set_mark(if believe { Mark::Open(self.boot) } else { Mark::Unknown })?;
                self.backing = Backing::Sled(db);
                self.trusted = believe;
                Ok(())
            }
            Err(OpenFailure::Refused(error)) => Err(error),
            Err(OpenFailure::Damaged(why)) => {
                self.set_aside(&why)?;
                self.start_empty()
            }
        }
    }

    fn start_empty(&mut self) -> Result<(), StoreError> {
        self.set_mark(Mark::Unknown)?;
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &self.dir)(error)),
            _ => {}
        }
        match self.open_sled() {
            Ok(db) => {
                self.backing = Backing::Sled(db);
                Ok(())
            }
            Err(OpenFailure::Refused(error)) => Err(error),
            Err(OpenFailure::Damaged(why)) => Err(failed("create", &self.dir)(io::Error::other(why))),
        }
    }

    fn fall_back(&mut self, error: &StoreError) {
        self.notes.push(format!(
            "the state cannot be kept on the medium ({error}): it is rebuilt from the log and held in memory until the next start"
        ));
        self.trusted = false;
        self.backing = Backing::Memory { values: BTreeMap::new(), stamp: None };
        // What is on the medium falls behind from here on. (One sector in place: it works on a full disk too.)
        let _ = self.set_mark(Mark::Unknown);
    }

    fn set_mark(&mut self, mark: Mark) -> Result<(), StoreError> {
        // Known before it is tried: a write that failed may still have reached the medium.
        let before = std::mem::replace(&mut self.mark, Mark::Unknown);
        if before != mark || mark == Mark::Unknown {
            mark.write(&self.mark_path)?;
        }
        self.mark = mark;
        Ok(())
    }

    fn open_sled(&self) -> Result<sled::Db, OpenFailure> {
        for _ in 0..STATE_REOPEN_TRIES {
            let config = sled::Config::new()
                .path(&self.dir)
                .cache_capacity(self.cache_bytes)
                .mode(sled::Mode::LowSpace)
                .flush_every_ms(Some(STATE_FLUSH_MS));
            let error = match catch_unwind(AssertUnwindSafe(|| config.open())) {
                Ok(Ok(db)) => return Ok(db),
                Ok(Err(sled::Error::Io(error))) => error,
                Ok(Err(error)) => return Err(OpenFailure::Damaged(error.to_string())),
                Err(panic) => return Err(OpenFailure::Damaged(panic_text(panic.as_ref()))),
            };
            match error.kind() {
                // Our own former handle, still closing (sled says "Other" and puts the lock's error into the text).
                _ if error.to_string().contains("could not acquire lock") => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem => {
                    return Err(OpenFailure::Refused(failed("open", &self.dir)(error)));
                }
                _ => return Err(OpenFailure::Damaged(error.to_string())),
            }
        }
        let error = io::Error::new(ErrorKind::WouldBlock, "another handle still holds it");
        Err(OpenFailure::Refused(failed("open", &self.dir)(error)))
    }

    fn set_aside(&mut self, why: &str) -> Result<(), StoreError> {
        self.set_mark(Mark::Unknown)?;
        match fs::remove_dir_all(&self.quarantine) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("remove", &self.quarantine)(error));
            }
            _ => {}
        }
        fs::rename(&self.dir, &self.quarantine).map_err(failed("set aside", &self.dir))?;
        if let Some(parent) = self.dir.parent() {
            sync_dir(parent)?;
        }
        self.notes.push(format!(
            "the state in {} looks damaged ({why}): it is set aside as {} and rebuilt from the log, nothing is lost",
            self.dir.display(),
            self.quarantine.display()
        ));
        Ok(())
    }

    /// The database, opened again if it was flushed and closed.
    fn database(&mut self) -> Result<&sled::Db, StoreError> {
        if matches!(self.backing, Backing::Closed) {
            self.backing = match self.open_sled() {
                Ok(db) => Backing::Sled(db),
                Err(OpenFailure::Refused(error)) => return Err(error),
                Err(OpenFailure::Damaged(why)) => return Err(failed("open", &self.dir)(io::Error::other(why))),
            };
        }
        match &self.backing {
            Backing::Sled(db) => Ok(db),
            _ => Err(failed("open", &self.dir)(io::Error::other("the state is in memory"))),
        }
    }

    /// Calls sled and turns its errors and panics into ours.
    fn call<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&sled::Db) -> Result<T, sled::Error>,
    ) -> Result<T, StoreError> {
        let Backing::Sled(db) = &self.backing else {
            return Err(failed(operation, &self.dir)(io::Error::other("the state is closed")));
        };
        guarded(operation, &self.dir, || work(db))
    }

    fn apply_sled(&mut self, changes: &[Change], stamp: u64) -> Result<(), StoreError> {
        self.database()?;
        if self.mark == Mark::Closed {
            self.set_mark(Mark::Open(self.boot))?;
        }
        let mut batch = sled::Batch::default();
        for change in changes {
            let key = data_key(&change.key);
            match &change.value {
                Some(value) => batch.insert(key, value.as_slice()),
                None => batch.remove(key),
            }
        }
        batch.insert(STAMP, &stamp.to_le_bytes());
        self.call("apply to", |db| db.apply_batch(batch))
    }

    fn close_sled(&mut self) -> Result<(), StoreError> {
        self.call("flush", |db| db.flush().map(drop))?;
        // Closed before the fsync, so that nothing is written after it.
        let closing = std::mem::replace(&mut self.backing, Backing::Closed);
        guarded("close", &self.dir, move || {
            drop(closing);
            Ok(())
        })?;
        sync_tree(&self.dir)?;
        if let Some(parent) = self.dir.parent() {
            sync_dir(parent)?;
        }
        // A state that is half rebuilt stays unknown.
        match self.trusted {
            true => self.set_mark(Mark::Closed),
            false => Ok(()),
        }
    }
}

impl StateStore for SledState {
    fn stamp(&self) -> Result<Option<u64>, StoreError> {
        if let Backing::Memory { stamp, .. } = &self.backing {
            return Ok(*stamp);
        }
        let value = self.call("read", |db| db.get(STAMP))?;
        Ok(value.and_then(|bytes| bytes.as_ref().try_into().ok().map(u64::from_le_bytes)))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Backing::Memory { values, .. } = &self.backing {
            return Ok(values.get(key).cloned());
        }
        self.call("read", |db| db.get(data_key(key))).map(|value| value.map(|bytes| bytes.to_vec()))
    }

    fn scan(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        if let Backing::Memory { values, .. } = &self.backing {
            let from = (Bound::Included(prefix), Bound::Unbounded);
            for (key, value) in values.range::<[u8], _>(from).take_while(|(key, _)| key.starts_with(prefix)) {
                if !each(key, value) {
                    break;
                }
            }
            return Ok(());
        }
        let mut entries = self.call("read", |db| Ok(db.scan_prefix(data_key(prefix))))?;
        // Only sled's own work is guarded: a panic of `each` is the caller's.
        while let Some((key, value)) = guarded("read", &self.dir, || entries.next().transpose())? {
            if !each(key.get(1..).unwrap_or_default(), &value) {
                break;
            }
        }
        Ok(())
    }

    fn apply(&mut self, changes: &[Change], stamp: u64) -> Result<(), StoreError> {
        if let Backing::Memory { values, stamp: stamped } = &mut self.backing {
            for change in changes {
                match &change.value {
                    Some(value) => drop(values.insert(change.key.clone(), value.clone())),
                    None => drop(values.remove(&change.key)),
                }
            }
            *stamped = Some(stamp);
            return Ok(());
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.apply_sled(changes, stamp).inspect_err(|error| self.broken = Some(error.clone()))
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        if self.trusted && self.mark != Mark::Unknown {
            // It was believed and does not agree with the log: worth a look.
            return self.quarantine("it does not agree with the log");
        }
        self.broken = None;
        self.trusted = false;
        if self.in_memory() {
            self.backing = Backing::Memory { values: BTreeMap::new(), stamp: None };
            return Ok(());
        }
        self.close_quietly();
        if let Err(error) = self.start_empty() {
            self.fall_back(&error);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        match (&self.backing, &self.broken) {
            // Already flushed and closed, or nothing to make durable.
            (Backing::Closed | Backing::Memory { .. }, _) => Ok(()),
            (Backing::Sled(_), Some(error)) => Err(error.clone()),
            (Backing::Sled(_), None) => self.close_sled(),
        }
    }
}

impl Drop for SledState {
    fn drop(&mut self) {
        // sled panics in its own drop where the medium fails.
        self.close_quietly();
    }
}

/// Runs sled's code; its errors and panics become a [`StoreError`].
fn guarded<T>(
    operation: &'static str,
    dir: &Path,
    work: impl FnOnce() -> Result<T, sled::Error>,
) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(failed(operation, dir)(error)),
        Ok(Err(error)) => Err(failed(operation, dir)(io::Error::other(error.to_string()))),
        Err(panic) => Err(failed(operation, dir)(io::Error::other(panic_text(panic.as_ref())))),
    }
}

fn data_key(key: &[u8]) -> Vec<u8> {
    let mut prefixed = Vec::with_capacity(key.len() + 1);
    prefixed.push(DATA);
    prefixed.extend_from_slice(key);
    prefixed
}

/// What a panic said, on one line.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    format!("sled panicked: {}", text.lines().next().unwrap_or_default())
}

/// fsync of every file and directory under `dir`.
fn sync_tree(dir: &Path) -> Result<(), StoreError> {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed("read", &folder))? {
            let path = entry.map_err(failed("read", &folder))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(failed("read", &path))?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() {
                File::open(&path).and_then(|file| file.sync_all()).map_err(failed("sync", &path))?;
            }
        }
        sync_dir(&folder)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "sled_state_tests.rs"]
mod tests;
