//! Listening sockets: bind with an error that says what to do, accept within bounds.

use super::reactor::{Reactor, Source};
use crate::limits::{LISTEN_BACKLOG, TCP_DEAD_NS};
use core::fmt;
use socket2::{Domain, Protocol, Socket as Raw, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// A listener that cannot be opened, in a sentence.
#[derive(Debug)]
pub struct BindError {
    /// The address wanted.
    pub address: SocketAddr,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: ", self.address)?;
        match self.error.kind() {
            io::ErrorKind::AddrInUse => f.write_str(
                "the port is taken by another program, perhaps another broker; stop that one or configure another port",
            ),
            io::ErrorKind::AddrNotAvailable => {
                f.write_str("no interface of this machine has that address; use one that `ip address` shows, or 0.0.0.0")
            }
            io::ErrorKind::PermissionDenied => f.write_str(
                "not permitted; ports below 1024 need CAP_NET_BIND_SERVICE, so choose a higher port or grant it in the unit",
            ),
            _ => self.error.fmt(f),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Opens a listening socket. `[::]` takes IPv4 as well unless `only_v6`. Options set here are inherited by what is accepted:
/// no delay, keep-alive, and an end for peers that answer nothing.
pub fn bind(address: SocketAddr, only_v6: bool) -> Result<TcpListener, BindError> {
    let open = || {
        let raw = Raw::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        raw.set_reuse_address(true)?;
        if address.is_ipv6() {
            raw.set_only_v6(only_v6)?;
        }
        set_options(&raw)?;
        raw.bind(&address.into())?;
        raw.listen(LISTEN_BACKLOG)?;
        Ok(TcpListener::from(raw))
    };
    open().map_err(|error| BindError { address, error })
}

fn set_options(raw: &Raw) -> io::Result<()> {
    let dead = Duration::from_nanos(TCP_DEAD_NS);
    raw.set_tcp_nodelay(true)?;
    // Probes begin after half of the time and are repeated so that the other half is enough to give up.
    raw.set_tcp_keepalive(&TcpKeepalive::new().with_time(dead / 2).with_interval(dead / 6).with_retries(3))?;
    raw.set_tcp_user_timeout(Some(dead))
}

/// Counts connections against bounds: one for the listener, one for the process.
#[derive(Clone, Debug)]
pub struct Quota {
    counts: [(Arc<AtomicUsize>, usize); 2],
}

impl Quota {
    /// `of_process` is shared by all listeners.
    pub fn new(listener_max: usize, of_process: Arc<AtomicUsize>, process_max: usize) -> Self {
        Self { counts: [(Arc::default(), listener_max), (of_process, process_max)] }
    }

    /// A place for one more connection, if there is one.
    pub fn take(&self) -> Option<Permit> {
        let mut permit = Permit { held: heapless::Vec::new() };
        for (count, max) in &self.counts {
            count.try_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < *max).then_some(count + 1)).ok()?;
            let _ = permit.held.push(Arc::clone(count));
        }
        Some(permit)
    }
}

/// The place of one connection; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    held: heapless::Vec<Arc<AtomicUsize>, 2>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        for count in &self.held {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// An accepted connection on its way to its I/O thread.
#[derive(Debug)]
pub struct Incoming {
    /// The socket, non-blocking.
    pub stream: TcpStream,
    /// Who.
    pub peer: SocketAddr,
    /// Index of the listener in the settings.
    pub listener: u16,
    /// Its place.
    pub permit: Permit,
}

/// A listening socket on a reactor.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    source: Rc<Source>,
    reactor: Rc<Reactor>,
    index: u16,
    quota: Quota,
}

/// What came of one accept.
#[derive(Debug)]
pub enum Accepted {
    /// A connection.
    Connection(Incoming),
    /// A connection beyond the bounds: it was closed at once.
    Refused(SocketAddr),
}

impl Listener {
    /// Puts a listening socket on the reactor.
    pub fn new(socket: TcpListener, index: u16, quota: Quota, reactor: &Rc<Reactor>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let source = reactor.register(&socket, false)?;
        source.readable.set(true);
        Ok(Self { socket, source, reactor: Rc::clone(reactor), index, quota })
    }

    /// The next connection. An error is the process's trouble (no descriptors left): try again later.
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            if !self.source.readable.get() {
                return self.source.wait_readable(cx.waker());
            }
            match self.accept() {
                Ok(accepted) => return Poll::Ready(Ok(accepted)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.readable.set(false),
                // The peer gave up before it was accepted.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn accept(&self) -> io::Result<Accepted> {
        let (stream, peer) = self.socket.accept()?;
        let Some(permit) = self.quota.take() else { return Ok(Accepted::Refused(peer)) };
        stream.set_nonblocking(true)?;
        Ok(Accepted::Connection(Incoming { stream, peer, listener: self.index, permit }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.reactor.deregister(&self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_told_in_a_sentence_that_says_what_to_do() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, false).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("configure another port"), "{error}");
        drop(first);
        bind(address, false).unwrap();
    }

    #[test]
    fn an_address_of_another_machine_is_told_so() {
        let error = bind("192.0.2.1:1883".parse().unwrap(), false).unwrap_err().to_string();
        assert!(error.contains("no interface"), "{error}");
    }

    #[test]
    fn accepted_sockets_inherit_the_options() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        listener.set_nonblocking(false).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = Raw::from(listener.accept().unwrap().0);
        assert!(accepted.tcp_nodelay().unwrap() && accepted.keepalive().unwrap());
        assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(Duration::from_nanos(TCP_DEAD_NS)));
    }

    #[test]
    fn bounds_hold_per_listener_and_in_all_and_places_come_back() {
        let total = Arc::new(AtomicUsize::new(0));
        let (a, b) = (Quota::new(2, Arc::clone(&total), 3), Quota::new(2, Arc::clone(&total), 3));
        let first = (a.take().unwrap(), a.take().unwrap());
        assert!(a.take().is_none());
        let second = b.take().unwrap();
        assert!(b.take().is_none());
        drop(first);
        let third = (b.take().unwrap(), a.take().unwrap());
        assert_eq!(total.load(Ordering::Relaxed), 3);
        drop((second, third));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
