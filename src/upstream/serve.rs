//! An established connection. Each turn takes the orders that wait, encodes, writes once and reads what is there; the timers find
//! what does not end by itself: a peer that is silent, that never acknowledges, that does not read.

use super::connect::{Transport, within, words};
use super::mqtt::{DriverConfig, ordered};
use super::wire::{self, Incoming};
use crate::limits::UPSTREAM_OUT_HIGH;
use crate::mqtt::{Publish, Reason};
use crate::replication::link::{DownKind, LinkAck, LinkAckKind, LinkDown, LinkEvent, LinkOrder};
use bytes::{Buf, BytesMut};
use smol::channel::Receiver;
use smol::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use smol::stream::Stream;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ_BYTES: usize = 32 << 10;
/// Turns without giving others the thread.
const TURNS_MAX: usize = 16;
/// For the last bytes of an orderly end.
const GOODBYE: Duration = Duration::from_secs(1);

/// How a connection ended.
pub(super) enum Ended {
    /// So.
    Down(LinkDown),
    /// The orders' channel was closed: the process ends.
    Finished,
}

/// What waits to be encoded, in order.
enum Waiting {
    Publish(Publish),
    Release(u16),
}

/// What a turn came to.
enum Turn {
    Ended(LinkDown),
    /// Told to close: in order or at once.
    Close {
        graceful: bool,
    },
    Finished,
}

pub(super) struct Serve<'a, E: Fn(LinkEvent)> {
    config: &'a DriverConfig,
    stream: Box<dyn Transport>,
    emit: &'a E,
    retain_available: bool,
    keep_alive: Duration,
    input: BytesMut,
    out: BytesMut,
    waiting: VecDeque<Waiting>,
    acks: Vec<LinkAck>,
    /// Acknowledgements that are due.
    due: usize,
    /// PUBLISHes on the wire without any answer: what a 3.1.1 peer may have closed at.
    unanswered: usize,
    sent_bytes: u64,
    pinged: bool,
    last_in: Instant,
    last_out: Instant,
    last_ack: Instant,
    /// Writing failed; what the peer said before may still be read.
    broken: Option<Error>,
    buffer: Vec<u8>,
}

