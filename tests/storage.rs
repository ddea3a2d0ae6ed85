//! Opening a data directory on a real file system: what a stop, a crash, a power cut, damage and a full disk leave is gone on from,
//! nothing is deleted that is not ours, and each finding is told.
#![allow(clippy::unwrap_used, reason = "the helpers of these tests are tests too")]

use forebay::config;
use forebay::log::commit::Committer;
use forebay::log::control::{ControlKind, ControlRecord};
use forebay::log::record::NewRecord;
use forebay::log::recovery::RecoveryReport;
use forebay::log::store::StateStore;
use forebay::log::{Log, LogConfig};
use forebay::mqtt::{Publish, QoS, Text};
use forebay::settings::Settings;
use forebay::storage::{FileStore, Opened, open, open_existing};
use forebay::types::{LogId, Now, PartitionId, StreamId};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// As if what stands there had been written before the last power cut: under another boot of the kernel.
fn power_cut(dir: &Path) {
    fs::write(dir.join("state.mark"), format!("{:511}\n", "open 5")).unwrap();
}

fn settings(dir: &Path) -> Settings {
    let sets = [
        format!("gateway.data_dir={}", dir.display()),
        "gateway.id=gw-1".to_owned(),
        "device.segment_size=64KiB".to_owned(),
        "device.max_packet_size=16KiB".to_owned(),
        "gateway.disk_budget=1MiB".to_owned(),
    ];
    config::from_str_with("", "config.toml", &sets).unwrap().settings
}

fn texts(opened: &Opened) -> String {
    opened.events.iter().map(|event| format!("{:?}: {}\n", event.severity, event.text)).collect()
}

#[test]
fn a_first_start_makes_everything_that_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(&settings(&dir.path().join("data"))).unwrap();
    assert_eq!(opened.gateway_id, "gw-1");
    assert!(opened.recovered.report.fresh);
    assert_ne!(opened.recovered.log_id, LogId::default());
    assert_eq!(texts(&opened), "Info: a new log is begun\n");
    opened.close().unwrap();
}

#[test]
fn a_second_process_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let first = open(&settings).unwrap();
    let error = open(&settings).map(drop).unwrap_err().to_string();
    assert!(error.contains("in use by another forebay process (pid "), "{error}");
    drop(first);
    open(&settings).unwrap();
}

#[test]
fn a_look_at_a_directory_that_is_not_there_makes_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(open_existing(&settings(&dir.path().join("none"))).is_err());
    assert!(!dir.path().join("none").exists());
}

#[test]
fn foreign_files_are_told_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&settings(dir.path())).unwrap());
    fs::write(dir.path().join("holiday.jpg"), "x").unwrap();
    fs::write(dir.path().join("log/000000000001.seg.bak"), "x").unwrap();
    let opened = open(&settings(dir.path())).unwrap();
    let texts = texts(&opened);
    assert!(texts.contains("\"holiday.jpg\"") && texts.contains("\"000000000001.seg.bak\""), "{texts}");
    assert!(dir.path().join("holiday.jpg").exists() && dir.path().join("log/000000000001.seg.bak").exists());
}

const STREAM: PartitionId = PartitionId { stream: StreamId(7), partition: 0 };

/// What the broker does with an opened directory, in small.
struct House {
    log: Log,
    committer: Committer<FileStore>,
    opened: Opened,
}

fn house(dir: &Path) -> House {
    let settings = settings(dir);
    let mut opened = open(&settings).unwrap();
    let config = LogConfig {
        boot: opened.boot,
        segment_size: settings.device.segment_size,
        max_packet_size: settings.device.max_packet_size,
        tail_bytes: 1 << 20,
    };
    let tail = opened.tail.clone();
    let mut log = Log::new(std::mem::take(&mut opened.recovered), config);
    log.add_partition(STREAM);
    House { log, committer: Committer::new(Arc::clone(&opened.store), tail), opened }
}

impl House {
    fn append(&mut self, payload: &str) -> u64 {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: Text::from_static("sensors/1"),
            packet_id: 1,
            properties: None,
            payload: payload.to_owned().into(),
        };
        let record = NewRecord { publish: &publish, client: b"sensor", key: None, source: None };
        let offset = self.log.append(STREAM, record, &Now::default()).offset;
        let value = payload.as_bytes().to_vec();
        self.log.control(ControlRecord::put(ControlKind::UpstreamCursor, b"dc/0".to_vec(), value));
        self.commit();
        offset
    }

    fn fill(&mut self, readings: u64) {
        for n in 0..readings {
            self.append(&format!("reading {n}"));
        }
    }

    fn commit(&mut self) {
        let groups: Vec<_> = std::iter::from_fn(|| self.log.seal()).collect();
        let done = self.committer.commit(groups).unwrap();
        self.log.committed(done.synced, done.sealed);
        if let Some((stamp, changes)) = self.log.take_changes() {
            self.opened.state.apply(&changes, stamp).unwrap();
        }
    }

    fn cursor(&self) -> String {
        let entry = self.log.state().get(ControlKind::UpstreamCursor, b"dc/0").unwrap();
        String::from_utf8(entry.value.to_vec()).unwrap()
    }

    fn stop(mut self) {
        let groups = self.log.close();
        let done = self.committer.commit(groups).unwrap();
        self.log.committed(done.synced, done.sealed);
        if let Some((stamp, changes)) = self.log.take_changes() {
            self.opened.state.apply(&changes, stamp).unwrap();
        }
        self.opened.close().unwrap();
    }
}

