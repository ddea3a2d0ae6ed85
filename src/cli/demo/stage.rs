//! What the demo plays on: a temporary directory, the centre in this process, the gateway in a process that can be killed.

use super::super::Failure;
use super::gateway::Announcement;
use crate::broker;
use crate::config;
use crate::settings::Settings;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::time::Duration;

/// How long the gateway may take to listen.
const START: Duration = Duration::from_secs(20);
/// Small segments: the demo has little to store, and they are zero-filled at the start.
const DEVICE: &str = "[device]\nsegment_size = \"4MiB\"\nmax_packet_size = \"64KiB\"\n";

/// A directory of our own, removed at the end.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A new one, where temporary files go.
    pub fn new() -> Result<Self, Failure> {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let path = std::env::temp_dir().join(format!("forebay-demo-{}-{:x}", std::process::id(), since.as_nanos()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            let hint = "set TMPDIR to a directory that can be written";
            Failure::failed(format!("{}: {error}; {hint}", path.display()))
        })?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed lies among temporary files, where it is removed one day.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The centre's name for what it stores.
pub const CENTRE_STREAM: &str = "edge";

/// Starts the centre in this process.
pub fn start_centre(data_dir: &Path) -> Result<broker::Handle, Failure> {
    let text = format!(
        "[gateway]\nid = \"centre\"\ndisk_budget = \"1GiB\"\n{DEVICE}\
         [[listener]]\nbind = \"127.0.0.1:0\"\n[admin]\nbind = \"off\"\n\
         [[stream]]\nname = \"{CENTRE_STREAM}\"\ntopics = [\"sensors/#\"]\n"
    );
    let mut settings = settings(&text, "the demo's centre")?;
    settings.gateway.data_dir = data_dir.to_owned();
    broker::start(settings).map_err(|error| Failure::failed(format!("the demo's centre: {error}")))
}

/// The gateway's configuration: forwards to `upstream` at QoS 2, three partitions in one session.
pub fn gateway_config(data_dir: &Path, upstream: SocketAddr) -> String {
    // A JSON string is a TOML string too.
    let data_dir = serde_json::Value::String(data_dir.display().to_string());
    format!(
        "log = \"info\"\n[gateway]\nid = \"demo\"\ndata_dir = {data_dir}\ndisk_budget = \"1GiB\"\n{DEVICE}\
         [[listener]]\nbind = \"127.0.0.1:0\"\n[admin]\nbind = \"off\"\n\
         [[stream]]\nname = \"sensors\"\ntopics = [\"sensors/#\"]\npartitions = 3\nacks = 1\n\
         [[upstream]]\nname = \"centre\"\nkind = \"mqtt\"\naddress = \"mqtt://{upstream}\"\nstreams = [\"sensors\"]\nqos = 2\n"
    )
}

fn settings(text: &str, name: &str) -> Result<Settings, Failure> {
    let loaded = config::from_str(text, name).map_err(|errors| Failure::failed(errors.to_string()))?;
    Ok(loaded.settings)
}

/// The gateway: a child process, started, killed and started again.
#[derive(Debug)]
pub struct Gateway {
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    address: Address,
}

/// Where the gateway listens, while it does. Sensors look it up before each connection.
pub type Address = std::sync::Arc<Mutex<Option<SocketAddr>>>;

/// Reads an [`Address`].
pub fn look_up(address: &Address) -> Option<SocketAddr> {
    *address.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gateway {
    /// Not yet started; its configuration is written to `directory`.
    pub fn new(directory: &Path, upstream: SocketAddr) -> Result<Self, Failure> {
        let config = directory.join("gateway.toml");
        let text = gateway_config(&directory.join("gateway"), upstream);
        settings(&text, "the demo's gateway")?;
        fs::write(&config, text).map_err(|error| Failure::failed(format!("{}: {error}", config.display())))?;
        Ok(Self { config, log: directory.join("gateway.log"), child: None, address: Address::default() })
    }

    /// Where it listens, for the sensors.
    pub fn address(&self) -> Address {
        Address::clone(&self.address)
    }

    /// Starts it and waits until it listens.
    pub fn start(&mut self) -> Result<(), Failure> {
        let broken = |error: std::io::Error| Failure::failed(format!("the demo's gateway cannot be started: {error}"));
        let log = File::options().create(true).append(true).open(&self.log).map_err(broken)?;
        let program = std::env::current_exe().map_err(broken)?;
        let mut command = Command::new(program);
        command.arg("demo-gateway").arg("--config").arg(&self.config);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().map_err(broken)?;
        let stdout = child.stdout.take();
        self.child = Some(child);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if let Some(stdout) = stdout {
                // An error leaves the line empty, which is no announcement.
                let _ = BufReader::new(stdout.take(4096)).read_line(&mut line);
            }
            // Nobody may be waiting any more.
            let _ = sender.send(line);
        });
        let line = receiver.recv_timeout(START).unwrap_or_default();
        let announced: Option<Announcement> = serde_json::from_str(&line).ok();
        let Some(Announcement { mqtt }) = announced else {
            self.kill();
            return Err(Failure::failed(format!(
                "the demo's gateway does not listen; it said:\n{}",
                self.last_words()
            )));
        };
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(mqtt);
        Ok(())
    }

    /// SIGKILL: it gets no chance to write or sync anything more.
    pub fn kill(&mut self) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(mut child) = self.child.take() {
            // An error says that it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Whether it ended by itself, which it should not.
    pub fn ended(&mut self) -> Option<Failure> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(Failure::failed(format!("the demo's gateway ended by itself ({status}); it said:\n{}", self.last_words())))
    }

    /// The end of its log.
    fn last_words(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(2048)))?;
            let mut bytes = Vec::new();
            file.take(2048).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_configurations_are_without_errors() {
        let upstream = "127.0.0.1:1".parse().unwrap();
        let loaded =
            config::from_str(&gateway_config(Path::new("/tmp/a \"quoted\" place"), upstream), "gateway").unwrap();
        assert_eq!(loaded.settings.gateway.data_dir, Path::new("/tmp/a \"quoted\" place"));
        assert_eq!((loaded.settings.streams[0].partitions, loaded.settings.upstreams.len()), (3, 1));
        assert!(loaded.settings.admin.is_none());
    }

    #[test]
    fn the_directory_is_gone_at_the_end() {
        let directory = Directory::new().unwrap();
        let path = directory.path().to_owned();
        fs::write(path.join("file"), "x").unwrap();
        drop(directory);
        assert!(!path.exists());
    }
}
