//! What a grid's file says.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_data::world::questions::Part;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::ablated::{self, Ablated, Asked, Figure};
use super::check;
use super::report::Rule;
use crate::error::{Result, TrainError};
use crate::recipe::{Recipe, RecipeOptions};

/// A grid's file as it is written; see `train/recipes/reveal/ablations.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The recipe that all rows change, from the file's folder.
    recipe: PathBuf,
    /// The row that the others are compared with.
    main: Spanned<String>,
    /// Phases that are trained once for all rows that agree in them.
    #[serde(default)]
    shared: Vec<Spanned<String>>,
    /// Settings of all rows, as `--set` takes them.
    #[serde(default)]
    set: Vec<String>,
    row: Vec<Spanned<RowSettings>>,
    #[serde(default)]
    claim: Vec<Spanned<ClaimSettings>>,
}

/// `[[row]]`: a run that is trained, or another row's run that is asked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowSettings {
    /// Its name; a folder is named after it.
    pub name: String,
    /// What it is, for tables; its settings where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Settings beside those of all rows, as `--set` takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// REVEAL: the row whose finished run is asked again; nothing is trained then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// REVEAL, where it is asked again: entries that are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<usize>,
    /// REVEAL, where it is asked again: sources whose entries are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_sources: Vec<String>,
}

/// `[[claim]]`: that one row is better than another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimSettings {
    /// Its name in reports: `reveal.k_curve`.
    pub id: String,
    /// What is claimed.
    pub claim: String,
    /// What the paper says of it.
    #[serde(default)]
    pub paper: String,
    /// The row that is to be better; of AVFormer also `ROW:SYSTEM`, for example `main:wrong`.
    pub better: String,
    /// The row that is to be worse.
    pub worse: String,
    /// What is compared; the study's first figure where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Figure>,
    /// REVEAL: the part of the test questions that are compared; `held_out` where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// REVEAL: only questions whose answers this source has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// AVFormer: the utterances, `noisy` or `clean`; `noisy` where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utterances: Option<String>,
    /// The claim is that the rows differ by no more than this, up or down, instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<f64>,
    /// The claim is that the first row is worse by no more than this, if at all, instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_worse_by: Option<f64>,
}

impl ClaimSettings {
    /// The rows of both sides.
    pub(crate) fn rows(&self) -> [&str; 2] {
        [&self.better, &self.worse]
            .map(|side| side.split_once(':').map_or(side.as_str(), |(row, _)| row))
    }

    /// What is claimed.
    pub fn rule(&self) -> Rule {
        match (self.no_worse_by, self.within) {
            (Some(margin), _) => Rule::NoWorseBy(margin),
            (None, Some(margin)) => Rule::Within(margin),
            (None, None) => Rule::Better,
        }
    }

    /// What is asked of both sides.
    pub(crate) fn asked(&self, study: &dyn Ablated) -> [Asked; 2] {
        [&self.better, &self.worse].map(|side| {
            let mut asked = Asked {
                figure: self.figure.unwrap_or(study.columns()[0].asked.figure),
                part: self.part,
                source: self.source.clone(),
                utterances: self.utterances.clone(),
                system: side.split_once(':').map(|(_, system)| system.to_owned()),
            };
            study.complete(&mut asked);
            asked
        })
    }
}

/// A grid, checked.
#[derive(Debug, Clone)]
pub struct Grid {
    file: PathBuf,
    recipe_file: PathBuf,
    recipe: String,
    study: &'static dyn Ablated,
    main: String,
    shared: Vec<String>,
    set: Vec<String>,
    /// Those behind them that the file does not have.
    added: Vec<String>,
    /// Whether the file's settings of all rows are left out.
    at_recipe_scale: bool,
    rows: Vec<RowSettings>,
    claims: Vec<ClaimSettings>,
    lines: Lines,
}

/// Where rows and claims stand in the file, by their names.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    pub(super) rows: HashMap<String, usize>,
    pub(super) claims: HashMap<String, usize>,
}

/// What a recipe of a row is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phases<'a> {
    /// All phases.
    Whole,
    /// The shared phases alone, for every row that agrees in them.
    Shared,
    /// The other phases, from the weights of this run.
    Rest(&'a Path),
}

impl Grid {
    /// Reads a grid's file and its recipe.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Recipe`] with file and line.
    pub fn load(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(TrainError::io(file))?;
        let read: File = read(&text, file)?;
        let recipe = file.parent().unwrap_or(Path::new("")).join(&read.recipe);
        let recipe_text = std::fs::read_to_string(&recipe).map_err(TrainError::io(&recipe))?;
        Self::parse(&text, file, &recipe_text, &recipe)
    }

