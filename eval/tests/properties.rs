//! Laws that hold for any input: of the readers, the tokenisers, the normalisers and the metrics. The inputs are random,
//! but the same in every run.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::caption::{
    AnnotatedImage, CaptionAnnotations, CaptionOptions, CaptionResult, CaptionResults, ImageId,
    evaluate as evaluate_captions,
};
use engram_eval::normalise::Normaliser;
use engram_eval::retrieval::{RetrievalOptions, RetrievalReport, evaluate, parse_queries};
use engram_eval::tokenise::ptb;
use engram_eval::wer::alignment::Edit;
use engram_eval::wer::counts::EditCounts;
use engram_eval::wer::read;
use engram_eval::wer::report::{self, WerOptions, WerReport};
use engram_eval::wer::tokens::{Unit, words};
use engram_eval::wer::{align, measure_by};
use engram_eval::{aokvqa, phrase, vqa};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Runs a law on `cases` random inputs; a failure prints the smallest input that was found.
fn holds<S: Strategy>(cases: u32, inputs: S, law: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, random);
    let found = runner.run(&inputs, |input| {
        law(input);
        Ok(())
    });
    if let Err(failure) = found {
        panic!("{failure}");
    }
}

/// How often each law is tried; `PROPERTY_FACTOR=100` makes a long run of it.
fn cases(usual: u32) -> u32 {
    let factor = std::env::var("PROPERTY_FACTOR").ok().and_then(|factor| factor.parse().ok());
    usual.saturating_mul(factor.unwrap_or(1))
}

/// Pieces that mean something to some tokeniser, normaliser or reader.
const PIECES: [&str; 72] = [
    "a",
    "b",
    "the",
    "dog",
    "runs",
    "twenty",
    "one",
    "half",
    "and",
    "point",
    "million",
    "double",
    "oh",
    "per",
    "cent",
    "dollars",
    "1",
    "9",
    "0",
    "1,000",
    "3.5",
    "$",
    "€0",
    "¢5",
    "%",
    "-",
    "--",
    ".",
    "...",
    ",",
    ";",
    "?!",
    "'",
    "''",
    "n't",
    "'s",
    "won",
    "can",
    "\"",
    "`",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    "<a b=\"",
    "&amp;",
    "&quot;",
    "http://",
    "www.",
    "@x.org",
    "Mr.",
    "U.S.",
    "K.",
    " ",
    "  ",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "\r",
    "\u{2028}",
    "\u{85}",
    "\u{301}",
    "é",
    "Σ",
    "İ",
    "\u{1F469}\u{200D}",
    "\u{AD}",
    "٣",
    "\0",
    "\u{10FFFF}",
];

/// Text made of those pieces, or any text at all.
fn text(pieces: usize) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => select(PIECES.to_vec()).prop_map(str::to_owned),
        2 => Just(" ".to_owned()),
        1 => any::<char>().prop_map(String::from),
    ];
    vec(piece, 0..pieces).prop_map(|pieces| pieces.concat())
}

/// A sentence of few different words, so that edits and n-grams meet.
fn sentence(most: usize) -> impl Strategy<Value = String> {
    let word = select(vec!["a", "b", "c", "d", "dog", "runs", "é"]);
    vec(word, 0..most).prop_map(|words| words.join(" "))
}

/// The corpus of a target.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("an input")).collect()
}

