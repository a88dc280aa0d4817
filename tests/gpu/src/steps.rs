//! Times of training steps at published sizes: forward pass, backward pass, clipping and AdamW.
//! `peer.py` measures the same steps with PyTorch.

use std::time::Instant;

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use engram_models::adapter::Adapters;
use engram_models::compute::Compute;
use engram_models::gradients::Gradients;
use engram_models::kernels::{Mode, begin_profile, end_profile};
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::reveal::{Reveal, RevealConfig, RevealInput};
use engram_models::similarity::{CrossEncoder, CrossEncoderConfig, PairLoss, Pooling, ScoredSpans};
use engram_models::text_encoder::TextEncoderConfig;
use engram_models::whisper::{Whisper, WhisperConfig};
use engram_train::optimiser::{Optimiser, RuleSet, StepSize};

/// The number of untimed and of timed steps.
const STEPS: [usize; 2] = [3, 10];

/// The step of one model at one size.
pub struct StepTime {
    /// The model and its batch.
    pub name: &'static str,
    /// The median time of a step in milliseconds.
    pub step_ms: f64,
    /// The median time of the forward pass and the backward pass alone, in milliseconds.
    pub passes_ms: f64,
    /// The same without waiting for the GPU: the time in which the host issues the step.
    pub host_ms: f64,
    /// The time of clipping and AdamW in milliseconds.
    pub update_ms: f64,
    /// The largest number of bytes that tensors used on the GPU; `None` on the CPU.
    pub peak_bytes: Option<u64>,
    /// The kernels and passes of a step, with the number of calls and the seconds.
    pub profile: Vec<(&'static str, &'static str, usize, f64)>,
}

/// Computes a loss in training mode; the argument is the dropout seed.
type Loss = Box<dyn Fn(u64) -> Result<Tensor>>;

/// Builds a model, and returns the loss of one batch.
type Build = fn(&ParameterBuilder) -> Result<Loss>;

const MODELS: [(&str, Build); 4] = [
    ("MiniLM, 32 × 128 tokens", minilm),
    // 6 of the 24 blocks of DeBERTa-v3-large: random weights take long to draw.
    ("DeBERTa-v3-large, 6 blocks, 8 × 128", deberta),
    ("REVEAL base, 8 texts and images", reveal),
    ("Whisper large-v3 encoder, 1 × 30 s", whisper),
];

/// Measures the models whose names contain `filter`.
pub fn measure(compute: &Compute, filter: &str, report: impl Fn(StepTime)) -> Result<()> {
    for (name, build) in MODELS.iter().filter(|(name, _)| name.contains(filter)) {
        report(measure_one(name, *build, compute).with_context(|| name.to_string())?);
    }
    Ok(())
}

fn measure_one(name: &'static str, build: Build, compute: &Compute) -> Result<StepTime> {
    let builder = ParameterBuilder::new(1, Vec::new(), compute);
    let loss = build(&builder)?;
    let parameters = builder.finish()?;
    let mut trainer = Trainer::new(parameters);
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    reset_peak(&compute.device)?;
    for step in 0..STEPS.iter().sum::<usize>() {
        compute.device.synchronize()?;
        let start = Instant::now();
        let host = trainer.passes(&loss(step as u64)?)?;
        compute.device.synchronize()?;
        let passes = Instant::now();
        trainer.update()?;
        compute.device.synchronize()?;
        if step >= STEPS[0] {
            times[0].push(start.elapsed().as_secs_f64() * 1e3);
            times[1].push(passes.duration_since(start).as_secs_f64() * 1e3);
            times[2].push(host.duration_since(start).as_secs_f64() * 1e3);
        }
    }
    let [step_ms, passes_ms, host_ms] = times.map(median);
    let peak_bytes = peak(&compute.device)?;
    begin_profile();
    trainer.passes(&loss(0)?)?;
    let profile = end_profile();
    compute.device.synchronize()?;
    let start = Instant::now();
    trainer.update()?;
    compute.device.synchronize()?;
    let update_ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(StepTime { name, step_ms, passes_ms, host_ms, update_ms, peak_bytes, profile })
}

#[cfg(feature = "cuda")]
use engram_models::cuda::{peak_memory as peak, reset_peak_memory as reset_peak};

#[cfg(not(feature = "cuda"))]
fn peak(_: &Device) -> Result<Option<u64>> {
    Ok(None)
}

#[cfg(not(feature = "cuda"))]
fn reset_peak(_: &Device) -> Result<()> {
    Ok(())
}

struct Trainer {
    parameters: Parameters,
    gradients: Gradients,
    optimiser: Optimiser,
    rates: Vec<f64>,
}

impl Trainer {
    fn new(parameters: Parameters) -> Self {
        let gradients = Gradients::new(&parameters);
        let optimiser = Optimiser::new(&RuleSet::default(), &parameters);
        let rates = vec![1.0; gradients.len()];
        Self { parameters, gradients, optimiser, rates }
    }

