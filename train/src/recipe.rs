//! Recipes: one TOML file describes a whole experiment.

pub mod builtin;
mod decode;
mod document;
pub mod reference;
mod settings;
mod table;
mod validate;
mod variants;

use std::ops::Deref;
use std::path::Path;

use engram_infer::digest;
use engram_infer::finished_run::{RECIPE, check_checksums};
use engram_models::ModelError;
use engram_models::compute::{Compute, Precision};
use engram_models::layers::LowRankPattern;
use engram_models::params::ParameterGroup;
use engram_models::weights::Weights;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::distributed::local_rank;
use crate::error::{Result, TrainError};
use crate::optimiser::RuleSet;
use document::Document;
pub(crate) use document::check_toml;
pub(crate) use settings::is_default;
pub use settings::{
    AwpSettings, BatchSettings, CheckSettings, CheckpointSettings, ComputeSettings, EmaSettings,
    EmbeddingTableSettings, EvaluationSettings, GradientCheckSettings, GroupSettings, LogSettings,
    LowRankSettings, Negatives, OptimiserSettings, Phase, RecipeSettings, StartSettings, Strategy,
};
pub(crate) use table::table;
pub use variants::Variant;

/// Options for reading a recipe: command-line settings that override the file.
#[derive(Debug, Clone, Default)]
pub struct RecipeOptions {
    /// Applies the recipe's `[tiny]` section over the other sections.
    pub tiny: bool,
    /// Assignments `section.key=value`, applied in order after `tiny`.
    pub set: Vec<String>,
}

/// A validated recipe with every default filled in. Its fields are those of [`RecipeSettings`].
///
/// `[data]`, `[model]`, `[memory]` and a phase's `feed` belong to the study. The study reads these
/// tables as its own structs with [`Recipe::data`], [`Recipe::model`], [`Recipe::memory`] and
/// [`Recipe::feed`], which also fill in the study's defaults.
#[derive(Debug, Clone)]
pub struct Recipe {
    settings: RecipeSettings,
    check: CheckSettings,
    document: Document,
}

impl Deref for Recipe {
    type Target = RecipeSettings;

    fn deref(&self) -> &RecipeSettings {
        &self.settings
    }
}

impl Recipe {
    /// Reads a recipe file, or a [built-in](builtin) recipe by its name.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Recipe`] with the line, and the most similar key for a
    /// typo.
    pub fn load(path: &Path, options: &RecipeOptions) -> Result<Self> {
        Self::parse(&builtin::read(path)?, path, options)
    }

    /// Reads a [built-in](builtin) recipe, even if a file has its name.
    ///
    /// # Errors
    /// [`TrainError::Io`] for an unknown name; [`TrainError::Recipe`] for invalid options.
    pub fn built_in(name: &str, options: &RecipeOptions) -> Result<Self> {
        let name = Path::new(name);
        Self::parse(builtin::read_built_in(name)?, name, options)
    }

