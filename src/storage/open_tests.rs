use super::*;
use crate::config;
use std::fs;

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
