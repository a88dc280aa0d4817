//! The results of a run as text.

use engram_eval::result::Measure;

use super::run::PatentSummary;
use crate::registry::{footer, format_measure};

impl PatentSummary {
    /// The results as a text table.
    pub(super) fn to_text(&self) -> String {
        let optional =
            |measure: &Option<Measure>| measure.as_ref().map_or("-".to_string(), format_measure);
        let names = self.members.iter().map(|member| member.run.display().to_string().len());
        let width = names.max().unwrap_or(0).max(10);
        let row = |name: &str, steps: &str, held_out: &str, validation: &str| {
            format!("{name:<width$} {steps:>7}  {held_out:<24}  {validation}")
        };
        let mut lines = vec![row("member", "steps", "held-out r", "validation r")];
        for member in &self.members {
            let (name, steps) = (member.run.display().to_string(), member.steps.to_string());
            let validation = optional(&member.validation);
            lines.push(row(&name, &steps, &format_measure(&member.held_out), &validation));
        }
        for variant in &self.variants {
            let validation = optional(&variant.validation);
            lines.push(row(&variant.name, "", &format_measure(&variant.held_out), &validation));
        }
        if let Some(mean) = &self.mean {
            let validation = optional(&mean.validation);
            lines.push(row("mean", "", &format_measure(&mean.held_out), &validation));
        }
        let validation = optional(&self.validation);
        lines.push(row("ensemble", "", &format_measure(&self.held_out), &validation));
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        let validation = self.validation.as_ref().map_or(0, |measure| measure.n);
        let pairs = format!("pairs: {} held-out, {validation} validation", self.held_out.n);
        lines.extend(footer(&pairs, self.seed, &self.recipe_hash, &self.check_failures));
        lines.join("\n")
    }
}
