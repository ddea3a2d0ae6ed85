//! A stopped gateway's segments as they are: read, and never written.
//!
//! Recovery writes the log's end again before it believes it. Here those writes go to memory and are read back from there, so that a
//! directory can be looked at as its next start would see it, without changing a byte of it (and from a medium that is read-only).

use super::error::failed;
use super::file_store::segment_number;
use crate::limits::VIEW_BYTES_MAX;
use crate::log::store::{LogStore, StoreError};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Segments in a directory that others own.
#[derive(Debug)]
pub struct ViewStore {
    dir: PathBuf,
    segment_size: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    segments: BTreeMap<u64, View>,
    /// Bytes of all patches.
    bytes: usize,
}

/// One segment: the file, if there is one, and what was written over it.
#[derive(Debug)]
struct View {
    path: Option<PathBuf>,
    length: u64,
    /// In the order of writing: the later ones win.
    patches: Vec<(u64, Vec<u8>)>,
}

impl ViewStore {
    /// Looks at the segments in `dir`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let mut segments = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed("read", dir))? {
            let entry = entry.map_err(failed("read", dir))?;
            let Some(number) = segment_number(&entry.file_name().to_string_lossy()) else { continue };
            let path = entry.path();
            let metadata = entry.metadata().map_err(failed("read", &path))?;
            if metadata.is_file() {
                segments.insert(number, View { path: Some(path), length: metadata.len(), patches: Vec::new() });
            }
        }
        let segment_size = segments.values().map(|view| view.length).max().unwrap_or(crate::limits::SEGMENT_SIZE_MIN);
        Ok(Self { dir: dir.to_owned(), segment_size, inner: Mutex::new(Inner { segments, bytes: 0 }) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, operation: &'static str, what: &str) -> StoreError {
        StoreError {
            operation,
            subject: self.dir.display().to_string(),
            kind: ErrorKind::Other,
            message: what.to_owned(),
        }
    }
}

impl LogStore for ViewStore {
    fn segment_size(&self) -> u64 {
        self.segment_size
    }

    fn list(&self) -> Result<Vec<u64>, StoreError> {
        Ok(self.inner().segments.keys().copied().collect())
    }

    fn create(&self, number: u64) -> Result<(), StoreError> {
        let view = View { path: None, length: self.segment_size, patches: Vec::new() };
        self.inner().segments.insert(number, view);
        Ok(())
    }

    fn write_at(&self, number: u64, offset: u64, buffers: &[IoSlice<'_>]) -> Result<(), StoreError> {
        let patch: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let mut inner = self.inner();
        inner.bytes += patch.len();
        let fits = inner.bytes <= VIEW_BYTES_MAX;
        match inner.segments.get_mut(&number) {
            Some(view) if fits => view.patches.push((offset, patch)),
            Some(_) => return Err(self.refused("write", "more would be written than a mere look keeps in memory")),
            None => return Err(self.refused("write", "no such segment")),
        }
        Ok(())
    }

    fn sync(&self, _number: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_at(&self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let inner = self.inner();
        let Some(view) = inner.segments.get(&number) else {
            return Err(self.refused("read", "no such segment"));
        };
        let length = usize::try_from(view.length.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..length) else { return Ok(0) };
        match &view.path {
            None => buffer.fill(0),
            Some(path) => {
                let file = File::open(path).map_err(failed("read", path))?;
                read_whole(&file, offset, buffer).map_err(failed("read", path))?;
            }
        }
        for (start, patch) in &view.patches {
            overlay(buffer, offset, patch, *start);
        }
        Ok(length)
    }

    fn recycle(&self, number: u64) -> Result<(), StoreError> {
        let mut inner = self.inner();
        let freed = inner.segments.remove(&number);
        inner.bytes -= freed.map_or(0, |view| view.patches.iter().map(|(_, patch)| patch.len()).sum());
        Ok(())
    }

    fn prepare_spare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn bytes_used(&self) -> Result<u64, StoreError> {
        Ok(self.inner().segments.values().map(|view| view.length).sum())
    }
}

/// Fills the buffer; what lies beyond the file's end, should it have become shorter, is zero.
fn read_whole(file: &File, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Lays the part of `patch` (which begins at `start`) that falls into `buffer` (which begins at `offset`) over it.
fn overlay(buffer: &mut [u8], offset: u64, patch: &[u8], start: u64) {
    let skip = |from: u64, to: u64| usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    let (into, out_of) = (skip(offset, start), skip(start, offset));
    if let (Some(into), Some(out_of)) = (buffer.get_mut(into..), patch.get(out_of..)) {
        into.iter_mut().zip(out_of).for_each(|(old, new)| *old = *new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with segment 1: twenty times the letter a.
    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("000000000001.seg"), [b'a'; 20]).unwrap();
        fs::write(dir.path().join("spare-0001"), [0; 20]).unwrap();
        fs::write(dir.path().join("notes.txt"), "x").unwrap();
        dir
    }

    fn read(view: &ViewStore, number: u64, offset: u64, length: usize) -> String {
        let mut buffer = vec![0; length];
        let read = view.read_at(number, offset, &mut buffer).unwrap();
        String::from_utf8(buffer[..read].to_vec()).unwrap()
    }

    #[test]
    fn only_segments_are_seen() {
        let dir = directory();
        let view = ViewStore::open(dir.path()).unwrap();
        assert_eq!((view.list().unwrap(), view.segment_size()), (vec![1], 20));
    }

    #[test]
    fn what_is_written_is_read_back_and_the_file_stays_as_it_was() {
        let dir = directory();
        let view = ViewStore::open(dir.path()).unwrap();
        view.write_at(1, 5, &[IoSlice::new(b"bb"), IoSlice::new(b"cc")]).unwrap();
        view.write_at(1, 8, &[IoSlice::new(b"d")]).unwrap();
        assert_eq!(read(&view, 1, 0, 12), "aaaaabbcdaaa");
        assert_eq!(read(&view, 1, 6, 2), "bc");
        assert_eq!(read(&view, 1, 7, 100), "cdaaaaaaaaaaa");
        assert_eq!(read(&view, 1, 30, 5), "");
        view.create(2).unwrap();
        view.write_at(2, 0, &[IoSlice::new(b"new")]).unwrap();
        assert_eq!(read(&view, 2, 0, 3), "new");
        view.recycle(1).unwrap();
        assert_eq!(view.list().unwrap(), [2]);
        assert_eq!(fs::read(dir.path().join("000000000001.seg")).unwrap(), [b'a'; 20]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
