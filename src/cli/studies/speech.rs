//! The view of speech recognition.

use engram_data::messages::counted;
use engram_train::studies::speech::run::SpeechSummary;
use serde::Deserialize;
use serde_json::Value;

use super::{StudyView, footer, format_measure};

pub(super) struct View;

impl StudyView for View {
    fn study(&self) -> &'static str {
        "speech"
    }

    fn about(&self) -> &'static str {
        "Speech recognition (ASR)"
    }

    fn examples(&self) -> &'static [&'static str] {
        &["engram train speech --recipe speech/tiny --run runs/s1"]
    }

    fn text(&self, summary: &Value) -> serde_json::Result<String> {
        let summary = SpeechSummary::deserialize(summary)?;
        let mut lines = Vec::new();
        if let Some(wer) = &summary.wer {
            lines.push(format!(
                "test WER {} of {}",
                format_measure(wer),
                counted(wer.n, "utterance")
            ));
        }
        if let Some(errors) = &summary.names {
            lines.push(format!(
                "  WER of names {:.4}, of other words {:.4}",
                errors.names, errors.others
            ));
        }
        let steps = counted(summary.steps, "step");
        lines.extend(footer(&steps, summary.seed, &summary.recipe_hash, &summary.check_failures));
        Ok(lines.join("\n"))
    }
}
