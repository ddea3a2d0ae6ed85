//! The link: a TCP proxy that can be cut and mended. While it is cut, what is open is reset and what comes is refused.

use crate::limits::DEMO_LINK_CONNECTIONS_MAX;
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The link. Dropping it cuts it for good.
#[derive(Debug)]
pub struct Cutter {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    cut: AtomicBool,
    gone: AtomicBool,
    /// Bytes that went towards the target.
    bytes: AtomicU64,
    open: Mutex<Vec<(u64, TcpStream, TcpStream)>>,
    next: AtomicU64,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Vec<(u64, TcpStream, TcpStream)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cutter {
    /// A whole link to `target`, on a port of its own.
    pub fn new(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            cut: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            open: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().name("link".into()).spawn(move || accept(&listener, &accepting))?;
        Ok(Self { shared, address })
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that went through it towards the target.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(SeqCst)
    }

    /// Cuts it.
    pub fn cut(&self) {
        self.shared.cut.store(true, SeqCst);
        for (_, near, far) in self.shared.open().drain(..) {
            reset(&near);
            reset(&far);
        }
    }

    /// Mends it.
    pub fn mend(&self) {
        self.shared.cut.store(false, SeqCst);
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.gone.store(true, SeqCst);
        self.cut();
        // Wakes the accepting thread, which then sees that it is over.
        drop(TcpStream::connect_timeout(&self.address, Duration::from_secs(1)));
    }
}

fn reset(stream: &TcpStream) {
    // With a linger of zero the close is a reset, as when a cable is gone and the other side gives up. If it fails, it was gone.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Both);
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((near, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        if shared.gone.load(SeqCst) {
            return;
        }
        let full = shared.open().len() >= DEMO_LINK_CONNECTIONS_MAX;
        if shared.cut.load(SeqCst) || full || connect(near, shared).is_err() {
            // Whoever came was reset, or sees the end as its stream is dropped.
            continue;
        }
    }
}

fn connect(near: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let far = TcpStream::connect_timeout(&shared.target, Duration::from_secs(2)).inspect_err(|_| reset(&near))?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let number = shared.next.fetch_add(1, SeqCst);
    let (near_read, far_read) = (near.try_clone()?, far.try_clone()?);
    let (near_write, far_write) = (near.try_clone()?, far.try_clone()?);
    {
        let mut open = shared.open();
        // Looked at under the lock: a cut in between has either seen this connection or is seen here.
        if shared.cut.load(SeqCst) {
            reset(&near);
            reset(&far);
            return Ok(());
        }
        open.push((number, near, far));
    }
    let (up, down) = (Arc::clone(shared), Arc::clone(shared));
    thread::Builder::new().name("link up".into()).spawn(move || copy(near_read, far_write, number, &up, true))?;
    thread::Builder::new().name("link down".into()).spawn(move || copy(far_read, near_write, number, &down, false))?;
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, number: u64, shared: &Shared, up: bool) {
    let mut buffer = [0u8; 16 << 10];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(read) if read > 0 => read,
            _ => break,
        };
        let Some(bytes) = buffer.get(..read) else { break };
        if to.write_all(bytes).is_err() {
            break;
        }
        if up {
            shared.bytes.fetch_add(read as u64, SeqCst);
        }
    }
    // One direction is over: so is the connection.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    shared.open().retain(|(other, _, _)| *other != number);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok(read) = stream.read(&mut buffer) {
                        if read == 0 || stream.write_all(&buffer[..read]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        address
    }

    fn ask(stream: &mut TcpStream) -> io::Result<[u8; 4]> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"ping")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn a_cut_link_breaks_what_is_open_and_refuses_what_comes_until_it_is_mended() {
        let cutter = Cutter::new(echo()).unwrap();
        let mut before = TcpStream::connect(cutter.address()).unwrap();
        assert_eq!(ask(&mut before).unwrap(), *b"ping");
        assert_eq!(cutter.bytes(), 4);
        cutter.cut();
        assert!(ask(&mut before).is_err());
        let during = TcpStream::connect(cutter.address()).and_then(|mut stream| ask(&mut stream));
        assert!(during.is_err());
        cutter.mend();
        let mut after = TcpStream::connect(cutter.address()).unwrap();
        assert_eq!(ask(&mut after).unwrap(), *b"ping");
    }

    #[test]
    fn a_link_to_nowhere_refuses() {
        let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let cutter = Cutter::new(nowhere).unwrap();
        assert!(ask(&mut TcpStream::connect(cutter.address()).unwrap()).is_err());
    }
}
