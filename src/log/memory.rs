//! The two stores in memory, with faults: what tests and the simulator run recovery on. They are stores, not core logic: the lock
//! is theirs because [`LogStore`] is shared between writer and readers.
//!
//! # What the disk does to you
//!
//! - A 512-byte sector is old or new, never a mix. A successful sync holds, for ever, for that segment.
//! - **Power cut**: of the sectors written since the last successful sync of their segment, each is, independently, as it was
//!   at that sync, as any of the writes since made it, or as last written: so writes are forgotten, torn and reordered. (Now
//!   and then the whole cut is all-or-nothing, since these are the common cases.)
//! - **Directory**: a created segment is there once `create` returned; if the cut came during `create`, perhaps. A recycled one may
//!   come back, with its last durable bytes, until a later `create` returned.
//! - **Recycled segments** come back from `create` with their old bytes; new ones are zero-filled.
//! - **Kill of the process**: everything written stays, also of the write during which it came, up to some byte.
//! - **A failed sync**: any part of what was not synced is on the disk, the rest is not and *no later sync writes it*, while reads
//!   show all of it: as Linux does. Only writing the sector again makes it writable again.
//! - **A failed write**: any leading part of the bytes was written.
//! - **No space**: `create` fails; what exists can be written.
//! - **Rot**: bytes change at rest, by [`MemLogStore::flip`].

use super::format::{SECTOR_BYTES, mix};
use super::store::{Change, LogStore, StateStore, StoreError};
use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Old contents of a sector that are kept as possible outcomes of a power cut.
const VERSIONS_MAX: usize = 4;

type Sector = [u8; SECTOR_BYTES];

#[derive(Clone, Debug, Default)]
struct Segment {
    /// What reads see.
    bytes: Vec<u8>,
    /// Sectors written since the last sync, with what the disk may still hold; the first is what it held at that sync.
    dirty: BTreeMap<usize, Vec<Sector>>,
    /// Sectors that a failed sync left behind: what the disk holds.
    stale: BTreeMap<usize, Sector>,
}

impl Segment {
    fn sector(&self, number: usize) -> Sector {
        let mut sector = [0; SECTOR_BYTES];
        if let Some(bytes) = self.bytes.chunks(SECTOR_BYTES).nth(number) {
            for (to, from) in sector.iter_mut().zip(bytes) {
                *to = *from;
            }
        }
        sector
    }

