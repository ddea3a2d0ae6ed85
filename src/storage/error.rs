//! Errors of the storage: what was tried, on which path, what the system said, and what a person can do about it.

use crate::log::store::StoreError;
use core::fmt;
use std::io;
use std::path::Path;

/// A typed error out of the system's: operation and path stay with it.
pub fn store_error(operation: &'static str, path: &Path, error: &io::Error) -> StoreError {
    StoreError { operation, subject: path.display().to_string(), kind: error.kind(), message: plain(error) }
}

/// For `map_err`.
pub(super) fn failed<'a, E: Into<io::Error>>(
    operation: &'static str,
    path: &'a Path,
) -> impl FnOnce(E) -> StoreError + 'a {
    move |error| store_error(operation, path, &error.into())
}

/// The system's words without the "(os error 28)" that only developers read.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text,
    }
}

/// Why a data directory could not be opened: one sentence that says what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Another process holds it.
    Locked {
        /// The data directory.
        data_dir: String,
        /// Who holds it, if it left its number.
        pid: Option<u32>,
    },
    /// A path could not be made, read or written.
    Store {
        /// What failed.
        error: StoreError,
        /// What to do.
        advice: &'static str,
    },
    /// The log cannot be opened by this version, or not at all.
    Log(String),
}

impl OpenError {
    /// Chooses the advice that fits what the system said.
    pub(super) fn from_store(error: StoreError) -> Self {
        let advice = match error.kind {
            io::ErrorKind::PermissionDenied => {
                "make it writable for the user that runs forebay, or set gateway.data_dir to another directory"
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "mount the file system writable, or set gateway.data_dir to another directory"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space on that file system, or set gateway.data_dir to another one"
            }
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
                "set gateway.data_dir to a directory"
            }
            _ => "check the medium and the kernel's messages",
        };
        Self::Store { error, advice }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked { data_dir, pid } => {
                write!(f, "data_dir {data_dir} is in use by another forebay process")?;
                if let Some(pid) = pid {
                    write!(f, " (pid {pid})")?;
                }
                f.write_str(": stop that one first, or set gateway.data_dir to another directory")
            }
            Self::Store { error, advice } => {
                write!(f, "cannot {} {}: {}; {advice}", error.operation, error.subject, error.message)
            }
            Self::Log(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {}