/// One change to a file.
#[derive(Debug, Clone)]
enum Change {
    Cut(Index),
    Flip(Index, u8),
    Insert(Index, String),
    Double(Index, Index),
    Remove(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let piece = select(vec![
        "\"", "{", "}", "[", "]", ":", ",", "\t", "\n", "\r", "null", "-1", "1e999", "\\ud800",
        "\u{feff}", "\0", "id", "(", ")", "'", "\\", "true", "1.5", " ",
    ]);
    prop_oneof![
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, bits)| Change::Flip(at, bits)),
        (any::<Index>(), piece).prop_map(|(at, piece)| Change::Insert(at, piece.to_owned())),
        any::<(Index, Index)>().prop_map(|(from, to)| Change::Double(from, to)),
        any::<(Index, Index)>().prop_map(|(from, to)| Change::Remove(from, to)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let place = |index: &Index, bytes: &[u8]| index.index(bytes.len() + 1);
        let range = |from: &Index, to: &Index, bytes: &[u8]| {
            let (a, b) = (place(from, bytes), place(to, bytes));
            a.min(b)..a.max(b)
        };
        match change {
            Change::Cut(at) => bytes.truncate(place(at, &bytes)),
            Change::Flip(at, bits) => {
                let at = place(at, &bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Change::Insert(at, piece) => {
                let at = place(at, &bytes);
                bytes.splice(at..at, piece.bytes());
            }
            Change::Double(from, to) => {
                let again = bytes[range(from, to, &bytes)].to_vec();
                if bytes.len() + again.len() < 8000 {
                    bytes.extend(again);
                }
            }
            Change::Remove(from, to) => {
                let range = range(from, to, &bytes);
                bytes.drain(range);
            }
        }
    }
    bytes
}

#[test]
fn readers_survive_any_bytes() {
    holds(cases(400), vec(any::<u8>(), 0..200), |bytes| {
        targets::TARGETS.iter().for_each(|(_, target)| target(&bytes));
    });
}

#[test]
fn readers_survive_any_text() {
    holds(cases(400), text(40), |text| {
        targets::TARGETS.iter().for_each(|(_, target)| target(text.as_bytes()));
    });
}

/// Kept inputs with a few changes: most of a reader is only reached by files that are nearly right.
#[test]
fn readers_survive_changed_files() {
    for (name, _) in targets::TARGETS {
        let corpus: Vec<_> = corpus(name).into_iter().filter(|file| file.len() < 1500).collect();
        let files = (select(corpus), vec(change(), 1..4));
        holds(cases(600), files, |(file, changes)| targets::run(name, &changed(file, &changes)));
    }
}

/// The edit distance as it is defined.
fn distance(reference: &[&str], hypothesis: &[&str]) -> u64 {
    let mut row: Vec<u64> = (0..=reference.len() as u64).collect();
    for heard in hypothesis {
        let mut diagonal = row[0];
        row[0] += 1;
        for (column, said) in reference.iter().enumerate() {
            let substituted = diagonal + u64::from(said != heard);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[reference.len()]
}

fn errors(unit: Unit, reference: &str, hypothesis: &str) -> u64 {
    EditCounts::of(&align(unit, reference, hypothesis)).errors()
}

#[test]
fn an_alignment_has_the_fewest_edits() {
    holds(cases(600), (sentence(90), sentence(90)), |(reference, hypothesis)| {
        let (said, heard): (Vec<_>, Vec<_>) =
            (words(&reference).collect(), words(&hypothesis).collect());
        assert_eq!(errors(Unit::Word, &reference, &hypothesis), distance(&said, &heard));
        targets::check_alignment(&reference, &hypothesis);
        // A hit stands on equal tokens, a substitution on others.
        let (mut i, mut j) = (0, 0);
        for edit in align(Unit::Word, &reference, &hypothesis) {
            match edit {
                Edit::Hit => assert_eq!(said[i], heard[j]),
                Edit::Substitution => assert_ne!(said[i], heard[j]),
                Edit::Deletion | Edit::Insertion => {}
            }
            i += usize::from(edit != Edit::Insertion);
            j += usize::from(edit != Edit::Deletion);
        }
        assert_eq!((i, j), (said.len(), heard.len()));
    });
}

#[test]
fn an_alignment_of_any_text_adds_up() {
    holds(cases(400), (text(40), text(40)), |(reference, hypothesis)| {
        targets::check_alignment(&reference, &hypothesis);
    });
}

/// Large enough to be halved, where memory is kept small.
#[test]
fn long_alignments_have_the_fewest_edits_too() {
    let long = || vec(0..40_u8, 3000..3600);
    holds(cases(2), (long(), long()), |(reference, hypothesis)| {
        let text = |numbers: &[u8]| {
            numbers.iter().map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ")
        };
        let (reference, hypothesis) = (text(&reference), text(&hypothesis));
        let (said, heard): (Vec<_>, Vec<_>) =
            (words(&reference).collect(), words(&hypothesis).collect());
        assert_eq!(errors(Unit::Word, &reference, &hypothesis), distance(&said, &heard));
    });
}

#[test]
fn the_distance_is_a_metric() {
    holds(cases(500), (sentence(12), sentence(12), sentence(12)), |(a, b, c)| {
        for unit in [Unit::Word, Unit::Char] {
            let of = |x: &str, y: &str| errors(unit, x, y);
            assert_eq!(of(&a, &b), of(&b, &a));
            assert!(of(&a, &c) <= of(&a, &b) + of(&b, &c));
            assert_eq!(of(&a, &a), 0);
            assert_eq!(of(&a, &b) == 0, a == b);
        }
    });
}

#[test]
fn counts_of_pairs_add_up() {
    let pairs = vec((text(12), text(12)), 0..20);
    holds(cases(150), (pairs, any::<Index>()), |(pairs, at)| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let at = at.index(references.len() + 1);
        for unit in [Unit::Word, Unit::Char] {
            let of = |from: usize, to: usize| {
                measure_by(unit, &references[from..to], &hypotheses[from..to]).expect("as many")
            };
            let (mut first, second, all) =
                (of(0, at), of(at, references.len()), of(0, references.len()));
            first.total += second.total;
            first.pairs.extend(second.pairs);
            assert_eq!(first, all);
        }
    });
}

/// The same on a pool of one thread and of three.
fn on_pools<T: PartialEq + std::fmt::Debug + Send>(run: impl Fn() -> T + Sync) {
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(&run)
    };
    assert_eq!(on(1), on(3));
}

/// Pairs of the texts at hand, without ids of their own.
fn pairs_of(references: &[String], hypotheses: &[String]) -> read::Pairs<'static> {
    let owned = |texts: &[String]| texts.iter().map(|text| text.clone().into()).collect();
    read::Pairs {
        ids: (1..=references.len()).map(|line| line.to_string().into()).collect(),
        references: owned(references),
        hypotheses: owned(hypotheses),
    }
}

fn wer_report(references: &[String], hypotheses: &[String]) -> WerReport {
    let options = WerOptions {
        bootstrap: BootstrapOptions { resamples: 40, ..BootstrapOptions::default() },
        worst: 5,
        confusions: 5,
        items: true,
        ..WerOptions::default()
    };
    report::evaluate(&pairs_of(references, hypotheses), &options).expect("pairs")
}

#[test]
fn no_figure_depends_on_the_threads() {
    let pairs = vec((sentence(9), sentence(9)), 150..260);
    holds(cases(4), pairs, |pairs| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        on_pools(|| format!("{:?}", wer_report(&references, &hypotheses)));
        on_pools(|| Normaliser::WhisperEnglish.normalise_all(&references));
        on_pools(|| ptb::tokenise(&references));
        on_pools(|| format!("{:?}", caption_scores(&references, &hypotheses)));
        let queries = queries(&references, &hypotheses);
        on_pools(|| format!("{:?}", retrieval_report(&queries)));
    });
}

