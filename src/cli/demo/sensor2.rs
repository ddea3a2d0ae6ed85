//! Sensors that publish at QoS 2 and want each reading there exactly once, over the gateway's death too.
//!
//! rumqttc's event loop cannot do that, so the upstream's driver carries them (as MQTT 3.1.1, with a session that is kept): it says
//! what was acknowledged, and sends PUBREL when told to. The hand-shakes are kept here. The sensor itself does not die, so its
//! memory is what a durable store would be elsewhere.

use super::ledger::{Ledger, Sensor};
use super::readings;
use super::stage::{Address, look_up};
use crate::limits::DEMO_WINDOW;
use crate::mqtt::{Publish, QoS, Text};
use crate::replication::link::{LinkAck, LinkAckKind, LinkEvent, LinkOrder};
use crate::upstream::{self, DriverConfig};
use smol::channel::{Receiver, Sender};
use smol::{LocalExecutor, Timer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between looking for readings that are due.
const PUMP: Duration = Duration::from_millis(5);
/// Between connections.
const PAUSE: Duration = Duration::from_millis(50);
/// Packet identifiers, which follow from a reading's number.
const IDS: u64 = 65_535;

/// How far a reading's hand-shake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// PUBLISH left, no PUBREC yet.
    Sent,
    /// PUBREC came: from here on only PUBREL may be sent.
    Released,
}

/// What of one sensor's readings is under way, in order.
#[derive(Debug, Default)]
struct Handshakes {
    open: BTreeMap<u64, Phase>,
    /// The next reading that was never sent.
    next: u64,
    window: usize,
}

impl Handshakes {
    fn packet_id(number: u64) -> u16 {
        (1 + number % IDS) as u16
    }

    /// The open reading of a packet id: the window is far smaller than the identifiers are many.
    fn number(&self, packet_id: u16) -> Option<u64> {
        self.open.keys().copied().find(|number| Self::packet_id(*number) == packet_id)
    }

    fn publish(sensor: &Sensor, number: u64, dup: bool) -> Publish {
        Publish {
            dup,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: Text::from(readings::topic(&sensor.name, 2)),
            packet_id: Self::packet_id(number),
            properties: None,
            payload: readings::payload(&sensor.name, 2, number).into(),
        }
    }

    /// What a new connection begins with.
    fn up(&mut self, sensor: &Sensor, session_present: bool, receive_maximum: u16) -> Vec<LinkOrder> {
        self.window = DEMO_WINDOW.min(receive_maximum.into());
        if !session_present {
            // The gateway knows nothing of us. What it had received, it had stored before its PUBREC: that is done.
            self.open.retain(|_, phase| *phase == Phase::Sent);
        }
        let of =
            |wanted: Phase| self.open.iter().filter(move |(_, phase)| **phase == wanted).map(|(number, _)| *number);
        let released: Vec<u16> = of(Phase::Released).map(Self::packet_id).collect();
        let sent: Vec<Publish> = of(Phase::Sent).map(|number| Self::publish(sensor, number, session_present)).collect();
        let mut orders = Vec::new();
        if !released.is_empty() {
            orders.push(LinkOrder::Release(released));
        }
        if !sent.is_empty() {
            orders.push(LinkOrder::Publish(sent));
        }
        orders
    }

    /// What is due and fits into the window.
    fn due(&mut self, sensor: &Sensor) -> Option<LinkOrder> {
        let room = self.window.saturating_sub(self.open.len()) as u64;
        let until = sensor.due().min(self.next + room);
        let fresh: Vec<Publish> = (self.next..until).map(|number| Self::publish(sensor, number, false)).collect();
        for number in self.next..until {
            self.open.insert(number, Phase::Sent);
            sensor.book().sent(number);
        }
        self.next = self.next.max(until);
        (!fresh.is_empty()).then_some(LinkOrder::Publish(fresh))
    }

