use super::*;

const BOOT: BootId = BootId([7; 16]);
const NEXT_BOOT: BootId = BootId([8; 16]);

struct House {
    _dir: tempfile::TempDir,
    data_dir: DataDir,
}

fn house() -> House {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = DataDir::open(&dir.path().join("data")).unwrap();
    House { _dir: dir, data_dir }
}

impl House {
    fn state(&self, boot: BootId) -> SledState {
        SledState::open(&self.data_dir, 1 << 20, boot)
    }

    /// A state with one value, as after a rebuild.
    fn filled(&self) -> SledState {
        let mut state = self.state(BOOT);
        state.apply(&[put("cursor/a", "1"), put("cursor/b", "2"), put("session/x", "3")], 10).unwrap();
        state.settled();
        state
    }

    fn damage(&self) {
        let mut damaged = 0;
        for entry in fs::read_dir(self.data_dir.state_dir()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let length = fs::metadata(&path).unwrap().len() as usize;
                fs::write(&path, vec![0xa5; length.min(1 << 20)]).unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 0);
    }
}

fn put(key: &str, value: &str) -> Change {
    Change { key: key.into(), value: Some(value.into()) }
}

fn all(state: &SledState, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    state
        .scan(prefix.as_bytes(), &mut |key, value| {
            found.push(format!("{}={}", String::from_utf8_lossy(key), String::from_utf8_lossy(value)));
            true
        })
        .unwrap();
    found
}

#[test]
fn changes_and_stamp_are_applied_together_and_read_back() {
    let house = house();
    let mut state = house.state(BOOT);
    assert_eq!(state.stamp().unwrap(), None);
    assert!(!state.trusted(), "an empty one is to be rebuilt");
    state.apply(&[put("a", "1"), put("b", "2"), put("a/x", "3")], 5).unwrap();
    state.apply(&[Change { key: b"b".to_vec(), value: None }, put("c", "")], 6).unwrap();
    assert_eq!(state.stamp().unwrap(), Some(6));
    assert_eq!(state.get(b"b").unwrap(), None);
    assert_eq!(state.get(b"c").unwrap(), Some(Vec::new()));
    assert_eq!(all(&state, ""), ["a=1", "a/x=3", "c="]);
    assert_eq!(all(&state, "a"), ["a=1", "a/x=3"]);
    let mut first = 0;
    state
        .scan(b"", &mut |_, _| {
            first += 1;
            false
        })
        .unwrap();
    assert_eq!(first, 1);
}

#[test]
fn an_orderly_close_is_trusted_in_the_next_boot() {
    let house = house();
    let mut state = house.filled();
    state.flush().unwrap();
    drop(state);
    let state = house.state(NEXT_BOOT);
    assert!(state.trusted());
    assert_eq!(state.stamp().unwrap(), Some(10));
    assert_eq!(all(&state, "cursor/"), ["cursor/a=1", "cursor/b=2"]);
    assert!(state.notes().is_empty());
}

#[test]
fn a_crash_of_the_process_alone_is_trusted_and_a_power_cut_is_not() {
    let house = house();
    drop(house.filled());
    let state = house.state(BOOT);
    assert!(state.trusted());
    assert_eq!(state.stamp().unwrap(), Some(10));
    drop(state);
    let mut state = house.state(NEXT_BOOT);
    assert!(!state.trusted());
    assert_eq!(state.stamp().unwrap(), Some(10), "so far the log was synced once: evidence, if nothing more");
    state.clear().unwrap();
    assert_eq!(state.stamp().unwrap(), None);
    assert_eq!(all(&state, ""), [""; 0]);
    assert!(!house.data_dir.quarantine_dir().exists(), "doubtful is not damaged");
}

#[test]
fn what_is_applied_after_an_orderly_close_ends_the_trust_again() {
    let house = house();
    let mut state = house.filled();
    state.flush().unwrap();
    state.flush().unwrap();
    state.apply(&[put("late", "1")], 11).unwrap();
    assert_eq!(all(&state, "late"), ["late=1"]);
    drop(state);
    assert!(!house.state(NEXT_BOOT).trusted());
}

#[test]
fn a_rebuild_that_was_cut_short_is_not_trusted_even_in_the_same_boot() {
    let house = house();
    let mut state = house.state(BOOT);
    state.apply(&[put("a", "1")], 3).unwrap();
    drop(state);
    let mut state = house.state(BOOT);
    assert!(!state.trusted());
    state.apply(&[put("a", "1")], 3).unwrap();
    state.flush().unwrap();
    drop(state);
    assert!(!house.state(BOOT).trusted());
}

#[test]
fn a_damaged_directory_is_set_aside_once_and_an_empty_one_is_begun() {
    let house = house();
    for round in 0..2 {
        let mut state = house.filled();
        state.flush().unwrap();
        drop(state);
        house.damage();
        let state = house.state(BOOT);
        assert!(!state.trusted(), "round {round}");
        assert!(!state.in_memory());
        assert_eq!(state.stamp().unwrap(), None);
        assert_eq!(state.notes().len(), 1, "{:?}", state.notes());
        assert!(state.notes()[0].contains("state.quarantine"));
        assert!(fs::read_dir(house.data_dir.quarantine_dir()).unwrap().count() > 0);
    }
}

