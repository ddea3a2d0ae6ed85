//! A child process that never outlives its value.

use super::{ms, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running child; its output goes to a file, of which the end is shown when a test fails.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    output: PathBuf,
}

impl Process {
    /// Starts it; standard output and error are appended to `output`.
    pub fn start(name: &str, mut command: Command, output: &Path) -> Self {
        let file = File::options().create(true).append(true).open(output).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { child, name: name.to_owned(), output: output.to_owned() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self, timeout: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        let what = format!("{} ends after SIGTERM", self.name);
        until(&what, timeout, || self.ended())
    }

    /// What it wrote.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Resident memory in KiB.
    pub fn rss_kib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most resident memory that it ever had, in KiB.
    pub fn peak_rss_kib(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let output = self.output();
            let from = output.len().saturating_sub(4_000);
            let from = (from..output.len()).find(|at| output.is_char_boundary(*at)).unwrap_or(0);
            eprintln!("──── {} said at the end:\n{}", self.name, &output[from..]);
        }
    }
}

/// Runs a program to its end and gives what it printed.
pub fn run(command: &mut Command, timeout: Duration) -> (ExitStatus, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let files = ["out", "err"].map(|name| directory.path().join(name));
    let [out, err] = files.clone().map(|path| File::create(path).unwrap());
    let mut child = Guard(command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap());
    let end = std::time::Instant::now() + timeout;
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(std::time::Instant::now() < end, "{command:?}: no end within {timeout:?}");
        std::thread::sleep(ms(2));
    };
    let [out, err] = files.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
    (status, out, err)
}

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
