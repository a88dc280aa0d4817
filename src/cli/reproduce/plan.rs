//! The grids whose claims `engram reproduce` tests.

use super::Scale;
use crate::cli::bundled::{self, BundledModel};

/// A built-in grid, at some scales.
pub(super) struct Part {
    /// The name of the grid.
    pub(super) grid: &'static str,
    /// The folder of its runs. The part before a hyphen is the study. A grid of AVFormer at scale
    /// laptop gets the name of the frozen ASR model as a suffix.
    pub(super) folder: &'static str,
    pub(super) scales: &'static [Scale],
    /// Whether it runs only with `--ablations` or `--claim`.
    pub(super) is_further: bool,
    /// The configurations to train, unless `--claim` selects them; empty for all.
    pub(super) configurations: &'static [&'static str],
    /// The bundled models that it starts from.
    pub(super) starts_from: &'static [&'static BundledModel],
    /// The bundled models that configurations train again.
    pub(super) trains: &'static [(&'static BundledModel, &'static str)],
    /// A note for the report; may be empty.
    pub(super) note: &'static str,
}

const ALL: &[Scale] = &[Scale::Smoke, Scale::Laptop, Scale::Full];
const SMOKE: &[Scale] = &[Scale::Smoke];
const LARGER: &[Scale] = &[Scale::Laptop, Scale::Full];

const PART: Part = Part {
    grid: "",
    folder: "",
    scales: ALL,
    is_further: false,
    configurations: &[],
    starts_from: &[],
    trains: &[],
    note: "",
};

/// The grid of AVFormer at scales laptop and full, which is trained over each frozen ASR model.
pub(super) const AVFORMER: &str = "avformer/ablations";

/// All parts, in the order of the report.
pub(super) static PARTS: [Part; 11] = [
    Part { grid: "patent/claims", folder: "patent", trains: &[(&bundled::PATENT, "main")], ..PART },
    Part {
        grid: "reveal/smoke",
        folder: "reveal-smoke",
        scales: SMOKE,
        starts_from: &[&bundled::REVEAL, &bundled::FROZEN_RETRIEVER],
        note: "REVEAL: the bundled models are evaluated again (trained by `engram reproduce --study \
               reveal --scale laptop`, seed 1); reveal.learns_from_scratch trains a small model from \
               random weights.",
        ..PART
    },
    Part { grid: "reveal/scratch", folder: "reveal-scratch", scales: SMOKE, ..PART },
    Part {
        grid: "reveal/claims",
        folder: "reveal-laptop",
        scales: LARGER,
        trains: &[(&bundled::REVEAL, "main"), (&bundled::FROZEN_RETRIEVER, "frozen-retriever")],
        ..PART
    },
    Part {
        grid: "reveal/stamps-smoke",
        folder: "stamps-smoke",
        scales: SMOKE,
        starts_from: &[&bundled::STAMPS],
        note: "Photographs: the bundled model is evaluated again (trained by the recipe \
               reveal/stamps, seed 1).",
        ..PART
    },
    Part {
        grid: "reveal/stamps-claims",
        folder: "stamps",
        scales: LARGER,
        starts_from: &[&bundled::STAMPS],
        trains: &[(&bundled::STAMPS, "main")],
        ..PART
    },
    Part { grid: "reveal/ablations", folder: "reveal-ablations", is_further: true, ..PART },
    Part {
        grid: "avformer/smoke",
        folder: "avformer-smoke",
        scales: SMOKE,
        starts_from: &[
            &bundled::CLIP,
            &bundled::CONFORMER,
            &bundled::AVFORMER,
            &bundled::AUDIO_ONLY,
            &bundled::JOINT,
        ],
        note: "AVFormer: the bundled models are evaluated again (their training is in \
               train/bundled/README.md); avformer.learns_from_scratch trains adapters from random \
               weights.",
        ..PART
    },
    Part {
        grid: "avformer/scratch",
        folder: "avformer-scratch",
        scales: SMOKE,
        starts_from: &[&bundled::CLIP, &bundled::CONFORMER],
        ..PART
    },
    Part {
        grid: AVFORMER,
        folder: "avformer",
        scales: LARGER,
        configurations: &["main", "audio-only", "joint"],
        trains: &[
            (&bundled::AVFORMER, "main"),
            (&bundled::AUDIO_ONLY, "audio-only"),
            (&bundled::JOINT, "joint"),
        ],
        ..PART
    },
    Part { grid: AVFORMER, folder: "avformer", scales: LARGER, is_further: true, ..PART },
];

/// A run that trains a frozen model of AVFormer.
pub(super) struct FrozenModel {
    pub(super) recipe: &'static str,
    /// The folder of the run.
    pub(super) folder: &'static str,
    /// Settings. `{out}` stands for the folder of all runs.
    pub(super) set: &'static str,
    /// The bundled model that it trains again.
    pub(super) model: Option<&'static BundledModel>,
}

/// The frozen models of AVFormer at scales laptop and full: the image encoder (on images alone),
/// and the ASR model, whose encoder starts from a CTC model without self-supervised training.
pub(super) static FROZEN_MODELS: [FrozenModel; 3] = [
    FrozenModel {
        recipe: "clip/tiny",
        folder: "avformer-clip",
        set: "model.text_encoder=",
        model: Some(&bundled::CLIP),
    },
    FrozenModel {
        recipe: "speech/tiny",
        folder: "avformer-ctc",
        set: "phase.best_rq.steps=0",
        model: None,
    },
    FrozenModel {
        recipe: "speech/attention",
        folder: "avformer-speech",
        set: "start.run={out}/avformer-ctc",
        model: Some(&bundled::CONFORMER),
    },
];

impl Part {
    pub(super) fn study(&self) -> &'static str {
        self.folder.split('-').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use engram_train::grid::Grid;
    use engram_train::studies::ALL;
    use engram_train::{Recipe, RecipeOptions};

    use super::*;

    #[test]
    fn all_grids_and_recipes_exist_and_smoke_claims_are_those_of_larger_scales() {
        let grid = |name: &str| Grid::built_in(name, ALL).expect("a built-in grid");
        for part in &PARTS {
            let configurations = grid(part.grid).select(part.configurations);
            for name in part.trains.iter().map(|(_, name)| name).chain(part.configurations) {
                let names = configurations.configurations.iter().map(|one| &one.name);
                assert!(part.configurations.is_empty() || names.clone().any(|one| one == name));
            }
        }
        let whole = grid(AVFORMER);
        for claim in &grid("avformer/smoke").claims {
            assert!(whole.claims.iter().any(|other| other.id == claim.id), "{}", claim.id);
        }
        let set = |model: &FrozenModel| vec![model.set.replace("{out}", "runs")];
        for model in &FROZEN_MODELS {
            let options = RecipeOptions { tiny: false, set: set(model) };
            assert!(Recipe::built_in(model.recipe, &options).is_ok(), "{}", model.recipe);
        }
    }
}
