//! Whether sled's directory may be believed: a mark beside it, one sector, overwritten in place.
//!
//! sled's flush does not fsync: after a power cut its stamp proves nothing about what lies before it. Its pages do survive the death
//! of the process alone, since the kernel has them. So the directory is believed after an orderly close, when its files were synced
//! by us, or while the kernel's boot id is the one under which it was written.

use super::data_dir::{read_small, write_sector};
use crate::log::store::StoreError;
use crate::types::BootId;
use std::path::Path;

/// What is known of the state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Closed in order, all files synced by us, nothing written since.
    Closed,
    /// In use since this boot, or left by a process that died in it.
    Open(BootId),
    /// Being rebuilt, or nothing is known.
    Unknown,
}

impl Mark {
    /// Reads the mark; anything unreadable is [`Mark::Unknown`].
    pub(super) fn read(path: &Path) -> Result<Self, StoreError> {
        let Some(bytes) = read_small(path)? else { return Ok(Self::Unknown) };
        let text = String::from_utf8_lossy(&bytes);
        Ok(match text.trim() {
            "closed" => Self::Closed,
            text => text.strip_prefix("open ").and_then(parse_boot).map_or(Self::Unknown, Self::Open),
        })
    }

    /// Makes the mark durable.
    pub(super) fn write(self, path: &Path) -> Result<(), StoreError> {
        let text = match self {
            Self::Closed => "closed".to_owned(),
            Self::Open(boot) => format!("open {}", u128::from_be_bytes(boot.0)),
            Self::Unknown => "rebuilding".to_owned(),
        };
        write_sector(path, &text)
    }

    /// Whether what lies beside the mark may be believed in this boot.
    pub(super) fn trusted(self, boot: BootId) -> bool {
        match self {
            Self::Closed => true,
            Self::Open(written_in) => written_in == boot,
            Self::Unknown => false,
        }
    }
}

fn parse_boot(text: &str) -> Option<BootId> {
    text.parse::<u128>().ok().map(|number| BootId(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_anything_else_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.mark");
        assert_eq!(Mark::read(&path).unwrap(), Mark::Unknown);
        for mark in [Mark::Open(BootId([0xab; 16])), Mark::Closed, Mark::Unknown, Mark::Open(BootId([0; 16]))] {
            mark.write(&path).unwrap();
            assert_eq!(Mark::read(&path).unwrap(), mark);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 512);
        }
        std::fs::write(&path, "open twice").unwrap();
        assert_eq!(Mark::read(&path).unwrap(), Mark::Unknown);
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert_eq!(Mark::read(&path).unwrap(), Mark::Unknown);
    }

    #[test]
    fn only_an_orderly_close_or_the_same_boot_is_trusted() {
        let (one, other) = (BootId([1; 16]), BootId([2; 16]));
        assert!(Mark::Closed.trusted(one));
        assert!(Mark::Open(one).trusted(one));
        assert!(!Mark::Open(other).trusted(one));
        assert!(!Mark::Unknown.trusted(one));
    }
}
