//! Writes the good inputs of the fuzz corpus that are files of a memory. All other inputs do not
//! depend on the format of a memory.

use std::fs;

use crate::fuzz_corpus::fuzz_folder;
use crate::targets;

/// Writes the good inputs. Run this test with `--ignored` after a change of the format.
#[test]
#[ignore = "writes the corpus"]
fn write_the_corpus() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = fuzz_folder().join("corpus").join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    };
    targets::with_memory(|memory| {
        for (target, names) in
            [("segment", &targets::SEGMENT_FILES[..]), ("graph", &targets::GRAPH_FILES)]
        {
            for (choice, name) in names.iter().enumerate() {
                let input = |bytes: &[u8]| [&[choice as u8], bytes].concat();
                let bytes = memory.file(name).1;
                let stem = name.split('.').next().unwrap();
                let bytes = if *name == targets::SEGMENT_PACK { memory.part(name) } else { bytes };
                write(target, &format!("good_{stem}"), &input(bytes));
            }
        }
        write("manifest", "good", memory.file("manifest.json").1);
        write("pointer", "good", memory.file("CURRENT").1);
        // The pack of another generation with the same parts.
        let pack = memory.file(targets::SEGMENT_PACK).1;
        let part = memory.part(targets::SEGMENT_PACK);
        let json = String::from_utf8(pack[part.len()..pack.len() - 8].to_vec()).unwrap();
        let json = json.replace("gen-000002", "gen-000005");
        let json = json.replace("\"generation\":2", "\"generation\":5");
        let length = (json.len() as u64).to_le_bytes();
        write("pack", "good", &[part, json.as_bytes(), &length].concat());
    });
}
