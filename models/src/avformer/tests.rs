//! Tests of the gradients through all frozen ASR models, of the trained parameters, and of the
//! effect of images.

use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ModelError;
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
    Ok(FrozenAsrModel::Whisper { model, prompt: vec![5, 6], end: 4 })
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
        for position in [TokenPosition::Before, TokenPosition::After] {
            let mut config = random_projection_config();
            config.projection.position = position;
            let inputs: [(Vec<f64>, &[usize]); 3] = [
                (sine_values(3 * E, 0.9), &[3, E]),
                (sine_values(8 * E, 1.3), &[8, E]),
                (sine_values(8, 2.1), &[8]),
            ];
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
                let audio =
                    model.encode(audio_tokens(&model, t[0].dtype())?, Some(&visual), &mode)?;
                model.asr_model.text_losses(&audio, &texts(), &mode)
            })?;
        }
    }
    Ok(())
}

/// All added parameters have a gradient from the first step on; the up-projections are set to
/// non-zero values for this. No parameter of the ASR model has a gradient.
#[test]
fn exactly_the_added_parameters_get_gradients() -> Result<()> {
    for build_asr_model in ASR_MODELS {
        let (model, parameters) = build(build_asr_model, &random_projection_config(), DType::F32)?;
        let is_added = |name: &str| name.starts_with("adapters") || name.starts_with("projection");
        assert!(parameters.iter().all(|p| p.is_trainable() == is_added(p.name())));
        for up in parameters.iter().filter(|p| p.name().ends_with("up.weight")) {
            up.update(&mut |values| {
                values.iter_mut().zip(1..).for_each(|(v, i)| *v = (i as f32).sin() * 0.1)
            })?;
        }
        let embeddings = tensor((3, E), 0.9, DType::F32)?;
        let visual = VisualTokens { embeddings: &embeddings, counts: &COUNTS };
        let mode = Mode::evaluate();
        let audio = model.encode(audio_tokens(&model, DType::F32)?, Some(&visual), &mode)?;
        let losses = model.asr_model.text_losses(&audio, &texts(), &mode)?;
        let gradients = losses.mean_all()?.backward()?;
        for parameter in parameters.iter() {
            let gradient = gradients.get(parameter.tensor());
            if !parameter.is_trainable() {
                assert!(gradient.is_none(), "{}", parameter.name());
                continue;
            }
            let Some(gradient) = gradient else { panic!("{} has no gradient", parameter.name()) };
            let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
            assert!(gradient.iter().all(|g| g.is_finite()), "{}", parameter.name());
            assert!(gradient.iter().any(|g| *g != 0.0), "{}", parameter.name());
        }
    }
    Ok(())
}

#[test]
fn a_new_model_without_images_equals_the_asr_model_and_clips_are_independent() -> Result<()> {
    for build_asr_model in ASR_MODELS {
        let (model, _) = build(build_asr_model, &AvformerConfig::default(), DType::F32)?;
        let mode = Mode::inference();
        let encode = |visual: Option<(Vec<f64>, [usize; 2])>| -> Result<Vec<Vec<f32>>> {
            let clips = audio_tokens(&model, DType::F32)?;
            let Some((values, counts)) = visual else {
                return Ok(model.encode(clips, None, &mode)?.states.to_vec2()?);
            };
            let rows = values.len() / E;
            let embeddings = Tensor::from_vec(values, (rows, E), &Device::Cpu)?;
            let embeddings = embeddings.to_dtype(DType::F32)?;
            let visual = VisualTokens { embeddings: &embeddings, counts: &counts };
            Ok(model.encode(clips, Some(&visual), &mode)?.states.to_vec2()?)
        };
        let frozen = model.asr_model.encode_unadapted(audio_tokens(&model, DType::F32)?, &mode)?;
        assert_eq!(encode(None)?, frozen.states.to_vec2::<f32>()?);
        assert_eq!(encode(Some((Vec::new(), [0, 0])))?, encode(None)?);
        // A zero projection ignores the image, but the encoder gets a token for it.
        let with_images = encode(Some((sine_values(9, 0.9), COUNTS)))?;
        assert_eq!(with_images, encode(Some((sine_values(9, 0.4), COUNTS)))?);
        assert_ne!(with_images, encode(None)?);
        // Clips do not attend to each other's images.
        let (model, _) = build(build_asr_model, &random_projection_config(), DType::F32)?;
        let states = |embeddings: Tensor, counts: &[usize]| -> Result<Vec<Vec<f32>>> {
            let visual = VisualTokens { embeddings: &embeddings, counts };
            let clips = audio_tokens(&model, DType::F32)?;
            Ok(model.encode(clips, Some(&visual), &mode)?.states.to_vec2()?)
        };
        let embeddings = tensor((3, E), 0.9, DType::F32)?;
        let (with_images, without_second_image) =
            (states(embeddings.clone(), &COUNTS)?, states(embeddings.narrow(0, 0, 2)?, &[2, 0])?);
        let first = audio_tokens(&model, DType::F32)?.lengths[0];
        let equal_states = with_images[..first]
            .concat()
            .iter()
            .zip(without_second_image[..first].concat())
            .all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(equal_states && with_images.last() != without_second_image.last());
    }
    Ok(())
}