    fn set_sector(&mut self, number: usize, sector: &Sector) {
        if let Some(bytes) = self.bytes.chunks_mut(SECTOR_BYTES).nth(number) {
            bytes.copy_from_slice(sector.get(..bytes.len()).unwrap_or_default());
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        for number in at / SECTOR_BYTES..=(at + bytes.len() - 1) / SECTOR_BYTES {
            let before = self.stale.remove(&number).unwrap_or_else(|| self.sector(number));
            let versions = self.dirty.entry(number).or_default();
            if versions.len() < VERSIONS_MAX {
                versions.push(before);
            }
        }
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    segments: BTreeMap<u64, Segment>,
    /// Recycled, but the directory entry may come back.
    ghosts: BTreeMap<u64, Segment>,
    spares: Vec<Vec<u8>>,
    seed: u64,
    drawn: u64,
    crash_after: Option<u64>,
    dead: bool,
    fail_syncs: u32,
    fail_writes: u32,
    no_space: bool,
    written: u64,
    syncs: u64,
    operations: u64,
}

impl Inner {
    fn draw(&mut self, below: u64) -> u64 {
        self.drawn += 1;
        mix(self.seed, self.drawn) % below.max(1)
    }

    /// Counts an operation. `Some(true)`: the process dies in the middle of it.
    fn begin(&mut self, operation: &'static str, number: u64) -> Result<bool, StoreError> {
        if self.dead {
            return Err(failure(operation, number, ErrorKind::Other, "the process is dead"));
        }
        self.operations += 1;
        let Some(left) = self.crash_after else { return Ok(false) };
        self.crash_after = left.checked_sub(1);
        self.dead = left == 0;
        Ok(self.dead)
    }

    /// Some of the unsynced sectors reach the disk; the others are what a failed sync leaves.
    fn sync_partly(&mut self, number: u64) {
        let Some(mut segment) = self.segments.remove(&number) else { return };
        for (sector, versions) in std::mem::take(&mut segment.dirty) {
            let Some(before) = versions.first() else { continue };
            if self.draw(2) == 0 {
                segment.stale.insert(sector, *before);
            }
        }
        self.segments.insert(number, segment);
    }
}

fn failure(operation: &'static str, number: u64, kind: ErrorKind, message: &str) -> StoreError {
    StoreError { operation, subject: format!("segment {number}"), kind, message: message.into() }
}

/// Segments in memory. See the module for its faults; all of them follow from the seed.
#[derive(Debug)]
pub struct MemLogStore {
    segment_size: u64,
    inner: Mutex<Inner>,
}

impl MemLogStore {
    /// An empty store; `segment_size` is a multiple of 512.
    pub fn new(segment_size: u64, seed: u64) -> Self {
        Self { segment_size, inner: Mutex::new(Inner { seed, ..Inner::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process dies in the middle of the operation after so many more; every later one fails until [`MemLogStore::kill`] or
    /// [`MemLogStore::power_cut`] restarts it.
    pub fn crash_after(&self, operations: u64) {
        self.lock().crash_after = Some(operations);
    }

    /// Whether that moment came.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// The next so many syncs fail.
    pub fn fail_syncs(&self, count: u32) {
        self.lock().fail_syncs = count;
    }

    /// The next so many writes fail.
    pub fn fail_writes(&self, count: u32) {
        self.lock().fail_writes = count;
    }

    /// Whether `create` fails.
    pub fn no_space(&self, full: bool) {
        self.lock().no_space = full;
    }

    /// The process is gone and comes back: what it wrote is still there.
    pub fn kill(&self) {
        let mut inner = self.lock();
        inner.dead = false;
        inner.crash_after = None;
    }

    /// The power is gone and comes back.
    pub fn power_cut(&self) {
        let mut inner = self.lock();
        inner.dead = false;
        inner.crash_after = None;
        let ghosts = std::mem::take(&mut inner.ghosts);
        for (number, ghost) in ghosts {
            if inner.draw(2) == 0 && !inner.segments.contains_key(&number) {
                inner.segments.insert(number, ghost);
            }
        }
        let mood = inner.draw(6);
        let segments = std::mem::take(&mut inner.segments);
        for (number, mut segment) in segments {
            for (sector, versions) in std::mem::take(&mut segment.dirty) {
                let outcome = match mood {
                    0 => 0,
                    1 => versions.len() as u64,
                    _ => inner.draw(versions.len() as u64 + 1),
                };
                if let Some(old) = versions.get(outcome as usize) {
                    segment.set_sector(sector, old);
                }
            }
            for (sector, old) in std::mem::take(&mut segment.stale) {
                segment.set_sector(sector, &old);
            }
            inner.segments.insert(number, segment);
        }
    }

    /// Changes a byte at rest.
    pub fn flip(&self, number: u64, at: u64, mask: u8) {
        let mut inner = self.lock();
        if let Some(byte) = inner.segments.get_mut(&number).and_then(|segment| segment.bytes.get_mut(at as usize)) {
            *byte ^= mask;
        }
    }

    /// Removes a segment at rest.
    pub fn lose(&self, number: u64) {
        self.lock().segments.remove(&number);
    }

    /// The bytes of a segment as reads see them.
    pub fn bytes(&self, number: u64) -> Option<Vec<u8>> {
        self.lock().segments.get(&number).map(|segment| segment.bytes.clone())
    }

    /// Puts a segment there, as if it had always been.
    pub fn put(&self, number: u64, bytes: Vec<u8>) {
        self.lock().segments.insert(number, Segment { bytes, ..Segment::default() });
    }

    /// Bytes written, syncs and operations so far.
    pub fn counts(&self) -> (u64, u64, u64) {
        let inner = self.lock();
        (inner.written, inner.syncs, inner.operations)
    }
}

impl LogStore for MemLogStore {
    fn segment_size(&self) -> u64 {
        self.segment_size
    }

    fn list(&self) -> Result<Vec<u64>, StoreError> {
        let mut inner = self.lock();
        if inner.begin("list", 0)? {
            return Err(failure("list", 0, ErrorKind::Other, "the process died"));
        }
        Ok(inner.segments.keys().copied().collect())
    }

    fn create(&self, number: u64) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let dies = inner.begin("create", number)?;
        if inner.no_space {
            return Err(failure("create", number, ErrorKind::StorageFull, "no space left"));
        }
        if inner.segments.contains_key(&number) {
            return Err(failure("create", number, ErrorKind::AlreadyExists, "it exists"));
        }
        if dies && inner.draw(2) == 0 {
            return Err(failure("create", number, ErrorKind::Other, "the process died"));
        }
        let bytes = inner.spares.pop().unwrap_or_else(|| vec![0; self.segment_size as usize]);
        inner.segments.insert(number, Segment { bytes, ..Segment::default() });
        if dies {
            return Err(failure("create", number, ErrorKind::Other, "the process died"));
        }
        inner.ghosts.clear();
        Ok(())
    }

    fn write_at(&self, number: u64, offset: u64, buffers: &[IoSlice<'_>]) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let dies = inner.begin("write", number)?;
        let mut bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        if offset + bytes.len() as u64 > self.segment_size {
            return Err(failure("write", number, ErrorKind::InvalidInput, "beyond the end of the segment"));
        }
        let fails = inner.fail_writes > 0;
        inner.fail_writes = inner.fail_writes.saturating_sub(1);
        if dies || fails {
            let kept = inner.draw(bytes.len() as u64 + 1) as usize;
            bytes.truncate(kept);
        }
        inner.written += bytes.len() as u64;
        let Some(segment) = inner.segments.get_mut(&number) else {
            return Err(failure("write", number, ErrorKind::NotFound, "no such segment"));
        };
        segment.write(offset as usize, &bytes);
        match (dies, fails) {
            (true, _) => Err(failure("write", number, ErrorKind::Other, "the process died")),
            (_, true) => Err(failure("write", number, ErrorKind::Other, "input/output error")),
            _ => Ok(()),
        }
    }

    fn sync(&self, number: u64) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let dies = inner.begin("sync", number)?;
        if !inner.segments.contains_key(&number) {
            return Err(failure("sync", number, ErrorKind::NotFound, "no such segment"));
        }
        if dies {
            return Err(failure("sync", number, ErrorKind::Other, "the process died"));
        }
        if inner.fail_syncs > 0 {
            inner.fail_syncs -= 1;
            inner.sync_partly(number);
            return Err(failure("sync", number, ErrorKind::Other, "input/output error"));
        }
        inner.syncs += 1;
        if let Some(segment) = inner.segments.get_mut(&number) {
            segment.dirty.clear();
        }
        Ok(())
    }

    fn read_at(&self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let inner = self.lock();
        if inner.dead {
            return Err(failure("read", number, ErrorKind::Other, "the process is dead"));
        }
        let Some(segment) = inner.segments.get(&number) else {
            return Err(failure("read", number, ErrorKind::NotFound, "no such segment"));
        };
        let bytes = segment.bytes.get(offset as usize..).unwrap_or_default();
        let length = bytes.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(bytes) {
            *to = *from;
        }
        Ok(length)
    }

    fn recycle(&self, number: u64) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let dies = inner.begin("recycle", number)?;
        if dies && inner.draw(2) == 0 {
            return Err(failure("recycle", number, ErrorKind::Other, "the process died"));
        }
        let Some(segment) = inner.segments.remove(&number) else {
            return Err(failure("recycle", number, ErrorKind::NotFound, "no such segment"));
        };
        inner.spares.push(segment.bytes.clone());
        inner.ghosts.insert(number, segment);
        if dies { Err(failure("recycle", number, ErrorKind::Other, "the process died")) } else { Ok(()) }
    }

    fn prepare_spare(&self) -> Result<(), StoreError> {
        let mut inner = self.lock();
        if inner.begin("prepare", 0)? {
            return Err(failure("prepare", 0, ErrorKind::Other, "the process died"));
        }
        if inner.spares.is_empty() && !inner.no_space {
            inner.spares.push(vec![0; self.segment_size as usize]);
        }
        Ok(())
    }

    fn bytes_used(&self) -> Result<u64, StoreError> {
        let inner = self.lock();
        Ok((inner.segments.len() + inner.spares.len()) as u64 * self.segment_size)
    }
}

/// Looked-up state in a map, which forgets on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemStateStore {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    stamp: Option<u64>,
    /// Fails every operation, as a damaged store does.
    pub broken: bool,
}

impl MemStateStore {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses everything, as a power cut may make it.
    pub fn forget(&mut self) {
        self.map.clear();
        self.stamp = None;
    }

    /// Keys in it.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    fn check(&self, operation: &'static str) -> Result<(), StoreError> {
        if !self.broken {
            return Ok(());
        }
        let message = "it is damaged".into();
        Err(StoreError { operation, subject: "state".into(), kind: ErrorKind::InvalidData, message })
    }
}

impl StateStore for MemStateStore {
    fn stamp(&self) -> Result<Option<u64>, StoreError> {
        self.check("stamp").map(|()| self.stamp)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.check("get").map(|()| self.map.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        self.check("scan")?;
        for (key, value) in self.map.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix)) {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn apply(&mut self, changes: &[Change], stamp: u64) -> Result<(), StoreError> {
        self.check("apply")?;
        for change in changes {
            match &change.value {
                Some(value) => self.map.insert(change.key.clone(), value.clone()),
                None => self.map.remove(&change.key),
            };
        }
        self.stamp = Some(stamp);
        Ok(())
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        self.broken = false;
        self.forget();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.check("flush")
    }
}
