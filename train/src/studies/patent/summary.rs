//! The results of a run as text.

use engram_eval::result::Measure;

use super::run::PatentSummary;
use crate::registry::format_measure;

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
        lines.push(format!(
            "pairs: {} held-out, {} validation; seed {}; recipe {}",
            self.held_out.n,
            self.validation.as_ref().map_or(0, |measure| measure.n),
            self.seed,
            self.recipe_hash.get(..12).unwrap_or(&self.recipe_hash)
        ));
        for warning in &self.warnings {
            lines.push(format!("warning: {warning}"));
        }
        for failure in &self.check_failures {
            lines.push(format!("check failed: {failure}"));
        }
        lines.join("\n")
    }
}