/// Lines enough for several parts of work, with tags that go over line ends.
#[test]
fn the_tokeniser_does_not_depend_on_the_threads() {
    let line = |number: usize| match number % 1999 {
        7 => "he said <a b=\"".to_owned(),
        11 => "c\"> K.".to_owned(),
        number => format!("The dog no. {number} of Mr. K."),
    };
    let lines: Vec<String> = (0..9000).map(line).collect();
    on_pools(|| ptb::tokenise(&lines));
}

#[test]
fn tokenisers_keep_their_promises() {
    holds(cases(400), vec(text(25), 1..5), |lines| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        targets::check_ptb(&lines);
    });
    holds(cases(800), text(30), |text| {
        // Numbers are words, and words have characters: neither can be more.
        let found: Vec<&str> = words(&text).collect();
        assert!(found.iter().map(|word| word.len()).sum::<usize>() <= text.len());
        assert_eq!(words(&found.join(" ")).collect::<Vec<_>>(), found);
        // U+0020 at the ends is nothing.
        assert_eq!(words(&format!("  {text} ")).collect::<Vec<_>>(), found);
    });
    // Plain words are their own tokens.
    holds(cases(200), sentence(12), |text| {
        assert_eq!(ptb::tokenise(&[&text]), [text]);
    });
}

