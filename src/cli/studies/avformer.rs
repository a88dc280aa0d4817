//! The view of AVFormer.

use std::path::Path;

use engram_data::messages::counted;
use engram_eval::result::Measure;
use engram_train::studies::avformer::evaluate::{MetricsAtRatio, TEST};
use engram_train::studies::avformer::run::AvformerSummary;
use serde::Deserialize;
use serde_json::Value;

use super::{ExplorerTab, LinePlot, StudyView, footer, format_measure};

/// The WER of one system at a signal-to-noise ratio.
type SystemWer = fn(&MetricsAtRatio) -> &Measure;

pub(super) struct View;

impl StudyView for View {
    fn study(&self) -> &'static str {
        "avformer"
    }

    fn about(&self) -> &'static str {
        "A frozen ASR model with added image input (AVFormer)"
    }

    fn examples(&self) -> &'static [&'static str] {
        &[
            "engram train avformer --recipe avformer/tiny --run runs/a1 \\\n      --set model.asr_model=whisper-tiny.en --set model.image_encoder=runs/clip",
        ]
    }

    fn text(&self, summary: &Value) -> serde_json::Result<String> {
        let summary = AvformerSummary::deserialize(summary)?;
        let mut lines = vec![format!(
            "{:<14} {:<12} {:>6}  {:<26} insertions",
            "utterances", "system", "n", "WER"
        )];
        let test = &summary.test;
        for metrics in &test.systems {
            let (n, wer) = (metrics.wer.n, format_measure(&metrics.wer));
            let (utterances, system) = (&metrics.utterances, &metrics.system);
            lines.push(format!(
                "{utterances:<14} {system:<12} {n:>6}  {wer:<26} {}",
                metrics.counts.insertions
            ));
        }
        for pair in &test.differences {
            let [a, b] = &pair.systems;
            let difference = format_measure(&pair.comparison.difference);
            lines.push(format!("{}: WER({a}) − WER({b}) = {difference}", pair.utterances));
        }
        if let Some([rescued, lost]) = test.rescued {
            lines.push(format!("words that the right frames correct: {rescued}, break: {lost}"));
            lines.extend(test.rescued_words.iter().map(|word| format!("  {word}")));
        }
        if let Some(shares) = &test.attention_to_frames {
            let [rescued, others] = shares.each_ref().map(format_measure);
            lines.push(format!(
                "cross-attention to the frames' tokens: {rescued} in clips with a corrected word, \
                 {others} in others"
            ));
        }
        if let Some(fraction) = &test.shown_name_inserted {
            let fraction = format_measure(fraction);
            lines.push(format!(
                "clean clips transcribed with the name in the wrong frames: {fraction}"
            ));
        }
        for at_ratio in &test.sweep {
            let snr = at_ratio.snr_db.map_or("clean".to_string(), |snr| format!("{snr} dB"));
            let [without, right, wrong] =
                [&at_ratio.no_frames, &at_ratio.right_frames, &at_ratio.wrong_frames]
                    .map(format_measure);
            let n = at_ratio.no_frames.n;
            lines.push(format!(
                "{snr:>8}: without frames {without}, right {right}, wrong {wrong} ({})",
                counted(n, "clip")
            ));
        }
        let [trained, frozen] = summary.parameters;
        lines.push(format!(
            "{trained} trainable parameters, {frozen} frozen and unchanged ({:.2} % trainable)",
            100.0 * trained as f64 / (trained + frozen).max(1) as f64
        ));
        let steps = counted(summary.steps, "step");
        lines.extend(footer(&steps, summary.seed, &summary.recipe_hash, &summary.check_failures));
        Ok(lines.join("\n"))
    }

    /// The WER by signal-to-noise ratio; no plot if the run measured fewer than two ratios.
    fn plots(&self, summary: &Value) -> serde_json::Result<Vec<LinePlot>> {
        let summary = AvformerSummary::deserialize(summary)?;
        let sweep = &summary.test.sweep;
        if sweep.iter().filter(|at_ratio| at_ratio.snr_db.is_some()).count() < 2 {
            return Ok(Vec::new());
        }
        let lines: [(&str, SystemWer); 3] = [
            ("without frames", |at_ratio| &at_ratio.no_frames),
            ("right frames", |at_ratio| &at_ratio.right_frames),
            ("wrong frames", |at_ratio| &at_ratio.wrong_frames),
        ];
        let lines = lines.map(|(name, wer_of)| {
            let noisy = sweep.iter().filter_map(|at_ratio| {
                Some((f64::from(at_ratio.snr_db?), wer_of(at_ratio).clone()))
            });
            let mut points: Vec<(f64, Measure)> = noisy.collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            (name, points)
        });
        let file = Path::new(TEST).join("sweep.svg");
        Ok(vec![LinePlot { file, axes: ["SNR, dB", "WER"], lines: lines.to_vec() }])
    }

    fn explorer_tabs(&self) -> &'static [ExplorerTab] {
        &[ExplorerTab::Avformer]
    }
}
