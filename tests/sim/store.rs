//! The simulated disk of the gateway: `log::memory`'s, whose fault model stands there, with the planted bugs of the harness.

use super::plan::Bug;
use forebay::log::memory::MemLogStore;
use forebay::log::store::{LogStore, StoreError};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::{Mutex, PoisonError};

pub struct Disk {
    pub memory: MemLogStore,
    bug: Bug,
    /// Segments whose sync failed: none may be synced again.
    failed: Mutex<BTreeSet<u64>>,
}

impl Disk {
    pub fn new(segment_size: u64, seed: u64, bug: Bug) -> Self {
        Self { memory: MemLogStore::new(segment_size, seed), bug, failed: Mutex::default() }
    }

    /// The process is gone, and with it the descriptors whose syncs had failed.
    pub fn restart(&self) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl LogStore for Disk {
    fn segment_size(&self) -> u64 {
        self.memory.segment_size()
    }

    fn list(&self) -> Result<Vec<u64>, StoreError> {
        self.memory.list()
    }

    fn create(&self, number: u64) -> Result<(), StoreError> {
        self.memory.create(number)
    }

    fn write_at(&self, number: u64, offset: u64, buffers: &[IoSlice<'_>]) -> Result<(), StoreError> {
        self.memory.write_at(number, offset, buffers)
    }

    fn sync(&self, number: u64) -> Result<(), StoreError> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!failed.contains(&number), "segment {number} is synced again after a failed sync");
        if self.bug == Bug::SyncLies && !self.memory.is_dead() {
            return Ok(());
        }
        let result = self.memory.sync(number);
        match result {
            Err(_) if self.bug == Bug::SyncAgain && !self.memory.is_dead() => return self.memory.sync(number),
            Err(_) if !self.memory.is_dead() => {
                failed.insert(number);
            }
            _ => {}
        }
        result
    }

    fn read_at(&self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        self.memory.read_at(number, offset, buffer)
    }

    fn recycle(&self, number: u64) -> Result<(), StoreError> {
        self.memory.recycle(number)
    }

    fn prepare_spare(&self) -> Result<(), StoreError> {
        self.memory.prepare_spare()
    }

    fn bytes_used(&self) -> Result<u64, StoreError> {
        self.memory.bytes_used()
    }
}
