//! The view of REVEAL.

use engram_data::messages::counted;
use engram_train::studies::reveal::needle::NeedleMetrics;
use engram_train::studies::reveal::run::RevealSummary;
use serde::Deserialize;
use serde_json::Value;

use super::{ExplorerTab, StudyView, footer, format_measure};

pub(super) struct View;

impl StudyView for View {
    fn study(&self) -> &'static str {
        "reveal"
    }

    fn about(&self) -> &'static str {
        "Visual question answering with a retrieval memory (REVEAL)"
    }

    fn examples(&self) -> &'static [&'static str] {
        &[
            "engram train reveal --recipe reveal/laptop --run runs/r1",
            "engram train reveal --recipe reveal/laptop --run runs/r1 --resume",
            "engram train reveal --images photos --captions photos/captions.csv --run runs/r2",
        ]
    }

    fn text(&self, summary: &Value) -> serde_json::Result<String> {
        let summary = RevealSummary::deserialize(summary)?;
        let row = |name: &str, n: &str, values: [&str; 3]| {
            let [exact_match, recall_at_1, recall_at_10] = values;
            format!("{name:<22} {n:>5}  {exact_match:<24} {recall_at_1:<24} {recall_at_10}")
        };
        let mut lines = Vec::new();
        if !summary.metrics.is_empty() {
            lines.push(row("test questions", "n", ["exact match", "recall@1", "recall@10"]));
        }
        for metrics in &summary.metrics {
            let measures = [&metrics.exact_match, &metrics.recall_at_1, &metrics.recall_at_10];
            let [exact_match, recall_at_1, recall_at_10] = measures.map(format_measure);
            let n = metrics.exact_match.n.to_string();
            lines.push(row(&metrics.questions, &n, [&exact_match, &recall_at_1, &recall_at_10]));
        }
        for dataset in &summary.dataset_metrics {
            let n = dataset.measures.first().map_or(0, |measure| measure.n);
            lines.push(format!("test examples of {}: {n}", dataset.name));
            for measure in &dataset.measures {
                lines.push(format!("  {:<18} {}", measure.metric, format_measure(measure)));
            }
        }
        if let Some(swap) = &summary.swap {
            let facts = format!("{} changed in the memory", counted(swap.facts, "fact"));
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
            let size =
                format!("haystack, {} in {} entries", counted(needles, "needle"), needles + others);
            lines.push(format!("{size}: accuracy {} of {n}, chance 0.5", format_measure(accuracy)));
        }
        lines.extend(summary.notes.iter().map(|note| format!("note: {note}")));
        let steps = counted(summary.steps, "step");
        lines.extend(footer(&steps, summary.seed, &summary.recipe_hash, &summary.check_failures));
        Ok(lines.join("\n"))
    }

    fn explorer_tabs(&self) -> &'static [ExplorerTab] {
        &[ExplorerTab::Answers]
    }
}