#[test]
fn normalisers_keep_their_promises() {
    holds(cases(800), text(30), |text| targets::run("normalise", text.as_bytes()));
    // Standardised text without an apostrophe stays as it is, and so does what has neither capitals nor symbols.
    holds(cases(400), sentence(12), |text| {
        for normaliser in Normaliser::ALL {
            if normaliser != Normaliser::WhisperEnglish && !normaliser.name().contains('+') {
                assert_eq!(normaliser.normalise(&text), text, "{normaliser}");
            }
            let once = normaliser.normalise(&text);
            assert_eq!(normaliser.normalise(&once), once, "{normaliser}");
        }
    });
}

/// No input takes much more than time in proportion to its length; one that does makes this test run for hours.
#[test]
fn hostile_text_is_read_to_its_end() {
    let n = 20_000;
    for piece in [
        "<a b=\"",
        "<a b='\" ",
        "A. <a q='",
        "A. <a q='A. <a q=\"' ",
        "http://a.",
        "a@",
        "a.a@b.",
        "^.[^=",
        "1-",
        "1/",
        "1 1/",
        "(555) ",
        "&amp;",
        "'",
        "can't",
        "a'",
        "\u{AD}",
        "\u{1F469}\u{200D}",
        "\u{1F1E6}",
        "\u{94D}\u{915}",
        "\u{301}\u{323}",
        "double one thousand ",
        "point one million ",
        "and a ",
        "Σ\u{301}",
        "-LRB-",
        "o'",
        "...",
        ". . ",
        "A.",
        "\u{1100}\u{1161}",
        "$0 ",
        "¢",
        "[",
        "(",
        "<",
        "a\u{a0}",
        "\u{a0}\u{a0}",
        "\"",
        "\\*",
        "www.a.",
    ] {
        let text = piece.repeat(n);
        for normaliser in Normaliser::ALL {
            normaliser.normalise(&text);
        }
        ptb::tokenise(&[&text]);
        vqa::answer::normalised(&text);
        assert!(words(&text).count() <= text.len());
    }
}

#[test]
fn a_line_of_many_megabytes_is_refused_in_few_words() {
    let huge = "x".repeat(16 << 20);
    for text in [
        format!("\"{huge}\""),
        format!("{{\"id\": \"{huge}\""),
        format!("{{\"{huge}\": 1}}"),
        format!("[{{\"image_id\": \"{huge}\"}}]"),
        format!("id\ttext\t{huge}\n\ta\n"),
        format!("id,score\n{huge},{huge}\n"),
        format!("({huge})\n({huge})\n"),
    ] {
        for name in
            ["aokvqa", "caption", "items", "phrase", "retrieval", "vqa", "wer_labels", "wer_texts"]
        {
            targets::run(name, text.as_bytes());
        }
    }
}

