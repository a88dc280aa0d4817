//! Trains the grids of a reproduction and tests their claims.

use std::path::Path;

use engram_infer::finished_run::is_finished;
use engram_train::grid::{
    ClaimReport, ClaimSettings, Grid, GridOptions, GridReport, measure_finished, run_grid,
};
use engram_train::registry;
use engram_train::studies::ALL;
use engram_train::{Program, Recipe, RecipeOptions, RunOptions, check_failures};

use super::plan::{AVFORMER, FROZEN_MODELS, PARTS, Part};
use super::stamps::STAMPS;
use super::{Reproduce, Results, Scale};
use crate::cli::bundled::{self, BundledModel};
use crate::cli::grid::print_progress;
use crate::cli::output;

/// The projection's learning rate over the Conformer.
const CONFORMER_RATE: &str = r#"group=[{ match = "projection.**", rate = 30.0 }]"#;
const CONFORMER: &str = "conformer";

/// The frozen ASR model of a grid of AVFormer.
struct AsrModel<'a> {
    name: &'static str,
    weights: &'a str,
}

impl Reproduce {
    /// The ids of the claims that the grids of this scale can test.
    pub(super) fn grid_claims(&self) -> anyhow::Result<Vec<String>> {
        let mut ids = Vec::new();
        for part in PARTS.iter().filter(|part| part.scales.contains(&self.scale)) {
            let grid = Grid::built_in(part.grid, ALL)?;
            for model in self.asr_models(part) {
                ids.extend(grid.claims.iter().map(|claim| self.claim_id(claim, model.as_ref())));
            }
        }
        Ok(ids)
    }

    /// Tests the claims of all grids.
    pub(super) fn test_grids(&self, results: &mut Results) -> anyhow::Result<()> {
        let has_frozen_models = |part: &Part| part.grid == AVFORMER;
        let mut is_frozen_trained = false;
        for part in PARTS.iter().filter(|part| {
            self.includes_study(part.study())
                && part.scales.contains(&self.scale)
                && (!part.is_further || self.ablations || !self.claims.is_empty())
        }) {
            for model in self.asr_models(part) {
                let model = model.as_ref();
                let grid = self.grid(part, model, results)?;
                if grid.claims.is_empty() {
                    continue;
                }
                if has_frozen_models(part) && !is_frozen_trained {
                    self.train_frozen_models(results)?;
                    is_frozen_trained = true;
                }
                self.test_part(part, grid, model, results)?;
            }
        }
        if self.claims.is_empty() {
            self.add_untested(results)?;
        }
        Ok(())
    }

    /// The grid of a part with the requested claims.
    fn grid(
        &self,
        part: &Part,
        model: Option<&AsrModel<'_>>,
        results: &Results,
    ) -> anyhow::Result<Grid> {
        let bundled = format!("{}/", self.out.join(bundled::FOLDER).display());
        let replace = |set: &str| set.replace(bundled::REPOSITORY, &bundled);
        let grid = Grid::built_in_with(part.grid, ALL, replace)?;
        if !self.claims.is_empty() {
            return Ok(grid.select_claims(|claim| {
                let id = self.claim_id(claim, model);
                self.includes_claim(&id) && !results.has(&id)
            }));
        }
        if part.configurations.is_empty() { Ok(grid) } else { Ok(grid.select(part.configurations)) }
    }

