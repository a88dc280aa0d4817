//! AVFormer on the embedded world.

use std::path::Path;

use engram_eval::items::{Items, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_eval::wer::read::{TextFormat, parse_texts};
use engram_textfile::read_text;
use engram_train::grid::{ClaimReport, Grid, GridReport, Rule, Test, Verdict, shell_quote};
use engram_train::studies::ALL;
use engram_train::studies::avformer::evaluate::{SHOWN_NAME_ITEMS, TEST};
use engram_train::studies::avformer::run::AvformerSummary;
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::speech::run::train_speech;
use engram_train::{Recipe, RecipeOptions, check_failures};

use super::real::{self, WHISPER};
use super::report::{Claim, grid_systems, grid_test, untested};
use super::study::StudyReport;
use super::values::Values;
use super::{Reproduce, bundled};

/// The built-in grid of scales laptop and full.
const GRID: &str = "avformer/ablations";
/// The built-in grid of scale smoke, which evaluates bundled models.
const SMOKE_GRID: &str = "avformer/smoke";
/// The built-in grid of [`FROM_SCRATCH`].
const SCRATCH_GRID: &str = "avformer/scratch";
/// Scale smoke also trains adapters from random weights.
const FROM_SCRATCH: &str = "avformer.learns_from_scratch";
/// The projection's learning rate over the Conformer.
const CONFORMER_RATE: &str = r#"group=[{ match = "projection.**", rate = 30.0 }]"#;

/// Configurations that are trained at scale laptop, unless `--claim` or `--ablations` selects
/// others.
const CONFIGURATIONS: [&str; 3] = ["main", "audio-only", "joint"];
/// Claims expected to hold with any ASR model.
const EXPECTED: [&str; 5] = [
    "avformer.adapters_under_frozen",
    "avformer.audio_only_under_frozen",
    "avformer.right_image_under_wrong",
    "avformer.clean_speech_kept",
    FROM_SCRATCH,
];
/// Further claims expected to hold for the bundled models and for Whisper. Over another tiny
/// Conformer, they may be too close to 0 to be decided (docs/results/avformer.md).
const EXPECTED_OF_BUNDLED: [&str; 2] =
    ["avformer.right_image_under_none", "avformer.curriculum_under_audio_only"];
/// Claims expected to hold for Whisper.
const EXPECTED_OF_WHISPER: [&str; 1] = [TRAINED_SHARE];
/// Upper limit for the share of clean transcripts that contain the name of a wrong image, and for
/// the share of trained parameters.
const MAX_SHARE: f64 = 0.01;

/// The name of the Conformer in folder names and claims.
const CONFORMER: &str = "conformer";
const SMOKE_NOTE: &str = "AVFormer: the bundled models are evaluated again (their training is in \
    train/bundled/README.md); avformer.learns_from_scratch trains adapters from random weights.";

/// Claims measured on the main runs.
const MAIN_RUN_CLAIMS: [&str; 2] = [WRONG_IMAGE_IGNORED, TRAINED_SHARE];
const WRONG_IMAGE_IGNORED: &str = "avformer.wrong_image_ignored";
const TRAINED_SHARE: &str = "avformer.trained_share";

/// The study in the report.
pub(super) struct AvformerReport;

impl StudyReport for AvformerReport {
    fn name(&self) -> &'static str {
        "avformer"
    }

    fn heading(&self) -> &'static str {
        "AVFormer: audio-visual speech recognition"
    }

    fn claim_ids(&self, reproduce: &Reproduce) -> anyhow::Result<Vec<String>> {
        reproduce.avformer_ids()
    }

    fn check_data(&self, reproduce: &Reproduce) -> anyhow::Result<()> {
        if reproduce.whisper.is_some()
            && let Some(folder) = reproduce.real_data(real::SPEECH, &mut Vec::new())
        {
            for file in real::SPEECH.files {
                let path = folder.join(file);
                parse_texts(&path.display().to_string(), &read_text(&path)?, TextFormat::Tsv)?;
            }
        }
        Ok(())
    }

    fn claims(&self, reproduce: &Reproduce, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        let mut claims = reproduce.avformer(notes)?;
        claims.extend(reproduce.real_speech(notes)?);
        Ok(claims)
    }
}

