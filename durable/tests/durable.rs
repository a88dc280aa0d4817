//! Tests of durable writes: files and folders appear as a whole or not at all. Leftovers of a
//! killed process are recognised; other files stay unchanged.

use std::fs;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use engram_durable as durable;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_only_by_its_commit_and_keeps_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scores.csv");
    durable::write_file(&path, b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let mut file = durable::FileWriter::create(&path).unwrap();
    file.write_all(b"new!").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"N").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    file.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"New!");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(names(folder.path()), ["scores.csv"]);
}

#[test]
fn a_file_without_a_commit_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = durable::FileWriter::create(&folder.path().join("scores.csv")).unwrap();
    file.write_all(b"half").unwrap();
    let [temporary] = &names(folder.path())[..] else { panic!("one temporary") };
    assert!(durable::is_leftover(temporary.as_ref(), "scores.csv"));
    drop(file);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_folder_exists_only_after_its_commit() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("a/b/set");
    let set = durable::FolderWriter::create(&folder).unwrap();
    durable::write_file(&set.path().join("one"), b"1").unwrap();
    assert!(!folder.exists());
    set.commit().unwrap();
    assert_eq!(names(&folder), ["one"]);
    let default = root.path().join("default");
    fs::create_dir(&default).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&folder), mode(&default), "the mode follows the umask");
    assert_eq!(names(&root.path().join("a/b")), ["set"]);
    drop(durable::FolderWriter::create(&root.path().join("other")).unwrap());
    assert_eq!(names(root.path()), ["a", "default"]);
}

#[test]
fn a_folder_replaces_only_an_empty_folder() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("set");
    fs::create_dir(&folder).unwrap();
    let set = durable::FolderWriter::create(&folder).unwrap();
    // Another process adds a file to the final folder before the commit.
    fs::write(folder.join("theirs"), b"x").unwrap();
    fs::write(set.path().join("ours"), b"y").unwrap();
    let error = set.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(names(&folder), ["theirs"]);
    assert_eq!(names(&temporary_path_in(&error)), ["ours"]);
    assert!(durable::FolderWriter::create(&folder).is_err());
    assert!(durable::FolderWriter::create(&folder.join("theirs")).is_err());
}

#[test]
fn only_leftovers_of_the_given_targets_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let other_files =
        [".notes.Xy12Zw", ".summary.json.engram-short", ".other.engram-a1B2c3", "summary.json"];
    let leftovers = [".summary.json.engram-a1B2c3", ".best.engram-000000"];
    for name in other_files.iter().chain(&leftovers) {
        fs::write(folder.path().join(name), b"x").unwrap();
    }
    let leftover_folder = folder.path().join(".step.engram-zzzzzz");
    fs::create_dir(&leftover_folder).unwrap();
    fs::write(leftover_folder.join("weights"), b"x").unwrap();
    durable::remove_leftovers(folder.path(), &["summary.json", "best", "step"]).unwrap();
    let mut expected = other_files.map(str::to_owned);
    expected.sort();
    assert_eq!(names(folder.path()), expected);
    durable::remove_leftovers(&folder.path().join("missing"), &["best"]).unwrap();
}

#[test]
fn files_are_appended_locked_copied_renamed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for line in ["one\n", "two\n"] {
        durable::append_to(&path("log")).unwrap().write_all(line.as_bytes()).unwrap();
    }
    assert_eq!(fs::read(path("log")).unwrap(), b"one\ntwo\n");
    durable::open_lock(&path("log")).unwrap();
    assert_eq!(fs::read(path("log")).unwrap(), b"one\ntwo\n");
    durable::copy_file(&path("log"), &path("copy")).unwrap();
    durable::create_folder(&path("deep/er")).unwrap();
    durable::rename(&path("copy"), &path("deep/er/copy")).unwrap();
    assert_eq!(fs::read(path("deep/er/copy")).unwrap(), b"one\ntwo\n");
    assert!(durable::open_device(&path("log")).is_err(), "a regular file is never written into");
    assert!(durable::create_new_file(&path("log")).is_err());
    durable::remove_folder(&path("deep")).unwrap();
    durable::remove_file(&path("log")).unwrap();
    durable::remove_file(&path("log")).unwrap();
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_linked_file_is_complete_and_leaves_no_temporary() {
    let root = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| root.path().join(name));
    fs::write(&from, "new").unwrap();
    fs::write(&to, "old").unwrap();
    for _ in 0..2 {
        durable::link_file(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"new");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }
    assert!(durable::link_file(&root.path().join("none"), &to).is_err());
    assert_eq!(fs::read(&to).unwrap(), b"new");
}

