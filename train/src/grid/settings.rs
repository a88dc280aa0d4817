//! The grid file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Spanned, Table};

use super::check;
use super::claim::ClaimSettings;
use crate::error::{Result, TrainError};
use crate::recipe::{Recipe, RecipeOptions, builtin, check_toml};
use crate::registry::{self, Studies, StudyDefinition};

/// The contents of a grid file; see `train/recipes/reveal/ablations.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The base recipe of all configurations: a file relative to the grid's folder, or a built-in name.
    recipe: PathBuf,
    /// The name of the configuration that the others are compared with.
    main: Spanned<String>,
    /// Phases that are trained once for all configurations with equal settings in them.
    #[serde(default)]
    shared: Vec<Spanned<String>>,
    /// Settings of all configurations, in the form of `--set`.
    #[serde(default)]
    set: Vec<String>,
    configuration: Vec<Spanned<Configuration>>,
    #[serde(default)]
    claim: Vec<Spanned<ClaimSettings>>,
}

/// `[[configuration]]`: a configuration that is trained, or that evaluates the run of another
/// configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The name, which becomes a folder name.
    pub name: String,
    /// The description in tables; by default the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The settings of this configuration, in the form of `--set`. They follow the settings of all
    /// configurations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// The configuration whose finished run is evaluated again; nothing is trained. `None` to train
    /// this configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_of: Option<String>,
    /// With `run_of`: keys of the study that describe the evaluation.
    #[serde(flatten)]
    pub evaluation: Table,
}

/// A validated grid.
#[derive(Debug, Clone)]
pub struct Grid {
    /// The file or the name of the built-in grid.
    pub file: PathBuf,
    recipe_file: PathBuf,
    recipe: String,
    /// The study of the grid.
    pub study: &'static StudyDefinition,
    /// The configuration that the others are compared with.
    pub main: String,
    shared: Vec<String>,
    set: Vec<String>,
    /// Settings of all configurations, in addition to those of the file.
    pub added_settings: Vec<String>,
    /// The configurations.
    pub configurations: Vec<Configuration>,
    /// The claims.
    pub claims: Vec<ClaimSettings>,
    /// The line of each configuration and claim, by its name in error texts.
    lines: HashMap<String, usize>,
}

/// The phases in a configuration's recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phases<'a> {
    /// All phases.
    Whole,
    /// Only the shared phases, for every configuration with equal settings in them.
    Shared,
    /// The other phases, starting from the weights of this run.
    Remaining(&'a Path),
}

impl Grid {
    /// Reads a grid's file, or a built-in grid by its name, and its recipe. The recipe's study is
    /// one of `studies`.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Recipe`] with file and line.
    pub fn load(file: &Path, studies: Studies) -> Result<Self> {
        if !file.exists() {
            return Self::built_in(file, studies);
        }
        let text = builtin::read(file)?;
        let recipe = recipe_of(&text, file)?;
        Self::parse(&text, file, &builtin::read(&recipe)?, &recipe, studies)
    }

    /// Reads a built-in grid and its recipe, even if files have their names.
    ///
    /// # Errors
    /// [`TrainError::Io`] for an unknown name.
    pub fn built_in(name: impl AsRef<Path>, studies: Studies) -> Result<Self> {
        let name = name.as_ref();
        let text = builtin::read_built_in(name)?;
        let recipe = recipe_of(text, name)?;
        Self::parse(text, name, builtin::read_built_in(&recipe)?, &recipe, studies)
    }

    /// Does the same as [`Grid::built_in`], with each setting replaced by
    /// `replace`: a built-in grid may name files of the repository.
    ///
    /// # Errors
    /// The errors of [`Grid::built_in`].
    pub fn built_in_with(
        name: impl AsRef<Path>,
        studies: Studies,
        replace: impl Fn(&str) -> String,
    ) -> Result<Self> {
        let mut grid = Self::built_in(name, studies)?;
        let sets = grid.configurations.iter_mut().map(|configuration| &mut configuration.set);
        for set in sets.chain([&mut grid.set]).flatten() {
            *set = replace(set);
        }
        Ok(grid)
    }

