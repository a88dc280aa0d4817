//! The ablation grid of AVFormer.

use engram_data::messages::counted;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_eval::items::{Item, Items, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::wer::report::WER;
use engram_infer::InferError;
use engram_infer::asr::{AsrModel, AvformerRunConfig};
use engram_infer::encode::Encoder;
use engram_models::compute::Compute;

use super::NAME;
use super::evaluate::{SHOWN_NAME_IN_TEXT, SHOWN_NAME_ITEMS, TEST, items_file};
use super::run::{AvformerSummary, complete_settings, settings};
use super::settings::{AvformerData, AvformerFeed};
use crate::error::{Result, TrainError};
use crate::grid::{
    AblationStudy, ClaimSettings, Column, Configuration, Filter, Grid, Hashes, Measures,
    MetricQuery, Phases,
};
use crate::recipe::Recipe;

/// The systems of the test: the frozen ASR model, and the adapted model with a clip's own frames,
/// with the frames of another clip, with zero embeddings and without frames.
const SYSTEMS: [&str; 5] = ["frozen", "right_frames", "wrong_frames", "zero_frames", "no_frames"];
/// The share of parameters that are trained.
const TRAINED_SHARE: MetricInfo = MetricInfo::lower("trained_share", Unit::Fraction);
/// The filter by the set of test utterances.
const UTTERANCES: &str = "utterances";
/// The sets of test utterances: the embedded world's clips with and without noise, clips of
/// `data.test`, and clips of `data.general_speech`.
const UTTERANCE_SETS: [&str; 4] = ["noisy", "clean", "test", "general_speech"];
/// The utterances of a claim without a filter: `noisy` in the embedded world, `test` for files.
const DEFAULT_UTTERANCES: [&str; 2] = ["noisy", "test"];
/// Settings that do not affect adapters trained without frames.
const FRAME_SETTINGS: [&str; 10] = [
    "data.cache",
    "data.frames",
    "data.frozen_baseline",
    "data.general_speech",
    "data.test_frames",
    "data.view_size",
    "data.views",
    "model.projection_bias_init",
    "model.image_encoder",
    "model.projection",
];
/// The default system of a configuration: `right_frames` if it was trained with frames, otherwise
/// `no_frames`.
const DEFAULT_SYSTEMS: [&str; 2] = ["right_frames", "no_frames"];

/// The ablations of AVFormer, compared by word error rate on the test utterances.
#[derive(Debug)]
pub struct AvformerAblations;

impl AblationStudy for AvformerAblations {
    fn measures(&self) -> Measures {
        let wer = MetricQuery::new(WER);
        let column = |key, heading, query| Column { key, heading, query };
        Measures {
            title: "AVFormer, ablations",
            description: "Word error rates on the test utterances, in noise unless stated otherwise. \
                          Configurations trained with frames are tested with the right frames.",
            metrics: vec![WER, SHOWN_NAME_IN_TEXT, TRAINED_SHARE],
            filters: vec![Filter { key: UTTERANCES, values: UTTERANCE_SETS.to_vec() }],
            systems: &SYSTEMS,
            evaluation_keys: &[],
            columns: vec![
                column("wer", "WER", wer.clone()),
                column("wer_without_frames", "no frames", wer.clone().of_system("no_frames")),
                column(
                    "wer_of_wrong_frames",
                    "wrong frames",
                    wer.clone().of_system("wrong_frames"),
                ),
                column("wer_of_clean", "clean", wer.with(UTTERANCES, "clean")),
            ],
            resampling_unit: "name",
        }
    }

    fn check(&self, grid: &Grid) -> Result<()> {
        let mut settings_of = HashMap::new();
        for configuration in &grid.configurations {
            let mut recipe = grid.recipe(configuration, 1, Phases::Whole)?;
            let (data, _, feeds) = settings(&mut recipe)
                .map_err(|error| grid.configuration_error(configuration, &error))?;
            check_phases(grid, configuration, &recipe, &feeds)?;
            settings_of.insert(configuration.name.as_str(), (steps(&recipe), data, feeds));
        }
        let (main_steps, main_data, _) = &settings_of[grid.main.as_str()];
        for configuration in &grid.configurations {
            let (steps, data, _) = &settings_of[configuration.name.as_str()];
            let reason = if steps != main_steps {
                format!(
                    "trains for {}, the main configuration for {}; set the same number of steps \
                     for all configurations",
                    steps_text(*steps),
                    steps_text(*main_steps)
                )
            } else if let Some(key) = test_difference(main_data, data) {
                format!(
                    "`data.{key}` differs from the main configuration; all configurations need the \
                     same test"
                )
            } else {
                continue;
            };
            return Err(grid.configuration_error(configuration, &reason));
        }
        for claim in &grid.claims {
            let error = |reason: &str| grid.claim_error(claim, reason);
            for system in claim.systems() {
                let query = claim.query(system, self).map_err(|reason| error(&reason))?;
                if query.metric != WER {
                    query.check_system(&[]).map_err(|reason| error(&reason))?;
                }
                let name = ClaimSettings::configuration_of(system);
                let Some((_, data, feeds)) = settings_of.get(name) else { continue };
                if let Some(reason) = missing_result(&query, data, feeds) {
                    return Err(error(&format!("configuration `{name}` {reason}")));
                }
            }
        }
        Ok(())
    }

    /// Removes settings about frames, which the shared phases do not use, and reduces the test to
    /// one clip.
    fn shared_settings(&self, mut set: Vec<String>) -> Vec<String> {
        set.retain(|setting| !FRAME_SETTINGS.iter().any(|key| is_below(setting, key)));
        let minimal_test =
            ["data.frozen_baseline=false", "data.sweep_clips=0", "data.test_clips=1"];
        set.extend(minimal_test.map(str::to_owned));
        set
    }

    fn inherited_parameters(&self) -> &'static [&'static str] {
        &["adapters.**"]
    }

    fn weights_mismatch(
        &self,
        recipe: &mut Recipe,
        run: &Path,
        hashes: &mut Hashes,
    ) -> Result<Option<String>> {
        let (_, model, _) = complete_settings(recipe)?;
        let trained = AvformerRunConfig::read(run)?;
        let mut mismatch =
            |weights: &str, trained_sha256: &str, open: fn(&str) -> Result<String, InferError>| {
                if trained_sha256.is_empty() {
                    return Ok::<_, TrainError>(None);
                }
                if !hashes.contains_key(weights) {
                    hashes.insert(weights.to_owned(), open(weights)?);
                }
                let reason =
                    format!("has a finished run with different weights than {weights} has now");
                Ok((hashes.get(weights).is_none_or(|now| now != trained_sha256)).then_some(reason))
            };
        let encoder_sha256 =
            |weights: &str| Ok(Encoder::open(weights, &Compute::cpu())?.sha256().to_string());
        let asr_model =
            mismatch(&model.asr_model, &trained.asr_model_sha256, AsrModel::weights_sha256_of)?;
        let encoder =
            mismatch(&model.image_encoder, &trained.image_encoder_sha256, encoder_sha256)?;
        Ok(asr_model.or(encoder))
    }

    /// The words of the test that are correct only with the right frames.
    fn remark(&self, run: &Path) -> Result<Option<String>> {
        let test = AvformerSummary::read(run)?.test;
        let Some([rescued, lost]) = test.rescued else { return Ok(None) };
        let words: Vec<String> = test.rescued_words.iter().map(ToString::to_string).collect();
        let words =
            if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) };
        let file = run.join(TEST).join("rescued.jsonl");
        Ok(Some(format!(
            "Words correct only with the right frames, seed 1: {rescued}; only without them: {lost}; \
             alignments in {}{words}.",
            file.display()
        )))
    }

    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>> {
        if query.metric == TRAINED_SHARE {
            let [trained, frozen] =
                AvformerSummary::read(folder)?.parameters.map(|size| size as f64);
            let statistic = Statistic::Ratio { numerator: trained, denominator: trained + frozen };
            return Ok(Ok(vec![Item::new(&TRAINED_SHARE, "", "parameters", None, statistic)]));
        }
        let in_study = TrainError::in_study(NAME, "reading the test items");
        if query.metric == SHOWN_NAME_IN_TEXT {
            let file = folder.join(TEST).join(SHOWN_NAME_ITEMS);
            if !file.is_file() {
                return Ok(
                    Err("undefined: wrong frames were not shown on clean speech".to_owned()),
                );
            }
            return Ok(Ok(Items::read(&file).map_err(in_study)?.items));
        }
        let utterances =
            query.filter(UTTERANCES).map_or(DEFAULT_UTTERANCES.to_vec(), |set| vec![set]);
        let systems =
            query.system.as_deref().map_or(DEFAULT_SYSTEMS.to_vec(), |system| vec![system]);
        let files = utterances.iter().flat_map(|set| {
            systems.iter().map(|system| folder.join(TEST).join(items_file(set, system)))
        });
        let files: Vec<PathBuf> = files.collect();
        let Some(file) = files.iter().find(|file| file.is_file()) else {
            let systems = systems.join(", ");
            return Ok(Err(format!(
                "undefined: {systems} on {} was not measured",
                utterances.join(", ")
            )));
        };
        Ok(Ok(Items::read(file).map_err(in_study)?.items))
    }
}

