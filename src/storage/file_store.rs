//! [`LogStore`] on files: one file per segment, preallocated and zero-filled once, recycled afterwards.
//!
//! Extending a file makes the file system commit its journal at each sync; a file whose blocks were all written before syncs about
//! twice as fast. So a segment is made whole under the name of a spare, and only a whole one gets a segment's name: a `.seg` file
//! that a power cut left half made does not exist.

use super::data_dir::{foreign_note, size_on_disk, sync_dir};
use super::error::failed;
use crate::limits::{OPEN_SEGMENTS_MAX, SPARE_SEGMENTS_MAX, WRITE_BUFFERS_MAX, ZERO_FILL_BYTES, ZERO_FILL_SYNC_BYTES};
use crate::log::store::{LogStore, StoreError};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Segments as files in one directory. The directory is ours alone: whoever opens it holds the lock of its data directory.
#[derive(Debug)]
pub struct FileStore {
    dir: PathBuf,
    segment_size: u64,
    inner: Mutex<Inner>,
    notes: Vec<String>,
}

/// The file that is written: one descriptor for writing and syncing, since a sync tells errors per descriptor.
#[derive(Clone, Debug)]
struct Writer {
    number: u64,
    file: Arc<File>,
    /// Its whole length: a segment is never extended.
    length: u64,
}

/// What the store knows of its directory. Not locked while the medium writes or syncs.
#[derive(Debug, Default)]
struct Inner {
    /// Segments that exist.
    live: BTreeSet<u64>,
    /// Segments whose sync failed: never synced again, and no spare afterwards.
    poisoned: BTreeSet<u64>,
    /// The file written last.
    writer: Option<Writer>,
    /// Files open for readers, least recently used first; at most [`OPEN_SEGMENTS_MAX`].
    readers: Vec<(u64, Arc<File>)>,
    /// Whole spares, by number.
    spares: Vec<u64>,
    /// Spares that are not whole: their filling was interrupted, or the segment size has changed.
    unready: Vec<u64>,
    /// Number of the next spare that is made.
    next_spare: u64,
}

/// What a name in the directory stands for.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    Segment(u64),
    Spare(u64),
    Unready(u64),
    Foreign,
}

impl Name {
    fn parse(name: &str) -> Self {
        let number = |digits: &str| digits.parse::<u64>().ok();
        let parsed = if let Some(digits) = name.strip_suffix(".seg") {
            number(digits).map(Self::Segment)
        } else if let Some(digits) = name.strip_prefix("spare-") {
            match digits.strip_suffix(".new") {
                Some(digits) => number(digits).map(Self::Unready),
                None => number(digits).map(Self::Spare),
            }
        } else {
            None
        };
        // Only names that we would have written ourselves: "1.seg" beside "000000000001.seg" is foreign.
        match parsed {
            Some(parsed) if parsed.file_name().as_deref() == Some(name) => parsed,
            _ => Self::Foreign,
        }
    }

    fn file_name(&self) -> Option<String> {
        match self {
            Self::Segment(number) => Some(format!("{number:012}.seg")),
            Self::Spare(number) => Some(format!("spare-{number:04}")),
            Self::Unready(number) => Some(format!("spare-{number:04}.new")),
            Self::Foreign => None,
        }
    }
}

/// The number of the segment whose file has this name.
pub(super) fn segment_number(file_name: &str) -> Option<u64> {
    match Name::parse(file_name) {
        Name::Segment(number) => Some(number),
        _ => None,
    }
}

