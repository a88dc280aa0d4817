//! Tests of the CSV readers of gold scores and predictions. `engram-textfile` has the tests of CSV
//! itself.

use std::fs;

use engram_eval::phrase::{parse_gold, parse_predictions, read_gold, read_predictions};

const GOLD: &str = "id,anchor,target,context,score\n\
                    a1,abatement,\"act, of \"\"abating\"\"\",A47,0.75\n\
                    a2,abatement,forest region,A47,0\n";

#[test]
fn rows_are_read_with_their_lines() {
    let gold = parse_gold("g.csv", GOLD.as_bytes()).unwrap();
    assert_eq!((gold.len(), gold[0].target.as_str()), (2, "act, of \"abating\""));
    assert_eq!((gold[0].score, gold[0].line, gold[1].line), (0.75, Some(2), Some(3)));
    let rows = parse_predictions("p.csv", b"fold, score ,id\n1, 0.5 , a1 \n2,-1e-3,a2\n").unwrap();
    assert_eq!((rows[0].id.as_str(), rows[0].score, rows[1].score), ("a1", 0.5, -0.001));
    let rated = "rating,id,anchor,target,context,score\nsynonym,a1,x,y,A47,1\n,a2,x,z,A47,0\n";
    let rated = parse_gold("g.csv", rated.as_bytes()).unwrap();
    assert_eq!((rated[0].rating.as_deref(), rated[1].rating.as_deref()), (Some("synonym"), None));
}

#[test]
fn errors_name_the_file_and_the_line() {
    let error = parse_gold("g.csv", b"id,anchor,target,score\na1,x,y,1\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "g.csv:1: column `context` is missing; the header has: id, anchor, target, score; rename or \
         add the column"
    );
    for (text, expected) in [
        ("\n\nid,points\na1,0.5\n", "p.csv:3: column `score` is missing"),
        ("id,score,score\na1,1,1\n", "p.csv:1: column `score` occurs twice; remove or rename"),
        ("\n\nid,score\r\n\r\na1,0.5\n\n\n\"a\n2\",0.5\na3,x\n", "p.csv:10: score `x` is not a"),
        ("id,score\na1,0.5\na2,1e999\n", "p.csv:3: score `1e999` is not a finite number; write it"),
        ("id,score\na1,nan\n", "p.csv:2: score `nan` is not a finite number"),
        ("id,score\na1,\n", "p.csv:2: score is empty; "),
        ("id,score\na1,1\n ,2\n", "p.csv:3: id is empty; fill it in or remove the row"),
        ("id,score\na1,1\na2,1\na1,2\n", "p.csv:4: id `a1` was already given at p.csv:2; keep one"),
        ("id,score\na1,0.5\na2,0,5\n", "p.csv:3: 3 fields where the header has 2; quote"),
        ("id,score\n\n", "p.csv: a header but no rows; "),
        ("", "p.csv: the file is empty; "),
    ] {
        let error = parse_predictions("p.csv", text.as_bytes()).unwrap_err().to_string();
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
