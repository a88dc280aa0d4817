//! Values of metrics stay within their limits and equal their definitions.

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
fn a_ranking_of_exactly_the_relevant_entries_is_perfect() {
    check_property(cases(200), vec(sentence(9), 1..9), |relevant| {
        let detail = retrieval_report(&queries(&relevant, &relevant)).evaluation.detail;
        for name in ["mrr", "map", "ndcg@10", &format!("recall@{}", usize::MAX)] {
            let value = detail[name].as_f64().unwrap_or(-1.0);
            assert!((value - 1.0).abs() < 1e-12, "{name} {value}");
        }
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
        let row = |(row, (anchor, gold, score)): (usize, &(u8, f64, f64))| {
            let (id, anchor) = (row.to_string(), anchor.to_string());
            let gold =
                phrase::GoldRow { id: id.clone(), anchor, score: *gold, ..Default::default() };
            (gold, phrase::Prediction { id, score: *score, line: None })
        };
        let (gold, predictions): (Vec<_>, Vec<_>) = rows.iter().enumerate().map(row).unzip();
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
