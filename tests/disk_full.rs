//! The disk is full, or its budget is used up: publishes are refused with a reason, connections stay, nothing acknowledged is lost,
//! and it goes on as soon as there is room.
#![cfg(test)]

#[allow(dead_code, reason = "each suite uses a part of it")]
mod support;

use forebay::mqtt::{QoS, Reason, Version};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use support::client::{Client, Options};
use support::gateway::{Gateway, Setup, upstream};
use support::peer::{Peer, Terms};
use support::process::run;
use support::{counts, ms, secs, until};

const STREAM: &str = "[[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\nwhen_full = \"refuse\"\n\n";
/// Eight segments, the least that a budget may be.
const BUDGET: &str = "disk_budget = \"4MiB\"\nack_timeout = \"2s\"";
const DEVICE: &str = "segment_size = \"512KiB\"\nmax_packet_size = \"64KiB\"\nstate_cache = \"1MiB\"";

fn payload(number: u64) -> String {
    format!("{number} {}", "x".repeat(8_000))
}

/// Publishes until a refusal; the numbers that were acknowledged, and the refusal.
fn fill(client: &mut Client, from: u64, most: u64) -> (Vec<u64>, Option<Reason>) {
    let mut acked = Vec::new();
    for number in from..from + most {
        let id = u16::try_from(1 + number % 65_535).unwrap();
        client.publish("sensors/t", payload(number), QoS::AtLeastOnce, id).unwrap();
        let ack = client.ack(secs(10)).unwrap().expect("an answer");
        if ack.reason.is_failure() {
            return (acked, Some(ack.reason));
        }
        acked.push(number);
    }
    (acked, None)
}

fn stored(gateway: &Gateway) -> Vec<u64> {
    let number = |text: &str| text.split(' ').next().and_then(|digits| digits.parse().ok());
    gateway.tail("telemetry").iter().filter_map(|record| number(&record.payload)).collect()
}

/// Bytes that a directory takes on the disk.
fn used(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let size = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => used(&entry.path()),
        _ => entry.metadata().map_or(0, |metadata| metadata.blocks() * 512),
    };
    entries.map(size).sum()
}

#[test]
fn a_budget_that_is_used_up_refuses_until_forwarding_makes_room() {
    let mut peer = Peer::absent(Terms::default());
    let rest = format!("{STREAM}{}", upstream("centre", peer.port, &["telemetry"], "connect_timeout = \"1s\""));
    let mut gateway = Gateway::started("gw-full", &Setup::new(rest).gateway(BUDGET).device(DEVICE));
    let mut client = Client::connect(gateway.port, &Options::durable(Version::V5, "v5")).unwrap();
    let mut bystander = Client::connect(gateway.port, &Options::new(Version::V5, "bystander")).unwrap();
    let (mut acked, refusal) = fill(&mut client, 0, 2_000);
    assert_eq!(refusal, Some(Reason::QUOTA_EXCEEDED), "after {} records", acked.len());
    assert!(acked.len() > 100, "most of the budget holds records: {}", acked.len());
    assert!(used(&gateway.data) <= 4 << 20, "{} bytes in data_dir", used(&gateway.data));
    gateway.wait("says so", secs(5), |status| status["gateway"]["ready"] == false);

    // Connections stay; QoS 2 is refused in its own way; 3.1.1 waits, and is closed without an ack; QoS 0 is counted.
    client.publish("sensors/t", payload(0), QoS::ExactlyOnce, 9_999).unwrap();
    assert_eq!(client.ack(secs(5)).unwrap().map(|ack| ack.reason), Some(Reason::QUOTA_EXCEEDED));
    client.ping().unwrap();
    bystander.ping().unwrap();
    bystander.publish("sensors/t", payload(0), QoS::AtMostOnce, 0).unwrap();
    let mut old = Client::connect(gateway.port, &Options::new(Version::V311, "v311")).unwrap();
    let begin = Instant::now();
    old.publish("sensors/t", payload(0), QoS::AtLeastOnce, 1).unwrap();
    assert!(old.end(secs(10)).is_some() && begin.elapsed() > ms(1_900), "closed after {:?}", begin.elapsed());
    gateway.wait("counts it", secs(5), |status| status["losses"]["disk_full"] == 1);

    // Nothing is lost by a kill at this point, and it starts.
    client.wire.close();
    gateway.kill();
    gateway.start();
    assert_eq!(stored(&gateway), acked);

    // The centre comes, forwarding frees the oldest, and there is room again.
    peer.appear();
    gateway.drained(secs(60));
    let mut client = Client::connect(gateway.port, &Options::durable(Version::V5, "v5")).unwrap();
    let next = acked.len() as u64;
    let more = until("there is room again", secs(30), || {
        let (more, _) = fill(&mut client, next, 20);
        (more.len() == 20).then_some(more)
    });
    acked.extend(more);
    gateway.drained(secs(60));
    let arrived: Vec<u64> = peer
        .arrivals()
        .iter()
        .map(|arrival| String::from_utf8_lossy(&arrival.publish.payload).split(' ').next().unwrap().parse().unwrap())
        .collect();
    let mut first = arrived.clone();
    first.dedup();
    assert!(acked.iter().all(|number| first.contains(number)), "everything acknowledged is at the centre");
    assert!(used(&gateway.data) <= 4 << 20, "{} bytes in data_dir", used(&gateway.data));
}

