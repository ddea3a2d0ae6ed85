//! The readings of tests/data as MQTT messages.

use std::path::Path;

/// One reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// `sensors/<station>/<quantity>`.
    pub topic: String,
    /// `{"ts":…,"value":…,"unit":…}`.
    pub payload: String,
}

/// Where a file of readings comes from and what it measures: file, topic, unit, column of the time, column of the value.
const FILES: [(&str, &str, &str, usize, usize); 3] = [
    ("sf-temps.csv", "sensors/sf/temperature", "F", 1, 0),
    ("seattle-temps.csv", "sensors/seattle/temperature", "F", 0, 1),
    ("water-flow.csv", "sensors/main-7/flow", "l/s", 0, 1),
];

/// Where the files lie.
pub fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// All readings of all files, each file in its order. Rows without a value (the meter was silent) are no readings.
pub fn all() -> Vec<Reading> {
    let mut readings = Vec::new();
    for (file, topic, unit, time, value) in FILES {
        let text = std::fs::read_to_string(directory().join(file)).unwrap();
        for row in text.lines().skip(1) {
            let cells: Vec<&str> = row.split(',').collect();
            let [time, value] = [time, value].map(|column| cells.get(column).copied().unwrap_or_default().trim());
            if !value.is_empty() {
                let payload = format!("{{\"ts\":\"{}\",\"value\":{value},\"unit\":\"{unit}\"}}", iso(time));
                readings.push(Reading { topic: topic.to_owned(), payload });
            }
        }
    }
    readings
}

/// `2010/01/01 00:00[:00]` as `2010-01-01T00:00:00Z`; what is in that form already stays.
fn iso(time: &str) -> String {
    let Some((date, clock)) = time.split_once(' ') else { return time.to_owned() };
    let seconds = if clock.len() == 5 { ":00" } else { "" };
    format!("{}T{clock}{seconds}Z", date.replace('/', "-"))
}
