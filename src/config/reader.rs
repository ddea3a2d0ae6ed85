//! Reads tables of the tree key by key: every value is checked, recorded with its layer, and what nobody asked for is an error.

use super::tree::{Entry, Layer, Node, Place, Table, Value, parse_value};
use core::fmt;
use std::path::PathBuf;

/// One error: `config.toml:12:8: stream[0].acks: expected 0, 1 or -1, found 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it was written.
    pub place: Place,
    /// The key; empty where the file as a whole is meant.
    pub path: String,
    /// What was expected and what was found.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}: {}", self.place, self.message),
            path => write!(f, "{}: {path}: {}", self.place, self.message),
        }
    }
}

/// One value as it holds, for `check --print`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The key.
    pub path: String,
    /// The value, as TOML writes it.
    pub value: String,
    /// The layer that it came from.
    pub place: Place,
}

/// What the surroundings give, and what the reading brings.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
    pub(super) resolved: Vec<Resolved>,
    /// systemd's `$CREDENTIALS_DIRECTORY`.
    pub(super) credentials: Option<PathBuf>,
}

impl Findings {
    pub(super) fn error(&mut self, place: &Place, path: impl Into<String>, message: impl Into<String>) {
        self.errors.push(ConfigError { place: place.clone(), path: path.into(), message: message.into() });
    }

    pub(super) fn warn(&mut self, place: &Place, path: &str, message: &str) {
        self.warnings.push(format!("{place}: {path}: {message}"));
    }
}

/// A value that was asked for. `value` is `None` if it was wrong (that is reported already) or is not there.
#[derive(Clone, Debug)]
pub(super) struct Field<T> {
    pub(super) value: Option<T>,
    pub(super) place: Place,
    pub(super) path: String,
    /// Whether somebody wrote it.
    pub(super) given: bool,
}

impl<T> Field<T> {
    /// The value, or a stand-in where an error was reported.
    pub(super) fn or(self, stand_in: T) -> T {
        self.value.unwrap_or(stand_in)
    }
}