/// A small file system of its own, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// `None` after saying why.
    fn new(path: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let option = format!("size={size},mode=700");
        let mut command = Command::new("mount");
        let (status, _, err) = run(command.args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(path), secs(10));
        if !status.success() {
            println!("SKIPPED disk_full, a full file system: cannot mount one here: {}", err.trim());
            return None;
        }
        Some(Self(path.to_owned()))
    }

    /// Takes all space that is left.
    fn fill(&self) -> PathBuf {
        use std::io::Write;
        let path = self.0.join("somebody-elses-file");
        let mut file = std::fs::File::create(&path).unwrap();
        for size in [64 << 10, 4 << 10, 512] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_refuses_until_there_is_room() {
    if !rustix::process::getuid().is_root() && !counts::full() {
        println!("SKIPPED disk_full, a full file system: only root can mount one");
        return;
    }
    let mut gateway = Gateway::new("gw-enospc", &Setup::new(STREAM).gateway("ack_timeout = \"2s\"").device(DEVICE));
    let Some(mount) = Mount::new(&gateway.data, "12m") else { return };
    gateway.start();
    let mut client = Client::connect(gateway.port, &Options::durable(Version::V5, "v5")).unwrap();
    let (mut acked, refusal) = fill(&mut client, 0, 50);
    assert_eq!(refusal, None);
    let filler = mount.fill();
    // Some fits into what was reserved; the rest is refused or waits, and is never acknowledged in vain.
    client.wire.close();
    let mut tries = 0;
    let refused = loop {
        tries += 1;
        assert!(tries < 2_000, "never refused");
        let mut client = Client::connect(gateway.port, &Options::new(Version::V5, "filler")).unwrap();
        let next = acked.len() as u64;
        client.publish("sensors/t", payload(next), QoS::AtLeastOnce, 1).unwrap();
        match client.ack(secs(8)) {
            Ok(Some(ack)) if ack.reason == Reason::SUCCESS => acked.push(next),
            Ok(Some(ack)) => break ack.reason,
            Ok(None) => panic!("neither an answer nor an end"),
            // It was appended and could not be synced: closed without an ack.
            Err(_) => {}
        }
    };
    assert!([Reason::QUOTA_EXCEEDED, Reason::IMPLEMENTATION_SPECIFIC].contains(&refused), "{refused:?}");
    let status = gateway.status();
    assert_eq!(status["gateway"]["ready"], false, "{:#}", status["gateway"]);
    let here = stored(&gateway);
    assert!(acked.iter().all(|number| here.contains(number)), "reading goes on");

    // It starts on a full disk too, and all that was acknowledged is there.
    gateway.kill();
    gateway.start();
    let here = stored(&gateway);
    assert!(acked.iter().all(|number| here.contains(number)), "{} acked, {} there", acked.len(), here.len());

    std::fs::remove_file(filler).unwrap();
    let next = 1_000_000;
    until("there is room again", secs(30), || {
        let mut client = Client::connect(gateway.port, &Options::new(Version::V5, "again")).ok()?;
        client.publish("sensors/t", payload(next), QoS::AtLeastOnce, 1).ok()?;
        client.ack(secs(5)).ok()?.filter(|ack| ack.reason == Reason::SUCCESS)
    });
    assert!(stored(&gateway).contains(&next));
}

#[test]
fn a_first_start_on_a_full_file_system_says_so_and_goes_on_when_there_is_room() {
    if !rustix::process::getuid().is_root() && !counts::full() {
        println!("SKIPPED disk_full, a first start: only root can mount a file system");
        return;
    }
    let mut gateway = Gateway::new("gw-first", &Setup::new(STREAM).device(DEVICE));
    let Some(mount) = Mount::new(&gateway.data, "8m") else { return };
    let filler = mount.fill();
    gateway.spawn();
    let status = gateway.wait("says so", secs(20), |status| status["gateway"]["ready"] == false);
    let why = status["gateway"]["not_ready_because"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("space") && why.contains(&gateway.data.display().to_string()), "{why}");
    let mut client = Client::greet(gateway.port, &Options::new(Version::V5, "early"));
    if let Ok(client) = &mut client
        && client.connack.reason == Reason::SUCCESS
    {
        client.publish("sensors/t", payload(0), QoS::AtLeastOnce, 1).unwrap();
        let answer = client.ack(ms(500));
        assert!(!matches!(&answer, Ok(Some(ack)) if ack.reason == Reason::SUCCESS), "{answer:?}");
    }
    std::fs::remove_file(filler).unwrap();
    gateway.wait("is well", secs(30), |status| status["gateway"]["ready"] == true);
    let mut client = Client::connect(gateway.port, &Options::new(Version::V5, "late")).unwrap();
    let (acked, refusal) = fill(&mut client, 0, 20);
    assert_eq!((acked.len(), refusal), (20, None));
    gateway.kill();
    gateway.start();
    let there = stored(&gateway);
    assert!(acked.iter().all(|number| there.contains(number)), "{there:?}");
}
