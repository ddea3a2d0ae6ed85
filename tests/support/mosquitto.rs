//! A real Mosquitto as the centre, set up as reference/mqtt-client.md advises: an unbounded queue for the subscriber that is
//! absent until the end, no Nagle, sessions on disk for orderly restarts.

use super::client::{Client, Options, drain};
use super::process::Process;
use super::{counts, ms, ports, secs, until};
use forebay::mqtt::{Publish, QoS, Version};
use std::cell::RefCell;
use std::process::Command;
use tempfile::TempDir;

/// A Mosquitto; killed when dropped.
#[derive(Debug)]
pub struct Mosquitto {
    /// MQTT port.
    pub port: u16,
    process: RefCell<Option<Process>>,
    directory: TempDir,
}

/// The subscriber that registers once and drains at the end.
const READER: &str = "reader";

impl Mosquitto {
    /// Starts one, or says that `suite` is skipped. `more` is added to its configuration.
    pub fn start(suite: &str, more: &str) -> Option<Self> {
        counts::need("mosquitto", suite)?;
        let directory = tempfile::tempdir().unwrap();
        let port = ports::free();
        let text = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\nmax_queued_messages 0\nset_tcp_nodelay true\n\
             persistence true\npersistence_location {}/\nautosave_interval 0\nlog_dest stderr\nlog_type error\nlog_type warning\nlog_type notice\nlog_type information\n{more}\n",
            directory.path().display()
        );
        std::fs::write(directory.path().join("mosquitto.conf"), text).unwrap();
        let mut mosquitto = Self { port, directory, process: RefCell::new(None) };
        mosquitto.up();
        Some(mosquitto)
    }

    /// Starts the process and waits until it answers.
    fn up(&mut self) {
        let program = counts::find("mosquitto").unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(self.directory.path().join("mosquitto.conf"));
        let output = self.directory.path().join("output.log");
        *self.process.borrow_mut() = Some(Process::start("mosquitto", command, &output));
        until("mosquitto answers", secs(20), || Client::connect(self.port, &Options::new(Version::V311, "ready")).ok());
    }

    /// An orderly restart: sessions and messages are kept.
    pub fn restart(&mut self) {
        self.stop();
        self.up();
    }

    /// An orderly stop.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.borrow_mut().take() {
            assert!(process.terminate(secs(20)).success(), "mosquitto stops in order");
        }
    }

    /// Registers the reader's session for all topics, and leaves.
    pub fn register_reader(&self) {
        let mut client = Client::connect(self.port, &Options::durable(Version::V311, READER)).unwrap();
        client.subscribe("#", QoS::ExactlyOnce).unwrap();
        client.disconnect();
    }

    /// Reads all that came for the reader, in order.
    pub fn read(&self, mut take: impl FnMut(&Publish)) -> u64 {
        let mut client = Client::connect(self.port, &Options::durable(Version::V311, READER)).unwrap();
        assert!(client.connack.session_present, "the reader's session was kept");
        let mut count = 0_u64;
        let drained = drain(&mut client, ms(1_500), |publish| {
            count += 1;
            take(publish);
        });
        let ended = self.process.borrow_mut().as_mut().and_then(Process::ended);
        let taken =
            drained.unwrap_or_else(|error| panic!("after {count} messages: {error}; the broker ended: {ended:?}"));
        client.disconnect();
        taken
    }
}
