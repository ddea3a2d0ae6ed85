//! The forms that values have. Each takes a node and gives the value, or says what was expected.

use super::reader::Expected;
use super::tree::{Node, Value};
use super::units::{parse_size, parse_time, size, time};
use core::ops::RangeInclusive;

/// A text that `accept` turns into a value.
pub(super) fn text_as<T>(expected: &str, accept: impl Fn(&str) -> Option<T>) -> impl Fn(&Node) -> Result<T, Expected> {
    move |node| node.text().and_then(&accept).ok_or_else(|| expected.to_owned())
}

/// A text that is not empty.
pub(super) fn text(expected: &str) -> impl Fn(&Node) -> Result<String, Expected> {
    text_as(expected, |text| (!text.is_empty()).then(|| text.to_owned()))
}

/// true or false.
pub(super) fn flag(node: &Node) -> Result<bool, Expected> {
    match node.value {
        Value::Flag(flag) => Ok(flag),
        _ => Err("true or false".to_owned()),
    }
}

/// A whole number in a range.
pub(super) fn integer<T: TryFrom<i64> + Copy + Into<i64> + core::fmt::Display>(
    range: RangeInclusive<T>,
) -> impl Fn(&Node) -> Result<T, Expected> {
    move |node| {
        let number = match node.value {
            Value::Integer(number) => T::try_from(number).ok(),
            _ => None,
        };
        let inside = |number: &T| ((*range.start()).into()..=(*range.end()).into()).contains(&(*number).into());
        number.filter(inside).ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Bytes in a range.
pub(super) fn bytes(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Result<u64, Expected> {
    move |node| {
        let value = node.text().and_then(parse_size).filter(|value| range.contains(value));
        value.ok_or_else(|| match *range.end() {
            u64::MAX => format!("a size from {:?} up, as \"64KiB\" or \"1GiB\"", size(*range.start())),
            end => format!("a size from {:?} to {:?}", size(*range.start()), size(end)),
        })
    }
}

/// Nanoseconds in a range.
pub(super) fn nanoseconds(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Result<u64, Expected> {
    move |node| {
        let value = node.text().and_then(parse_time).filter(|value| range.contains(value));
        value.ok_or_else(|| match *range.end() {
            u64::MAX => format!("a time from {:?} up, as \"500ms\" or \"7d\"", time(*range.start())),
            end => format!("a time from {:?} to {:?}", time(*range.start()), time(end)),
        })
    }
}

/// Bytes a second, as `"200KiB/s"`.
pub(super) fn rate(node: &Node) -> Result<u64, Expected> {
    let value = node.text().and_then(|text| text.strip_suffix("/s")).and_then(parse_size);
    value.filter(|rate| *rate > 0).ok_or_else(|| "a rate, as \"200KiB/s\"".to_owned())
}

/// One of some words.
pub(super) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&Node) -> Result<T, Expected> {
    move |node| {
        let found = node.text().and_then(|text| choices.iter().find(|(name, _)| *name == text));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
            match words.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                _ => words.concat(),
            }
        })
    }
}

/// A list of texts, not empty.
pub(super) fn texts(expected: &str) -> impl Fn(&Node) -> Result<Vec<(String, super::tree::Place)>, Expected> {
    move |node| {
        let expected = || format!("a list of {expected}");
        let Value::List(list) = &node.value else { return Err(expected()) };
        let texts: Option<Vec<_>> =
            list.iter().map(|node| node.text().map(|text| (text.to_owned(), node.place.clone()))).collect();
        texts.filter(|texts| !texts.is_empty()).ok_or_else(expected)
    }
}

/// A table, whatever is in it.
pub(super) fn any_table(node: &Node) -> Result<(), Expected> {
    matches!(node.value, Value::Table(_)).then_some(()).ok_or_else(|| "a table".to_owned())
}

/// Levels and modules, as `info` or `info,upstream=debug`.
pub(super) fn log_filter(node: &Node) -> Result<String, Expected> {
    let level = |text: &str| ["error", "warn", "info", "debug"].contains(&text);
    let module =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    let part = |text: &str| match text.split_once('=') {
        Some((name, of)) => module(name) && level(of),
        None => level(text),
    };
    let accept = |text: &&str| {
        let first_is_level = text.split(',').next().is_some_and(level);
        first_is_level && text.split(',').map(str::trim).all(part)
    };
    let expected = || "error, warn, info or debug, and more per module, as \"info,upstream=debug\"".to_owned();
    node.text().filter(accept).map(str::to_owned).ok_or_else(expected)
}

/// `HH:MM-HH:MM`.
pub(super) fn windows(node: &Node) -> Result<(), Expected> {
    let expected = "a list of times of day, as [\"22:00-06:00\"]";
    let hour = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        let digits = hours.len() == 2 && minutes.len() == 2;
        (digits && hours.parse::<u8>().ok()? < 24 && minutes.parse::<u8>().ok()? < 60).then_some(())
    };
    let window = |text: &str| {
        let (from, to) = text.split_once('-')?;
        hour(from).and(hour(to))
    };
    let list = texts("")(node).map_err(|_| expected.to_owned())?;
    list.iter().try_for_each(|(text, _)| window(text)).ok_or_else(|| expected.to_owned())
}
