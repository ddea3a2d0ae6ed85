//! The HTTP side: health, metrics and the API, over TCP and over the unix socket `control.sock` in data_dir.
//!
//! Nothing here knows the engine's state: every question travels as an [`AdminRequest`] to whoever owns the engine and comes back
//! as a reply, and `routes.rs` turns both into HTTP. `server.rs` has the sockets with their bounds, `auth.rs` who may ask.
//! `client.rs` is the other end of the control socket, for the commands.

pub mod auth;
pub mod client;
pub mod control;
pub mod from;
pub mod measures;
pub mod metrics;
pub mod process;
pub mod records;
pub mod routes;
pub mod server;

pub use server::{AdminError, ControlServer, TcpServer, serve};

use crate::engine::io::{AdminCommand, AdminReply};
use crate::limits::ADMIN_REPLY_SECONDS;
use measures::Measures;
use smol::channel::{Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

/// A question for the engine; the broker carries it there and sends the answer back. Dropping `reply` unanswered is an answer
/// too: the broker is stopping.
#[derive(Debug)]
pub struct AdminRequest {
    /// What is asked.
    pub command: AdminCommand,
    /// Where the answer goes: a channel of one place, so that answering never blocks.
    pub reply: Sender<AdminReply>,
}

/// Where questions go. Bounded by [`crate::limits::ADMIN_QUEUE_MAX`]; see [`channel`].
pub type AdminSender = Sender<AdminRequest>;

/// The channel between the admin side and the broker.
pub fn channel() -> (AdminSender, Receiver<AdminRequest>) {
    smol::channel::bounded(crate::limits::ADMIN_QUEUE_MAX)
}

/// Why a question was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Nobody is there to answer: the broker is stopping.
    Stopping,
    /// No answer within [`ADMIN_REPLY_SECONDS`].
    TimedOut,
}

/// What every connection of the admin side shares.
#[derive(Debug)]
pub struct Shared {
    sender: AdminSender,
    measures: Arc<Measures>,
}

impl Shared {
    /// Questions go to `sender`; `measures` is what the threads count as they run.
    pub fn new(sender: AdminSender, measures: Arc<Measures>) -> Arc<Self> {
        Arc::new(Self { sender, measures })
    }

    /// What the threads count as they run.
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Asks the engine and waits for its answer.
    pub async fn ask(&self, command: AdminCommand) -> Result<AdminReply, NoAnswer> {
        let asked = async {
            let (reply, answer) = smol::channel::bounded(1);
            self.sender.send(AdminRequest { command, reply }).await.map_err(|_| NoAnswer::Stopping)?;
            answer.recv().await.map_err(|_| NoAnswer::Stopping)
        };
        let timeout = async {
            smol::Timer::after(Duration::from_secs(ADMIN_REPLY_SECONDS)).await;
            Err(NoAnswer::TimedOut)
        };
        smol::future::or(asked, timeout).await
    }
}
