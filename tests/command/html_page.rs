//! `engram eval … --html` writes a page and does not change the printed output.

use std::process::Command;

fn engram(arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_engram")).args(arguments).output();
    let output = run.expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a command with and without `--html`, and checks that the page contains `parts`.
fn check_page(files: &[(&str, &str)], arguments: &[&str], parts: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let of_file = |name: &&str| {
        if files.iter().any(|(file, _)| file == name) {
            folder.path().join(name).display().to_string()
        } else {
            (*name).to_owned()
        }
    };
    let arguments: Vec<String> = arguments.iter().map(of_file).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let file = folder.path().join("report.html").display().to_string();
    for format in [&[][..], &["--json"]] {
        let plain = [&arguments, format].concat();
        let with_page = [&plain[..], &["--html", &file, "--force"]].concat();
        assert_eq!(engram(&with_page), engram(&plain), "{plain:?}");
        let page = std::fs::read_to_string(&file).expect("a page");
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        for part in parts {
            assert!(page.contains(part), "`{part}` is not in the page of {arguments:?}");
        }
    }
}

#[test]
fn each_evaluation_writes_a_page() {
    check_page(
        &[("ref.tsv", "u1\ta cat sat\nu2\tall right\n"), ("hyp.tsv", "u1\ta bat\nu2\tall right\n")],
        &["eval", "wer", "--ref", "ref.tsv", "--hyp", "hyp.tsv"],
        &["0.4000", "<del>cat</del><ins>bat</ins>", "<del>sat</del><ins></ins>"],
    );
    let annotations = r#"{"images": [{"id": 1}, {"id": 2}], "annotations": [
        {"image_id": 1, "id": 1, "caption": "A dog <b>runs</b>."},
        {"image_id": 2, "id": 2, "caption": "Two red buses"}]}"#;
    let results =
        r#"[{"image_id": 2, "caption": "two buses"}, {"image_id": 1, "caption": "a cat"}]"#;
    check_page(
        &[("a.json", annotations), ("r.json", results)],
        &["eval", "caption", "--ref", "a.json", "--hyp", "r.json"],
        &["A dog &lt;b&gt;runs&lt;/b&gt;.", "CIDEr-D"],
    );
    let annotations = r#"{"annotations": [{"question_id": 7, "question_type": "what",
        "answer_type": "other", "answers": [{"answer": "cat", "answer_id": 1},
        {"answer": "cat", "answer_id": 2}, {"answer": "dog", "answer_id": 3}]}]}"#;
    check_page(
        &[("a.json", annotations), ("r.json", r#"[{"question_id": 7, "answer": "bird"}]"#)],
        &["eval", "vqa", "--ref", "a.json", "--hyp", "r.json"],
        &["bird", "cat", "×2", "By question type"],
    );
    let questions = r#"[{"question_id": "q", "question": "What runs?", "choices": ["cat", "dog"],
        "correct_choice_idx": 1, "direct_answers": ["dog", "puppy"],
        "difficult_direct_answer": false}]"#;
    let predictions = r#"{"q": {"direct_answer": "cat", "multiple_choice": "cat"}}"#;
    check_page(
        &[("q.json", questions), ("p.json", predictions)],
        &["eval", "aokvqa", "--ref", "q.json", "--hyp", "p.json"],
        &["What runs?", "correct choice", "puppy"],
    );
    check_page(
        &[("q.jsonl", r#"{"id": "q1", "ranked": ["a", "b"], "relevant": ["b", "c"]}"#)],
        &["eval", "retrieval", "--queries", "q.jsonl"],
        &["relevant, not retrieved", "recall@10 of a query"],
    );
    let replies = "{\"id\": 1, \"answer\": \"no\", \"response\": \"Yes, a dog.\"}\n\
                   {\"id\": 2, \"answer\": \"no\", \"response\": \"no\"}\n";
    check_page(
        &[("r.jsonl", replies)],
        &["eval", "haystack", "--hyp", "r.jsonl"],
        &["By correct answer", "Yes, a dog."],
    );
    let gold = "id,anchor,target,context,score\n1,wood,wooden,B44,1\n2,wood,steel,B44,0\n\
                3,pipe,tube,F16,0.75\n";
    check_page(
        &[("g.csv", gold), ("p.csv", "id,score\n1,0.9\n2,0.4\n3,0.5\n")],
        &["eval", "phrase", "--ref", "g.csv", "--hyp", "p.csv"],
        &["Pearson", "By section", "wooden"],
    );
}

#[test]
fn no_output_overwrites_an_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let pairs = "{\"ref\": \"a\", \"hyp\": \"b\"}\n";
    std::fs::write(path("pairs.jsonl"), pairs).expect("written");
    let [input, same, other] = ["pairs.jsonl", "./pairs.jsonl", "other"].map(path);
    let outputs =
        [vec!["--items", &input], vec!["--html", &same], vec!["--items", &other, "--html", &other]];
    for output in outputs {
        let arguments = [&["eval", "wer", "--pairs", &input], &output[..]].concat();
        let run = Command::new(env!("CARGO_BIN_EXE_engram")).args(&arguments).output();
        let run = run.expect("the binary runs");
        let message = String::from_utf8(run.stderr).expect("text");
        assert_eq!((run.status.code(), &*run.stdout), (Some(2), &b""[..]), "{message}");
        let messages = ["would overwrite the input", "both write there"];
        assert!(messages.iter().any(|part| message.contains(part)), "{message}");
        assert!(!folder.path().join("other").exists());
        assert_eq!(std::fs::read_to_string(&input).expect("the input"), pairs);
    }
}
