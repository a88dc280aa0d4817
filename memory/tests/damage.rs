//! Tests of damaged files, unfinished generations and second writers.
#![allow(clippy::unwrap_used)]

mod plain;

use std::fs;
use std::path::{Path, PathBuf};

use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Index, Queries};
use engram_memory::{Memory, MemoryError, MemoryFormat, ValueDtype, ValueFormat, Writer};
use plain::{Numbers, batch, folder};

fn build(folder: &Path, dtype: ValueDtype) -> Writer {
    let values = Some(ValueFormat { tokens: 2, width: 4, dtype });
    let format = MemoryFormat { width: 4, normalised: true, values };
    let rows = batch(&mut Numbers::new(3), format, &(0..40).collect::<Vec<_>>());
    let mut writer = Writer::create(folder, format, 40, [Ok(rows)].into_iter()).unwrap();
    writer.delete(&[3, 30]).unwrap();
    writer
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Calls all functions of a reader.
fn use_all(folder: &Path) -> Result<(), MemoryError> {
    let generation = Memory::open(folder)?.generation();
    let faults = generation.verify();
    let queries = Queries { keys: &[1.0, 0.0, 0.5, 0.0], k: 40 };
    let found = Exact.search(&generation, queries, &Filter::default())?;
    for hit in &found.hits[0] {
        generation.entry(hit.row)?;
        generation.values(&[hit.row])?;
    }
    generation.info()?;
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(()),
    }
}

#[test]
fn errors_name_the_damaged_file_and_nothing_panics() {
    for dtype in [ValueDtype::F16, ValueDtype::Int8] {
        let temporary = folder();
        let memory = temporary.path().join("m");
        drop(build(&memory, dtype));
        let mut next = Numbers::new(9);
        for file in files(&memory) {
            // The first generation's folder is needed for its segment, but its manifest is not.
            let unused = file.ends_with("LOCK") || file.ends_with("gen-000001/manifest.json");
            let original = fs::read(&file).unwrap();
            let mut damaged: Vec<Option<Vec<u8>>> = vec![None];
            if !original.is_empty() {
                damaged.extend(
                    [0, original.len() / 2, original.len() - 1]
                        .map(|end| Some(original[..end].to_vec())),
                );
                for _ in 0..40 {
                    let mut bytes = original.clone();
                    bytes[next.below(original.len() as u64) as usize] ^= 1 << next.below(8);
                    damaged.push(Some(bytes));
                }
            }
            for bytes in damaged {
                match &bytes {
                    None => fs::remove_file(&file).unwrap(),
                    Some(bytes) => fs::write(&file, bytes).unwrap(),
                }
                match use_all(&memory) {
                    // The line break of the pointer has no effect.
                    Ok(()) => assert!(unused || file.ends_with("CURRENT"), "{}", file.display()),
                    Err(error) => {
                        let error = error.to_string();
                        // A changed pointer may name another folder; the error then names that
                        // folder.
                        let pointer = file.ends_with("CURRENT") && bytes.is_some();
                        let named = error.contains(file.file_name().unwrap().to_str().unwrap());
                        assert!(named || pointer, "{}: {error}", file.display());
                        let missing = error.contains("is missing");
                        assert!(bytes.is_some() || missing, "{}: {error}", file.display());
                    }
                }
                fs::write(&file, &original).unwrap();
            }
        }
        use_all(&memory).unwrap();
    }
}

#[test]
fn all_damaged_files_are_reported() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    drop(build(&memory, ValueDtype::Int8));
    assert!(Memory::verify(&memory).unwrap().is_empty());
    let broken = ["gen-000001/ids.safetensors", "gen-000001/scales.safetensors"];
    fs::remove_file(memory.join(broken[0])).unwrap();
    fs::write(memory.join(broken[1]), b"short").unwrap();
    fs::write(memory.join("gen-000002/deleted-0.bits"), b"").unwrap();
    let faults: Vec<String> =
        Memory::verify(&memory).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 3, "{faults:?}");
    for name in broken.into_iter().chain(["gen-000002/deleted-0.bits"]) {
        assert!(faults.iter().any(|fault| fault.contains(name)), "{name}: {faults:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_is_refused_without_waiting() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    drop(build(&memory, ValueDtype::F16));
    for name in ["CURRENT", "gen-000001/keys.safetensors", "gen-000002/manifest.json"] {
        let file = memory.join(name);
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        // Not with the command `mkfifo`: a child process would inherit the locks of other tests.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &file, kind, mode, 0).unwrap();
        let error = use_all(&memory).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{name}: is not a file; run `engram memory verify`")),
            "{error}"
        );
        fs::remove_file(&file).unwrap();
        fs::write(&file, bytes).unwrap();
    }
}

#[test]
fn a_newer_format_version_has_its_own_error() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    drop(build(&memory, ValueDtype::F16));
    let manifest = memory.join("gen-000002/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let newer = text.replace("\"format_version\": 1", "\"format_version\": 9, \"unheard\": true");
    assert_ne!(text, newer);
    fs::write(&manifest, newer).unwrap();
    let error = Memory::open(&memory).unwrap_err().to_string();
    assert!(
        error.contains("has format version 9, but this program reads versions up to 3"),
        "{error}"
    );
}