impl Reproduce {
    /// Ids of the claims that can be measured with the given options.
    fn avformer_ids(&self) -> anyhow::Result<Vec<String>> {
        let grid = self.avformer_grid()?;
        let grid_ids = grid.claims().iter().map(|claim| claim.id.as_str());
        let ids: Vec<&str> = MAIN_RUN_CLAIMS.into_iter().chain(grid_ids).collect();
        let ids_of = |name: &str| ids.iter().map(|id| self.avformer_id(id, name)).collect();
        let mut ids: Vec<String> = self
            .asr_models("")
            .iter()
            .flat_map(|(name, _)| -> Vec<String> { ids_of(name) })
            .collect();
        ids.extend(self.is_smoke().then(|| self.avformer_id(FROM_SCRATCH, CONFORMER)));
        ids.extend((self.data.is_some() && self.whisper.is_some()).then(|| WHISPER.to_owned()));
        Ok(ids)
    }

    /// Measures the study's claims, with each ASR model.
    fn avformer(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        // The claim on real speech needs no training.
        if !self.avformer_ids()?.iter().any(|id| id != WHISPER && self.includes_claim(id)) {
            return Ok(Vec::new());
        }
        let folder = self.out.join(bundled::FOLDER);
        if self.is_smoke() {
            for model in &bundled::AVFORMER_MODELS {
                bundled::unpack(model, &folder)?;
            }
            notes.push(SMOKE_NOTE.to_owned());
            if self.whisper.is_some() || self.ablations {
                notes.push(
                    "AVFormer over Whisper and its further claims need --scale laptop.".to_owned(),
                );
            }
        } else {
            self.train_frozen_models(&folder, notes)?;
        }
        let [encoder, conformer] =
            [bundled::CLIP, bundled::CONFORMER].map(|model| folder.join(model.name));
        let mut claims = Vec::new();
        for (name, asr_model) in self.asr_models(&conformer.display().to_string()) {
            claims.extend(self.asr_model_claims((name, asr_model), &encoder, notes)?);
        }
        if self.is_smoke() && self.includes_claim(&self.avformer_id(FROM_SCRATCH, CONFORMER)) {
            let grid = self.bundled_grid(SCRATCH_GRID)?;
            let report = self.train_avformer_grid(&grid, &self.out.join("avformer-scratch"))?;
            notes.extend(report.reused_note());
            let of_claim = |claim| self.avformer_grid_claim(claim, CONFORMER);
            claims.extend(report.claims.iter().map(of_claim));
        }
        Ok(claims)
    }