    /// Reads a grid's text and its recipe's text. The file names only serve for error texts.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] with file and line.
    pub fn parse(
        text: &str,
        file: &Path,
        recipe: &str,
        recipe_file: &Path,
        studies: Studies,
    ) -> Result<Self> {
        let File { main, shared, set, configuration, claim, .. } = read(text, file)?;
        let line_of = |start| line(text, start);
        let invalid = |start: usize, reason: String| {
            let location = format!("{}:{}", file.display(), line_of(start));
            Err(TrainError::Recipe { location, reason })
        };
        let recipe_options = RecipeOptions::default();
        let base_recipe = Recipe::parse(recipe, recipe_file, &recipe_options)?;
        let Some(study) = registry::find(studies, &base_recipe.study) else {
            let names: Vec<&str> = studies.iter().map(|study| study.name).collect();
            let reason = format!("is unknown; choose from {}", names.join(", "));
            return Err(base_recipe.error("study", reason));
        };
        let ablations = study.ablations;
        let phases = &base_recipe.phases;
        let names: Vec<&str> = configuration
            .iter()
            .map(|configuration| configuration.get_ref().name.as_str())
            .collect();
        for (i, spanned) in configuration.iter().enumerate() {
            let earlier = configuration[..i].iter().map(Spanned::get_ref);
            if let Err(reason) =
                check::configuration(spanned.get_ref(), &earlier.collect::<Vec<_>>(), ablations)
            {
                return invalid(spanned.span().start, reason);
            }
        }
        for (i, spanned) in claim.iter().enumerate() {
            let earlier = claim[..i].iter().map(Spanned::get_ref);
            let earlier = earlier.collect::<Vec<_>>();
            if let Err(reason) = check::claim(spanned.get_ref(), &earlier, &names, ablations) {
                return invalid(spanned.span().start, reason);
            }
        }
        if !names.contains(&main.get_ref().as_str()) {
            let reason = format!("`main` names `{}`, which is not a configuration", main.get_ref());
            return invalid(main.span().start, reason);
        }
        let is_phase = |name: &str| phases.iter().any(|phase| phase.name == name);
        if let Some(name) = shared.iter().find(|name| !is_phase(name.get_ref())) {
            let phases: Vec<String> = phases.iter().map(|phase| phase.name.clone()).collect();
            let reason =
                format!("`{}` is not a phase of {}", name.get_ref(), recipe_file.display());
            let reason = format!("`shared`: {reason}; the phases are {}", phases.join(", "));
            return invalid(name.span().start, reason);
        }
        let of_configuration = |spanned: &Spanned<Configuration>| {
            (format!("configuration `{}`", spanned.get_ref().name), line_of(spanned.span().start))
        };
        let of_claim = |spanned: &Spanned<ClaimSettings>| {
            (format!("claim `{}`", spanned.get_ref().id), line_of(spanned.span().start))
        };
        let lines = configuration.iter().map(of_configuration);
        let lines = lines.chain(claim.iter().map(of_claim)).collect();
        let grid = Self {
            file: file.to_path_buf(),
            recipe_file: recipe_file.to_path_buf(),
            recipe: recipe.to_owned(),
            study,
            main: main.into_inner(),
            shared: shared.into_iter().map(Spanned::into_inner).collect(),
            set,
            added_settings: Vec::new(),
            claims: claim.into_iter().map(Spanned::into_inner).collect(),
            configurations: configuration.into_iter().map(Spanned::into_inner).collect(),
            lines,
        };
        // Reports errors in a configuration before hours of training.
        grid.check_seeds()?;
        ablations.check(&grid)?;
        Ok(grid)
    }

    /// Whether a phase is trained once for all configurations with equal settings in it.
    pub(crate) fn is_shared(&self, phase: &str) -> bool {
        self.shared.iter().any(|shared| shared == phase)
    }

    /// Adds settings for all configurations. They override the settings that the file gives all
    /// configurations.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] for a setting of `seed`, and for settings that are not valid for a
    /// configuration.
    pub fn with_settings(mut self, set: &[String]) -> Result<Self> {
        self.added_settings.extend_from_slice(set);
        self.check_seeds()?;
        self.study.ablations.check(&self)?;
        Ok(self)
    }

    /// Returns an error for a setting of `seed`, which would have no effect.
    fn check_seeds(&self) -> Result<()> {
        let seed_error = |set: &[String]| {
            let is_seed = |setting: &&String| {
                setting.split('=').next().is_some_and(|key| key.trim() == "seed")
            };
            let setting = set.iter().find(is_seed)?;
            Some(format!("`{setting}` has no effect: the seeds of a grid are 1, 2 and so on"))
        };
        if let Some(reason) = seed_error(&self.added_settings).or_else(|| seed_error(&self.set)) {
            return Err(self.error(None, reason));
        }
        for configuration in &self.configurations {
            if let Some(reason) = seed_error(&configuration.set) {
                return Err(self.configuration_error(configuration, &reason));
            }
        }
        Ok(())
    }

    /// Keeps only these configurations, the configurations in their `run_of`, the main one, and
    /// the claims about them.
    pub fn select(mut self, names: &[&str]) -> Self {
        let selected: Vec<String> = self
            .configurations
            .iter()
            .filter(|configuration| names.contains(&configuration.name.as_str()))
            .flat_map(|configuration| {
                [Some(configuration.name.clone()), configuration.run_of.clone()]
            })
            .flatten()
            .chain([self.main.clone()])
            .collect();
        self.configurations.retain(|configuration| selected.contains(&configuration.name));
        self.claims.retain(|claim| {
            claim
                .configurations()
                .iter()
                .all(|name| selected.iter().any(|configuration| configuration == name))
        });
        self
    }

