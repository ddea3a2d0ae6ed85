//! The physical limit: append + fdatasync to a file that was filled with zeros before.

use crate::Result;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 128 << 20;
const CHUNK: usize = 1 << 20;

/// Messages per second, with `outstanding` of `payload` bytes in each write.
pub fn rate(dir: &Path, outstanding: usize, payload: usize, time: Duration) -> Result<f64> {
    let path = dir.join("plain.bin");
    let mut file = match File::options().write(true).open(&path) {
        Ok(file) if file.metadata()?.len() == FILE_BYTES => file,
        _ => File::create(&path)?,
    };
    if file.metadata()?.len() != FILE_BYTES {
        let zeros = vec![0; CHUNK];
        for _ in 0..FILE_BYTES / CHUNK as u64 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
    }
    let batch = vec![b'x'; outstanding * payload];
    let (mut offset, mut messages) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < time {
        if offset + batch.len() as u64 > FILE_BYTES {
            offset = 0;
        }
        file.write_all_at(&batch, offset)?;
        file.sync_data()?;
        offset += batch.len() as u64;
        messages += outstanding;
    }
    Ok(messages as f64 / start.elapsed().as_secs_f64())
}