    /// The frozen ASR models for AVFormer: the Conformer, and Whisper if given. Scale smoke has
    /// only the Conformer.
    fn asr_models<'a>(&'a self, conformer: &'a str) -> Vec<(&'static str, &'a str)> {
        let whisper = self.whisper.as_deref().filter(|_| !self.is_smoke());
        let whisper = whisper.map(|whisper| ("whisper", whisper));
        [(CONFORMER, conformer)].into_iter().chain(whisper).collect()
    }

    /// The grid of this scale.
    fn avformer_grid(&self) -> anyhow::Result<Grid> {
        if self.is_smoke() {
            return self.bundled_grid(SMOKE_GRID);
        }
        Ok(Grid::built_in(GRID, ALL)?)
    }

    /// Trains the image encoder and the ASR model, and writes both below `folder` with 16-bit
    /// weights, as in `train/bundled`.
    fn train_frozen_models(&self, folder: &Path, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let encoder = self.out.join("avformer-clip");
        self.note("AVFormer: the image encoder");
        let mut image_recipe = clip_recipe()?;
        if self.is_unfinished(&encoder, notes)? {
            train_clip(&mut image_recipe, &self.run_options(&encoder))?;
        }
        notes.extend(failure_notes(&encoder)?);
        let ctc = self.out.join("avformer-ctc");
        let speech = self.out.join("avformer-speech");
        for (run, mut recipe, part) in [
            (&ctc, ctc_recipe()?, "the ASR model's encoder, by CTC"),
            (&speech, speech_recipe(&ctc)?, "the ASR model"),
        ] {
            self.note(&format!("AVFormer: {part}"));
            if self.is_unfinished(run, notes)? {
                train_speech(&mut recipe, &self.run_options(run))?;
            }
            notes.extend(failure_notes(run)?);
        }
        bundled::check_folder(folder)?;
        for (model, run) in [(bundled::CLIP, &encoder), (bundled::CONFORMER, &speech)] {
            self.compare_with_bundled(&model, run, notes)?;
            model.export(run, &self.out, folder)?;
        }
        Ok(())
    }

    /// Measures the study's claims with one ASR model.
    fn asr_model_claims(
        &self,
        (name, asr_model): (&str, &str),
        encoder: &Path,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Vec<Claim>> {
        let is_smoke = self.is_smoke();
        let grid = self.avformer_grid()?;
        let grid_ids = grid.claims().iter().map(|claim| claim.id.clone());
        let (main_run_ids, selected_grid_ids): (Vec<String>, Vec<String>) = MAIN_RUN_CLAIMS
            .map(str::to_owned)
            .into_iter()
            .chain(grid_ids)
            .filter(|id| self.includes_claim(&self.avformer_id(id, name)))
            .partition(|id| MAIN_RUN_CLAIMS.contains(&id.as_str()));
        if main_run_ids.is_empty() && selected_grid_ids.is_empty() {
            return Ok(Vec::new());
        }
        self.note(&format!("AVFormer: {name}"));
        let grid = match self.claims.is_empty() {
            true if self.ablations || is_smoke => grid,
            true => grid.select(&CONFIGURATIONS),
            false => grid.select_for_claims(&selected_grid_ids),
        };
        // A JSON string is also a TOML string.
        let quoted = |path: &str| serde_json::Value::from(path).to_string();
        let mut set = vec![
            format!("model.asr_model={}", quoted(asr_model)),
            format!("model.image_encoder={}", quoted(&encoder.display().to_string())),
        ];
        set.extend((name == CONFORMER).then(|| CONFORMER_RATE.to_owned()));
        let grid = grid.with_settings(&set)?;
        let suffix = if is_smoke { "-smoke" } else { "" };
        let out = self.out.join(format!("avformer-{name}{suffix}"));
        let report = self.train_avformer_grid(&grid, &out)?;
        notes.extend(report.reused_note());
        if !is_smoke && name == CONFORMER {
            for (model, configuration) in [
                (&bundled::AVFORMER, report.main.as_str()),
                (&bundled::AUDIO_ONLY, "audio-only"),
                (&bundled::JOINT, "joint"),
            ] {
                let run = out.join("seed-1").join(configuration);
                if run.is_dir() {
                    self.compare_with_bundled(model, &run, notes)?;
                }
            }
        }
        notes.extend(corrected_words_note(&out.join("seed-1").join(&report.main), name)?);
        let mut claims: Vec<Claim> =
            report.claims.iter().map(|claim| self.avformer_grid_claim(claim, name)).collect();
        claims.extend(self.avformer_main_run_claims(&report, &out, name)?);
        let full_grid = Grid::built_in(GRID, ALL)?;
        for claim in full_grid.claims() {
            if report.claims.iter().all(|tested| tested.claim.id != claim.id) {
                let text = format!("{} ({name})", claim.claim);
                let test = untested(claim.rule());
                let mut result = self.avformer_claim(&claim.id, text, test, name);
                result.paper = claim.paper.clone();
                result.command = result.command.replace("--scale smoke", "--scale laptop");
                claims.push(result);
            }
        }
        Ok(claims)
    }

    /// Trains the configurations of a grid into `out`. The transcripts of a frozen ASR model are
    /// cached for all seeds.
    fn train_avformer_grid(&self, grid: &Grid, out: &Path) -> anyhow::Result<GridReport> {
        let cache = self.out.join("avformer-cache").display().to_string();
        let cache = format!("data.cache={}", serde_json::Value::from(cache));
        self.train_grid(&grid.clone().with_settings(&[cache])?, out)
    }

    fn avformer_grid_claim(&self, claim: &ClaimReport, asr_model: &str) -> Claim {
        let text = format!("{} ({}; {asr_model})", claim.claim.claim, claim.compared);
        let mut result = self.avformer_claim(&claim.claim.id, text, grid_test(claim), asr_model);
        result.paper = claim.claim.paper.clone();
        result.compared = grid_systems(claim);
        result
    }

    /// Measures [`MAIN_RUN_CLAIMS`].
    fn avformer_main_run_claims(
        &self,
        report: &GridReport,
        out: &Path,
        asr_model: &str,
    ) -> anyhow::Result<Vec<Claim>> {
        let (mut wrong_name_inserted, mut share) = (Values::default(), 0.0f64);
        for seed in 1..=self.seeds {
            let run = out.join(format!("seed-{seed}")).join(&report.main);
            let [trained, frozen] = AvformerSummary::read(&run)?.parameters;
            share = share.max(trained as f64 / (trained + frozen) as f64);
            let items = Items::read(&run.join(TEST).join(SHOWN_NAME_ITEMS));
            for item in items.map_or_else(|_| Vec::new(), |read| read.items) {
                let Statistic::Mean { value } = item.statistic else { continue };
                wrong_name_inserted.add(seed, item.group.unwrap_or_default(), value);
            }
        }
        let info = MetricInfo::lower("shown_name_in_text", Unit::Fraction);
        let test = wrong_name_inserted.test(&info, "name", Rule::AtMost(MAX_SHARE));
        let claim = format!(
            "at most 1 % of clean transcripts contain the name of a wrong image ({asr_model})"
        );
        let wrong_image_claim = self.avformer_claim(WRONG_IMAGE_IGNORED, claim, test, asr_model);
        let claim = format!("at most 1 % of the parameters are trained ({asr_model})");
        // The share is counted, not sampled, so it needs no interval.
        let info = MetricInfo::lower("trained_share", Unit::Fraction);
        let test = Test {
            measure: Measure::new(&info, 1, Ok(share), None),
            rule: Rule::AtMost(MAX_SHARE),
            verdict: if share <= MAX_SHARE { Verdict::Holds } else { Verdict::Fails },
            p_value: None,
        };
        let mut share_claim = self.avformer_claim(TRAINED_SHARE, claim, test, asr_model);
        share_claim.paper = "about 4 M of 600 M".to_owned();
        Ok(vec![wrong_image_claim, share_claim])
    }

    fn avformer_claim(&self, id: &str, claim: String, test: Test, asr_model: &str) -> Claim {
        let is_whisper = asr_model != CONFORMER;
        let expected = EXPECTED.contains(&id)
            || (is_whisper || self.is_smoke()) && EXPECTED_OF_BUNDLED.contains(&id)
            || is_whisper && EXPECTED_OF_WHISPER.contains(&id);
        let whisper = self
            .whisper
            .as_ref()
            .map_or(String::new(), |whisper| format!(" --whisper {}", shell_quote(whisper)));
        let id = self.avformer_id(id, asr_model);
        Claim {
            study: "avformer",
            command: self.claim_command(&id, &whisper),
            id,
            claim,
            paper: String::new(),
            test,
            holm: None,
            seeds: self.seeds,
            expected,
            compared: Vec::new(),
        }
    }

    /// The id of a claim for one ASR model. With `--whisper`, ids without a suffix belong to
    /// Whisper.
    fn avformer_id(&self, id: &str, asr_model: &str) -> String {
        let has_no_suffix = asr_model != CONFORMER || self.whisper.is_none();
        format!("{id}{}", if has_no_suffix { "" } else { ".conformer" })
    }
}

