//! AVFormer on the embedded world.

use std::path::Path;

use engram_eval::items::{Items, Statistic};
use engram_eval::metric::MetricInfo;
use engram_eval::result::Measure;
use engram_train::grid::{ClaimReport, Grid, GridOptions, GridReport, Verdict, run_grid};
use engram_train::studies::avformer::evaluate::{PUT_IN_ITEMS, TEST};
use engram_train::studies::avformer::run::AvformerSummary;
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::speech::run::train_speech;
use engram_train::{Recipe, RecipeOptions, RunOptions};

use super::Reproduce;
use super::report::Row;
use super::values::Values;
use crate::cli::grid::time_left;
use crate::cli::output;

/// The grid and the recipes, as they stand in the repository.
const GRID: &str = include_str!("../../../train/recipes/avformer/ablations.toml");
const RECIPE: &str = include_str!("../../../train/recipes/avformer/tiny.toml");
const SPEECH: &str = include_str!("../../../train/recipes/speech/tiny.toml");
const CLIP: &str = include_str!("../../../train/recipes/clip/tiny.toml");
const GRID_FILE: &str = "train/recipes/avformer/ablations.toml";
const RECIPE_FILE: &str = "train/recipes/avformer/tiny.toml";

/// Rows that are always made.
const ROWS: [&str; 3] = ["main", "audio-only", "joint"];
/// Claims that are expected to hold, of any recogniser.
const EXPECTED: [&str; 1] = ["avformer.audio_only_under_frozen"];
/// Claims that are expected to hold of a recogniser whose decoder reads the states of pictures: of CTC they are not.
const EXPECTED_OF_WHISPER: [&str; 5] = [
    "avformer.right_picture_under_none",
    "avformer.right_picture_under_wrong",
    "avformer.clean_speech_kept",
    "avformer.wrong_picture_kept_out",
    "avformer.trained_share",
];
/// Shares up to which a wrong picture's name in clean speech, and what is trained, are small.
const SMALL: f64 = 0.01;

