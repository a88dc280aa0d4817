//! Tests of whole pages: input never becomes markup, all elements are closed, and the page loads no
//! other files.

use crate::aokvqa;
use crate::caption::{self, parse_annotations, parse_results};
use crate::haystack;
use crate::haystack::read::parse_replies;
use crate::normalise::Normaliser;
use crate::phrase::{self, PhraseOptions, read_gold, read_predictions};
use crate::result::ReportOptions;
use crate::retrieval::{self, parse_queries};
use crate::texts::{self, Texts};
use crate::vqa::{self, read};
use crate::wer::read::Pairs;
use crate::wer::report::{Labels, WerOptions, evaluate};
use crate::wer::tokens::TokenUnit;
use engram_textfile::Input;

/// A text that tries to break out of markup, attributes, scripts and styles.
const EVIL: &str = r#"</script></style><img/onerror='alert(1)'>"&lt;שלום"#;

fn options() -> ReportOptions {
    ReportOptions { worst: 10, items: true, ..ReportOptions::default() }
}

fn wer_page(unit: TokenUnit) -> String {
    let texts = [(EVIL, "a b"), ("a b c", EVIL), ("", "x"), ("same", "same")];
    let pairs = Pairs {
        ids: (0..4).map(|id| format!("{EVIL}{id}").into()).collect(),
        references: texts.map(|(reference, _)| reference.into()).to_vec(),
        hypotheses: texts.map(|(_, hypothesis)| hypothesis.into()).to_vec(),
        ..Pairs::default()
    };
    let of_pair = [EVIL, "a", "a", ""].map(str::to_owned).to_vec();
    let by = vec![Labels { name: EVIL.to_owned(), of_pair }];
    let options =
        WerOptions { unit, by, worst: 10, confusions: 10, items: true, ..WerOptions::default() };
    evaluate(&pairs, &options).unwrap().to_html(unit)
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn caption_page() -> String {
    let evil = json(EVIL);
    let annotations = format!(
        r#"{{"images": [{{"id": 1}}, {{"id": 2}}],
            "annotations": [{{"image_id": 1, "id": 1, "caption": {evil}}},
                            {{"image_id": 2, "id": 2, "caption": "two red buses"}}]}}"#
    );
    let results =
        format!(r#"[{{"image_id": 1, "caption": "a dog"}}, {{"image_id": 2, "caption": {evil}}}]"#);
    let annotations = parse_annotations("a", &annotations).unwrap();
    let results = parse_results("r", &results).unwrap();
    let report = caption::report::report(&annotations, &results, &Default::default(), &options());
    report.unwrap().to_html()
}

fn vqa_page() -> String {
    let evil = json(EVIL);
    let annotations = format!(
        r#"{{"annotations": [{{"question_id": {evil}, "question_type": {evil}, "answer_type": "other",
            "answers": [{{"answer": {evil}, "answer_id": 1}}, {{"answer": "b", "answer_id": 2}}]}}]}}"#
    );
    let results = format!(r#"[{{"question_id": {evil}, "answer": {evil}}}]"#);
    let questions = format!(r#"{{"questions": [{{"question_id": {evil}, "question": {evil}}}]}}"#);
    let annotations = read::parse_annotations("a", &annotations).unwrap();
    let results = read::parse_results("r", &results).unwrap();
    let questions = read::parse_questions("q", &questions).unwrap();
    let report = vqa::evaluate("a", &annotations, "r", &results, &questions, &options());
    report.unwrap().to_html()
}

fn aokvqa_page() -> String {
    let evil = json(EVIL);
    let questions = format!(
        r#"[{{"question_id": "a", "question": {evil}, "choices": [{evil}, "y"],
            "correct_choice_idx": 0, "direct_answers": [{evil}, "x"],
            "difficult_direct_answer": false}}]"#
    );
    let predictions = format!(r#"{{"a": {{"direct_answer": {evil}, "multiple_choice": "y"}}}}"#);
    let questions = aokvqa::parse_questions("q", &questions).unwrap();
    let predictions = aokvqa::parse_predictions("p", &predictions).unwrap();
    aokvqa::evaluate(&questions, "p", &predictions, &options()).unwrap().to_html()
}

