//! Tests of the CSV readers of gold scores and predictions: accepted inputs, and error messages
//! with file, line, reason and remedy.

use std::fs;

use engram_eval::phrase::{parse_gold, parse_predictions, read_gold, read_predictions};

const GOLD: &str = "id,anchor,target,context,score\n\
                    a1,abatement,\"act, of \"\"abating\"\"\",A47,0.75\n\
                    a2,abatement,forest region,A47,0\n";

fn gold_error(text: &str) -> String {
    parse_gold("g.csv", text.as_bytes()).expect_err("a refusal").to_string()
}

fn prediction_error(bytes: &[u8]) -> String {
    parse_predictions("p.csv", bytes).expect_err("a refusal").to_string()
}

#[test]
fn quotes_windows_line_ends_and_a_byte_order_mark_are_read() {
    let unix = parse_gold("g.csv", GOLD.as_bytes()).unwrap();
    assert_eq!(unix.len(), 2);
    assert_eq!(unix[0].target, "act, of \"abating\"");
    assert_eq!((unix[0].score, unix[0].line, unix[1].line), (0.75, Some(2), Some(3)));
    let windows = format!("\u{FEFF}{}", GOLD.replace('\n', "\r\n"));
    assert_eq!(parse_gold("g.csv", windows.as_bytes()).unwrap(), unix);
    assert_eq!(parse_gold("g.csv", GOLD.trim_end().as_bytes()).unwrap(), unix);
}

#[test]
fn columns_may_be_in_any_order_and_others_are_ignored() {
    let rows = parse_predictions("p.csv", b"fold, score ,id\n1, 0.5 , a1 \n2,-1e-3,a2\n").unwrap();
    assert_eq!((rows[0].id.as_str(), rows[0].score), ("a1", 0.5));
    assert_eq!(rows[1].score, -0.001);
    let rated = "rating,id,anchor,target,context,score\nsynonym,a1,x,y,A47,1\n,a2,x,z,A47,0\n";
    let rated = parse_gold("g.csv", rated.as_bytes()).unwrap();
    assert_eq!((rated[0].rating.as_deref(), rated[1].rating.as_deref()), (Some("synonym"), None));
}

#[test]
fn lines_are_counted_past_blank_lines_and_line_ends_in_quotes() {
    let text = "\n\nid,score\r\n\r\na1,0.5\n\n\n\"a\n2\",0.5\na3,x\n";
    assert_eq!(
        prediction_error(text.as_bytes()),
        "p.csv:10: score `x` is not a finite number; write it as 0.25, with a point"
    );
    let header = "\n\nid,points\na1,0.5\n";
    assert!(prediction_error(header.as_bytes()).starts_with("p.csv:3: column `score` is missing"));
}

#[test]
fn carriage_returns_as_line_ends_are_refused() {
    let error = prediction_error(b"id,score\ra1,0.5\r\ra2,x\r");
    assert!(error.starts_with("p.csv:1: ends its lines with a carriage return only"), "{error}");
}

#[test]
fn empty_files_are_refused() {
    for text in ["", "\n", "  \r\n", "\u{FEFF}"] {
        let error = prediction_error(text.as_bytes());
        assert!(error.starts_with("p.csv: the file is empty; "), "{text:?}: {error}");
    }
    for text in ["id,score\n", "id,score\n\n"] {
        let error = prediction_error(text.as_bytes());
        assert!(error.starts_with("p.csv: a header but no rows; "), "{text:?}: {error}");
    }
}

#[test]
fn missing_and_duplicate_columns_are_refused() {
    assert_eq!(
        gold_error("id,anchor,target,score\na1,x,y,1\n"),
        "g.csv:1: column `context` is missing; the header has: id, anchor, target, score; rename or add the column"
    );
    assert_eq!(
        prediction_error(b"id,score,score\na1,1,1\n"),
        "p.csv:1: column `score` occurs twice; remove or rename one of them"
    );
}

#[test]
fn scores_must_be_finite_numbers() {
    for score in ["high", "nan", "inf", "-Infinity", "1e999", "\"0,5\"", "0.5 0.6", "0x1"] {
        let error = prediction_error(format!("id,score\na1,0.5\na2,{score}\n").as_bytes());
        assert!(error.starts_with("p.csv:3: score `"), "{error}");
        assert!(error.contains("is not a finite number"), "{error}");
    }
    let error = prediction_error(b"id,score\na1,\n");
    assert!(error.starts_with("p.csv:2: score is empty; "), "{error}");
}

#[test]
fn ids_must_be_given_and_unique() {
    assert_eq!(
        prediction_error(b"id,score\na1,1\n ,2\n"),
        "p.csv:3: id is empty; fill it in or remove the row"
    );
    assert_eq!(
        prediction_error(b"id,score\na1,1\na2,1\na1,2\n"),
        "p.csv:4: id `a1` was already given at p.csv:2; keep one of the two rows"
    );
}

#[test]
fn text_that_is_not_csv_is_refused() {
    for (bytes, expected) in [
        (&b"id,score\na1,0.5\na2,0,5\n"[..], "p.csv:3: 3 fields where the header has 2; quote"),
        (b"id,score\na1,0.5\n\xFF\xFF,1\n", "p.csv:3: is not UTF-8; convert"),
        (b"id\xFF,score\n", "p.csv:1: is not UTF-8; convert"),
        (b"\x1F\x8B\x08", "p.csv: is gzip-compressed but cannot be unpacked"),
        (b"\xFF\xFEi\0d\0", "p.csv: is UTF-16 text; convert"),
        (b"id,score\n\"a\"1,0.5\n", "p.csv:2: text after a closing quote; "),
        (b"id,score\n\"a1,0.5\n", "p.csv:2: a quote opened here is never closed; "),
    ] {
        let error = prediction_error(bytes);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn errors_name_the_path_as_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gold.csv");
    let missing = read_gold(&path).unwrap_err().to_string();
    assert!(missing.starts_with(&format!("{}: cannot be read: ", path.display())), "{missing}");
    fs::write(&path, GOLD).unwrap();
    assert_eq!(read_gold(&path).unwrap(), parse_gold("", GOLD.as_bytes()).unwrap());
    assert_eq!(read_predictions(&path).unwrap().len(), 2);
    assert!(read_gold(folder.path()).is_err(), "a folder is not a file");
}

#[test]
fn damaged_files_never_panic() {
    let mut state = 0x5EED_u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    };
    let alphabet = b"\0\"',;\r\n\t\xEF\xBB\xBF\xFF0.5e-id";
    let mut accepted = 0;
    for _ in 0..5_000 {
        let mut bytes = GOLD.as_bytes().to_vec();
        for _ in 0..1 + random(4) {
            let position = random(bytes.len());
            match random(4) {
                0 => bytes[position] = alphabet[random(alphabet.len())],
                1 => bytes.insert(position, alphabet[random(alphabet.len())]),
                2 => drop(bytes.drain(..position)),
                _ => bytes.truncate(position.max(1)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        match parse_gold("g.csv", &bytes) {
            Ok(rows) => {
                accepted += 1;
                assert!(rows.iter().all(|row| row.score.is_finite() && !row.id.is_empty()));
            }
            Err(error) => assert!(error.to_string().starts_with("g.csv"), "{error}"),
        }
        let _ = parse_predictions("p.csv", &bytes);
    }
    assert!(accepted > 50, "the damage is too heavy to test what is accepted: {accepted}");
}
