//! The configuration: built-in defaults, a firmware profile, `config.toml` and `--set key=value`, in this order, the later wins.
//!
//! All of it becomes one tree in which every value knows its layer and its line, and then one checked [`Settings`]. Unknown keys are
//! errors, all errors are told and not only the first, and what a later version will know is refused in words, never ignored.

mod checks;
mod forms;
mod overlap;
mod reader;
mod sections;
mod set;
mod streams;
mod tree;
pub mod units;
mod upstreams;

pub use reader::{ConfigError, Resolved};
pub use tree::{Layer, Place};

use crate::limits::CONFIG_BYTES_MAX;
use crate::profile::{self, Profile};
use crate::settings::Settings;
use core::fmt;
use reader::{Findings, Reader, Unset};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::{Entry, Node, Table, Value};

/// Where the configuration is looked for when no file is named.
const SEARCHED: [&str; 2] = ["config.toml", "/etc/forebay/config.toml"];

/// What the command line says about the configuration.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// `--config`: this file; else `./config.toml`, then `/etc/forebay/config.toml`, then the built-in defaults alone.
    pub file: Option<PathBuf>,
    /// `--set key=value`, in order.
    pub sets: Vec<String>,
}

/// A configuration that was read without an error.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The checked values.
    pub settings: Settings,
    /// Sentences for the log: what is allowed but may not be meant.
    pub warnings: Vec<String>,
    /// Each value as it holds and where it came from, in the order of the file's sections.
    pub resolved: Vec<Resolved>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
}

impl Loaded {
    /// What `check --print` shows: a line per value, with its layer.
    pub fn print(&self) -> String {
        let lines: Vec<String> = self.resolved.iter().map(|one| format!("{} = {}", one.path, one.value)).collect();
        let width = lines.iter().map(|line| line.chars().count()).filter(|width| *width <= 60).max().unwrap_or(0);
        let place = |one: &Resolved| match &one.place.layer {
            Layer::Default | Layer::Set | Layer::File(_) => one.place.to_string(),
            Layer::Inherited(from) => format!("as {from}"),
            Layer::Profile(_) => format!("profile {}", one.place),
        };
        let lines = lines.iter().zip(&self.resolved);
        lines.map(|(line, one)| format!("{line:width$}  # {}\n", place(one))).collect()
    }
}

/// Everything that was wrong, in the order of the files. Shown one to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Where profiles are looked for.
type FindProfile<'a> = &'a dyn Fn(&str) -> Result<Option<Profile>, (PathBuf, io::Error)>;

/// Reads the configuration as `run` does.
pub fn load(options: LoadOptions) -> Result<Loaded, ConfigErrors> {
    let searched = || SEARCHED.iter().map(PathBuf::from).find(|path| path.is_file());
    let Some(file) = options.file.or_else(searched) else {
        let mut loaded = build("", "config.toml", &options.sets, credentials(), &|name| profile::find(name, None))?;
        let places = SEARCHED.join(" nor ");
        loaded.warnings.push(format!("neither ./{places} is there: the built-in defaults hold"));
        return Ok(loaded);
    };
    let label = file.display().to_string();
    let text = read(&file).map_err(|message| {
        let place = Place::whole(Layer::File(label.as_str().into()));
        ConfigErrors(vec![ConfigError { place, path: String::new(), message }])
    })?;
    let beside = file.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let loaded = build(&text, &label, &options.sets, credentials(), &|name| profile::find(name, beside))?;
    Ok(Loaded { file: Some(file), ..loaded })
}

/// Reads a configuration from a text, with the built-in profiles; errors speak of it as `name`. For embedding and tests.
pub fn from_str(text: &str, name: &str) -> Result<Loaded, ConfigErrors> {
    from_str_with(text, name, &[])
}

/// The same, with `--set` values.
pub fn from_str_with(text: &str, name: &str, sets: &[String]) -> Result<Loaded, ConfigErrors> {
    build(text, name, sets, None, &|name| Ok(profile::built_in(name)))
}

fn credentials() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from)
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(format!("expected at most {}, found a larger file", units::size(CONFIG_BYTES_MAX)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes().iter().take(error.utf8_error().valid_up_to()).filter(|byte| **byte == b'\n').count();
        format!("expected UTF-8, found other bytes in line {}", line + 1)
    })
}

