//! Readers accept or refuse any bytes without a panic.

use super::*;

/// The fuzz corpus of a target.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("an input")).collect()
}

/// One random change to a file.
#[derive(Debug, Clone)]
enum Change {
    Cut(Index),
    Flip(Index, u8),
    Insert(Index, String),
    Repeat(Index, Index),
    Remove(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let fragment = select(vec![
        "\"", "{", "}", "[", "]", ":", ",", "\t", "\n", "\r", "null", "-1", "1e999", "\\ud800",
        "\u{feff}", "\0", "id", "(", ")", "'", "\\", "true", "1.5", " ",
    ]);
    prop_oneof![
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, bits)| Change::Flip(at, bits)),
        (any::<Index>(), fragment)
            .prop_map(|(at, fragment)| Change::Insert(at, fragment.to_owned())),
        any::<(Index, Index)>().prop_map(|(from, to)| Change::Repeat(from, to)),
        any::<(Index, Index)>().prop_map(|(from, to)| Change::Remove(from, to)),
    ]
}

fn apply_changes(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let position = |index: &Index, bytes: &[u8]| index.index(bytes.len() + 1);
        let range = |from: &Index, to: &Index, bytes: &[u8]| {
            let (a, b) = (position(from, bytes), position(to, bytes));
            a.min(b)..a.max(b)
        };
        match change {
            Change::Cut(at) => bytes.truncate(position(at, &bytes)),
            Change::Flip(at, bits) => {
                let at = position(at, &bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Change::Insert(at, fragment) => {
                let at = position(at, &bytes);
                bytes.splice(at..at, fragment.bytes());
            }
            Change::Repeat(from, to) => {
                let copy = bytes[range(from, to, &bytes)].to_vec();
                if bytes.len() + copy.len() < 8000 {
                    bytes.extend(copy);
                }
            }
            Change::Remove(from, to) => {
                let range = range(from, to, &bytes);
                bytes.drain(range);
            }
        }
    }
    bytes
}

#[test]
fn readers_survive_any_bytes() {
    check_property(cases(400), vec(any::<u8>(), 0..200), |bytes| {
        targets::TARGETS.iter().for_each(|(_, target)| target(&bytes));
    });
}

#[test]
fn readers_survive_any_text() {
    check_property(cases(400), text(40), |text| {
        targets::TARGETS.iter().for_each(|(_, target)| target(text.as_bytes()));
    });
}

/// The inputs are corpus files with a few changes, because only almost valid files reach most of a
/// reader's code.
#[test]
fn readers_survive_changed_files() {
    for (name, _) in targets::TARGETS {
        let corpus: Vec<_> = corpus(name).into_iter().filter(|file| file.len() < 1500).collect();
        let files = (select(corpus), vec(change(), 1..4));
        check_property(cases(600), files, |(file, changes)| {
            targets::run(name, &apply_changes(file, &changes))
        });
    }
}

#[test]
fn a_line_of_many_megabytes_is_refused_with_a_short_message() {
    let huge = "x".repeat(16 << 20);
    for text in [
        format!("\"{huge}\""),
        format!("{{\"id\": \"{huge}\""),
        format!("{{\"{huge}\": 1}}"),
        format!("[{{\"image_id\": \"{huge}\"}}]"),
        format!("id\ttext\t{huge}\n\ta\n"),
        format!("id,score\n{huge},{huge}\n"),
        format!("({huge})\n({huge})\n"),
    ] {
        for name in [
            "aokvqa",
            "caption",
            "haystack",
            "items",
            "phrase",
            "retrieval",
            "vqa",
            "wer_labels",
            "wer_rare_words",
            "wer_texts",
        ] {
            targets::run(name, text.as_bytes());
        }
    }
}
