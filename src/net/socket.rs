//! A non-blocking TCP socket on the thread's [`Reactor`], as `AsyncRead + AsyncWrite`, so that TLS and WebSocket can be put on top.

use super::reactor::{Reactor, Source};
use smol::io::{AsyncRead, AsyncWrite};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// A TCP connection of this I/O thread.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    source: Rc<Source>,
    reactor: Rc<Reactor>,
}

impl Socket {
    /// Takes a connected, non-blocking stream.
    pub fn new(stream: TcpStream, reactor: &Rc<Reactor>) -> io::Result<Self> {
        let source = reactor.register(&stream, true)?;
        Ok(Self { stream, source, reactor: Rc::clone(reactor) })
    }

    /// Says that nothing more will be written; what is in the kernel's buffer still leaves.
    pub fn shutdown_write(&self) {
        // It fails only if the connection is gone, which the next read says.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn poll_writing(
        &self,
        cx: &Context<'_>,
        bytes: usize,
        write: impl Fn() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if !self.source.writable.get() {
                return self.source.wait_writable(cx.waker());
            }
            match write() {
                Ok(written) => {
                    // A short write has filled the kernel's buffer: the next one would be refused.
                    if written < bytes {
                        self.source.writable.set(false);
                    }
                    return Poll::Ready(Ok(written));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.writable.set(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.reactor.deregister(&self.source);
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if !self.source.readable.get() {
                return self.source.wait_readable(cx.waker());
            }
            match (&self.stream).read(buffer) {
                Ok(read) => {
                    // A short read has emptied the kernel's buffer: wait for the next edge. After a full one there may be more.
                    if read < buffer.len() && !self.source.hung_up.get() {
                        self.source.readable.set(false);
                    }
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.readable.set(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, bytes.len(), || (&self.stream).write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match slices {
            [only] => self.poll_write(cx, only),
            _ => {
                let bytes = slices.iter().map(|slice| slice.len()).sum();
                self.poll_writing(cx, bytes, || (&self.stream).write_vectored(slices))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        self.shutdown_write();
        Poll::Ready(Ok(()))
    }
}