/// What `open` said about an existing directory.
fn reopened(dir: &Path) -> (String, RecoveryReport) {
    let opened = open(&settings(dir)).unwrap();
    (texts(&opened), opened.recovered.report.clone())
}

#[test]
fn an_orderly_stop_is_gone_on_from_with_the_state_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut house_ = house(dir.path());
    let log_id = house_.log.log_id();
    (0..300).for_each(|n| assert_eq!(house_.append(&format!("reading {n}")), n));
    house_.stop();
    let mut again = house(dir.path());
    assert_eq!(again.log.log_id(), log_id);
    assert_eq!(texts(&again.opened), "");
    assert_eq!(again.cursor(), "reading 299");
    assert_eq!(again.append("one more"), 300);
}

#[test]
fn a_stop_without_a_word_loses_nothing_that_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = house(dir.path());
    first.fill(300);
    drop(first);
    let mut again = house(dir.path());
    let texts = texts(&again.opened);
    assert!(texts.contains("the last stop was not an orderly one") && !texts.contains("Error"), "{texts}");
    assert_eq!(again.cursor(), "reading 299");
    assert_eq!(again.append("one more"), 300);
}

#[test]
fn after_a_power_cut_the_state_is_rebuilt_from_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = house(dir.path());
    first.fill(300);
    drop(first);
    power_cut(dir.path());
    let again = house(dir.path());
    assert!(
        texts(&again.opened).contains("the state was rebuilt from the log (the power was cut since it was written)")
    );
    assert!(!again.opened.data_dir.quarantine_dir().exists());
    assert_eq!(again.cursor(), "reading 299");
}

#[test]
fn a_damaged_state_is_set_aside_and_rebuilt_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = house(dir.path());
    first.fill(300);
    first.stop();
    fs::write(dir.path().join("state/db"), [0x5a; 9000]).unwrap();
    let mut again = house(dir.path());
    let found = texts(&again.opened);
    assert!(found.contains("looks damaged") && found.contains("state.quarantine"), "{found}");
    assert!(again.opened.data_dir.quarantine_dir().join("db").exists());
    assert_eq!(again.cursor(), "reading 299");
    assert_eq!(again.append("one more"), 300);
    again.stop();
    let (found, _) = reopened(dir.path());
    assert_eq!(found, "", "the rebuilt state is as good as the former one");
}

#[test]
fn a_state_that_is_newer_than_the_log_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = house(dir.path());
    first.fill(20);
    first.opened.state.apply(&[], 1_000_000).unwrap();
    first.opened.state.flush().unwrap();
    drop(first);
    let again = house(dir.path());
    let found = texts(&again.opened);
    assert!(found.contains("newer than the log"), "{found}");
    assert!(again.opened.data_dir.quarantine_dir().exists());
    assert_eq!(again.cursor(), "reading 19");
}

#[test]
fn a_missing_state_is_rebuilt_and_a_missing_log_is_not_taken_for_a_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = house(dir.path());
    first.fill(300);
    first.stop();
    fs::remove_dir_all(dir.path().join("state")).unwrap();
    let again = house(dir.path());
    assert_eq!(again.cursor(), "reading 299");
    again.stop();
    for entry in fs::read_dir(dir.path().join("log")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let again = house(dir.path());
    assert!(again.log.state().get(ControlKind::UpstreamCursor, b"dc/0").is_none(), "{}", texts(&again.opened));
}

#[test]
fn another_segment_size_is_for_new_segments_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = house(dir.path());
    for n in 0..100 {
        first.append(&format!("reading {n} {}", "x".repeat(3000)));
    }
    first.stop();
    let mut settings = settings(dir.path());
    settings.device.segment_size = 128 << 10;
    let opened = open(&settings).unwrap();
    assert!(opened.recovered.report.damage.is_empty(), "{}", texts(&opened));
    assert_eq!(opened.recovered.partitions.first().unwrap().leo, 100);
}

/// A file system of its own with a few MiB, where this user may mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(disk.0.path());
        mount.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success()).then_some(disk)
    }

    /// Takes all that is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_is_full_already_opens_and_nothing_is_lost() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("skipped: this user may not mount a file system");
    };
    let dir = disk.0.path().join("data");
    for orderly in [true, false] {
        let mut first = house(&dir);
        first.fill(50);
        match orderly {
            true => first.stop(),
            false => drop(first),
        }
        disk.fill();
        let again = house(&dir);
        assert_eq!(again.cursor(), "reading 49", "{}", texts(&again.opened));
        assert_eq!(again.log.leo(STREAM) % 50, 0);
        drop(again);
        power_cut(&dir);
        let mut again = house(&dir);
        assert_eq!(again.cursor(), "reading 49", "{}", texts(&again.opened));
        again.append("reading 49");
        again.stop();
        fs::remove_file(disk.0.path().join("filler")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_disk_that_is_full_before_the_first_start_is_told() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("skipped: this user may not mount a file system");
    };
    disk.fill();
    let mut settings = settings(&disk.0.path().join("data"));
    let opened = open(&settings).unwrap();
    assert!(texts(&opened).contains("held in memory until the next start"), "{}", texts(&opened));
    drop(opened);
    settings.gateway.id = None;
    let error = open(&settings).map(drop).unwrap_err().to_string();
    assert!(error.contains("no space left on device; free some space"), "{error}");
}
