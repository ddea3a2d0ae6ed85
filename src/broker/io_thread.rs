//! An I/O thread: turn after turn, sockets in, engine, sockets out.

use super::clock;
use super::hub::{Hub, report};
use crate::engine::io::{Input, Output, Outputs};
use crate::limits::{IDLE_TICK_NS, OUTPUTS_KEPT_MAX, TICK_NS, UNSENT_AT_STOP_NS};
use crate::mqtt::Packet;
use crate::net::Network;
use crate::types::Seq;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Nanoseconds without work after which ticks get rarer.
const IDLE_AFTER_NS: u64 = 1_000_000_000;

/// Answers of one turn that wait for the same frame: for the histogram of their times.
#[derive(Debug)]
struct Waiting {
    gate: Seq,
    since_ns: u64,
    count: u64,
}

/// An I/O thread.
pub(super) struct IoThread<M> {
    pub(super) index: usize,
    pub(super) network: Network,
    pub(super) hub: Arc<Hub>,
    /// Gets the microseconds that answers waited, and their number.
    pub(super) measure: M,
}

/// What a thread keeps from turn to turn.
#[derive(Default)]
struct Rounds {
    outputs: Outputs,
    foreign: Outputs,
    next_tick_ns: u64,
    last_work_ns: u64,
    next_thread: usize,
    waiting: VecDeque<Waiting>,
    stopped_listening: bool,
}

impl<M: Fn(u64, u64)> IoThread<M> {
    /// Serves until the process is to end.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut rounds = Rounds::default();
        while !self.hub.is_quitting() {
            let timeout_ns = rounds.next_tick_ns.saturating_sub(clock::mono_ns());
            if self.hub.is_crowded(self.index) {
                self.network.pause(timeout_ns.min(TICK_NS / 10), clock::mono_ns)?;
            } else {
                self.network.wait(timeout_ns, clock::mono_ns)?;
            }
            self.place(&mut rounds);
            self.turn(&mut rounds);
        }
        self.send_rest()
    }

    /// Finds a thread for each new connection, in turn, and serves those that are this one's.
    fn place(&mut self, rounds: &mut Rounds) {
        if self.hub.is_stopping() && !std::mem::replace(&mut rounds.stopped_listening, true) {
            self.network.stop_listening();
        }
        for incoming in self.network.accepted() {
            let thread = rounds.next_thread % self.hub.io_threads().max(1);
            rounds.next_thread = thread + 1;
            if thread == self.index { self.adopt(incoming) } else { self.hub.give(thread, incoming) }
        }
        if self.hub.io_threads() > 1 {
            self.hub.given(self.index).into_iter().for_each(|incoming| self.adopt(incoming));
        }
    }

    fn adopt(&mut self, incoming: crate::net::Incoming) {
        let peer = incoming.peer;
        if let Err(error) = self.network.adopt(incoming) {
            ::log::error!(target: "broker", "connection of {peer} cannot be served: {error}");
        }
    }

    fn turn(&mut self, rounds: &mut Rounds) {
        let now = clock::now();
        let ticks = now.mono_ns >= rounds.next_tick_ns;
        let Rounds { outputs, foreign, .. } = rounds;
        let network = &mut self.network;
        self.hub.turn(self.index, now, foreign, outputs, |step| {
            network.inputs(&mut *step);
            if ticks {
                step(Input::Tick);
            }
        });
        if !outputs.is_empty() || !foreign.is_empty() {
            rounds.last_work_ns = now.mono_ns;
        }
        if ticks {
            let idle = now.mono_ns.saturating_sub(rounds.last_work_ns) > IDLE_AFTER_NS;
            rounds.next_tick_ns = now.mono_ns.saturating_add(if idle { IDLE_TICK_NS } else { TICK_NS });
            self.network.tick();
        }
        self.apply(rounds, now.mono_ns);
        self.release(rounds, now.mono_ns);
        self.network.flush();
    }

    fn apply(&mut self, rounds: &mut Rounds, now_ns: u64) {
        let (mut gate, mut count) = (0, 0);
        // What others left was made before what this turn made.
        for output in rounds.foreign.drain(..).chain(rounds.outputs.drain(..)) {
            if let Output::Ack { packet: Packet::PubAck(_) | Packet::PubRec(_), gate: waits_for, .. } = &output
                && *waits_for > 0
            {
                gate = gate.max(*waits_for);
                count += 1;
            }
            match self.network.apply(output) {
                Some(Output::Wake { at_ns }) => rounds.next_tick_ns = rounds.next_tick_ns.min(at_ns),
                Some(Output::Event(event)) => report(&event),
                _ => {}
            }
        }
        rounds.outputs.shrink_to(OUTPUTS_KEPT_MAX);
        rounds.foreign.shrink_to(OUTPUTS_KEPT_MAX);
        if count > 0 {
            rounds.waiting.push_back(Waiting { gate, since_ns: now_ns, count });
        }
    }

    fn release(&mut self, rounds: &mut Rounds, now_ns: u64) {
        let committed = self.hub.committed();
        self.network.release(committed);
        while let Some(waited) = rounds.waiting.pop_front_if(|waiting| waiting.gate <= committed) {
            (self.measure)(now_ns.saturating_sub(waited.since_ns) / 1_000, waited.count);
        }
    }

    /// Lets the last bytes leave, for a moment.
    fn send_rest(&mut self) -> io::Result<()> {
        let until_ns = clock::mono_ns().saturating_add(UNSENT_AT_STOP_NS);
        while self.network.has_unsent() && clock::mono_ns() < until_ns {
            self.network.wait(TICK_NS, clock::mono_ns)?;
            self.network.inputs(|_| {});
            self.network.flush();
        }
        Ok(())
    }
}