/// Annotations of one reference an image and more, and results for them.
fn captions(references: &[String], hypotheses: &[String]) -> (CaptionAnnotations, CaptionResults) {
    let rows = references.iter().zip(hypotheses).enumerate();
    let image = |(row, (reference, _)): (usize, (&String, &String))| AnnotatedImage {
        id: ImageId::Number(row as i64),
        domain: Some(["in-domain", "out-domain"][row % 2].to_owned()),
        references: vec![reference.clone(), "a dog runs".to_owned()],
    };
    let result = |(row, (_, hypothesis)): (usize, (&String, &String))| CaptionResult {
        image_id: ImageId::Number(row as i64),
        caption: hypothesis.clone(),
    };
    let annotations =
        CaptionAnnotations { file: "a".to_owned(), images: rows.clone().map(image).collect() };
    (annotations, CaptionResults { file: "r".to_owned(), results: rows.map(result).collect() })
}

fn caption_scores(
    references: &[String],
    hypotheses: &[String],
) -> engram_eval::caption::CaptionScores {
    let (annotations, results) = captions(references, hypotheses);
    evaluate_captions(&annotations, &results, &CaptionOptions::default()).expect("they fit")
}

#[test]
fn caption_figures_stay_in_their_limits() {
    holds(cases(150), vec((text(20), text(20)), 1..12), |pairs| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let (annotations, results) = captions(&references, &hypotheses);
        targets::evaluate_captions(&annotations, &results, &CaptionOptions::default());
    });
}

#[test]
fn a_perfect_caption_has_the_perfect_figures() {
    let long = vec(select(vec!["a", "dog", "runs", "in", "the", "park"]), 4..12);
    holds(cases(150), vec(long.prop_map(|words| words.join(" ")), 2..9), |captions| {
        let scores = caption_scores(&captions, &captions);
        for figure in scores.corpus.bleu {
            assert!((figure - 1.0).abs() < 1e-6, "{figure}");
        }
        assert!((scores.corpus.rouge_l - 1.0).abs() < 1e-12);
        // Of one reference and its copy both forms of CIDEr are the same mean of cosines.
        let (mut annotations, results) = self::captions(&captions, &captions);
        annotations.images.iter_mut().for_each(|image| image.references.truncate(1));
        let scores =
            evaluate_captions(&annotations, &results, &CaptionOptions::default()).expect("fit");
        for image in scores.images {
            let (d, plain) = (image.figures.cider_d, image.figures.cider);
            assert!(d <= 10.0 + 1e-9 && (d - plain).abs() < 1e-9, "{d} {plain}");
        }
    });
}

/// A permutation of `n` rows.
fn permuted<T: Clone>(rows: &[T], keys: &[u32]) -> Vec<T> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (keys[*row % keys.len()], *row));
    order.into_iter().map(|row| rows[row].clone()).collect()
}

#[test]
fn the_order_of_the_items_changes_no_figure() {
    let close =
        |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs()) || a.is_nan() && b.is_nan();
    let rows = vec((sentence(9), sentence(9)), 2..15);
    holds(cases(120), (rows, vec(any::<u32>(), 15)), |(rows, keys)| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
        let (other_references, other_hypotheses): (Vec<_>, Vec<_>) =
            permuted(&rows, &keys).into_iter().unzip();
        let (a, b) = (
            wer_report(&references, &hypotheses),
            wer_report(&other_references, &other_hypotheses),
        );
        assert_eq!(a.evaluation.detail, b.evaluation.detail);
        assert_eq!((a.counts, a.confusions), (b.counts, b.confusions));
        let of = |references: &[String], hypotheses: &[String]| {
            caption_scores(references, hypotheses).corpus.values()
        };
        let (a, b) = (of(&references, &hypotheses), of(&other_references, &other_hypotheses));
        assert!(a.iter().zip(b).all(|(a, b)| close(*a, b)), "{a:?} {b:?}");
        let of = |rows: &str| {
            let report = retrieval_report(rows).evaluation;
            let all = [&report.primary].into_iter().chain(&report.secondary);
            all.map(|measure| measure.value).collect::<Vec<f64>>()
        };
        let rows = queries(&references, &hypotheses);
        let lines: Vec<&str> = rows.lines().collect();
        let other = permuted(&lines, &keys).join("\n");
        let (a, b) = (of(&rows), of(&other));
        assert!(a.iter().zip(&b).all(|(a, b)| close(*a, *b)), "{a:?} {b:?}");
    });
}