    /// Computes the gradients; returns the time when the host has issued all work.
    fn passes(&mut self, loss: &Tensor) -> Result<Instant> {
        self.gradients.clear();
        self.gradients.backward(loss)?;
        Ok(Instant::now())
    }

    fn update(&mut self) -> Result<()> {
        let gradient_scale = 1.0 / self.gradients.global_norm().max(1.0);
        let size = StepSize { learning_rate: 1e-5, gradient_scale };
        Ok(self.optimiser.step(&self.parameters, &self.gradients, &self.rates, size)?)
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Packed sequences of random tokens.
fn tokens(sequences: usize, length: usize, vocabulary: u32) -> PackedTokens {
    let token = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocabulary;
    let sequence = |s: usize| (0..length).map(|i| token(s * length + i)).collect::<Vec<_>>();
    PackedTokens::new(&(0..sequences).map(sequence).collect::<Vec<_>>())
}

fn scorer(
    config: &str,
    (sequences, length): (usize, usize),
    builder: &ParameterBuilder,
) -> Result<Loss> {
    let config = TextEncoderConfig::parse(config, "config")?;
    let tokens = tokens(sequences, length, config.vocab_size as u32);
    let encoder = config.build(&builder.pp("encoder"))?;
    let head = CrossEncoderConfig {
        pooling: Pooling::Mean,
        compare_anchor: false,
        head_dropout: 0.0,
        score_bias: true,
    };
    let model = CrossEncoder::new(head, encoder, builder)?;
    let spans = tokens.sequences().clone();
    let spans = ScoredSpans { targets: spans.clone(), anchors: spans };
    let gold: Vec<f32> = (0..sequences).map(|i| i as f32 / sequences as f32).collect();
    Ok(Box::new(move |seed| {
        let scores = model.score(&tokens, &spans, &Mode::train(seed))?;
        Ok(PairLoss::Bce.loss(&scores, &gold)?)
    }))
}

fn minilm(builder: &ParameterBuilder) -> Result<Loss> {
    let config = r#"{"model_type": "bert", "vocab_size": 30522, "hidden_size": 384,
        "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
        "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}"#;
    scorer(config, (32, 128), builder)
}

fn deberta(builder: &ParameterBuilder) -> Result<Loss> {
    let config = r#"{"model_type": "deberta-v2", "vocab_size": 128100, "hidden_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 16, "intermediate_size": 4096,
        "max_position_embeddings": 512, "type_vocab_size": 0, "hidden_act": "gelu",
        "relative_attention": true, "position_buckets": 256, "max_relative_positions": -1,
        "pos_att_type": "p2c|c2p", "share_att_key": true, "norm_rel_ebd": "layer_norm",
        "position_biased_input": false, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1}"#;
    scorer(config, (8, 128), builder)
}

fn reveal(builder: &ParameterBuilder) -> Result<Loss> {
    let config = RevealConfig::base(2);
    let size = config.image.image_size;
    let model = Reveal::new(&config, builder)?;
    let pixels: Vec<f32> = (0..8 * 3 * size * size).map(|i| (i as f32 * 0.01).sin()).collect();
    let input = RevealInput {
        tokens: tokens(8, 32, 32_000),
        pixels: Some(Tensor::from_vec(pixels, (8, 3, size, size), &Device::Cpu)?),
        image_of: (0..8).map(Some).collect(),
    };
    Ok(Box::new(move |seed| {
        let mode = Mode::train(seed);
        let base = model.encode(&input, &mode)?;
        let states = model.fuse(&base, None, &mode)?;
        let logits = model.decode(&tokens(8, 16, 32_000), &states, &mode)?;
        Ok(logits.to_dtype(candle_core::DType::F32)?.sqr()?.mean_all()?)
    }))
}

fn whisper(builder: &ParameterBuilder) -> Result<Loss> {
    let config = WhisperConfig {
        vocab_size: 100,
        num_mel_bins: 128,
        d_model: 1280,
        encoder_layers: 32,
        encoder_attention_heads: 20,
        encoder_ffn_dim: 5120,
        decoder_layers: 1,
        decoder_attention_heads: 20,
        decoder_ffn_dim: 5120,
        decoder_start_token_id: 1,
        eos_token_id: 2,
        ..WhisperConfig::default()
    };
    let model = Whisper::new(&config, builder)?;
    let frames: Vec<f32> = (0..3000 * 128).map(|i| (i as f32 * 0.01).sin()).collect();
    let frames = Tensor::from_vec(frames, (3000, 128), &Device::Cpu)?;
    Ok(Box::new(move |seed| {
        let audio = model.encoder.embed(&frames, &[3000])?;
        let encoded = model.encoder.forward(audio, &Adapters::NONE, &Mode::train(seed))?;
        Ok(encoded.states.to_dtype(candle_core::DType::F32)?.sqr()?.mean_all()?)
    }))
}
