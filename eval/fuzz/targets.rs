//! The fuzz targets. The fuzzer, the replay of its corpus and the property tests call them. A
//! target takes any bytes, and panics only if a function under test breaks one of its guarantees.

use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::caption::{
    self, CaptionAnnotations, CaptionOptions, CaptionResult, CaptionResults,
};
use engram_eval::compare::compare_items;
use engram_eval::haystack;
use engram_eval::items::Items;
use engram_eval::metric::chrf::{self, chrf_plus_plus_sums, chrf_sums};
use engram_eval::normalise::Normaliser;
use engram_eval::phrase::{self, PhraseOptions, Prediction};
use engram_eval::result::ReportOptions;
use engram_eval::retrieval::{self, Cutoffs};
use engram_eval::texts::{self, Texts};
use engram_eval::tokenize::ptb;
use engram_eval::wer::alignment::Edit;
use engram_eval::wer::counts::EditCounts;
use engram_eval::wer::labels::LabelTable;
use engram_eval::wer::rare_words::{self, RareWords};
use engram_eval::wer::read::{
    Columns, Pairs, Side, TextFormat, detect_format, join, parse_pairs, parse_side,
};
use engram_eval::wer::report::{self, WerOptions};
use engram_eval::wer::tokens::{TokenUnit, words};
use engram_eval::wer::{Alignment, align, count_errors};
use engram_eval::{EvalError, aokvqa, vqa};
use engram_textfile::{Input, decode};

/// The name of the input file, which every error message must contain.
const FILE: &str = "input.file";

/// Few resamples, which are enough to cover the code.
const FEW_RESAMPLES: BootstrapOptions = BootstrapOptions { resamples: 3, level: 0.95, seed: 1 };

/// The options of most evaluations.
fn options() -> ReportOptions {
    ReportOptions { bootstrap: FEW_RESAMPLES, items: true, worst: 3, sources: Vec::new() }
}

/// Maximum input length in bytes for functions with quadratic run time.
const MAX_QUADRATIC_BYTES: usize = 20_000;

/// The name of a target and of its corpus, and the function that runs it.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const TARGETS: [Target; 16] = [
    ("aokvqa", aokvqa),
    ("caption", caption),
    ("chrf", chrf),
    ("haystack", haystack),
    ("items", items),
    ("normalise", normalise),
    ("phrase", phrase),
    ("ptb", ptb),
    ("retrieval", retrieval),
    ("source", source),
    ("vqa", vqa),
    ("vqa_answer", vqa_answer),
    ("wer_labels", wer_labels),
    ("wer_rare_words", wer_rare_words),
    ("wer_texts", wer_texts),
    ("wer_tokens", wer_tokens),
];

/// Runs the target with the given name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(target_name, _)| *target_name == name);
    target.expect("a known target").1(bytes);
}

/// Checks that the message of an error names the file, the problem and the remedy, on one line of
/// limited length. Returns the value; `None` for an error.
fn check<T>(result: Result<T, EvalError>) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error.to_string(),
    };
    assert!(error.starts_with(FILE), "{error:?} names no file");
    assert!(error.contains("; "), "{error:?} has no remedy");
    assert!(error.chars().count() < 700, "over 700 characters: {error:.700}");
    assert!(!error.contains(char::is_control), "{error:?} holds control characters");
    None
}

/// The input as text; `None` if it is not UTF-8.
fn text(bytes: &[u8]) -> Option<String> {
    check(decode(FILE, bytes.to_vec()).map_err(EvalError::from))
}

fn is_share(value: f64) -> bool {
    (0.0..=1.0 + 1e-9).contains(&value)
}

fn is_percentage(value: f64) -> bool {
    value.is_nan() || (0.0..=100.0 + 1e-9).contains(&value)
}

fn source(bytes: &[u8]) {
    // The fuzzer's inputs are too small to exceed the limit on decompressed data.
    let result = Input::new(FILE, bytes).and_then(Input::read_bytes);
    if let Some(decompressed) = check(result.map_err(EvalError::from)) {
        text(&decompressed);
    }
}