fn build(
    text: &str,
    name: &str,
    sets: &[String],
    credentials: Option<PathBuf>,
    find: FindProfile<'_>,
) -> Result<Loaded, ConfigErrors> {
    let mut findings = Findings { credentials, ..Findings::default() };
    let file: Arc<str> = name.into();
    let (mut tree, syntax) = tree::parse(text, &Layer::File(file.clone()));
    let mut broken = Vec::new();
    note_syntax(&mut findings, &mut broken, &file, text, syntax);
    for argument in sets {
        if let Err(message) = set::apply(&mut tree, argument) {
            findings.error(&Place::whole(Layer::Set), "", message);
        }
    }
    let profile_name = with_profile(&mut findings, &mut broken, &mut tree, find);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let whole = Place::whole(Layer::File(file));
    let settings = checks::read(Reader::new(&mut findings, String::new(), whole, tree), profile_name, cores);
    let mut errors = findings.errors;
    errors.retain(|error| error.path.is_empty() || !guessed(&broken, error));
    errors.sort_by_key(|error| error.place.order());
    errors.dedup();
    match errors.is_empty() {
        true => Ok(Loaded { settings, warnings: findings.warnings, resolved: findings.resolved, file: None }),
        false => Err(ConfigErrors(errors)),
    }
}

/// A line that could not be read.
struct Broken {
    file: Arc<str>,
    line: usize,
    /// It should have begun a table: what follows it is read as part of another one.
    header: bool,
}

fn note_syntax(
    findings: &mut Findings,
    broken: &mut Vec<Broken>,
    file: &Arc<str>,
    text: &str,
    errors: Vec<tree::SyntaxError>,
) {
    for (place, message) in errors {
        let line = place.line.checked_sub(1).and_then(|line| text.lines().nth(line)).unwrap_or_default();
        broken.push(Broken { file: file.clone(), line: place.line, header: line.trim_start().starts_with('[') });
        findings.error(&place, "", message);
    }
}

/// Whether an error may be the consequence of a line that could not be read: what stands on it was guessed, what is missing may
/// have stood there, and below a lost header keys seem unknown.
fn guessed(broken: &[Broken], error: &ConfigError) -> bool {
    let (Layer::File(file) | Layer::Profile(file)) = &error.place.layer else { return false };
    broken.iter().filter(|broken| broken.file == *file).any(|broken| {
        broken.line == error.place.line
            || error.message.starts_with("missing")
            || (broken.header && broken.line < error.place.line && error.message.starts_with("unknown key"))
    })
}

/// Lays the profile under the tree. Returns its name.
fn with_profile(findings: &mut Findings, broken: &mut Vec<Broken>, tree: &mut Table, find: FindProfile<'_>) -> String {
    let place = Place::default_value();
    let mut only = Table::new();
    tree.remove("profile").into_iter().for_each(|entry| drop(only.insert("profile".to_owned(), entry)));
    let mut reader = Reader::new(findings, String::new(), place, only);
    let expected = format!("the name of a profile, as {}", profile::names());
    let accept = forms::text_as(&expected, |text| profile::valid_name(text).then(|| text.to_owned()));
    let name = reader.get("profile", Unset::Default("\"generic\""), accept);
    let Some(wanted) = name.value else { return String::new() };
    let profile = match find(&wanted) {
        Ok(Some(profile)) => profile,
        Ok(None) => {
            let message = format!("expected a profile that exists ({}), found {wanted:?}", profile::names());
            findings.error(&name.place, name.path, message);
            return wanted;
        }
        Err((path, error)) => {
            findings.error(&name.place, name.path, format!("{} cannot be read: {error}", path.display()));
            return wanted;
        }
    };
    let label: Arc<str> = profile.label.as_str().into();
    let layer = Layer::Profile(label.clone());
    let (values, syntax) = tree::parse(&profile.text, &layer);
    note_syntax(findings, broken, &label, &profile.text, syntax);
    let place = Place::whole(layer);
    let device = Node { value: Value::Table(values), place: place.clone(), raw: None };
    let mut merged = Table::from([("device".to_owned(), Entry { key: place, node: device })]);
    tree::merge(&mut merged, std::mem::take(tree));
    *tree = merged;
    wanted
}