    /// Reads a grid's text and that of its recipe; the files are only used in messages.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] with file and line.
    pub fn parse(text: &str, file: &Path, recipe: &str, recipe_file: &Path) -> Result<Self> {
        let File { main, shared, set, row, claim, .. } = read(text, file)?;
        let line_of = |start| line(text, start);
        let wrong = |start: usize, reason: String| {
            let place = format!("{}:{}", file.display(), line_of(start));
            Err(TrainError::Recipe { place, reason })
        };
        let recipe_options = RecipeOptions::default();
        let read = Recipe::parse(recipe, recipe_file, &recipe_options)?;
        let Some(study) = ablated::of_study(read.study()) else {
            let reason = "has no ablations; a grid is of `reveal` or `avformer`";
            return Err(read.error("study", reason));
        };
        let phases = read.phases().to_vec();
        let names: Vec<&str> = row.iter().map(|row| row.get_ref().name.as_str()).collect();
        for (i, spanned) in row.iter().enumerate() {
            let earlier = row[..i].iter().map(Spanned::get_ref);
            if let Err(reason) = check::row(spanned.get_ref(), &earlier.collect::<Vec<_>>()) {
                return wrong(spanned.span().start, reason);
            }
        }
        for (i, spanned) in claim.iter().enumerate() {
            let earlier = claim[..i].iter().map(Spanned::get_ref);
            let earlier = earlier.collect::<Vec<_>>();
            if let Err(reason) = check::claim(spanned.get_ref(), &earlier, &names, study) {
                return wrong(spanned.span().start, reason);
            }
        }
        if !names.contains(&main.get_ref().as_str()) {
            let reason = format!("`main` names `{}`, which is no row", main.get_ref());
            return wrong(main.span().start, reason);
        }
        let is_phase = |name: &str| phases.iter().any(|phase| phase.name == name);
        if let Some(name) = shared.iter().find(|name| !is_phase(name.get_ref())) {
            let phases: Vec<String> = phases.into_iter().map(|phase| phase.name).collect();
            let reason = format!("`{}` is no phase of {}", name.get_ref(), recipe_file.display());
            let reason = format!("`shared`: {reason}; known are {}", phases.join(", "));
            return wrong(name.span().start, reason);
        }
        let mut lines = Lines::default();
        for spanned in &row {
            lines.rows.insert(spanned.get_ref().name.clone(), line_of(spanned.span().start));
        }
        for spanned in &claim {
            lines.claims.insert(spanned.get_ref().id.clone(), line_of(spanned.span().start));
        }
        let grid = Self {
            file: file.to_path_buf(),
            recipe_file: recipe_file.to_path_buf(),
            recipe: recipe.to_owned(),
            study,
            main: main.into_inner(),
            shared: shared.into_iter().map(Spanned::into_inner).collect(),
            set,
            added: Vec::new(),
            at_recipe_scale: false,
            claims: claim.into_iter().map(Spanned::into_inner).collect(),
            rows: row.into_iter().map(Spanned::into_inner).collect(),
            lines,
        };
        // What is wrong with a row is said before hours go into the others.
        study.check(&grid)?;
        Ok(grid)
    }

    /// The rows.
    pub fn rows(&self) -> &[RowSettings] {
        &self.rows
    }

    /// The claims.
    pub fn claims(&self) -> &[ClaimSettings] {
        &self.claims
    }

    /// Whether a phase is trained once for all rows that agree in it.
    pub(crate) fn is_shared(&self, phase: &str) -> bool {
        self.shared.iter().any(|shared| shared == phase)
    }

    /// Settings of all rows that the file does not have.
    pub(crate) fn added(&self) -> &[String] {
        &self.added
    }

