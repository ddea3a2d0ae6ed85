//! Clients that others wrote publish the readings of tests/data through the gateway; at the centre they are read back row for row.
#![cfg(test)]

#[allow(dead_code, reason = "each suite uses a part of it")]
mod support;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use support::gateway::{Gateway, Setup, upstream};
use support::process::{Process, run};
use support::readings::{Reading, all};
use support::{counts, ms, secs, until};

const STREAM: &str = "[[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\npartitions = 2\n\n";

struct House {
    centre: Gateway,
    gateway: Gateway,
}

impl House {
    fn new() -> Self {
        let centre = Gateway::started("centre", &Setup::new(STREAM).device("max_inflight = 200"));
        let rest = format!("{STREAM}{}", upstream("centre", centre.port, &["telemetry"], ""));
        let gateway = Gateway::started("gw", &Setup::new(rest));
        Self { centre, gateway }
    }

    /// Row for row, per topic, in the centre's log.
    fn read_back(&self, expected: &[Reading], client: &str) {
        self.gateway.drained(secs(60));
        let records = self.centre.tail("telemetry");
        let arrived: Vec<Reading> =
            records.into_iter().map(|record| Reading { topic: record.topic, payload: record.payload }).collect();
        rows(expected, &arrived, client);
    }
}

/// The same rows in the same order, topic by topic.
fn rows(expected: &[Reading], arrived: &[Reading], client: &str) {
    let topics: std::collections::BTreeSet<&str> = expected.iter().map(|reading| reading.topic.as_str()).collect();
    for topic in topics {
        let of = |list: &[Reading]| -> Vec<String> {
            list.iter().filter(|reading| reading.topic == topic).map(|reading| reading.payload.clone()).collect()
        };
        let (expected, arrived) = (of(expected), of(arrived));
        for (row, (expected, arrived)) in expected.iter().zip(&arrived).enumerate() {
            assert_eq!(expected, arrived, "{client}: {topic}, row {row}");
        }
        assert_eq!(expected.len(), arrived.len(), "{client}: rows of {topic}");
    }
    println!("real_clients: {client}: {} rows, each once and in order", expected.len());
}

/// A share of the readings in `cargo test`, all of them in full.
fn readings() -> Vec<Reading> {
    let step = if counts::full() { 1 } else { 10 };
    all().into_iter().step_by(step).collect()
}

fn lines(readings: &[Reading], file: &std::path::Path, form: impl Fn(&Reading) -> String) {
    let mut out = File::create(file).unwrap();
    for reading in readings {
        writeln!(out, "{}", form(reading)).unwrap();
    }
}

/// The subscriber's lines as readings.
fn received(path: &std::path::Path) -> Vec<Reading> {
    let text = std::fs::read_to_string(path).unwrap();
    let split = |line: &str| line.split_once('\t').map(|(topic, payload)| (topic.to_owned(), payload.to_owned()));
    text.lines().filter_map(split).map(|(topic, payload)| Reading { topic, payload }).collect()
}

#[test]
fn mosquitto_pub_and_sub() {
    let Some(publisher) = counts::need("mosquitto_pub", "real_clients, Mosquitto's") else { return };
    let subscriber = counts::need("mosquitto_sub", "real_clients, Mosquitto's").unwrap();
    let readings = readings();
    for (version, qos) in [("mqttv311", "1"), ("mqttv5", "1"), ("mqttv311", "2"), ("mqttv5", "2")] {
        let house = House::new();
        let port = house.centre.port.to_string();
        let arrived = house.gateway.beside("arrived.txt");
        let mut command = Command::new(&subscriber);
        command.args([
            "-p",
            &port,
            "-V",
            version,
            "-q",
            "2",
            "-t",
            "sensors/#",
            "-F",
            "%t\t%p",
            "-C",
            &readings.len().to_string(),
        ]);
        let mut subscribed = Process::start("mosquitto_sub", command, &arrived);
        house.centre.wait("subscribed", secs(10), |status| status["sessions"]["subscriptions"] == 1);
        let mut topics: Vec<&str> = readings.iter().map(|reading| reading.topic.as_str()).collect();
        topics.dedup();
        for topic in topics {
            let rows: Vec<Reading> = readings.iter().filter(|reading| reading.topic == topic).cloned().collect();
            let input = house.gateway.beside("rows.txt");
            lines(&rows, &input, |reading| reading.payload.clone());
            let mut command = Command::new(&publisher);
            command.args(["-p", &house.gateway.port.to_string(), "-V", version, "-q", qos, "-t", topic, "-l"]);
            let output = house.gateway.beside("published.txt");
            let mut child = command.stdin(File::open(&input).unwrap());
            child = child.stdout(File::create(&output).unwrap()).stderr(Stdio::inherit());
            let mut child = Guard(child.spawn().unwrap());
            let status = until("mosquitto_pub ends", secs(120), || child.0.try_wait().unwrap());
            assert!(status.success(), "{status}");
        }
        let name = format!("mosquitto_pub {version} QoS {qos}");
        house.read_back(&readings, &name);
        let status = until("mosquitto_sub has it all", secs(60), || subscribed.ended());
        assert!(status.success(), "{status}");
        rows(&readings, &received(&arrived), &format!("{name}, read by mosquitto_sub"));
    }
}

struct Guard(std::process::Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Python with paho-mqtt, or `None` after saying that the suite is skipped.
fn python() -> Option<PathBuf> {
    let python = counts::need("python3", "real_clients, paho")?;
    let (status, _, _) =
        run(Command::new(&python).args(["-c", "import paho.mqtt.client as m; m.CallbackAPIVersion"]), secs(30));
    if !status.success() {
        assert!(!counts::full(), "real_clients needs paho-mqtt 2, which is not installed");
        println!("SKIPPED real_clients, paho: paho-mqtt 2 is not installed");
        return None;
    }
    Some(python)
}

#[test]
fn paho() {
    let Some(python) = python() else { return };
    let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/real_clients");
    let readings = readings();
    for (version, qos) in [("3.1.1", "1"), ("5", "1"), ("3.1.1", "2"), ("5", "2")] {
        let house = House::new();
        let arrived = house.gateway.beside("arrived.txt");
        let mut command = Command::new(&python);
        command.arg(scripts.join("subscribe.py")).arg(house.centre.port.to_string());
        command.args([version, "2", "sensors/", &readings.len().to_string()]);
        let mut subscribed = Process::start("subscribe.py", command, &arrived);
        until("subscribed", secs(30), || subscribed.output().contains("ready").then_some(()));
        let input = house.gateway.beside("rows.txt");
        lines(&readings, &input, |reading| format!("{}\t{}", reading.topic, reading.payload));
        let mut command = Command::new(&python);
        command.arg(scripts.join("publish.py")).args([&house.gateway.port.to_string(), version, qos]);
        let mut child = Guard(command.stdin(File::open(&input).unwrap()).stdout(Stdio::null()).spawn().unwrap());
        let status = until("publish.py ends", secs(180), || child.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
        let name = format!("paho {version} QoS {qos}");
        house.read_back(&readings, &name);
        let status = until("subscribe.py has it all", secs(130), || subscribed.ended());
        assert!(status.success(), "{status}: {}", subscribed.output());
        std::thread::sleep(ms(1));
        rows(&readings, &received(&arrived), &format!("{name}, read by paho"));
    }
}
