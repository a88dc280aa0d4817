//! Text tables of the metrics of finished runs.

use engram_eval::result::Measure;
use engram_train::studies::avformer::evaluate::RescuedWord;
use engram_train::studies::avformer::run::AvformerSummary;
use engram_train::studies::clip::run::ClipSummary;
use engram_train::studies::patent::metric::format_measure;
use engram_train::studies::patent::run::PatentSummary;
use engram_train::studies::reveal::needle::NeedleMetrics;
use engram_train::studies::reveal::run::RevealSummary;
use engram_train::studies::speech::run::SpeechSummary;

/// The metrics of a patent phrase run.
pub(super) fn patent(summary: &PatentSummary) -> String {
    let text = |measure: &Option<Measure>| measure.as_ref().map_or("-".to_string(), format_measure);
    let names = summary.members.iter().map(|member| member.run.display().to_string().len());
    let width = names.max().unwrap_or(0).max(10);
    let row = |name: &str, steps: &str, held_out: &str, validation: &str| {
        format!("{name:<width$} {steps:>7}  {held_out:<24}  {validation}")
    };
    let mut lines = vec![row("member", "steps", "held-out r", "validation r")];
    for member in &summary.members {
        let (name, steps) = (member.run.display().to_string(), member.steps.to_string());
        let validation = text(&member.validation);
        lines.push(row(&name, &steps, &format_measure(&member.held_out), &validation));
    }
    for variant in &summary.variants {
        let validation = text(&variant.validation);
        lines.push(row(&variant.name, "", &format_measure(&variant.held_out), &validation));
    }
    if let Some(mean) = &summary.mean {
        let validation = text(&mean.validation);
        lines.push(row("mean", "", &format_measure(&mean.held_out), &validation));
    }
    let validation = text(&summary.validation);
    lines.push(row("ensemble", "", &format_measure(&summary.held_out), &validation));
    lines.push(format!(
        "pairs: {} held-out, {} validation; seed {}; recipe {}",
        summary.held_out.n,
        summary.validation.as_ref().map_or(0, |measure| measure.n),
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    for warning in &summary.warnings {
        lines.push(format!("warning: {warning}"));
    }
    for failure in &summary.check_failures {
        lines.push(format!("check failed: {failure}"));
    }
    lines.join("\n")
}

/// The metrics of a REVEAL run.
pub(super) fn reveal(summary: &RevealSummary) -> String {
    let row = |name: &str, n: &str, values: [&str; 3]| {
        let [exact, first, among] = values;
        format!("{name:<22} {n:>5}  {exact:<24} {first:<24} {among}")
    };
    let mut lines = Vec::new();
    if !summary.metrics.is_empty() {
        lines.push(row("test questions", "n", ["exact match", "recall@1", "recall@10"]));
    }
    for metrics in &summary.metrics {
        let measures = [&metrics.exact_match, &metrics.recall_at_1, &metrics.recall_at_10];
        let [exact, first, among] = measures.map(format_measure);
        let n = metrics.exact_match.n.to_string();
        lines.push(row(&metrics.questions, &n, [&exact, &first, &among]));
    }
    for dataset in &summary.dataset_metrics {
        let n = dataset.measures.first().map_or(0, |measure| measure.n);
        lines.push(format!("test examples of {}: {n}", dataset.name));
        for measure in &dataset.measures {
            lines.push(format!("  {:<18} {}", measure.metric, format_measure(measure)));
        }
    }
    if let Some(swap) = &summary.swap {
        let facts = format!("{} facts changed in the memory", swap.facts);
        lines.push(format!("{facts}: new answer {}", format_measure(&swap.new_answer)));
        lines.push(format!(
            "  correct before the change {}, old answer {}, old or new answer after deletion {}",
            format_measure(&swap.before),
            format_measure(&swap.old_answer),
            format_measure(&swap.deleted)
        ));
    }
    for NeedleMetrics { needles, others, accuracy, .. } in &summary.needles {
        let n = accuracy.n;
        let size = format!("haystack, {needles} needles in {} entries", needles + others);
        lines.push(format!("{size}: accuracy {} of {n}, chance 0.5", format_measure(accuracy)));
    }
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.notes.iter().map(|note| format!("note: {note}")));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}

/// The metrics of an ASR model.
pub(super) fn speech(summary: &SpeechSummary) -> String {
    let mut lines = Vec::new();
    if let Some(wer) = &summary.wer {
        lines.push(format!("test WER {} of {} utterances", format_measure(wer), wer.n));
    }
    if let Some(errors) = &summary.names {
        lines.push(format!("  names {:.4}, other words {:.4}", errors.names, errors.others));
    }
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}

/// The word error rates of an adapted ASR model.
pub(super) fn avformer(summary: &AvformerSummary) -> String {
    let mut lines =
        vec![format!("{:<14} {:<12} {:>6}  {:<26} insertions", "utterances", "system", "n", "WER")];
    let test = &summary.test;
    for one in &test.systems {
        let (n, wer) = (one.wer.n, format_measure(&one.wer));
        let (utterances, system) = (&one.utterances, &one.system);
        lines.push(format!(
            "{utterances:<14} {system:<12} {n:>6}  {wer:<26} {}",
            one.counts.insertions
        ));
    }
    for one in &test.differences {
        let [a, b] = &one.systems;
        let difference = format_measure(&one.comparison.difference);
        lines.push(format!("{}: WER({a}) − WER({b}) = {difference}", one.utterances));
    }
    if let Some([rescued, lost]) = test.rescued {
        lines.push(format!("words that the right frames correct: {rescued}, break: {lost}"));
        lines
            .extend(test.rescued_words.iter().map(|one| format!("  {}", corrected_word_text(one))));
    }
    if let Some(share) = &test.shown_name_inserted {
        let share = format_measure(share);
        lines.push(format!("clean clips transcribed with the name in the wrong frames: {share}"));
    }
    for one in &test.sweep {
        let ratio = one.snr_db.map_or("clean".to_string(), |ratio| format!("{ratio} dB"));
        let [without, right, wrong] =
            [&one.no_frames, &one.right_frames, &one.wrong_frames].map(format_measure);
        let n = one.no_frames.n;
        lines.push(format!(
            "{ratio:>8}: without frames {without}, right {right}, wrong {wrong} ({n} clips)"
        ));
    }
    let [trained, all] = summary.parameters;
    lines.push(format!(
        "{trained} trainable parameters, {all} frozen and unchanged ({:.2} % trainable)",
        100.0 * trained as f64 / (trained + all).max(1) as f64
    ));
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}

/// `chicken, transcribed as kitchen without frames: 3 clips`
pub(in crate::cli) fn corrected_word_text(RescuedWord { word, clips }: &RescuedWord) -> String {
    let without = word.hypothesis_without_frames.as_deref();
    let without = without.map_or("missing".to_owned(), |word| format!("transcribed as {word}"));
    let clips = if *clips == 1 { "1 clip".to_owned() } else { format!("{clips} clips") };
    format!("{}, {without} without frames: {clips}", word.reference)
}

/// The metrics of an image encoder.
pub(super) fn clip(summary: &ClipSummary) -> String {
    let line = |names: usize, accuracy: &Measure| {
        let (n, accuracy) = (accuracy.n, format_measure(accuracy));
        format!("test accuracy among {names} names: {accuracy} on {n} views")
    };
    let mut lines = vec![line(summary.names, &summary.accuracy)];
    if let Some(spoken) = &summary.spoken_accuracy {
        lines.push(format!("  {} (spoken names only)", line(summary.spoken_names, spoken)));
    }
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}
