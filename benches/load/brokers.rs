//! The brokers under load, as child processes.

use crate::Result;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running broker; killed when dropped.
pub struct Broker {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl Broker {
    /// Forebay as it is built, durable, with a stream for `durable/#`. `extra` goes to `--set`.
    pub fn forebay(dir: &Path, extra: &[String]) -> Result<Self> {
        let address = free_address()?;
        let data_dir = dir.join("data");
        let _ = fs::remove_dir_all(&data_dir);
        let config = dir.join("forebay.toml");
        let text = format!(
            "log = \"warn\"\n[gateway]\nid = \"bench\"\ndata_dir = {data_dir:?}\ndisk_budget = \"1GiB\"\n\
             [device]\nmax_inflight = 200\n[[listener]]\nbind = \"{address}\"\n\
             [[stream]]\nname = \"durable\"\ntopics = [\"durable/#\"]\nretention_bytes = \"128MiB\"\n"
        );
        fs::write(&config, text)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("run").arg("--config").arg(&config);
        for value in extra {
            command.arg("--set").arg(value);
        }
        Self::start(command, address, &dir.join("forebay.log"))
    }

    /// Debian's Mosquitto, in memory, each ack sent at once.
    pub fn mosquitto(dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let config = dir.join("mosquitto.conf");
        let text = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 0\npersistence false\n",
            address.port()
        );
        fs::write(&config, text)?;
        let mut command = Command::new("mosquitto");
        command.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin").arg("-c").arg(&config);
        Self::start(command, address, &dir.join("mosquitto.log"))
    }

    fn start(mut command: Command, address: SocketAddr, log: &Path) -> Result<Self> {
        let child = command.stdout(Stdio::null()).stderr(File::create(log)?).spawn();
        let child = child.map_err(|error| format!("{command:?}: {error}"))?;
        let mut broker = Self { address, child };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if broker.child.try_wait()?.is_some() || Instant::now() > until {
                return Err(format!("{command:?} does not listen: {}", fs::read_to_string(log)?).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(broker)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The most memory that it ever held.
    pub fn peak_rss_mib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}

/// User and system time of a process so far.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold spaces; utime and stime are the 12th and 13th fields behind it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    // USER_HZ, which is the same on every Linux that we know of.
    Ok((ticks(11) + ticks(12)) / 100.0)
}