    /// What its study brings.
    pub fn study(&self) -> &'static dyn Ablated {
        self.study
    }

    /// The row that the others are compared with.
    pub fn main(&self) -> &str {
        &self.main
    }

    /// The same grid with other settings after those of all rows.
    ///
    /// # Errors
    /// [`TrainError::Recipe`]
    pub fn with_settings(mut self, set: &[String]) -> Result<Self> {
        self.added.extend_from_slice(set);
        let is_seed =
            |setting: &&String| setting.split('=').next().is_some_and(|key| key.trim() == "seed");
        if let Some(setting) = self.added.iter().chain(&self.set).find(is_seed) {
            let reason =
                format!("`{setting}` has no effect: the seeds are those of --seeds, from 1 on");
            return Err(self.wrong(None, reason));
        }
        self.study.check(&self)?;
        Ok(self)
    }

    /// The same grid without the settings of all rows: at the scale of its recipe.
    pub fn at_recipe_scale(mut self) -> Self {
        self.set.clear();
        self.at_recipe_scale = true;
        self
    }

    /// The same grid with some of its rows alone, the rows whose runs they ask, and the claims about them.
    pub fn only(mut self, names: &[&str]) -> Self {
        let asked: Vec<String> = self
            .rows
            .iter()
            .filter(|row| names.contains(&row.name.as_str()))
            .flat_map(|row| [Some(row.name.clone()), row.of.clone()])
            .flatten()
            .chain([self.main.clone()])
            .collect();
        self.rows.retain(|row| asked.contains(&row.name));
        self.claims
            .retain(|claim| claim.rows().iter().all(|name| asked.iter().any(|row| row == name)));
        self
    }

    /// The same grid with the rows alone that claims of these ids are about, as [`Grid::only`] has them.
    pub fn about(self, claims: &[String]) -> Self {
        let asked = self.claims.iter().filter(|claim| claims.contains(&claim.id));
        let names: Vec<String> = asked.flat_map(ClaimSettings::rows).map(str::to_owned).collect();
        self.only(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The command for a row alone, beside the main one; `None` where no command line says the same.
    pub fn command(&self, row: &RowSettings, seeds: u64, out: &Path) -> Option<String> {
        if self.at_recipe_scale {
            return None;
        }
        let (file, out) = (self.file.display().to_string(), out.display().to_string());
        let (name, seeds) = (row.name.clone(), seeds.to_string());
        let mut words = vec!["engram".to_owned(), "grid".to_owned(), file];
        for (option, value) in [("--rows", name), ("--seeds", seeds), ("--out", out)] {
            words.extend([option.to_owned(), value]);
        }
        for set in &self.added {
            words.extend(["--set".to_owned(), set.clone()]);
        }
        Some(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
    }

    /// The recipe of a row, or of a part of its phases.
    pub(crate) fn recipe(&self, row: &RowSettings, seed: u64, part: Phases<'_>) -> Result<Recipe> {
        let load = |set: Vec<String>| {
            let options = RecipeOptions { tiny: false, set };
            let recipe = Recipe::parse(&self.recipe, &self.recipe_file, &options)
                .map_err(|error| self.of_row(row, &error))?;
            match recipe.study() == self.study.name() {
                true => Ok(recipe),
                false => {
                    let reason = format!("is not `{}`, of which the grid is", self.study.name());
                    Err(self.of_row(row, &recipe.error("study", &reason)))
                }
            }
        };
        let seed = format!("seed={seed}");
        let of_all = [self.set.as_slice(), &self.added].concat();
        let whole = load([of_all.as_slice(), &row.set, std::slice::from_ref(&seed)].concat())?;
        let is_shared = |name: &String| self.shared.contains(name);
        let left_out = |wanted: bool| {
            let names = whole.phases().iter().map(|phase| &phase.name);
            let left_out = names.filter(move |name| is_shared(name) != wanted);
            left_out.map(|name| format!("phase.{name}.steps=0")).collect::<Vec<_>>()
        };
        let mut set = of_all;
        match part {
            Phases::Whole => return Ok(whole),
            Phases::Shared => {
                set.extend(row.set.iter().cloned());
                set = self.study.shared_settings(set);
                set.extend(left_out(true));
            }
            Phases::Rest(start) => {
                set.extend(row.set.iter().cloned());
                set.extend(left_out(false));
                // Where all rows start from another run, the shared phases have done so.
                set.retain(|setting| !setting.trim_start().starts_with("start"));
                set.push(format!("start.run={}", toml::Value::String(start.display().to_string())));
                let patterns = self.study.taken_over().iter().map(|one| (*one).into()).collect();
                set.push(format!("start.parameters={}", toml::Value::Array(patterns)));
            }
        }
        set.push(seed);
        load(set)
    }

    /// Whether a row has phases that it may share, and others behind them.
    pub(super) fn shares(&self, recipe: &Recipe) -> bool {
        let shared = recipe.phases().iter().take_while(|phase| self.shared.contains(&phase.name));
        (1..recipe.phases().len()).contains(&shared.count())
    }

    /// An error about a row, with its line.
    pub(crate) fn of_row(&self, row: &RowSettings, error: &dyn std::fmt::Display) -> TrainError {
        self.wrong(self.lines.rows.get(&row.name), format!("row `{}`: {error}", row.name))
    }

    /// An error about a claim, with its line.
    pub(crate) fn of_claim(&self, claim: &ClaimSettings, reason: &str) -> TrainError {
        self.wrong(self.lines.claims.get(&claim.id), format!("claim `{}`: {reason}", claim.id))
    }

    fn wrong(&self, line: Option<&usize>, reason: String) -> TrainError {
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        TrainError::Recipe { place: format!("{}{line}", self.file.display()), reason }
    }
}

/// The line of a place in a text, from 1 on.
fn line(text: &str, start: usize) -> usize {
    1 + text.as_bytes().iter().take(start).filter(|byte| **byte == b'\n').count()
}

/// A word as a POSIX shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn read(text: &str, file: &Path) -> Result<File> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = line(text, error.span().map_or(0, |span| span.start));
        let place = format!("{}:{line}", file.display());
        TrainError::Recipe { place, reason: error.message().trim().to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, wanted) in [
            ("memory.k=5", "memory.k=5"),
            ("data.without_sources=[\"kg\"]", "'data.without_sources=[\"kg\"]'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
            ("a\nb", "'a\nb'"),
            ("~/runs", "'~/runs'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), wanted);
        }
    }
}
