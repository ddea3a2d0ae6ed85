//! The commands. Each file here is one command; this one has the arguments that all share, and where each goes.
//!
//! Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 damage or loss found. Errors go to stderr and say what was expected
//! and what to do next.

pub mod check;
pub mod demo;
pub mod logger;
pub mod mqtt;
pub mod print;
pub mod publish;
pub mod run;
pub mod status;
pub mod subscribe;
pub mod tail;

use crate::config::{self, LoadOptions, Loaded};
use clap::{ArgAction, Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Everything that may stand on the command line.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    propagate_version = true,
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    about = "A store-and-forward MQTT broker for edge gateways: takes what comes, keeps it, and lets it out at the rate of the link.",
    after_help = "Examples:\n  forebay demo                          the whole promise on this machine, in about 20 s\n  \
                  forebay run --config config.toml      the broker\n  forebay status                        how it is doing"
)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    /// Print help
    #[arg(short = 'h', action = ArgAction::Help)]
    short_help: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Default, Args)]
pub struct Common {
    /// Configuration file [default: ./config.toml, then /etc/forebay/config.toml]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Set one value over the file's, as gateway.data_dir=/tmp/data; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", global = true)]
    pub sets: Vec<String>,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more
    #[arg(long, global = true)]
    pub verbose: bool,
    /// Say only what went wrong
    #[arg(long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print help
    #[arg(long, global = true, action = ArgAction::Help)]
    help: Option<bool>,
    /// Print version
    #[arg(long, global = true, action = ArgAction::Version)]
    version: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker in the foreground
    Run(run::RunArgs),
    /// Read the configuration as `run` would and tell every error; opens nothing
    Check(check::CheckArgs),
    /// Show the whole promise on this machine: a link that is cut, a gateway that is killed, nothing lost
    Demo(demo::DemoArgs),
    /// Publish messages to any MQTT broker
    Pub(publish::PubArgs),
    /// Subscribe at any MQTT broker and print what comes
    Sub(subscribe::SubArgs),
    /// Read a stream of the running broker, or of a stopped one's data directory
    Tail(tail::TailArgs),
    /// Show streams, upstreams, sessions, disk and faults of the running broker
    Status(status::StatusArgs),
    /// The demo's gateway
    #[command(hide = true)]
    DemoGateway(demo::gateway::GatewayArgs),
}

/// Why a command ends with another code than 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// For stderr; empty if everything was said.
    pub message: String,
}

impl Failure {
    /// 1: it did not work.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// 2: the command line or the configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// 3: damage or loss was found.
    pub fn damage(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into() }
    }
}

impl From<std::io::Error> for Failure {
    /// Only standard output is written without a word of its own: somebody closed it.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self { code: 0, message: String::new() },
            _ => Self::failed(format!("standard output: {error}")),
        }
    }
}

impl Common {
    /// The configuration, or all its errors.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let options = LoadOptions { file: self.config.clone(), sets: self.sets.clone() };
        config::load(options).map_err(|errors| Failure::usage(errors.to_string()))
    }
}

/// The program: reads the arguments of the process and runs the command.
pub fn main() -> ExitCode {
    // One provider for every TLS configuration of the process; an error says that it is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    run_with(std::env::args_os())
}

fn run_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors of this kind too, with exit code 0. Nowhere to print them is nothing to report.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Errors of the configuration begin with their place, so that editors and people find it.
            let prefix = if failure.code == 2 { "" } else { "forebay: " };
            for line in failure.message.lines() {
                eprintln!("{prefix}{line}");
            }
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let common = cli.common;
    match cli.command {
        Command::Run(args) => run::run(&common, &args),
        Command::Check(args) => check::run(&common, &args),
        Command::Demo(args) => demo::run(&common, &args),
        Command::Pub(args) => publish::run(&common, &args),
        Command::Sub(args) => subscribe::run(&common, &args),
        Command::Tail(args) => tail::run(&common, &args),
        Command::Status(args) => status::run(&common, &args),
        Command::DemoGateway(args) => demo::gateway::run(&common, &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_that_is_shown_has_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("forebay {}", command.get_name())), "{}: {help}", command.get_name());
        }
    }

    #[test]
    fn common_arguments_stand_before_or_after_the_command() {
        for line in [
            ["forebay", "--json", "--set", "log=debug", "status"],
            ["forebay", "status", "--json", "--set", "log=debug"],
        ] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert!(cli.common.json);
            assert_eq!(cli.common.sets, ["log=debug"]);
        }
    }

    #[test]
    fn wrong_usage_is_code_2_and_help_is_code_0() {
        let code = |line: &[&str]| Cli::try_parse_from(line).unwrap_err().exit_code();
        assert_eq!(code(&["forebay", "runn"]), 2);
        assert_eq!(code(&["forebay", "status", "--nothing"]), 2);
        assert_eq!(code(&["forebay", "--quiet", "--verbose", "status"]), 2);
        assert_eq!(code(&["forebay", "pub", "-t", "a/+", "-m", "x"]), 2);
        assert_eq!(code(&["forebay", "pub", "-t", "a", "-m", "x", "-l"]), 2);
        assert_eq!(code(&["forebay", "pub", "-t", "a"]), 2);
        assert_eq!(code(&["forebay", "sub", "-t", "a", "-c"]), 2);
        assert_eq!(code(&["forebay", "sub", "-t", "a", "-k", "2"]), 2);
        assert_eq!(code(&["forebay", "pub", "--help"]), 0);
        assert_eq!(code(&["forebay", "-h"]), 0);
        assert_eq!(code(&["forebay", "--version"]), 0);
        assert_eq!(code(&["forebay", "sub", "--version"]), 0);
    }

    #[test]
    fn mosquitto_s_flags_are_taken() {
        let fits = |line: &str| Cli::try_parse_from(line.split(' ')).map(drop).map_err(|error| error.to_string());
        fits("forebay pub -h gw -p 1884 -t a/b -m -1 -q 1 -r -i me -u name --password-file f -V 311 -k 30 --repeat 3")
            .unwrap();
        fits("forebay pub -t a -l -q 2 -V mqttv5 --acks -1").unwrap();
        fits("forebay sub -h ::1 -t a/# -t b -q 2 -i me -c -C 3 -W 5 -v --cafile ca.pem --cert c.pem --key k.pem")
            .unwrap();
        let refused = fits("forebay pub -t a -m x -u name -P secret").unwrap_err();
        assert!(refused.contains("--password-file"), "{refused}");
    }

    #[test]
    fn a_configuration_with_errors_is_code_2_and_tells_them_all() {
        let common = Common { sets: vec!["no.such=1".into(), "log=loud".into()], ..Common::default() };
        let common = Common { config: Some("/nonexistent-on-purpose/config.toml".into()), ..common };
        assert_eq!(common.load().unwrap_err().code, 2);
    }
}
