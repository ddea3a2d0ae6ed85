//! The configuration as a tree of values, each with the layer and the place that it came from.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Built in.
    Default,
    /// Taken from another key, which is named.
    Inherited(Arc<str>),
    /// A firmware profile, under this file name.
    Profile(Arc<str>),
    /// The configuration file, under this name.
    File(Arc<str>),
    /// The command line.
    Set,
}

/// A layer and a position in it. Lines and columns count from 1, columns in characters; line 0 is "the whole file".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The layer.
    pub layer: Layer,
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl Place {
    pub(super) fn whole(layer: Layer) -> Self {
        Self { layer, line: 0, column: 0 }
    }

    pub(super) fn default_value() -> Self {
        Self::whole(Layer::Default)
    }

    /// Profiles first, then the file, then the command line; within one by position.
    pub(super) fn order(&self) -> (u8, usize, usize) {
        let layer = match self.layer {
            Layer::Default | Layer::Inherited(_) => 3,
            Layer::Profile(_) => 0,
            Layer::File(_) => 1,
            Layer::Set => 2,
        };
        (layer, self.line, self.column)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.layer {
            Layer::Default => f.write_str("default")?,
            Layer::Inherited(from) => f.write_str(from)?,
            Layer::Profile(name) | Layer::File(name) => f.write_str(name)?,
            Layer::Set => f.write_str("--set")?,
        }
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        Ok(())
    }
}

/// Keys and values.
pub(super) type Table = BTreeMap<String, Entry>;

/// A key's place and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Place,
    pub(super) node: Node,
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
    /// What stood behind the `=` on the command line, where quotes are not needed.
    pub(super) raw: Option<String>,
}

/// A value as TOML knows them.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    /// A number that is no integer of ours, and dates, as they were written.
    Other(String),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
}

impl Node {
    /// The text: a string, or whatever was given on the command line.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => self.raw.as_deref(),
        }
    }

    /// What an error says was found.
    pub(super) fn found(&self) -> String {
        match &self.value {
            // It may hold a password.
            Value::Text(text) if text.contains("://") && text.contains('@') => {
                "a user name or password in an address".to_owned()
            }
            Value::Text(text) => {
                let shown: String = text.chars().take(60).collect();
                format!("{shown:?}{}", if text.chars().count() > 60 { "…" } else { "" })
            }
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
            _ => self.to_string(),
        }
    }
}

/// As TOML writes it, on one line.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Integer(number) => write!(f, "{number}"),
            Value::Other(text) => f.write_str(text),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::List(list) => {
                f.write_str("[")?;
                for (index, node) in list.iter().enumerate() {
                    write!(f, "{}{node}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Value::Table(table) => {
                f.write_str("{ ")?;
                for (index, (key, entry)) in table.iter().enumerate() {
                    write!(f, "{}{key} = {}", if index == 0 { "" } else { ", " }, entry.node)?;
                }
                f.write_str(" }")
            }
        }
    }
}

/// A syntax error: where and what.
pub(super) type SyntaxError = (Place, String);

/// Reads a whole document. What can be read beside syntax errors is returned with them.
pub(super) fn parse(text: &str, layer: &Layer) -> (Table, Vec<SyntaxError>) {
    let (document, errors) = DeTable::parse_recoverable(text);
    let source = Source { text, layer, lines: line_starts(text) };
    let errors = errors
        .iter()
        .map(|error| (source.place(error.span().map_or(0, |span| span.start)), error.message().to_owned()))
        .collect();
    (source.table(document.get_ref()), errors)
}

/// Reads one value as the command line gives it: TOML, or a string without its quotes.
pub(super) fn parse_value(raw: &str, layer: &Layer) -> Node {
    let source = Source { text: "", layer, lines: Vec::new() };
    let value = match DeValue::parse(raw.trim()) {
        Ok(value) => source.value(value.get_ref()),
        Err(_) => Value::Text(raw.to_owned()),
    };
    Node { value, place: Place::whole(layer.clone()), raw: Some(raw.to_owned()) }
}

/// Lays `over` on `base`: tables are joined, anything else is replaced.
pub(super) fn merge(base: &mut Table, over: Table) {
    for (key, entry) in over {
        match (base.get_mut(&key), entry) {
            (Some(Entry { node: Node { value: Value::Table(below), .. }, .. }), entry) => match entry.node.value {
                Value::Table(above) => merge(below, above),
                _ => drop(base.insert(key, entry)),
            },
            (_, entry) => drop(base.insert(key, entry)),
        }
    }
}

struct Source<'a> {
    text: &'a str,
    layer: &'a Layer,
    /// Byte at which each line begins.
    lines: Vec<usize>,
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

impl Source<'_> {
    fn place(&self, at: usize) -> Place {
        let line = self.lines.partition_point(|start| *start <= at);
        let start = line.checked_sub(1).and_then(|line| self.lines.get(line)).copied().unwrap_or(0);
        let column = self.text.get(start..at).map_or(0, |before| before.chars().count()) + 1;
        Place { layer: self.layer.clone(), line, column }
    }

    fn node(&self, value: &Spanned<DeValue<'_>>) -> Node {
        Node { value: self.value(value.get_ref()), place: self.place(value.span().start), raw: None }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let key: &Spanned<std::borrow::Cow<'_, str>> = key;
            (key.get_ref().to_string(), Entry { key: self.place(key.span().start), node: self.node(value) })
        };
        table.iter().map(entry).collect()
    }

    fn value(&self, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Value::Integer(number),
                Err(_) => Value::Other(number.to_string()),
            },
            DeValue::Float(number) => Value::Other(number.as_str().to_owned()),
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Datetime(time) => Value::Other(time.to_string()),
            DeValue::Array(list) => Value::List(list.iter().map(|value| self.node(value)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table)),
        }
    }
}
