//! Values and gradients of every model family on any device and in any precision, compared with f32
//! on the CPU. `models/tests/suite/compute.rs` runs the same comparisons without a GPU.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::avformer::{
    Avformer, AvformerConfig, FrozenAsrModel, ProjectionConfig, VisualTokens, state_distance,
};
use engram_models::clip::{Clip, ClipConfig, contrastive_loss};
use engram_models::compute::{Compute, to_host};
use engram_models::conformer::{
    AttentionDecoderConfig, ConformerAsrConfig, ConformerAsrModel, ConformerAttentionConfig,
    ConformerConfig, ConformerCtcConfig, ConformerTransducerConfig,
};
use engram_models::generation::GenerateOptions;
use engram_models::gradients::Gradients;
use engram_models::kernels::{Activation, CrossEntropy, Mode, Span, cross_entropy};
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::recompute::Recompute;
use engram_models::reveal::{BaseStates, Retrieved, Reveal, RevealConfig, RevealInput, losses};
use engram_models::similarity::{
    BiEncoder, CrossEncoder, CrossEncoderConfig, PairLoss, Pooling, ScoredSpans,
};
use engram_models::speech::AudioStates;
use engram_models::speech::best_rq::{BestRq, BestRqConfig, MaskedStates};
use engram_models::t5::{T5, T5Config};
use engram_models::text_encoder::TextEncoderConfig;
use engram_models::transducer::TransducerConfig;
use engram_models::vit::{ViT, ViTConfig};
use engram_models::whisper::{Whisper, WhisperConfig};
use engram_models::{ModelError, Result};

/// The differences of one model's values and gradients from those in f32 on the CPU.
pub struct Comparison {
    /// The model family.
    pub model: &'static str,
    /// The length of the difference of all outputs, divided by the length of the outputs.
    pub value_error: f64,
    /// The same for the gradients of all parameters.
    pub gradient_error: f64,
}

/// Outputs of any shape, which may depend on the parameters.
pub type Outputs = Vec<Tensor>;

/// Builds a model with random weights and runs it in training mode, with dropout.
pub type Run = fn(&ParameterBuilder) -> Result<Outputs>;

