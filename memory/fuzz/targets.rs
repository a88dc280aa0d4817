//! The checks that the fuzzer, the corpus replay and the property tests share. No input may cause a
//! panic, and a refused input gives a readable error.
//!
//! Files of a memory have checksums. The targets update the checksums to match the input. Otherwise
//! the checksums would reject nearly every input before the readers see it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use engram_memory::rows::{EntryFile, EntryFormat, EntryLines};
use engram_memory::search::graph::{GraphKind, GraphSettings};
use engram_memory::search::{Filter, Gates, Queries, SearchResults};
use engram_memory::vectors::VectorFile;
use engram_memory::{
    Batch, Entry, Memory, MemoryError, MemoryFormat, Method, Row, Snapshot, ValueDtype,
    ValueFormat, Writer,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A target function and its name, which is also the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 8] = [
    ("graph", graph),
    ("manifest", manifest),
    ("npy", npy),
    ("pack", pack),
    ("pointer", pointer),
    ("rows", rows),
    ("segment", segment),
    ("tensors", tensors),
];

/// Runs the target with this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a known target").1(bytes);
}

/// The files of segments. The first byte of an input selects a file.
pub const SEGMENT_FILES: [&str; 11] = [
    "keys.safetensors",
    "codes.safetensors",
    "values.safetensors",
    "scales.safetensors",
    "ids.safetensors",
    "sources.safetensors",
    "documents.safetensors",
    "entries.jsonl",
    "offsets.safetensors",
    "order.safetensors",
    SEGMENT_PACK,
];
/// The pack with the second segment. An input replaces the whole file.
pub const SEGMENT_PACK: &str = "gen-000002.pack";
/// The files of a graph. The first byte of an input selects a file.
pub const GRAPH_FILES: [&str; 2] = ["graph-0-lists.safetensors", "graph-0-upper.safetensors"];
/// The folder of the current generation.
pub const CURRENT_GENERATION: &str = "gen-000004";
/// The pack that the target `pack` makes current.
const CURRENT_PACK: &str = "gen-000005.pack";
/// As many rows as a graph of two layers needs.
const ROWS: i64 = 150;
const WIDTH: usize = 4;

/// A small memory with all kinds of files. Each thread has one.
pub struct SmallMemory {
    _temporary: tempfile::TempDir,
    pub folder: PathBuf,
    /// All files with their original content.
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

impl SmallMemory {
    fn new() -> Self {
        let temporary = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let temporary = temporary.expect("a temporary folder");
        let folder = temporary.path().join("memory");
        let values = Some(ValueFormat { tokens: 2, width: 3, dtype: ValueDtype::Int8 });
        let format = MemoryFormat { width: WIDTH, normalised: true, values };
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let entries = (0..ROWS).map(|id| Entry {
            source: ["kg", "wit"][id as usize % 2].to_owned(),
            document: (id % 3 == 0).then(|| format!("d{id}")),
            // The ids descend, so that their order is stored.
            ..Entry::bare(ROWS - id)
        });
        let mut batch = |entries: Vec<Entry>| Batch {
            keys: (0..entries.len() * WIDTH).map(|_| random()).collect(),
            values: (0..entries.len() * 6).map(|_| random()).collect(),
            entries,
        };
        let first = batch(entries.collect());
        let batches = [Ok(first)].into_iter();
        let mut writer = Writer::create(&folder, format, ROWS as usize, batches).expect("rows");
        let new_id = ROWS + 1;
        let second = batch((new_id..new_id + 4).map(Entry::bare).collect());
        writer.add(4, [Ok(second)].into_iter()).expect("new ids");
        writer.delete(&[3, 9, new_id + 1]).expect("known ids");
        let settings =
            GraphSettings { kind: GraphKind::Vamana, connections: 4, ef_construction: 20 };
        writer.index(settings, || ()).expect("keys");
        let mut files = Vec::new();
        for folder in [&folder, &folder.join("gen-000001"), &folder.join(CURRENT_GENERATION)] {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_file() {
                    files.push((path.clone(), fs::read(path).expect("a file")));
                }
            }
        }
        files.sort();
        Self { _temporary: temporary, folder, files }
    }

    /// Returns the path and the bytes of a file. If several generations have a file with this name,
    /// returns the file of the newest generation.
    pub fn file(&self, name: &str) -> (&Path, &[u8]) {
        let file = self.files.iter().rev().find(|(path, _)| path.ends_with(name));
        file.map(|(path, bytes)| (path.as_path(), bytes.as_slice())).expect("a known file")
    }

