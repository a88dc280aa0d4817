//! Recipes: a whole experiment in one TOML file.

mod document;
pub mod reference;
mod settings;
mod validate;
mod variants;

use std::path::Path;

use engram_models::params::ParameterGroup;
use engram_models::weights::Weights;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::checksums::check_checksums;
use crate::digest;
use crate::error::{Result, TrainError};
use crate::schedule::Schedule;
use document::Document;
use settings::Body;
pub use settings::{
    AwpSettings, BatchSettings, CheckSettings, CheckpointSettings, EmaSettings, EvaluationSettings,
    GradientCheckSettings, GroupSettings, LogSettings, OptimiserKind, OptimiserSettings, Phase,
    StartSettings,
};
pub use variants::Variant;

/// How a recipe is read: what the command line says over the file.
#[derive(Debug, Clone, Default)]
pub struct RecipeOptions {
    /// Puts the recipe's `[tiny]` section over the others.
    pub tiny: bool,
    /// Assignments `section.key=value`, obeyed in order after `tiny`.
    pub set: Vec<String>,
}

/// A recipe, checked and with every default filled in.
///
/// `[data]`, `[model]`, `[memory]` and a phase's `feed` belong to the study: it reads them with
/// [`Recipe::data`] and its like as structs of its own, which also fills in *its* defaults.
#[derive(Debug, Clone)]
pub struct Recipe {
    body: Body,
    check: CheckSettings,
    document: Document,
}

