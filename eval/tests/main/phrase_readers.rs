//! Tests of the CSV readers of gold scores and predictions. `engram-textfile` has the tests of CSV
//! itself.

use engram_eval::EvalError;
use engram_eval::phrase::{GoldRow, Prediction, read_gold, read_predictions};
use engram_textfile::Input;

const GOLD: &str = "id,anchor,target,context,score\n\
                    a1,abatement,\"act, of \"\"abating\"\"\",A47,0.75\n\
                    a2,abatement,forest region,A47,0\n";

fn gold(text: &str) -> Result<Vec<GoldRow>, EvalError> {
    read_gold(Input::new("g.csv", text.as_bytes())?)
}

fn predictions(text: &str) -> Result<Vec<Prediction>, EvalError> {
    read_predictions(Input::new("p.csv", text.as_bytes())?)
}

#[test]
fn rows_are_read_with_their_lines() {
    let rows = gold(GOLD).unwrap();
    assert_eq!((rows.len(), rows[0].target.as_str()), (2, "act, of \"abating\""));
    assert_eq!((rows[0].score, rows[0].line, rows[1].line), (0.75, Some(2), Some(3)));
    let rows = predictions("fold, score ,id\n1, 0.5 , a1 \n2,-1e-3,a2\n").unwrap();
    assert_eq!((rows[0].id.as_str(), rows[0].score, rows[1].score), ("a1", 0.5, -0.001));
    let rated = "rating,id,anchor,target,context,score\nsynonym,a1,x,y,A47,1\n,a2,x,z,A47,0\n";
    let rated = gold(rated).unwrap();
    assert_eq!((rated[0].rating.as_deref(), rated[1].rating.as_deref()), (Some("synonym"), None));
}

#[test]
fn errors_name_the_file_and_the_line() {
    let error = gold("id,anchor,target,score\na1,x,y,1\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "g.csv:1: column `context` is missing; the header has: id, anchor, target, score; rename or \
         add the column"
    );
    for (text, expected) in [
        ("\n\nid,points\na1,0.5\n", "p.csv:3: column `score` is missing"),
        ("\n\nid,score\r\n\r\na1,0.5\n\n\n\"a\n2\",0.5\na3,x\n", "p.csv:10: score `x` is not a"),
        ("id,score\na1,0.5\na2,1e999\n", "p.csv:3: score `1e999` is not a finite number; write it"),
        ("id,score\na1,nan\n", "p.csv:2: score `nan` is not a finite number"),
        ("id,score\na1,\n", "p.csv:2: score is empty; "),
        ("id,score\na1,1\n ,2\n", "p.csv:3: id is empty; fill it in or remove the row"),
        ("id,score\na1,1\na2,1\na1,2\n", "p.csv:4: id `a1` was already given at p.csv:2; keep one"),
        ("id,score\n\n", "p.csv: a header but no rows; "),
    ] {
        let error = predictions(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
