//! Values of metrics stay within their limits, do not depend on the order of the items, and are
//! perfect for perfect results.

use super::*;

#[test]
fn caption_scores_stay_within_their_limits() {
    check_property(cases(150), vec((text(20), text(20)), 1..12), |pairs| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let (annotations, results) = captions(&references, &hypotheses);
        targets::evaluate_captions(&annotations, &results, &CaptionOptions::default());
    });
}

#[test]
fn a_perfect_caption_has_perfect_scores() {
    let long = vec(select(vec!["a", "dog", "runs", "in", "the", "park"]), 4..12);
    check_property(cases(150), vec(long.prop_map(|words| words.join(" ")), 2..9), |captions| {
        let scores = caption_scores(&captions, &captions);
        for bleu in scores.corpus.bleu {
            assert!((bleu - 1.0).abs() < 1e-6, "{bleu}");
        }
        assert!((scores.corpus.rouge_l - 1.0).abs() < 1e-12);
        // If each caption equals its only reference, CIDEr-D and plain CIDEr are equal.
        let (mut annotations, results) = self::captions(&captions, &captions);
        annotations.images.iter_mut().for_each(|image| image.references.truncate(1));
        let scores = evaluate_captions(&annotations, &results, &CaptionOptions::default())
            .expect("the ids match");
        for image in scores.images {
            let (cider_d, cider) = (image.metrics.cider_d, image.metrics.cider);
            assert!(cider_d <= 10.0 + 1e-9 && (cider_d - cider).abs() < 1e-9, "{cider_d} {cider}");
        }
    });
}

/// Returns the rows in the order of their keys. If there are fewer keys than rows, the keys are
/// repeated.
fn permuted<T: Clone>(rows: &[T], keys: &[u32]) -> Vec<T> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (keys[*row % keys.len()], *row));
    order.into_iter().map(|row| rows[row].clone()).collect()
}

#[test]
fn the_order_of_the_items_changes_no_score() {
    let close =
        |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs()) || a.is_nan() && b.is_nan();
    let rows = vec((sentence(9), sentence(9)), 2..15);
    check_property(cases(120), (rows, vec(any::<u32>(), 15)), |(rows, keys)| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
        let (other_references, other_hypotheses): (Vec<_>, Vec<_>) =
            permuted(&rows, &keys).into_iter().unzip();
        let (a, b) = (
            wer_report(&references, &hypotheses),
            wer_report(&other_references, &other_hypotheses),
        );
        assert_eq!(a.evaluation.detail, b.evaluation.detail);
        assert_eq!((a.counts, a.confusions), (b.counts, b.confusions));
        let corpus_values = |references: &[String], hypotheses: &[String]| {
            caption_scores(references, hypotheses).corpus.values()
        };
        let (a, b) = (
            corpus_values(&references, &hypotheses),
            corpus_values(&other_references, &other_hypotheses),
        );
        assert!(a.iter().zip(b).all(|(a, b)| close(*a, b)), "{a:?} {b:?}");
        let report_values = |rows: &str| {
            let report = retrieval_report(rows).evaluation;
            let measures = [&report.primary].into_iter().chain(&report.secondary);
            measures.map(|measure| measure.value).collect::<Vec<f64>>()
        };
        let rows = queries(&references, &hypotheses);
        let lines: Vec<&str> = rows.lines().collect();
        let permuted_rows = permuted(&lines, &keys).join("\n");
        let (a, b) = (report_values(&rows), report_values(&permuted_rows));
        assert!(a.iter().zip(&b).all(|(a, b)| close(*a, *b)), "{a:?} {b:?}");
    });
}

#[test]
fn a_ranking_of_exactly_the_relevant_entries_is_perfect() {
    check_property(cases(200), vec(sentence(9), 1..9), |relevant| {
        let detail = retrieval_report(&queries(&relevant, &relevant)).evaluation.detail;
        for name in ["mrr", "map", "ndcg@10", &format!("recall@{}", usize::MAX)] {
            let value = detail[name].as_f64().unwrap_or(-1.0);
            assert!((value - 1.0).abs() < 1e-12, "{name} {value}");
        }
    });
}

#[test]
fn perfect_transcripts_have_perfect_scores() {
    check_property(cases(150), vec(sentence(9), 1..9), |texts| {
        let evaluation = wer_report(&texts, &texts).evaluation;
        assert_eq!((evaluation.primary.value, &evaluation.detail["wip"]), (0.0, &1.0.into()));
    });
}

/// The answer of one annotator: answer, id and confidence.
type Annotator = (&'static str, u8, bool);

/// The accuracy as the official script defines it: for each human answer, the predicted answer is
/// compared with the answers of all other annotators.
fn accuracy_by_pairs(predicted: &str, annotators: &[Annotator]) -> f64 {
    let score = |annotator: &Annotator| {
        let others = annotators.iter().filter(|other| *other != annotator);
        (others.filter(|other| other.0 == predicted).count() as f64 / 3.0).min(1.0)
    };
    annotators.iter().map(score).sum::<f64>() / annotators.len() as f64
}

#[test]
fn vqa_accuracy_equals_the_definition() {
    let annotators = vec((select(vec!["cat", "dog", "2"]), 0..4_u8, any::<bool>()), 1..40);
    check_property(cases(500), annotators, |annotators| {
        let answer = |(answer, id, confidence): &Annotator| {
            let confidence = if *confidence { "yes" } else { "no" };
            serde_json::json!({"answer": answer, "answer_id": id, "answer_confidence": confidence})
        };
        let answers: Vec<_> = annotators.iter().map(answer).collect();
        let question = serde_json::json!({"question_id": 1, "answers": answers});
        let text = serde_json::json!({"annotations": [question]}).to_string();
        let annotations = vqa::read::parse_annotations("a", &text).expect("annotations");
        for predicted in ["cat", "dog", "none"] {
            let accuracy = vqa::accuracy(predicted, &annotations[0].answers);
            assert!(
                (accuracy - accuracy_by_pairs(predicted, &annotators)).abs() < 1e-12,
                "{predicted}"
            );
        }
    });
}

#[test]
fn correlations_stay_within_their_limits() {
    let score = prop_oneof![
        select(vec![0.0, -0.0, 0.25, 1.0, 1e308, -1e308, 5e-324, 1e-300]),
        any::<f64>().prop_filter("finite", |score| score.is_finite()),
    ];
    check_property(cases(300), vec((0..3_u8, score.clone(), score), 1..12), |rows| {
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
        let measures = [&report.evaluation.primary].into_iter().chain(&report.evaluation.secondary);
        for measure in measures {
            let value = measure.value;
            assert!(value.is_finite() != measure.reason.is_some(), "{measure:?}");
            if measure.metric != "mean_absolute_error" {
                assert!(value.is_nan() || value.abs() <= 1.0 + 1e-9, "{measure:?}");
            }
        }
    });
}
