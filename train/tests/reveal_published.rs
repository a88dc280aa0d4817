//! The REVEAL study with published sizes and weights.

use std::fs;
use std::path::Path;

use engram_data::text_to_text::T5Tokenizer;
use engram_models::weights::Weights;
use engram_train::studies::reveal::run::{RevealSummary, train_reveal};
use engram_train::studies::reveal::settings::RevealData;
use engram_train::{Recipe, RecipeOptions};
use serde_json::{Value, json};

use crate::files::{RECIPE, data_of, write};
use crate::runs::{quiet, recipe};

#[test]
fn the_recipes_of_published_sizes_have_those_sizes() {
    use engram_models::params::ParameterBuilder;
    use engram_models::reveal::{Reveal, RevealConfig};
    use engram_train::studies::reveal::published::Published;
    use engram_train::studies::reveal::settings::{RevealFeed, RevealMemory, RevealModel};
    use engram_train::studies::reveal::sizes::config_of;
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/reveal");
    for (name, published) in [("base", RevealConfig::base(1)), ("large", RevealConfig::large(1))] {
        let options = RecipeOptions::default();
        let mut recipe = Recipe::load(&recipes.join(format!("{name}.toml")), &options).unwrap();
        let model: RevealModel = recipe.model().unwrap();
        let (data, memory): (RevealData, RevealMemory) =
            (recipe.data().unwrap(), recipe.memory().unwrap());
        assert_eq!(
            (model.first_invalid_key(), data.first_invalid_key(), memory.first_invalid_key()),
            (None, None, None)
        );
        for feed in recipe.feed::<RevealFeed>().unwrap() {
            assert_eq!(feed.first_invalid_key(), None);
        }
        let config = config_of(&model, &Published::default());
        assert_eq!(config, published, "{name}");
        // Each pattern of each phase matches parameters.
        for phase in &recipe.phases {
            let builder = ParameterBuilder::shapes_only();
            Reveal::new(&config, &builder).unwrap();
            let parameters = builder.finish().unwrap();
            for group in recipe.groups(phase) {
                let matches = |name: &str| {
                    engram_models::params::path_matches(group.pattern.as_bytes(), name.as_bytes())
                };
                let has_match = parameters.iter().any(|parameter| matches(parameter.name()));
                assert!(has_match, "{name}, {}: {}", phase.name, group.pattern);
            }
        }
    }
}

/// Writes folders of a tiny T5 and a tiny ViT in the published form.
fn published_folders(folder: &Path) {
    use engram_models::params::ParameterBuilder;
    use engram_models::t5::{T5, T5Config};
    use engram_models::vit::{ViT, ViTConfig};
    let tokenizer = T5Tokenizer::train((0..9).map(|i| format!("number {i} one two")), 60).unwrap();
    let t5 = T5Config {
        vocab_size: tokenizer.vocabulary_size() + 5,
        d_model: 8,
        d_kv: 4,
        d_ff: 12,
        num_layers: 3,
        num_decoder_layers: Some(1),
        num_heads: 2,
        ..T5Config::small()
    };
    let vit = ViTConfig {
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        image_size: 8,
        patch_size: 4,
        ..ViTConfig::base_16()
    };
    let builders = [ParameterBuilder::on_cpu(1), ParameterBuilder::on_cpu(2)];
    T5::new(&t5, &builders[0]).unwrap();
    ViT::new(&vit, &builders[1]).unwrap();
    let configs = [serde_json::to_value(&t5).unwrap(), serde_json::to_value(&vit).unwrap()];
    for ((kind, mut config), builder) in ["t5", "vit"].into_iter().zip(configs).zip(&builders) {
        let model_folder = folder.join(kind);
        fs::create_dir(&model_folder).unwrap();
        config["model_type"] = kind.into();
        // Published files lack this key.
        config.as_object_mut().unwrap().remove("class_token");
        write(&model_folder, "config.json", &config);
        let parameters = builder.finish().unwrap();
        let tensors = parameters.iter().map(|parameter| (parameter.name(), parameter.tensor()));
        engram_models::weights::save(&model_folder.join("model.safetensors"), tensors).unwrap();
    }
    fs::write(folder.join("t5/tokenizer.json"), tokenizer.json().unwrap()).unwrap();
    let processor = json!({"size": {"height": 8, "width": 8}, "resample": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]});
    write(&folder.join("vit"), "preprocessor_config.json", &processor);
}

