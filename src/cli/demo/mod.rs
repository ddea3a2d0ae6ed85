//! t
pub mod gateway;
use super::{Common, Failure};
use clap::Args;
/// Arguments.
#[derive(Debug, Args)]
#[command(after_help = "forebay demo")]
pub struct DemoArgs {}
/// r
pub fn run(_: &Common, _: &DemoArgs) -> Result<(), Failure> {
    Ok(())
}
