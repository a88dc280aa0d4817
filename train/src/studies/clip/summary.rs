//! The results of a run as text.

use engram_eval::result::Measure;

use super::run::ClipSummary;
use crate::registry::{footer, format_measure};

impl ClipSummary {
    /// The results as a text table.
    pub(super) fn to_text(&self) -> String {
        let line = |names: usize, accuracy: &Measure| {
            let (n, accuracy) = (accuracy.n, format_measure(accuracy));
            format!("test accuracy among {names} names: {accuracy} on {n} views")
        };
        let mut lines = vec![line(self.names, &self.accuracy)];
        if let Some(spoken) = &self.spoken_accuracy {
            lines.push(format!("  {} (spoken names only)", line(self.spoken_names, spoken)));
        }
        let steps = format!("{} steps", self.steps);
        lines.extend(footer(&steps, self.seed, &self.recipe_hash, &self.check_failures));
        lines.join("\n")
    }
}
