//! The `forebay` program: arguments, then run.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    forebay::cli::main()
}