fn wer_texts(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    check(detect_format::of_pair([(FILE, &text); 2]));
    let columns = Columns::default();
    for format in [
        TextFormat::Lines,
        TextFormat::Trn,
        TextFormat::Kaldi,
        TextFormat::Tsv,
        TextFormat::Csv,
        TextFormat::Jsonl,
    ] {
        check(detect_format::check(FILE, &text, format));
        check(parse_side(FILE, &text, format, Side::Hypothesis, &columns));
        if let Some(texts) = check(parse_side(FILE, &text, format, Side::Reference, &columns)) {
            assert!(texts.windows(2).all(|two| two[0].line < two[1].line));
            let pairs = join(FILE, texts.clone(), FILE, texts).expect("the ids match");
            assert_eq!(pairs.references, pairs.hypotheses);
            if pairs.markup.references && text.len() < MAX_QUADRATIC_BYTES {
                check_markup(pairs);
            }
        }
    }
    check(parse_pairs(FILE, &text, TextFormat::Csv, &columns));
    let pairs = check(parse_pairs(FILE, &text, TextFormat::Jsonl, &columns));
    let Some(pairs) = pairs else { return };
    assert!(pairs.ids.len() == pairs.references.len() && pairs.ids.len() == pairs.hypotheses.len());
    if text.len() < MAX_QUADRATIC_BYTES {
        for unit in [TokenUnit::Word, TokenUnit::Char] {
            let options = WerOptions {
                unit,
                bootstrap: FEW_RESAMPLES,
                worst: 3,
                confusions: 3,
                items: true,
                other_normalisers: Normaliser::ALL.to_vec(),
                ..WerOptions::default()
            };
            let report = report::evaluate(&pairs, &options).expect("pairs can be scored");
            report.to_text(unit, true);
            assert!(report.evaluation.primary.value >= 0.0);
        }
    }
}

/// Checks that texts with markup have no errors against themselves, and that the chosen texts have
/// no braces.
fn check_markup(mut pairs: Pairs<'_>) {
    for optional_deletions in [false, true] {
        pairs.markup.optional_deletions = optional_deletions;
        let options = WerOptions { bootstrap: FEW_RESAMPLES, worst: 3, ..WerOptions::default() };
        let report = report::evaluate(&pairs, &options).expect("parsed markup");
        assert_eq!(report.evaluation.primary.value, 0.0);
        let chosen = pairs.without_markup(Normaliser::None).expect("parsed markup");
        assert!(chosen.references.iter().all(|text| !text.contains(['{', '}'])));
    }
}

fn wer_labels(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let Some(table) = check(LabelTable::parse(FILE, &text)) else { return };
    for name in ["id", "speaker", "nobody"] {
        check(table.column(name, &["u1", ""]));
    }
    assert!(table.column("id", &[""; 0]).is_ok());
}

fn wer_rare_words(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let pairs = Pairs {
        ids: vec!["u1".into()],
        references: vec!["a b".into()],
        hypotheses: vec!["a c d".into()],
        ..Pairs::default()
    };
    let list = check(rare_words::parse_word_list(FILE, &text)).map(RareWords::List);
    let lists = check(rare_words::parse_biasing_lists(FILE, &text)).map(RareWords::PerPair);
    for rare in list.into_iter().chain(lists) {
        if let Some(errors) = check(rare_words::rare_word_errors(&pairs, &rare)) {
            assert_eq!(errors.rare.errors() + errors.others.errors(), 2);
        }
    }
}

fn wer_tokens(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (reference, hypothesis) = text.split_once('\n').unwrap_or((&text, ""));
    check_alignment(reference, hypothesis);
    // Words contain no U+0020, and no white space at their ends. If they are joined and split
    // again, they do not change.
    let words_of = |text: &str| words(text).map(str::to_owned).collect::<Vec<_>>();
    let tokens = words_of(&text);
    assert!(tokens.iter().all(|word| !word.is_empty() && !word.contains(' ')));
    assert_eq!(words_of(&tokens.join(" ")), tokens);
    assert!(tokens.len() <= text.chars().count());
}

