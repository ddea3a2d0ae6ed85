//! The data directory: its layout, its lock and what does not belong in it.
//!
//! ```text
//! data_dir/            0700
//!   lock               held by flock while a process uses the directory; holds that process's number
//!   gateway-id         the gateway's name, kept from the first start on
//!   log/000000000001.seg …, log/spare-0001 (ready), log/spare-0002.new (being filled)
//!   state/             sled: rebuilt from the log whenever it is in doubt
//!   state.mark         says whether state/ may be trusted (see trust.rs)
//!   state.quarantine/  the last state/ that looked damaged, for inspection
//!   control.sock       the admin API for the directory's owner
//! ```
//!
//! Anything else is foreign: it is reported, and never touched.

use super::error::{OpenError, failed};
use crate::limits::{FOREIGN_NAMES_MAX, USAGE_ENTRIES_MAX};
use crate::log::store::StoreError;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Names at the top of a data directory that are ours. `lost+found` is the file system's.
const OURS: [&str; 8] =
    ["lock", "gateway-id", "log", "state", "state.mark", "state.quarantine", "control.sock", "lost+found"];

/// An opened and locked data directory. Dropping it releases the lock.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Keeps the flock.
    _lock: File,
    notes: Vec<String>,
}

/// Space that a data directory takes, and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of everything in it.
    pub used_bytes: u64,
    /// Bytes free on its file system for an ordinary user.
    pub free_bytes: u64,
}

impl DataDir {
    /// Opens `path`, made with mode 0700 where it is missing, and locks it against other processes. Needs no free space where the
    /// directory has been used before. Fails with [`OpenError::Locked`] where another process (or handle) has it.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::make(path).map_err(OpenError::from_store)?;
        Self::lock(path)
    }

    /// The same for a directory that must exist already: for those who only want to look at a stopped gateway's data.
    pub fn open_existing(path: &Path) -> Result<Self, OpenError> {
        fs::metadata(path.join("log")).map_err(failed("find", &path.join("log"))).map_err(OpenError::from_store)?;
        Self::lock(path)
    }

    fn make(path: &Path) -> Result<(), StoreError> {
        let existed = path.is_dir();
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("create", path))?;
        if !existed && let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
        Ok(())
    }

    fn lock(path: &Path) -> Result<Self, OpenError> {
        let mut notes = Vec::new();
        let foreign = Self::private(path, &mut notes).map_err(OpenError::from_store)?;
        if let Some(note) = foreign_note(path, &foreign) {
            notes.push(note);
        }
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed("open", &lock_path))
            .map_err(OpenError::from_store)?;
        if let Err(error) = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            if error == rustix::io::Errno::WOULDBLOCK {
                let pid = read_pid(&lock);
                return Err(OpenError::Locked { data_dir: path.display().to_string(), pid });
            }
            return Err(OpenError::from_store(failed("lock", &lock_path)(error)));
        }
        // Only for the message above: a disk that is full must not keep the gateway from starting.
        let pid = format!("{:<16}", std::process::id());
        let _ = lock.write_all_at(pid.as_bytes(), 0);
        let this = Self { path: path.to_owned(), _lock: lock, notes };
        let log_dir = this.log_dir();
        if !log_dir.is_dir() {
            DirBuilder::new()
                .mode(0o700)
                .create(&log_dir)
                .map_err(failed("create", &log_dir))
                .and_then(|()| sync_dir(path))
                .map_err(OpenError::from_store)?;
        }
        Ok(this)
    }

    /// Makes the directory private and returns the foreign names in it. A directory that holds other things and was never ours
    /// keeps its mode (it may be somebody's home): that is reported instead.
    fn private(path: &Path, notes: &mut Vec<String>) -> Result<Vec<String>, StoreError> {
        let mut ours = false;
        let mut foreign = Vec::new();
        for entry in fs::read_dir(path).map_err(failed("read", path))? {
            let name = entry.map_err(failed("read", path))?.file_name().to_string_lossy().into_owned();
            match OURS.contains(&name.as_str()) {
                true => ours |= name == "log" || name == "lock",
                false => foreign.push(name),
            }
        }
        foreign.sort();
        let metadata = fs::metadata(path).map_err(failed("read", path))?;
        if metadata.mode() & 0o077 != 0 {
            if ours || foreign.is_empty() {
                fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed("make private", path))?;
            } else {
                notes.push(format!(
                    "data_dir {0} can be read by other users and holds files that are not forebay's, so its mode is left alone: \
                     use a directory of its own, or chmod 700 {0}",
                    path.display()
                ));
            }
        }
        Ok(foreign)
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the segments are.
    pub fn log_dir(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where sled is.
    pub fn state_dir(&self) -> PathBuf {
        self.path.join("state")
    }

    /// Where a damaged sled directory is set aside.
    pub fn quarantine_dir(&self) -> PathBuf {
        self.path.join("state.quarantine")
    }

    /// The unix socket of the admin API.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// Sentences about what was found at the opening, for the log.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Measures the space; for a few dozen files, so cheap, but it asks the file system.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        usage(&self.path)
    }
}

/// Space that everything under `path` takes, and what is free on its file system. Needs no lock.
pub fn usage(path: &Path) -> Result<Usage, StoreError> {
    let mut used_bytes = 0_u64;
    let mut seen = 0;
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        // Files come and go while we look: what is gone takes no space.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for metadata in entries.filter_map(|entry| entry.ok().map(|entry| (entry.path(), entry.metadata()))) {
            seen += 1;
            if let (entry, Ok(metadata)) = metadata {
                used_bytes += size_on_disk(&metadata);
                if metadata.is_dir() && seen < USAGE_ENTRIES_MAX {
                    folders.push(entry);
                }
            }
        }
    }
    let space = rustix::fs::statvfs(path).map_err(failed("ask for the free space of", path))?;
    Ok(Usage { used_bytes, free_bytes: space.f_bavail.saturating_mul(space.f_frsize) })
}

/// Bytes that a file counts: its length where the file system compresses or leaves holes, its blocks where they are more.
pub(super) fn size_on_disk(metadata: &fs::Metadata) -> u64 {
    metadata.len().max(metadata.blocks().saturating_mul(512))
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(failed("sync", path))
}

/// A sentence on names that do not belong there, if there are any.
pub(super) fn foreign_note(dir: &Path, names: &[String]) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let shown = names.iter().take(FOREIGN_NAMES_MAX).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(FOREIGN_NAMES_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Some(format!(
        "{} holds what is not forebay's: {shown}{more}; it is left alone, but counts against gateway.disk_budget: move it elsewhere",
        dir.display()
    ))
}

/// The number that the lock's holder left.
fn read_pid(lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Reads a small file; `None` where it is missing.
pub(super) fn read_small(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(4096).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Writes a small file in place, padded to one sector, and syncs it. A sector is old or new, never a mix, and a file that was there
/// needs no new space: so this works on a full disk and under a power cut.
pub(super) fn write_sector(path: &Path, text: &str) -> Result<(), StoreError> {
    let existed = path.exists();
    let mut sector = [b' '; 512];
    let text = text.as_bytes().get(..511).unwrap_or(text.as_bytes());
    sector.iter_mut().zip(text.iter().chain([&b'\n'])).for_each(|(to, from)| *to = *from);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed("open", path))?;
    file.write_all_at(&sector, 0).map_err(failed("write", path))?;
    file.sync_all().map_err(failed("sync", path))?;
    match path.parent() {
        Some(parent) if !existed => sync_dir(parent),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "data_dir_tests.rs"]
mod tests;
