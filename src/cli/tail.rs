//! t
use super::{Common, Failure};
use clap::Args;
/// Arguments.
#[derive(Debug, Args)]
#[command(after_help = "forebay tail")]
pub struct TailArgs {}
/// r
pub fn run(_: &Common, _: &TailArgs) -> Result<(), Failure> {
    Ok(())
}
