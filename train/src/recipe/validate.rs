//! Validation of a recipe's values.

use super::{GroupSettings, Recipe};
use crate::error::Result;
use crate::optimiser::settings::RuleSettings;

impl Recipe {
    /// Rejects values that no run can use, and settings without effect.
    pub(super) fn validate(&self) -> Result<()> {
        self.error_if("batch.examples", self.batch.examples == 0, "has to be at least 1")?;
        self.error_if("batch.accumulate", self.batch.accumulate == 0, "has to be at least 1")?;
        self.validate_optimiser()?;
        if let Err(reason) = self.schedule.validate() {
            return Err(self.error("schedule", reason));
        }
        if let Some(awp) = &self.awp {
            self.positive("awp.learning_rate", awp.learning_rate)?;
            self.positive("awp.epsilon", awp.epsilon)?;
            let reason = "is empty, so no tensor is perturbed; remove [awp] instead";
            self.error_if("awp.match", awp.patterns.is_empty(), reason)?;
        }
        if let Some(ema) = &self.ema {
            self.below_one("ema.decay", ema.decay)?;
        }
        if let Some(tables) = &self.embedding_tables {
            let reason =
                "is empty, so no table is kept in parts; remove [embedding_tables] instead";
            self.error_if("embedding_tables.match", tables.patterns.is_empty(), reason)?;
            let reason = "cannot be combined with [start]; remove one of the two";
            self.error_if("embedding_tables", self.start.is_some(), reason)?;
        }
        self.error_if("checkpoint.keep", self.checkpoint.keep == 0, "has to be at least 1")?;
        self.at_least_zero("evaluation.margin", self.evaluation.margin)?;
        self.error_if("log.every_steps", self.log.every_steps == 0, "has to be at least 1")?;
        for (i, branch) in self.low_rank.iter().enumerate() {
            if let Err((key, reason)) = branch.settings().check() {
                return Err(self.error(&format!("low_rank.{i}.{key}"), reason));
            }
        }
        self.validate_groups("group", &self.group)?;
        self.validate_phases()?;
        self.validate_check()
    }

    fn validate_optimiser(&self) -> Result<()> {
        let optimiser = &self.optimiser;
        self.positive("optimiser.learning_rate", optimiser.learning_rate)?;
        self.at_least_zero("optimiser.clip_norm", optimiser.clip_norm)?;
        let decay = optimiser.layer_rate_decay;
        let is_valid_decay = decay > 0.0 && decay <= 1.0;
        self.error_if("optimiser.layer_rate_decay", !is_valid_decay, "has to lie in (0, 1]")?;
        self.validate_rule("optimiser.rule", &optimiser.rule)
    }

    fn validate_rule(&self, path: &str, rule: &RuleSettings) -> Result<()> {
        match rule.first_invalid_key() {
            Some((key, reason)) => Err(self.error(&format!("{path}.{key}"), reason)),
            None => Ok(()),
        }
    }

    fn validate_groups(&self, section: &str, groups: &[GroupSettings]) -> Result<()> {
        for (i, group) in groups.iter().enumerate() {
            self.at_least_zero(&format!("{section}.{i}.rate"), group.rate)?;
            if let Some(rule) = &group.rule {
                self.validate_rule(&format!("{section}.{i}.rule"), rule)?;
            }
        }
        Ok(())
    }

    fn validate_phases(&self) -> Result<()> {
        let phases = &self.phases;
        self.error_if(
            "phase",
            phases.is_empty(),
            "is missing: a run needs at least one [[phase]]",
        )?;
        for (i, phase) in phases.iter().enumerate() {
            let path = format!("phase.{i}");
            let length = [phase.epochs.map(|n| n as u64), phase.steps];
            // A single phase of 0 steps evaluates the run in [start].
            let is_evaluation = phase.steps == Some(0) && phases.len() == 1;
            let is_valid_length = matches!(length, [Some(1..), None] | [None, Some(1..)])
                || is_evaluation && self.start.is_some();
            self.error_if(&path, !is_valid_length, "needs either `epochs` or `steps`, at least 1")?;
            let is_duplicate = phases[..i].iter().any(|other| other.name == phase.name);
            self.error_if(&path, is_duplicate, "has the name of an earlier phase")?;
            self.positive(&format!("{path}.learning_rate"), phase.learning_rate.unwrap_or(1.0))?;
            self.validate_groups(&format!("{path}.group"), &phase.group)?;
        }
        Ok(())
    }

    fn validate_check(&self) -> Result<()> {
        let check = &self.check;
        let is_empty =
            check.files.is_empty() && check.loss_at_most.is_none() && check.metric_value.is_none();
        let reason = "is empty: give `files`, `loss_at_most` or `metric_value`";
        self.error_if("check", is_empty, reason)?;
        for (path, value) in
            [("check.loss_at_most", check.loss_at_most), ("check.metric_value", check.metric_value)]
        {
            self.error_if(path, value.is_some_and(f64::is_nan), "has to be a number")?;
        }
        self.at_least_zero("check.tolerance", check.tolerance)
    }

    fn positive(&self, path: &str, value: f64) -> Result<()> {
        self.error_if(path, !(value > 0.0 && value.is_finite()), "has to be above 0")
    }

    fn at_least_zero(&self, path: &str, value: f64) -> Result<()> {
        self.error_if(path, !(value >= 0.0 && value.is_finite()), "has to be 0 or above")
    }

    fn below_one(&self, path: &str, value: f64) -> Result<()> {
        self.error_if(path, !(0.0..1.0).contains(&value), "has to lie in [0, 1)")
    }

    fn error_if(&self, path: &str, is_invalid: bool, reason: &str) -> Result<()> {
        if is_invalid { Err(self.error(path, reason)) } else { Ok(()) }
    }
}
