//! The `forebay` program: arguments, then run.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    #[cfg(debug_assertions)]
    if let Ok(name) = std::env::var("FOREBAY_PLANTED") {
        match forebay::planted::Bug::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, bug)) => forebay::planted::plant_everywhere(*bug),
            None => {
                eprintln!("FOREBAY_PLANTED: expected the name of a bug that can be planted, found {name}");
                return std::process::ExitCode::from(2);
            }
        }
    }
    forebay::cli::main()
}
