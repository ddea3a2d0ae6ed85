//! What a person sees of the demo: live on a terminal, a line every two seconds elsewhere, and the table at the end.

use super::super::print::{self, Table, Tone};
use super::judge::{Drain, Verdict};
use super::ledger::Sums;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How things are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scene {
    /// Whether the link stands.
    pub link: bool,
    /// Whether the gateway lives.
    pub gateway: bool,
    /// The sensors' books.
    pub sums: Sums,
    /// Readings at the centre.
    pub arrived: u64,
}

impl Scene {
    /// Acknowledged, and not yet at the centre.
    pub fn backlog(&self) -> u64 {
        self.sums.acked.saturating_sub(self.arrived)
    }
}

/// Between lines where there is no terminal.
const LINES: Duration = Duration::from_secs(2);

/// Where progress goes.
pub struct Show {
    start: Instant,
    kind: Kind,
    colour: bool,
}

enum Kind {
    Silent,
    Lines { last: Option<Instant>, json: bool },
    Live { time: ProgressBar, state: ProgressBar, counts: ProgressBar, all: MultiProgress },
}

impl Show {
    /// For a demo of about this many seconds.
    pub fn new(seconds: u64, json: bool, quiet: bool) -> Self {
        let kind = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Kind::Silent,
            // Standard output holds the JSON then, and nobody reads along.
            (false, false) if json => Kind::Silent,
            (false, false) => Kind::Lines { last: None, json },
            (false, true) => live(seconds),
        };
        Self { start: Instant::now(), kind, colour: print::colour() }
    }

    /// Something begins.
    pub fn say(&mut self, text: &str) {
        let line = format!("{:5.1} s  {text}", self.start.elapsed().as_secs_f64());
        match &mut self.kind {
            Kind::Silent => {}
            Kind::Lines { json: true, .. } => eprintln!("{line}"),
            Kind::Lines { .. } => println!("{line}"),
            Kind::Live { all, .. } => {
                // Where the terminal is gone there is nobody to tell.
                let _ = all.println(print::toned(&line, Tone::Heading, self.colour));
            }
        }
    }

    /// How things are now.
    pub fn scene(&mut self, scene: &Scene) {
        let elapsed = self.start.elapsed();
        let link = if scene.link { ("up", Tone::Good) } else { ("CUT", Tone::Bad) };
        let gateway = if scene.gateway { ("up", Tone::Good) } else { ("KILLED", Tone::Bad) };
        let colour = self.colour;
        let toned = |(text, tone): (&str, Tone)| print::toned(&format!("{text:<6}"), tone, colour);
        let state =
            format!("link {}  gateway {}  backlog {}", toned(link), toned(gateway), print::count(scene.backlog()));
        let counts = format!(
            "published {}  acked {}  arrived {}",
            print::count(scene.sums.published),
            print::count(scene.sums.acked),
            print::count(scene.arrived)
        );
        match &mut self.kind {
            Kind::Silent => {}
            Kind::Lines { last, json } => {
                if last.is_some_and(|last| last.elapsed() < LINES) {
                    return;
                }
                *last = Some(Instant::now());
                let line = format!("{:5.1} s  {state}  {counts}", elapsed.as_secs_f64());
                if *json { eprintln!("{line}") } else { println!("{line}") }
            }
            Kind::Live { time, state: state_line, counts: counts_line, .. } => {
                time.set_position(
                    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).min(time.length().unwrap_or(0)),
                );
                state_line.set_message(state);
                counts_line.set_message(counts);
            }
        }
    }

    /// Clears what moves.
    pub fn end(&mut self) {
        if let Kind::Live { time, state, counts, .. } = &self.kind {
            [time, state, counts].into_iter().for_each(ProgressBar::finish_and_clear);
        }
    }
}

fn live(seconds: u64) -> Kind {
    let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
    let style =
        |template: &str| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let line = |template: &str, length: Option<u64>| {
        let bar = all.add(length.map_or_else(ProgressBar::no_length, ProgressBar::new));
        bar.set_style(style(template));
        bar
    };
    let time = line("  [{bar:48}] {elapsed}", Some(seconds * 1000));
    let state = line("  {msg}", None);
    let counts = line("  {msg}", None);
    Kind::Live { time, state, counts, all }
}

