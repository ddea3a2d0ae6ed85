//! The house rules that a compiler does not check: imports run one way, the core is pure, files stay readable.
#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Who may import whom. A part may import itself and what stands here.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("limits", &[]),
    ("planted", &[]),
    ("settings", &["types", "limits"]),
    ("mqtt", &["types", "limits", "settings"]),
    ("session", &["types", "limits", "planted", "settings", "mqtt"]),
    ("router", &["types", "limits", "planted", "settings", "mqtt"]),
    ("log", &["types", "limits", "planted", "settings", "mqtt"]),
    ("replication", &["types", "limits", "planted", "settings", "mqtt"]),
    ("engine", &["types", "limits", "planted", "settings", "mqtt", "session", "router", "log", "replication"]),
];

const SHELL: &[&str] = &["storage", "net", "upstream", "admin"];
const TOP: &[&str] = &["broker", "config", "profile", "cli"];

/// What a core file may not name outside its tests: clocks, files, sockets, threads, locks, logging, randomness.
const IMPURE: &[&str] = &[
    "std::time",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::thread",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::mpsc",
    "std::env",
    "std::process",
    "smol::",
    "rustix::",
    "sled::",
    "socket2::",
    "::log::",
    "println!",
    "eprintln!",
    "getrandom",
    "RandomState::new",
];

const LINES_MAX: usize = 650;

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            let part = name.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
            (part, name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// The code without comments and without its test module, which stands last in a file.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..tests].lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn is_test_file(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("/tests/")
}

fn imports(code: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for (start, _) in code.match_indices("crate::") {
        let rest = &code[start + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let end = group.find('}').unwrap_or(group.len());
            parts.extend(group[..end].split(',').map(|item| item.trim().split("::").next().unwrap().to_owned()));
        } else {
            parts.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    parts
}

#[test]
fn imports_run_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for (part, name, text) in sources().into_iter().filter(|(_, name, _)| !is_test_file(name)) {
        for import in imports(&code(&text)) {
            let fine = import == part
                || match allowed.get(part.as_str()) {
                    Some(list) => list.contains(&import.as_str()),
                    None if SHELL.contains(&part.as_str()) => {
                        !SHELL.contains(&import.as_str()) && !TOP.contains(&import.as_str())
                    }
                    None if part == "broker" => import != "cli",
                    None if part == "config" || part == "profile" => {
                        !["broker", "cli", "engine"].contains(&import.as_str())
                    }
                    None => true,
                };
            if !fine {
                wrong.push(format!("{name} imports {import}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_core_is_pure() {
    let mut wrong = Vec::new();
    for (part, name, text) in sources() {
        if !MAY_IMPORT.iter().any(|(core, _)| *core == part) || is_test_file(&name) {
            continue;
        }
        // Our own module is called `log` too.
        let code = code(&text).replace("crate::log::", "").replace("super::log::", "");
        wrong.extend(IMPURE.iter().filter(|word| code.contains(**word)).map(|word| format!("{name} names {word}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_is_forbidden_and_files_stay_readable() {
    let mut wrong = Vec::new();
    for (_, name, text) in sources() {
        if ["lib.rs", "main.rs"].contains(&name.as_str()) && !text.contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("{name} does not forbid unsafe code"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{name} has {lines} lines; a file holds one idea"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
