//! Whom `pub` and `sub` connect to: flags as mosquitto_pub and mosquitto_sub have them.

use super::super::Failure;
use super::Options;
use crate::limits::TOKEN_FILE_BYTES_MAX;
use crate::mqtt::Version;
use clap::Args;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Connection arguments.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// Host name or address of the broker
    #[arg(short = 'h', long, value_name = "HOST", default_value = "localhost")]
    pub host: String,
    /// Port [default: 1883, with TLS 8883]
    #[arg(short = 'p', long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Client identifier [default: one of its own]
    #[arg(short = 'i', long = "id", value_name = "ID", value_parser = client_id)]
    pub id: Option<String>,
    /// User name
    #[arg(short = 'u', long, value_name = "NAME")]
    pub username: Option<String>,
    /// File that holds the password
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// Refused: the process list would show it
    #[arg(short = 'P', hide = true, value_name = "PASSWORD", num_args = 0..=1, value_parser = no_password)]
    pub password: Option<String>,
    /// Protocol version: 5 or 311
    #[arg(short = 'V', long = "protocol-version", value_name = "VERSION", default_value = "5", value_parser = protocol)]
    pub protocol: Version,
    /// Keep the session: no clean session, no clean start
    #[arg(short = 'c', long = "disable-clean-session", requires = "id")]
    pub keep_session: bool,
    /// Seconds between pings
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(5..))]
    pub keepalive: u16,
    /// Authorities to trust (PEM); turns TLS on
    #[arg(long, value_name = "FILE")]
    pub cafile: Option<PathBuf>,
    /// Certificate of this client (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["key", "cafile"])]
    pub cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

fn client_id(text: &str) -> Result<String, String> {
    let fits = !text.is_empty() && text.len() <= 65_535 && !text.starts_with(' ');
    fits.then(|| text.to_owned()).ok_or_else(|| "expected 1 to 65,535 bytes that do not begin with a space".into())
}

fn no_password(_: &str) -> Result<String, String> {
    Err("a password on the command line can be read by every user of this machine; put it into a file and name it with --password-file".into())
}

fn protocol(text: &str) -> Result<Version, String> {
    match text {
        "5" | "mqttv5" => Ok(Version::V5),
        "311" | "mqttv311" | "3.1.1" => Ok(Version::V311),
        _ => Err("expected 5 or 311".into()),
    }
}

impl ConnectArgs {
    /// Whether it is MQTT 5.0.
    pub fn v5(&self) -> bool {
        self.protocol == Version::V5
    }
}

/// Reads the levels of QoS.
pub fn qos(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "2" => Ok(2),
        _ => Err("expected 0, 1 or 2".into()),
    }
}

impl ConnectArgs {
    /// Where it goes, for messages.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port())
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(if self.cafile.is_some() { 8883 } else { 1883 })
    }

    /// All of it, with files read. `command` names a client without an identifier.
    pub fn options(&self, command: &str, inflight: u16) -> Result<Options, Failure> {
        let login = match (&self.username, &self.password_file) {
            (None, _) => None,
            (Some(name), None) => Some((name.clone(), String::new())),
            (Some(name), Some(file)) => Some((name.clone(), read_password(file)?)),
        };
        let tls = match &self.cafile {
            None => None,
            Some(ca) => Some(Arc::new(tls(ca, self.cert.as_deref().zip(self.key.as_deref()))?)),
        };
        Ok(Options {
            host: self.host.clone(),
            port: self.port(),
            client_id: self.id.clone().unwrap_or_else(|| generated_id(command)),
            login,
            keep_alive_s: self.keepalive,
            clean: !self.keep_session,
            // As mosquitto_sub: a session that is kept is kept for ever, until somebody says otherwise.
            session_expiry_s: (self.keep_session && self.v5()).then_some(u32::MAX),
            v5: self.v5(),
            inflight,
            manual_acks: false,
            tls,
        })
    }
}

/// Different for each process and each moment.
pub fn generated_id(command: &str) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("forebay-{command}-{:x}-{:x}", std::process::id(), since.subsec_nanos())
}

fn read_password(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| Failure::usage(format!("--password-file {}: {error}", path.display())))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn tls(ca: &Path, client: Option<(&Path, &Path)>) -> Result<rustls::ClientConfig, Failure> {
    let wrong = |path: &Path, what: &str| Failure::usage(format!("{}: expected {what} in PEM", path.display()));
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, Failure> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let read: Vec<_> = read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        if read.is_empty() { Err(wrong(path, "certificates")) } else { Ok(read) }
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| Failure::usage(format!("{}: {error}", ca.display())))?;
    }
    let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
    let Some((certificate, key)) = client else { return Ok(builder.with_no_client_auth()) };
    let loaded =
        PrivateKeyDer::from_pem_file(key).map_err(|error| Failure::usage(format!("{}: {error}", key.display())))?;
    let explain = |error| Failure::usage(format!("{} and {}: {error}", certificate.display(), key.display()));
    builder.with_client_auth_cert(certificates(certificate)?, loaded).map_err(explain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_takes_authorities_and_a_certificate_and_says_which_file_is_wrong() {
        // The process has its provider from `main`; here it may be there already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = file("cert.pem", &made.cert.pem());
        let key = file("key.pem", &made.signing_key.serialize_pem());
        let empty = file("empty.pem", "");
        assert!(tls(&certificate, None).is_ok());
        assert!(tls(&certificate, Some((&certificate, &key))).is_ok());
        let wrong = |result: Result<rustls::ClientConfig, Failure>| result.map(drop).unwrap_err();
        let cases = [
            (tls(&empty, None), "empty.pem"),
            (tls(Path::new("/nonexistent.pem"), None), "/nonexistent.pem"),
            (tls(&certificate, Some((&certificate, &empty))), "empty.pem"),
        ];
        for (result, name) in cases {
            let failure = wrong(result);
            assert!(failure.code == 2 && failure.message.contains(name), "{failure:?}");
        }
    }

    #[test]
    fn a_password_file_may_end_in_a_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "s e cret\r\n").unwrap();
        assert_eq!(read_password(&path).unwrap(), "s e cret");
        assert_eq!(read_password(&dir.path().join("absent")).unwrap_err().code, 2);
    }
}
