//! Tests of VQA, OK-VQA and A-OKVQA questions.

use engram_data::knowledge::{Counts, Reason, vqa};
use serde_json::{Value, json};

use super::reading::{assert_refused, read_line, skip_counts};
use crate::real_data;

const QUESTIONS: &str = r#"{"questions": [{"image_id": 42, "question": "What?", "question_id": 1},
    {"image_id": 7, "question": "Who?", "question_id": 2},
    {"image_id": 42, "question": "Why?", "question_id": 3},
    {"image_id": 42, "question": "How?", "question_id": 4}]}"#;
const ANSWERS: &str = r#"{"annotations": [
    {"question_id": 3, "answers": [{"answer": "fun"}]},
    {"question_id": 1, "image_id": 42, "answers": [{"answer": "cat", "answer_id": 1},
        {"answer": "dog"}, {"answer": "dog"}, {"answer": ""}]},
    {"question_id": 2, "answers": [{"answer": "Ada"}]}, {"question_id": 9, "answers": []}]}"#;

fn vqa(questions: &str, answers: &str, options: &str) -> Result<(Vec<String>, Counts), String> {
    let files = [("q", questions.as_bytes()), ("a", answers.as_bytes())];
    let line = format!("--questions q --annotations a {options}");
    read_line(&vqa::DATA_SET, false, &line, &files)
}

#[test]
fn questions_come_with_their_answers() {
    let image_name = "--image-name COCO_val2014_%012d.jpg";
    let (lines, counts) = vqa(QUESTIONS, ANSWERS, image_name).unwrap();
    assert_eq!(
        lines[0],
        concat!(
            r#"{"source":"vqa","document":"42","image":"COCO_val2014_000000000042.jpg","#,
            r#""question":"What?","answer":["dog","cat"]}"#
        )
    );
    assert_eq!((lines.len(), counts.records), (3, 4));
    assert_eq!(counts.skipped, skip_counts([(Reason::NoAnswer, 1), (Reason::NoQuestion, 1)]));
    let (lines, _) = vqa(QUESTIONS, ANSWERS, "--per-image").unwrap();
    // From the string operations of REVEAL's `get_vqa_knowledge`.
    assert_eq!(
        lines,
        [
            concat!(
                r#"{"source":"vqa","document":"42","text":"Question: What? Answer: dog, cat,  <extra_id_99> "#,
                r#"Question: Why? Answer: fun,  <extra_id_99> "}"#
            ),
            r#"{"source":"vqa","document":"7","text":"Question: Who? Answer: Ada,  <extra_id_99> "}"#,
        ]
    );
}

#[test]
fn bad_question_files_are_reported() {
    let not_numeric = QUESTIONS.replace("7", "\"x\"");
    assert_refused(
        vqa(&not_numeric, ANSWERS, "--image-name %d"),
        "item 2 of `questions`: image id x is not a number",
    );
    let vqa = |questions: &str, answers: &str| vqa(questions, answers, "");
    assert_refused(vqa(QUESTIONS, QUESTIONS), "has no list `annotations`");
    assert_refused(vqa(ANSWERS, ANSWERS), "has no list `questions`");
    let duplicate = QUESTIONS.replace("\"question_id\": 2", "\"question_id\": 1");
    assert_refused(vqa(&duplicate, ANSWERS), "item 2 of `questions`: question 1 appears twice");
    let duplicate = ANSWERS.replace("\"question_id\": 2", "\"question_id\": 1");
    assert_refused(vqa(QUESTIONS, &duplicate), "item 3 of `annotations`: question 1 appears twice");
}

#[test]
fn aokvqa_is_one_list() {
    let file = r#"[{"split": "val", "image_id": 1, "question_id": "a", "question": "What?",
        "choices": ["x"], "correct_choice_idx": 0, "direct_answers": ["x", "y", "y"]},
        {"image_id": 1, "question_id": "b", "question": "Who?"}]"#;
    let files = [("q", file.as_bytes())];
    let (lines, counts) = read_line(&vqa::DATA_SET, false, "--aokvqa q", &files).unwrap();
    assert_eq!(lines, [r#"{"source":"vqa","document":"1","question":"What?","answer":["y","x"]}"#]);
    assert_eq!(counts.skipped, skip_counts([(Reason::NoAnswer, 1)]));
}

#[test]
#[ignore = "needs ENGRAM_DATA: aokvqa"]
fn real_questions_of_aokvqa_are_read() {
    let folder = real_data("aokvqa");
    let aokvqa = |name: &str| {
        let line = format!("--image-name val2017/%012d.jpg --aokvqa {}/{name}", folder.display());
        read_line(&vqa::DATA_SET, false, &line, &[]).unwrap()
    };
    assert_eq!(aokvqa("aokvqa_v1p0_val.json").0.len(), 1_145);
    assert_eq!(aokvqa("aokvqa_v1p0_val.json --per-image").0.len(), 1_122);
    let (lines, counts) = aokvqa("aokvqa_v1p0_test.json");
    assert_eq!((lines.len(), counts.records), (0, 6_702));
    assert_eq!(counts.skipped, skip_counts([(Reason::NoAnswer, 6_702)]));
}

/// The official answers are not in the data: every question has the answer "x".
#[test]
#[ignore = "needs ENGRAM_DATA: okvqa"]
fn real_questions_of_okvqa_are_read() {
    let path = real_data("okvqa/OpenEnded_mscoco_val2014_questions.json");
    let questions: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let answer = |question: &Value| json!({"question_id": question["question_id"], "answers": [{"answer": "x"}]});
    let answers: Vec<_> = questions["questions"].as_array().unwrap().iter().map(answer).collect();
    let answers = json!({ "annotations": answers }).to_string();
    for (option, entries) in [("", 5_046), ("--per-image", 5_033)] {
        let line = format!("--questions {} --annotations a {option}", path.display());
        let files = [("a", answers.as_bytes())];
        let (lines, counts) = read_line(&vqa::DATA_SET, false, &line, &files).unwrap();
        assert_eq!((lines.len(), counts.skipped.len()), (entries, 0));
    }
}