/// The model families.
pub const MODELS: [(&str, Run); 15] = [
    ("BERT bi-encoder", |builder| {
        bi_encoder(r#""model_type": "bert", "type_vocab_size": 2"#, builder)
    }),
    ("ModernBERT bi-encoder", modern_bert),
    ("DeBERTa cross-encoder", deberta),
    ("listwise cross-encoder", listwise),
    ("T5", t5),
    ("ViT", vit),
    ("CLIP", clip),
    ("Conformer CTC", |builder| asr(&conformer_ctc(builder)?)),
    ("Conformer transducer", |builder| asr(&conformer_transducer(builder)?)),
    ("Conformer attention", |builder| asr(&conformer_attention(builder)?)),
    ("Conformer BEST-RQ", best_rq),
    ("Whisper", |builder| asr(&whisper(builder)?)),
    ("AVFormer on Conformer", |builder| avformer(conformer_ctc(&builder.pp("frozen"))?, builder)),
    ("AVFormer on Whisper", |builder| avformer(whisper(&builder.pp("frozen"))?, builder)),
    ("REVEAL", reveal),
];

thread_local! {
    /// The values that the backward pass computes again, in [`mode`].
    static RECOMPUTE: Cell<Recompute> = const { Cell::new(Recompute::None) };
}

/// Compares every model family, with recomputation, with f32 on the CPU without recomputation.
pub fn compare_models(compute: &Compute, recompute: Recompute) -> Result<Vec<Comparison>> {
    let compare = |&(model, run): &(&'static str, Run)| {
        let named = |error: ModelError| ModelError::BadInput(format!("{model}: {error}"));
        RECOMPUTE.set(Recompute::None);
        let expected = values(run, &Compute::cpu()).map_err(named)?;
        RECOMPUTE.set(recompute);
        let actual = values(run, compute).map_err(named)?;
        Ok(Comparison {
            model,
            value_error: relative_error(&actual.0, &expected.0),
            gradient_error: relative_error(&actual.1, &expected.1),
        })
    };
    MODELS.iter().map(compare).collect()
}

/// Returns the tokens that T5 generates greedily and with beams, which use the decoder's cache.
pub fn generated_tokens(compute: &Compute) -> Result<Vec<Vec<u32>>> {
    let model = T5::new(&t5_config(), &ParameterBuilder::new(4, Vec::new(), compute))?;
    let texts = PackedTokens::new(&[vec![3, 9, 4, 1], vec![7, 1]]);
    let mut tokens = Vec::new();
    for num_beams in [1, 3] {
        let options = GenerateOptions { num_beams, ..GenerateOptions::greedy(0, 1) };
        let generated = model.generate(&texts, &options)?;
        tokens.extend(generated.into_iter().map(|text| text.tokens));
    }
    Ok(tokens)
}

/// Returns the outputs and the gradients of all trainable parameters, as two lists of numbers.
fn values(run: Run, compute: &Compute) -> Result<(Vec<f32>, Vec<f32>)> {
    let frozen = vec![ParameterGroup { pattern: "frozen.**".into(), rate: 0.0 }];
    let builder = ParameterBuilder::new(11, frozen, compute);
    // Not every model has a frozen part, but a pattern must match.
    builder.pp("frozen").get("unused", &[1], engram_models::params::Init::Ones)?;
    let outputs = run(&builder)?;
    let parameters = builder.finish()?;
    let mut all = Vec::new();
    for output in &outputs {
        all.extend(to_host(output)?);
    }
    let mut gradients = Gradients::new(&parameters);
    gradients.backward(&loss(&outputs)?)?;
    let faults = gradients.faults();
    if !faults.is_empty() {
        return Err(ModelError::BadInput(format!("gradients: {faults:?}")));
    }
    let gradients = (0..gradients.len()).filter_map(|i| gradients.get(i)).flatten();
    Ok((all, gradients.copied().collect()))
}

/// Multiplies the outputs by irregular weights, and sums their means in f32 or f64.
pub fn loss(outputs: &[Tensor]) -> Result<Tensor> {
    let mut loss: Option<Tensor> = None;
    for output in outputs {
        let output = if output.dtype() == DType::F64 {
            output.flatten_all()?
        } else {
            output.to_dtype(DType::F32)?.flatten_all()?
        };
        let weights = numbers(output.elem_count(), 1.7);
        let weights = Tensor::from_vec(weights, output.shape(), output.device())?;
        let part = (&output * weights.to_dtype(output.dtype())?)?.mean_all()?;
        loss = Some(match loss {
            Some(loss) => (loss + part)?,
            None => part,
        });
    }
    loss.ok_or_else(|| ModelError::BadInput("the model has no outputs".into()))
}

pub fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    let length = |squares: &mut dyn Iterator<Item = f64>| squares.sum::<f64>().sqrt();
    let pairs = || actual.iter().zip(expected);
    let difference = length(&mut pairs().map(|(a, e)| f64::from(a - e).powi(2)));
    let error = difference / length(&mut expected.iter().map(|e| f64::from(*e).powi(2)));
    if actual.len() == expected.len() { error } else { f64::INFINITY }
}

/// Irregular numbers between -1 and 1.
pub fn numbers(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step + 0.3).sin()).collect()
}

fn tensor(shape: &[usize], step: f32) -> Result<Tensor> {
    Ok(Tensor::from_vec(numbers(shape.iter().product(), step), shape, &Device::Cpu)?)
}

fn mode() -> Mode {
    Mode::train(5).recompute(RECOMPUTE.get())
}

fn text_encoder(config: &str) -> Result<TextEncoderConfig> {
    let common = r#""vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 24,
        "hidden_act": "gelu", "initializer_range": 0.15, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1"#;
    TextEncoderConfig::parse(&format!("{{{common}, {config}}}"), "config")
}

fn modern_bert(builder: &ParameterBuilder) -> Result<Outputs> {
    let config = r#""model_type": "modernbert", "hidden_activation": "gelu", "norm_eps": 1e-5,
        "embedding_dropout": 0.1, "attention_dropout": 0.1, "mlp_dropout": 0.1,
        "local_attention": 4"#;
    bi_encoder(config, builder)
}

fn bi_encoder(encoder: &str, builder: &ParameterBuilder) -> Result<Outputs> {
    let encoder = text_encoder(encoder)?.build(&builder.pp("encoder"))?;
    let model = BiEncoder::new(Pooling::Mean, encoder, builder)?;
    let phrases = PackedTokens::new(&[vec![1, 5, 7], vec![1, 9], vec![2, 40, 41, 42, 43]]);
    let scores = model.score(&phrases, &[(0, 1), (1, 2), (0, 2)], &mode())?;
    let loss = PairLoss::Cosent.loss(&scores, &[0.0, 0.5, 1.0])?;
    Ok(vec![scores, loss])
}

