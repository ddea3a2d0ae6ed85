//! The MQTT driver: orders in, events out. It holds no state that outlives a connection.

use super::connect;
use super::serve::{Ended, Serve};
use crate::replication::link::{DownKind, LinkDown, LinkEvent, LinkOrder};
use crate::settings::{MqttUpstream, Upstream, UpstreamTls};
use smol::channel::Receiver;
use std::path::PathBuf;
use std::time::Duration;

/// What a driver needs to know.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Name of the upstream, for log lines.
    pub name: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// MQTT 5 if true, else 3.1.1.
    pub v5: bool,
    /// QoS of what will be sent, 1 or 2: a peer that takes less is refused at once.
    pub qos: u8,
    /// Client identifier; not empty, since the session is kept under it.
    pub client_id: String,
    /// Says in CONNECT (5.0) that this is a forwarding gateway, as `<gateway id>/<log id>`.
    pub forwarder: String,
    /// User name.
    pub username: Option<String>,
    /// File with the password; read at each connection.
    pub password_file: Option<PathBuf>,
    /// TLS; `None` is plain TCP.
    pub tls: Option<UpstreamTls>,
    /// Between pings; zero turns them off, and half-open links are then found by the other timers only.
    pub keep_alive: Duration,
    /// For each of name, TCP, TLS and CONNACK.
    pub connect_timeout: Duration,
    /// Without any acknowledgement while some are due.
    pub ack_timeout: Duration,
    /// Without a byte taken by the socket while some wait.
    pub write_timeout: Duration,
}

/// Without any acknowledgement while some are due. A Forebay upstream may hold an ack at -1 back for its own `ack_timeout` (30 s).
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
/// Without a byte taken by the socket while some wait.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl DriverConfig {
    /// From the settings. `client_id`: as configured or made from the gateway's id; `forwarder`: `<gateway id>/<log id>`.
    pub fn new(upstream: &Upstream, mqtt: &MqttUpstream, client_id: String, forwarder: String) -> Self {
        Self {
            name: upstream.name.clone(),
            host: mqtt.host.clone(),
            port: mqtt.port,
            v5: mqtt.v5,
            qos: mqtt.qos,
            client_id,
            forwarder,
            username: upstream.username.clone(),
            password_file: upstream.password_file.clone(),
            tls: upstream.tls.clone(),
            keep_alive: Duration::from_nanos(upstream.keep_alive_ns),
            connect_timeout: Duration::from_nanos(upstream.connect_timeout_ns),
            ack_timeout: ACK_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
        }
    }
}

/// Serves one upstream until the orders' channel is closed. Each [`LinkOrder::Connect`] is answered by exactly one
/// [`LinkEvent::Down`] in the end; orders for a connection that is gone are dropped. `emit` must not block.
pub async fn run(config: DriverConfig, orders: Receiver<LinkOrder>, emit: impl Fn(LinkEvent)) {
    while let Ok(order) = orders.recv().await {
        let LinkOrder::Connect { clean_start } = order else { continue };
        match connection(&config, clean_start, &orders, &emit).await {
            Ended::Down(down) => {
                ::log::debug!(target: "upstream", "{}: down: {}", config.name, down.reason);
                emit(LinkEvent::Down(down));
            }
            Ended::Finished => return,
        }
    }
}

async fn connection(
    config: &DriverConfig,
    clean_start: bool,
    orders: &Receiver<LinkOrder>,
    emit: &impl Fn(LinkEvent),
) -> Ended {
    let connecting = async { connect::connect(config, clean_start).await.map_err(Ended::Down) };
    let cancelled = async { Err(told_to_stop(orders).await) };
    let (stream, rest, accepted) = match smol::future::or(connecting, cancelled).await {
        Ok(connected) => connected,
        Err(ended) => return ended,
    };
    emit(LinkEvent::Up {
        session_present: accepted.session_present,
        receive_maximum: accepted.receive_maximum,
        maximum_packet_size: accepted.maximum_packet_size,
    });
    Serve::new(config, stream, rest, &accepted, emit).run(orders).await
}

/// While there is no connection, only the order to give it up means anything.
async fn told_to_stop(orders: &Receiver<LinkOrder>) -> Ended {
    loop {
        match orders.recv().await {
            Ok(LinkOrder::Disconnect { .. }) => return Ended::Down(ordered()),
            Ok(_) => {}
            Err(_) => return Ended::Finished,
        }
    }
}

pub(super) fn ordered() -> LinkDown {
    LinkDown { reason: "closed by order".into(), kind: DownKind::Ordered }
}
