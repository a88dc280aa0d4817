//! The gradients of the visual projection, through each frozen ASR model.

use std::ptr;

use candle_core::{DType, Device, Tensor};

use super::*;
use crate::compute::Compute;
use crate::conformer::{
    AttentionDecoderConfig, ConformerAsrConfig, ConformerAsrModel, ConformerAttentionConfig,
    ConformerConfig, ConformerCtcConfig, ConformerTransducerConfig,
};
use crate::finite_difference::check_gradients;
use crate::kernels::Activation;
use crate::params::{ParameterGroup, Parameters};
use crate::transducer::TransducerConfig;
use crate::whisper::{Whisper, WhisperConfig};

/// Width of an image embedding.
const E: usize = 3;
/// Frames per clip.
const FRAMES: [usize; 2] = [24, 14];
/// Images per clip.
const COUNTS: [usize; 2] = [2, 1];

fn sine_values(count: usize, step: f64) -> Vec<f64> {
    (0..count).map(|i| (i as f64 * step).sin()).collect()
}

fn tensor(shape: (usize, usize), step: f64, dtype: DType) -> Result<Tensor> {
    let values = sine_values(shape.0 * shape.1, step);
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

fn whisper(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let config = WhisperConfig {
        vocab_size: 9,
        decoder_start_token_id: 5,
        eos_token_id: 4,
        d_model: 8,
        encoder_layers: 2,
        encoder_attention_heads: 2,
        encoder_ffn_dim: 12,
        decoder_layers: 1,
        decoder_attention_heads: 2,
        decoder_ffn_dim: 12,
        init_std: 0.4,
        max_source_positions: 32,
        max_target_positions: 16,
        ..WhisperConfig::default()
    };
    let model = Box::new(Whisper::new(&config, builder)?);
    Ok(FrozenAsrModel::Whisper { model, prompt: vec![5, 6], end: 4, previous: Some(7) })
}

fn encoder_config() -> ConformerConfig {
    ConformerConfig {
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        conv_kernel_size: 3,
        subsampling_conv_channels: 2,
        num_mel_bins: 80,
        dropout: 0.0,
        attention_dropout: 0.0,
        initializer_range: 0.3,
        ..ConformerConfig::tiny()
    }
}

fn with_decoder(config: ConformerAsrConfig, builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    Ok(FrozenAsrModel::Conformer(Box::new(ConformerAsrModel::new(&config, builder)?)))
}

fn conformer(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let encoder_config = encoder_config();
    let config = ConformerCtcConfig { encoder_config, vocab_size: 9, blank: 8 };
    with_decoder(ConformerAsrConfig::Ctc(config), builder)
}

fn transducer(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let decoder = TransducerConfig {
        vocab_size: 9,
        blank: 8,
        decoder_hidden_size: 6,
        num_decoder_layers: 1,
        hidden_act: Activation::Tanh,
        ..TransducerConfig::default()
    };
    let config = ConformerTransducerConfig { encoder_config: encoder_config(), decoder };
    with_decoder(ConformerAsrConfig::Transducer(config), builder)
}

fn attention(builder: &ParameterBuilder) -> Result<FrozenAsrModel> {
    let decoder = AttentionDecoderConfig {
        num_layers: 1,
        num_heads: 2,
        intermediate_size: 12,
        max_tokens: 16,
        dropout: 0.0,
    };
    let config = ConformerAttentionConfig {
        encoder_config: encoder_config(),
        vocab_size: 9,
        blank: 8,
        ctc_weight: 0.3,
        decoder,
    };
    with_decoder(ConformerAsrConfig::Attention(config), builder)
}

type BuildAsrModel = fn(&ParameterBuilder) -> Result<FrozenAsrModel>;
const ASR_MODELS: [BuildAsrModel; 4] = [whisper, conformer, transducer, attention];

fn build(
    build_asr_model: BuildAsrModel,
    config: &AvformerConfig,
    dtype: DType,
) -> Result<(Avformer, Parameters)> {
    let frozen = vec![ParameterGroup { pattern: "asr_model.**".into(), rate: 0.0 }];
    let builder = ParameterBuilder::new(2, frozen, &Compute { dtype, ..Compute::cpu() });
    let asr_model = build_asr_model(&builder.pp("asr_model"))?;
    let model = Avformer::new(asr_model, config, E, &builder)?;
    Ok((model, builder.finish()?))
}

fn audio_tokens(model: &Avformer, dtype: DType) -> Result<AudioStates> {
    let frames = tensor((FRAMES.iter().sum(), 80), 0.37, dtype)?;
    model.asr_model.embed(&frames, &FRAMES)
}

fn texts() -> Vec<Vec<u32>> {
    vec![vec![1, 2, 2], vec![3]]
}

fn random_projection_config() -> AvformerConfig {
    let projection = ProjectionConfig { init_std: 0.5, ..ProjectionConfig::default() };
    AvformerConfig { projection, ..AvformerConfig::default() }
}

#[test]
fn gradients_pass_through_frozen_asr_models_to_the_projection() -> Result<()> {
    for build_asr_model in ASR_MODELS {
        for position in [TokenPosition::Before, TokenPosition::After, TokenPosition::Prompt] {
            let mut config = random_projection_config();
            config.projection.position = position;
            let inputs: [(Vec<f64>, &[usize]); 3] = [
                (sine_values(3 * E, 0.9), &[3, E]),
                (sine_values(8 * E, 1.3), &[8, E]),
                (sine_values(8, 2.1), &[8]),
            ];
            if position == TokenPosition::Prompt && !ptr::fn_addr_eq(build_asr_model, ASR_MODELS[0])
            {
                let error = build(build_asr_model, &config, DType::F32).map(drop);
                assert!(error.is_err_and(|error| error.to_string().contains("use `before`")));
                continue;
            }
            let models = [DType::F64, DType::F32]
                .map(|dtype| Ok((dtype, build(build_asr_model, &config, dtype)?)));
            let models = models.into_iter().collect::<Result<Vec<_>>>()?;
            check_gradients(&inputs, |t| {
                let same_dtype = models.iter().find(|(dtype, _)| *dtype == t[0].dtype());
                let mut model = same_dtype.expect("f64 or f32").1.0.clone();
                let linear = &mut model.projection.linear;
                *linear = linear.with_weight(t[1].clone()).with_bias(t[2].clone());
                let visual = VisualTokens { embeddings: &t[0], counts: &COUNTS };
                let mode = Mode::evaluate();
                let clips =
                    model.encode(audio_tokens(&model, t[0].dtype())?, Some(&visual), &mode)?;
                model.asr_model.text_losses(&clips, &texts(), &mode)
            })?;
        }
    }
    Ok(())
}

/// Visual tokens in the prompt leave the encoder alone, change the texts' losses, and stay with
/// their clips, whatever other clips have.
#[test]
fn visual_tokens_in_the_prompt_belong_to_their_clip() -> Result<()> {
    let mut config = random_projection_config();
    config.projection.position = TokenPosition::Prompt;
    let (model, _) = build(whisper, &config, DType::F32)?;
    let mode = Mode::evaluate();
    let clips = audio_tokens(&model, DType::F32)?;
    let losses = |clips: &EncodedClips, texts: &[Vec<u32>]| -> Result<Vec<f32>> {
        Ok(model.asr_model.text_losses(clips, texts, &mode)?.to_vec1()?)
    };
    let without = model.encode(clips.clone(), None, &mode)?;
    let embeddings = tensor((2, E), 0.9, DType::F32)?;
    let visual = VisualTokens { embeddings: &embeddings, counts: &[0, 2] };
    let with = model.encode(clips, Some(&visual), &mode)?;
    let states = |clips: &EncodedClips| clips.audio.states.flatten_all()?.to_vec1::<f32>();
    assert_eq!(states(&with)?, states(&without)?);
    let (of_both, of_none) = (losses(&with, &texts())?, losses(&without, &texts())?);
    assert!((of_both[0] - of_none[0]).abs() < 1e-5 && (of_both[1] - of_none[1]).abs() > 1e-3);
    assert!(model.attention_to_images(&with, &[0, 2], &texts())?.is_none());

    // Groups have clips with equally many tokens, and each clip keeps its own.
    let groups = with.by_context_length()?;
    assert_eq!(groups.iter().map(|(indices, _)| indices[0]).collect::<Vec<_>>(), [0, 1]);
    for (indices, clips) in &groups {
        let texts = [texts()[indices[0]].clone()];
        assert!((losses(clips, &texts)?[0] - of_both[indices[0]]).abs() < 1e-5);
    }
    Ok(())
}

#[test]
fn blocks_before_the_first_adapter_run_with_the_embedding() -> Result<()> {
    let builder = ParameterBuilder::new(2, Vec::new(), &Compute::cpu());
    let all = whisper(&builder)?;
    let late = all.clone().start_at(1)?;
    assert_eq!((all.blocks(), late.blocks()), (2, 1));
    let frames = tensor((FRAMES.iter().sum(), 80), 0.37, DType::F32)?;
    let states = |model: &FrozenAsrModel| -> Result<Vec<f32>> {
        let tokens = model.embed(&frames, &FRAMES)?;
        Ok(model.encode_unadapted(tokens, &Mode::inference())?.states.flatten_all()?.to_vec1()?)
    };
    assert_eq!(states(&all)?, states(&late)?);
    assert!(all.start_at(2).is_err(), "no block would remain");
    let builder = ParameterBuilder::new(2, Vec::new(), &Compute::cpu());
    assert!(conformer(&builder)?.start_at(1).is_err());
    Ok(())
}