impl FileStore {
    /// Opens the segments in `dir`, which exists. Makes and removes nothing, so it opens on a full disk. `segment_size` is for
    /// segments made from now on: older ones keep the size that they have.
    pub fn open(dir: &Path, segment_size: u64) -> Result<Self, StoreError> {
        let mut inner = Inner { next_spare: 1, ..Inner::default() };
        let mut foreign = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed("read", dir))? {
            let entry = entry.map_err(failed("read", dir))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            // Not following links: a link is foreign.
            let metadata = entry.metadata().map_err(failed("read", &path))?;
            let parsed = if metadata.is_file() { Name::parse(&name) } else { Name::Foreign };
            match parsed {
                Name::Segment(number) => drop(inner.live.insert(number)),
                Name::Spare(number) | Name::Unready(number) => {
                    inner.next_spare = inner.next_spare.max(number.saturating_add(1));
                    match parsed == Name::Spare(number) && metadata.len() == segment_size {
                        true => inner.spares.push(number),
                        false => inner.unready.push(number),
                    }
                }
                Name::Foreign if name == "lost+found" => {}
                Name::Foreign => foreign.push(name),
            }
        }
        foreign.sort();
        let notes = foreign_note(dir, &foreign).into_iter().collect();
        let store = Self { dir: dir.to_owned(), segment_size, inner: Mutex::new(inner), notes };
        store.rename_unready()?;
        Ok(store)
    }

    /// Sentences about what was found at the opening, for the log.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A spare of another size must not look whole to the next opening either.
    fn rename_unready(&self) -> Result<(), StoreError> {
        let unready = self.lock().unready.clone();
        for number in unready {
            let whole = self.path(&Name::Spare(number));
            if whole.exists() {
                fs::rename(&whole, self.path(&Name::Unready(number))).map_err(failed("rename", &whole))?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.dir.join(name.file_name().unwrap_or_default())
    }

    fn segment_path(&self, number: u64) -> PathBuf {
        self.path(&Name::Segment(number))
    }

    fn missing(&self, operation: &'static str, number: u64) -> StoreError {
        failed(operation, &self.segment_path(number))(io::Error::new(ErrorKind::NotFound, "no such segment"))
    }

    fn open_writer(&self, number: u64) -> Result<Writer, StoreError> {
        let path = self.segment_path(number);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed("open", &path))?;
        let length = file.metadata().map_err(failed("open", &path))?.len();
        let writer = Writer { number, file: Arc::new(file), length };
        self.lock().writer = Some(writer.clone());
        Ok(writer)
    }

    /// The descriptor that is written and synced for `number`.
    fn writer(&self, operation: &'static str, number: u64) -> Result<Writer, StoreError> {
        {
            let inner = self.lock();
            if !inner.live.contains(&number) {
                return Err(self.missing(operation, number));
            }
            if inner.poisoned.contains(&number) {
                let error = io::Error::other("a sync of it has failed before, so nothing may rely on it any more");
                return Err(failed(operation, &self.segment_path(number))(error));
            }
            if let Some(writer) = inner.writer.as_ref().filter(|writer| writer.number == number) {
                return Ok(writer.clone());
            }
        }
        self.open_writer(number)
    }

    /// A descriptor to read `number`, from the cache where it is there.
    fn reader(&self, number: u64) -> Result<Arc<File>, StoreError> {
        {
            let mut inner = self.lock();
            if !inner.live.contains(&number) {
                return Err(self.missing("read", number));
            }
            if let Some(writer) = inner.writer.as_ref().filter(|writer| writer.number == number) {
                return Ok(Arc::clone(&writer.file));
            }
            if let Some(at) = inner.readers.iter().position(|(open, _)| *open == number) {
                let entry = inner.readers.remove(at);
                let file = Arc::clone(&entry.1);
                inner.readers.push(entry);
                return Ok(file);
            }
        }
        let path = self.segment_path(number);
        let file = File::open(&path).map(Arc::new).map_err(failed("open", &path))?;
        let mut inner = self.lock();
        if inner.readers.len() >= OPEN_SEGMENTS_MAX {
            inner.readers.remove(0);
        }
        inner.readers.push((number, Arc::clone(&file)));
        Ok(file)
    }

    /// Takes an unready spare, or the number of a new one.
    fn begin_spare(&self) -> u64 {
        let mut inner = self.lock();
        inner.unready.pop().unwrap_or_else(|| {
            let number = inner.next_spare;
            inner.next_spare = number.saturating_add(1);
            number
        })
    }

    /// Makes the file of spare `number` whole: all blocks taken and written once, synced. What cannot be finished is removed, since
    /// it holds nothing and the space may be needed.
    fn fill_spare(&self, number: u64) -> Result<PathBuf, StoreError> {
        let path = self.path(&Name::Unready(number));
        self.fill(&path).inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(path)
    }

    fn fill(&self, path: &Path) -> Result<(), StoreError> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(failed("create", path))?;
        // A full disk shows here, before anything is written. Some file systems cannot do it: then the zeros take the space.
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, self.segment_size) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(failed("allocate", path)(error)),
        }
        let zeros = vec![0; ZERO_FILL_BYTES];
        let mut at = 0;
        let mut synced = 0;
        while at < self.segment_size {
            let length = usize::try_from(self.segment_size - at).unwrap_or(usize::MAX).min(zeros.len());
            file.write_all_at(zeros.get(..length).unwrap_or_default(), at).map_err(failed("fill", path))?;
            at += length as u64;
            if at - synced >= ZERO_FILL_SYNC_BYTES {
                file.sync_data().map_err(failed("sync", path))?;
                synced = at;
            }
        }
        file.sync_all().map_err(failed("sync", path))
    }

    fn write_chunk(file: &File, offset: &mut u64, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        let mut room = [IoSlice::new(&[]); WRITE_BUFFERS_MAX];
        room.iter_mut().zip(buffers).for_each(|(to, from)| *to = *from);
        let mut left = room.get_mut(..buffers.len()).unwrap_or_default();
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match rustix::io::pwritev(file, left, *offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    *offset += count as u64;
                    IoSlice::advance_slices(&mut left, count);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl LogStore for FileStore {
    fn segment_size(&self) -> u64 {
        self.segment_size
    }

    fn list(&self) -> Result<Vec<u64>, StoreError> {
        Ok(self.lock().live.iter().copied().collect())
    }

    fn create(&self, number: u64) -> Result<(), StoreError> {
        let path = self.segment_path(number);
        let spare = {
            let mut inner = self.lock();
            // Never over bytes that are there, not even those of a name that we did not see at the opening.
            if inner.live.contains(&number) || path.exists() {
                return Err(failed("create", &path)(io::Error::from(ErrorKind::AlreadyExists)));
            }
            inner.spares.pop()
        };
        let from = match spare {
            Some(spare) => self.path(&Name::Spare(spare)),
            None => self.fill_spare(self.begin_spare())?,
        };
        let named = fs::rename(&from, &path).map_err(failed("create", &path)).and_then(|()| sync_dir(&self.dir));
        if let Err(error) = named {
            // It may be tried again under the same number.
            let _ = fs::rename(&path, &from);
            let mut inner = self.lock();
            match (path.exists(), spare) {
                (true, _) => drop(inner.live.insert(number)),
                (false, Some(spare)) => inner.spares.push(spare),
                (false, None) => {}
            }
            return Err(error);
        }
        self.lock().live.insert(number);
        self.open_writer(number).map(drop)
    }

    fn write_at(&self, number: u64, offset: u64, buffers: &[IoSlice<'_>]) -> Result<(), StoreError> {
        let writer = self.writer("write", number)?;
        let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let path = || self.segment_path(number);
        if offset.checked_add(length).is_none_or(|end| end > writer.length) {
            let error = io::Error::new(ErrorKind::InvalidInput, "beyond the end of the segment");
            return Err(failed("write", &path())(error));
        }
        let mut at = offset;
        for chunk in buffers.chunks(WRITE_BUFFERS_MAX) {
            Self::write_chunk(&writer.file, &mut at, chunk).map_err(failed("write", &path()))?;
        }
        Ok(())
    }

    fn sync(&self, number: u64) -> Result<(), StoreError> {
        let writer = self.writer("sync", number)?;
        rustix::fs::fdatasync(&writer.file).map_err(|error| {
            // The kernel may have dropped the dirty pages and called them clean: a second sync would lie.
            self.lock().poisoned.insert(number);
            failed("sync", &self.segment_path(number))(error)
        })
    }

    fn read_at(&self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let file = self.reader(number)?;
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &self.segment_path(number))(error)),
            }
        }
        // Given up meanwhile, its file may already be another segment: what was read is nobody's.
        match self.lock().live.contains(&number) {
            true => Ok(filled),
            false => Err(self.missing("read", number)),
        }
    }

    fn recycle(&self, number: u64) -> Result<(), StoreError> {
        let path = self.segment_path(number);
        let spare = {
            let mut inner = self.lock();
            if !inner.live.remove(&number) {
                return Err(self.missing("recycle", number));
            }
            inner.readers.retain(|(open, _)| *open != number);
            if inner.writer.as_ref().is_some_and(|writer| writer.number == number) {
                inner.writer = None;
            }
            let sound = !inner.poisoned.remove(&number);
            let whole = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == self.segment_size);
            (sound && whole && inner.spares.len() < SPARE_SEGMENTS_MAX).then(|| {
                let spare = inner.next_spare;
                inner.next_spare = spare.saturating_add(1);
                spare
            })
        };
        let done = match spare {
            Some(spare) => fs::rename(&path, self.path(&Name::Spare(spare))).map_err(failed("recycle", &path)),
            None => fs::remove_file(&path).map_err(failed("remove", &path)),
        };
        if let Err(error) = done {
            self.lock().live.insert(number);
            return Err(error);
        }
        // Before it is a spare for others: a power cut must not bring the old name back beside the new one.
        sync_dir(&self.dir)?;
        self.lock().spares.extend(spare);
        Ok(())
    }

    fn prepare_spare(&self) -> Result<(), StoreError> {
        if !self.lock().spares.is_empty() {
            return Ok(());
        }
        let number = self.begin_spare();
        let from = self.fill_spare(number)?;
        let to = self.path(&Name::Spare(number));
        fs::rename(&from, &to).map_err(failed("rename", &from))?;
        self.lock().spares.push(number);
        Ok(())
    }

    fn bytes_used(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for entry in fs::read_dir(&self.dir).map_err(failed("read", &self.dir))? {
            // What disappears while we count takes no space.
            let Ok(entry) = entry else { continue };
            if Name::parse(&entry.file_name().to_string_lossy()) != Name::Foreign
                && let Ok(metadata) = entry.metadata()
            {
                bytes += size_on_disk(&metadata);
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
#[path = "file_store_tests.rs"]
mod tests;
