//! From a name to an accepted MQTT connection: name, TCP, TLS, CONNECT and CONNACK, each with a time-out of its own, each failure
//! in words that tell a person what to do.

use super::mqtt::DriverConfig;
use super::{tls, wire};
use crate::limits::UPSTREAM_ADDRESSES_MAX;
use crate::mqtt::Reason;
use crate::replication::link::{DownKind, LinkDown};
use bytes::BytesMut;
use smol::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use smol::net::TcpStream;
use std::future::Future;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

/// A transport: TCP, or TLS over it.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

/// How long a peer may take to close a connection that we have left.
const FAREWELL: Duration = Duration::from_secs(1);

/// What stands after CONNACK: the transport, bytes that came with CONNACK, what the peer takes.
pub(super) type Connected = (Box<dyn Transport>, BytesMut, wire::Accepted);

/// Which session CONNECT asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// The one that the peer kept, or a new one; it outlives the connection.
    Kept,
    /// None: whatever the peer kept is forgotten, and what follows ends with the connection.
    Ended,
}

/// Connects; `clean_start`: with a session that the peer has just begun.
///
/// A clean start takes no flag of its own. A session that was begun with "clean session" ends with its connection in 3.1.1, and
/// Mosquitto (2.0) does not keep one that was begun with "clean start" over a restart, whatever its expiry. So one that is to last is
/// always begun without the flag, after the old one, where there is any, was ended by a connection of its own.
pub(super) async fn connect(config: &DriverConfig, clean_start: bool) -> Result<Connected, LinkDown> {
    let connected = once(config, Session::Kept).await?;
    if !clean_start || !connected.2.session_present {
        return Ok(connected);
    }
    leave(config, connected).await;
    leave(config, once(config, Session::Ended).await?).await;
    let connected = once(config, Session::Kept).await?;
    if connected.2.session_present {
        return Err(network("the peer keeps a session that it was told to forget".into()));
    }
    Ok(connected)
}

/// An orderly end, and the peer's, so that the next connection does not find this one. Nothing depends on it.
async fn leave(config: &DriverConfig, (mut stream, _, _): Connected) {
    let farewell = async {
        let mut packet = BytesMut::new();
        if wire::write_disconnect(config.v5, &mut packet).is_ok() && stream.write_all(&packet).await.is_ok() {
            let _ = stream.flush().await;
            let mut buffer = [0; 2048];
            while matches!(stream.read(&mut buffer).await, Ok(count) if count > 0) {}
        }
    };
    within(FAREWELL, farewell).await;
}

/// One connection.
async fn once(config: &DriverConfig, session: Session) -> Result<Connected, LinkDown> {
    let limit = config.connect_timeout;
    let password = read_password(config).await.map_err(network)?;
    let tcp = reach(config).await.map_err(network)?;
    let mut stream: Box<dyn Transport> = match &config.tls {
        None => Box::new(tcp),
        Some(files) => {
            let (files, host) = (files.clone(), config.host.clone());
            let prepared = smol::unblock(move || tls::prepare(&files, &host)).await;
            let (rustls, name) = prepared.map_err(network)?;
            let handshake = futures_rustls::TlsConnector::from(rustls).connect(name, tcp);
            match within(limit, handshake).await {
                Some(Ok(stream)) => Box::new(stream),
                Some(Err(error)) => return Err(network(format!("TLS with {}: {error}", config.host))),
                None => return Err(network(format!("TLS with {}: no answer within {limit:?}", config.host))),
            }
        }
    };
    let mut packet = BytesMut::new();
    wire::write_connect(config, session, password, &mut packet).map_err(network)?;
    match within(limit, hand_shake(config, &mut stream, &packet)).await {
        Some(Ok((rest, accepted))) => Ok((stream, rest, accepted)),
        Some(Err(down)) => Err(down),
        None => Err(network(format!("no CONNACK within {limit:?} from {}:{}", config.host, config.port))),
    }
}

fn network(reason: String) -> LinkDown {
    LinkDown { reason, kind: DownKind::Network }
}

/// Runs a future for at most `limit`.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let timer = async {
        smol::Timer::after(limit).await;
        None
    };
    smol::future::or(async { Some(future.await) }, timer).await
}

async fn read_password(config: &DriverConfig) -> Result<Option<String>, String> {
    let Some(path) = config.password_file.clone() else { return Ok(None) };
    let shown = path.display().to_string();
    let read = smol::unblock(move || std::fs::read_to_string(path)).await;
    let text = read.map_err(|error| format!("password_file {shown}: {error}"))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Some(password.strip_suffix('\r').unwrap_or(password).to_owned()))
}

/// Resolves the name and tries its addresses in turn.
async fn reach(config: &DriverConfig) -> Result<TcpStream, String> {
    let (host, port, limit) = (&config.host, config.port, config.connect_timeout);
    let addresses: Vec<SocketAddr> = match within(limit, smol::net::resolve((host.as_str(), port))).await {
        Some(Ok(found)) => found.into_iter().take(UPSTREAM_ADDRESSES_MAX).collect(),
        Some(Err(error)) => return Err(format!("name not found: {host}: {error}")),
        None => return Err(format!("name not found: {host}: no answer within {limit:?}")),
    };
    let mut last = format!("name not found: {host} has no address");
    for address in addresses {
        match within(limit, TcpStream::connect(address)).await {
            Some(Ok(stream)) => {
                // Acks are small and wanted at once; where it cannot be set the link works all the same.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Some(Err(error)) => last = format!("{address}: {}", words(&error)),
            None => last = format!("{address}: no answer within {limit:?}"),
        }
    }
    Err(last)
}

/// An I/O error as a person would say it.
pub(super) fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".into(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            "connection reset by the peer".into()
        }
        ErrorKind::TimedOut => "no answer (timed out)".into(),
        ErrorKind::UnexpectedEof => "closed by the peer".into(),
        _ => error.to_string(),
    }
}

async fn hand_shake(
    config: &DriverConfig,
    stream: &mut Box<dyn Transport>,
    packet: &[u8],
) -> Result<(BytesMut, wire::Accepted), LinkDown> {
    let failed = |error: Error| network(format!("before CONNACK: {}", words(&error)));
    stream.write_all(packet).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut input = BytesMut::new();
    let mut buffer = [0; 2048];
    loop {
        if let Some((header, length)) = wire::frame_len(&input).map_err(network)? {
            let frame = input.split_to(length);
            let refused = |(reason, text): (Reason, String)| {
                let kind =
                    if reason == Reason::SESSION_TAKEN_OVER { DownKind::TakenOver } else { DownKind::Refused(reason) };
                LinkDown { reason: text, kind }
            };
            return wire::connack(&frame, header, config).map(|accepted| (input, accepted)).map_err(refused);
        }
        match stream.read(&mut buffer).await.map_err(failed)? {
            0 if config.v5 => {
                return Err(network(
                    "closed before CONNACK (a peer that speaks only MQTT 3.1.1, or none at all?)".into(),
                ));
            }
            0 => return Err(network("closed before CONNACK".into())),
            count => input.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
}