/// Checks the invariants of the alignment of two texts, in words and in characters.
fn check_alignment(reference: &str, hypothesis: &str) {
    for unit in [TokenUnit::Word, TokenUnit::Char] {
        if reference.len().max(hypothesis.len()) > MAX_QUADRATIC_BYTES {
            return;
        }
        let counts = EditCounts::of(&align(unit, reference, hypothesis));
        let reversed = EditCounts::of(&align(unit, hypothesis, reference));
        assert_eq!(counts.errors(), reversed.errors(), "{reference:?} {hypothesis:?}");
        let error_counts = count_errors(Alignment::Jiwer, unit, &[reference], &[hypothesis]);
        let error_counts = error_counts.expect("one pair");
        assert_eq!(error_counts.total, counts);
        let token_count = |text: &str| {
            let self_counts = EditCounts::of(&align(unit, text, text));
            assert_eq!(self_counts.errors(), 0, "{text:?}");
            self_counts.hits
        };
        assert_eq!(counts.reference_tokens(), token_count(reference));
        assert_eq!(counts.hypothesis_tokens(), token_count(hypothesis));
        if unit == TokenUnit::Word {
            assert_eq!(token_count(reference), words(reference).count() as u64);
        }
        assert!(is_share(counts.match_error_rate()) && is_share(counts.information_lost()));
        assert!(align(unit, "", hypothesis).iter().all(|edit| *edit == Edit::Insertion));
    }
}

fn ptb(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    check_ptb(&lines);
    check_ptb(&[&*text]);
}

/// Checks the output of the tokenizer: one line per input line, without line ends, punctuation
/// tokens or trailing ASCII white space.
fn check_ptb(lines: &[&str]) {
    let (filtered, raw) = (ptb::tokenize(lines), ptb::tokenize_raw(lines));
    assert!(filtered.len() == lines.len() && raw.len() == lines.len());
    for (filtered, raw) in filtered.iter().zip(&raw) {
        assert!(!filtered.contains('\n') && !raw.contains('\n'));
        assert!(!filtered.split(' ').any(|token| matches!(token, "." | "," | "?" | "!" | "''")));
        assert!(filtered.split(' ').count() <= raw.split(' ').count());
    }
}

fn normalise(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for normaliser in Normaliser::ALL {
        let normalised = normaliser.normalise(&text);
        if !matches!(normaliser, Normaliser::None | Normaliser::Lowercase) {
            assert!(!normalised.contains("  "), "{normaliser}: {text:?} gives {normalised:?}");
        }
        assert_eq!(normaliser.normalise_all(&[&*text])[0], normalised);
    }
}

fn vqa_answer(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let normalised = vqa::answer::normalise_answer(&text);
    assert_eq!(normalised.trim(), normalised);
    assert!(!normalised.contains("  ") && !normalised.contains(';'), "{text:?}: {normalised:?}");
    let human = vqa::human_answers::HumanAnswer { answer: text.clone(), first_equal: 0 };
    assert!(is_share(vqa::accuracy(&text, &[human.clone(), human])));
    assert_eq!(vqa::accuracy(&text, &[]), 0.0);
}

fn caption(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Some(frequency) = check(caption::parse_document_frequency(FILE, &text)) {
        let options =
            CaptionOptions { document_frequency: Some(frequency), ..CaptionOptions::default() };
        evaluate_captions(&two_images(), &results_of(&two_images()), &options);
    }
    if let Some(annotations) = check(caption::parse_annotations(FILE, &text))
        && bytes.len() < MAX_QUADRATIC_BYTES
        && annotations.images.iter().all(|image| !image.references.is_empty())
    {
        evaluate_captions(&annotations, &results_of(&annotations), &CaptionOptions::default());
    }
    if let Some(results) = check(caption::parse_results(FILE, &text))
        && bytes.len() < MAX_QUADRATIC_BYTES
    {
        let image = |result: &CaptionResult| caption::AnnotatedImage {
            id: result.image_id.clone(),
            domain: Some(result.caption.clone()),
            references: vec![result.caption.clone(), "a dog runs".to_owned()],
        };
        let images = results.results.iter().map(image).collect();
        let annotations = CaptionAnnotations { file: FILE.to_owned(), images };
        // Two results for one image are an error.
        if check(caption::evaluate(&annotations, &results, &CaptionOptions::default())).is_some() {
            evaluate_captions(&annotations, &results, &CaptionOptions::default());
        }
    }
}

