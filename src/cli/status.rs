//! `forebay status`: how the running broker is doing.

use super::print::{self, Table, Tone};
use super::{Common, Failure};
use crate::admin::client::{Client, ClientError};
use crate::engine::status::{Status, UpstreamStatus};
use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  forebay status --config /etc/forebay/config.toml --json | jq .upstreams")]
pub struct StatusArgs {
    /// Data directory of the broker, instead of the configuration's
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Asks the control socket.
pub fn run(common: &Common, args: &StatusArgs) -> Result<(), Failure> {
    let data_dir = data_dir(common, args.data_dir.as_deref())?;
    let body = Client::new(&data_dir).get("/api/v1/status").map_err(|error| no_answer(&error, &data_dir))?;
    let mut out = std::io::stdout().lock();
    if common.json {
        out.write_all(&body)?;
        return Ok(());
    }
    let status: Status = serde_json::from_slice(&body).map_err(|error| {
        Failure::failed(format!("the broker answered in another shape ({error}): it is of another version"))
    })?;
    out.write_all(render(&status, print::colour()).as_bytes())?;
    Ok(())
}

/// Where the broker keeps its data: as said, else as configured.
pub fn data_dir(common: &Common, said: Option<&Path>) -> Result<PathBuf, Failure> {
    match said {
        Some(dir) => Ok(dir.to_owned()),
        None => Ok(common.load()?.settings.gateway.data_dir),
    }
}

/// A failure with what to do next.
pub fn no_answer(error: &ClientError, data_dir: &Path) -> Failure {
    match error {
        ClientError::NotRunning => Failure::failed(format!(
            "no broker runs on {}; start it with `forebay run`, or name the one that runs with --config or --data-dir",
            data_dir.display()
        )),
        error => Failure::failed(error.to_string()),
    }
}

/// The tables.
fn render(status: &Status, colour: bool) -> String {
    let plain = |text: String| (text, Tone::Plain);
    let mut out = gateway(status, colour);
    out.push('\n');
    let mut streams = Table::new(&["STREAM", "PARTITION", "START", "LEO", "HW", "ISR"]);
    for stream in &status.streams {
        for partition in &stream.partitions {
            let out_of_sync = partition.ar.len() > partition.isr.len();
            streams.row(vec![
                plain(stream.name.clone()),
                plain(partition.partition.to_string()),
                plain(print::count(partition.start)),
                plain(print::count(partition.leo)),
                plain(print::count(partition.hw)),
                (partition.isr.join(","), if out_of_sync { Tone::Warning } else { Tone::Plain }),
            ]);
        }
    }
    out += &streams.render(colour);
    out.push('\n');
    if !status.upstreams.is_empty() {
        let mut upstreams = Table::new(&["UPSTREAM", "STATE", "LAG", "AGE", "FORWARDED", "REFUSED", "WHY"]);
        for upstream in &status.upstreams {
            upstreams.row(upstream_row(upstream));
        }
        out += &upstreams.render(colour);
        out.push('\n');
    }
    let (sessions, disk) = (&status.sessions, &status.disk);
    let mut rest = Table::plain();
    let mut row = |name: &str, text: String, tone| rest.row(vec![(name.into(), Tone::Heading), (text, tone)]);
    let sessions = format!(
        "online {}, offline {}, connections {}, subscriptions {}",
        print::count(sessions.online),
        print::count(sessions.offline),
        print::count(sessions.connections),
        print::count(sessions.subscriptions)
    );
    row("sessions", sessions, Tone::Plain);
    let disk = format!(
        "{} of {} used, segments {}, {} free on the file system, {} written since the start",
        print::bytes(disk.used_bytes),
        print::bytes(disk.budget_bytes),
        print::count(disk.segments),
        print::bytes(disk.free_bytes),
        print::bytes(disk.written_bytes)
    );
    row("disk", disk, Tone::Plain);
    let losses: Vec<String> = status
        .losses
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(cause, n)| format!("{cause} {}", print::count(*n)))
        .collect();
    match losses.is_empty() {
        true => row("losses", "none".into(), Tone::Plain),
        false => row("losses", losses.join(", "), Tone::Warning),
    }
    match status.faults.is_empty() {
        true => row("faults", "none".into(), Tone::Plain),
        false => status.faults.iter().for_each(|fault| row("fault", fault.clone(), Tone::Bad)),
    }
    out + &rest.render(colour)
}

fn gateway(status: &Status, colour: bool) -> String {
    let gateway = &status.gateway;
    let ready = match (&gateway.ready, &gateway.not_ready_because) {
        (true, _) => print::toned("ready", Tone::Good, colour),
        (false, reason) => {
            let reason = reason.as_deref().unwrap_or("no reason given");
            print::toned(&format!("not ready: {reason}"), Tone::Bad, colour)
        }
    };
    format!(
        "{}  {ready}  up {}  forebay {}  log {}  epoch {}\n",
        print::toned(&gateway.id, Tone::Heading, colour),
        print::seconds(gateway.uptime_seconds as f64),
        gateway.version,
        gateway.log_id,
        gateway.epoch
    )
}

fn upstream_row(upstream: &UpstreamStatus) -> Vec<(String, Tone)> {
    let tone = match upstream.state.as_str() {
        "connected" => Tone::Good,
        "stopped" => Tone::Bad,
        _ => Tone::Warning,
    };
    let lag = format!("{} ({})", print::count(upstream.lag_records), print::bytes(upstream.lag_bytes));
    let refused = if upstream.refused_records > 0 { Tone::Warning } else { Tone::Plain };
    vec![
        (upstream.name.clone(), Tone::Plain),
        (upstream.state.clone(), tone),
        (lag, Tone::Plain),
        (print::seconds(upstream.lag_seconds), Tone::Plain),
        (print::count(upstream.forwarded_records), Tone::Plain),
        (print::count(upstream.refused_records), refused),
        (upstream.reason.clone().unwrap_or_default(), Tone::Plain),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::status::{PartitionStatus, StreamStatus};

    #[test]
    fn the_table_says_what_a_person_looks_for() {
        let partition = PartitionStatus {
            leo: 12_345,
            hw: 12_000,
            isr: vec!["local".into()],
            ar: vec!["local".into(), "dc".into()],
            ..Default::default()
        };
        let mut status = Status {
            streams: vec![StreamStatus { name: "telemetry".into(), partitions: vec![partition] }],
            upstreams: vec![UpstreamStatus {
                name: "dc".into(),
                state: "waiting".into(),
                reason: Some("connection refused".into()),
                lag_records: 345,
                lag_bytes: 2048,
                lag_seconds: 3.2,
                ..Default::default()
            }],
            faults: vec!["segment 7: 1 damaged frame".into()],
            ..Default::default()
        };
        status.gateway.id = "gw-1".into();
        status.gateway.not_ready_because = Some("the disk is full".into());
        status.losses.insert("retention".into(), 0);
        let text = render(&status, false);
        for words in [
            "gw-1  not ready: the disk is full",
            "12,345  12,000  local",
            "345 (2.0 KiB)",
            "3.2 s",
            "connection refused",
            "losses    none",
            "fault     segment 7",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
    }

    #[test]
    fn a_broker_that_does_not_run_is_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let common = Common::default();
        let failure = run(&common, &StatusArgs { data_dir: Some(dir.path().to_owned()) }).unwrap_err();
        assert_eq!(failure.code, 1);
        assert!(failure.message.contains("forebay run"), "{}", failure.message);
    }
}
