//! Firmware profiles: what a class of devices stands. Those that come with forebay are in the program itself, so that it works
//! alone; a file of the same name beside the configuration, in /etc/forebay or in /usr/share/forebay wins.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folder of the profiles, below the places where they are looked for.
const FOLDER: &str = "firmware-profiles";

/// The profiles in the program: name and text.
pub const BUILT_IN: [(&str, &str); 6] = [
    ("generic", include_str!("../firmware-profiles/generic.toml")),
    ("raspberry-pi-zero", include_str!("../firmware-profiles/raspberry-pi-zero.toml")),
    ("raspberry-pi-4", include_str!("../firmware-profiles/raspberry-pi-4.toml")),
    ("compute-module-emmc", include_str!("../firmware-profiles/compute-module-emmc.toml")),
    ("industrial-gateway", include_str!("../firmware-profiles/industrial-gateway.toml")),
    ("x86-server", include_str!("../firmware-profiles/x86-server.toml")),
];

/// A profile's text and the name under which errors speak of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// File name for people.
    pub label: String,
    /// TOML.
    pub text: String,
}

/// Whether a name may be a profile's: it becomes a file name, so `[a-z0-9_-]+`.
pub fn valid_name(name: &str) -> bool {
    crate::settings::valid_name(name)
}

/// The profile in the program.
pub fn built_in(name: &str) -> Option<Profile> {
    let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    Some(Profile { label: format!("{FOLDER}/{name}.toml"), text: (*text).to_owned() })
}

/// The profile `name`: beside the configuration file in `beside`, in /etc/forebay, in /usr/share/forebay, or built in. `Ok(None)`
/// if there is none; an error with its path if a file is there and cannot be read.
pub fn find(name: &str, beside: Option<&Path>) -> Result<Option<Profile>, (PathBuf, io::Error)> {
    if !valid_name(name) {
        return Ok(None);
    }
    let places = [beside, Some(Path::new("/etc/forebay")), Some(Path::new("/usr/share/forebay"))];
    for place in places.into_iter().flatten() {
        let path = place.join(FOLDER).join(format!("{name}.toml"));
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some(Profile { label: path.display().to_string(), text })),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err((path, error)),
        }
    }
    Ok(built_in(name))
}

/// Names of the profiles in the program, for messages.
pub fn names() -> String {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beside_the_configuration_wins_over_the_built_in_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find("generic", Some(dir.path())).unwrap(), built_in("generic"));
        fs::create_dir(dir.path().join(FOLDER)).unwrap();
        fs::write(dir.path().join(FOLDER).join("generic.toml"), "io_threads = 1\n").unwrap();
        assert_eq!(find("generic", Some(dir.path())).unwrap().unwrap().text, "io_threads = 1\n");
        fs::write(dir.path().join(FOLDER).join("mine.toml"), "io_threads = 2\n").unwrap();
        assert_eq!(find("mine", Some(dir.path())).unwrap().unwrap().text, "io_threads = 2\n");
    }

    #[test]
    fn a_name_never_leaves_the_folder() {
        for name in ["../generic", "", "/etc/passwd", "generic.toml", "Generic"] {
            assert_eq!(find(name, Some(Path::new("."))).unwrap(), None, "{name:?}");
        }
    }

    #[test]
    fn every_profile_in_the_folder_is_in_the_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
        let mut files: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let mut names: Vec<String> = BUILT_IN.iter().map(|(name, _)| format!("{name}.toml")).collect();
        names.sort();
        assert_eq!(files, names);
    }
}
