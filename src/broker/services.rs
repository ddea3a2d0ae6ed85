//! What runs on smol beside the I/O threads: the admin side in one thread, the upstreams' drivers in another.

use super::hub::{Hub, Mail};
use crate::admin::{self, AdminRequest, ControlServer, TcpServer};
use crate::replication::link::LinkOrder;
use crate::types::UpstreamId;
use crate::upstream::{self, DriverConfig};
use smol::LocalExecutor;
use smol::channel::Receiver;
use std::sync::Arc;

/// Serves the admin side until `quit` is closed.
pub(super) fn admin(
    hub: &Hub,
    tcp: Option<TcpServer>,
    control: ControlServer,
    shared: Arc<admin::Shared>,
    requests: &Receiver<AdminRequest>,
    quit: &Receiver<()>,
) {
    let carry = async {
        while let Ok(request) = requests.recv().await {
            hub.ask(request);
        }
    };
    let serve = smol::future::zip(admin::serve(tcp, control, shared), carry);
    let ended = async {
        // An error means that it was closed.
        let _ = quit.recv().await;
    };
    smol::block_on(smol::future::or(ended, async {
        serve.await;
    }));
}

/// A driver with the orders that it serves.
pub(super) type Driver = (UpstreamId, DriverConfig, Receiver<LinkOrder>);

/// Runs the upstreams' drivers until `quit` is closed.
pub(super) fn upstreams(hub: &Arc<Hub>, drivers: Vec<Driver>, quit: &Receiver<()>) {
    let executor = LocalExecutor::new();
    for (id, config, orders) in drivers {
        let hub = Arc::clone(hub);
        let emit = move |event| hub.send(Mail::Upstream { id, event });
        executor.spawn(upstream::run(config, orders, emit)).detach();
    }
    smol::block_on(executor.run(async {
        let _ = quit.recv().await;
    }));
}
