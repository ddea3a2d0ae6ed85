//! Where a reader begins, as people write it: `earliest`, `latest`, an offset, a time, `-1h`, or the position that a former
//! answer ended with.

use crate::engine::io::ReadFrom;
use crate::types::LogPosition;

/// What may be written.
pub const EXPECTED: &str =
    "earliest, latest, an offset, a time as 2026-12-01T08:00:00Z, a time ago as -1h30m, or position:SEQ.INDEX";

/// Reads it. `now_ms` is the wall clock, ms since 1970, for times ago. The error says what was expected.
pub fn parse(text: &str, now_ms: i64) -> Result<ReadFrom, String> {
    let wrong = || format!("expected {EXPECTED}, found {text:?}");
    match text {
        "earliest" => return Ok(ReadFrom::Earliest),
        "latest" => return Ok(ReadFrom::Latest),
        _ => {}
    }
    if let Some(position) = text.strip_prefix("position:") {
        let (seq, index) = position.split_once('.').ok_or_else(wrong)?;
        let (seq, index) = (seq.parse().map_err(|_| wrong())?, index.parse().map_err(|_| wrong())?);
        return Ok(ReadFrom::Position(LogPosition { seq, index }));
    }
    if let Ok(offset) = text.strip_prefix("offset:").unwrap_or(text).parse() {
        return Ok(ReadFrom::Offset(offset));
    }
    if let Some(ago) = text.strip_prefix('-') {
        let ago_ms = duration_ms(ago).ok_or_else(wrong)?;
        return Ok(ReadFrom::Time(now_ms.saturating_sub(ago_ms)));
    }
    let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    Ok(ReadFrom::Time(time.as_millisecond()))
}

/// Writes it as [`parse`] reads it; a time as RFC 3339 in UTC.
pub fn write(from: ReadFrom) -> String {
    match from {
        ReadFrom::Earliest => "earliest".into(),
        ReadFrom::Latest => "latest".into(),
        ReadFrom::Offset(offset) => offset.to_string(),
        ReadFrom::Position(position) => write_position(position),
        ReadFrom::Time(ms) => {
            jiff::Timestamp::from_millisecond(ms).map_or_else(|_| "earliest".into(), |t| t.to_string())
        }
    }
}

/// `position:SEQ.INDEX`.
pub fn write_position(position: LogPosition) -> String {
    format!("position:{}.{}", position.seq, position.index)
}

/// `1h`, `90m`, `1h30m`, `500ms`, `7d` in milliseconds; `None` if it is nothing of the kind.
pub fn duration_ms(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<i64>().ok()?.checked_mul(unit_ms)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_say_where_is_read() {
        let now = 1_800_000_000_000;
        let cases = [
            ("earliest", ReadFrom::Earliest),
            ("latest", ReadFrom::Latest),
            ("42", ReadFrom::Offset(42)),
            ("offset:42", ReadFrom::Offset(42)),
            ("2026-12-01T08:00:00Z", ReadFrom::Time(1_796_112_000_000)),
            ("2026-12-01T09:00:00+01:00", ReadFrom::Time(1_796_112_000_000)),
            ("-1h", ReadFrom::Time(now - 3_600_000)),
            ("-1h30m", ReadFrom::Time(now - 5_400_000)),
            ("-500ms", ReadFrom::Time(now - 500)),
            ("position:17.3", ReadFrom::Position(LogPosition { seq: 17, index: 3 })),
        ];
        for (text, from) in cases {
            assert_eq!(parse(text, now), Ok(from), "{text}");
        }
    }

    #[test]
    fn anything_else_is_told_what_was_expected() {
        for text in
            ["", "-", "-1", "-1y", "yesterday", "position:", "position:1", "position:1.x", "1.5", "-99999999999999999d"]
        {
            let error = parse(text, 0).unwrap_err();
            assert!(error.contains("earliest") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let froms = [
            ReadFrom::Earliest,
            ReadFrom::Latest,
            ReadFrom::Offset(7),
            ReadFrom::Time(1_796_112_000_123),
            ReadFrom::Position(LogPosition { seq: u64::MAX, index: u32::MAX }),
        ];
        for from in froms {
            assert_eq!(parse(&write(from), 0), Ok(from));
        }
    }
}
