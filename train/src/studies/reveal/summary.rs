//! The results of a run as text.

use super::needle::NeedleMetrics;
use super::run::RevealSummary;
use crate::registry::{footer, format_measure};

impl RevealSummary {
    /// The results as a text table.
    pub(super) fn to_text(&self) -> String {
        let row = |name: &str, n: &str, values: [&str; 3]| {
            let [exact_match, recall_at_1, recall_at_10] = values;
            format!("{name:<22} {n:>5}  {exact_match:<24} {recall_at_1:<24} {recall_at_10}")
        };
        let mut lines = Vec::new();
        if !self.metrics.is_empty() {
            lines.push(row("test questions", "n", ["exact match", "recall@1", "recall@10"]));
        }
        for metrics in &self.metrics {
            let measures = [&metrics.exact_match, &metrics.recall_at_1, &metrics.recall_at_10];
            let [exact_match, recall_at_1, recall_at_10] = measures.map(format_measure);
            let n = metrics.exact_match.n.to_string();
            lines.push(row(&metrics.questions, &n, [&exact_match, &recall_at_1, &recall_at_10]));
        }
        for dataset in &self.dataset_metrics {
            let n = dataset.measures.first().map_or(0, |measure| measure.n);
            lines.push(format!("test examples of {}: {n}", dataset.name));
            for measure in &dataset.measures {
                lines.push(format!("  {:<18} {}", measure.metric, format_measure(measure)));
            }
        }
        if let Some(swap) = &self.swap {
            let facts = format!("{} facts changed in the memory", swap.facts);
            lines.push(format!("{facts}: new answer {}", format_measure(&swap.new_answer)));
            lines.push(format!(
                "  correct before the change {}, old answer {}, old or new answer after deletion {}",
                format_measure(&swap.before),
                format_measure(&swap.old_answer),
                format_measure(&swap.deleted)
            ));
        }
        for NeedleMetrics { needles, others, accuracy, .. } in &self.needles {
            let n = accuracy.n;
            let size = format!("haystack, {needles} needles in {} entries", needles + others);
            lines.push(format!("{size}: accuracy {} of {n}, chance 0.5", format_measure(accuracy)));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        let steps = format!("{} steps", self.steps);
        lines.extend(footer(&steps, self.seed, &self.recipe_hash, &self.check_failures));
        lines.join("\n")
    }
}