    /// Returns the segment in a pack.
    pub fn part(&self, name: &str) -> &[u8] {
        let bytes = self.file(name).1;
        let manifest: Value =
            serde_json::from_slice(self.file("manifest.json").1).expect("a manifest");
        let mut segments = manifest["segments"].as_array().expect("segments").iter();
        let pack = segments.find(|segment| segment["pack"]["name"] == name).expect("a pack");
        &bytes[..pack["pack"]["bytes"].as_u64().expect("a size") as usize]
    }

    /// Replaces a file, and updates all checksums.
    fn replace(&self, name: &str, bytes: &[u8]) {
        let mut manifest: Value =
            serde_json::from_slice(self.file("manifest.json").1).expect("a manifest");
        fn find<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Value> {
            if value.get("name").and_then(Value::as_str) == Some(name) {
                return Some(value);
            }
            match value {
                Value::Object(fields) => fields.values_mut().find_map(|value| find(value, name)),
                Value::Array(items) => items.iter_mut().find_map(|value| find(value, name)),
                _ => None,
            }
        }
        let record = find(&mut manifest, name).expect("a record");
        record["bytes"] = bytes.len().into();
        record["sha256"] = sha256(bytes).into();
        let blocks = bytes.chunks(1 << 20);
        let crc32 = blocks.map(|block| format!("{:08x}", crc32fast::hash(block)));
        record["crc32"] = crc32.collect::<String>().into();
        let path = self.file(name).0.to_owned();
        replace_file(&path, bytes);
        self.replace_manifest(&serde_json::to_vec(&manifest).expect("JSON"));
    }

    /// Replaces the manifest, and updates the checksum in `CURRENT`.
    fn replace_manifest(&self, bytes: &[u8]) {
        replace_file(&self.folder.join(CURRENT_GENERATION).join("manifest.json"), bytes);
        let pointer = format!("{CURRENT_GENERATION} {}\n", sha256(bytes));
        replace_file(&self.folder.join("CURRENT"), pointer.as_bytes());
    }

    /// Restores these files, the manifest and the pointer.
    fn restore(&self, names: &[&str]) {
        for name in names.iter().chain(&["CURRENT", "gen-000004/manifest.json"]) {
            let (path, bytes) = self.file(name);
            replace_file(path, bytes);
        }
    }
}

/// Writes a new file at a path. Mappings of the old file stay valid.
fn replace_file(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).expect("a writable folder");
}

/// Returns the SHA-256 in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Calls `run` with the memory of this thread.
pub fn with_memory<T>(run: impl FnOnce(&SmallMemory) -> T) -> T {
    thread_local! {
        static MEMORY: RefCell<Option<SmallMemory>> = const { RefCell::new(None) };
    }
    MEMORY.with_borrow_mut(|memory| run(memory.get_or_insert_with(SmallMemory::new)))
}

/// Calls all functions of a reader, and checks the messages of errors.
fn read_all(memory: &SmallMemory) {
    let opened = Memory::open(&memory.folder);
    match Memory::verify(&memory.folder) {
        Ok(errors) => {
            errors.iter().for_each(check_message);
            assert!(opened.is_ok() || !errors.is_empty(), "{:?}", opened.err());
        }
        Err(error) => check_message(&error),
    }
    let generation = match opened {
        Ok(memory) => memory.generation(),
        Err(error) => return check_message(&error),
    };
    let check = |error: MemoryError| check_message(&error);
    let _ = generation.info().map_err(check);
    // A manifest may list more rows than fit into main memory, with empty values.
    let rows: Vec<Row> = generation.live_rows().take(1000).collect();
    for row in &rows {
        let _ = generation.entry(*row).map_err(check);
        let _ = generation.key(*row).map_err(check);
    }
    let _ = generation.values(&rows).map_err(check);
    for id in [-1, 0, 3, 17, i64::MAX] {
        let _ = generation.row_of(id).map_err(check);
    }
    let width = generation.manifest().width;
    let queries: Vec<f32> = (0..2 * width).map(|i| (i as f32 - 2.5) / 3.0).collect();
    let sources = generation.manifest().sources.clone();
    let gates = Gates { weights: vec![0.5; 2 * sources.len()], sources };
    let filters = [
        Filter::default(),
        Filter { gates: Some(gates), ..Filter::default() },
        Filter { sources: Some(vec!["kg".to_owned()]), ..Filter::default() },
        Filter { excluded_documents: vec![vec!["d3".to_owned()]; 2], ..Filter::default() },
        Filter { ids: Some(vec![17]), ..Filter::default() },
    ];
    for filter in &filters {
        for method in [Method::Exact, Method::Graph { candidates: 8 }] {
            match generation.search(method, Queries { keys: &queries, k: 5 }, filter) {
                Ok(SearchResults { hits, .. }) => {
                    assert!(hits.len() == 2 && hits.iter().all(|hits| hits.len() <= 5));
                }
                Err(error) => check_message(&error),
            }
        }
    }
}

