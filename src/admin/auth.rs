//! Who may ask over TCP. The control socket needs nothing of this: its file belongs to who owns the data.
//!
//! With a token file every request but the two health checks carries `Authorization: Bearer TOKEN`. Without one the listener is on
//! loopback (start-up refuses anything else), and what is left are web pages in a browser on this machine: one of another name that
//! resolves to loopback (stopped by looking at Host), and one that posts here blindly (stopped by looking at Origin).

use crate::limits::{TOKEN_CHARACTERS_MIN, TOKEN_FILE_BYTES_MAX};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// What a request must show.
#[derive(Clone)]
pub enum Access {
    /// Nothing: it came through the control socket.
    Owner,
    /// A Host that is an address or `localhost`, and no foreign Origin.
    Loopback,
    /// This token.
    Token(String),
}

impl core::fmt::Debug for Access {
    /// Without the token.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Owner => "Owner",
            Self::Loopback => "Loopback",
            Self::Token(_) => "Token",
        })
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No token, or another one: 401.
    Token,
    /// Host names something else: 403.
    Host,
    /// It comes from a page of another origin: 403.
    Origin,
}

impl Access {
    /// What a listener on `bind` asks for. The error is a sentence with what to do.
    pub fn of(bind: SocketAddr, token_file: Option<&Path>) -> Result<Self, String> {
        match token_file {
            Some(path) => read_token(path).map(Self::Token),
            None if bind.ip().is_loopback() => Ok(Self::Loopback),
            None => Err(format!(
                "admin.bind = {bind} can be reached from other machines: set admin.token_file to a file that holds a token of at \
                 least {TOKEN_CHARACTERS_MIN} characters, or bind to 127.0.0.1:{}",
                bind.port()
            )),
        }
    }

    /// Whether the request may be answered.
    pub fn check(&self, headers: &HeaderMap, changes_something: bool) -> Result<(), Denied> {
        match self {
            Self::Owner => Ok(()),
            Self::Token(token) => bearer(headers).filter(|given| same(given, token)).map(|_| ()).ok_or(Denied::Token),
            Self::Loopback => {
                let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
                if !is_address(host) {
                    return Err(Denied::Host);
                }
                let origin = headers.get(ORIGIN).map(|value| value.to_str().unwrap_or("?"));
                let ours = |origin: &str| origin.strip_prefix("http://") == Some(host);
                if changes_something && origin.is_some_and(|origin| !ours(origin)) {
                    return Err(Denied::Origin);
                }
                Ok(())
            }
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Compares in a time that depends on the given text only, not on how much of it is right.
fn same(given: &str, token: &str) -> bool {
    let token = token.as_bytes();
    let mut difference = given.len() ^ token.len();
    for (at, byte) in given.bytes().enumerate() {
        // Beyond its end the token is compared with itself from the start: the length has already decided.
        let other = token.get(at % token.len().max(1)).copied().unwrap_or_default();
        difference |= usize::from(byte ^ other);
    }
    std::hint::black_box(difference) == 0
}

/// Whether a Host header (name and perhaps port) is an address or `localhost`.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn read_token(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| format!("admin.token_file {}: {error}; it must be a readable text file", path.display()))?;
    let token = text.trim();
    if token.chars().count() < TOKEN_CHARACTERS_MIN || token.contains(char::is_whitespace) {
        return Err(format!(
            "admin.token_file {}: expected one token of at least {TOKEN_CHARACTERS_MIN} characters without spaces; \
             `openssl rand -hex 32` makes one",
            path.display()
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn off_loopback_a_token_is_required() {
        let error = Access::of("0.0.0.0:8080".parse().unwrap(), None).unwrap_err();
        assert!(error.contains("admin.token_file") && error.contains("127.0.0.1:8080"), "{error}");
        assert!(matches!(Access::of("[::1]:1".parse().unwrap(), None), Ok(Access::Loopback)));
    }

    #[test]
    fn a_token_is_read_trimmed_and_not_too_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let bind = "0.0.0.0:8080".parse().unwrap();
        std::fs::write(&path, "short\n").unwrap();
        assert!(Access::of(bind, Some(&path)).unwrap_err().contains("at least 16"));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let access = Access::of(bind, Some(&path)).unwrap();
        assert_eq!(format!("{access:?}"), "Token");
        let ask = |value: &'static str| access.check(&headers(&[(AUTHORIZATION, value)]), true);
        assert_eq!(ask("Bearer 0123456789abcdef"), Ok(()));
        assert_eq!(ask("bearer 0123456789abcdef"), Ok(()));
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
            "Bearer ",
        ] {
            assert_eq!(ask(wrong), Err(Denied::Token), "{wrong}");
        }
        assert_eq!(access.check(&headers(&[]), false), Err(Denied::Token));
        assert!(Access::of(bind, Some(&dir.path().join("absent"))).unwrap_err().contains("absent"));
    }

    #[test]
    fn a_page_of_another_name_reads_nothing() {
        let ask = |host| Access::Loopback.check(&headers(&[(HOST, host)]), false);
        for host in ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "10.0.0.7"] {
            assert_eq!(ask(host), Ok(()), "{host}");
        }
        for host in ["evil.example:8080", "127.0.0.1.evil.example", "", "[evil]"] {
            assert_eq!(ask(host), Err(Denied::Host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        let ask =
            |origin, changes| Access::Loopback.check(&headers(&[(HOST, "127.0.0.1:8080"), (ORIGIN, origin)]), changes);
        assert_eq!(ask("http://127.0.0.1:8080", true), Ok(()));
        assert_eq!(ask("http://evil.example", true), Err(Denied::Origin));
        assert_eq!(ask("null", true), Err(Denied::Origin));
        assert_eq!(ask("http://evil.example", false), Ok(()));
    }
}
