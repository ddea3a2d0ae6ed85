//! A link that can be cut: a TCP proxy between a gateway and its centre.

use super::ms;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A proxy on a port of its own.
#[derive(Debug)]
pub struct Cutter {
    /// Where the gateway connects.
    pub port: u16,
    link: Arc<Link>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Link {
    /// New connections are closed at once.
    refuses: AtomicBool,
    /// New connections are taken, and nothing ever comes through.
    swallows: AtomicBool,
    stopped: AtomicBool,
    /// Connections that came through.
    opened: AtomicU64,
    pairs: Mutex<Vec<Arc<Pair>>>,
}

#[derive(Debug)]
struct Pair {
    client: TcpStream,
    server: Option<TcpStream>,
    /// Whatever comes is thrown away and no end is passed on: the peer is gone and nobody said so.
    dead: AtomicBool,
}

impl Pair {
    fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

impl Cutter {
    /// To a port of this host. `port`: where it listens.
    pub fn new(port: u16, target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let link = Arc::new(Link::default());
        let shared = Arc::clone(&link);
        let acceptor = std::thread::spawn(move || accept(&listener, target, &shared));
        Self { port, link, acceptor: Some(acceptor) }
    }

    /// Ends every connection and refuses new ones.
    pub fn cut(&self) {
        self.link.refuses.store(true, Ordering::SeqCst);
        self.close_all();
    }

    /// Ends every connection; new ones come through.
    pub fn drop_connections(&self) {
        self.close_all();
    }

    /// From now on nothing comes through and nobody is told: no FIN, no reset. New connections are swallowed too.
    pub fn black_hole(&self) {
        self.link.swallows.store(true, Ordering::SeqCst);
        for pair in self.link.pairs.lock().unwrap().iter() {
            pair.dead.store(true, Ordering::SeqCst);
        }
    }

    /// New connections come through again. What fell into the black hole stays there.
    pub fn mend(&self) {
        self.link.refuses.store(false, Ordering::SeqCst);
        self.link.swallows.store(false, Ordering::SeqCst);
    }

    /// How many connections came through so far.
    pub fn opened(&self) -> u64 {
        self.link.opened.load(Ordering::SeqCst)
    }

    fn close_all(&self) {
        for pair in self.link.pairs.lock().unwrap().drain(..) {
            pair.close();
        }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.link.stopped.store(true, Ordering::SeqCst);
        self.close_all();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.close_all();
    }
}

fn accept(listener: &TcpListener, target: u16, link: &Arc<Link>) {
    while !link.stopped.load(Ordering::SeqCst) {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(_) => {
                std::thread::sleep(ms(2));
                continue;
            }
        };
        let _ = client.set_nonblocking(false);
        if link.refuses.load(Ordering::SeqCst) {
            continue;
        }
        let swallow = link.swallows.load(Ordering::SeqCst);
        let server = if swallow { None } else { TcpStream::connect(("127.0.0.1", target)).ok() };
        if server.is_none() && !swallow {
            continue;
        }
        link.opened.fetch_add(u64::from(!swallow), Ordering::SeqCst);
        let pair = Arc::new(Pair { client, server, dead: AtomicBool::new(swallow) });
        pipe(&pair, true);
        pipe(&pair, false);
        link.pairs.lock().unwrap().push(Arc::clone(&pair));
        // A cut that came just now must not miss this one.
        if link.refuses.load(Ordering::SeqCst) {
            pair.close();
        }
    }
}

/// Copies in one direction until an end.
fn pipe(pair: &Arc<Pair>, upwards: bool) {
    let (from, to) =
        if upwards { (Some(&pair.client), pair.server.as_ref()) } else { (pair.server.as_ref(), Some(&pair.client)) };
    let Some(mut from) = from.and_then(|stream| stream.try_clone().ok()) else { return };
    let mut to = to.and_then(|stream| stream.try_clone().ok());
    for stream in [Some(&from), to.as_ref()].into_iter().flatten() {
        let _ = stream.set_nodelay(true);
    }
    let pair = Arc::clone(pair);
    std::thread::spawn(move || {
        let mut chunk = vec![0_u8; 64 << 10];
        loop {
            let read = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if pair.dead.load(Ordering::SeqCst) {
                continue;
            }
            let written = to.as_mut().map(|to| to.write_all(&chunk[..read]));
            if !matches!(written, Some(Ok(()))) {
                break;
            }
        }
        if !pair.dead.load(Ordering::SeqCst) {
            pair.close();
        }
    });
}