impl Reproduce {
    /// The rows of the study, of each recogniser.
    pub(super) fn avformer(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Row>> {
        if self.is_smoke() {
            notes.push(
                "AVFormer is left out at scale smoke: its recogniser and image encoder are trained \
                 first, with --scale laptop."
                    .to_owned(),
            );
            return Ok(Vec::new());
        }
        let encoder = self.out.join("avformer-clip");
        let set = ["model.text_encoder="].map(str::to_owned).to_vec();
        self.tell("AVFormer: the image encoder");
        train_clip(&mut recipe(CLIP, "clip/tiny.toml", set)?, &self.run_options(&encoder))?;
        let speech = self.out.join("avformer-speech");
        let set = ["phase.best_rq.steps=0"].map(str::to_owned).to_vec();
        self.tell("AVFormer: the recogniser");
        train_speech(&mut recipe(SPEECH, "speech/tiny.toml", set)?, &self.run_options(&speech))?;
        let speech = speech.display().to_string();
        let mut recognisers = vec![("conformer", speech.as_str())];
        recognisers.extend(self.whisper.as_deref().map(|whisper| ("whisper", whisper)));
        let mut rows = Vec::new();
        for (name, recogniser) in recognisers {
            rows.extend(self.of_recogniser((name, recogniser), &encoder, notes)?);
        }
        Ok(rows)
    }

    fn of_recogniser(
        &self,
        (name, recogniser): (&str, &str),
        encoder: &Path,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Vec<Row>> {
        self.tell(&format!("AVFormer: {name}"));
        let grid = Grid::parse(GRID, GRID_FILE.as_ref(), RECIPE, RECIPE_FILE.as_ref())?;
        let grid = if self.ablations { grid } else { grid.only(&ROWS) };
        // A string in JSON is one in TOML.
        let value = |path: &str| serde_json::Value::from(path).to_string();
        let grid = grid.with_settings(&[
            format!("model.recogniser={}", value(recogniser)),
            format!("model.image_encoder={}", value(&encoder.display().to_string())),
        ])?;
        let out = self.out.join(format!("avformer-{name}"));
        let options = GridOptions {
            out: out.clone(),
            seeds: self.seeds,
            quiet: self.quiet,
            reuse: self.reuse,
        };
        let report = run_grid(&grid, &options, &mut time_left(self.quiet))?;
        notes.extend(report.reused_note());
        let mut rows: Vec<Row> =
            report.claims.iter().map(|claim| self.of_avformer_claim(claim, name)).collect();
        rows.extend(self.of_summaries(&report, &out, name)?);
        Ok(rows)
    }

    fn of_avformer_claim(&self, claim: &ClaimReport, recogniser: &str) -> Row {
        let what = format!("{} ({}; {recogniser})", claim.claim.claim, claim.compared);
        let (figure, verdict) = (claim.difference.clone(), claim.verdict);
        let mut row = self.avformer_row(&claim.claim.id, what, figure, verdict, recogniser);
        row.paper = claim.claim.paper.clone();
        row
    }

    /// The rows that the main runs show by themselves.
    fn of_summaries(
        &self,
        report: &GridReport,
        out: &Path,
        recogniser: &str,
    ) -> anyhow::Result<Vec<Row>> {
        let (mut put_in, mut share) = (Values::default(), 0.0f64);
        for seed in 1..=self.seeds {
            let run = out.join(format!("seed-{seed}")).join(&report.main);
            let [trained, frozen] = AvformerSummary::read(&run)?.parameters;
            share = share.max(trained as f64 / (trained + frozen) as f64);
            for item in Items::read(&run.join(TEST).join(PUT_IN_ITEMS))?.items {
                let Statistic::Mean { value } = item.statistic else { continue };
                put_in.add(seed, item.group.unwrap_or_default(), value);
            }
        }
        let put_in = put_in.measure("shown_name_in_text", "name");
        let is_small = |value: f64| if value <= SMALL { Verdict::Holds } else { Verdict::Fails };
        let verdict = is_small(put_in.value);
        let claim = format!(
            "at most one clean clip in a hundred has the name that a wrong picture shows ({recogniser})"
        );
        let kept_out = self.avformer_row(
            "avformer.wrong_picture_kept_out",
            claim,
            put_in,
            verdict,
            recogniser,
        );
        let info = MetricInfo { name: "trained_share", version: 1, higher_is_better: None };
        let figure = Measure::new(&info, 1, Ok(share), None);
        let claim = format!("at most one number in a hundred is trained ({recogniser})");
        let mut trained =
            self.avformer_row("avformer.trained_share", claim, figure, is_small(share), recogniser);
        trained.paper = "about 4 M of 600 M".to_owned();
        Ok(vec![kept_out, trained])
    }

    fn avformer_row(
        &self,
        id: &str,
        claim: String,
        figure: Measure,
        verdict: Verdict,
        recogniser: &str,
    ) -> Row {
        let is_whisper = recogniser == "whisper";
        // The plain names are those of the Whisper model, where there is one.
        let suffix = if is_whisper || self.whisper.is_none() { "" } else { ".conformer" };
        let expected = EXPECTED.contains(&id) || is_whisper && EXPECTED_OF_WHISPER.contains(&id);
        let whisper =
            self.whisper.as_ref().map_or(String::new(), |one| format!(" --whisper {one}"));
        let more = if self.ablations { " --ablations" } else { "" };
        let seeds = self.seeds;
        Row {
            study: "avformer",
            id: format!("{id}{suffix}"),
            claim,
            paper: String::new(),
            figure,
            seeds,
            verdict,
            expected,
            command: format!(
                "engram reproduce --study avformer --scale laptop --seeds {seeds}{whisper}{more}"
            ),
            compared: Vec::new(),
        }
    }

    fn run_options(&self, run: &Path) -> RunOptions {
        RunOptions { run: run.into(), resume: true, quiet: self.quiet, ..RunOptions::default() }
    }

    fn tell(&self, what: &str) {
        output::note(what, self.quiet);
    }
}

fn recipe(text: &str, name: &str, set: Vec<String>) -> anyhow::Result<Recipe> {
    let options = RecipeOptions { tiny: false, set };
    Ok(Recipe::parse(text, format!("train/recipes/{name}").as_ref(), &options)?)
}