/// Checks that a message fits on one line and on a screen.
fn check_message(error: &MemoryError) {
    let error = error.to_string();
    assert!(error.chars().count() < 1000, "{} characters: {error:.700}", error.len());
    assert!(!error.contains(char::is_control), "{error:?} contains control characters");
}

fn segment(bytes: &[u8]) {
    read_with_replaced_file(&SEGMENT_FILES, bytes);
}

fn graph(bytes: &[u8]) {
    read_with_replaced_file(&GRAPH_FILES, bytes);
}

/// Reads a memory with a replaced file. The first byte selects the file, and the other bytes are
/// its content.
fn read_with_replaced_file(names: &[&str], bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let name = names[usize::from(*choice) % names.len()];
    with_memory(|memory| {
        memory.replace(name, bytes);
        read_all(memory);
        memory.restore(&[name]);
    });
}

fn manifest(bytes: &[u8]) {
    with_memory(|memory| {
        memory.replace_manifest(bytes);
        read_all(memory);
        memory.restore(&[]);
    });
}

/// Reads a memory whose current generation is a pack with this content.
fn pack(bytes: &[u8]) {
    let length = bytes.last_chunk::<8>().map(|length| u64::from_le_bytes(*length) as usize);
    let end = bytes.len().saturating_sub(8);
    let start = length.and_then(|length| end.checked_sub(length)).unwrap_or(end);
    with_memory(|memory| {
        let path = memory.folder.join(CURRENT_PACK);
        replace_file(&path, bytes);
        let pointer = format!("{CURRENT_PACK} {}\n", sha256(&bytes[start..end]));
        replace_file(&memory.folder.join("CURRENT"), pointer.as_bytes());
        read_all(memory);
        fs::remove_file(&path).expect("a pack");
        memory.restore(&[]);
    });
}

fn pointer(bytes: &[u8]) {
    with_memory(|memory| {
        replace_file(&memory.folder.join("CURRENT"), bytes);
        read_all(memory);
        memory.restore(&[]);
    });
}

/// Calls `read` with a file of these bytes.
fn with_file(name: &str, bytes: &[u8], read: impl FnOnce(&Path)) {
    with_memory(|memory| {
        let path = memory.folder.with_file_name(name);
        replace_file(&path, bytes);
        read(&path);
    });
}

/// Reads a file of vectors with this content.
fn read_vectors(path: &Path, bytes: &[u8]) {
    let mut file = match VectorFile::open(path, "keys") {
        Ok(file) => file,
        Err(error) => return check_input(path, &error),
    };
    let (rows, row_len) = (file.shape()[0], file.row_len());
    assert!(rows * row_len * 2 <= bytes.len(), "{rows} rows of {row_len} numbers");
    let numbers = file.read_rows(rows).expect("as many rows as in the shape");
    assert_eq!(numbers.len(), rows * row_len);
    check_input(path, &file.read_rows(1).expect_err("the end of the file"));
}

fn npy(bytes: &[u8]) {
    with_file("keys.npy", bytes, |path| read_vectors(path, bytes));
}

fn tensors(bytes: &[u8]) {
    with_file("keys.safetensors", bytes, |path| read_vectors(path, bytes));
}

fn rows(bytes: &[u8]) {
    for format in [EntryFormat::Json, EntryFormat::Texts, EntryFormat::Csv(Vec::new())] {
        with_file("entries", bytes, |path| {
            let file = EntryFile { path: path.to_owned(), format: format.clone() };
            match EntryLines::open(&file, 0) {
                Ok(lines) => lines.for_each(|entry| check_entry(path, entry)),
                Err(error) => check_input(path, &error),
            }
        });
    }
}

/// Checks that an entry can be written and read again.
fn check_entry(path: &Path, entry: Result<Entry, MemoryError>) {
    match entry {
        Ok(entry) => {
            let line = serde_json::to_string(&entry).expect("entries can be written");
            assert!(!line.contains('\n'));
            let restored: Entry = serde_json::from_str(&line).expect("written entries can be read");
            assert!(restored.id == entry.id && entry.id >= 0 && !entry.source.is_empty());
        }
        Err(error) => check_input(path, &error),
    }
}

/// Checks that the message about an input names the file and has a remedy.
fn check_input(path: &Path, error: &MemoryError) {
    check_message(error);
    let error = error.to_string();
    assert!(error.starts_with(&*path.to_string_lossy()), "{error:?} names no file");
    assert!(error.contains("; "), "{error:?} has no remedy");
}
