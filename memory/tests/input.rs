//! Vector and entry files with arbitrary bytes give rows or an error that names the file. Errors
//! write nothing.
#![allow(clippy::unwrap_used)]

mod plain;

use std::path::Path;

use engram_memory::rows::{EntryFile, RowFiles, RowReader};
use engram_memory::vectors::npy_bytes;
use engram_memory::{MemoryError, MemoryFormat, Writer};
use plain::{Rng, folder};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const ROWS: usize = 4;

/// Builds a memory from the files, like `engram memory build`. Returns the number of entries.
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

/// Returns bytes with random changes: truncated, flipped, replaced, inserted or repeated.
fn mutated(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=rng.below(3) {
        let index = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(5) {
            0 => bytes.truncate(index),
            1 if index < bytes.len() => bytes[index] ^= 1 << rng.below(8),
            2 if index < bytes.len() => bytes[index] = rng.below(256) as u8,
            3 => bytes.insert(index, b"{}[]\"',:09-\n\0"[rng.below(13) as usize]),
            _ => {
                let tail = bytes.split_off(index);
                let repeated = tail.len().min(rng.below(40) as usize);
                bytes.extend_from_slice(&tail[..repeated]);
                bytes.extend_from_slice(&tail);
            }
        }
    }
    bytes
}

#[test]
fn any_bytes_give_rows_or_an_error() {
    let mut rng = Rng::new(31);
    let numbers: Vec<f32> = (0..3 * ROWS).map(|_| rng.uniform()).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![ROWS, 3], &bytes).unwrap();
    let entries = "{\"id\": 5, \"source\": \"kg\", \"document\": 7, \"text\": \"é\"}\n{}\n\n\
                   {\"document\": \"Q1\", \"question\": \"?\", \"answer\": [\"a\"]}\n{\"id\": 9}\n";
    let originals = [
        ("keys.npy", npy_bytes(&numbers, 3).unwrap()),
        ("keys.safetensors", safetensors::serialize([("keys", view)], None).unwrap()),
        ("entries.jsonl", entries.as_bytes().to_vec()),
    ];
    // The numbers of errors and of built memories.
    let mut outcomes = [0, 0];
    for round in 0..1500 {
        let temporary = folder();
        let changed = round % originals.len();
        for (i, (name, bytes)) in originals.iter().enumerate() {
            let bytes = if i == changed { mutated(&mut rng, bytes) } else { bytes.clone() };
            std::fs::write(temporary.path().join(name), bytes).unwrap();
        }
        let keys = if changed == 1 { "keys.safetensors" } else { "keys.npy" };
        let result = build(temporary.path(), keys);
        outcomes[usize::from(result.is_ok())] += 1;
        match result {
            Ok(rows) => assert_eq!(rows, ROWS, "round {round}"),
            Err(_) => assert!(!temporary.path().join("m").exists(), "round {round}"),
        }
    }
    assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
}
