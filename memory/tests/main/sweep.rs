//! Tests of the files that writers remove from a memory's folder, and of the files that they never
//! touch.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::*;
use engram_memory::is_own_generation;

const FORMAT: MemoryFormat = MemoryFormat { width: 4, normalised: true, values: None };

/// Builds a memory of 20 entries with ids from `first_id`.
fn create(folder: &Path, first_id: i64) -> Result<Writer, MemoryError> {
    let rows = batch(&mut Rng::new(5), FORMAT, first_id..first_id + 20);
    Writer::create(folder, FORMAT, 20, [Ok(rows)].into_iter())
}

/// Files and folders by their path from the root, such as `/LOCK`. Files have their bytes, and
/// folders `None`.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// Returns the files and folders below a folder.
fn tree(folder: &Path) -> Tree {
    fn add(folder: &Path, name: &str, tree: &mut Tree) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{name}/{}", entry.file_name().display());
            if entry.file_type().unwrap().is_dir() {
                tree.insert(name.clone(), None);
                add(&entry.path(), &name, tree);
            } else {
                tree.insert(name, fs::read(entry.path()).ok());
            }
        }
    }
    let mut tree = BTreeMap::new();
    add(folder, "", &mut tree);
    tree
}

/// The marker of an unfinished generation.
const MARKER: &str = "engram memory: this generation is not finished\n";

/// Writes files, and creates their folders.
fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn files_of_a_killed_writer_are_removed() {
    let (_temporary, memory) = new_path();
    drop(create(&memory, 0).unwrap());
    let before = tree(&memory);
    write(
        &memory,
        &[
            // Leftovers of writers that were killed while writing a generation, before writing the
            // pointer, while writing the pointer, and before writing the first file.
            ("gen-000002.partial/UNFINISHED", MARKER),
            ("gen-000002.partial/keys.safetensors", "half"),
            ("gen-000003/UNFINISHED", MARKER),
            ("gen-000003/manifest.json", "{}"),
            ("gen-000003/graph-0-upper.safetensors", "half"),
            ("gen-000003/graph-1-lists.safetensors", "half"),
            ("gen-000003/graph-1-codes.safetensors", "half"),
            ("gen-000003/graph-2-lists.safetensors", "half"),
            ("gen-000003/deleted-12.bits", "half"),
            (".CURRENT.engram-aB3xY9", "gen-0000"),
            ("gen-000004.partial/UNFINISHED", &MARKER[..7]),
            // The same for packs.
            ("gen-000006.UNFINISHED", &MARKER[..7]),
            ("gen-000007.UNFINISHED", MARKER),
            ("gen-000007.pack", "half"),
            ("gen-000001.UNFINISHED", MARKER),
        ],
    );
    fs::create_dir(memory.join("gen-000005.partial")).unwrap();
    assert_eq!(Memory::open(&memory).unwrap().generation().len(), 20);
    drop(Writer::open(&memory).unwrap());
    assert_eq!(tree(&memory), before);
    // A new build works in the folder of a killed first build.
    fs::remove_file(memory.join("CURRENT")).unwrap();
    write(&memory, &[("gen-000001/UNFINISHED", MARKER), (".CURRENT.engram-aB3xY9", "")]);
    write(&memory, &[("gen-000002.UNFINISHED", MARKER), ("gen-000002.pack", "")]);
    assert_refused(Memory::open(&memory), ["is not a memory"]);
    assert_refused(Writer::open(&memory), ["is not a memory"]);
    drop(create(&memory, 0).unwrap());
    assert_eq!(tree(&memory), before);
}

/// Files of a user with names similar to Engram's.
const USER_FILES: [(&str, &str); 19] = [
    ("gen-0000000009/letter.txt", "1"),
    ("gen-notes/keys.safetensors", "2"),
    ("gen-/keys.safetensors", "3"),
    ("gen-000002/letter.txt", "4"),
    ("gen-000003.partial/keys.safetensors", "5"),
    ("gen-000007/manifest.json", "{\"generation\": 7}"),
    ("gen-000008.partial/manifest.json", "{}"),
    ("gen-000009.partial/UNFINISHED", "business"),
    ("gen-000010.backup/UNFINISHED", MARKER),
    (".CURRENT.backup", "6"),
    (".CURRENT.a1b2c3", "7"),
    (".LOCK.engram-a1b2c3", "8"),
    ("notes.partial/letter.txt", "9"),
    ("gen-000011", "a file"),
    ("gen-000012.pack", "a file"),
    ("gen-000013.pack", ""),
    ("gen-000014.UNFINISHED", "business"),
    ("gen-000015.pack/letter.txt", "12"),
    ("gen-16.pack", "13"),
];

#[test]
fn files_that_engram_did_not_write_stay() {
    let (_temporary, memory) = new_path();
    drop(create(&memory, 0).unwrap());
    write(&memory, &USER_FILES);
    // A user's files inside Engram's folders stay, too, with the folder.
    write(&memory, &[("gen-000001/letter.txt", "10"), ("gen-000001/deleted-x.bits", "11")]);
    let copy = |from: &str, to: &str| {
        fs::create_dir(memory.join(to)).unwrap();
        for file in ["manifest.json", "keys.safetensors"] {
            fs::copy(memory.join(from).join(file), memory.join(to).join(file)).unwrap();
        }
    };
    // The manifest belongs to another generation.
    copy("gen-000001", "gen-000044");
    let user_files = || {
        let is_listed = |path: &str| USER_FILES.iter().any(|(name, _)| path == format!("/{name}"));
        let mut files = tree(&memory);
        files.retain(|path, _| {
            is_listed(path)
                || path.contains("letter")
                || path.contains("deleted-x")
                || path.contains("44")
        });
        files
    };
    let expected = user_files();
    assert_eq!(expected.len(), USER_FILES.len() + 2 + 3);
    for deleted in 0..3 {
        let mut writer = Writer::open(&memory).unwrap();
        writer.compact(|_| ()).unwrap();
        writer.delete(&[deleted]).unwrap();
        assert_eq!(user_files(), expected);
        assert!(Memory::verify(&memory).unwrap().is_empty());
    }
    assert_eq!(Memory::open(&memory).unwrap().generation().len(), 17);
    // Only the user's files remain of the first generation.
    let mut remaining: Vec<String> = tree(&memory).into_keys().collect();
    remaining.retain(|name| name.starts_with("/gen-000001/"));
    assert_eq!(remaining, ["/gen-000001/deleted-x.bits", "/gen-000001/letter.txt"]);
}

