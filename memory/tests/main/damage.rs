//! Tests of damaged files, unfinished generations and second writers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::*;

const QUERY: [f32; 4] = [1.0, 0.0, 0.5, 0.0];

/// Builds a memory of 40 entries whose ids descend, deletes two of them, and adds 20. So the first
/// segment has one file per column, and the second segment is in the pack of generation 3.
fn build(folder: &Path, dtype: ValueDtype) -> Writer {
    let values = Some(ValueFormat { tokens: 2, width: 4, dtype });
    let format = MemoryFormat { width: 4, normalised: true, values };
    let mut writer = create(folder, format, batch(&mut Rng::new(3), format, (0..40).rev()));
    writer.delete(&[3, 30]).unwrap();
    add(&mut writer, batch(&mut Rng::new(4), format, 100..120));
    writer
}

/// Returns the paths of all files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { paths.extend(files(&path)) } else { paths.push(path) }
    }
    paths.sort();
    paths
}

/// Calls all functions of a reader.
fn read_all(folder: &Path) -> Result<(), MemoryError> {
    let generation = Memory::open(folder)?.generation();
    let errors = generation.verify();
    let queries = Queries { keys: &QUERY, k: 60 };
    let results = generation.search(Method::Exact, queries, &Filter::default())?;
    for hit in &results.hits[0] {
        generation.entry(hit.row)?;
        generation.values(&[hit.row])?;
    }
    generation.info()?;
    errors.into_iter().next().map_or(Ok(()), Err)
}

#[test]
fn errors_name_the_damaged_file_and_nothing_panics() {
    for dtype in ValueDtype::ALL {
        let (_temporary, memory) = new_path();
        drop(build(&memory, dtype));
        let mut rng = Rng::new(9);
        for file in files(&memory) {
            // The first generation's folder is needed for its segment, but its manifest is not. The
            // previous generation is not needed.
            let is_unused = ["LOCK", "gen-000001/manifest.json", "gen-000002.pack"]
                .iter()
                .any(|unused| file.ends_with(unused));
            let original = fs::read(&file).unwrap();
            let mut damaged: Vec<Option<Vec<u8>>> = vec![None];
            if !original.is_empty() {
                damaged.extend(
                    [0, original.len() / 2, original.len() - 1]
                        .map(|end| Some(original[..end].to_vec())),
                );
                for _ in 0..40 {
                    let mut bytes = original.clone();
                    bytes[rng.below(original.len() as u64) as usize] ^= 1 << rng.below(8);
                    damaged.push(Some(bytes));
                }
            }
            for bytes in damaged {
                match &bytes {
                    None => fs::remove_file(&file).unwrap(),
                    Some(bytes) => fs::write(&file, bytes).unwrap(),
                }
                match read_all(&memory) {
                    // The line break of the pointer has no effect.
                    Ok(()) => assert!(is_unused || file.ends_with("CURRENT"), "{}", file.display()),
                    Err(error) => {
                        let error = error.to_string();
                        // A changed pointer may name another folder; the error then names that
                        // folder.
                        let is_pointer = file.ends_with("CURRENT") && bytes.is_some();
                        let name = file.file_name().unwrap().to_str().unwrap();
                        assert!(error.contains(name) || is_pointer, "{}: {error}", file.display());
                        let is_missing = error.contains("is missing");
                        assert!(bytes.is_some() || is_missing, "{}: {error}", file.display());
                    }
                }
                fs::write(&file, &original).unwrap();
            }
        }
        read_all(&memory).unwrap();
    }
}

#[test]
fn all_damaged_files_are_reported() {
    let (_temporary, memory) = new_path();
    build(&memory, ValueDtype::Int4).delete(&[5]).unwrap();
    assert!(Memory::verify(&memory).unwrap().is_empty());
    let damaged =
        ["gen-000001/ids.safetensors", "gen-000001/scales.safetensors", "gen-000003.pack"];
    fs::remove_file(memory.join(damaged[0])).unwrap();
    fs::write(memory.join(damaged[1]), b"short").unwrap();
    fs::write(memory.join(damaged[2]), b"").unwrap();
    let errors: Vec<String> =
        Memory::verify(&memory).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    for name in damaged {
        assert!(errors.iter().any(|error| error.contains(name)), "{name}: {errors:?}");
    }
}