impl Recipe {
    /// Reads a recipe file.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Recipe`] with the line, and the nearest key for a typo.
    pub fn load(path: &Path, options: &RecipeOptions) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(TrainError::io(path))?;
        Self::parse(&text, path, options)
    }

    /// Reads a recipe's text; `file` is only used in messages.
    ///
    /// # Errors
    /// [`TrainError::Recipe`].
    pub fn parse(text: &str, file: &Path, options: &RecipeOptions) -> Result<Self> {
        let mut document = Document::parse(text, file)?;
        document.take_tiny(options.tiny)?;
        for assignment in &options.set {
            document.set(assignment)?;
        }
        let recipe = Self::of_document(document)?;
        // What is wrong with a variant is said at once.
        recipe.variants()?;
        Ok(recipe)
    }

    /// Reads what a document says after all overrides.
    fn of_document(mut document: Document) -> Result<Self> {
        // A variant may give its steps back to a phase that the recipe leaves out.
        if !document.has("variant") {
            document.leave_out_empty_phases();
        }
        let mut body: Body = document.decode()?;
        for (index, phase) in body.phase.iter_mut().enumerate() {
            phase.index = index;
        }
        let Some(check) = body.check.clone() else {
            return Err(document.error(
                "check",
                "is missing: say which files, loss and figure the run has to show",
            ));
        };
        let recipe = Self { body, check, document };
        recipe.validate()?;
        Ok(recipe)
    }

    /// The study that the recipe is for.
    pub fn study(&self) -> &str {
        &self.body.study
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.body.seed
    }

    /// Reads `[data]` as the study's own struct and fills its defaults into the recipe. Relative
    /// paths in it stand for themselves: they are relative to the working directory.
    ///
    /// # Errors
    /// [`TrainError::Recipe`]; give the struct `#[serde(deny_unknown_fields, default)]`, so that
    /// a typo is one of them.
    pub fn data<T: DeserializeOwned + Serialize>(&mut self) -> Result<T> {
        read_section(&self.document, "data", &mut self.body.data)
    }

    /// Reads `[model]`, as [`Recipe::data`] does.
    pub fn model<T: DeserializeOwned + Serialize>(&mut self) -> Result<T> {
        read_section(&self.document, "model", &mut self.body.model)
    }

    /// Reads `[memory]`, as [`Recipe::data`] does.
    pub fn memory<T: DeserializeOwned + Serialize>(&mut self) -> Result<T> {
        read_section(&self.document, "memory", &mut self.body.memory)
    }

    /// Reads the `feed` of each phase, as [`Recipe::data`] does; in the order of the phases.
    pub fn feed<T: DeserializeOwned + Serialize>(&mut self) -> Result<Vec<T>> {
        let document = &self.document;
        let phases = self.body.phase.iter_mut().enumerate();
        phases
            .map(|(i, phase)| read_section(document, &format!("phase.{i}.feed"), &mut phase.feed))
            .collect()
    }

    /// An error about the value at a dotted path such as `model.pooling`, with its file and line;
    /// for a study's own checks.
    pub fn error(&self, path: &str, reason: impl std::fmt::Display) -> TrainError {
        self.document.error(path, reason)
    }

    /// `[start]`, if the run starts from another one's weights.
    pub fn start(&self) -> Option<&StartSettings> {
        self.body.start.as_ref()
    }

    /// Fills in the hash of the weights that the run starts from; for studies that know `[start]`.
    ///
    /// # Errors
    /// [`TrainError::Io`] where they cannot be read, [`TrainError::Model`] where they are no weights;
    /// [`TrainError::Recipe`] where the recipe has another hash.
    pub(crate) fn pin_start(&mut self) -> Result<()> {
        let Some(start) = &self.body.start else { return Ok(()) };
        check_checksums(&start.run)?;
        let weights = start.weights();
        let (_, found) = digest::of_file(&weights).map_err(TrainError::io(&weights))?;
        if start.sha256.as_ref().is_some_and(|wanted| *wanted != found) {
            let reason = format!("is not that of {}, which is {found}", weights.display());
            return Err(self.error("start.sha256", reason));
        }
        // Before a run folder is made: files that were cut short.
        Weights::open(&weights)?;
        if let Some(start) = &mut self.body.start {
            start.sha256 = Some(found);
        }
        Ok(())
    }

    /// `[batch]`.
    pub fn batch(&self) -> &BatchSettings {
        &self.body.batch
    }

    /// `[optimiser]`.
    pub fn optimiser(&self) -> &OptimiserSettings {
        &self.body.optimiser
    }

    /// `[schedule]`.
    pub fn schedule(&self) -> &Schedule {
        &self.body.schedule
    }

    /// `[gradient_check]`.
    pub fn gradient_check(&self) -> &GradientCheckSettings {
        &self.body.gradient_check
    }

    /// `[awp]`, if weights are perturbed.
    pub fn awp(&self) -> Option<&AwpSettings> {
        self.body.awp.as_ref()
    }

    /// `[ema]`, if a running mean is kept.
    pub fn ema(&self) -> Option<&EmaSettings> {
        self.body.ema.as_ref()
    }

    /// `[checkpoint]`.
    pub fn checkpoint(&self) -> &CheckpointSettings {
        &self.body.checkpoint
    }

    /// `[evaluation]`.
    pub fn evaluation(&self) -> &EvaluationSettings {
        &self.body.evaluation
    }

    /// `[log]`.
    pub fn log(&self) -> &LogSettings {
        &self.body.log
    }

    /// The phases, in order; at least one.
    pub fn phases(&self) -> &[Phase] {
        &self.body.phase
    }

    /// `[check]`.
    pub fn check(&self) -> &CheckSettings {
        &self.check
    }

    /// The recipe's own `[[group]]`s.
    pub fn own_groups(&self) -> &[GroupSettings] {
        &self.body.group
    }

    /// The parameter groups of a phase: the recipe's own, then the phase's.
    pub fn groups(&self, phase: &Phase) -> Vec<ParameterGroup> {
        let all = self.body.group.iter().chain(&phase.group);
        all.map(|g| ParameterGroup { pattern: g.pattern.clone(), rate: g.rate }).collect()
    }

    /// The recipe with overrides obeyed and defaults filled in, as TOML. Reading it gives the
    /// same recipe again.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] if a study's struct holds something that TOML cannot.
    pub fn resolved(&self) -> Result<String> {
        toml::to_string(&self.body).map_err(|e| TrainError::Recipe {
            place: "the resolved recipe".to_string(),
            reason: e.to_string(),
        })
    }

    /// SHA-256 of the resolved form, without the place of the weights that the run starts from where it has their hash.
    ///
    /// # Errors
    /// As [`Recipe::resolved`].
    pub fn hash(&self) -> Result<String> {
        Ok(digest::of_bytes(identity(&self.resolved()?)))
    }
}

/// What a resolved recipe is told from others by: all of it but where the weights lie that a run starts from, as long
/// as it has their hash.
pub(crate) fn identity(resolved: &str) -> String {
    let mut table = match resolved.parse::<Table>() {
        Ok(table) if table.contains_key("start") => table,
        _ => return resolved.to_owned(),
    };
    if let Some(Value::Table(start)) = table.get_mut("start")
        && start.contains_key("sha256")
    {
        start.remove("run");
    }
    toml::to_string(&table).unwrap_or_else(|_| resolved.to_owned())
}

fn read_section<T: DeserializeOwned + Serialize>(
    document: &Document,
    path: &str,
    table: &mut Table,
) -> Result<T> {
    let value: T = document.decode_section(path, table)?;
    match Value::try_from(&value) {
        Ok(Value::Table(filled)) => *table = filled,
        Ok(_) => return Err(document.error(path, "is not read as a table by the study")),
        Err(e) => return Err(document.error(path, e)),
    }
    Ok(value)
}
