//! Tests of VQA, OK-VQA and A-OKVQA questions.

use engram_data::knowledge::vqa::VqaOptions;
use engram_data::knowledge::{Collector, Input, Reason, vqa};
use serde_json::{Value, json};

use super::reading::{assert_refused, input, read, skip_counts};
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

#[test]
fn questions_come_with_their_answers() {
    let name = Some("COCO_val2014_%012d.jpg".parse().unwrap());
    let mut options = VqaOptions { image_name: name, ..VqaOptions::default() };
    let vqa = |options: &VqaOptions| {
        read(false, |collector| {
            vqa::read(input(QUESTIONS), Some(input(ANSWERS)), options, collector)
        })
        .unwrap()
    };
    let (lines, counts) = vqa(&options);
    assert_eq!(
        lines[0],
        concat!(
            r#"{"source":"vqa","document":"42","image":"COCO_val2014_000000000042.jpg","#,
            r#""question":"What?","answer":["dog","cat"]}"#
        )
    );
    assert_eq!((lines.len(), counts.records), (3, 4));
    assert_eq!(counts.skipped, skip_counts([(Reason::NoAnswer, 1), (Reason::NoQuestion, 1)]));
    options = VqaOptions { per_image: true, ..VqaOptions::default() };
    let (lines, _) = vqa(&options);
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
    let options = VqaOptions::default();
    let vqa = |questions: &str, answers: &str| {
        read(false, |collector| {
            vqa::read(input(questions), Some(input(answers)), &options, collector)
        })
    };
    assert_refused(vqa(QUESTIONS, QUESTIONS), "has no list `annotations`");
    assert_refused(vqa(ANSWERS, ANSWERS), "has no list `questions`");
    let duplicate = QUESTIONS.replace("\"question_id\": 2", "\"question_id\": 1");
    assert_refused(vqa(&duplicate, ANSWERS), "item 2 of `questions`: question 1 appears twice");
    let duplicate = ANSWERS.replace("\"question_id\": 2", "\"question_id\": 1");
    assert_refused(vqa(QUESTIONS, &duplicate), "item 3 of `annotations`: question 1 appears twice");
    let with_pattern = VqaOptions { image_name: Some("%d".parse().unwrap()), ..options.clone() };
    let not_numeric = QUESTIONS.replace("7", "\"x\"");
    let result = read(false, |collector| {
        vqa::read(input(&not_numeric), Some(input(ANSWERS)), &with_pattern, collector)
    });
    assert_refused(result, "item 2 of `questions`: image id x is not a number");
}

#[test]
fn aokvqa_is_one_list() {
    let file = r#"[{"split": "val", "image_id": 1, "question_id": "a", "question": "What?",
        "choices": ["x"], "correct_choice_idx": 0, "direct_answers": ["x", "y", "y"]},
        {"image_id": 1, "question_id": "b", "question": "Who?"}]"#;
    let options = VqaOptions { source: "aokvqa".to_owned(), ..VqaOptions::default() };
    let (lines, counts) =
        read(false, |collector| vqa::read(input(file), None, &options, collector)).unwrap();
    assert_eq!(
        lines,
        [r#"{"source":"aokvqa","document":"1","question":"What?","answer":["y","x"]}"#]
    );
    assert_eq!(counts.skipped, skip_counts([(Reason::NoAnswer, 1)]));
}

#[test]
#[ignore = "needs ENGRAM_DATA: aokvqa"]
fn real_questions_of_aokvqa_are_read() {
    let folder = real_data("aokvqa");
    let aokvqa = |name: &str, per_image| {
        let image_name = Some("val2017/%012d.jpg".parse().unwrap());
        let options = VqaOptions { image_name, per_image, ..VqaOptions::default() };
        let input = Input::open(folder.join(name)).unwrap();
        read(false, |collector| vqa::read(input, None, &options, collector)).unwrap()
    };
    assert_eq!(aokvqa("aokvqa_v1p0_val.json", false).0.len(), 1_145);
    assert_eq!(aokvqa("aokvqa_v1p0_val.json", true).0.len(), 1_122);
    let (lines, counts) = aokvqa("aokvqa_v1p0_test.json", false);
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
    for (per_image, entries) in [(false, 5_046), (true, 5_033)] {
        let options = VqaOptions { per_image, ..VqaOptions::default() };
        let questions = Input::open(&path).unwrap();
        let read = |collector: &mut Collector<'_>| {
            vqa::read(questions, Some(input(&answers)), &options, collector)
        };
        let (lines, counts) = super::reading::read(false, read).unwrap();
        assert_eq!((lines.len(), counts.skipped.len()), (entries, 0));
    }
}
