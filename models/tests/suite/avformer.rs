//! AVFormer on all ASR models: trained parameters, and the effect of images.

use candle_core::{DType, Tensor};
use engram_models::avformer::{
    Avformer, AvformerConfig, EncodedClips, FrozenAsrModel, ProjectionConfig, TokenPosition,
    VisualTokens,
};
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::speech::AudioStates;
use engram_models::{ModelError, Result};

use super::compute::models::{
    audio_tokens, conformer_attention, conformer_ctc, conformer_transducer, texts, whisper,
};
use super::reference::{largest_difference, values, waves};

type BuildAsrModel = fn(&ParameterBuilder) -> Result<FrozenAsrModel>;

/// A Conformer with each decoder, and Whisper.
const ASR_MODELS: [BuildAsrModel; 4] =
    [conformer_ctc, conformer_transducer, conformer_attention, whisper];

/// Images per clip. An embedding has three values.
const COUNTS: [usize; 2] = [2, 1];

fn build(
    build_asr_model: BuildAsrModel,
    config: &AvformerConfig,
    dtype: DType,
) -> Result<(Avformer, Parameters)> {
    let frozen = vec![ParameterGroup { pattern: "asr_model.**".into(), rate: 0.0 }];
    let builder = ParameterBuilder::new(2, frozen, &Compute { dtype, ..Compute::cpu() });
    let asr_model = build_asr_model(&builder.pp("asr_model"))?;
    let model = Avformer::new(asr_model, config, 3, &builder)?;
    Ok((model, builder.finish()?))
}

/// The configuration of a projection with random weights.
fn random_projection(position: TokenPosition) -> AvformerConfig {
    let projection = ProjectionConfig { init_std: 0.5, position };
    AvformerConfig { projection, ..AvformerConfig::default() }
}

fn embeddings() -> Result<Tensor> {
    waves(&[3, 3], 0.9, DType::F32)
}

/// The encoder states of two clips with images.
fn encode(model: &Avformer, embeddings: &Tensor, counts: &[usize]) -> Result<AudioStates> {
    let visual = VisualTokens { embeddings, counts };
    Ok(model.encode(audio_tokens(&model.asr_model)?, Some(&visual), &Mode::evaluate())?.audio)
}

