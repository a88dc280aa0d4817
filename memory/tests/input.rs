//! Vector and entry files with arbitrary bytes give rows or an error that names the file. Errors
//! write nothing.
#![allow(clippy::unwrap_used)]

mod plain;

use std::path::Path;

use engram_memory::rows::{EntryFile, RowFiles, RowReader};
use engram_memory::vectors::npy_bytes;
use engram_memory::{MemoryError, MemoryFormat, Writer};
use plain::{Numbers, folder};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const ROWS: usize = 4;

/// Builds a memory from the files, like the command.
fn build(folder: &Path, keys: &str) -> Result<usize, MemoryError> {
    let (keys, entries) = (folder.join(keys), folder.join("entries.jsonl"));
    let files = RowFiles {
        keys: &keys,
        values: None,
        entries: Some(&EntryFile::json(&entries)),
        first_id: 0,
    };
    let rows = RowReader::open(files)?;
    let format = MemoryFormat { width: rows.width(), normalised: true, values: None };
    let writer = Writer::create(folder.join("m"), format, rows.rows(), rows)?;
    Ok(writer.generation().len())
}

/// Truncates, flips, repeats and moves bytes.
fn mutated(next: &mut Numbers, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=next.below(3) {
        let at = next.below(bytes.len() as u64 + 1) as usize;
        match next.below(5) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << next.below(8),
            2 if at < bytes.len() => bytes[at] = next.below(256) as u8,
            3 => bytes.insert(at, b"{}[]\"',:09-\n\0"[next.below(13) as usize]),
            _ => {
                let rest = bytes.split_off(at);
                let again = rest.len().min(next.below(40) as usize);
                bytes.extend_from_slice(&rest[..again]);
                bytes.extend_from_slice(&rest);
            }
        }
    }
    bytes
}

#[test]
fn any_bytes_give_rows_or_an_error() {
    let mut next = Numbers::new(31);
    let numbers: Vec<f32> = (0..3 * ROWS).map(|_| next.uniform()).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![ROWS, 3], &bytes).unwrap();
    let entries = "{\"id\": 5, \"source\": \"kg\", \"document\": 7, \"text\": \"é\"}\n{}\n\n\
                   {\"document\": \"Q1\", \"question\": \"?\", \"answer\": [\"a\"]}\n{\"id\": 9}\n";
    let original = [
        ("keys.npy", npy_bytes(&numbers, 3).unwrap()),
        ("keys.safetensors", safetensors::serialize([("keys", view)], None).unwrap()),
        ("entries.jsonl", entries.as_bytes().to_vec()),
    ];
    let mut ended = [0, 0];
    for round in 0..1500 {
        let temporary = folder();
        let changed = round % original.len();
        for (at, (name, bytes)) in original.iter().enumerate() {
            let bytes = if at == changed { mutated(&mut next, bytes) } else { bytes.clone() };
            std::fs::write(temporary.path().join(name), bytes).unwrap();
        }
        let keys = if changed == 1 { "keys.safetensors" } else { "keys.npy" };
        let built = build(temporary.path(), keys);
        ended[usize::from(built.is_ok())] += 1;
        match built {
            Ok(rows) => assert_eq!(rows, ROWS, "round {round}"),
            Err(_) => assert!(!temporary.path().join("m").exists(), "round {round}"),
        }
    }
    assert!(ended.iter().all(|count| *count > 100), "{ended:?}");
}
