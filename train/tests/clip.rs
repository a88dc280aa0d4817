//! The CLIP study: training, resuming, and the encoder folder.

use engram_models::compute::Compute;
use std::path::Path;

use engram_data::image::DecodedImage;
use engram_data::world::images::images;
use engram_data::world::view_augmentation;
use engram_infer::encode::{Encoder, Item, Modalities};
use engram_models::weights::Weights;
use engram_train::studies::clip::run::{ClipSummary, train_clip};
use engram_train::{RunOptions, TrainError};
use image::RgbImage;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::runs::{assert_same_bytes, crash_at_checkpoint, recipe, resumed};

pub const RECIPE: &str = r#"
study = "clip"
seed = 1

[data]
images = 40
test_views = 3

[model]
image_size = 16
patch_size = 8
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2

[batch]
examples = 20

[optimiser]
learning_rate = 5e-3

[checkpoint]
every_steps = 4

[evaluation]
every_epochs = 20

[log]
every_steps = 1
tensorboard = false

[[phase]]
name = "clip"
epochs = 60

[check]
files = ["model.safetensors"]
"#;

fn try_run(folder: &Path, set: &[&str], options: RunOptions) -> Result<ClipSummary, TrainError> {
    let mut recipe = recipe(RECIPE, set)?;
    train_clip(&mut recipe, &RunOptions { run: folder.into(), quiet: true, ..options })
}

/// An augmented view of an image of the embedded world.
fn view() -> RgbImage {
    let images = images().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    view_augmentation(30).apply(&images[100].image, &mut rng).unwrap()
}

#[test]
fn names_are_learnt_and_the_run_is_an_image_encoder() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let summary = try_run(&run, &[], RunOptions::default()).unwrap();
    assert_eq!(summary.check_failures, Vec::<String>::new());
    assert_eq!((summary.steps, summary.names, summary.accuracy.n), (120, 40, 120));
    // Chance is 1 in 40.
    assert!(summary.accuracy.value > 0.15, "{:?}", summary.accuracy);
    assert!(summary.accuracy.ci95.is_some());
    let spoken = summary.spoken_accuracy.map(|measure| measure.n);
    assert_eq!(spoken, Some(3 * summary.spoken_names).filter(|n| *n > 0));

    let encoder = Encoder::open(run.to_str().unwrap(), &Compute::cpu()).unwrap();
    assert_eq!(
        (encoder.width(), encoder.modalities()),
        (384, Modalities { text: false, images: true })
    );
    let view = view();
    let file = folder.path().join("view.png");
    view.save(&file).unwrap();
    let (width, height) = view.dimensions();
    let in_memory = DecodedImage::from_pixels(width, height, view.into_raw()).unwrap();
    let prepared = [
        encoder.prepare(Item { text: None, image: Some(&file) }).unwrap(),
        encoder.prepare_image(&in_memory, Path::new("a view")).unwrap(),
    ];
    let vectors = encoder.encode(&[&prepared[0], &prepared[1]]).unwrap();
    let (of_file, of_memory) = vectors.split_at(384);
    assert_eq!(of_file, of_memory);
    let squared_norm: f32 = of_file.iter().map(|value| value * value).sum();
    assert!((squared_norm - 1.0).abs() < 1e-5, "{squared_norm}");

    // The temperature is not part of the published model.
    let weights = Weights::open(&run.join("model.safetensors")).unwrap();
    let get = |name: &str| {
        weights.get(name, &[], candle_core::DType::F32, &candle_core::Device::Cpu).map(drop)
    };
    assert!(get("logit_scale").unwrap_err().to_string().contains("logit_scale"));
}

/// Recomputation does not change the bytes of a run, and a run can be resumed with another value.
#[test]
fn recomputation_gives_the_same_bytes_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, crashed) = (folder.path().join("whole"), folder.path().join("crashed"));
    let set = ["phase.clip.epochs=3", "model.num_hidden_layers=3"];
    try_run(&whole, &set, RunOptions::default()).unwrap();
    let with = |recompute| [set[0], set[1], recompute];
    let block = with("compute.recompute=\"block\"");
    crash_at_checkpoint(&crashed, 4, |options| try_run(&crashed, &block, options));
    try_run(&crashed, &with("compute.recompute=\"selective\""), resumed()).unwrap();
    assert_same_bytes(&whole, &crashed, &["model.safetensors", "summary.json", "metrics.jsonl"]);
}

#[test]
fn a_crashed_run_resumes_to_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, crashed) = (folder.path().join("whole"), folder.path().join("crashed"));
    let set = ["phase.clip.epochs=5"];
    try_run(&whole, &set, RunOptions::default()).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        crash_at_checkpoint(&crashed, 8, |options| try_run(&crashed, &set, options));
        // The first call finishes the run. The second call finds a finished run.
        for _ in 0..2 {
            try_run(&crashed, &set, resumed()).unwrap();
        }
    });
    let files = [
        "model.safetensors",
        "config.json",
        "preprocessor_config.json",
        "summary.json",
        "metrics.jsonl",
        "inputs.json",
    ];
    assert_same_bytes(&whole, &crashed, &files);
}

#[test]
fn invalid_settings_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (set, expected) in [
        ("data.picture=3", "data.picture"),
        ("data.images=1882", "data.images"),
        ("data.test_views=0", "data.test_views"),
        ("model.width=3", "model.width"),
        ("model.patch_size=5", "model.patch_size"),
        ("model.image_size=0", "model.patch_size"),
        ("model.num_attention_heads=5", "model.num_attention_heads"),
        ("model.hidden_size=0", "model.num_attention_heads"),
        ("model.logit_scale_init_value=5.0", "model.logit_scale_init_value"),
        ("model.text_encoder=\"/nowhere\"", "model.text_encoder"),
        ("batch.examples=41", "batch.examples"),
        ("batch.examples=1", "batch.examples"),
        ("batch.tokens=100", "batch.tokens"),
        ("phase.clip.feed={ views = 1 }", "views"),
        ("embedding_tables.match=[\"**\"]", "`embedding_tables` is not supported by this study"),
    ] {
        let error = try_run(&folder.path().join("run"), &[set], RunOptions::default());
        let error = error.expect_err(set);
        assert!(matches!(error, TrainError::Recipe { .. }), "{set}: {error}");
        assert!(error.to_string().contains(expected), "{set}: {error}");
    }
}