#[test]
fn a_second_writer_is_refused() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    let writer = build(&memory, ValueDtype::F16);
    assert!(matches!(Writer::open(&memory), Err(MemoryError::Locked { .. })));
    let format = MemoryFormat { width: 4, normalised: true, values: None };
    let again = Writer::create(&memory, format, 0, std::iter::empty());
    assert!(matches!(again, Err(MemoryError::AlreadyExists { .. })));
    drop(writer);
    Writer::open(&memory).unwrap();
    let error = Memory::open(temporary.path()).unwrap_err().to_string();
    assert!(error.contains("is not a memory; build one with `engram memory build`"), "{error}");
}

#[test]
fn a_failed_change_leaves_the_memory_unchanged() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    let mut writer = build(&memory, ValueDtype::F16);
    let before = files(&memory);
    let format = MemoryFormat {
        width: 4,
        normalised: true,
        values: Some(ValueFormat { tokens: 2, width: 4, dtype: ValueDtype::F16 }),
    };
    let rows = |ids: &[i64]| batch(&mut Numbers::new(1), format, ids);
    let refused = |error: Result<(), MemoryError>| error.unwrap_err().to_string();
    let error = refused(writer.add(2, [Ok(rows(&[50, 7]))].into_iter()));
    assert!(error.contains("the id 7 exists already"), "{error}");
    let error = refused(writer.add(2, [Ok(rows(&[50, 50]))].into_iter()));
    assert!(error.contains("the id 50 exists already"), "{error}");
    let error = refused(writer.add(3, [Ok(rows(&[50]))].into_iter()));
    assert!(
        error.contains("differs from the shape") || error.contains("1 entries for 3"),
        "{error}"
    );
    let error = refused(writer.update(2, [Ok(rows(&[1, 3]))].into_iter()));
    assert!(error.contains("no entry has the id 3"), "{error}");
    let error = refused(writer.delete(&[1, 900, 901]));
    assert!(error.contains("no entry has the id 900 (2 of 3 ids are unknown)"), "{error}");
    let mut bad = rows(&[50, 51]);
    bad.keys[5] = f32::NAN;
    let error = refused(writer.add(2, [Ok(bad)].into_iter()));
    assert!(error.contains("the key of row 1 contains NaN or infinity"), "{error}");
    let mut zero = rows(&[50]);
    zero.keys.fill(0.0);
    let error = refused(writer.add(1, [Ok(zero)].into_iter()));
    assert!(error.contains("the key of row 0 is a zero vector"), "{error}");
    let mut wide = rows(&[50]);
    wide.values[7] = 70_000.0;
    let error = refused(writer.add(1, [Ok(wide)].into_iter()));
    assert!(error.contains("the value of row 0 contains NaN"), "{error}");
    assert_eq!(files(&memory), before);
    use_all(&memory).unwrap();
}

#[test]
fn a_reader_keeps_its_generation_during_writes() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    let mut writer = build(&memory, ValueDtype::Int8);
    let reader = Memory::open(&memory).unwrap();
    let generation = reader.generation();
    let queries = Queries { keys: &[1.0, 0.0, 0.5, 0.0], k: 40 };
    let all = |generation: &engram_memory::Generation| {
        let hits = Exact.search(generation, queries, &Filter::default()).unwrap().hits.remove(0);
        let rows: Vec<_> = hits.iter().map(|hit| hit.row).collect();
        let entries: Vec<_> = rows.iter().map(|row| generation.entry(*row).unwrap()).collect();
        (hits, entries, generation.values(&rows).unwrap())
    };
    let before = all(&generation);
    for _ in 0..3 {
        writer.refresh(Ok).unwrap();
    }
    writer.delete(&[1]).unwrap();
    // Only generations without readers are removed.
    let is_present = |number: u64| memory.join(format!("gen-{number:06}")).exists();
    assert!(is_present(1) && is_present(2) && !is_present(3) && !is_present(4));
    assert_eq!(all(&generation), before);
    assert!(generation.verify().is_empty());
    assert!(reader.reload().unwrap());
    assert_eq!(all(&reader.generation()).0.len(), before.0.len() - 1);
    drop(generation);
    writer.compact(|_| ()).unwrap();
    assert!(!is_present(1) && !is_present(2));
    // Removing the folders anyway does not affect a reader.
    let generation = reader.generation();
    let before = all(&generation);
    fs::remove_dir_all(&memory).unwrap();
    assert_eq!(all(&generation), before);
}

#[test]
fn only_a_valid_generation_name_is_reported_as_missing() {
    let temporary = folder();
    let memory = temporary.path().join("m");
    drop(build(&memory, ValueDtype::F16));
    let pointer = memory.join("CURRENT");
    let original = fs::read_to_string(&pointer).unwrap();
    for (name, vanished) in [("gen-000009", true), ("gen-", false), ("gen-x", false), ("m", false)]
    {
        fs::write(&pointer, original.replacen("gen-000002", name, 1)).unwrap();
        let error = Memory::open(&memory).unwrap_err();
        assert_eq!(
            matches!(error, MemoryError::MissingGeneration { .. }),
            vanished,
            "{name}: {error}"
        );
        if !vanished {
            assert!(error.to_string().contains("does not name a generation"), "{name}: {error}");
        }
    }
}
