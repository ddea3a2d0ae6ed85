//! The sockets of the admin side and their bounds: connections, header size and time, body size, responses that nobody reads.

use super::auth::Access;
use super::control::ControlPath;
use super::{Shared, routes};
use crate::limits::{
    ADMIN_CONNECTIONS_MAX, ADMIN_CONTROL_CONNECTIONS_MAX, ADMIN_HEADER_BYTES_MAX, ADMIN_HEADER_SECONDS,
    ADMIN_HEADERS_MAX, ADMIN_WRITE_STALL_SECONDS,
};
use crate::settings;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use smol::io::{AsyncRead, AsyncWrite};
use smol::lock::Semaphore;
use smol::net::TcpListener;
use smol::net::unix::UnixListener;
use smol::{LocalExecutor, Timer};
use smol_hyper::rt::{FuturesIo, SmolTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Why the admin side cannot start: a sentence that says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminError(String);

impl core::fmt::Display for AdminError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AdminError {}

/// The TCP listener, bound and not yet served.
#[derive(Debug)]
pub struct TcpServer {
    listener: TcpListener,
    access: Access,
    address: SocketAddr,
}

impl TcpServer {
    /// Binds `admin.bind`. Refused off loopback without a token.
    pub fn bind(settings: &settings::Admin) -> Result<Self, AdminError> {
        let access = Access::of(settings.bind, settings.token_file.as_deref()).map_err(AdminError)?;
        let explain = |error: io::Error| {
            let what_to_do = match error.kind() {
                io::ErrorKind::AddrInUse => "another program has that port; stop it or set admin.bind to a free one",
                io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; set admin.bind to a higher one",
                io::ErrorKind::AddrNotAvailable => {
                    "this machine has no such address; set admin.bind to one that it has"
                }
                _ => "set admin.bind to another address",
            };
            AdminError(format!("admin.bind = {}: {error}: {what_to_do}", settings.bind))
        };
        let listener = std::net::TcpListener::bind(settings.bind).map_err(explain)?;
        let address = listener.local_addr().map_err(explain)?;
        let listener = smol::Async::new(listener).map_err(explain)?.into();
        Ok(Self { listener, access, address })
    }

    /// Where it listens; with port 0 in the settings, the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The control socket, bound and not yet served. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    file: PathBuf,
}

impl ControlServer {
    /// Binds `control.sock` in `data_dir`, mode 0600. The caller holds the lock of the directory, so a file that is there is left
    /// over from a process that is gone.
    pub fn bind(data_dir: &Path) -> Result<Self, AdminError> {
        let file = data_dir.join(super::control::FILE_NAME);
        let explain = |error: io::Error| {
            let file = file.display();
            AdminError(format!(
                "control socket {file}: {error}: the directory must be writable, on a file system that has sockets"
            ))
        };
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(explain(error)),
            _ => {}
        }
        let path = ControlPath::of(data_dir).map_err(explain)?;
        let listener = std::os::unix::net::UnixListener::bind(path.as_path()).map_err(explain)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).map_err(explain)?;
        let listener = smol::Async::new(listener).map_err(explain)?.into();
        Ok(Self { listener, file })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // It says nothing of importance, so a file that is gone already is as good.
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Serves both until the future is dropped; every connection goes with it. For a thread of its own (`smol::block_on`), since a
/// scrape of `/proc` blocks for a moment.
pub async fn serve(tcp: Option<TcpServer>, control: ControlServer, shared: Arc<Shared>) {
    let executor = LocalExecutor::new();
    let over_tcp = async {
        match &tcp {
            Some(server) => {
                let accept = || async { server.listener.accept().await.map(|(stream, _)| stream) };
                accept_all(&executor, accept, ADMIN_CONNECTIONS_MAX, &server.access, &shared).await;
            }
            None => std::future::pending().await,
        }
    };
    let over_control = async {
        let accept = || async { control.listener.accept().await.map(|(stream, _)| stream) };
        accept_all(&executor, accept, ADMIN_CONTROL_CONNECTIONS_MAX, &Access::Owner, &shared).await;
    };
    executor.run(smol::future::zip(over_tcp, over_control)).await;
}

async fn accept_all<S, F>(
    executor: &LocalExecutor<'_>,
    accept: impl Fn() -> F,
    connections_max: usize,
    access: &Access,
    shared: &Arc<Shared>,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    F: Future<Output = io::Result<S>>,
{
    let places = Arc::new(Semaphore::new(connections_max));
    let mut failing = false;
    loop {
        let place = places.acquire_arc().await;
        match accept().await {
            Ok(stream) => {
                failing = false;
                let (access, shared) = (access.clone(), Arc::clone(shared));
                let connection = async move {
                    connection(stream, access, shared).await;
                    drop(place);
                };
                executor.spawn(connection).detach();
            }
            Err(error) => {
                // No descriptors left, most likely: it passes. Said once until it does.
                if !failing {
                    ::log::warn!(target: "admin", "cannot accept connections: {error}; trying again");
                }
                failing = true;
                Timer::after(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S, access: Access, shared: Arc<Shared>) {
    let service = service_fn(|request| {
        let (access, shared) = (&access, &shared);
        async move { Ok::<_, Infallible>(routes::answer_to(request, access, shared).await) }
    });
    let served = http1::Builder::new()
        .timer(SmolTimer::new())
        .header_read_timeout(Duration::from_secs(ADMIN_HEADER_SECONDS))
        .max_buf_size(ADMIN_HEADER_BYTES_MAX)
        .max_headers(ADMIN_HEADERS_MAX)
        .serve_connection(FuturesIo::new(StallGuard { stream, deadline: None }), service);
    if let Err(error) = served.await {
        ::log::debug!(target: "admin", "connection ended: {error}");
    }
}

/// A stream whose writes fail when they made no progress for [`ADMIN_WRITE_STALL_SECONDS`]: hyper has no time-out of its own there.
#[derive(Debug)]
struct StallGuard<S> {
    stream: S,
    deadline: Option<Timer>,
}

impl<S> StallGuard<S> {
    fn guarded<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.deadline = None;
            return progress;
        }
        let after = Duration::from_secs(ADMIN_WRITE_STALL_SECONDS);
        let deadline = self.deadline.get_or_insert_with(|| Timer::after(after));
        match Pin::new(deadline).poll(cx) {
            Poll::Ready(_) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, buffer);
        self.guarded(cx, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(cx);
        self.guarded(cx, progress)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_close(cx);
        self.guarded(cx, progress)
    }
}
