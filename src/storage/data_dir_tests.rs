use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_directory_that_is_missing_is_made_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/data");
    let data_dir = DataDir::open(&path).unwrap();
    assert_eq!(mode(&path), 0o700);
    assert!(data_dir.log_dir().is_dir());
    assert!(data_dir.notes().is_empty());
}

#[test]
fn an_empty_directory_and_one_of_ours_are_made_private() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        DataDir::open(dir.path()).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
    }
}

#[test]
fn somebody_elses_directory_keeps_its_mode_and_its_files_and_that_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for n in 0..7 {
        fs::write(dir.path().join(format!("photo-{n}")), "x").unwrap();
    }
    let data_dir = DataDir::open(dir.path()).unwrap();
    assert_eq!(mode(dir.path()), 0o755);
    let notes = data_dir.notes().join("\n");
    assert!(notes.contains("chmod 700"), "{notes}");
    assert!(notes.contains("\"photo-0\"") && notes.contains("and 2 more"), "{notes}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 9);
}

#[test]
fn a_second_handle_is_refused_with_who_has_it_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let first = DataDir::open(dir.path()).unwrap();
    let error = DataDir::open(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "data_dir {} is in use by another forebay process (pid {}): stop that one first, or set gateway.data_dir to another \
             directory",
            dir.path().display(),
            std::process::id()
        )
    );
    assert!(matches!(DataDir::open_existing(dir.path()), Err(OpenError::Locked { .. })));
    drop(first);
    DataDir::open(dir.path()).unwrap();
}

#[test]
fn looking_at_a_directory_that_is_not_there_makes_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let error = DataDir::open_existing(&path).unwrap_err().to_string();
    assert!(error.contains("no such file or directory") && error.contains("set gateway.data_dir"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_path_that_cannot_be_a_directory_is_an_error_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = DataDir::open(&file.join("data")).unwrap_err().to_string();
    assert!(error.starts_with("cannot create ") && error.contains("set gateway.data_dir to a directory"), "{error}");
    let error = DataDir::open(&file).unwrap_err().to_string();
    assert!(error.contains("set gateway.data_dir to a directory"), "{error}");
}

#[test]
fn everything_in_the_directory_counts() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = DataDir::open(dir.path()).unwrap();
    let before = data_dir.usage().unwrap();
    fs::create_dir(data_dir.state_dir()).unwrap();
    fs::write(data_dir.state_dir().join("db"), vec![1; 100_000]).unwrap();
    fs::write(data_dir.log_dir().join("foreign"), vec![1; 50_000]).unwrap();
    let after = data_dir.usage().unwrap();
    assert!(after.used_bytes >= before.used_bytes + 150_000);
    assert!(after.free_bytes > 0);
    assert!(usage(&dir.path().join("missing")).is_err());
}

#[test]
fn a_sector_is_overwritten_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mark");
    write_sector(&path, "a long text").unwrap();
    write_sector(&path, "short").unwrap();
    let bytes = read_small(&path).unwrap().unwrap();
    assert_eq!(bytes.len(), 512);
    assert_eq!(String::from_utf8(bytes).unwrap().trim(), "short");
    write_sector(&path, &"x".repeat(2000)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 512);
    assert_eq!(read_small(&dir.path().join("none")).unwrap(), None);
}
