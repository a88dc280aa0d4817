//! `engram eval … --html` writes a page and does not change the printed output.

use std::fs;

use crate::running::{Folder, succeeds};

/// Runs a command with and without `--html`, and checks that the page contains `parts`.
fn check_page(files: &[(&str, &str)], arguments: &str, parts: &[&str]) {
    let folder = &Folder::with(files);
    for format in ["", "--json"] {
        let plain = format!("eval {arguments} {format}");
        let with_page = format!("{plain} --html report.html --force");
        assert_eq!(succeeds(folder, &with_page), succeeds(folder, &plain), "{plain}");
        let page = fs::read_to_string(folder.join("report.html")).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        for part in parts {
            assert!(page.contains(part), "`{part}` is not in the page of {arguments}");
        }
    }
}

#[test]
fn each_evaluation_writes_a_page() {
    check_page(
        &[("ref.tsv", "u1\ta cat sat\nu2\tall right\n"), ("hyp.tsv", "u1\ta bat\nu2\tall right\n")],
        "wer --ref ref.tsv --hyp hyp.tsv",
        &["0.4000", "<del>cat</del><ins>bat</ins>", "<del>sat</del><ins></ins>"],
    );
    let annotations = r#"{"images": [{"id": 1}, {"id": 2}], "annotations": [
        {"image_id": 1, "id": 1, "caption": "A dog <b>runs</b>."},
        {"image_id": 2, "id": 2, "caption": "Two red buses"}]}"#;
    let results =
        r#"[{"image_id": 2, "caption": "two buses"}, {"image_id": 1, "caption": "a cat"}]"#;
    check_page(
        &[("a.json", annotations), ("r.json", results)],
        "caption --ref a.json --hyp r.json",
        &["A dog &lt;b&gt;runs&lt;/b&gt;.", "CIDEr-D"],
    );
    let annotations = r#"{"annotations": [{"question_id": 7, "question_type": "what",
        "answer_type": "other", "answers": [{"answer": "cat", "answer_id": 1},
        {"answer": "cat", "answer_id": 2}, {"answer": "dog", "answer_id": 3}]}]}"#;
    check_page(
        &[("a.json", annotations), ("r.json", r#"[{"question_id": 7, "answer": "bird"}]"#)],
        "vqa --ref a.json --hyp r.json",
        &["bird", "cat", "×2", "By question type"],
    );
    let questions = r#"[{"question_id": "q", "question": "What runs?", "choices": ["cat", "dog"],
        "correct_choice_idx": 1, "direct_answers": ["dog", "puppy"],
        "difficult_direct_answer": false}]"#;
    let predictions = r#"{"q": {"direct_answer": "cat", "multiple_choice": "cat"}}"#;
    check_page(
        &[("q.json", questions), ("p.json", predictions)],
        "aokvqa --ref q.json --hyp p.json",
        &["What runs?", "correct choice", "puppy"],
    );
    check_page(
        &[("q.jsonl", r#"{"id": "q1", "ranked": ["a", "b"], "relevant": ["b", "c"]}"#)],
        "retrieval --queries q.jsonl",
        &["relevant, not retrieved", "recall@10 of a query"],
    );
    let replies = "{\"id\": 1, \"answer\": \"no\", \"response\": \"Yes, a dog.\"}\n\
                   {\"id\": 2, \"answer\": \"no\", \"response\": \"no\"}\n";
    check_page(
        &[("r.jsonl", replies)],
        "haystack --hyp r.jsonl",
        &["By correct answer", "Yes, a dog."],
    );
    let cases = r#"[{"src": "What is <b>?", "answers": ["oak"], "loc_ans": "he"}]"#;
    let outputs = r#"{"id": 0, "rewrite": "elm", "paraphrase": "an oak", "neighborhood": "he"}"#;
    check_page(
        &[("c.json", cases), ("p.jsonl", outputs)],
        "edit --data zsre --ref c.json --hyp p.jsonl --metric efficacy",
        &["What is &lt;b&gt;?", "elm", "oak", "Benchmark zsre"],
    );
    let gold = "id,anchor,target,context,score\n1,wood,wooden,B44,1\n2,wood,steel,B44,0\n\
                3,pipe,tube,F16,0.75\n";
    check_page(
        &[("g.csv", gold), ("p.csv", "id,score\n1,0.9\n2,0.4\n3,0.5\n")],
        "phrase --ref g.csv --hyp p.csv",
        &["Pearson", "By section", "wooden"],
    );
}