/// A query for each row: its words are what is relevant and what was retrieved.
fn queries(relevant: &[String], ranked: &[String]) -> String {
    let once = |text: &String| {
        let mut seen = Vec::new();
        text.split(' ').for_each(|word| {
            if !seen.contains(&word) {
                seen.push(word);
            }
        });
        seen.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let line = |(row, (relevant, ranked)): (usize, (&String, &String))| {
        let (relevant, ranked) = (once(relevant), once(ranked));
        serde_json::json!({"id": row, "ranked": ranked, "relevant": relevant}).to_string() + "\n"
    };
    relevant.iter().zip(ranked).enumerate().map(line).collect()
}

fn retrieval_report(queries: &str) -> RetrievalReport {
    let options = RetrievalOptions {
        cutoffs: vec![1, 2, 3, 5, usize::MAX],
        bootstrap: BootstrapOptions { resamples: 40, ..BootstrapOptions::default() },
        ..RetrievalOptions::default()
    };
    evaluate(&parse_queries("q", queries).expect("queries"), &options).expect("a report")
}

#[test]
fn more_retrieved_finds_no_less() {
    holds(cases(200), vec((sentence(9), sentence(9)), 1..9), |rows| {
        let (relevant, ranked): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let detail = retrieval_report(&queries(&relevant, &ranked)).evaluation.detail;
        for name in ["recall", "success"] {
            let of = |k: &usize| detail[&format!("{name}@{k}")].as_f64();
            assert!([1, 2, 3, 5, usize::MAX].map(|k| of(&k)).is_sorted(), "{detail:?}");
        }
        assert!(detail.values().all(|value| (0.0..=1.0).contains(&value.as_f64().unwrap_or(-1.0))));
        // What is relevant, and that alone, is a perfect answer.
        let perfect = retrieval_report(&queries(&relevant, &relevant)).evaluation.detail;
        for name in ["mrr", "map", "ndcg@10", &format!("recall@{}", usize::MAX)] {
            let value = perfect[name].as_f64().unwrap_or(-1.0);
            assert!((value - 1.0).abs() < 1e-12, "{name} {value}");
        }
    });
}

#[test]
fn perfect_results_have_perfect_figures() {
    holds(cases(150), vec(sentence(9), 1..9), |texts| {
        let report = wer_report(&texts, &texts);
        assert_eq!(report.evaluation.primary.value, 0.0);
        assert_eq!(report.evaluation.detail["wip"], 1.0);

        let answers = |text: &str| {
            let people = (0..4).map(|id| serde_json::json!({"answer": text, "answer_id": id}));
            people.collect::<Vec<_>>()
        };
        let rows = texts.iter().enumerate();
        let annotations: Vec<_> = rows
            .clone()
            .map(|(row, text)| serde_json::json!({"question_id": row, "answers": answers(text)}))
            .collect();
        let results: Vec<_> = rows
            .map(|(row, text)| serde_json::json!({"question_id": row, "answer": text}))
            .collect();
        let annotations = serde_json::json!({"annotations": annotations}).to_string();
        let results = serde_json::Value::from(results).to_string();
        let annotations = vqa::read::parse_annotations("a", &annotations).expect("annotations");
        let results = vqa::read::parse_results("r", &results).expect("results");
        let found = vqa::evaluate(("a", &annotations), ("r", &results), &Default::default());
        assert_eq!(found.expect("they fit").evaluation.primary.value, 100.0);

        let questions: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(row, text)| {
                serde_json::json!({"question_id": row, "choices": ["?", text], "correct_choice_idx": 1,
                    "direct_answers": [text, text, text], "difficult_direct_answer": false})
            })
            .collect();
        let questions = serde_json::Value::from(questions).to_string();
        let questions = aokvqa::parse_questions("q", &questions).expect("questions");
        let prediction = |question: &aokvqa::Question<'_>| {
            let answer = Some(question.choices[1].to_string().into());
            let prediction =
                aokvqa::Prediction { direct_answer: answer.clone(), multiple_choice: answer };
            (question.question_id.0.to_string(), prediction)
        };
        let predictions = questions.iter().map(prediction).collect();
        let found = aokvqa::evaluate(&questions, ("p", &predictions), &Default::default());
        let detail = found.expect("they fit").evaluation.detail;
        assert_eq!(
            (&detail["direct_answer"], &detail["multiple_choice"]),
            (&100.0.into(), &100.0.into())
        );
    });
}