    /// What acknowledgements ask for.
    fn acks(&mut self, sensor: &Sensor, acks: &[LinkAck]) -> Option<LinkOrder> {
        let mut release = Vec::new();
        for ack in acks {
            let Some(number) = self.number(ack.packet_id) else { continue };
            match ack.kind {
                LinkAckKind::PubRec if ack.reason.is_failure() => {
                    self.open.remove(&number);
                    let mut book = sensor.book();
                    book.refused += 1;
                    book.trouble = Some(format!("a reading was refused, code {:#04x}", ack.reason.0));
                }
                LinkAckKind::PubRec => {
                    self.open.insert(number, Phase::Released);
                    sensor.book().acknowledged(number);
                    release.push(ack.packet_id);
                }
                LinkAckKind::PubComp => {
                    self.open.remove(&number);
                }
                LinkAckKind::PubAck => {}
            }
        }
        (!release.is_empty()).then_some(LinkOrder::Release(release))
    }
}

/// The sensors while they run: all in one thread.
pub struct Sensors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sensors {
    /// Starts all of the ledger that publish at QoS 2.
    pub fn start(ledger: &Arc<Ledger>, gateway: &Address) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ledger, gateway, stopping) = (Arc::clone(ledger), Address::clone(gateway), Arc::clone(&stop));
        let body = move || {
            let executor = LocalExecutor::new();
            let sensors = ledger.sensors.iter().filter(|sensor| sensor.qos == 2);
            let tasks: Vec<_> = sensors.map(|sensor| executor.spawn(live(sensor, &gateway, &stopping))).collect();
            smol::block_on(executor.run(async {
                for task in tasks {
                    task.await;
                }
            }));
        };
        Ok(Self { stop, thread: thread::Builder::new().name("sensors".into()).spawn(body)? })
    }

    /// Ends them.
    pub fn stop(self) {
        self.stop.store(true, SeqCst);
        // A panic has been told on stderr.
        let _ = self.thread.join();
    }
}

/// One connection after the other.
async fn live(sensor: &Sensor, gateway: &Address, stop: &AtomicBool) {
    let mut handshakes = Handshakes::default();
    while !stop.load(SeqCst) {
        if let Some(address) = look_up(gateway) {
            let (orders, ordered) = smol::channel::unbounded();
            let (happened, events) = smol::channel::unbounded();
            let emit = move |event| {
                // Nobody listens only when the connection is being given up.
                let _ = happened.try_send(event);
            };
            let driver = async {
                upstream::run(config(sensor, address), ordered, emit).await;
                None
            };
            let sensing = async { Some(connection(sensor, &mut handshakes, &orders, &events, stop).await) };
            let trouble = smol::future::or(sensing, driver).await;
            sensor.book().trouble = Some(trouble.flatten().unwrap_or_else(|| "ended".into()));
        }
        Timer::after(PAUSE).await;
    }
}

fn config(sensor: &Sensor, address: SocketAddr) -> DriverConfig {
    DriverConfig {
        name: sensor.name.clone(),
        host: address.ip().to_string(),
        port: address.port(),
        v5: false,
        qos: 2,
        client_id: sensor.name.clone(),
        forwarder: String::new(),
        username: None,
        password_file: None,
        tls: None,
        keep_alive: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        ack_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(10),
    }
}

