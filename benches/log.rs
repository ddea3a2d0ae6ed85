//! The log alone: records appended, sealed and committed as the broker does it, against plain append + fdatasync of the same
//! bytes to a zero-filled file. Both in turn, on the same medium; segments are recycled, as in the steady state.
//!
//! ```sh
//! cargo bench --bench log
//! cargo bench --bench log -- /mnt/card                   # on another medium
//! ```

#[path = "load/plain.rs"]
mod plain;
#[path = "load/stats.rs"]
mod stats;

use bytes::Bytes;
use forebay::log::commit::{CommitTail, Committer};
use forebay::log::record::NewRecord;
use forebay::log::recovery::Recovered;
use forebay::log::store::LogStore;
use forebay::log::{Log, LogConfig};
use forebay::mqtt::{Publish, QoS, Text};
use forebay::storage::FileStore;
use forebay::types::{BootId, LogId, Now, PartitionId, StreamId};
use stats::{Histogram, median};
use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(700);
const SEGMENT_BYTES: u64 = 16 << 20;
/// Sealed segments that stay before the oldest is recycled.
const SEGMENTS_KEPT: usize = 2;
const TOPICS: usize = 100;

/// A log on files, and what it takes to append to it.
struct Bench {
    log: Log,
    committer: Committer<FileStore>,
    store: Arc<FileStore>,
    sealed: VecDeque<u64>,
    publishes: Vec<Publish>,
    partitions: Vec<PartitionId>,
}

/// What some rounds brought.
#[derive(Default)]
struct Outcome {
    records: u64,
    payload_bytes: u64,
    written_bytes: u64,
    elapsed: Duration,
    commits: Histogram,
}

impl Bench {
    fn new(dir: &Path, payload: usize, partitions: u16) -> Result<Self> {
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir)?;
        let store = Arc::new(FileStore::open(dir, SEGMENT_BYTES)?);
        store.prepare_spare()?;
        let log_id = LogId([7; 16]);
        let mut recovered = Recovered::default();
        (recovered.log_id, recovered.epoch, recovered.next_seq) = (log_id, 1, 1);
        let (boot, segment_size) = (BootId([1; 16]), SEGMENT_BYTES);
        let config = LogConfig { boot, segment_size, max_packet_size: 1 << 20, tail_bytes: 4 << 20 };
        let mut log = Log::new(recovered, config);
        let partitions: Vec<_> =
            (0..partitions).map(|partition| PartitionId { stream: StreamId(1), partition }).collect();
        partitions.iter().for_each(|partition| log.add_partition(*partition));
        let publish = |number: usize| Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: Text::from(format!("plant/sensor-{number}/temperature")),
            packet_id: 1,
            properties: None,
            payload: Bytes::from(vec![b'x'; payload]),
        };
        Ok(Self {
            log,
            committer: Committer::new(Arc::clone(&store), CommitTail::fresh(log_id, 1)),
            store,
            sealed: VecDeque::new(),
            publishes: (0..TOPICS).map(publish).collect(),
            partitions,
        })
    }

    /// Commits `outstanding` records at a time for a while.
    fn run(&mut self, outstanding: usize, time: Duration, outcome: &mut Outcome) -> Result<()> {
        let start = Instant::now();
        let now = Now { mono_ns: 1, wall_ms: Some(1), wall_synced: true };
        while start.elapsed() < time {
            let begin = Instant::now();
            let places = self.publishes.iter().zip(self.partitions.iter().cycle()).cycle();
            for (publish, partition) in places.take(outstanding) {
                let record = NewRecord { publish, client: publish.topic.as_bytes(), key: None, source: None };
                self.log.append(*partition, record, &now);
                outcome.payload_bytes += publish.payload.len() as u64;
            }
            let groups: Vec<_> = std::iter::from_fn(|| self.log.seal()).collect();
            let done = self.committer.commit(groups)?;
            outcome.written_bytes += done.written_bytes;
            outcome.records += outstanding as u64;
            self.sealed.extend(done.sealed.iter().map(|segment| segment.number));
            self.log.committed(done.synced, done.sealed);
            outcome.commits.add(begin.elapsed());
            while self.sealed.len() > SEGMENTS_KEPT {
                if let Some(number) = self.sealed.pop_front() {
                    self.store.recycle(number)?;
                }
            }
        }
        outcome.elapsed += start.elapsed();
        Ok(())
    }
}

fn main() -> Result<()> {
    let place = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let dir = place.map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from).join("log-bench");
    println!("records per commit   log k/s   plain k/s   ratio   commit p50 µs   written per payload byte");
    let rows =
        [(1, 100, 1), (20, 100, 1), (200, 100, 1), (2_000, 100, 1), (2_000, 100, 8), (16, 1_024, 1), (200, 1_024, 1)];
    for (outstanding, payload, partitions) in rows {
        let mut bench = Bench::new(&dir, payload, partitions)?;
        // Once through the kept segments, so that the measured ones are recycled.
        bench.run(2_000, ROUND, &mut Outcome::default())?;
        let mut outcome = Outcome::default();
        let (mut rates, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (records, elapsed) = (outcome.records, outcome.elapsed);
            bench.run(outstanding, ROUND, &mut outcome)?;
            rates.push((outcome.records - records) as f64 / (outcome.elapsed - elapsed).as_secs_f64());
            plain.push(plain::rate(&dir, outstanding, payload, ROUND)?);
        }
        let ratio = median(rates.iter().zip(&plain).map(|(log, plain)| log / plain).collect());
        println!(
            "{outstanding:>6} × {payload:>4} B, {partitions} p {:>9.1} {:>11.1} {ratio:>7.2} {:>15.0} {:>12.2}",
            median(rates) / 1e3,
            median(plain) / 1e3,
            outcome.commits.quantile_micros(0.5),
            outcome.written_bytes as f64 / outcome.payload_bytes as f64,
        );
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