fn two_images() -> CaptionAnnotations {
    let text = r#"{"annotations": [{"image_id": 1, "caption": "a dog runs in the park"},
        {"image_id": 1, "caption": "the dog is running"}, {"image_id": 2, "caption": "a red bus"}]}"#;
    caption::parse_annotations(FILE, text).expect("annotations")
}

/// Results that copy the first reference caption of each image.
fn results_of(annotations: &CaptionAnnotations) -> CaptionResults {
    let result = |image: &caption::AnnotatedImage| CaptionResult {
        image_id: image.id.clone(),
        caption: image.references[0].clone(),
    };
    let results = annotations.images.iter().map(result).collect();
    CaptionResults { file: FILE.to_owned(), results }
}

/// Evaluates captions whose images match the annotations, and checks the range of each metric.
pub fn evaluate_captions(
    annotations: &CaptionAnnotations,
    results: &CaptionResults,
    options: &CaptionOptions,
) {
    let report = caption::report::report(annotations, results, options, &self::options());
    report.expect("the ids match").to_text();
    let scores = caption::evaluate(annotations, results, options).expect("the ids match");
    let images = scores.images.iter().map(|image| image.metrics);
    for metrics in images.chain([scores.corpus]) {
        assert!(metrics.bleu.into_iter().chain([metrics.rouge_l]).all(is_share), "{metrics:?}");
        assert!(metrics.cider_d >= 0.0 && metrics.cider >= 0.0, "{metrics:?}");
        assert!(metrics.cider_d <= 10.0 + 1e-6 && metrics.cider <= 10.0 + 1e-6, "{metrics:?}");
    }
}

/// Scores the first line against the other lines as references.
fn chrf(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let hypothesis = lines.next().unwrap_or_default();
    let references: Vec<&str> = lines.collect();
    for sums_of in [chrf_sums, chrf_plus_plus_sums] {
        let score = |references: &[&str]| chrf::chrf(&sums_of(hypothesis, references));
        let (best_score, self_score) = (score(&references), score(&[hypothesis]));
        assert!(
            is_percentage(best_score) && best_score <= self_score,
            "{text:?} scores {best_score}, itself {self_score}"
        );
        assert!(
            self_score == 100.0 || self_score == 0.0,
            "{hypothesis:?} scores {self_score} against itself"
        );
        assert!(references.iter().all(|reference| score(&[reference]) <= best_score), "{text:?}");
        let matches = |sums: Vec<f64>| sums.chunks(3).map(|order| order[2]).sum::<f64>();
        for reference in &references {
            let reversed = matches(sums_of(reference, &[hypothesis]));
            assert_eq!(matches(sums_of(hypothesis, &[reference])), reversed, "{text:?}");
        }
    }
    let texts = Texts {
        ids: vec!["1".into()],
        hypotheses: vec![hypothesis.into()],
        references: vec![references.iter().map(|text| (*text).into()).collect()],
    };
    let report = texts::evaluate(&texts, "chrf", Normaliser::None, &options()).expect("one text");
    report.to_text();
    let items = engram_eval::items::json_lines(&report.items);
    let items = Items::parse(FILE, &items).expect("written items can be read back");
    assert_eq!(items.items[0].value(), report.evaluation.primary.value);
}

fn vqa(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    check(vqa::read::parse_questions(FILE, &text));
    check(vqa::read::parse_results(FILE, &text));
    let Some(annotations) = check(vqa::read::parse_annotations(FILE, &text)) else { return };
    let results = annotations
        .iter()
        .map(|annotation| (annotation.question_id.clone(), annotation.answers[0].answer.clone()))
        .collect();
    let questions = Default::default();
    let report = vqa::evaluate(FILE, &annotations, FILE, &results, &questions, &options())
        .expect("the ids match");
    report.to_text();
    assert!(is_percentage(report.evaluation.primary.value));
}

