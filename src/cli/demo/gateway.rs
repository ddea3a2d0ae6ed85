//! t
use super::super::{Common, Failure};
use clap::Args;
/// Arguments.
#[derive(Debug, Args)]
pub struct GatewayArgs {}
/// r
pub fn run(_: &Common, _: &GatewayArgs) -> Result<(), Failure> {
    Ok(())
}
