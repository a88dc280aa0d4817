//! Tests of the readers of phrase pairs and class titles: both schemas, and the error message of
//! every bad input (file, line, reason, remedy).

use std::fs;
use std::path::PathBuf;

use engram_data::DataError;
use engram_data::patent::{Labels, PhrasePair, read_pairs, read_pairs_with_titles, write_pairs};
use engram_data::titles::ClassTitles;
use tempfile::TempDir;

use crate::{assert_has, for_each_damage};

/// A file in a temporary folder.
struct TestFile {
    _folder: TempDir,
    path: PathBuf,
}

fn write_file(content: impl AsRef<[u8]>) -> TestFile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.csv");
    fs::write(&path, content).unwrap();
    TestFile { _folder: folder, path }
}

fn read(content: impl AsRef<[u8]>) -> Result<Vec<PhrasePair>, DataError> {
    read_pairs(&write_file(content).path, Labels::Required)
}

/// Returns the message of a failed read; it must name the file and end with a remedy after `;`.
#[track_caller]
fn message(content: impl AsRef<[u8]>) -> String {
    let message = read(content).unwrap_err().to_string();
    assert!(message.contains("pairs.csv"), "no file in: {message}");
    assert!(message.contains("; "), "no remedy in: {message}");
    message
}

fn pair(id: &str, anchor: &str, target: &str, score: Option<f32>) -> PhrasePair {
    PhrasePair {
        id: id.into(),
        anchor: anchor.into(),
        target: target.into(),
        context: "A47".into(),
        score,
        rating: None,
    }
}

const HEADER: &str = "id,anchor,target,context,score\n";

#[test]
fn the_kaggle_schema_is_read() {
    let pairs = read(format!(
        "{HEADER}a1,abatement,act of abating,A47,0.75\na2,abatement,\"fish, \"\"dried\"\"\",A47,0\n"
    ));
    let expected = vec![
        pair("a1", "abatement", "act of abating", Some(0.75)),
        pair("a2", "abatement", "fish, \"dried\"", Some(0.0)),
    ];
    assert_eq!(pairs.unwrap(), expected);
}

#[test]
fn the_research_schema_is_read_without_ids_and_in_any_order() {
    let pairs =
        read("score,Rating,Context,extra,target,anchor\n0.5,Hypernym,A47,x,t,a\n1,,A47,,u,a\n");
    let mut first = pair("1", "a", "t", Some(0.5));
    first.rating = Some("Hypernym".into());
    assert_eq!(pairs.unwrap(), vec![first, pair("2", "a", "u", Some(1.0))]);
}

#[test]
fn test_rows_need_no_score() {
    let without_score = write_file("id,anchor,target,context\n1,a,t,A47\n");
    let pairs = read_pairs(&without_score.path, Labels::Optional).unwrap();
    assert_eq!(pairs, vec![pair("1", "a", "t", None)]);
    let message = read_pairs(&without_score.path, Labels::Required).unwrap_err().to_string();
    assert_has(&message, &["column `score` is missing", "id, anchor, target, context"]);

    let blank = write_file(format!("{HEADER}1,a,t,A47,\n"));
    assert_eq!(read_pairs(&blank.path, Labels::Optional).unwrap()[0].score, None);
    assert_has(&message_if_required(&blank), &[":2: ", "score is empty"]);
}

fn message_if_required(file: &TestFile) -> String {
    read_pairs(&file.path, Labels::Required).unwrap_err().to_string()
}

#[test]
fn bad_scores_name_their_line_with_either_line_end() {
    for (score, reason) in [
        ("high", "score `high` is not a finite number"),
        ("1.25", "score 1.25 is outside [0, 1]"),
        ("-0.1", "score -0.1 is outside [0, 1]"),
        ("NaN", "score `NaN` is not a finite number"),
        ("inf", "score `inf` is not a finite number"),
        ("1e99", "is outside [0, 1]"),
    ] {
        for end in ["\n", "\r\n"] {
            let text = format!("{HEADER}1,a,\"two\nlines\",A47,1\n\n2,a,t,A47,{score}\n");
            let message = message(text.replace('\n', end));
            assert_has(&message, &[":5: ", reason]);
        }
    }
}

