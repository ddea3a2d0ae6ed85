//! A real `forebay run` with a data directory of its own, at a port that it keeps over restarts.

use super::client::{Client, Options};
use super::process::{Process, run};
use super::{ms, ports, secs, until};
use forebay::mqtt::Version;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program under test.
pub const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// What a gateway's config.toml says beyond its id, ports and data directory: lines for each section.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// In `[gateway]`.
    pub gateway: String,
    /// In `[device]`.
    pub device: String,
    /// In `[[listener]]`.
    pub listener: String,
    /// Streams and upstreams.
    pub rest: String,
}

impl Setup {
    /// With these streams and upstreams.
    pub fn new(rest: impl Into<String>) -> Self {
        Self { rest: rest.into(), ..Self::default() }
    }

    /// And this in `[device]`.
    pub fn device(self, device: &str) -> Self {
        Self { device: device.to_owned(), ..self }
    }

    /// And this in `[gateway]`.
    pub fn gateway(self, gateway: &str) -> Self {
        Self { gateway: gateway.to_owned(), ..self }
    }

    /// And this in `[[listener]]`.
    pub fn listener(self, listener: &str) -> Self {
        Self { listener: listener.to_owned(), ..self }
    }
}

/// A stored record as `forebay tail --json` prints it.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    /// Partition.
    pub partition: u16,
    /// Offset.
    pub offset: u64,
    /// Topic.
    pub topic: String,
    /// QoS at which it was published.
    pub qos: u8,
    /// Payload, if it is text.
    #[serde(default)]
    pub payload: String,
    /// Where it came from, if a forwarding peer said so.
    pub source: Option<String>,
}

/// A gateway; killed when dropped.
#[derive(Debug)]
pub struct Gateway {
    /// MQTT port.
    pub port: u16,
    /// Its configuration.
    pub config: PathBuf,
    /// Its data directory.
    pub data: PathBuf,
    id: String,
    wrapper: Vec<String>,
    process: Option<Process>,
    directory: TempDir,
}

impl Gateway {
    /// Writes the configuration; nothing runs yet.
    pub fn new(id: &str, setup: &Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = ports::free();
        let gateway = Self {
            port,
            config: directory.path().join("config.toml"),
            data: directory.path().join("data"),
            id: id.to_owned(),
            wrapper: Vec::new(),
            process: None,
            directory,
        };
        gateway.configure(setup);
        gateway
    }

    /// Writes the configuration and starts it.
    pub fn started(id: &str, setup: &Setup) -> Self {
        let mut gateway = Self::new(id, setup);
        gateway.start();
        gateway
    }

    /// Writes another configuration, for the next start.
    pub fn configure(&self, setup: &Setup) {
        let Setup { gateway, device, listener, rest } = setup;
        let text = format!(
            "log = \"info\"\n\n[gateway]\nid = \"{}\"\ndata_dir = \"{}\"\n{gateway}\n\n[device]\n{device}\n\n\
             [[listener]]\nbind = \"127.0.0.1:{}\"\n{listener}\n\n[admin]\nbind = \"off\"\n\n{rest}\n",
            self.id,
            self.data.display(),
            self.port
        );
        std::fs::write(&self.config, text).unwrap();
    }

    /// Starts it under another program, which gets the command as its last arguments.
    pub fn wrapped(&mut self, wrapper: &[&str]) {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
    }