fn retrieval_page() -> String {
    let evil = json(EVIL);
    let queries =
        format!(r#"{{"id": {evil}, "ranked": [{evil}, "b"], "relevant": ["b", "c", "d"]}}"#);
    let queries = parse_queries("q", &queries).unwrap();
    retrieval::evaluate(&queries, &Default::default(), &options()).unwrap().to_html()
}

fn haystack_page() -> String {
    let evil = json(EVIL);
    let replies = format!(
        r#"{{"id": {evil}, "question": {evil}, "answer": "yes", "response": {evil}}}
           {{"id": 2, "answer": "no", "response": "Yes and no."}}"#
    );
    let replies = parse_replies("r", &replies).unwrap();
    haystack::evaluate(&replies, &options()).unwrap().to_html()
}

fn phrase_page() -> String {
    let quoted = EVIL.replace('"', "\"\"");
    let gold = format!(
        "id,anchor,target,context,score\n1,\"{quoted}\",\"{quoted}\",A47,0.75\n2,b,c,A47,0\n\
         3,b,\"{quoted}\",B1,1\n"
    );
    let gold = read_gold(Input::new("g", gold.as_bytes()).unwrap()).unwrap();
    let predictions = "id,score\n1,0.7\n2,0.2\n3,0.1\n";
    let predictions = read_predictions(Input::new("p", predictions.as_bytes()).unwrap()).unwrap();
    let options = PhraseOptions { items: true, ..PhraseOptions::default() };
    phrase::evaluate(&gold, &predictions, &options).unwrap().to_html()
}

fn texts_page() -> String {
    let references = [vec![EVIL.into(), "a cat".into()], vec!["two dogs".into(), "dogs".into()]];
    let texts = Texts {
        ids: vec![EVIL.into(), "2".into()],
        hypotheses: vec!["a cat sat".into(), EVIL.into()],
        references: references.into(),
    };
    texts::evaluate(&texts, "chrf", Normaliser::None, &options()).unwrap().to_html()
}

fn pages() -> [(&'static str, String); 9] {
    [
        ("wer", wer_page(TokenUnit::Word)),
        ("cer", wer_page(TokenUnit::Char)),
        ("texts", texts_page()),
        ("caption", caption_page()),
        ("vqa", vqa_page()),
        ("aokvqa", aokvqa_page()),
        ("retrieval", retrieval_page()),
        ("haystack", haystack_page()),
        ("phrase", phrase_page()),
    ]
}

/// The tags of a page in order, without the contents of style and script.
fn tags(page: &str) -> Vec<&str> {
    let (mut tags, mut remaining) = (Vec::new(), page);
    while let Some(start) = remaining.find('<') {
        let end = start + remaining[start..].find('>').expect("a tag ends");
        let tag = &remaining[start + 1..end];
        tags.push(tag);
        remaining = &remaining[end + 1..];
        if let Some(verbatim_tag) =
            ["style", "script"].into_iter().find(|verbatim_tag| *verbatim_tag == tag)
        {
            remaining =
                &remaining[remaining.find(&format!("</{verbatim_tag}>")).expect("it closes")..];
        }
    }
    tags
}

#[test]
fn all_elements_close_in_order() {
    for (name, page) in pages() {
        let mut open: Vec<&str> = Vec::new();
        for tag in tags(&page) {
            let word = tag.split_whitespace().next().unwrap_or_default();
            match word.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "{name}"),
                None if ["!DOCTYPE", "meta", "input"].contains(&word) => {}
                None => open.push(word),
            }
        }
        assert!(open.is_empty(), "{name}: {open:?}");
    }
}

#[test]
fn input_texts_never_become_markup() {
    for (name, page) in pages() {
        let tags = tags(&page);
        assert!(!tags.iter().any(|tag| tag.starts_with("img")), "{name}");
        for tag in ["script", "style"] {
            assert_eq!(page.matches(&format!("<{tag}")).count(), 1, "{name}");
            assert_eq!(page.matches(&format!("</{tag}")).count(), 1, "{name}");
        }
        // The page of character errors shows each character in its own element.
        if name != "cer" {
            assert!(page.contains("&lt;/script&gt;&lt;/style&gt;&lt;img/onerror=&#39;"), "{name}");
        }
        assert!(page.contains("dir=\"auto\""), "{name}");
    }
}

#[test]
fn pages_load_no_other_files() {
    for (name, page) in pages() {
        for loads in ["http:", "https:", "src=", "@import", "url(", "<link", "//cdn"] {
            assert!(!page.to_lowercase().contains(loads), "{name}: {loads}");
        }
        assert!(page.contains("default-src &#39;none&#39;"), "{name}");
    }
}

#[test]
fn sections_are_complete_and_linked() {
    for (name, page) in pages() {
        for heading in ["Metrics", "Method", "Distribution", "Worst cases"] {
            // The plain accuracy of a reply is 0 or 1, so the page has no distribution.
            if (name, heading) == ("haystack", "Distribution") {
                continue;
            }
            assert!(page.contains(&format!(">{heading}</h2>")), "{name}: {heading}");
        }
        for part in page.split("href=\"#").skip(1) {
            let target = part.split('"').next().unwrap_or_default();
            assert_eq!(page.matches(&format!("id=\"{target}\"")).count(), 1, "{name}: {target}");
        }
        assert!(!page.contains("NaN") && !page.contains("{}"), "{name}");
    }
}

#[test]
fn equal_reports_make_equal_pages() {
    assert_eq!(pages(), pages());
}

#[test]
fn many_and_long_cases_are_truncated() {
    let count = 220usize;
    let long = "word ".repeat(1600);
    let pairs = Pairs {
        ids: (0..count).map(|id| id.to_string().into()).collect(),
        references: vec![long.as_str().into(); count],
        hypotheses: vec!["other".into(); count],
        ..Pairs::default()
    };
    let options = WerOptions {
        worst: super::WORST_CASES,
        items: true,
        bootstrap: crate::bootstrap::BootstrapOptions { resamples: 0, ..Default::default() },
        ..WerOptions::default()
    };
    let page = evaluate(&pairs, &options).unwrap().to_html(TokenUnit::Word);
    assert!(page.contains("The worst 200 of 220 utterances with errors"));
    assert!(page.contains("more steps, not shown"));
    assert!(page.len() < 4_000_000, "{} bytes", page.len());
}
