//! The two stores under the log: bytes of segments, and looked-up state. Each has two real implementations: files and sled in
//! `storage/`, and memory with faults in `tests/` and the simulator.

use core::fmt;
use std::io::IoSlice;

/// An I/O failure with what was tried on what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    /// The operation, as `write`, `sync`, `create`.
    pub operation: &'static str,
    /// File or segment, as a person would look for it.
    pub subject: String,
    /// What the system said.
    pub kind: std::io::ErrorKind,
    /// Its text.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.subject, self.message)
    }
}

impl std::error::Error for StoreError {}

/// Bytes of numbered segments of one fixed size. All methods take `&self`: the committer writes while readers read.
pub trait LogStore: Send + Sync {
    /// Bytes of every segment.
    fn segment_size(&self) -> u64;
    /// Numbers of the segments that exist, ascending; spares are not among them.
    fn list(&self) -> Result<Vec<u64>, StoreError>;
    /// Makes segment `number`, of full size, from a spare or zero-filled, its directory entry durable. Old bytes may stand in it.
    fn create(&self, number: u64) -> Result<(), StoreError>;
    /// Writes the buffers one after the other from `offset` on. A failure may leave any part of them written.
    fn write_at(&self, number: u64, offset: u64, buffers: &[IoSlice<'_>]) -> Result<(), StoreError>;
    /// Makes what was written to `number` durable. After a failure it is never called again for that segment.
    fn sync(&self, number: u64) -> Result<(), StoreError>;
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError>;
    /// Gives the segment up: kept as a spare, or removed if there are enough of them.
    fn recycle(&self, number: u64) -> Result<(), StoreError>;
    /// Makes sure that a spare is ready (zero-filled), so that the next `create` is quick. May take long.
    fn prepare_spare(&self) -> Result<(), StoreError>;
    /// Bytes that segments and spares take on the medium.
    fn bytes_used(&self) -> Result<u64, StoreError>;
}

/// One change to the looked-up state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key, prefixed by its kind.
    pub key: Vec<u8>,
    /// `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// Looked-up state: the materialised view of control records and footers, stamped with the frame up to which it is applied.
/// It can be lost at any time and is then rebuilt from the log.
pub trait StateStore: Send {
    /// The frame up to which it was applied, if it was ever stamped.
    fn stamp(&self) -> Result<Option<u64>, StoreError>;
    /// The value of one key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Every key with the prefix, ascending, with its value. `each` returns false to stop.
    fn scan(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError>;
    /// Applies the changes and the stamp together.
    fn apply(&mut self, changes: &[Change], stamp: u64) -> Result<(), StoreError>;
    /// Removes everything, for a rebuild.
    fn clear(&mut self) -> Result<(), StoreError>;
    /// Makes all of it durable (our own fsync of its files), at an orderly stop.
    fn flush(&mut self) -> Result<(), StoreError>;
}