fn aokvqa(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    check(aokvqa::parse_predictions(FILE, &text));
    let Some(questions) = check(aokvqa::parse_questions(FILE, &text)) else { return };
    let prediction = |question: &aokvqa::Question<'_>| {
        let prediction = aokvqa::Prediction {
            direct_answer: question.direct_answers.first().map(|a| a.to_string().into()),
            multiple_choice: Some(question.choices[0].to_string().into()),
        };
        (question.question_id.0.to_string(), prediction)
    };
    let predictions = questions.iter().map(prediction).collect();
    let report =
        aokvqa::evaluate(&questions, FILE, &predictions, &options()).expect("the ids match");
    report.to_text();
    assert!(is_percentage(report.evaluation.primary.value));
}

fn retrieval(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Some((run, qrels)) = text.split_once("\n\n") {
        check(retrieval::parse_trec([FILE, run], [FILE, qrels]));
    }
    let Some(queries) = check(retrieval::parse_queries(FILE, &text)) else { return };
    let cutoffs = Cutoffs { recall: vec![1, 2, 3, usize::MAX], ndcg: vec![1, 10, usize::MAX] };
    let report =
        retrieval::evaluate(&queries, &cutoffs, &options()).expect("queries can be scored");
    report.to_text();
    let measures = [&report.evaluation.primary].into_iter().chain(&report.evaluation.secondary);
    measures.for_each(|measure| assert!(is_share(measure.value), "{measure:?}"));
    let recall = |k: usize| report.evaluation.detail[&format!("recall@{k}")].as_f64();
    assert!(recall(1) <= recall(2) && recall(2) <= recall(3) && recall(3) <= recall(usize::MAX));
}

fn haystack(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let Some(replies) = check(haystack::read::parse_replies(FILE, &text)) else { return };
    let options = ReportOptions { worst: usize::MAX, ..options() };
    let report = haystack::evaluate(&replies, &options).expect("replies can be scored");
    report.to_text();
    report.to_html();
    let share = |name: &str| report.evaluation.detail[name].as_f64().expect("a number");
    let [plain, strict] = ["accuracy_plain", "accuracy_strict"].map(share);
    assert!(is_share(plain) && is_share(strict) && strict <= plain, "{strict} {plain}");
    assert_eq!(report.worst.len(), report.wrong_total);
}

fn items(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let Some(items) = check(Items::parse(FILE, &text)) else { return };
    let read_back = Items::parse(FILE, &engram_eval::items::json_lines(&items.items))
        .expect("written items can be read back");
    assert_eq!(read_back, items);
    if let Ok(comparison) = compare_items(&items, &read_back, &FEW_RESAMPLES) {
        comparison.to_text();
        let difference = comparison.difference.value;
        assert!(difference == 0.0 || difference.is_nan(), "{difference}");
    }
}

fn phrase(bytes: &[u8]) {
    let input = || check(Input::new(FILE, bytes).map_err(EvalError::from));
    let Some(predictions) = input() else { return };
    check(phrase::read_predictions(predictions));
    let Some(gold) = input().and_then(|gold| check(phrase::read_gold(gold))) else { return };
    let prediction =
        |row: &phrase::GoldRow| Prediction { id: row.id.clone(), score: row.score, line: row.line };
    let predictions: Vec<Prediction> = gold.iter().map(prediction).collect();
    let options = PhraseOptions { bootstrap: FEW_RESAMPLES, ..PhraseOptions::default() };
    if let Ok(report) = phrase::evaluate(&gold, &predictions, &options) {
        report.to_text();
        let r = report.evaluation.primary.value;
        // Near the smallest normal number, the norm of the scores is too imprecise.
        let largest = gold.iter().map(|row| row.score.abs()).fold(0.0, f64::max);
        let lowest = if largest > 1e-290 { 1.0 - 1e-6 } else { -1.0 };
        assert!(r.is_nan() || (lowest..=1.0).contains(&r), "{r}");
    }
}
