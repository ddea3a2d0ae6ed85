//! What the commands print with: tables, numbers for people, colour where it is wanted.

use anstyle::{AnsiColor, Style};
use std::io::IsTerminal;

/// Whether standard output shows colour: a terminal, no NO_COLOR [no-color.org], not a dumb one.
pub fn colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// How a piece of text stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Not at all.
    Plain,
    /// As a heading.
    Heading,
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Wrong.
    Bad,
}

/// The text in its tone, if colour is wanted.
pub fn toned(text: &str, tone: Tone, colour: bool) -> String {
    let style = match tone {
        Tone::Plain => Style::new(),
        Tone::Heading => Style::new().bold(),
        Tone::Good => AnsiColor::Green.on_default(),
        Tone::Warning => AnsiColor::Yellow.on_default(),
        Tone::Bad => AnsiColor::Red.on_default().bold(),
    };
    if colour && tone != Tone::Plain && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// A table that is as wide as its content.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// With these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|text| ((*text).to_owned(), Tone::Heading)).collect()] }
    }

    /// Without headings.
    pub fn plain() -> Self {
        Self { rows: Vec::new() }
    }

    /// One more row.
    pub fn row(&mut self, cells: Vec<(String, Tone)>) {
        self.rows.push(cells);
    }

    /// As lines. Cells of numbers stand to the right.
    pub fn render(&self, colour: bool) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((text, tone), width) in row.iter().zip(&widths) {
                let space = " ".repeat(width.saturating_sub(text.chars().count()));
                let number = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(' ');
                let cell = toned(text, *tone, colour);
                line += &if number { format!("{space}{cell}  ") } else { format!("{cell}{space}  ") };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 || value >= 100.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

/// `3 d 4 h`, `2 min 5 s`, `0.4 s`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 if seconds < 10.0 && seconds.fract() >= 0.05 => format!("{seconds:.1} s"),
        0..60 => format!("{seconds:.0} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3_600 % 24),
    }
}

/// Text of others on our terminal: control characters are shown, not obeyed.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([count(0), count(999), count(1_000), count(12_345_678)], ["0", "999", "1,000", "12,345,678"]);
        assert_eq!([bytes(0), bytes(1536), bytes(2 << 30), bytes(500 << 20)], ["0 B", "1.5 KiB", "2.0 GiB", "500 MiB"]);
        assert_eq!([seconds(0.0), seconds(0.44), seconds(59.2), seconds(125.0)], ["0 s", "0.4 s", "59 s", "2 min 5 s"]);
        assert_eq!([seconds(7_260.0), seconds(90_000.0)], ["2 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn a_table_is_as_wide_as_its_content() {
        let mut table = Table::new(&["STREAM", "LEO"]);
        table.row(vec![("telemetry".into(), Tone::Plain), ("7".into(), Tone::Plain)]);
        table.row(vec![("x".into(), Tone::Plain), ("12,345".into(), Tone::Bad)]);
        assert_eq!(table.render(false), "STREAM     LEO\ntelemetry       7\nx          12,345\n");
        assert!(table.render(true).contains("\u{1b}[1m"));
    }

    #[test]
    fn a_payload_does_not_command_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