/// Everything that the demo measured: what `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Readings sent at least once.
    pub published: u64,
    /// Readings acknowledged.
    pub acked: u64,
    /// Different readings at the centre.
    pub arrived: u64,
    /// Acknowledged readings that are not there.
    pub lost: u64,
    /// Readings that are there more often than they may.
    pub duplicated: u64,
    /// First occurrences out of order.
    pub reordered: u64,
    /// Readings that a QoS 1 sensor sent again since no PUBACK had come.
    pub republished: u64,
    /// Readings that the gateway refused.
    pub refused: u64,
    /// Seconds that the link was cut.
    pub outage_seconds: f64,
    /// Seconds from SIGKILL until a sensor was connected again.
    pub gateway_outage_seconds: f64,
    /// Of these, from the gateway's start.
    pub restart_seconds: f64,
    /// Readings that waited when the link was mended and came afterwards.
    pub drain_records: u64,
    /// From the first of them to the last.
    pub drain_seconds: f64,
    /// Of these, a second.
    pub drain_rate: f64,
    /// Bytes that went over the link towards the centre.
    pub link_bytes: u64,
    /// Sensors.
    pub sensors: u64,
    /// Those that publish at QoS 2.
    pub qos2_sensors: u64,
    /// Of the whole demo.
    pub seconds: f64,
}

/// One column of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Column {
    /// The sensors' books.
    pub sums: Sums,
    /// What the judge found.
    pub verdict: Verdict,
}

/// The table at the end.
pub fn table(report: &Report, qos1: &Column, qos2: &Column, colour: bool) -> String {
    let mut table = Table::new(&["", "QoS 1", "QoS 2", "all", ""]);
    let wrong = |n: u64, tone: Tone| if n > 0 { tone } else { Tone::Good };
    let cell = |n: u64, tone: Tone| (print::count(n), tone);
    let mut row = |name: &str, values: [u64; 2], bad: bool, note: &str| {
        let all = values.iter().sum();
        let tone = |n| if bad { wrong(n, Tone::Bad) } else { Tone::Plain };
        let [first, second] = values;
        table.row(vec![
            (name.to_owned(), Tone::Heading),
            cell(first, tone(first)),
            cell(second, tone(second)),
            cell(all, tone(all)),
            (note.to_owned(), Tone::Plain),
        ]);
    };
    let columns = [qos1, qos2];
    row("published", columns.map(|column| column.sums.published), false, "");
    row("acked", columns.map(|column| column.sums.acked), false, "");
    row("arrived", columns.map(|column| column.verdict.arrived), false, "");
    row("lost", columns.map(|column| column.verdict.lost), true, "acked and not at the centre");
    row("duplicated", columns.map(|column| column.verdict.duplicated), true, "there more often than allowed");
    row("reordered", columns.map(|column| column.verdict.reordered), true, "first occurrences out of order");
    let note = "sent again: no PUBACK had come when the gateway died, as MQTT asks for at QoS 1";
    row("republished", columns.map(|column| column.sums.republished), false, note);
    let mut out = table.render(colour);
    out += &format!(
        "\nlink outage     {:.1} s\ngateway outage  {:.1} s from SIGKILL until a sensor was connected again ({:.2} s after its start)\n",
        report.outage_seconds, report.gateway_outage_seconds, report.restart_seconds
    );
    let drain = Drain { records: report.drain_records, span_ms: None };
    if drain.records > 0 {
        out += &format!(
            "drain           {} readings in {:.2} s: {} a second\n",
            print::count(report.drain_records),
            report.drain_seconds,
            print::count(report.drain_rate as u64)
        );
    }
    out += &format!("link            {} towards the centre\n", print::bytes(report.link_bytes));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            published: 1500,
            acked: 1499,
            arrived: 1500,
            lost: 0,
            duplicated: 0,
            reordered: 0,
            republished: 3,
            refused: 0,
            outage_seconds: 8.0,
            gateway_outage_seconds: 1.2,
            restart_seconds: 0.2,
            drain_records: 1200,
            drain_seconds: 0.05,
            drain_rate: 24_000.0,
            link_bytes: 300_000,
            sensors: 12,
            qos2_sensors: 4,
            seconds: 18.0,
        }
    }

    #[test]
    fn the_report_is_one_line_that_begins_as_the_readme_says() {
        let line = serde_json::to_string(&report()).unwrap();
        assert!(line.starts_with("{\"published\":1500,\"acked\":1499,\"arrived\":1500,\"lost\":0,\"duplicated\":0,\"reordered\":0,\"republished\":3,"));
        assert!(!line.contains('\n'));
    }

    #[test]
    fn the_table_has_a_row_for_each_promise() {
        let column = Column {
            sums: Sums { published: 1000, acked: 999, ..Sums::default() },
            verdict: Verdict { arrived: 1000, ..Verdict::default() },
        };
        let text = table(&report(), &column, &column, false);
        for word in [
            "published",
            "acked",
            "arrived",
            "lost",
            "duplicated",
            "reordered",
            "republished",
            "link outage",
            "24,000 a second",
        ] {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
        assert!(text.contains("2,000"));
    }
}