#[test]
fn every_flipped_byte_of_the_file_ends_in_a_state_or_in_a_rebuild_never_in_a_panic() {
    let house = house();
    let mut state = house.filled();
    state.flush().unwrap();
    drop(state);
    let file = house.data_dir.state_dir().join("db");
    let good = fs::read(&file).unwrap();
    for at in [0, 3, 16, 17, 40, 64, 90, 130, 200, 300, 500] {
        let mut bytes = good.clone();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 0x55;
        }
        fs::write(&file, bytes).unwrap();
        Mark::Closed.write(&house.data_dir.path().join("state.mark")).unwrap();
        let state = house.state(BOOT);
        let _ = state.stamp();
        let _ = state.get(b"cursor/a");
        let _ = state.scan(b"", &mut |_, _| true);
        drop(state);
        let _ = fs::remove_dir_all(house.data_dir.quarantine_dir());
        let _ = fs::create_dir(house.data_dir.state_dir());
    }
}

#[test]
fn a_state_that_contradicts_the_log_can_be_set_aside() {
    let house = house();
    let mut state = house.filled();
    state.quarantine("it is newer than the log").unwrap();
    assert!(!state.trusted());
    assert_eq!(all(&state, ""), [""; 0]);
    assert!(state.notes()[0].contains("newer than the log"));
    assert!(house.data_dir.quarantine_dir().exists());
    state.apply(&[put("a", "1")], 1).unwrap();
    assert_eq!(state.stamp().unwrap(), Some(1));
}

#[test]
fn a_clear_removes_everything_and_the_state_goes_on() {
    let house = house();
    let mut state = house.filled();
    state.clear().unwrap();
    assert_eq!(state.stamp().unwrap(), None);
    assert!(!state.in_memory(), "{:?}", state.notes());
    state.apply(&[put("b", "1")], 1).unwrap();
    assert_eq!(all(&state, ""), ["b=1"]);
}

#[test]
fn where_sled_cannot_have_its_files_the_state_is_kept_in_memory_and_that_is_told() {
    let house = house();
    fs::write(house.data_dir.state_dir(), "a file where the directory should be").unwrap();
    let mut state = house.state(BOOT);
    assert!(state.in_memory());
    assert!(!state.trusted());
    assert_eq!(state.notes().len(), 1);
    state.apply(&[put("a", "1"), put("b", "2")], 4).unwrap();
    state.apply(&[Change { key: b"a".to_vec(), value: None }], 5).unwrap();
    state.settled();
    assert_eq!(state.get(b"b").unwrap(), Some(b"2".to_vec()));
    assert_eq!(all(&state, ""), ["b=2"]);
    assert_eq!(state.stamp().unwrap(), Some(5));
    state.flush().unwrap();
    state.clear().unwrap();
    assert_eq!(state.stamp().unwrap(), None);
    assert_eq!(fs::read(house.data_dir.state_dir()).unwrap(), b"a file where the directory should be");
}

/// The child of the next test: applies until it is killed. Without its variable it does nothing.
#[test]
fn apply_until_killed() {
    let Some(path) = std::env::var_os("FOREBAY_STATE_KILL") else { return };
    let data_dir = DataDir::open(Path::new(&path)).unwrap();
    let mut state = SledState::open(&data_dir, 1 << 20, BOOT);
    let mut stamp = state.stamp().unwrap().unwrap_or(0);
    state.settled();
    println!("ready");
    loop {
        stamp += 1;
        let value = stamp.to_string().repeat(20);
        state
            .apply(&[put("first", &value), put(&format!("k{}", stamp % 50), &value), put("last", &value)], stamp)
            .unwrap();
    }
}

#[test]
fn after_a_kill_the_stamp_says_exactly_what_was_applied() {
    use std::io::BufRead;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut reached = 0;
    for round in 0..8 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storage::sled_state::tests::apply_until_killed", "--nocapture"])
            .env("FOREBAY_STATE_KILL", &path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        assert!(out.lines().map_while(Result::ok).any(|line| line.contains("ready")), "round {round}");
        std::thread::sleep(std::time::Duration::from_millis(40 + 17 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let data_dir = DataDir::open(&path).unwrap();
        let state = SledState::open(&data_dir, 1 << 20, BOOT);
        assert!(state.trusted(), "round {round}: {:?}", state.notes());
        let stamp = state.stamp().unwrap().unwrap_or(0);
        assert!(stamp >= reached);
        reached = stamp;
        for number in (stamp.saturating_sub(49)..=stamp).filter(|number| *number > 0) {
            let value = state.get(format!("k{}", number % 50).as_bytes()).unwrap();
            assert_eq!(value, Some(number.to_string().repeat(20).into_bytes()), "round {round}, stamp {stamp}");
        }
        let newest = (stamp > 0).then(|| stamp.to_string().repeat(20).into_bytes());
        assert_eq!(state.get(b"first").unwrap(), newest);
        assert_eq!(state.get(b"last").unwrap(), newest);
    }
    assert!(reached > 0, "something has to be kept over the kills");
}
