//! Sizes as `"64KiB"` and times as `"500ms"` or `"1h30m"`: read and written in the same words.

/// Units of sizes, ascending, with their bytes.
const SIZES: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
/// Units of times, ascending, with their nanoseconds.
const TIMES: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
];

/// Bytes of a size: a whole number and one of B, KiB, MiB, GiB, TiB.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes)
}

/// Nanoseconds of a time: whole numbers with us, ms, s, m, h or d behind them, as `1h30m`; the larger unit first.
pub fn parse_time(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_u64;
    let mut before = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let length = rest.get(digits..)?.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let (part, left) = rest.split_at_checked(digits + length)?;
        let (number, unit) = split(part)?;
        let (_, nanoseconds) = TIMES.iter().find(|(name, _)| *name == unit)?;
        (*nanoseconds < before).then_some(())?;
        before = *nanoseconds;
        total = total.checked_add(number.checked_mul(*nanoseconds)?)?;
        rest = left;
    }
    (!text.is_empty()).then_some(total)
}

/// A size in the largest unit that leaves no remainder.
pub fn size(bytes: u64) -> String {
    written(bytes, &SIZES, "B")
}

/// A time in the largest unit that leaves no remainder.
pub fn time(nanoseconds: u64) -> String {
    written(nanoseconds, &TIMES, "s")
}

fn split(text: &str) -> Option<(u64, &str)> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(at)?;
    Some((number.parse().ok()?, unit))
}

fn written(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    let fits = units.iter().rev().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor));
    match fits {
        Some((name, factor)) => format!("{}{name}", value / factor),
        None => format!("{value}{zero}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_whole_number_and_a_unit() {
        for (text, bytes) in
            [("0B", 0), ("1B", 1), ("64KiB", 65_536), ("2GiB", 2 << 30), ("3TiB", 3 << 40), ("1MiB", 1 << 20)]
        {
            assert_eq!(parse_size(text), Some(bytes));
            assert_eq!(size(bytes), text);
        }
        for text in ["", "1", "KiB", "1.5GiB", "1 KiB", "-1B", "1kb", "1MB", "1kib", "99999999999TiB", "1KiBB"] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
        assert_eq!(size(1025), "1025B");
    }

    #[test]
    fn times_have_whole_numbers_and_units_the_larger_first() {
        for (text, ms) in [("500ms", 500), ("7d", 7 * 86_400_000), ("30s", 30_000), ("90m", 5_400_000), ("0s", 0)] {
            assert_eq!(parse_time(text), Some(ms * 1_000_000));
            assert_eq!(time(ms * 1_000_000), text);
        }
        assert_eq!(parse_time("1h30m"), Some(5_400_000_000_000));
        assert_eq!(parse_time("1m500ms"), Some(60_500_000_000));
        assert_eq!(time(60_500_000_000), "60500ms");
        for text in ["", "1", "s", "30m1h", "1s1s", "1.5s", "-1s", "1 s", "99999999999w", "1sec", "s1"] {
            assert_eq!(parse_time(text), None, "{text:?}");
        }
    }
}