/// Checks that shared phases show no frames. Also checks that no configuration replaces all phases,
/// which would override a `--set` of a phase.
fn check_phases(
    grid: &Grid,
    configuration: &Configuration,
    recipe: &Recipe,
    feeds: &[AvformerFeed],
) -> Result<()> {
    for (phase, feed) in recipe.phases.iter().zip(feeds) {
        if feed.frames && grid.is_shared(&phase.name) {
            let reason = format!(
                "shows `frames` in phase `{}`, which is shared: configurations share only \
                 adapters; remove it from `shared`",
                phase.name
            );
            return Err(grid.configuration_error(configuration, &reason));
        }
    }
    let replaces_phases = configuration
        .set
        .iter()
        .any(|setting| is_below(setting, "phase") && !setting.starts_with("phase."));
    if let Some(setting) =
        grid.added_settings.iter().find(|set| replaces_phases && is_below(set, "phase"))
    {
        let reason = format!(
            "replaces all phases, so `{setting}` has no effect; edit the grid file instead"
        );
        return Err(grid.configuration_error(configuration, &reason));
    }
    Ok(())
}

/// The number of steps of all phases; `None` if a phase counts epochs.
fn steps(recipe: &Recipe) -> Option<u64> {
    recipe.phases.iter().map(|phase| phase.steps).sum()
}