/// A reader of a pack prevents the removal of the pack, and of the packs that it needs.
#[test]
fn packs_that_a_reader_needs_stay() {
    let (_temporary, memory) = new_path();
    let mut writer = create(&memory, 0).unwrap();
    let add = |writer: &mut Writer, id: i64| add(writer, batch(&mut Rng::new(6), FORMAT, [id]));
    let packs = || {
        let mut names: Vec<String> = tree(&memory).into_keys().collect();
        names.retain(|name| name.ends_with(".pack"));
        names
    };
    add(&mut writer, 100);
    add(&mut writer, 101);
    let reader = Memory::open(&memory).unwrap();
    writer.compact(|_| ()).unwrap();
    add(&mut writer, 102);
    add(&mut writer, 103);
    let expected = ["2", "3", "5", "6"].map(|number| format!("/gen-00000{number}.pack"));
    assert_eq!(packs(), expected);
    assert!(reader.generation().verify().is_empty());
    reader.reload().unwrap();
    add(&mut writer, 104);
    let expected = ["5", "6", "7"].map(|number| format!("/gen-00000{number}.pack"));
    assert_eq!(packs(), expected);
    drop((writer, reader));
    // A later generation stays: somebody restored an older `CURRENT`.
    let later = fs::read(memory.join("gen-000007.pack")).unwrap();
    let mut writer = Writer::open(&memory).unwrap();
    writer.compact(|_| ()).unwrap();
    writer.compact(|_| ()).unwrap();
    assert!(packs().is_empty());
    fs::write(memory.join("gen-000099.pack"), &later).unwrap();
    add(&mut writer, 105);
    assert_eq!(packs(), ["/gen-000010.pack", "/gen-000099.pack"]);
    write(&memory, &[("gen-000012.pack", "a file"), ("gen-000013.UNFINISHED", "a file")]);
    for (name, is_own) in [
        ("gen-000010.pack", true),
        ("gen-000099.pack", false),
        ("gen-000012.pack", false),
        ("gen-000013.UNFINISHED", false),
        ("CURRENT", false),
    ] {
        assert_eq!(is_own_generation(&memory.join(name)).unwrap(), is_own, "{name}");
    }
}

#[test]
fn a_refused_build_changes_nothing() {
    for (name, text) in USER_FILES.into_iter().chain([("LOCK", "mine"), ("CURRENT", "mine")]) {
        let (_temporary, existing) = new_path();
        write(&existing, &[(name, text)]);
        let before = tree(&existing);
        let error = create(&existing, 0).unwrap_err();
        assert!(matches!(error, MemoryError::AlreadyExists { .. }), "{name}: {error}");
        assert!(Writer::open(&existing).is_err() && Memory::open(&existing).is_err());
        assert_eq!(tree(&existing), before, "{name}");
    }
    let (_temporary, file) = new_path();
    fs::write(&file, "mine").unwrap();
    assert!(matches!(create(&file, 0), Err(MemoryError::AlreadyExists { .. })));
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_memory_without_its_pointer_is_not_overwritten() {
    let (_temporary, memory) = new_path();
    drop(create(&memory, 0).unwrap());
    fs::remove_file(memory.join("CURRENT")).unwrap();
    let before = tree(&memory);
    assert!(matches!(create(&memory, 0), Err(MemoryError::AlreadyExists { .. })));
    assert_refused(Memory::open(&memory), ["CURRENT: is missing"]);
    assert_refused(Writer::open(&memory), ["CURRENT: is missing"]);
    assert_eq!(tree(&memory), before);
}

#[test]
fn a_failed_build_leaves_only_existing_files() {
    let temporary = folder();
    let fail = |folder: &Path| {
        let rows = batch(&mut Rng::new(5), FORMAT, [1, 1]);
        Writer::create(folder, FORMAT, 2, [Ok(rows)].into_iter()).unwrap_err()
    };
    let memory = temporary.path().join("m");
    assert!(matches!(fail(&memory), MemoryError::DuplicateId { .. }));
    assert!(!memory.exists());
    fs::create_dir(&memory).unwrap();
    fail(&memory);
    assert!(tree(&memory).is_empty());
}

#[test]
fn one_of_several_simultaneous_builds_succeeds() {
    for round in 0..40 {
        let temporary = folder();
        let memory = &temporary.path().join("m");
        let results: Vec<_> = std::thread::scope(|scope| {
            let build = |first| scope.spawn(move || create(memory, first).map(drop));
            let threads: Vec<_> = (0..4).map(|number| build(100 * number)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winner = results.iter().position(Result::is_ok).expect("a successful build");
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "round {round}");
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            let is_expected =
                matches!(error, MemoryError::AlreadyExists { .. } | MemoryError::Locked { .. });
            assert!(is_expected, "{error}");
        }
        let generation = Memory::open(memory).unwrap().generation();
        assert!(generation.row_of(100 * winner as i64).unwrap().is_some());
        assert!(Writer::open(memory).is_ok());
    }
}