/// Makes a pipe without a child process, which would inherit the locks of other tests for a moment.
pub fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_without_waiting() {
    let (_temporary, memory) = new_path();
    drop(build(&memory, ValueDtype::F16));
    for name in ["CURRENT", "gen-000001/keys.safetensors", "gen-000003.pack"] {
        let file = memory.join(name);
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        make_pipe(&file);
        let expected = format!("{name}: is not a file; run `engram memory verify`");
        assert_refused(read_all(&memory), [&expected]);
        fs::remove_file(&file).unwrap();
        fs::write(&file, bytes).unwrap();
    }
}

#[test]
fn another_format_version_has_its_own_error() {
    let (_temporary, memory) = new_path();
    let mut writer = build(&memory, ValueDtype::F16);
    let pack = memory.join("gen-000003.pack");
    let bytes = fs::read(&pack).unwrap();
    let (version, newer) = (b"\"format_version\":1", b"\"format_version\":9");
    let at = bytes.windows(version.len()).position(|part| part == version).unwrap();
    let newer_pack = [&bytes[..at], newer, &bytes[at + newer.len()..]].concat();
    fs::write(&pack, newer_pack).unwrap();
    let expected = ["has format version 9, but this program reads version 1"];
    assert_refused(Memory::open(&memory), expected);
    fs::write(&pack, bytes).unwrap();
    writer.compact(|_| ()).unwrap();
    let manifest = memory.join("gen-000004/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let newer = text.replace("\"format_version\": 1", "\"format_version\": 9, \"unknown\": true");
    assert_ne!(text, newer);
    fs::write(&manifest, newer).unwrap();
    assert_refused(Memory::open(&memory), expected);
}

#[test]
fn damaged_deleted_rows_of_a_large_segment_are_detected() {
    let (_temporary, memory) = new_path();
    let format = MemoryFormat { width: 2, normalised: true, values: None };
    let mut writer = create(&memory, format, batch(&mut Rng::new(4), format, 0..70_000));
    writer.delete(&[3, 69_000]).unwrap();
    let generation = Memory::open(&memory).unwrap().generation();
    assert!(generation.len() == 69_998 && generation.row_of(3).unwrap().is_none());
    let pack = memory.join("gen-000002.pack");
    let original = fs::read(&pack).unwrap();
    for byte in [0, 5000, 8749] {
        let mut bytes = original.clone();
        bytes[byte] ^= 1;
        fs::write(&pack, bytes).unwrap();
        assert_refused(Memory::open(&memory), ["gen-000002.pack: was changed"]);
    }
    fs::write(&pack, &original[..8000]).unwrap();
    assert_refused(Memory::open(&memory), ["gen-000002.pack"]);
    // The list stays in its pack while other segments change.
    fs::write(&pack, &original).unwrap();
    for id in 70_000..70_003 {
        add(&mut writer, batch(&mut Rng::new(5), format, [id]));
    }
    assert!(pack.exists() && Memory::verify(&memory).unwrap().is_empty());
    assert_eq!(Memory::open(&memory).unwrap().generation().len(), 70_001);
}

#[test]
fn a_second_writer_is_refused() {
    let (_temporary, memory) = new_path();
    let writer = build(&memory, ValueDtype::F16);
    assert!(matches!(Writer::open(&memory), Err(MemoryError::Locked { .. })));
    let format = MemoryFormat { width: 4, normalised: true, values: None };
    let rebuilt = Writer::create(&memory, format, 0, std::iter::empty());
    assert!(matches!(rebuilt, Err(MemoryError::AlreadyExists { .. })));
    drop(writer);
    Writer::open(&memory).unwrap();
    assert_refused(
        Memory::open(memory.parent().unwrap()),
        ["is not a memory; build one with `engram memory build`"],
    );
}