/// A number of steps as text, for errors.
fn steps_text(steps: Option<u64>) -> String {
    steps.map_or("a number of epochs".to_owned(), |steps| counted(steps, "step"))
}

/// The first key of `[data]` in which the tests of two configurations differ; `None` if the tests
/// are equal.
fn test_difference(main: &AvformerData, other: &AvformerData) -> Option<&'static str> {
    let same = [
        ("test", main.test == other.test),
        ("names", main.names == other.names),
        ("world_seed", main.world_seed == other.world_seed),
        ("test_clips", main.test_clips == other.test_clips),
        ("test_noise", main.test_noise == other.test_noise),
        ("test_snr_db", main.test_snr_db == other.test_snr_db),
        ("general_speech", main.general_speech == other.general_speech),
    ];
    same.iter().find(|(_, is_same)| !is_same).map(|(key, _)| *key)
}

/// Whether a setting has this key, or a key below it: `phase` includes `phase.adapters.steps`.
fn is_below(setting: &str, key: &str) -> bool {
    let path = setting.split('=').next().unwrap_or_default().trim();
    path.strip_prefix(key).is_some_and(|below| below.is_empty() || below.starts_with('.'))
}

/// The reason why a configuration has no result for a claim's query; `None` if it has one.
fn missing_result(
    query: &MetricQuery,
    data: &AvformerData,
    feeds: &[AvformerFeed],
) -> Option<&'static str> {
    if query.metric != WER {
        return None;
    }
    let has_frames = feeds.iter().any(|feed| feed.frames);
    let (utterances, system) = (query.filter(UTTERANCES), query.system.as_deref());
    match (utterances, system) {
        (Some("noisy" | "clean"), _) if !data.is_world() => {
            Some("uses clips from files: its utterances are `test`")
        }
        (Some("test"), _) if data.is_world() => {
            Some("uses the embedded world: its utterances are `noisy` and `clean`")
        }
        (Some("general_speech"), _) if data.general_speech.is_empty() => {
            Some("has no `general_speech`: set data.general_speech=MANIFEST")
        }
        (_, Some("frozen")) if !data.frozen_baseline => {
            Some("does not test the frozen model: set data.frozen_baseline=true")
        }
        (_, Some("right_frames" | "wrong_frames" | "zero_frames")) if !has_frames => {
            Some("has no phase that shows `frames`")
        }
        (Some("general_speech"), Some("right_frames" | "wrong_frames" | "zero_frames")) => {
            Some("tests `general_speech` without frames")
        }
        (Some("general_speech"), _) => None,
        (_, Some(system)) if has_frames && !data.tests(system) => {
            Some("does not test these frames: set data.test_frames")
        }
        (Some("clean"), Some("zero_frames")) => Some("does not test clean speech with zeros"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::RecipeOptions;
    use crate::studies::ALL;

    const RECIPE: &str = include_str!("../../../recipes/avformer/tiny.toml");
    const GRID: &str = r#"
recipe = "tiny.toml"
main = "main"
shared = ["adapters"]
set = ["model.asr_model=r", "model.image_encoder=e", "data.frozen_baseline=false"]

[[configuration]]
name = "main"
set = ["data.frozen_baseline=true"]

[[configuration]]
name = "two"
set = ["data.frames=2", 'data.test_frames=["right"]', "model.projection.init_std=0.1"]

[[configuration]]
name = "audio-only"
set = ["phase.projection.steps=0", "phase.adapters.steps=2400"]

[[claim]]
id = "a"
claim = "frames help"
better = "main"
worse = "main:no_frames"

[[claim]]
id = "b"
claim = "frames help more than adapters"
better = "main:right_frames"
worse = "audio-only"
utterances = "clean"
"#;

    fn grid(text: &str) -> Result<Grid> {
        let (file, recipe) = (Path::new("grid.toml"), Path::new("tiny.toml"));
        Grid::parse(text, file, RECIPE, recipe, ALL)
    }

    #[test]
    fn every_frame_setting_is_a_recipe_key() {
        // The last three settings are written to the recipe only if they differ from the default.
        let set = [
            "model.asr_model=r",
            "model.image_encoder=e",
            "data.cache=c",
            "data.view_size=64",
            r#"data.test_frames=["right"]"#,
        ];
        let options = RecipeOptions { tiny: false, set: set.map(str::to_owned).to_vec() };
        let mut recipe = Recipe::parse(RECIPE, Path::new("tiny.toml"), &options).expect("a recipe");
        complete_settings(&mut recipe).expect("complete");
        let resolved: toml::Table = recipe.resolved().expect("resolved").parse().expect("TOML");
        for key in FRAME_SETTINGS {
            let (table, name) = key.split_once('.').expect("a table and a name");
            assert!(resolved[table].get(name).is_some(), "{key}");
        }
    }

    #[test]
    fn invalid_configurations_and_claims_are_refused_with_their_line() {
        let built_in = include_str!("../../../recipes/avformer/ablations.toml");
        assert!(grid(built_in).expect("the built-in grid").claims.len() > 20);
        for (old, new, expected) in [
            ("main:no_frames", "audio-only:wrong_frames", "claim `a`: configuration `audio-only`"),
            ("main:no_frames", "two:frozen", "claim `a`: configuration `two` does not test"),
            ("main:no_frames", "two:no_frames", "configuration `two` does not test these frames"),
            (
                "utterances",
                "metric = \"recall_at_1\"\nutterances",
                "grid.toml:25: `metric`: `recall_at_1` is unknown; choose from wer, shown_name_in_text",
            ),
            (
                "utterances",
                "metric = \"shown_name_in_text\"\nutterances",
                "claim `b`: `shown_name_in_text` has no systems; remove `:right_frames`",
            ),
            ("data.frames=2", "data.test_clips=2", "configuration `two`: `data.test_clips`"),
            ("data.frames=2", "data.names=0", "grid.toml:11: configuration `two`: "),
            ("\"clean\"", "\"general_speech\"", "`audio-only` has no `general_speech`"),
            ("\"clean\"", "\"test\"", "uses the embedded world"),
            ("adapters.steps=2400", "adapters.steps=30", "`audio-only`: trains for 30 steps"),
            ("[\"adapters\"]", "[\"projection\"]", "configuration `main`: shows `frames` in phase"),
            ("data.frames=2\"", "study=\\\"clip\\\"\"", "is not `avformer`"),
        ] {
            assert!(GRID.contains(old), "{old}");
            let error = grid(&GRID.replacen(old, new, 1)).expect_err(new).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
