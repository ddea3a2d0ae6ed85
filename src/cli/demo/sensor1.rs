//! Sensors that publish at QoS 1, over rumqttc's event loop with MQTT 5.
//!
//! A lost connection is forgotten whole, with its client; what was not acknowledged is sent again in order over the next one, as a
//! new PUBLISH, which is what *republished* counts.

use super::super::mqtt::{self, Client, Events, Options, Outgoing, Seen};
use super::ledger::{Ledger, Sensor};
use super::readings;
use super::stage::{Address, look_up};
use crate::limits::DEMO_WINDOW;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between looking for readings that are due.
const PUMP: Duration = Duration::from_millis(5);
/// Between connections.
const PAUSE: Duration = Duration::from_millis(50);

/// What of one sensor's readings is under way.
#[derive(Default)]
struct Window {
    /// While connected.
    client: Option<Client>,
    /// To be sent again, in order.
    again: VecDeque<u64>,
    /// Handed to the event loop, which has not said yet that it left.
    handed: VecDeque<u64>,
    /// Left, by packet id.
    open: BTreeMap<u16, u64>,
    /// The next reading that was never handed over.
    next: u64,
}

impl Window {
    /// The next reading to hand over, if the window has room.
    fn take(&mut self, due: u64) -> Option<u64> {
        if self.client.is_none() || self.handed.len() + self.open.len() >= DEMO_WINDOW {
            return None;
        }
        let number = self.again.pop_front().or_else(|| {
            let number = self.next;
            (number < due).then(|| {
                self.next += 1;
                number
            })
        })?;
        self.handed.push_back(number);
        Some(number)
    }

    /// The connection is gone: all that is not acknowledged is to be sent again.
    fn lose(&mut self) {
        self.client = None;
        let open = std::mem::take(&mut self.open).into_values();
        let all: BTreeSet<u64> = open.chain(self.handed.drain(..)).chain(self.again.drain(..)).collect();
        self.again = all.into_iter().collect();
    }
}

/// The sensors while they run.
pub struct Sensors {
    windows: Arc<Vec<Mutex<Window>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn lock(window: &Mutex<Window>) -> MutexGuard<'_, Window> {
    window.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sensors {
    /// Starts all of the ledger that publish at QoS 1.
    pub fn start(ledger: &Arc<Ledger>, gateway: &Address) -> std::io::Result<Self> {
        let windows: Arc<Vec<_>> = Arc::new(ledger.sensors.iter().map(|_| Mutex::default()).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for index in (0..).zip(&ledger.sensors).filter(|(_, sensor)| sensor.qos == 1).map(|(index, _)| index) {
            let (ledger, windows, stop, gateway) =
                (Arc::clone(ledger), Arc::clone(&windows), Arc::clone(&stop), Address::clone(gateway));
            threads.push(thread::Builder::new().name("sensor".into()).spawn(move || {
                if let (Some(sensor), Some(window)) = (ledger.sensors.get(index), windows.get(index)) {
                    live(sensor, window, &gateway, &stop);
                }
            })?);
        }
        let pump_of = (Arc::clone(ledger), Arc::clone(&windows), Arc::clone(&stop));
        threads.push(thread::Builder::new().name("readings".into()).spawn(move || {
            let (ledger, windows, stop) = pump_of;
            pump(&ledger, &windows, &stop);
        })?);
        Ok(Self { windows, stop, threads })
    }

    /// Ends them: DISCONNECT where there is a connection.
    pub fn stop(self) {
        self.stop.store(true, SeqCst);
        for window in self.windows.iter() {
            if let Some(client) = lock(window).client.take() {
                client.disconnect();
            }
        }
        for thread in self.threads {
            // A panic of one has been told on stderr.
            let _ = thread.join();
        }
    }
}

/// Hands over what is due, for all sensors.
fn pump(ledger: &Ledger, windows: &[Mutex<Window>], stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        for (sensor, window) in ledger.sensors.iter().zip(windows).filter(|(sensor, _)| sensor.qos == 1) {
            let mut window = lock(window);
            while let Some(number) = window.take(sensor.due()) {
                let message = Outgoing {
                    topic: readings::topic(&sensor.name, 1),
                    payload: readings::payload(&sensor.name, 1, number).into(),
                    qos: 1,
                    retain: false,
                    acks: None,
                };
                // The queue holds a whole window, so this never waits; an error says that the connection is gone.
                if window.client.as_ref().is_some_and(|client| client.publish(message).is_err()) {
                    window.lose();
                }
            }
        }
        thread::sleep(PUMP);
    }
}

/// One connection after the other.
fn live(sensor: &Sensor, window: &Mutex<Window>, gateway: &Address, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        if let Some(address) = look_up(gateway) {
            let (client, mut events) = mqtt::client(&options(sensor, address), 2 * DEMO_WINDOW);
            let trouble = connection(sensor, window, client, &mut events);
            for seen in events.rest() {
                note(sensor, window, &seen);
            }
            lock(window).lose();
            sensor.book().trouble = Some(trouble);
        }
        thread::sleep(PAUSE);
    }
}

