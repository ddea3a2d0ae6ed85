//! `forebay check`: what `run` would read, without opening anything.

use super::print::{self, Tone};
use super::{Common, Failure};
use clap::Args;
use std::io::Write;

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  forebay check --config config.toml --print")]
pub struct CheckArgs {
    /// Print every value and the layer that it came from
    #[arg(long)]
    print: bool,
}

/// Code 0 if `run` would start with it, as far as the configuration goes; else 2 and every error.
pub fn run(common: &Common, args: &CheckArgs) -> Result<(), Failure> {
    let loaded = common.load()?;
    let mut out = std::io::stdout().lock();
    if args.print && common.json {
        for value in &loaded.resolved {
            let line = serde_json::json!({ "key": value.path, "value": value.value, "from": value.place.to_string() });
            writeln!(out, "{line}")?;
        }
    } else if args.print {
        out.write_all(loaded.print().as_bytes())?;
    }
    for warning in &loaded.warnings {
        eprintln!("forebay: warning: {warning}");
    }
    if !args.print && !common.quiet {
        let file =
            loaded.file.as_ref().map_or_else(|| "built-in defaults".to_owned(), |file| file.display().to_string());
        let verdict = print::toned("no errors", Tone::Good, print::colour());
        match common.json {
            true => writeln!(out, "{}", serde_json::json!({ "file": file, "errors": 0, "warnings": loaded.warnings }))?,
            false => writeln!(out, "{file}: {verdict}, {} warning(s)", loaded.warnings.len())?,
        }
    }
    Ok(())
}
