//! The results of a run as text.

use super::run::SpeechSummary;
use crate::registry::{footer, format_measure};

impl SpeechSummary {
    /// The results as a text table.
    pub(super) fn to_text(&self) -> String {
        let mut lines = Vec::new();
        if let Some(wer) = &self.wer {
            lines.push(format!("test WER {} of {} utterances", format_measure(wer), wer.n));
        }
        if let Some(errors) = &self.names {
            lines.push(format!(
                "  WER of names {:.4}, of other words {:.4}",
                errors.names, errors.others
            ));
        }
        let steps = format!("{} steps", self.steps);
        lines.extend(footer(&steps, self.seed, &self.recipe_hash, &self.check_failures));
        lines.join("\n")
    }
}