/// A person's answer, id and confidence.
type Person = (&'static str, u8, bool);

/// The accuracy as the script has it: each person's answer against those of all others.
fn accuracy_by_pairs(given: &str, people: &[Person]) -> f64 {
    let score = |person: &Person| {
        let others = people.iter().filter(|other| *other != person);
        (others.filter(|other| other.0 == given).count() as f64 / 3.0).min(1.0)
    };
    people.iter().map(score).sum::<f64>() / people.len() as f64
}

#[test]
fn vqa_accuracy_compares_each_with_the_others() {
    let people = vec((select(vec!["cat", "dog", "2"]), 0..4_u8, any::<bool>()), 1..40);
    holds(cases(500), people, |people| {
        let answer = |(answer, id, sure): &Person| {
            let sure = if *sure { "yes" } else { "no" };
            serde_json::json!({"answer": answer, "answer_id": id, "answer_confidence": sure})
        };
        let answers: Vec<_> = people.iter().map(answer).collect();
        let question = serde_json::json!({"question_id": 1, "answers": answers});
        let text = serde_json::json!({"annotations": [question]}).to_string();
        let annotations = vqa::read::parse_annotations("a", &text).expect("annotations");
        for given in ["cat", "dog", "none"] {
            let found = vqa::accuracy(given, &annotations[0].answers);
            assert!((found - accuracy_by_pairs(given, &people)).abs() < 1e-12, "{given}");
        }
    });
}

#[test]
fn correlations_stay_in_their_limits() {
    let score = prop_oneof![
        select(vec![0.0, -0.0, 0.25, 1.0, 1e308, -1e308, 5e-324, 1e-300]),
        any::<f64>().prop_filter("finite", |score| score.is_finite()),
    ];
    holds(cases(300), vec((0..3_u8, score.clone(), score), 1..12), |rows| {
        let gold: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(row, (anchor, gold, _))| phrase::GoldRow {
                id: row.to_string(),
                anchor: anchor.to_string(),
                target: String::new(),
                context: String::new(),
                score: *gold,
                rating: None,
                line: None,
            })
            .collect();
        let predictions: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(row, (_, _, score))| phrase::Prediction {
                id: row.to_string(),
                score: *score,
                line: None,
            })
            .collect();
        let bootstrap = BootstrapOptions { resamples: 5, ..BootstrapOptions::default() };
        let options = phrase::PhraseOptions { bootstrap, ..Default::default() };
        let Ok(report) = phrase::evaluate(&gold, &predictions, &options) else {
            assert_eq!(rows.len(), 1);
            return;
        };
        report.to_text();
        let figures = [&report.evaluation.primary].into_iter().chain(&report.evaluation.secondary);
        for measure in figures {
            let value = measure.value;
            assert!(value.is_finite() != measure.reason.is_some(), "{measure:?}");
            if measure.metric != "mean_absolute_error" {
                assert!(value.is_nan() || value.abs() <= 1.0 + 1e-9, "{measure:?}");
            }
        }
    });
}
