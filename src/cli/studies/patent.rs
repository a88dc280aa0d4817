//! The view of patent phrase similarity.

use engram_eval::result::Measure;
use engram_train::studies::patent::run::PatentSummary;
use serde::Deserialize;
use serde_json::Value;

use super::{StudyView, footer, format_measure};

pub(super) struct View;

impl StudyView for View {
    fn study(&self) -> &'static str {
        "patent"
    }

    fn about(&self) -> &'static str {
        "Patent phrase similarity"
    }

    fn examples(&self) -> &'static [&'static str] {
        &[
            "engram train patent --recipe patent/world --run runs/p0",
            "engram train patent --recipe patent/minilm --set data.dir=patent --run runs/p1",
            "engram train patent --recipe patent/minilm --tiny --run runs/try",
        ]
    }

    fn text(&self, summary: &Value) -> serde_json::Result<String> {
        let summary = PatentSummary::deserialize(summary)?;
        let optional =
            |measure: &Option<Measure>| measure.as_ref().map_or("-".to_string(), format_measure);
        let names = summary.members.iter().map(|member| member.run.display().to_string().len());
        let width = names.max().unwrap_or(0).max(10);
        let row = |name: &str, steps: &str, held_out: &str, validation: &str| {
            format!("{name:<width$} {steps:>7}  {held_out:<24}  {validation}")
        };
        let mut lines = vec![row("member", "steps", "held-out r", "validation r")];
        for member in &summary.members {
            let (name, steps) = (member.run.display().to_string(), member.steps.to_string());
            let validation = optional(&member.validation);
            lines.push(row(&name, &steps, &format_measure(&member.held_out), &validation));
        }
        for variant in &summary.variants {
            let validation = optional(&variant.validation);
            lines.push(row(&variant.name, "", &format_measure(&variant.held_out), &validation));
        }
        if let Some(mean) = &summary.mean {
            let validation = optional(&mean.validation);
            lines.push(row("mean", "", &format_measure(&mean.held_out), &validation));
        }
        let validation = optional(&summary.validation);
        lines.push(row("ensemble", "", &format_measure(&summary.held_out), &validation));
        lines.extend(summary.warnings.iter().map(|warning| format!("warning: {warning}")));
        let validation = summary.validation.as_ref().map_or(0, |measure| measure.n);
        let pairs = format!("pairs: {} held-out, {validation} validation", summary.held_out.n);
        lines.extend(footer(&pairs, summary.seed, &summary.recipe_hash, &summary.check_failures));
        Ok(lines.join("\n"))
    }
}