/// Trains by the recipe above with a T5 and a ViT.
fn train_from(folder: &Path, t5: &str, vit: &str) -> Result<RevealSummary, String> {
    let set = [("data.path", ""), ("model.t5", t5), ("model.vit", vit)];
    let set = set.iter().map(|(key, name)| {
        if name.starts_with("hf:") {
            format!("{key}={name:?}")
        } else {
            format!("{key}={:?}", folder.join(name))
        }
    });
    let mut recipe = recipe(RECIPE, &set.collect::<Vec<_>>()).unwrap();
    train_reveal(&mut recipe, &quiet(&folder.join("run"))).map_err(|error| error.to_string())
}

#[test]
fn a_run_starts_from_folders_of_published_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    data_of(path);
    published_folders(path);
    let summary = train_from(path, "t5", "vit").unwrap();
    assert_eq!(summary.steps, 1);
    // There is no note about random weights.
    let [skipped, few_images] = &summary.notes[..] else { panic!("{:?}", summary.notes) };
    assert_eq!(skipped, "6 entries about held-out images skipped");
    assert!(few_images.starts_with("14 images to train on: "), "{few_images}");
    let run = path.join("run");
    let read = |path: &Path| fs::read(path).unwrap();
    let processor = "preprocessor_config.json";
    assert_eq!(read(&run.join(processor)), read(&path.join("vit").join(processor)));
    // The step is too small to change any value other than 0.
    let weights = Weights::open(&run.join("model.safetensors")).unwrap();
    let values_of = |weights: &Weights, name: &str, shape: &[usize]| {
        let tensor = weights.get(name, shape, candle_core::DType::F32, &candle_core::Device::Cpu);
        tensor.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let (t5, vit) = (path.join("t5/model.safetensors"), path.join("vit/model.safetensors"));
    let (t5, vit) = (Weights::open(&t5).unwrap(), Weights::open(&vit).unwrap());
    let name = "encoder.block.2.layer.0.SelfAttention.q.weight";
    assert_eq!(values_of(&weights, name, &[8, 8]), values_of(&t5, name, &[8, 8]));
    let name = "encoder.layer.1.intermediate.dense.weight";
    let run_name = format!("image_encoder.{name}");
    assert_eq!(values_of(&weights, &run_name, &[12, 8]), values_of(&vit, name, &[12, 8]));
    let model: Value = serde_json::from_slice(&read(&run.join("model.json"))).unwrap();
    assert_eq!(model["frozen_image_layers"], 1);
    let tokenizer = |path: &Path| -> Value { serde_json::from_slice(&read(path)).unwrap() };
    assert_eq!(
        tokenizer(&run.join("tokenizer.json"))["model"],
        tokenizer(&path.join("t5/tokenizer.json"))["model"]
    );

    // A missing file, or a file of another kind, is named.
    fs::remove_dir_all(&run).unwrap();
    for (t5, vit, expected) in [
        ("vit", "vit", "vit/config.json"),
        ("t5", "t5", "t5/config.json"),
        ("nowhere", "vit", "nowhere"),
        ("hf://a/b/c", "vit", "does not name a model"),
    ] {
        let message = train_from(path, t5, vit).unwrap_err();
        assert!(message.contains(expected), "{t5}, {vit}: {message}");
    }
    fs::remove_file(path.join("t5/tokenizer.json")).unwrap();
    let message = train_from(path, "t5", "vit").unwrap_err();
    assert!(message.contains("tokenizer.json"), "{message}");
}