fn deberta(builder: &ParameterBuilder) -> Result<Outputs> {
    let config = r#""model_type": "deberta-v2", "type_vocab_size": 0, "relative_attention": true,
        "position_buckets": 8, "max_relative_positions": -1, "pos_att_type": "p2c|c2p",
        "share_att_key": true, "norm_rel_ebd": "layer_norm", "position_biased_input": false"#;
    cross_encoder(config, false, builder)
}

fn listwise(builder: &ParameterBuilder) -> Result<Outputs> {
    cross_encoder(r#""model_type": "bert", "type_vocab_size": 1"#, true, builder)
}

fn cross_encoder(encoder: &str, branches: bool, builder: &ParameterBuilder) -> Result<Outputs> {
    let config = CrossEncoderConfig {
        pooling: Pooling::Attention,
        compare_anchor: true,
        head_dropout: 0.1,
        score_bias: true,
    };
    let encoder = text_encoder(encoder)?.build(&builder.pp("encoder"))?;
    let model = CrossEncoder::new(config, encoder, builder)?;
    let mut tokens = PackedTokens::new(&[vec![1, 5, 7, 2, 9, 8, 2], vec![1, 9, 2, 30, 31, 2, 4]]);
    if branches {
        tokens = tokens.with_branches(vec![0, 0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 1, 2, 2].into());
    }
    let span = |start, length| Span { start, length };
    let spans = ScoredSpans {
        targets: vec![span(3, 2), span(5, 2), span(10, 3)].into(),
        anchors: vec![span(0, 2), span(0, 2), span(7, 2)].into(),
    };
    let scores = model.score(&tokens, &spans, &mode())?;
    let loss = PairLoss::Bce.loss(&scores, &[0.25, 1.0, 0.5])?;
    Ok(vec![scores, loss])
}

fn t5_config() -> T5Config {
    T5Config {
        vocab_size: 40,
        d_model: 32,
        d_kv: 8,
        d_ff: 48,
        num_layers: 2,
        num_heads: 4,
        num_decoder_layers: Some(2),
        ..T5Config::small()
    }
}

fn next_token_losses(logits: &Tensor, targets: Vec<u32>) -> Result<Tensor> {
    let options = CrossEntropy {
        targets: targets.into(),
        ignore_index: Some(u32::MAX),
        label_smoothing: 0.1,
    };
    Ok(cross_entropy(logits, options)?)
}

fn t5(builder: &ParameterBuilder) -> Result<Outputs> {
    let model = T5::new(&t5_config(), builder)?;
    let texts = PackedTokens::new(&[vec![3, 9, 4, 1], vec![7, 1]]);
    let states = model.encode(&texts, &mode())?;
    let tokens = PackedTokens::new(&[vec![0, 8, 5], vec![0, 6]]);
    let logits = model.decode(&tokens, &states, &[4, 2], &mode())?;
    let losses = next_token_losses(&logits, vec![8, 5, 1, u32::MAX, 1])?;
    Ok(vec![states, losses])
}

fn vit_config() -> ViTConfig {
    ViTConfig {
        image_size: 16,
        patch_size: 8,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        initializer_range: 0.15,
        ..ViTConfig::base_16()
    }
}

fn vit(builder: &ParameterBuilder) -> Result<Outputs> {
    let stem = ViTConfig { stem_channels: vec![6, 8], ..vit_config() };
    let mut outputs = Vec::new();
    for (name, config) in [("patches", vit_config()), ("stem", stem)] {
        let model = ViT::new(&config, &builder.pp(name))?;
        let output = model.forward(&tensor(&[2, 3, 16, 16], 0.9)?, None, &mode())?;
        outputs.push(output.patch_tokens);
        outputs.extend(output.class_token);
    }
    Ok(outputs)
}

fn clip(builder: &ParameterBuilder) -> Result<Outputs> {
    let text = include_str!("../../../models/tests/fixtures/clip/config.json");
    let config: ClipConfig = serde_json::from_str(text)
        .map_err(|error| ModelError::BadInput(format!("CLIP's configuration: {error}")))?;
    let model = Clip::new(&config, builder)?;
    let images = model.vision.forward(&tensor(&[2, 3, 12, 12], 0.9)?, &mode())?;
    let texts = PackedTokens::new(&[vec![38, 3, 9, 39], vec![38, 4, 39]]);
    let texts = model.encode_texts(&texts, &mode())?;
    let logits = model.logits(&images.embeddings, &texts.embeddings)?;
    let loss = contrastive_loss(&logits)?;
    Ok(vec![logits, loss])
}

fn conformer_config() -> ConformerConfig {
    ConformerConfig {
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        conv_kernel_size: 3,
        subsampling_conv_channels: 8,
        num_mel_bins: 16,
        initializer_range: 0.15,
        ..ConformerConfig::tiny()
    }
}

fn conformer(config: ConformerAsrConfig, builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    Ok(FrozenAsrModel::Conformer(Box::new(ConformerAsrModel::new(&config, builder)?)))
}

pub fn conformer_ctc(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let config = ConformerCtcConfig { encoder_config: conformer_config(), vocab_size: 9, blank: 8 };
    conformer(ConformerAsrConfig::Ctc(config), builder)
}

pub fn conformer_transducer(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let decoder = TransducerConfig {
        vocab_size: 9,
        blank: 8,
        decoder_hidden_size: 24,
        num_decoder_layers: 2,
        joint_hidden_size: Some(16),
        hidden_act: Activation::Tanh,
        decoder_dropout: 0.1,
        ..TransducerConfig::default()
    };
    let config = ConformerTransducerConfig { encoder_config: conformer_config(), decoder };
    conformer(ConformerAsrConfig::Transducer(config), builder)
}

pub fn conformer_attention(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let decoder = AttentionDecoderConfig {
        num_layers: 2,
        num_heads: 4,
        intermediate_size: 48,
        max_tokens: 16,
        dropout: 0.1,
    };
    let config = ConformerAttentionConfig {
        encoder_config: conformer_config(),
        vocab_size: 9,
        blank: 8,
        ctc_weight: 0.3,
        decoder,
    };
    conformer(ConformerAsrConfig::Attention(config), builder)
}

/// The audio tokens of two clips.
pub fn audio_tokens(model: &FrozenAsrModel) -> Result<AudioStates> {
    model.embed(&tensor(&[60, 16], 0.37)?, &[32, 28])
}

/// A text for each clip.
pub fn texts() -> Vec<Vec<u32>> {
    vec![vec![1, 2, 2], vec![3]]
}

fn asr(model: &FrozenAsrModel) -> Result<Outputs> {
    let encoded = model.encode_unadapted(audio_tokens(model)?, &mode())?;
    let losses = match model {
        FrozenAsrModel::Conformer(model) => model.losses(&encoded, &texts(), &mode())?,
        FrozenAsrModel::Whisper { .. } => {
            model.text_losses(&encoded.clone().into(), &texts(), &mode())?
        }
    };
    Ok(vec![encoded.states, losses])
}

fn best_rq(builder: &ParameterBuilder) -> Result<Outputs> {
    let encoder = engram_models::conformer::ConformerEncoder::new(&conformer_config(), builder)?;
    let config = BestRqConfig { num_codes: 12, ..BestRqConfig::default() };
    let model = BestRq::new(&config, &conformer_config(), builder)?;
    let audio = encoder.embed(&tensor(&[60, 16], 0.37)?, &[32, 28])?;
    let audio = encoder.forward(audio, &engram_models::adapter::Adapters::NONE, &mode())?;
    let masked = MaskedStates { states: vec![0, 3, 5], codes: vec![2, 11, 7] };
    let logits = model.logits(&audio, &masked)?;
    let loss = model.loss(&logits, &masked)?;
    Ok(vec![logits, loss])
}

pub fn whisper(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let config = WhisperConfig {
        vocab_size: 20,
        decoder_start_token_id: 5,
        eos_token_id: 4,
        num_mel_bins: 16,
        d_model: 32,
        encoder_layers: 2,
        encoder_attention_heads: 4,
        encoder_ffn_dim: 48,
        decoder_layers: 2,
        decoder_attention_heads: 4,
        decoder_ffn_dim: 48,
        init_std: 0.15,
        max_source_positions: 32,
        max_target_positions: 16,
        dropout: 0.1,
        ..WhisperConfig::default()
    };
    let model = Box::new(Whisper::new(&config, builder)?);
    Ok(FrozenAsrModel::Whisper { model, prompt: vec![5, 6], end: 4, previous: Some(7) })
}

fn avformer(asr_model: FrozenAsrModel, builder: &ParameterBuilder) -> Result<Outputs> {
    let projection = ProjectionConfig { init_std: 0.3, ..ProjectionConfig::default() };
    let mut config = AvformerConfig { projection, ..AvformerConfig::default() };
    config.adapters.bottleneck = 8;
    let model = Avformer::new(asr_model, &config, 6, builder)?;
    // The initial up-projections are zero and would stop the gradients of the adapters.
    for parameter in builder.finish()?.iter().filter(|p| p.name().contains(".up.")) {
        let values = numbers(parameter.tensor().elem_count(), 0.7);
        parameter.update(&mut |up| {
            up.iter_mut().zip(&values).for_each(|(up, value)| *up = 0.2 * value);
        })?;
    }
    let audio = audio_tokens(&model.asr_model)?;
    let unadapted = model.asr_model.encode_unadapted(audio.clone(), &Mode::evaluate())?;
    let (embeddings, counts) = (tensor(&[3, 6], 0.9)?, [2, 1]);
    let visual = VisualTokens { embeddings: &embeddings, counts: &counts };
    let encoded = model.encode(audio.clone(), Some(&visual), &mode())?;
    let losses = model.asr_model.text_losses(&encoded, &texts(), &mode())?;
    let without = model.encode(audio, None, &mode())?;
    let target = unadapted.states.narrow(0, 0, unadapted.lengths[0])?.to_device(&Device::Cpu)?;
    let distance = state_distance(&without.audio, &[(0, &target)])?;
    Ok(vec![encoded.audio.states, losses, distance])
}

/// Two texts for a model. The first has an image.
pub fn reveal_input(model: &Reveal, first: u32) -> Result<RevealInput> {
    let side = model.config.image.image_size;
    Ok(RevealInput {
        tokens: PackedTokens::new(&[vec![1, first, 3], vec![1, 7, first + 1, 9]]),
        pixels: Some(tensor(&[1, 3, side, side], first as f32 * 0.11)?),
        image_of: vec![Some(0), None],
    })
}

/// Two queries, their retrieved entries, which are the same two for both, and the generator's
/// logits.
pub struct Retrieval {
    pub base: BaseStates,
    pub queries: Tensor,
    pub keys: Tensor,
    pub values: Tensor,
    pub logits: Tensor,
}

pub fn retrieve(model: &Reveal, mode: &Mode) -> Result<Retrieval> {
    let base = model.encode(&reveal_input(model, 4)?, mode)?;
    let queries = model.query(&base, mode)?;
    let entries = model.encode(&reveal_input(model, 11)?, mode)?;
    let (keys, values) = (model.key(&entries, mode)?, model.value(&entries, mode)?);
    let gates = model.gates(&queries)?;
    let scores = (queries.matmul(&keys.t()?)? * gates)?.flatten_all()?;
    let prior = model.prior(&scores, &[2, 2])?;
    let both = Tensor::cat(&[&values, &values], 0)?;
    let retrieved = Retrieved { counts: &[2, 2], prior: &prior, values: &both };
    let states = model.fuse(&base, Some(&retrieved), mode)?;
    let logits = model.decode(&PackedTokens::new(&[[1u32, 5], [1, 6]]), &states, mode)?;
    Ok(Retrieval { base, queries, keys, values, logits })
}

fn reveal(builder: &ParameterBuilder) -> Result<Outputs> {
    let config = RevealConfig {
        t5: t5_config(),
        image: ViTConfig { class_token: false, ..vit_config() },
        fusion_layers: 1,
        head_layers: 1,
        value_tokens: 2,
        key_dim: 12,
        frozen_image_layers: 0,
        ..RevealConfig::base(2)
    };
    let model = Reveal::new(&config, builder)?;
    let Retrieval { base, queries, keys, values, logits } = retrieve(&model, &mode())?;
    let targets: Arc<[u32]> = [0, 1].into();
    Ok(vec![
        next_token_losses(&logits, vec![5, 2, 6, 2])?,
        losses::contrastive(&queries, &keys, None, targets, 0.1)?,
        losses::decorrelation(&values, 2)?,
        losses::alignment(&values, &base.states)?,
    ])
}