fn options(sensor: &Sensor, address: SocketAddr) -> Options {
    Options {
        host: address.ip().to_string(),
        port: address.port(),
        client_id: sensor.name.clone(),
        login: None,
        keep_alive_s: 5,
        clean: true,
        session_expiry_s: None,
        v5: true,
        inflight: DEMO_WINDOW as u16,
        manual_acks: false,
        tls: None,
    }
}

/// Until it ends; returns why.
fn connection(sensor: &Sensor, window: &Mutex<Window>, client: Client, events: &mut Events) -> String {
    // Kept here only until CONNACK; from then on the window has it, and whoever ends the demo takes it from there.
    let mut waiting = Some(client);
    loop {
        match events.wait() {
            None => return "ended".into(),
            Some(Err(trouble)) => return trouble.0,
            Some(Ok(Seen::Connected)) => {
                lock(window).client = waiting.take();
                let mut book = sensor.book();
                book.connected = true;
                book.trouble = None;
            }
            Some(Ok(Seen::Disconnected)) => return "ended".into(),
            Some(Ok(Seen::Ended(reason))) => return reason,
            Some(Ok(seen)) => note(sensor, window, &seen),
        }
    }
}

fn note(sensor: &Sensor, window: &Mutex<Window>, seen: &Seen) {
    let mut window = lock(window);
    match seen {
        Seen::Sent(id) => {
            if let Some(number) = window.handed.pop_front() {
                window.open.insert(*id, number);
                sensor.book().sent(number);
            }
        }
        Seen::Acked(id) => {
            if let Some(number) = window.open.remove(id) {
                sensor.book().acknowledged(number);
            }
        }
        Seen::Refused(id, reason) if window.open.remove(id).is_some() => {
            let mut book = sensor.book();
            book.refused += 1;
            book.trouble = Some(reason.clone());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> Window {
        let (client, _events) = mqtt::client(&options(&Ledger::new(1).sensors[0], "127.0.0.1:1".parse().unwrap()), 8);
        Window { client: Some(client), ..Window::default() }
    }

    #[test]
    fn a_window_takes_what_is_due_and_no_more_than_it_holds() {
        let mut window = connected();
        let taken: Vec<u64> = std::iter::from_fn(|| window.take(3)).collect();
        assert_eq!(taken, [0, 1, 2]);
        let taken = std::iter::from_fn(|| window.take(1_000)).count();
        assert_eq!(taken, DEMO_WINDOW - 3);
    }

    #[test]
    fn what_is_not_acknowledged_is_sent_again_in_order_before_anything_new() {
        let mut window = connected();
        while window.take(4).is_some() {}
        // 0 and 1 left, 0 was acknowledged; 2 and 3 are still with the event loop.
        let handed: Vec<u64> = window.handed.drain(..2).collect();
        window.open.insert(2, handed[1]);
        window.lose();
        assert!(window.take(9).is_none(), "not connected");
        window.client = connected().client;
        let taken: Vec<u64> = std::iter::from_fn(|| window.take(6)).collect();
        assert_eq!(taken, [1, 2, 3, 4, 5]);
    }
}