#[test]
fn a_failed_change_leaves_the_memory_unchanged() {
    let (_temporary, memory) = new_path();
    let mut writer = build(&memory, ValueDtype::F16);
    let before = files(&memory);
    let values = Some(ValueFormat { tokens: 2, width: 4, dtype: ValueDtype::F16 });
    let format = MemoryFormat { width: 4, normalised: true, values };
    let rows = |ids: &[i64]| batch(&mut Rng::new(1), format, ids);
    let (mut not_finite, mut zero, mut too_large) = (rows(&[50, 51]), rows(&[50]), rows(&[50]));
    not_finite.keys[5] = f32::NAN;
    zero.keys.fill(0.0);
    too_large.values[7] = 70_000.0;
    for (count, rows, expected) in [
        (2, rows(&[50, 7]), "the id 7 exists already"),
        (2, rows(&[50, 50]), "the id 50 exists already"),
        (3, rows(&[50]), "1 entries instead of 3"),
        (2, not_finite, "the key of row 1 contains NaN or infinity"),
        (1, zero, "the key of row 0 is a zero vector"),
        (1, too_large, "the value of row 0 contains NaN"),
    ] {
        assert_refused(writer.add(count, [Ok(rows)].into_iter()), [expected]);
    }
    assert_refused(writer.update(2, [Ok(rows(&[1, 3]))].into_iter()), ["no entry has the id 3"]);
    let expected = "no entry has the id 900 (2 of 3 ids are unknown)";
    assert_refused(writer.delete(&[1, 900, 901]), [expected]);
    assert_eq!(files(&memory), before);
    read_all(&memory).unwrap();
}

#[test]
fn a_reader_keeps_its_generation_during_writes() {
    let (_temporary, memory) = new_path();
    let mut writer = build(&memory, ValueDtype::Int8);
    let reader = Memory::open(&memory).unwrap();
    let generation = reader.generation();
    let search_all = |generation: &Generation| {
        let hits = exact(generation, &QUERY, 60, &Filter::default()).hits.remove(0);
        let rows: Vec<_> = hits.iter().map(|hit| hit.row).collect();
        let entries: Vec<_> = rows.iter().map(|row| generation.entry(*row).unwrap()).collect();
        (hits, entries, generation.values(&rows).unwrap())
    };
    let before = search_all(&generation);
    for _ in 0..3 {
        encode_again(&mut writer, Ok);
    }
    writer.delete(&[1]).unwrap();
    // Only generations without readers are removed.
    let is_present = |number: u64| {
        ["", ".pack"].iter().any(|end| memory.join(format!("gen-{number:06}{end}")).exists())
    };
    assert!(is_present(1) && is_present(3));
    assert!(!is_present(2) && !is_present(4) && !is_present(5));
    assert_eq!(search_all(&generation), before);
    assert!(generation.verify().is_empty());
    assert!(reader.reload().unwrap());
    assert_eq!(search_all(&reader.generation()).0.len(), before.0.len() - 1);
    drop(generation);
    writer.compact(|_| ()).unwrap();
    assert!(!is_present(1) && !is_present(3));
    // Removing the folders anyway does not affect a reader.
    let generation = reader.generation();
    let before = search_all(&generation);
    fs::remove_dir_all(&memory).unwrap();
    assert_eq!(search_all(&generation), before);
}

#[test]
fn only_a_valid_generation_name_is_reported_as_missing() {
    let (_temporary, memory) = new_path();
    drop(build(&memory, ValueDtype::F16));
    let pointer = memory.join("CURRENT");
    let original = fs::read_to_string(&pointer).unwrap();
    for (name, is_missing) in
        [("gen-000009", true), ("gen-", false), ("gen-x", false), ("m", false)]
    {
        fs::write(&pointer, original.replacen("gen-000003", name, 1)).unwrap();
        let expected = if is_missing { "is missing: it was" } else { "does not name a generation" };
        assert_refused(Memory::open(&memory), [expected]);
    }
}