/// What holds where a key is not given.
pub(super) enum Unset<'a> {
    /// It must be given; what was expected is said.
    Required(&'a str),
    /// Nothing.
    Absent,
    /// This value, as TOML.
    Default(&'a str),
    /// The value of another key, which is named.
    From(&'a str, String),
}

/// Checks a value: the error says what was expected.
pub(super) type Expected = String;

/// One table while it is read.
pub(super) struct Reader<'a> {
    pub(super) findings: &'a mut Findings,
    pub(super) path: String,
    pub(super) place: Place,
    table: Table,
    known: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(findings: &'a mut Findings, path: String, place: Place, table: Table) -> Self {
        Self { findings, path, place, table, known: Vec::new() }
    }

    /// The full path of a key of this table.
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn take(&mut self, key: &'static str) -> Option<Entry> {
        self.known.push(key);
        self.table.remove(key)
    }

    /// Whether somebody wrote this key.
    pub(super) fn given(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Leaves a key aside, unchecked: it was read before, or what it belongs to has been refused.
    pub(super) fn skip(&mut self, key: &'static str) {
        self.take(key);
    }

    /// Reads one value by `form`.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        unset: Unset<'_>,
        form: impl Fn(&Node) -> Result<T, Expected>,
    ) -> Field<T> {
        let path = self.path_of(key);
        let entry = self.take(key);
        let given = entry.is_some();
        let node = match (entry, unset) {
            (Some(entry), _) => entry.node,
            (None, Unset::Default(text)) => {
                Node { place: Place::default_value(), ..parse_value(text, &Layer::Default) }
            }
            (None, Unset::From(from, text)) => parse_value(&text, &Layer::Inherited(from.into())),
            (None, Unset::Absent) => return Field { value: None, place: self.place.clone(), path, given },
            (None, Unset::Required(expected)) => {
                self.findings.error(&self.place, &path, format!("missing: expected {expected}"));
                return Field { value: None, place: self.place.clone(), path, given };
            }
        };
        let value = match form(&node) {
            Ok(value) => {
                let resolved = Resolved { path: path.clone(), value: node.to_string(), place: node.place.clone() };
                self.findings.resolved.push(resolved);
                Some(value)
            }
            Err(expected) => {
                let message = format!("expected {expected}, found {}", node.found());
                self.findings.error(&node.place, &path, message);
                None
            }
        };
        Field { value, place: node.place, path, given }
    }

    /// A key that a later version will know: its form is checked, and it is refused in words. `inert` is a value that changes
    /// nothing and so is taken.
    pub(super) fn later<T>(
        &mut self,
        key: &'static str,
        inert: Option<&str>,
        form: impl Fn(&Node) -> Result<T, Expected>,
    ) {
        let Some(Entry { node, .. }) = self.take(key) else { return };
        let path = self.path_of(key);
        let message = match form(&node) {
            Ok(_) if inert.is_some_and(|inert| node.to_string() == inert) => return,
            Ok(_) => "not available in this version yet: leave it out".to_owned(),
            Err(expected) => format!("expected {expected}, found {}", node.found()),
        };
        self.findings.error(&node.place, path, message);
    }

    /// A secret that somebody wrote into the configuration. Its value is never shown.
    pub(super) fn no_secret(&mut self, key: &'static str, instead: &str) {
        if let Some(Entry { key: place, .. }) = self.table.remove(key) {
            let message =
                format!("secrets are not written here: put it into a file of its own and name that as {instead}");
            let path = self.path_of(key);
            self.findings.error(&place, path, message);
        }
    }

    /// A sub-table, empty where it is not given; with whether it was.
    pub(super) fn table(&mut self, key: &'static str) -> (Reader<'_>, bool) {
        let path = self.path_of(key);
        let (table, place, given) = match self.take(key) {
            None => (Table::new(), Place { layer: self.place.layer.clone(), ..self.place }, false),
            Some(Entry { node, .. }) => match node.value {
                Value::Table(table) => (table, node.place, true),
                _ => {
                    let message = format!("expected a table, as [{path}], found {}", node.found());
                    self.findings.error(&node.place, &path, message);
                    (Table::new(), node.place, false)
                }
            },
        };
        (Reader::new(self.findings, path, place, table), given)
    }

    /// A list of tables, as `[[stream]]`, each with its path and place.
    pub(super) fn tables(&mut self, key: &'static str, most: usize) -> Vec<(String, Place, Table)> {
        let path = self.path_of(key);
        let Some(Entry { node, .. }) = self.take(key) else { return Vec::new() };
        let found = node.found();
        let Value::List(list) = node.value else {
            self.findings.error(&node.place, &path, format!("expected a list of tables, as [[{path}]], found {found}"));
            return Vec::new();
        };
        if list.len() > most {
            let message = format!("expected at most {most}, found {}", list.len());
            self.findings.error(&node.place, &path, message);
        }
        let mut tables = Vec::new();
        for (index, node) in list.into_iter().enumerate().take(most) {
            let path = format!("{path}[{index}]");
            let found = node.found();
            match node.value {
                Value::Table(table) => tables.push((path, node.place, table)),
                _ => self.findings.error(&node.place, path, format!("expected a table, found {found}")),
            }
        }
        tables
    }

    /// Reports what nobody asked for.
    pub(super) fn finish(self) {
        for (key, entry) in &self.table {
            let near = self.known.iter().map(|known| (distance(key, known), known)).min();
            let hint = match near {
                Some((distance, known)) if distance <= 2.min(key.len() / 2) => format!(", did you mean {known}?"),
                _ => String::new(),
            };
            self.findings.error(&entry.key, self.path_of(key), format!("unknown key{hint}"));
        }
    }
}

/// Letters to change, add or remove to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, a) in one.chars().enumerate() {
        let mut left = line + 1;
        let mut diagonal = line;
        for (b, cell) in other.iter().zip(row.iter_mut().skip(1)) {
            let cost = diagonal + usize::from(a != *b);
            diagonal = *cell;
            left = cost.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distances_are_counted_in_letters() {
        for (one, other, expected) in [
            ("acks", "acks", 0),
            ("ack", "acks", 1),
            ("data_dri", "data_dir", 2),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }
}