/// Until it ends; returns why, or `None` when the demo is over.
async fn connection(
    sensor: &Sensor,
    handshakes: &mut Handshakes,
    orders: &Sender<LinkOrder>,
    events: &Receiver<LinkEvent>,
    stop: &AtomicBool,
) -> Option<String> {
    // The channel is unbounded and its other end lives as long as this does: sending neither waits nor fails.
    let order = |order: LinkOrder| drop(orders.try_send(order));
    order(LinkOrder::Connect { clean_start: false });
    let mut up = false;
    let mut stopping = false;
    loop {
        let tick = async {
            Timer::after(PUMP).await;
            Ok(None)
        };
        let event = smol::future::or(async { events.recv().await.map(Some) }, tick).await.ok()?;
        match event {
            Some(LinkEvent::Up { session_present, receive_maximum, .. }) => {
                up = true;
                {
                    let mut book = sensor.book();
                    book.connected = true;
                    book.trouble = None;
                }
                handshakes.up(sensor, session_present, receive_maximum).into_iter().for_each(&order);
            }
            Some(LinkEvent::Acks(acks)) => handshakes.acks(sensor, &acks).into_iter().for_each(&order),
            Some(LinkEvent::Down(_)) if stopping => return None,
            Some(LinkEvent::Down(down)) => return Some(down.reason),
            Some(LinkEvent::Sent { .. }) | None => {}
        }
        if stop.load(SeqCst) && !stopping {
            stopping = true;
            order(LinkOrder::Disconnect { graceful: true });
        } else if up && !stopping {
            handshakes.due(sensor).into_iter().for_each(&order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::Reason;

    fn ack(kind: LinkAckKind, packet_id: u16) -> LinkAck {
        LinkAck { packet_id, kind, reason: Reason::SUCCESS }
    }

    fn ids(order: &LinkOrder) -> Vec<u16> {
        match order {
            LinkOrder::Publish(publishes) => publishes.iter().map(|publish| publish.packet_id).collect(),
            LinkOrder::Release(ids) => ids.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// A sensor with three readings sent: the first is done, the second received.
    fn under_way() -> (Ledger, Handshakes) {
        let ledger = Ledger::new(3);
        let sensor = &ledger.sensors[2];
        let mut handshakes = Handshakes::default();
        assert!(handshakes.up(sensor, false, 100).is_empty());
        sensor.take_until(3);
        assert_eq!(ids(&handshakes.due(sensor).unwrap()), [1, 2, 3]);
        let release = handshakes.acks(sensor, &[ack(LinkAckKind::PubRec, 1), ack(LinkAckKind::PubRec, 2)]).unwrap();
        assert_eq!(ids(&release), [1, 2]);
        assert!(handshakes.acks(sensor, &[ack(LinkAckKind::PubComp, 1)]).is_none());
        (ledger, handshakes)
    }

    #[test]
    fn what_was_received_is_only_ever_released_again() {
        let (ledger, mut handshakes) = under_way();
        let orders = handshakes.up(&ledger.sensors[2], true, 100);
        assert!(matches!(&orders[0], LinkOrder::Release(released) if *released == [2]), "{orders:?}");
        let LinkOrder::Publish(again) = &orders[1] else { panic!("{orders:?}") };
        assert_eq!((again.len(), again[0].packet_id, again[0].dup), (1, 3, true));
        assert_eq!(ledger.sensors[2].book().republished_count, 0);
    }

    #[test]
    fn a_session_that_is_gone_gets_what_it_had_not_received() {
        let (ledger, mut handshakes) = under_way();
        let orders = handshakes.up(&ledger.sensors[2], false, 100);
        assert_eq!(orders.len(), 1);
        let LinkOrder::Publish(again) = &orders[0] else { panic!("{orders:?}") };
        assert_eq!((again.len(), again[0].packet_id, again[0].dup), (1, 3, false));
    }

    #[test]
    fn a_reading_is_acknowledged_by_its_pubrec_and_the_window_counts_until_pubcomp() {
        let (ledger, mut handshakes) = under_way();
        let sensor = &ledger.sensors[2];
        assert_eq!(sensor.book().acked().collect::<Vec<_>>(), [0, 1]);
        sensor.take_until(10_000);
        assert_eq!(ids(&handshakes.due(sensor).unwrap()).len(), DEMO_WINDOW - 2);
        assert!(handshakes.due(sensor).is_none());
    }

    #[test]
    fn a_small_receive_maximum_is_kept() {
        let ledger = Ledger::new(3);
        let mut handshakes = Handshakes::default();
        handshakes.up(&ledger.sensors[2], false, 2);
        ledger.sensors[2].take_until(9);
        assert_eq!(ids(&handshakes.due(&ledger.sensors[2]).unwrap()), [1, 2]);
    }
}