/// Other errors of tables are tested in `engram-textfile`.
#[test]
fn bad_rows_are_reported() {
    for (rows, parts) in [
        ("x,a,t,A47,1\ny,a,u,A47,1\nx,a,v,A47,1\n", [":4: ", "id `x`", ":2; "]),
        ("1, ,t,A47,1\n", [":2: ", "anchor is empty", ""]),
        ("1,a,,A47,1\n", [":2: ", "target is empty", ""]),
        ("1,a,t,,1\n", [":2: ", "context is empty", ""]),
        (",a,t,A47,1\n", [":2: ", "id is empty", ""]),
        ("1,a,\"t,A47,1\n2,a,u,A47,1\n", [":2: ", "never closed", ""]),
        ("", ["", "no rows", ""]),
    ] {
        assert_has(&message(format!("{HEADER}{rows}")), &parts);
    }
    let missing = read_pairs("/nowhere/pairs.csv", Labels::Required).unwrap_err().to_string();
    assert_has(&missing, &["/nowhere/pairs.csv", "check the path"]);
}

#[test]
fn the_error_for_an_unknown_context_names_the_nearest() {
    let titles: ClassTitles = [("A47", "FURNITURE"), ("B08", "CLEANING"), ("A", "NECESSITIES")]
        .map(|(code, title)| (code.to_owned(), title.to_owned()))
        .into_iter()
        .collect();
    let unknown = write_file(format!("{HEADER}1,a,t,A47,1\n2,a,t,b80,1\n"));
    let message = read_pairs_with_titles(&unknown.path, Labels::Required, Some(&titles))
        .unwrap_err()
        .to_string();
    assert_has(&message, &[":3: ", "\"b80\"", "nearest is \"B08\""]);
    let known = write_file(format!("{HEADER}1,a,t,A47,1\n"));
    assert!(read_pairs_with_titles(&known.path, Labels::Required, Some(&titles)).is_ok());
}

/// Truncation and bit flips: an error or fewer rows, never a panic.
#[test]
fn damaged_files_do_not_panic() {
    let whole = format!("\u{feff}{HEADER}1,a,\"t, \"\"q\"\"\",A47,0.25\r\n2,a,é,A47,1\r\n");
    for_each_damage(whole.as_bytes(), |bytes| drop(read(bytes)));
}

#[test]
fn written_pairs_can_be_read() {
    let mut pairs = vec![
        pair("1", "a \"quoted\" anchor", "t, u", Some(0.25)),
        pair("2", "b", "line\nbreak", Some(1.0)),
    ];
    pairs[1].rating = Some("Exact".into());
    let written = write_file("");
    write_pairs(&written.path, &pairs).unwrap();
    assert_eq!(read_pairs(&written.path, Labels::Required).unwrap(), pairs);

    let unlabelled = vec![pair("1", "a", "t", None)];
    write_pairs(&written.path, &unlabelled).unwrap();
    let text = fs::read_to_string(&written.path).unwrap();
    assert_eq!(text, "id,anchor,target,context\n1,a,t,A47\n");
}

#[test]
fn all_three_formats_of_title_lists_are_read() {
    let ours = "code\ttitle\trows_in_train\r\nA47\tFURNITURE; \"COFFEE\" MILLS\t7\r\n";
    let kaggle = "code,title,section,class,subclass,group,main_group\nA47,\"FURNITURE; \"\"COFFEE\"\" MILLS\",A,47,,,\n";
    let office_list =
        "\u{feff}A\t\tHUMAN NECESSITIES\nA47\t\tFURNITURE; \"COFFEE\" MILLS\nA47B1/00\t0\tTables\n";
    for text in [ours, kaggle, office_list] {
        let titles = ClassTitles::read(&write_file(text).path).unwrap();
        assert_eq!(titles.title("A47"), Some("FURNITURE; \"COFFEE\" MILLS"), "{text}");
        assert_eq!(titles.title("A48"), None);
        assert_eq!(ClassTitles::read(&write_file(titles.to_tsv()).path).unwrap(), titles);
    }
    let message =
        ClassTitles::read(&write_file("A47\t\tFURNITURE\nA48\n").path).unwrap_err().to_string();
    assert_has(&message, &[":2: ", "code<TAB>title"]);
    let message =
        ClassTitles::read(&write_file("class,title\nA47,x\n").path).unwrap_err().to_string();
    assert_has(&message, &["column `code` is missing", "class, title"]);
}