impl<'a, E: Fn(LinkEvent)> Serve<'a, E> {
    pub(super) fn new(
        config: &'a DriverConfig,
        stream: Box<dyn Transport>,
        input: BytesMut,
        accepted: &wire::Accepted,
        emit: &'a E,
    ) -> Self {
        let now = Instant::now();
        let keep_alive = accepted.keep_alive_s.map_or(config.keep_alive, |s| Duration::from_secs(u64::from(s)));
        Self {
            config,
            stream,
            emit,
            retain_available: accepted.retain_available,
            keep_alive,
            input,
            out: BytesMut::new(),
            waiting: VecDeque::new(),
            acks: Vec::new(),
            due: 0,
            unanswered: 0,
            sent_bytes: 0,
            pinged: false,
            last_in: now,
            last_out: now,
            last_ack: now,
            broken: None,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// Until the connection ends.
    pub(super) async fn run(mut self, orders: &Receiver<LinkOrder>) -> Ended {
        let turn = self.serve(orders).await;
        self.report();
        match turn {
            Turn::Ended(down) => Ended::Down(down),
            Turn::Close { graceful } => {
                self.close(graceful).await;
                Ended::Down(ordered())
            }
            Turn::Finished => {
                self.close(true).await;
                Ended::Finished
            }
        }
    }

    async fn serve(&mut self, orders: &Receiver<LinkOrder>) -> Turn {
        // What came together with CONNACK.
        if let Err(down) = self.take_in() {
            return Turn::Ended(down);
        }
        let mut orders = pin!(orders.clone());
        let mut timer = smol::Timer::at(self.deadline());
        let mut armed = self.deadline();
        poll_fn(|cx| {
            for _ in 0..TURNS_MAX {
                let now = Instant::now();
                match self.turn(cx, orders.as_mut(), now) {
                    Err(end) => return Poll::Ready(end),
                    Ok(true) => continue,
                    Ok(false) => {}
                }
                match self.on_time(now) {
                    Err(down) => return Poll::Ready(Turn::Ended(down)),
                    Ok(true) => continue,
                    Ok(false) => {}
                }
                // The timer is only set anew when something is due earlier than it fires: most turns only put deadlines off.
                let deadline = self.deadline();
                if deadline < armed || armed <= now {
                    armed = deadline;
                    timer.set_at(armed);
                }
                match Pin::new(&mut timer).poll_next(cx) {
                    Poll::Ready(_) => {
                        armed = now;
                        continue;
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// One turn; whether anything moved.
    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        orders: Pin<&mut Receiver<LinkOrder>>,
        now: Instant,
    ) -> Result<bool, Turn> {
        let mut moved = self.take_orders(cx, orders)?;
        self.encode(now).map_err(|reason| Turn::Ended(LinkDown { reason, kind: DownKind::Network }))?;
        moved |= self.write(cx, now);
        moved |= self.read(cx, now).map_err(Turn::Ended)?;
        Ok(moved)
    }

    /// Takes every order that waits: the window bounds what they hold.
    fn take_orders(&mut self, cx: &mut Context<'_>, mut orders: Pin<&mut Receiver<LinkOrder>>) -> Result<bool, Turn> {
        let mut moved = false;
        while let Poll::Ready(order) = orders.as_mut().poll_next(cx) {
            moved = true;
            match order {
                Some(LinkOrder::Publish(publishes)) => self.waiting.extend(publishes.into_iter().map(Waiting::Publish)),
                Some(LinkOrder::Release(ids)) => self.waiting.extend(ids.into_iter().map(Waiting::Release)),
                Some(LinkOrder::Disconnect { graceful }) => return Err(Turn::Close { graceful }),
                Some(LinkOrder::Connect { .. }) => {} // there is a connection
                None => return Err(Turn::Finished),
            }
        }
        Ok(moved)
    }

    fn encode(&mut self, now: Instant) -> Result<(), String> {
        while self.out.len() < UPSTREAM_OUT_HIGH {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if self.due == 0 {
                self.last_ack = now;
            }
            if self.out.is_empty() {
                self.last_out = now;
            }
            self.due += 1;
            match waiting {
                Waiting::Publish(publish) => {
                    self.unanswered += 1;
                    wire::write_publish(publish, self.config.v5, self.retain_available, &mut self.out)?;
                }
                Waiting::Release(id) => wire::write_pubrel(id, self.config.v5, &mut self.out)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut moved = false;
        while !self.out.is_empty() && self.broken.is_none() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.out) {
                Poll::Ready(Ok(0)) => self.broken = Some(ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.out.advance(count);
                    self.sent_bytes += count as u64;
                    self.last_out = now;
                    moved = true;
                }
                Poll::Ready(Err(error)) => self.broken = Some(error),
                Poll::Pending => break,
            }
        }
        // TLS keeps records of its own; for TCP this does nothing.
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_flush(cx) {
            self.broken.get_or_insert(error);
        }
        moved
    }

    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<bool, LinkDown> {
        match Pin::new(&mut self.stream).poll_read(cx, &mut self.buffer) {
            Poll::Ready(Ok(0)) => Err(self.closed("closed by the peer".into())),
            Poll::Ready(Ok(count)) => {
                self.last_in = now;
                self.pinged = false;
                self.input.extend_from_slice(self.buffer.get(..count).unwrap_or_default());
                self.take_in()?;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(self.closed(words(&error))),
            Poll::Pending => match self.broken.take() {
                Some(error) => Err(self.closed(words(&error))),
                None => Ok(false),
            },
        }
    }

    /// The transport ended. A 3.1.1 peer refuses a record like this.
    fn closed(&self, reason: String) -> LinkDown {
        let at_a_record = !self.config.v5 && self.unanswered > 0;
        LinkDown { reason, kind: if at_a_record { DownKind::ClosedInFlight } else { DownKind::Network } }
    }

    /// Reads all whole frames, then hands the acknowledgements on together.
    fn take_in(&mut self) -> Result<(), LinkDown> {
        let result = self.take_frames();
        if !self.acks.is_empty() {
            self.last_ack = Instant::now();
            self.report();
        }
        result
    }

    fn take_frames(&mut self) -> Result<(), LinkDown> {
        let network = |reason| LinkDown { reason, kind: DownKind::Network };
        let mut at = 0;
        loop {
            let rest = self.input.get(at..).unwrap_or_default();
            let Some((header, length)) = wire::frame_len(rest).map_err(network)? else { break };
            let frame = rest.get(..length).unwrap_or_default();
            match wire::read(frame, header, self.config.v5).map_err(network)? {
                Incoming::Ack(ack) => {
                    if ack.reason.is_failure() && self.config.v5 && ack.kind != LinkAckKind::PubComp {
                        let text = wire::sentence(ack.reason, wire::ack_words(frame));
                        ::log::info!(target: "upstream", "{}: refuses packet {}: {text}", self.config.name, ack.packet_id);
                    }
                    self.due = self.due.saturating_sub(1);
                    if ack.kind != LinkAckKind::PubComp {
                        self.unanswered = self.unanswered.saturating_sub(1);
                    }
                    self.acks.push(ack);
                }
                Incoming::Disconnect(reason, words) => return Err(said_goodbye(reason, words)),
                Incoming::Other => {}
            }
            at += length;
        }
        self.input.advance(at);
        Ok(())
    }

    /// Tells the core what was sent and acknowledged.
    fn report(&mut self) {
        if self.sent_bytes > 0 {
            (self.emit)(LinkEvent::Sent { bytes: std::mem::take(&mut self.sent_bytes) });
        }
        if !self.acks.is_empty() {
            (self.emit)(LinkEvent::Acks(std::mem::take(&mut self.acks)));
        }
    }

    /// Silence is noticed after one and a half times the keep-alive, as a server does [MQTT-3.1.2-24].
    fn silence(&self) -> Duration {
        self.keep_alive + self.keep_alive / 2
    }

    fn deadline(&self) -> Instant {
        let mut at = Instant::now() + Duration::from_secs(3600);
        if !self.keep_alive.is_zero() {
            at = at.min(self.last_in + self.silence());
            if !self.pinged {
                at = at.min(self.last_in.min(self.last_out) + self.keep_alive / 4 * 3);
            }
        }
        if self.due > 0 {
            at = at.min(self.last_ack + self.config.ack_timeout);
        }
        if !self.out.is_empty() {
            at = at.min(self.last_out + self.config.write_timeout);
        }
        at
    }

    /// What is due by time: a ping (then there is something to write), or the end.
    fn on_time(&mut self, now: Instant) -> Result<bool, LinkDown> {
        let down = |reason| Err(LinkDown { reason, kind: DownKind::Network });
        if !self.out.is_empty() && now >= self.last_out + self.config.write_timeout {
            return down(format!("the peer took no byte for {:?}", self.config.write_timeout));
        }
        if self.due > 0 && now >= self.last_ack + self.config.ack_timeout {
            return down(format!("no acknowledgement for {:?}", self.config.ack_timeout));
        }
        if self.keep_alive.is_zero() {
            return Ok(false);
        }
        if now >= self.last_in + self.silence() {
            return down(format!("the peer was silent for {:?}", self.silence()));
        }
        if !self.pinged && now >= self.last_in.min(self.last_out) + self.keep_alive / 4 * 3 {
            if self.out.is_empty() {
                self.last_out = now;
            }
            self.pinged = true;
            return wire::write_ping(&mut self.out).map(|()| true).or_else(down);
        }
        Ok(false)
    }

    /// What is encoded goes out, then DISCONNECT; at once otherwise.
    async fn close(&mut self, graceful: bool) {
        let goodbye = async {
            if graceful && self.broken.is_none() && wire::write_disconnect(self.config.v5, &mut self.out).is_ok() {
                let _ = self.stream.write_all(&self.out).await;
            }
            let _ = self.stream.close().await;
        };
        within(GOODBYE, goodbye).await;
    }
}

/// DISCONNECT of a 5.0 peer: some reasons are a refusal of what we sent, one is an alarm.
fn said_goodbye(reason: Reason, words: Option<String>) -> LinkDown {
    let kind = match reason {
        Reason::SESSION_TAKEN_OVER => DownKind::TakenOver,
        Reason::NOT_AUTHORIZED
        | Reason::TOPIC_NAME_INVALID
        | Reason::PACKET_TOO_LARGE
        | Reason::PAYLOAD_FORMAT_INVALID
        | Reason::MALFORMED_PACKET
        | Reason::PROTOCOL_ERROR => DownKind::ClosedInFlight,
        _ => DownKind::Network,
    };
    LinkDown { reason: format!("the peer closed: {}", wire::sentence(reason, words)), kind }
}