#[test]
fn decoders_with_attention_get_visual_states_and_others_only_audio_states() -> Result<()> {
    let counts = [3, 0, 0, 3];
    for (build_asr_model, num_visual_states) in ASR_MODELS.into_iter().zip(counts) {
        let (model, _) = build(build_asr_model, &random_projection_config(), DType::F32)?;
        let clips = audio_tokens(&model, DType::F32)?;
        let (rows, lengths) = (clips.states.dim(0)?, clips.lengths.clone());
        let embeddings = tensor((3, E), 0.9, DType::F32)?;
        let visual = VisualTokens { embeddings: &embeddings, counts: &COUNTS };
        let audio = model.encode(clips, Some(&visual), &Mode::inference())?;
        assert_eq!(audio.states.dim(0)?, rows + num_visual_states);
        assert_eq!(audio.lengths == lengths, num_visual_states == 0);
    }
    Ok(())
}

#[test]
fn the_attention_to_images_is_a_share_of_the_cross_attention() -> Result<()> {
    for (build_asr_model, has_attention) in ASR_MODELS.into_iter().zip([true, false, false, true]) {
        let mut shares = Vec::new();
        for position in [TokenPosition::Before, TokenPosition::After] {
            let mut config = random_projection_config();
            config.projection.position = position;
            let (model, _) = build(build_asr_model, &config, DType::F32)?;
            let embeddings = tensor((3, E), 0.9, DType::F32)?;
            let visual = VisualTokens { embeddings: &embeddings, counts: &COUNTS };
            let clips = audio_tokens(&model, DType::F32)?;
            let audio = model.encode(clips, Some(&visual), &Mode::inference())?;
            let share_of = |counts: &[usize]| model.attention_to_images(&audio, counts, &texts());
            let Some(to_images) = share_of(&COUNTS)? else {
                assert!(!has_attention);
                continue;
            };
            assert!(has_attention);
            for ((shares, text), count) in to_images.iter().zip(texts()).zip(COUNTS) {
                assert_eq!(shares.len(), text.len());
                assert!(
                    shares
                        .iter()
                        .all(|share| (0.0..1.0).contains(share) && (*share > 0.0) == (count > 0))
                );
            }
            let all_states = share_of(&audio.lengths)?.into_iter().flatten().flatten();
            assert!(all_states.into_iter().all(|share| (share - 1.0).abs() < 1e-9));
            shares.push(to_images);
        }
        assert!(!has_attention || shares[0] != shares[1]);
    }
    Ok(())
}

#[test]
fn mismatched_inputs_are_errors() -> Result<()> {
    let (model, _) = build(whisper, &AvformerConfig::default(), DType::F32)?;
    let encode = |shape, counts: &[usize]| {
        let embeddings = tensor(shape, 0.9, DType::F32)?;
        let visual = VisualTokens { embeddings: &embeddings, counts };
        let clips = audio_tokens(&model, DType::F32)?;
        model.encode(clips, Some(&visual), &Mode::inference()).map(drop)
    };
    for (shape, counts) in [((3, E + 1), &COUNTS[..]), ((2, E), &COUNTS), ((3, E), &[3])] {
        let error = encode(shape, counts).unwrap_err().to_string();
        assert!(error.contains("there are 2 clips, and this projection takes"), "{error}");
    }
    let audio =
        model.asr_model.encode_unadapted(audio_tokens(&model, DType::F32)?, &Mode::inference())?;
    let error = model.asr_model.text_losses(&audio, &texts()[..1], &Mode::inference());
    assert!(matches!(error, Err(ModelError::BadInput(_))));
    let invalid = ProjectionConfig { init_std: f64::NAN, ..ProjectionConfig::default() };
    let error = VisualProjection::new(&invalid, E, 8, &ParameterBuilder::on_cpu(0)).unwrap_err();
    assert!(error.to_string().contains("init_std"));
    Ok(())
}
