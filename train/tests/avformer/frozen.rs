//! Frozen models with random weights, and runs on them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::Device;
use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_models::conformer::{ConformerAsrModel, ConformerConfig};
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::whisper::{Whisper, WhisperConfig};
use engram_train::studies::avformer::run::{AvformerSummary, train_avformer};
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::speech::decoder::{
    AttentionSettings, DecoderSettings, TransducerSettings,
};
use engram_train::{Recipe, RunOptions, TrainError};
use serde_json::{Value, json};

use crate::clip;
use crate::runs::{self, with_causes};

pub const RECIPE: &str = r#"
study = "avformer"
seed = 1

[data]
names = 3
clips = 12
validation_clips = 3
test_clips = 6
views = 2
view_size = 16
frames = 2
sweep_snr_db = [0.0]
sweep_clips = 3

[model]
adapters = { bottleneck = 4 }

[batch]
examples = 4

[optimiser]
learning_rate = 1e-2

[evaluation]
every_epochs = 0
keep_best = false

[checkpoint]
every_steps = 3

[log]
every_steps = 1
tensorboard = false

[gradient_check]
allow = ["adapters.*.norm.*", "adapters.*.down.*"]

[[phase]]
name = "adapters"
steps = 5
feed = { frames = false }
group = [{ match = "projection.**", rate = 0.0 }]

[[phase]]
name = "projection"
steps = 5
feed = { frames = true, masked = 0.5, mismatched = 0.2 }
group = [{ match = "adapters.**", rate = 0.0 }]

[check]
files = ["model.safetensors"]
"#;

/// A small image encoder.
const CLIP: [&str; 7] = [
    "data.images=20",
    "data.test_views=1",
    "model.hidden_size=16",
    "model.intermediate_size=16",
    "batch.examples=20",
    "evaluation.every_epochs=1",
    "phase.clip.epochs=1",
];

/// Frozen models in a temporary folder.
pub struct Frozen {
    pub folder: tempfile::TempDir,
}

impl Frozen {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        train_image_encoder(&folder.path().join("clip"), 1);
        write_whisper(&folder.path().join("whisper"), 7);
        write_conformer(&folder.path().join("conformer"), &DecoderSettings::default());
        let transducer = TransducerSettings { width: 16, joint_width: 16, ..Default::default() };
        let transducer = DecoderSettings::Transducer(transducer);
        write_conformer(&folder.path().join("transducer"), &transducer);
        let attention = DecoderSettings::Attention(AttentionSettings::default());
        write_conformer(&folder.path().join("attention"), &attention);
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a tone of changing loudness, with `samples` samples at 16 kHz.
    pub fn write_audio(&self, name: &str, samples: usize) {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 16_000,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut file = hound::WavWriter::create(self.path(name), spec).unwrap();
        for i in 0..samples {
            file.write_sample(((i as f32 * 0.2).sin() * (i % 4_000) as f32) as i16).unwrap();
        }
        file.finalize().unwrap();
    }

    /// A path in the folder as text.
    pub fn path_text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The recipe with an ASR model of the folder, its image encoder and further settings.
    pub fn recipe(&self, asr_model: &str, set: &[impl ToString]) -> Result<Recipe, TrainError> {
        let mut settings = vec![
            format!("model.asr_model={}", self.path_text(asr_model)),
            format!("model.image_encoder={}", self.path_text("clip")),
        ];
        settings.extend(set.iter().map(ToString::to_string));
        runs::recipe(RECIPE, &settings)
    }

    /// Trains and tests a run.
    pub fn try_run(
        &self,
        run: &str,
        asr_model: &str,
        set: &[&str],
        options: RunOptions,
    ) -> Result<AvformerSummary, TrainError> {
        let mut recipe = self.recipe(asr_model, set)?;
        train_avformer(&mut recipe, &RunOptions { run: self.path(run), quiet: true, ..options })
    }

    pub fn run(&self, run: &str, asr_model: &str, set: &[&str]) -> AvformerSummary {
        self.try_run(run, asr_model, set, RunOptions::default()).unwrap()
    }

    /// Checks that a run with these settings fails with an error that contains all of `expected`.
    pub fn expect_refusal(&self, set: &[&str], expected: &[&str]) {
        let error = self.try_run("refused", "whisper", set, RunOptions::default()).unwrap_err();
        let message = with_causes(&error);
        for expected in expected {
            assert!(message.contains(expected), "{message}");
        }
    }
}

/// Trains a small image encoder.
pub fn train_image_encoder(folder: &Path, seed: u64) {
    let seed = format!("seed={seed}");
    let mut recipe = runs::recipe(clip::RECIPE, &[&CLIP[..], &[&seed]].concat()).unwrap();
    train_clip(&mut recipe, &runs::quiet(folder)).unwrap();
}

fn write_model(folder: &Path, config: &Value, tokenizer: &str, parameters: &Parameters) {
    std::fs::create_dir(folder).unwrap();
    let tensors: HashMap<String, _> = parameters
        .iter()
        .map(|parameter| (parameter.name().to_string(), parameter.tensor().contiguous().unwrap()))
        .collect();
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
}

/// Writes a small Whisper model whose tokens are letters.
pub fn write_whisper(folder: &Path, seed: u64) {
    let mut tokenizer: Value =
        serde_json::from_str(&SpeechTokenizer::letters().unwrap().json().unwrap()).unwrap();
    let special = |(id, name): (u32, &str)| {
        json!({"id": id, "content": name, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let names = [(28, "<|endoftext|>"), (29, "<|startoftranscript|>"), (30, "<|notimestamps|>")];
    tokenizer["added_tokens"] = names.map(special).to_vec().into();
    for (id, name) in names {
        tokenizer["model"]["vocab"][name] = id.into();
    }
    let config = json!({
        "model_type": "whisper", "vocab_size": 34, "num_mel_bins": 80, "d_model": 16,
        "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24,
        "decoder_start_token_id": 29, "eos_token_id": 28, "max_source_positions": 1500,
        "max_target_positions": 60, "init_std": 0.5,
    });
    let path = folder.with_extension("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let builder = ParameterBuilder::on_cpu(seed);
    Whisper::new(&WhisperConfig::read(&path).unwrap(), &builder).unwrap();
    write_model(folder, &config, &tokenizer.to_string(), &builder.finish().unwrap());
}

fn write_conformer(folder: &Path, decoder: &DecoderSettings) {
    let encoder = ConformerConfig { num_hidden_layers: 1, ..ConformerConfig::tiny() };
    let tokenizer = SpeechTokenizer::letters().unwrap();
    let config = decoder.config(&encoder, tokenizer.vocabulary_size());
    let builder = ParameterBuilder::on_cpu(3);
    ConformerAsrModel::new(&config, &builder).unwrap();
    let json = config.to_json().unwrap();
    write_model(folder, &json, &tokenizer.json().unwrap(), &builder.finish().unwrap());
}

/// The lines of a file.
pub fn lines(path: PathBuf) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_string).collect()
}

/// The values of a parameter of a finished run.
pub fn tensor(run: &Path, name: &str) -> Vec<f32> {
    let file = run.join("model.safetensors");
    let tensors = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    tensors[name].flatten_all().unwrap().to_vec1().unwrap()
}