/// All added parameters have a gradient from the first step on; the up-projections are set to
/// non-zero values for this. No parameter of the ASR model has a gradient.
#[test]
fn exactly_the_added_parameters_get_gradients() -> Result<()> {
    for build_asr_model in ASR_MODELS {
        let config = random_projection(TokenPosition::Before);
        let (model, parameters) = build(build_asr_model, &config, DType::F32)?;
        for up in parameters.iter().filter(|p| p.name().ends_with("up.weight")) {
            up.update(&mut |values| {
                values.iter_mut().zip(1..).for_each(|(v, i)| *v = (i as f32).sin() * 0.1)
            })?;
        }
        let audio = encode(&model, &embeddings()?, &COUNTS)?;
        let losses = model.asr_model.text_losses(&audio.into(), &texts(), &Mode::evaluate())?;
        let gradients = losses.mean_all()?.backward()?;
        for parameter in parameters.iter() {
            let name = parameter.name();
            let is_added = name.starts_with("adapters") || name.starts_with("projection");
            let gradient = gradients.get(parameter.tensor()).map(values).transpose()?;
            assert_eq!(
                (parameter.is_trainable(), gradient.is_some()),
                (is_added, is_added),
                "{name}"
            );
            let gradient = gradient.unwrap_or_default();
            assert!(gradient.iter().all(|g| g.is_finite()), "{name}");
            assert_eq!(gradient.iter().any(|g| *g != 0.0), is_added, "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_new_model_without_images_equals_the_asr_model_and_clips_are_independent() -> Result<()> {
    for build_asr_model in ASR_MODELS {
        let (model, _) = build(build_asr_model, &AvformerConfig::default(), DType::F32)?;
        let clips = audio_tokens(&model.asr_model)?;
        let mode = Mode::evaluate();
        let frozen = values(&model.asr_model.encode_unadapted(clips.clone(), &mode)?.states)?;
        assert_eq!(values(&model.encode(clips.clone(), None, &mode)?.audio.states)?, frozen);
        let states = |model: &Avformer, embeddings: &Tensor, counts: &[usize]| {
            values(&encode(model, embeddings, counts)?.states)
        };
        let none = Tensor::zeros((0, 3), DType::F32, clips.states.device())?;
        assert_eq!(states(&model, &none, &[0, 0])?, frozen);
        // A zero projection ignores the image, but the encoder gets a token for it.
        let with_images = states(&model, &embeddings()?, &COUNTS)?;
        assert_eq!(with_images, states(&model, &waves(&[3, 3], 0.4, DType::F32)?, &COUNTS)?);
        assert_ne!(with_images, frozen);
        // Clips do not attend to each other's images.
        let config = random_projection(TokenPosition::Before);
        let (model, _) = build(build_asr_model, &config, DType::F32)?;
        let both = encode(&model, &embeddings()?, &COUNTS)?.states;
        let first_only = encode(&model, &embeddings()?.narrow(0, 0, 2)?, &[2, 0])?.states;
        let first = |states: &Tensor| states.narrow(0, 0, clips.lengths[0]);
        assert!(largest_difference(&first(&both)?, &first(&first_only)?)? < 1e-5);
        assert_ne!(values(&both)?.last(), values(&first_only)?.last());
    }
    Ok(())
}

#[test]
fn only_decoders_with_attention_read_visual_states() -> Result<()> {
    for (build_asr_model, has_attention) in ASR_MODELS.into_iter().zip([false, false, true, true]) {
        let mut shares = Vec::new();
        for position in [TokenPosition::Before, TokenPosition::After] {
            let (model, _) = build(build_asr_model, &random_projection(position), DType::F32)?;
            let clips = audio_tokens(&model.asr_model)?;
            let audio = encode(&model, &embeddings()?, &COUNTS)?;
            let visual = if has_attention { 3 } else { 0 };
            assert_eq!(audio.states.dim(0)?, clips.states.dim(0)? + visual);
            assert_eq!(audio.lengths == clips.lengths, visual == 0);

            let encoded = EncodedClips::from(audio.clone());
            let share_of = |counts: &[usize]| model.attention_to_images(&encoded, counts, &texts());
            let to_images = share_of(&COUNTS)?;
            assert_eq!(to_images.is_some(), has_attention);
            let to_images = to_images.unwrap_or_default();
            for ((shares, text), count) in to_images.iter().zip(texts()).zip(COUNTS) {
                assert_eq!(shares.len(), text.len());
                let fits =
                    |share: &f64| (0.0..1.0).contains(share) && (*share > 0.0) == (count > 0);
                assert!(shares.iter().all(fits), "{shares:?}");
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
    for (shape, counts) in [([3, 4], &COUNTS[..]), ([2, 3], &COUNTS), ([3, 3], &[3])] {
        let result = encode(&model, &waves(&shape, 0.9, DType::F32)?, counts);
        let error = result.expect_err("an error").to_string();
        assert!(error.contains("there are 2 clips, and this projection takes"), "{error}");
    }
    let (clips, mode) = (audio_tokens(&model.asr_model)?, Mode::inference());
    let audio = model.asr_model.encode_unadapted(clips, &mode)?;
    let error = model.asr_model.text_losses(&audio.into(), &texts()[..1], &mode);
    assert!(matches!(error, Err(ModelError::BadInput(_))));
    let projection = ProjectionConfig { init_std: f64::NAN, ..ProjectionConfig::default() };
    let invalid = AvformerConfig { projection, ..AvformerConfig::default() };
    let error = build(whisper, &invalid, DType::F32).expect_err("an error").to_string();
    assert!(error.contains("init_std"), "{error}");
    Ok(())
}
