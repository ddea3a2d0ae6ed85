//! The commands as a person meets them: the program itself, run in processes of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the helpers of these tests are tests too"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

fn forebay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env_remove("JOURNAL_STREAM");
    command
}

fn run(arguments: &[&str]) -> Output {
    forebay(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A broker in a directory of its own; killed when dropped.
struct Broker {
    dir: tempfile::TempDir,
    config: PathBuf,
    child: Option<Child>,
    port: u16,
}

impl Broker {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.toml");
        let text = format!(
            "[gateway]\ndata_dir = \"{}\"\ndisk_budget = \"64MiB\"\n[device]\nsegment_size = \"1MiB\"\nmax_packet_size = \"64KiB\"\n\
             [[listener]]\nbind = \"127.0.0.1:0\"\n[admin]\nbind = \"off\"\n\
             [[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\npartitions = 2\n",
            dir.path().join("data").display()
        );
        std::fs::write(&config, text).unwrap();
        let mut broker = Self { dir, config, child: None, port: 0 };
        broker.run();
        broker
    }

    fn run(&mut self) {
        let mut child =
            forebay(&["run", "--config", self.config.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.split("MQTT on 127.0.0.1:").nth(1)?.trim().parse().ok());
        self.port = port.expect("the broker says where it listens");
        std::thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let begun = Instant::now();
        assert!(child.wait().unwrap().success());
        assert!(begun.elapsed() < Duration::from_secs(5), "SIGTERM drains within 5 s");
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Arguments of a command, with the configuration behind them.
    fn ask(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--config", self.config.to_str().unwrap()]);
        run(&all)
    }

    /// Arguments of `pub` and `sub`, with the port behind them.
    fn client(&self, arguments: &[&str]) -> Command {
        let port = self.port.to_string();
        let mut all = arguments.to_vec();
        all.extend(["-h", "127.0.0.1", "-p", &port]);
        forebay(&all)
    }

    fn publish(&self, arguments: &[&str]) {
        let mut all = vec!["pub"];
        all.extend(arguments);
        let output = self.client(&all).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn publish_lines(&self, topic: &str, lines: impl Iterator<Item = String>) {
        let mut child = self.client(&["pub", "-t", topic, "-l", "-q", "1"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        lines.for_each(|line| writeln!(stdin, "{line}").unwrap());
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Every file below a directory with its length, time of change and content.
fn photograph(dir: &Path) -> Vec<(PathBuf, u64, SystemTime, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(photograph(&path));
        } else if path.is_file() {
            let metadata = path.metadata().unwrap();
            files.push((path.clone(), metadata.len(), metadata.modified().unwrap(), std::fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[test]
fn what_is_published_is_delivered_and_stored() {
    let broker = Broker::start();
    let subscriber = broker
        .client(&["sub", "-t", "sensors/#", "-q", "2", "-C", "3", "-W", "20", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let subscribed = || text(&broker.ask(&["status", "--json"]).stdout).contains("\"subscriptions\":1");
    let begun = Instant::now();
    while !subscribed() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody subscribes");
        std::thread::sleep(Duration::from_millis(20));
    }
    broker.publish(&["-t", "sensors/a", "-m", "21.5", "-q", "1"]);
    broker.publish(&["-t", "sensors/a", "-m", "21.6", "-q", "2", "-V", "311"]);
    broker.publish(&["-t", "sensors/a", "-m", "21.7", "-q", "1", "--acks", "0"]);
    let seen = subscriber.wait_with_output().unwrap();
    assert!(seen.status.success());
    let payloads = |bytes: &[u8]| -> Vec<String> {
        let lines = text(bytes);
        let values = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        values.map(|value| value["payload"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(payloads(&seen.stdout), ["21.5", "21.6", "21.7"]);
    let stored = broker.ask(&["tail", "telemetry", "--json"]);
    assert_eq!(payloads(&stored.stdout), ["21.5", "21.6", "21.7"]);
    let status: serde_json::Value = serde_json::from_slice(&broker.ask(&["status", "--json"]).stdout).unwrap();
    let ends: u64 =
        status["streams"][0]["partitions"].as_array().unwrap().iter().map(|p| p["leo"].as_u64().unwrap()).sum();
    assert_eq!((ends, status["gateway"]["ready"].as_bool()), (3, Some(true)));
    assert!(text(&broker.ask(&["status"]).stdout).contains("telemetry"));
}

#[test]
fn tail_reads_the_same_from_a_running_a_killed_and_a_stopped_broker_and_changes_nothing() {
    let mut broker = Broker::start();
    broker.publish_lines("sensors/a", (0..30_000).map(|n| format!("reading {n} of a sensor")));
    broker.publish(&["-t", "sensors/b", "-m", "x", "-q", "1"]);
    let tail = |broker: &Broker, rest: &[&str]| {
        let mut arguments = vec!["tail", "telemetry", "--json"];
        arguments.extend(rest);
        let output = broker.ask(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "nothing is damaged");
        text(&output.stdout)
    };
    let running = tail(&broker, &[]);
    assert_eq!(running.lines().count(), 30_001);
    broker.kill();
    let before = photograph(&broker.data());
    assert_eq!(tail(&broker, &[]), running);
    let few = tail(&broker, &["--from", "29998"]);
    let late =
        |line: &&str| serde_json::from_str::<serde_json::Value>(line).unwrap()["offset"].as_u64().unwrap() >= 29_998;
    assert_eq!(few.lines().collect::<Vec<_>>(), running.lines().filter(late).collect::<Vec<_>>());
    assert_eq!(tail(&broker, &["--from", "-1h", "-n", "5"]).lines().count(), 5);
    assert!(photograph(&broker.data()) == before, "a look at a killed broker's directory changed it");
    broker.run();
    assert_eq!(tail(&broker, &[]), running);
    broker.stop();
    let before = photograph(&broker.data());
    assert_eq!(tail(&broker, &[]), running);
    assert!(photograph(&broker.data()) == before, "a look at a stopped broker's directory changed it");
}

#[test]
fn tail_follows_over_a_restart() {
    let mut broker = Broker::start();
    broker.publish(&["-t", "sensors/a", "-m", "before", "-q", "1"]);
    let config = broker.config.to_str().unwrap().to_owned();
    let arguments =
        ["tail", "telemetry", "-f", "--from", "earliest", "-n", "2", "--json", "--quiet", "--config", &config];
    let mut tail = forebay(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("before"));
    broker.kill();
    broker.run();
    broker.publish(&["-t", "sensors/a", "-m", "after", "-q", "1"]);
    assert!(lines.next().unwrap().contains("after"));
    assert!(tail.wait().unwrap().success());
}

#[test]
fn trouble_is_told_with_what_to_do_and_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().to_str().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["status", "--data-dir", nowhere], 1, "forebay run"),
        (&["tail", "telemetry", "--data-dir", nowhere], 1, "no log"),
        (&["tail", "telemetry", "--data-dir", nowhere, "--from", "yesterday"], 2, "earliest"),
        (&["pub", "-h", "127.0.0.1", "-p", &free, "-t", "a", "-m", "x"], 1, "does a broker listen there"),
        (&["pub", "-t", "a", "-m", "x", "-V", "311", "--acks", "1"], 2, "MQTT 5"),
        (&["check", "--config", "/nonexistent-on-purpose.toml"], 2, "cannot be read"),
        (&["run", "--set", "no.such=1"], 2, "unknown key"),
    ];
    for (arguments, code, word) in cases {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
    let broker = Broker::start();
    let output = broker.ask(&["tail", "telemtry"]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("telemetry"));
    let second = broker.ask(&["run"]);
    assert_eq!(second.status.code(), Some(1), "{}", text(&second.stderr));
}

#[test]
fn a_refused_message_is_told_and_is_code_1() {
    let broker = Broker::start();
    let output = broker.client(&["pub", "-t", "sensors/a", "-m", "x", "-q", "1", "--acks", "-1"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("refused") && said.contains("0 of 1"), "{said}");
    let mut large = broker
        .client(&["pub", "-t", "sensors/a", "-s", "-q", "1"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    large.stdin.take().unwrap().write_all(&vec![0; 100_000]).unwrap();
    let output = large.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("larger than the broker takes"));
}

#[test]
fn the_demo_keeps_its_promise() {
    let output = run(&["demo", "--json", "--seconds", "8"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let report: serde_json::Value = serde_json::from_str(&lines).unwrap();
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!([number("lost"), number("duplicated"), number("reordered")], [0, 0, 0]);
    assert!(
        number("published") > 1_000
            && number("acked") == number("published")
            && number("arrived") == number("published")
    );
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let child = forebay(&["demo", "--quiet"]).env("TMPDIR", dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    let gateways = || gateways_below(dir.path());
    let begun = Instant::now();
    while gateways() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the demo starts no gateway");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("interrupted"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(gateways(), 0, "the gateway still lives");
}

/// Processes of a demo's gateway whose configuration lies below this directory.
fn gateways_below(dir: &Path) -> usize {
    let dir = dir.to_str().unwrap();
    let commands = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let command = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&command).into_owned())
    });
    commands.filter(|command| command.contains("demo-gateway") && command.contains(dir)).count()
}
