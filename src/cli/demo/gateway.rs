//! The demo's gateway as a process of its own: a broker that says where it listens, and ends when its parent does.

use super::super::run::filter;
use super::super::{Common, Failure, logger};
use crate::broker;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::SocketAddr;

/// Arguments of the hidden command: the common ones.
#[derive(Debug, Args)]
pub struct GatewayArgs {}

/// What it says on standard output, as one line of JSON, once it listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Where MQTT clients connect.
    pub mqtt: SocketAddr,
}

/// Runs until standard input ends.
pub fn run(common: &Common, _args: &GatewayArgs) -> Result<(), Failure> {
    let loaded = common.load()?;
    logger::install(filter(common, &loaded.settings.log)?);
    let explain = |error: broker::RunError| Failure { code: error.exit_code(), message: error.to_string() };
    let handle = broker::start(loaded.settings).map_err(explain)?;
    let Some(mqtt) = handle.addresses.first().copied() else {
        return Err(Failure::usage("the configuration has no listener"));
    };
    let line = serde_json::to_string(&Announcement { mqtt }).map_err(|error| Failure::failed(error.to_string()))?;
    writeln!(std::io::stdout(), "{line}")?;
    // Whether it ends or fails: the parent is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    handle.stop().map_err(explain)
}