    /// Reads a recipe's text. `file` only serves for error texts.
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
        // Reports errors in variants before training.
        recipe.variants()?;
        Ok(recipe)
    }

    /// Reads a document after all overrides are applied.
    fn of_document(mut document: Document) -> Result<Self> {
        document.check_secrets()?;
        // A variant may set the steps of a phase that has 0 steps in the recipe.
        if !document.has("variant") {
            document.skip_empty_phases();
        }
        let mut settings: RecipeSettings = document.decode()?;
        for (index, phase) in settings.phases.iter_mut().enumerate() {
            phase.index = index;
        }
        let Some(check) = settings.check.clone() else {
            return Err(document
                .error("check", "is missing: give the expected files, loss and metric value"));
        };
        let recipe = Self { settings, check, document };
        recipe.validate()?;
        Ok(recipe)
    }

    /// Returns an error unless the recipe is for this study.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] with the line of `study`.
    pub fn expect_study(&self, name: &str) -> Result<()> {
        if self.study == name {
            Ok(())
        } else {
            let study = &self.study;
            let reason = format!("is `{study}`; use a recipe of `{name}`, or train `{study}`");
            Err(self.error("study", reason))
        }
    }

    /// Returns an error if the recipe has a `[start]` of which the study has not filled in the hash.
    pub(crate) fn check_start(&self) -> Result<()> {
        match &self.start {
            Some(start) if start.sha256.is_none() => {
                Err(self.error("start", "is not supported by this study; remove it"))
            }
            _ => Ok(()),
        }
    }

    /// Reads `[data]` as the study's own struct and fills its defaults into the recipe. Relative
    /// paths stay as written: they are relative to the working directory.
    ///
    /// # Errors
    /// [`TrainError::Recipe`]. Give the struct `#[serde(deny_unknown_fields, default)]` so that a
    /// typo is an error.
    pub fn data<T: DeserializeOwned + Serialize>(&mut self) -> Result<T> {
        read_section(&self.document, "data", &mut self.settings.data)
    }

    /// Reads `[model]` like [`Recipe::data`].
    pub fn model<T: DeserializeOwned + Serialize>(&mut self) -> Result<T> {
        read_section(&self.document, "model", &mut self.settings.model)
    }

    /// Reads `[memory]` like [`Recipe::data`].
    pub fn memory<T: DeserializeOwned + Serialize>(&mut self) -> Result<T> {
        read_section(&self.document, "memory", &mut self.settings.memory)
    }

    /// Reads the `feed` of each phase like [`Recipe::data`], in the order of the phases.
    pub fn feed<T: DeserializeOwned + Serialize>(&mut self) -> Result<Vec<T>> {
        let document = &self.document;
        let phases = self.settings.phases.iter_mut().enumerate();
        phases
            .map(|(i, phase)| read_section(document, &format!("phase.{i}.feed"), &mut phase.feed))
            .collect()
    }

    /// Returns an error about the value at a dotted path such as `model.pooling`, with its file and
    /// line. Studies use it for their own checks.
    pub fn error(&self, path: &str, reason: impl std::fmt::Display) -> TrainError {
        self.document.error(path, reason)
    }

    /// Returns an error if a check of the table at `path` found an invalid key.
    pub(crate) fn check_key<K: std::fmt::Display>(
        &self,
        path: &str,
        invalid: Option<(K, String)>,
    ) -> Result<()> {
        match invalid {
            Some((key, reason)) => Err(self.error(&format!("{path}.{key}"), reason)),
            None => Ok(()),
        }
    }

    /// Returns an error if `[batch]` has a key that a study does not support. `supported` lists the
    /// optional keys that this study supports.
    pub(crate) fn check_batch(&self, supported: &[&str]) -> Result<()> {
        let batch = &self.batch;
        if batch.tokens > 0 && !supported.contains(&"tokens") {
            let reason = "is not supported by this study; set batch.examples";
            return Err(self.error("batch.tokens", reason));
        }
        if batch.negatives != Negatives::MicroBatch && !supported.contains(&"negatives") {
            let reason = "is not supported by this study: it has no contrastive loss over a batch";
            return Err(self.error("batch.negatives", reason));
        }
        Ok(())
    }

    /// Opens the device of `[compute]`. With `cuda`, each process uses the GPU of its local rank:
    /// its number among the processes that a launcher has started on its machine.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] if the device does not exist.
    pub fn compute(&self) -> Result<Compute> {
        let ComputeSettings { device, precision, .. } = &self.compute;
        let device = local_rank::device(device, local_rank::of_this_process());
        Compute::open(&device.name, *precision).map_err(|error| match error {
            ModelError::BadConfig { what, reason } => {
                self.error("compute", format!("{what}: {reason}{}", device.remedy()))
            }
            other => other.into(),
        })
    }

    /// Fills in the SHA-256 of the weights in `[start]`, if the recipe has this table. Studies that
    /// support `[start]` call it.
    ///
    /// # Errors
    /// [`TrainError::Io`] if the weights cannot be read, [`TrainError::Model`] if the file is not a
    /// weights file; [`TrainError::Recipe`] if the recipe has a different hash, or if the run is of
    /// another study.
    pub fn fill_start_hash(&mut self) -> Result<()> {
        let Some(start) = &self.settings.start else { return Ok(()) };
        let table = engram_durable::read_text(start.run.join(RECIPE)).ok();
        let table = table.and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
        if let Some(study) = table.get("study").and_then(Value::as_str)
            && study != self.study
        {
            let reason = format!("is a run of `{study}`; name a run of `{}`", self.study);
            return Err(self.error("start.run", reason));
        }
        check_checksums(&start.run)?;
        let weights = start.weights();
        let (_, sha256) = digest::of_file(&weights).map_err(TrainError::io(&weights))?;
        if start.sha256.as_ref().is_some_and(|expected| *expected != sha256) {
            let reason = format!("does not match {}, which has {sha256}", weights.display());
            return Err(self.error("start.sha256", reason));
        }
        // Finds truncated files before the run folder is created.
        Weights::open(&weights)?;
        if let Some(start) = &mut self.settings.start {
            start.sha256 = Some(sha256);
        }
        Ok(())
    }

    /// The settings of `[check]`.
    pub fn check(&self) -> &CheckSettings {
        &self.check
    }

    /// The patterns of `[[low_rank]]`.
    pub fn low_rank(&self) -> Vec<LowRankPattern> {
        let pattern = |branch: &LowRankSettings| LowRankPattern {
            pattern: branch.pattern.clone(),
            settings: branch.settings(),
        };
        self.low_rank.iter().map(pattern).collect()
    }

    /// The parameter groups of a phase: the groups of the recipe, then the phase's own.
    pub fn groups(&self, phase: &Phase) -> Vec<ParameterGroup> {
        let groups = self.group.iter().chain(&phase.group);
        let parameter_group = |group: &GroupSettings| ParameterGroup {
            pattern: group.pattern.clone(),
            rate: group.rate,
        };
        groups.map(parameter_group).collect()
    }

    /// The update rules of a phase.
    pub fn rules(&self, phase: &Phase) -> RuleSet {
        let groups = self.group.iter().chain(&phase.group);
        let with_rule =
            groups.filter_map(|group| Some((group.pattern.clone(), group.rule.clone()?)));
        RuleSet { default: self.optimiser.rule.clone(), by_pattern: with_rule.collect() }
    }

    /// The recipe as TOML, with overrides applied and defaults filled in. Reading it gives the same
    /// recipe.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] if a study's struct holds a value that TOML cannot express.
    pub fn resolved(&self) -> Result<String> {
        toml::to_string(&self.settings).map_err(|e| TrainError::Recipe {
            location: "the resolved recipe".to_string(),
            reason: e.to_string(),
        })
    }

    /// The SHA-256 of the resolved recipe. The device and `compute.recompute` do not count. If
    /// `[start]` has the hash of its weights, the path of its run does not count.
    /// # Errors
    /// The errors of [`Recipe::resolved`].
    pub fn hash(&self) -> Result<String> {
        Ok(digest::of_bytes(identity(&self.resolved()?)))
    }
}