/// A note on the words of a run's test that are correct only with the right frames. `None` if the
/// run did not test frames.
fn corrected_words_note(run: &Path, asr_model: &str) -> anyhow::Result<Option<String>> {
    let test = AvformerSummary::read(run)?.test;
    let Some([corrected, lost]) = test.rescued else { return Ok(None) };
    let words: Vec<String> = test.rescued_words.iter().map(ToString::to_string).collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) };
    let file = run.join(TEST).join("rescued.jsonl");
    Ok(Some(format!(
        "Words correct only with the right frames, {asr_model}, seed 1: {corrected}; only without \
         them: {lost}; alignments in {}{words}.",
        file.display()
    )))
}

/// Failed checks of a run's recipe, for the report.
fn failure_notes(run: &Path) -> anyhow::Result<Vec<String>> {
    let failures = check_failures(run)?.into_iter();
    Ok(failures.map(|failure| format!("{}: {failure}.", run.display())).collect())
}

/// The recipe of the image encoder, on images alone.
fn clip_recipe() -> anyhow::Result<Recipe> {
    let set = vec!["model.text_encoder=".to_owned()];
    Ok(Recipe::built_in("clip/tiny", &RecipeOptions { tiny: false, set })?)
}

/// The recipe of the CTC model whose encoder the ASR model starts from, without self-supervised
/// training.
fn ctc_recipe() -> anyhow::Result<Recipe> {
    let set = vec!["phase.best_rq.steps=0".to_owned()];
    Ok(Recipe::built_in("speech/tiny", &RecipeOptions { tiny: false, set })?)
}

