//! The view of CLIP.

use engram_data::messages::counted;
use engram_eval::result::Measure;
use engram_train::studies::clip::run::ClipSummary;
use serde::Deserialize;
use serde_json::Value;

use super::{StudyView, footer, format_measure};

pub(super) struct View;

impl StudyView for View {
    fn study(&self) -> &'static str {
        "clip"
    }

    fn about(&self) -> &'static str {
        "An image encoder, trained as CLIP"
    }

    fn examples(&self) -> &'static [&'static str] {
        &["engram train clip --recipe clip/tiny --run runs/clip"]
    }

    fn text(&self, summary: &Value) -> serde_json::Result<String> {
        let summary = ClipSummary::deserialize(summary)?;
        let line = |names: usize, accuracy: &Measure| {
            let (n, accuracy) = (accuracy.n, format_measure(accuracy));
            format!("test accuracy among {names} names: {accuracy} on {}", counted(n, "view"))
        };
        let mut lines = vec![line(summary.names, &summary.accuracy)];
        if let Some(spoken) = &summary.spoken_accuracy {
            lines.push(format!("  {} (spoken names only)", line(summary.spoken_names, spoken)));
        }
        let steps = counted(summary.steps, "step");
        lines.extend(footer(&steps, summary.seed, &summary.recipe_hash, &summary.check_failures));
        Ok(lines.join("\n"))
    }
}