    /// Trains and evaluates the configurations of a grid, and adds its claims.
    fn test_part(
        &self,
        part: &Part,
        grid: Grid,
        model: Option<&AsrModel<'_>>,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        for model in part.starts_from {
            model.unpack(&self.out.join(bundled::FOLDER))?;
        }
        let mut set = Vec::new();
        let mut folder = part.folder.to_owned();
        if part.study() == STAMPS {
            let Some(settings) = self.stamps_settings(results)? else { return Ok(()) };
            set.extend(settings);
        }
        if part.study() == "avformer" {
            // The transcripts of a frozen ASR model are cached for all grids.
            set.push(setting("data.cache", &self.out.join("avformer-cache")));
        }
        if let Some(AsrModel { name, weights }) = model.filter(|_| part.grid == AVFORMER) {
            folder = format!("{folder}-{name}");
            set.push(setting("model.asr_model", Path::new(weights)));
            let encoder = self.out.join(bundled::FOLDER).join("clip");
            set.push(setting("model.image_encoder", &encoder));
            set.extend((*name == CONFORMER).then(|| CONFORMER_RATE.to_owned()));
        }
        let grid = grid.with_settings(&set)?;
        let options = GridOptions {
            out: self.out.join(folder),
            seeds: self.seeds,
            quiet: output::is_quiet(),
            reuse: self.reuse,
            stop: self.stop.clone(),
        };
        let report = match run_grid(&grid, &options, &mut print_progress) {
            Err(error) if self.stop.is_requested() => {
                if let Some(report) = measure_finished(&grid, &options)? {
                    self.add(&grid, report, model, results);
                }
                return Err(error.into());
            }
            report => report?,
        };
        results.notes.extend((!part.note.is_empty()).then(|| part.note.to_owned()));
        if model.is_none_or(|model| model.name == CONFORMER) {
            for (bundled, configuration) in part.trains {
                let run = options.out.join("seed-1").join(configuration);
                if run.is_dir() {
                    self.compare_with_bundled(bundled, &run, results)?;
                }
            }
        }
        self.add(&grid, report, model, results);
        Ok(())
    }

    /// Adds the claims and notes of a grid.
    fn add(
        &self,
        grid: &Grid,
        report: GridReport,
        model: Option<&AsrModel<'_>>,
        results: &mut Results,
    ) {
        results.notes.extend(report.notes());
        for mut report in report.claims {
            let Some(claim) = grid.claims.iter().find(|claim| claim.id == report.id) else {
                continue;
            };
            self.complete(claim, &mut report, model, self.scale);
            if !results.has(&report.id) {
                results.claims.push(report);
            }
        }
    }

    /// Fills in the fields that depend on the options: the id, the frozen ASR model, whether the
    /// claim is expected to hold, and the command.
    fn complete(
        &self,
        claim: &ClaimSettings,
        report: &mut ClaimReport,
        model: Option<&AsrModel<'_>>,
        scale: Scale,
    ) {
        report.id = self.claim_id(claim, model);
        if let Some(model) = model {
            report.comparison = format!("{}; {}", report.comparison, model.name);
        }
        let applies = |condition: &String| match condition.as_str() {
            "one seed" => self.seeds == 1,
            other => model.is_some_and(|model| model.name == other),
        };
        report.expected |= claim.expected_with.iter().any(applies);
        let whisper = self.whisper.as_ref().filter(|_| model.is_some());
        let whisper = whisper.map(|whisper| ("whisper", &**whisper));
        report.command = self.claim_command(&report.id, scale, whisper.as_slice());
    }

    /// Adds the claims of all grids that were not run.
    fn add_untested(&self, results: &mut Results) -> anyhow::Result<()> {
        for part in PARTS.iter().filter(|part| self.includes_study(part.study())) {
            let grid = Grid::built_in(part.grid, ALL)?;
            let scale = if part.scales.contains(&self.scale) { self.scale } else { part.scales[0] };
            for model in self.asr_models(part) {
                for claim in &grid.claims {
                    let mut report = ClaimReport::untested(claim, self.seeds);
                    self.complete(claim, &mut report, model.as_ref(), scale);
                    report.comparison.clear();
                    report.expected = false;
                    if !results.has(&report.id) {
                        results.claims.push(report);
                    }
                }
            }
        }
        Ok(())
    }

    /// The frozen ASR models of a part: the Conformer and, at larger scales, Whisper if given.
    /// `None` for other studies.
    fn asr_models(&self, part: &Part) -> Vec<Option<AsrModel<'_>>> {
        if part.study() != "avformer" {
            return vec![None];
        }
        let whisper = self.whisper.as_deref().filter(|_| part.grid == AVFORMER);
        let whisper = whisper.map(|weights| AsrModel { name: "whisper", weights });
        let conformer = AsrModel { name: CONFORMER, weights: self.conformer.as_str() };
        [Some(conformer), whisper].into_iter().filter(Option::is_some).collect()
    }

    /// The id of a claim for one ASR model. With `--whisper`, ids without a suffix belong to
    /// Whisper.
    fn claim_id(&self, claim: &ClaimSettings, model: Option<&AsrModel<'_>>) -> String {
        let is_conformer = model.is_some_and(|model| model.name == CONFORMER);
        let suffix = if is_conformer && self.whisper.is_some() { ".conformer" } else { "" };
        format!("{}{suffix}", claim.id)
    }

    /// Trains the image encoder and the ASR model of AVFormer, and writes both with 16-bit weights,
    /// as in `train/bundled`.
    fn train_frozen_models(&self, results: &mut Results) -> anyhow::Result<()> {
        let folder = self.out.join(bundled::FOLDER);
        bundled::check_folder(&folder)?;
        for frozen in &FROZEN_MODELS {
            let run = self.out.join(frozen.folder);
            let set = frozen.set.replace("{out}", &self.out.display().to_string());
            output::note(&format!("AVFormer: {}", frozen.folder));
            self.train(frozen.recipe, vec![set], &run, results)?;
            let failures = check_failures(&run)?.into_iter();
            let with_run = failures.map(|failure| format!("{}: {failure}.", run.display()));
            results.notes.extend(with_run);
            if let Some(model) = frozen.model {
                self.compare_with_bundled(model, &run, results)?;
                model.export(&run, &self.out, &folder)?;
            }
        }
        Ok(())
    }

    /// Trains a run by a built-in recipe with changed settings, unless it is finished.
    pub(super) fn train(
        &self,
        recipe: &str,
        set: Vec<String>,
        run: &Path,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let mut recipe = Recipe::built_in(recipe, &RecipeOptions { tiny: false, set })?;
        self.note_program(run, results)?;
        if !is_finished(run)
            && let Some(study) = registry::find(ALL, &recipe.study)
        {
            let options = RunOptions {
                run: run.to_path_buf(),
                resume: true,
                quiet: output::is_quiet(),
                stop: self.stop.clone(),
                ..RunOptions::default()
            };
            (study.train)(&mut recipe, &options)?;
        }
        Ok(())
    }

    /// Adds a note if another build of the program trained a run.
    ///
    /// # Errors
    /// Such a run without `--reuse`.
    pub(super) fn note_program(&self, run: &Path, results: &mut Results) -> anyhow::Result<()> {
        if Program::differs_from_running(run, self.reuse)? {
            let note = format!("Trained by another build of the program: {}.", run.display());
            results.notes.push(note);
        }
        Ok(())
    }

    /// Adds a note whether a run's weights equal those of the bundled model. With
    /// `--export-bundled`, writes the run to the folder of this option.
    pub(super) fn compare_with_bundled(
        &self,
        model: &BundledModel,
        run: &Path,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        results.notes.push(model.comparison_note(run)?);
        match &self.export_bundled {
            Some(folder) => model.export(run, &self.out, folder),
            None => Ok(()),
        }
    }
}

/// A setting whose value is a path. A JSON string is also a TOML string.
pub(super) fn setting(key: &str, path: &Path) -> String {
    format!("{key}={}", serde_json::Value::from(path.display().to_string()))
}
