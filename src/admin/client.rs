//! The other end of the control socket: one blocking HTTP/1.1 request at a time, for the commands and the demo.

use super::control::ControlPath;
use crate::limits::ADMIN_ANSWER_BYTES_MAX;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than the server takes to say that the engine does not answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// No process serves the socket.
    NotRunning,
    /// The socket belongs to somebody else.
    Forbidden(PathBuf),
    /// The connection failed, or what came was no answer.
    Broken(io::Error),
    /// The broker answered with an error.
    Refused {
        /// HTTP status.
        status: u16,
        /// The code in the answer.
        code: String,
        /// In words.
        message: String,
    },
}

impl core::fmt::Display for ClientError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotRunning => f.write_str("no broker runs on this data directory"),
            Self::Forbidden(path) => {
                write!(f, "{}: permission denied; run this as the user that the broker runs as", path.display())
            }
            Self::Broken(error) => write!(f, "the broker's control socket: {error}"),
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// The control socket of one data directory. A connection is kept between requests where the broker lets it.
#[derive(Debug)]
pub struct Client {
    data_dir: PathBuf,
    kept: Option<BufReader<UnixStream>>,
}

impl Client {
    /// Of this data directory; nothing is connected yet.
    pub fn new(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned(), kept: None }
    }

    /// GET; the body of an answer below 300.
    pub fn get(&mut self, target: &str) -> Result<Vec<u8>, ClientError> {
        self.request("GET", target)
    }

    /// POST without a body; the body of an answer below 300.
    pub fn post(&mut self, target: &str) -> Result<Vec<u8>, ClientError> {
        self.request("POST", target)
    }

    fn request(&mut self, method: &str, target: &str) -> Result<Vec<u8>, ClientError> {
        // A kept connection may have been closed meanwhile, which shows only now: one fresh attempt then. Asking twice is
        // harmless, every request here says how things are to be, not how they are to change.
        if let Some(kept) = self.kept.take() {
            match self.exchange(kept, method, target) {
                Err(ClientError::Broken(_)) => {}
                answered => return answered,
            }
        }
        let connection = self.connect()?;
        self.exchange(connection, method, target)
    }

    fn connect(&self) -> Result<BufReader<UnixStream>, ClientError> {
        let connected = ControlPath::of(&self.data_dir).and_then(|path| UnixStream::connect(path.as_path()));
        let stream = connected.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning,
            io::ErrorKind::PermissionDenied => ClientError::Forbidden(self.data_dir.clone()),
            _ => ClientError::Broken(error),
        })?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(BufReader::new(stream))
    }

    fn exchange(
        &mut self,
        mut connection: BufReader<UnixStream>,
        method: &str,
        target: &str,
    ) -> Result<Vec<u8>, ClientError> {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        connection.get_mut().write_all(request.as_bytes())?;
        let answer = read_answer(&mut connection)?;
        if answer.keep_alive {
            self.kept = Some(connection);
        }
        if answer.status < 300 { Ok(answer.body) } else { Err(refused(answer)) }
    }
}

struct Answer {
    status: u16,
    keep_alive: bool,
    body: Vec<u8>,
}

fn refused(answer: Answer) -> ClientError {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    let field = |name: &str| Some(parsed.as_ref()?.get("error")?.get(name)?.as_str()?.to_owned());
    ClientError::Refused {
        status: answer.status,
        code: field("code").unwrap_or_default(),
        message: field("message").unwrap_or_else(|| format!("HTTP status {}", answer.status)),
    }
}

fn invalid(what: &str) -> ClientError {
    ClientError::Broken(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

/// Reads one answer with a Content-Length, which is all that our own server sends.
fn read_answer(connection: &mut impl BufRead) -> Result<Answer, ClientError> {
    let mut head = connection.by_ref().take(crate::limits::ADMIN_HEADER_BYTES_MAX as u64);
    let mut line = String::new();
    head.read_line(&mut line)?;
    if line.is_empty() {
        return Err(ClientError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| invalid("what answers is not HTTP/1.1"))?;
    let (mut length, mut keep_alive) = (None, true);
    loop {
        line.clear();
        head.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(ClientError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        let Some((name, value)) = header.split_once(':') else { continue };
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("content-length", value) => length = value.parse().ok(),
            ("connection", value) => keep_alive = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let length: usize = length.ok_or_else(|| invalid("the answer has no length"))?;
    if length > ADMIN_ANSWER_BYTES_MAX {
        return Err(invalid("the answer is too large"));
    }
    let mut body = Vec::new();
    connection.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(ClientError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Answer { status, keep_alive, body })
}
