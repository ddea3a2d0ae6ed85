use super::*;

const SIZE: u64 = 256 << 10;

fn store() -> (tempfile::TempDir, FileStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), SIZE).unwrap();
    (dir, store)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_was_written_and_synced_is_read_back_by_the_next_opening() {
    let (dir, store) = store();
    store.create(1).unwrap();
    store.write_at(1, 64, &[IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")]).unwrap();
    store.sync(1).unwrap();
    drop(store);
    let store = FileStore::open(dir.path(), SIZE).unwrap();
    assert_eq!(store.list().unwrap(), [1]);
    let mut buffer = [0; 7];
    assert_eq!(store.read_at(1, 64, &mut buffer).unwrap(), 7);
    assert_eq!(&buffer, b"one two");
}

#[test]
fn a_segment_is_of_full_size_and_zero_from_its_creation_on() {
    let (dir, store) = store();
    store.create(7).unwrap();
    assert_eq!(fs::read(dir.path().join("000000000007.seg")).unwrap(), vec![0; SIZE as usize]);
    assert!(store.bytes_used().unwrap() >= SIZE);
}

#[test]
fn more_buffers_than_one_system_call_takes_are_written_in_order() {
    let (_dir, store) = store();
    store.create(1).unwrap();
    let bytes: Vec<u8> = (0..3000_u32).map(|n| (n % 251) as u8).collect();
    let buffers: Vec<IoSlice<'_>> = bytes.chunks(3).map(IoSlice::new).collect();
    store.write_at(1, 10, &buffers).unwrap();
    let mut read = vec![0; 3000];
    store.read_at(1, 10, &mut read).unwrap();
    assert_eq!(read, bytes);
}

#[test]
fn a_read_over_the_end_is_short_and_a_write_over_the_end_is_refused() {
    let (_dir, store) = store();
    store.create(1).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(store.read_at(1, SIZE - 40, &mut buffer).unwrap(), 40);
    assert_eq!(store.read_at(1, SIZE + 40, &mut buffer).unwrap(), 0);
    let error = store.write_at(1, SIZE - 1, &[IoSlice::new(b"ab")]).unwrap_err();
    assert_eq!((error.operation, error.kind), ("write", ErrorKind::InvalidInput));
    assert!(error.subject.ends_with("000000000001.seg"));
}

#[test]
fn bytes_that_are_there_are_never_created_over() {
    let (dir, store) = store();
    store.create(1).unwrap();
    assert_eq!(store.create(1).unwrap_err().kind, ErrorKind::AlreadyExists);
    fs::write(dir.path().join("000000000002.seg"), "somebody's").unwrap();
    assert_eq!(store.create(2).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(fs::read(dir.path().join("000000000002.seg")).unwrap(), b"somebody's");
}

#[test]
fn a_segment_given_up_becomes_a_spare_and_the_next_segment_is_made_of_it() {
    let (dir, store) = store();
    store.create(1).unwrap();
    store.write_at(1, 0, &[IoSlice::new(b"old")]).unwrap();
    store.recycle(1).unwrap();
    assert_eq!(store.list().unwrap(), [0_u64; 0]);
    assert_eq!(store.read_at(1, 0, &mut [0; 3]).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(names(dir.path()).len(), 1);
    store.create(2).unwrap();
    assert_eq!(names(dir.path()), ["000000000002.seg"]);
    let mut buffer = [0; 3];
    store.read_at(2, 0, &mut buffer).unwrap();
    assert_eq!(&buffer, b"old", "old bytes may stand in a recycled segment: the salt tells them apart");
}

#[test]
fn spares_are_bounded_and_kept_over_a_restart() {
    let (dir, store) = store();
    for number in 1..=5 {
        store.create(number).unwrap();
    }
    for number in 1..=5 {
        store.recycle(number).unwrap();
    }
    assert_eq!(names(dir.path()).len(), SPARE_SEGMENTS_MAX);
    let store = FileStore::open(dir.path(), SIZE).unwrap();
    store.prepare_spare().unwrap();
    assert_eq!(names(dir.path()).len(), SPARE_SEGMENTS_MAX, "a spare was there, so none was made");
}

#[test]
fn a_half_filled_spare_is_finished_and_one_of_another_size_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("spare-0003.new"), "half").unwrap();
    fs::write(dir.path().join("spare-0004"), "of another size").unwrap();
    let store = FileStore::open(dir.path(), SIZE).unwrap();
    assert_eq!(names(dir.path()), ["spare-0003.new", "spare-0004.new"]);
    assert!(store.notes().is_empty());
    store.create(1).unwrap();
    store.prepare_spare().unwrap();
    assert_eq!(names(dir.path()), ["000000000001.seg", "spare-0003"]);
    assert_eq!(fs::metadata(dir.path().join("000000000001.seg")).unwrap().len(), SIZE);
}

#[test]
fn older_segments_keep_their_size_when_the_configured_size_changes() {
    let (dir, store) = store();
    store.create(1).unwrap();
    drop(store);
    let store = FileStore::open(dir.path(), SIZE * 2).unwrap();
    assert_eq!(store.read_at(1, SIZE - 1, &mut [0; 9]).unwrap(), 1);
    store.write_at(1, SIZE - 1, &[IoSlice::new(b"x")]).unwrap();
    assert!(store.write_at(1, SIZE - 1, &[IoSlice::new(b"xy")]).is_err());
    store.create(2).unwrap();
    store.write_at(2, SIZE * 2 - 1, &[IoSlice::new(b"x")]).unwrap();
}

#[test]
fn foreign_files_are_told_and_neither_used_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["notes.txt", "1.seg", "-1.seg", "spare-1", "000000000001.seg.bak"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    fs::create_dir(dir.path().join("000000000009.seg")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", dir.path().join("000000000008.seg")).unwrap();
    let before = names(dir.path());
    let store = FileStore::open(dir.path(), SIZE).unwrap();
    assert_eq!(store.list().unwrap(), [0_u64; 0]);
    assert_eq!(store.notes().len(), 1);
    assert!(store.notes()[0].contains("\"notes.txt\"") || store.notes()[0].contains("2 more"), "{:?}", store.notes());
    store.create(1).unwrap();
    store.recycle(1).unwrap();
    assert!(before.iter().all(|name| names(dir.path()).contains(name)));
}

#[test]
fn files_open_at_once_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), 4096).unwrap();
    for number in 1..=40 {
        store.create(number).unwrap();
        store.write_at(number, 0, &[IoSlice::new(&[number as u8])]).unwrap();
    }
    for number in (1..=40).chain(1..=40) {
        let mut byte = [0];
        store.read_at(number, 0, &mut byte).unwrap();
        assert_eq!(u64::from(byte[0]), number);
    }
    assert!(store.lock().readers.len() <= OPEN_SEGMENTS_MAX);
}

