//! `control.sock`: where it lies, and how a path that is too long for a socket address is reached all the same.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// File name of the control socket in data_dir.
pub const FILE_NAME: &str = "control.sock";

/// A socket address holds 108 bytes of path, the end included; beyond this much we go through the directory's descriptor.
const DIRECT_BYTES_MAX: usize = 100;

/// The control socket of a data directory, as a path that fits into a socket address while this value lives.
#[derive(Debug)]
pub struct ControlPath {
    path: PathBuf,
    _directory: Option<File>,
}

impl ControlPath {
    /// In `data_dir`, which must exist.
    pub fn of(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(FILE_NAME);
        if path.as_os_str().len() <= DIRECT_BYTES_MAX {
            return Ok(Self { path, _directory: None });
        }
        let directory = File::open(data_dir)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{FILE_NAME}", directory.as_raw_fd()));
        Ok(Self { path, _directory: Some(directory) })
    }

    /// The path to bind or connect.
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_deep_directory_has_a_control_socket_too() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let path = ControlPath::of(&deep).unwrap();
        let _listener = UnixListener::bind(path.as_path()).unwrap();
        assert!(deep.join(FILE_NAME).exists());
        UnixStream::connect(ControlPath::of(&deep).unwrap().as_path()).unwrap();
    }
}