    /// A path in the gateway's own temporary directory, beside its data.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `forebay` with this gateway's configuration.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(FOREBAY);
        command.args(arguments).arg("--config").arg(&self.config);
        command.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM").env("NO_COLOR", "1");
        command
    }

    /// Spawns the process and does not wait for it.
    pub fn spawn(&mut self) {
        let inner = self.command(&["run"]);
        let command = match self.wrapper.split_first() {
            None => inner,
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(inner.get_program()).args(inner.get_args());
                command
            }
        };
        let output = self.beside("output.log");
        self.process = Some(Process::start(&self.id, command, &output));
    }

    /// Starts it; how long it took from the start of the process to the first CONNACK.
    pub fn start(&mut self) -> Duration {
        let begin = Instant::now();
        self.spawn();
        self.ready();
        begin.elapsed()
    }

    /// Waits until it gives a CONNACK.
    pub fn ready(&mut self) {
        let end = Instant::now() + secs(30);
        loop {
            if let Ok(client) = Client::connect(self.port, &Options::new(Version::V311, "readiness")) {
                client.wire.close();
                return;
            }
            if let Some(status) = self.running().ended() {
                panic!("{} ended at start: {status}\n{}", self.id, self.output());
            }
            assert!(Instant::now() < end, "{} not ready within 30 s:\n{}", self.id, self.output());
            std::thread::sleep(ms(2));
        }
    }

    /// The running process.
    pub fn running(&mut self) -> &mut Process {
        self.process.as_mut().expect("the gateway runs")
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// SIGTERM; how it ended and how long that took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let begin = Instant::now();
        let mut process = self.process.take().expect("the gateway runs");
        let status = process.terminate(secs(20));
        (status, begin.elapsed())
    }

    /// What it wrote to its standard error, over all starts.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.beside("output.log")).unwrap_or_default()
    }

    /// `forebay status --json`.
    pub fn status(&self) -> Value {
        self.try_status().unwrap_or_else(|error| panic!("status of {}: {error}", self.id))
    }

    /// `forebay status --json`, if it answers.
    pub fn try_status(&self) -> Result<Value, String> {
        let (status, out, err) = run(&mut self.command(&["status", "--json"]), secs(30));
        if !status.success() {
            return Err(err);
        }
        serde_json::from_str(&out).map_err(|error| format!("{error}: {out}"))
    }

    /// Waits until the status is as wanted.
    pub fn wait(&self, what: &str, timeout: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{}: {what}", self.id), timeout, || self.try_status().ok().filter(|status| wanted(status)))
    }

    /// Waits until the upstreams have everything.
    pub fn drained(&self, timeout: Duration) -> Value {
        let begin = Instant::now();
        loop {
            let status = self.status();
            if upstreams(&status).all(|upstream| upstream["lag_records"] == 0) {
                return status;
            }
            assert!(
                begin.elapsed() < timeout,
                "{}: not drained within {timeout:?}: {:#}\n{}",
                self.id,
                status["upstreams"],
                self.output()
            );
            std::thread::sleep(ms(50));
        }
    }

    /// All records of a stream, from the running process or from the data directory of the stopped one.
    pub fn tail(&self, stream: &str) -> Vec<Record> {
        tail(&mut self.command(&["tail", stream, "--from", "earliest", "--json"]))
    }

    /// All records of a stream in a copy of the data directory.
    pub fn tail_copy(&self, stream: &str, copy: &Path) -> Vec<Record> {
        let set = format!("gateway.data_dir={}", copy.display());
        tail(&mut self.command(&["tail", stream, "--from", "earliest", "--json", "--set", &set]))
    }

    /// Copies the data directory as it is now, without its sockets.
    pub fn copy_data(&self, to: &Path) {
        copy(&self.data, to);
    }
}

fn tail(command: &mut Command) -> Vec<Record> {
    let (status, out, err) = run(command, secs(300));
    assert!(status.success(), "{command:?}: {status}: {err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_file() {
            // A file may be renamed or removed meanwhile: then it was not part of what is there now.
            let _ = std::fs::copy(entry.path(), target);
        }
    }
}

/// The upstreams of a status.
pub fn upstreams(status: &Value) -> impl Iterator<Item = &Value> {
    status["upstreams"].as_array().into_iter().flatten()
}

/// One partition of a status.
pub fn partition<'a>(status: &'a Value, stream: &str, number: usize) -> &'a Value {
    let streams = status["streams"].as_array().unwrap();
    &streams.iter().find(|entry| entry["name"] == stream).unwrap()["partitions"][number]
}

/// An `[[upstream]]` of kind mqtt at a port of this host.
pub fn upstream(name: &str, port: u16, streams: &[&str], more: &str) -> String {
    format!(
        "[[upstream]]\nname = \"{name}\"\nkind = \"mqtt\"\naddress = \"mqtt://127.0.0.1:{port}\"\nstreams = {streams:?}\n{more}\n\n"
    )
}
