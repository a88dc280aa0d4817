//! `engram memory` as a user runs it: input files, output files and messages.

use std::fs;
use std::path::Path;

use crate::running::{Folder, command, engram, refusal, refused, succeeds, write_npy};
use engram::memory::vectors::npy_bytes;

/// Reads the `count` numbers of a `.npy` file of 8-byte integers.
fn read_integers(path: &Path, count: usize) -> Vec<i64> {
    let bytes = fs::read(path).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY") && String::from_utf8_lossy(&bytes).contains("'<i8'"));
    let numbers = bytes[bytes.len() - 8 * count..].chunks(8);
    numbers.map(|number| i64::from_le_bytes(number.try_into().unwrap())).collect()
}

/// Writes keys along the axes and between them, two queries, values, and entries of two sources.
fn write_files(folder: &Path) {
    write_npy(folder, "keys.npy", &[2.0, 0.0, 0.0, 3.0, 0.6, 0.8, -1.0, 0.0], 2);
    write_npy(folder, "queries.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    write_npy(folder, "wide.npy", &[1.0; 6], 3);
    write_npy(folder, "values.npy", &[0.5; 16], 4);
    write_npy(folder, "more.npy", &[0.8, 0.6], 2);
    write_npy(folder, "more_values.npy", &[9.0; 4], 4);
    write_npy(folder, "gates.npy", &[0.1, 1.0, 1.0, 0.5], 2);
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(name), bytes).unwrap();
    let entries = [
        r#"{"source": "kg", "document": "d1", "text": "east"}"#,
        r#"{"source": "wit", "document": "d2", "text": "north"}"#,
        r#"{"source": "kg", "document": 7, "text": "between"}"#,
        r#"{"source": "wit", "text": "west"}"#,
    ];
    write("entries.jsonl", entries.join("\n").into_bytes());
    write("exclude.txt", b"d1\tx\n7\n".to_vec());
    write("same.jsonl", br#"{"id": 0, "source": "web", "text": "new"}"#.to_vec());
}

#[test]
fn a_memory_is_built_searched_and_edited() {
    let folder = &Folder::new();
    write_files(folder);
    let search = |options: &str| -> Vec<i64> {
        let (count, k) = match options {
            "-k 4" => (8, ""),
            _ if options.contains("-k 1000000") => (6, ""),
            _ => (4, "-k 2"),
        };
        succeeds(
            folder,
            &format!("memory search m --queries queries.npy {k} --out ids.npy --force {options}"),
        );
        read_integers(&folder.join("ids.npy"), count)
    };
    let build = "memory build --keys keys.npy --values values.npy --entries entries.jsonl --out m";
    assert!(succeeds(folder, build).contains("generation 1, 4 entries"));
    assert_eq!(search(""), [0, 2, 1, 2]);
    assert_eq!(search("-k 4"), [0, 2, 1, 3, 1, 2, 0, 3]);
    assert_eq!(search("--source wit"), [1, 3, 1, 3]);
    assert_eq!(search("--exclude exclude.txt"), [2, 1, 1, 0]);
    fs::write(folder.join("marked.txt"), b"\xef\xbb\xbfd1\tx\r\n7\r\n").unwrap();
    assert_eq!(search("--exclude marked.txt"), [2, 1, 1, 0]);
    // The gates of the first query are 0.1 for knowledge and 1 for images, of the second 1 and 0.5.
    assert_eq!(search("--gates gates.npy"), [0, 2, 2, 1]);
    let text = succeeds(folder, "memory search m --queries queries.npy -k 1");
    assert!(text.contains("1.000000") && text.contains("kg  east"), "{text}");
    let json = succeeds(folder, "memory search m --queries queries.npy -k 1 --json");
    assert!(json.contains("\"document\": \"d1\"") && json.contains("\"score\": 1.0"), "{json}");

    succeeds(folder, "memory add m --keys more.npy --values more_values.npy --quiet");
    assert_eq!(search(""), [0, 4, 1, 2]);
    succeeds(
        folder,
        "memory update m --keys more.npy --values more_values.npy --entries same.jsonl",
    );
    assert_eq!(search(""), [0, 4, 1, 2]);
    succeeds(folder, "memory delete m --ids 1,4");
    // One column per entry; -1 if the filter leaves fewer entries.
    assert_eq!(search("-k 1000000")[..], [0, 2, 3, 2, 0, 3]);
    assert_eq!(search("-k 1000000 --source kg")[..], [2, -1, -1, 2, -1, -1]);
    succeeds(folder, "memory index m --quiet");
    assert_eq!(search("--index graph"), [0, 2, 2, 0]);
    succeeds(folder, "memory compact m");
    assert_eq!(search("-k 1000000")[..], [0, 2, 3, 2, 0, 3]);
    let info: String = succeeds(folder, "memory info m");
    assert!(info.starts_with("3 entries in generation 6, 0 deleted rows"), "{info}");
    assert!(succeeds(folder, "memory verify m").contains("all checksums match"));
}

#[test]
fn mismatched_inputs_are_refused() {
    let folder = &Folder::new();
    write_files(folder);
    refused(folder, "memory info m", "m: is not a memory; build one with `engram memory build`");
    write_npy(folder, "turned.npy", &[1.0; 4], 1);
    refused(folder, "memory info turned.npy", "turned.npy: is not a memory");
    write_npy(folder, "nan_gates.npy", &[1.0, 1.0, 1.0, f32::NAN], 2);
    write_npy(folder, "nan.npy", &[1.0, f32::NAN], 2);
    fs::write(folder.join("one.txt"), b"d1\n").unwrap();
    let build = "memory build --keys keys.npy --entries entries.jsonl --out m";
    let wide = "memory build --keys keys.npy --values wide.npy --out m";
    refused(folder, wide, "wide.npy: has 2 rows, but keys.npy has 4");
    let short = "memory build --keys keys.npy --entries same.jsonl --out m";
    refused(folder, short, "same.jsonl: ends");
    assert!(!folder.join("m/CURRENT").exists());
    succeeds(folder, build);
    refused(folder, build, "m: already exists");
    let search = "search m --queries queries.npy";
    let shape = "turned.npy: has the shape [4, 1], but queries and sources need [2, 2]; give one";
    for (arguments, part) in [
        ("search m --queries wide.npy", "wide.npy: queries of width 3, but the memory has width 2"),
        ("search m --queries none.npy", "none.npy: could not be read"),
        (&format!("{search} --source web"), "the sources are `kg`, `wit`"),
        (&format!("{search} -k 0"), "k is 0"),
        (&format!("{search} --exclude one.txt"), "one.txt: has 1 line for 2 queries; write one"),
        (&format!("{search} --gates turned.npy"), shape),
        (&format!("{search} --gates nan_gates.npy"), "nan_gates.npy: row 1 has a NaN or infinite"),
        ("update m --keys keys.npy", "give --entries"),
        ("delete m --ids 0,9", "no entry has the id 9 (1 of 2 ids are unknown)"),
        ("add m --keys keys.npy --values values.npy", "values.npy: has values, but the memory has"),
        ("add m --keys wide.npy", "wide.npy: keys of width 3, but the memory has"),
        ("add m --keys nan.npy", "nan.npy: row 0 contains NaN or infinity; correct or remove"),
    ] {
        refused(folder, &format!("memory {arguments}"), part);
    }
    let keys = folder.join("m/gen-000001/keys.safetensors");
    let mut bytes = fs::read(&keys).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&keys, bytes).unwrap();
    let search = "memory search m --queries queries.npy";
    let parts = ["m/gen-000001/keys.safetensors: was changed", "`engram memory verify`"];
    refused(folder, search, &parts);
    // A failed check is a result, not an error.
    let verify = engram(folder, "memory verify m");
    assert_eq!(verify.status.code(), Some(1));
    let faults = String::from_utf8_lossy(&verify.stdout);
    assert!(faults.contains("m/gen-000001/keys.safetensors: was changed"), "{faults}");
    assert!(verify.stderr.is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_truncated_while_it_is_mapped_is_named() {
    use std::process::{Command, Stdio};
    let folder = &Folder::new();
    // Opening a memory reads the first MiB of a file.
    let keys: Vec<f32> = (0..1 << 20).map(|i| (i % 97) as f32 + 1.0).collect();
    write_npy(folder, "keys.npy", &keys, 64);
    assert!(Command::new("mkfifo").arg(folder.join("q.npy")).status().unwrap().success());
    // Several threads read the file, and exactly one reports it. Which one is a race.
    for _ in 0..8 {
        succeeds(folder, "memory build --keys keys.npy --out m --quiet");
        let mut command = command(folder, "memory search m --queries q.npy");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The pipe opens when the command reads its queries; the memory is then already mapped.
        let mut pipe = fs::File::options().write(true).open(folder.join("q.npy")).unwrap();
        let keys_file = folder.join("m/gen-000001/keys.safetensors");
        fs::File::options().write(true).open(keys_file).unwrap().set_len(4096).unwrap();
        std::io::Write::write_all(&mut pipe, &npy_bytes(&keys[..64], 64).unwrap()).unwrap();
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        let message =
            "error: m/gen-000001/keys.safetensors: the file was truncated while it was read";
        refusal(&output, "memory search", message);
        assert_eq!(String::from_utf8_lossy(&output.stderr).matches("error").count(), 1);
        fs::remove_dir_all(folder.join("m")).unwrap();
    }
}

#[test]
fn servers_and_object_stores_need_a_feature() {
    let folder = &Folder::new();
    write_files(folder);
    succeeds(folder, "memory build --keys keys.npy --out m");
    refused(folder, "memory push m elsewhere", "must be an address");
    if !cfg!(feature = "objects") {
        refused(folder, "memory push m s3://bucket/m", "--features objects");
    }
    let on_servers = [
        "memory search postgres://ann@host/wiki --queries queries.npy",
        "memory info postgresql://ann@host/wiki",
        "memory push m postgres://ann@host/wiki",
        "memory pull postgres://ann@host/wiki pulled",
    ];
    for command in on_servers.iter().filter(|_| !cfg!(feature = "postgres")) {
        refused(folder, *command, "--features postgres");
    }
}