/// The recipe of the ASR model, which starts from the run `ctc`.
fn speech_recipe(ctc: &Path) -> anyhow::Result<Recipe> {
    let ctc = serde_json::Value::from(ctc.display().to_string());
    let set = vec![format!("start.run={ctc}")];
    Ok(Recipe::built_in("speech/attention", &RecipeOptions { tiny: false, set })?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        reproduce: Reproduce,
    }

    fn claim_of(arguments: &[&str], id: &str, asr_model: &str) -> Claim {
        let arguments = ["x", "--scale", "laptop"].into_iter().chain(arguments.iter().copied());
        let reproduce = Command::parse_from(arguments).reproduce;
        let info = MetricInfo::descriptive("wer", Unit::Fraction);
        let test = Test {
            measure: Measure::new(&info, 1, Ok(0.5), None),
            rule: Rule::Better,
            verdict: Verdict::Holds,
            p_value: None,
        };
        reproduce.avformer_claim(id, String::new(), test, asr_model)
    }

    #[test]
    fn claim_ids_and_expectations_depend_on_the_asr_model() {
        let (frozen, none) =
            ("avformer.audio_only_under_frozen", "avformer.right_image_under_none");
        let without_whisper = claim_of(&[], frozen, "conformer");
        assert_eq!((without_whisper.id.as_str(), without_whisper.expected), (frozen, true));
        assert!(!claim_of(&[], none, "conformer").expected);
        let with_whisper = ["--whisper", "w"];
        let conformer = claim_of(&with_whisper, frozen, "conformer");
        assert_eq!(conformer.id, "avformer.audio_only_under_frozen.conformer");
        let whisper = claim_of(&with_whisper, none, "whisper");
        assert_eq!((whisper.id.as_str(), whisper.expected), (none, true));
        assert_eq!(
            whisper.command,
            "engram reproduce --claim avformer.right_image_under_none --scale laptop --seeds 1 --whisper w"
        );
    }

    #[test]
    fn expected_claims_and_smoke_claims_are_in_the_grid() {
        let grid = Grid::built_in(GRID, ALL).expect("a built-in grid");
        let ids: Vec<&str> = grid.claims().iter().map(|claim| claim.id.as_str()).collect();
        let expected = EXPECTED.iter().chain(&EXPECTED_OF_BUNDLED).chain(&EXPECTED_OF_WHISPER);
        let is_elsewhere = |id: &&&str| MAIN_RUN_CLAIMS.contains(*id) || **id == FROM_SCRATCH;
        for id in expected.filter(|id| !is_elsewhere(id)) {
            assert!(ids.contains(id), "{id}");
        }
        let smoke = Grid::built_in(SMOKE_GRID, ALL).expect("a built-in grid");
        for claim in smoke.claims() {
            assert!(grid.claims().contains(claim), "{}: the same claim at both scales", claim.id);
        }
        let always_trained = grid.select(&CONFIGURATIONS);
        assert_eq!(always_trained.configurations().len(), CONFIGURATIONS.len());
        assert!(always_trained.claims().len() >= 7, "{}", always_trained.claims().len());
        assert!(clip_recipe().is_ok() && ctc_recipe().is_ok());
    }
}