#[test]
fn after_a_failed_sync_a_segment_is_never_synced_again_and_never_a_spare() {
    let (dir, store) = store();
    store.create(1).unwrap();
    store.lock().poisoned.insert(1);
    let error = store.sync(1).unwrap_err();
    assert_eq!(error.operation, "sync");
    assert!(store.write_at(1, 0, &[IoSlice::new(b"x")]).is_err());
    assert_eq!(store.read_at(1, 0, &mut [0; 4]).unwrap(), 4, "it can still be read");
    store.recycle(1).unwrap();
    assert!(names(dir.path()).is_empty());
}

#[test]
fn readers_and_the_committer_work_at_the_same_time() {
    let (_dir, store) = store();
    store.create(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 2..30 {
                store.create(number).unwrap();
                store.write_at(number, 0, &[IoSlice::new(b"abcd")]).unwrap();
                store.sync(number).unwrap();
                store.recycle(number - 1).unwrap();
            }
        });
        scope.spawn(|| (0..10).for_each(|_| store.prepare_spare().unwrap()));
        for _ in 0..300 {
            for number in store.list().unwrap() {
                let mut buffer = [0; 4];
                match store.read_at(number, 0, &mut buffer) {
                    Ok(count) => assert_eq!(count, 4),
                    Err(error) => assert_eq!(error.kind, ErrorKind::NotFound, "{error}"),
                }
            }
        }
    });
    assert_eq!(store.list().unwrap(), [29]);
}