/// The identity of a resolved recipe: its text, without the device and `compute.recompute`, and
/// without the path of the start run if `[start]` has a hash.
pub(crate) fn identity(resolved: &str) -> String {
    let resolved = without_resources(resolved);
    let mut table = match resolved.parse::<Table>() {
        Ok(table) if table.contains_key("start") => table,
        _ => return resolved,
    };
    if let Some(Value::Table(start)) = table.get_mut("start")
        && start.contains_key("sha256")
    {
        start.remove("run");
    }
    toml::to_string(&table).unwrap_or(resolved)
}

/// Returns a resolved recipe without `compute.device` and `compute.recompute`, and without
/// `[compute]` if no other value differs from the default.
fn without_resources(resolved: &str) -> String {
    const TABLE: &str = "\n[compute]\n";
    let Some(start) = resolved.find(TABLE).map(|start| start + 1) else {
        return resolved.to_owned();
    };
    let end = resolved[start + 1..].find("\n[").map_or(resolved.len(), |end| start + end + 2);
    let is_default = |line: &&str| *line == format!("precision = \"{}\"", Precision::F32.name());
    let lines = resolved[start..end].split_inclusive('\n');
    let kept: String = if resolved[start..end].lines().any(|line| is_default(&line)) {
        String::new()
    } else {
        let is_resource =
            |line: &&str| ["device = ", "recompute = "].iter().any(|key| line.starts_with(key));
        lines.filter(|line| !is_resource(line)).collect()
    };
    [&resolved[..start], &kept, &resolved[end..]].concat()
}

fn read_section<T: DeserializeOwned + Serialize>(
    document: &Document,
    path: &str,
    table: &mut Table,
) -> Result<T> {
    let value: T = document.decode_section(path, table)?;
    match Value::try_from(&value) {
        Ok(Value::Table(filled)) => *table = filled,
        Ok(_) => return Err(document.error(path, "is a table, but the study's struct is not")),
        Err(e) => return Err(document.error(path, e)),
    }
    Ok(value)
}
