//! `forebay run`: the broker in the foreground.

use super::logger::{self, Filter};
use super::{Common, Failure};
use crate::broker;
use clap::Args;

/// Arguments of `run`: the common ones.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  forebay run --config /etc/forebay/config.toml --set log=debug")]
pub struct RunArgs {}

/// Runs until SIGTERM or SIGINT.
pub fn run(common: &Common, _args: &RunArgs) -> Result<(), Failure> {
    let loaded = common.load()?;
    logger::install(filter(common, &loaded.settings.log)?);
    for warning in &loaded.warnings {
        ::log::warn!(target: "config", "{warning}");
    }
    match &loaded.file {
        Some(file) => ::log::info!(target: "config", "{}, profile {}", file.display(), loaded.settings.profile),
        None => ::log::info!(target: "config", "no configuration file, profile {}", loaded.settings.profile),
    }
    broker::run(loaded.settings).map_err(|error| Failure { code: error.exit_code(), message: error.to_string() })
}

/// The configured filter, moved by `--verbose` and `--quiet`.
pub fn filter(common: &Common, configured: &str) -> Result<Filter, Failure> {
    let filter = Filter::parse(configured).map_err(|error| Failure::usage(format!("log: {error}")))?;
    Ok(match (common.verbose, common.quiet) {
        (true, _) => filter.with_default(::log::LevelFilter::Debug),
        (_, true) => filter.with_default(::log::LevelFilter::Error),
        _ => filter,
    })
}