    /// Keeps only the claims that `includes` accepts, and their configurations.
    pub fn select_claims(mut self, includes: impl Fn(&ClaimSettings) -> bool) -> Self {
        self.claims.retain(includes);
        let names = self.claims.iter().flat_map(ClaimSettings::configurations);
        let names: Vec<String> = names.map(str::to_owned).collect();
        self.select(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The recipe of a configuration with some of its phases.
    pub(crate) fn recipe(
        &self,
        configuration: &Configuration,
        seed: u64,
        part: Phases<'_>,
    ) -> Result<Recipe> {
        let parse = |set: Vec<String>| {
            let options = RecipeOptions { tiny: false, set };
            let recipe = Recipe::parse(&self.recipe, &self.recipe_file, &options)
                .map_err(|error| self.configuration_error(configuration, &error))?;
            if recipe.study == self.study.name {
                Ok(recipe)
            } else {
                let reason = format!("is not `{}`, the study of the grid", self.study.name);
                Err(self.configuration_error(configuration, &recipe.error("study", &reason)))
            }
        };
        let seed = format!("seed={seed}");
        let common = [self.set.as_slice(), &self.added_settings].concat();
        let recipe =
            parse([common.as_slice(), &configuration.set, std::slice::from_ref(&seed)].concat())?;
        let is_shared = |name: &String| self.shared.contains(name);
        // Settings that skip the shared phases, or the other phases.
        let skip_phases = |keep_shared: bool| {
            let names = recipe.phases.iter().map(|phase| &phase.name);
            let skipped = names.filter(move |name| is_shared(name) != keep_shared);
            skipped.map(|name| format!("phase.{name}.steps=0")).collect::<Vec<_>>()
        };
        let mut set = [common.as_slice(), &configuration.set].concat();
        match part {
            Phases::Whole => return Ok(recipe),
            Phases::Shared => {
                set = self.study.ablations.shared_settings(set);
                set.extend(skip_phases(true));
            }
            Phases::Remaining(start) => {
                set.extend(skip_phases(false));
                // The recipe's `[start]` applies to the shared phases only. The remaining phases
                // start from the weights of the shared phases.
                set.retain(|setting| !setting.trim_start().starts_with("start"));
                set.push(format!("start.run={}", toml::Value::String(start.display().to_string())));
                let patterns = self.study.ablations.inherited_parameters().iter();
                let patterns = patterns.map(|pattern| (*pattern).into()).collect();
                set.push(format!("start.parameters={}", toml::Value::Array(patterns)));
            }
        }
        set.push(seed);
        parse(set)
    }

    /// Whether a configuration has shared phases and further phases after them.
    pub(super) fn has_shared_and_own_phases(&self, recipe: &Recipe) -> bool {
        let shared = recipe.phases.iter().take_while(|phase| self.shared.contains(&phase.name));
        (1..recipe.phases.len()).contains(&shared.count())
    }

    /// An error about a configuration, with its line.
    pub(crate) fn configuration_error(
        &self,
        configuration: &Configuration,
        error: &dyn std::fmt::Display,
    ) -> TrainError {
        self.error_about(format!("configuration `{}`", configuration.name), error)
    }

    /// An error about a claim, with its line.
    pub(crate) fn claim_error(&self, claim: &ClaimSettings, reason: &str) -> TrainError {
        self.error_about(format!("claim `{}`", claim.id), &reason)
    }

    fn error_about(&self, subject: String, error: &dyn std::fmt::Display) -> TrainError {
        self.error(self.lines.get(&subject), format!("{subject}: {error}"))
    }

    /// An error with the line in the grid file, if it is known.
    fn error(&self, line: Option<&usize>, reason: String) -> TrainError {
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        TrainError::Recipe { location: format!("{}{line}", self.file.display()), reason }
    }
}

/// The line number of a byte position in a text, counted from 1.
fn line(text: &str, start: usize) -> usize {
    1 + text.as_bytes().iter().take(start).filter(|byte| **byte == b'\n').count()
}

/// The recipe that a grid names: a file relative to the folder of the grid, or a built-in recipe.
fn recipe_of(text: &str, file: &Path) -> Result<PathBuf> {
    let File { recipe, .. } = read(text, file)?;
    let path = file.parent().unwrap_or(Path::new("")).join(&recipe);
    let is_built_in = builtin::BuiltIn::find(&recipe.to_string_lossy()).is_some();
    Ok(if is_built_in && !path.exists() { recipe } else { path })
}

/// Parses the text of a grid file.
fn read(text: &str, file: &Path) -> Result<File> {
    let error = |(start, reason)| {
        let location = format!("{}:{}", file.display(), line(text, start));
        TrainError::Recipe { location, reason }
    };
    check_toml(text).map_err(error)?;
    toml::from_str(text).map_err(|e: toml::de::Error| {
        error((e.span().map_or(0, |span| span.start), e.message().trim().to_owned()))
    })
}