#[test]
fn a_new_file_replaces_nothing_and_its_content_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scores");
    let write = |bytes: &[u8]| {
        let mut file = durable::FileWriter::create(&path).unwrap();
        file.write_all(bytes).unwrap();
        file
    };
    let (first, second) = (write(b"first"), write(b"second"));
    first.commit_new().unwrap();
    let error = second.commit_new().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    let temporary_path = temporary_path_in(&error);
    assert_eq!(fs::read(&temporary_path).unwrap(), b"second");
    assert!(durable::is_leftover(temporary_path.file_name().unwrap(), "scores"));
    // A dangling link is a file too.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("missing", &path).unwrap();
    temporary_path_in(&write(b"third").commit_new().unwrap_err());
    assert!(path.is_symlink() && !path.exists());
}

/// Returns the path of the new content from an error message.
fn temporary_path_in(error: &std::io::Error) -> PathBuf {
    let text = error.to_string();
    PathBuf::from(text.rsplit_once("the new content is in ").expect("a path").1)
}

#[test]
fn appending_to_a_link_changes_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let [target, symbolic, hard] =
        ["target", "symbolic", "hard"].map(|name| folder.path().join(name));
    fs::write(&target, b"one ").unwrap();
    std::os::unix::fs::symlink(&target, &symbolic).unwrap();
    fs::hard_link(&target, &hard).unwrap();
    for link in [&symbolic, &hard] {
        durable::append_to(link).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read(link).unwrap(), b"one two");
        assert!(!link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"one ");
    }
    fs::remove_file(&target).unwrap();
    fs::remove_file(&symbolic).unwrap();
    std::os::unix::fs::symlink(&target, &symbolic).unwrap();
    durable::append_to(&symbolic).unwrap().write_all(b"new").unwrap();
    assert_eq!(fs::read(&symbolic).unwrap(), b"new");
    assert!(!symbolic.is_symlink() && !target.exists());
    let error = durable::append_to(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // The lock file of a dangling link would be created elsewhere.
    let dangling = folder.path().join("lock");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &dangling).unwrap();
    assert_eq!(durable::open_lock(&dangling).unwrap_err().kind(), ErrorKind::InvalidInput);
    // A folder of ours is no link either.
    let inside = |name| durable::create_folder_in(folder.path(), name);
    assert_eq!(inside("lock").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!dangling.exists());
    std::os::unix::fs::symlink(inside("new").unwrap(), folder.path().join("old")).unwrap();
    assert_eq!(inside("old").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn pipes_and_devices_are_not_files_and_only_inputs_may_be_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let socket = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    for path in [&pipe, &socket] {
        let error = durable::open_file(path).unwrap_err();
        assert!(error.to_string().contains("a socket or a device"), "{error}");
    }
    assert_eq!(durable::open_input(&socket).unwrap_err().kind(), ErrorKind::InvalidInput);
    for path in [&pipe, Path::new("/dev/zero")] {
        assert_eq!(durable::open_file(path).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(durable::open_lock(path).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(durable::append_to(path).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(
        durable::open_input("/dev/zero".as_ref()).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(durable::open_input(&pipe).unwrap_err().kind(), ErrorKind::TimedOut);
    // A writer that starts later and ends at once.
    let path = pipe.clone();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::write(path, "text")
    });
    assert_eq!(durable::read_input_text(&pipe).unwrap(), "text");
    writer.join().unwrap().unwrap();
    // A file that would fill the memory, although it takes no room on the disk.
    let large = folder.path().join("large");
    fs::File::create(&large).unwrap().set_len(2 << 30).unwrap();
    assert_eq!(durable::read_file(&large).unwrap_err().kind(), ErrorKind::FileTooLarge);
}
