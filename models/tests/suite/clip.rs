//! Compares CLIP with `transformers`: states, embeddings, logits and all gradients of the
//! contrastive loss.
//!
//! `tests/reference/clip.py` creates the fixtures.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::clip::{Clip, ClipConfig, ClipVision, ClipVisionConfig, contrastive_loss};
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, Parameters};

use super::reference::{
    assert_config_errors, assert_gradients, assert_output, builder, expected, fixture,
    frozen_builder, read_config, relative_difference, sequences, values, weights,
};

fn load(name: &str, builder: ParameterBuilder) -> Result<(Clip, Parameters)> {
    let config = ClipConfig::read(&fixture(name, "config.json"))?;
    let builder = builder.with_weights(weights(name)?);
    Ok((Clip::new(&config, &builder)?, builder.finish()?))
}

fn check(name: &str, dtype: DType, tolerance: f32) -> Result<()> {
    let (clip, parameters) = load(name, builder(0, dtype))?;
    let tensors = expected(name)?;
    let texts = PackedTokens::new(&sequences(&tensors["ids"], &tensors["lengths"])?);
    let texts = clip.encode_texts(&texts, &Mode::evaluate())?;
    let images = clip.vision.forward(&tensors["pixels"].to_dtype(dtype)?, &Mode::evaluate())?;
    let logits = clip.logits(&images.embeddings, &texts.embeddings)?;
    for (what, actual) in [
        ("text_hidden", &texts.last_hidden_state),
        ("text_embeddings", &texts.embeddings),
        ("image_hidden", &images.last_hidden_state),
        ("image_embeddings", &images.embeddings),
        ("logits", &logits),
    ] {
        assert_output((name, what), actual, &tensors, tolerance)?;
    }
    let loss = contrastive_loss(&logits)?;
    assert_gradients(name, &loss, &parameters, &tensors, 20.0 * tolerance)
}

#[test]
fn states_embeddings_and_every_gradient_equal_the_reference() -> Result<()> {
    for name in ["clip", "clip_old"] {
        check(name, DType::F32, 5e-6)?;
        check(name, DType::F64, 1e-6)?;
    }
    Ok(())
}

/// Checks the vision encoder alone, with a configuration as `transformers` writes it.
#[test]
fn the_vision_encoder_alone_equals_the_reference() -> Result<()> {
    let config = ClipVisionConfig::read(&fixture("clip_vision", "config.json"))?;
    let tensors = expected("clip_vision")?;
    for (dtype, tolerance) in [(DType::F32, 5e-6), (DType::F64, 1e-6)] {
        let builder = builder(0, dtype).with_weights(weights("clip_vision")?);
        let vision = ClipVision::new(&config, &builder)?;
        let images = vision.forward(&tensors["pixels"].to_dtype(dtype)?, &Mode::evaluate())?;
        for (what, actual) in
            [("image_hidden", &images.last_hidden_state), ("image_embeddings", &images.embeddings)]
        {
            assert_output(("clip_vision", what), actual, &tensors, tolerance)?;
        }
        let loss = (images.embeddings * tensors["direction"].to_dtype(dtype)?)?.sum_all()?;
        assert_gradients("clip_vision", &loss, &builder.finish()?, &tensors, 20.0 * tolerance)?;
    }
    // Writing and reading gives the same configuration.
    let json = serde_json::to_string(&config).expect("a configuration");
    assert_eq!(serde_json::from_str::<ClipVisionConfig>(&json).expect("the same"), config);
    Ok(())
}

/// A text gives the same result alone and in a batch. Tokens after its end do not change its
/// embedding.
#[test]
fn tokens_after_the_end_of_a_text_do_not_change_its_embedding() -> Result<()> {
    let (clip, _) = load("clip", frozen_builder())?;
    let embed = |texts: &[&[u32]]| -> Result<Vec<f32>> {
        values(&clip.encode_texts(&PackedTokens::new(texts), &Mode::inference())?.embeddings)
    };
    let alone = embed(&[&[38, 7, 9, 39]])?;
    for batch in [embed(&[&[38, 7, 9, 39, 39, 5], &[38, 39]])?, embed(&[&[38, 7, 9, 39], &[39]])?] {
        assert!(relative_difference(&batch[..alone.len()], &alone) < 1e-5);
    }
    Ok(())
}

#[test]
fn mismatched_inputs_are_errors() -> Result<()> {
    let (clip, _) = load("clip", frozen_builder())?;
    let error_of = |ids: Vec<u32>| {
        let result = clip.encode_texts(&PackedTokens::new(&[ids]), &Mode::inference());
        result.expect_err("an error").to_string()
    };
    assert!(error_of(vec![38, 4]).contains("lacks the end-of-text token 39"));
    assert!(error_of(vec![39; 13]).contains("takes at most 12"));
    assert!(error_of(vec![40, 39]).contains("id 40"));
    let pixels = Tensor::zeros((2, 3, 12, 11), DType::F32, &Device::Cpu)?;
    let error = clip.vision.forward(&pixels, &Mode::inference()).expect_err("an error");
    assert!(error.to_string().contains("takes [B, 3, 12, 12]"), "{error}");
    Ok(())
}

#[test]
fn older_config_fields_take_precedence() -> Result<()> {
    let text = r#"{"model_type": "clip", "text_config": {"hidden_size": 32, "eos_token_id": 2},
        "text_config_dict": {"hidden_size": 64}, "vision_config": {"patch_size": 14},
        "vision_config_dict": null}"#;
    let config = read_config(ClipConfig::read, text)?;
    // As in transformers 5.23, fields missing in `text_config_dict` have their defaults.
    assert_eq!((config.text_config.hidden_size, config.text_config.eos_token_id), (64, 49407));
    assert_eq!(config.vision_config.patch_size, 14);
    Ok(())
}

#[test]
fn invalid_configurations_are_errors() -> Result<()> {
    let cases = [
        (r#"{"model_type": "bert"}"#, "model_type is `bert`; expected `clip`"),
        (r#"{"model_type": "clip", "projection_dim": 0}"#, "projection_dim"),
        (r#"{"model_type": "clip", "vision_config": {"patch_size": 0}}"#, "patch_size"),
        (r#"{"model_type": "clip", "vision_config": {"image_size": 100}}"#, "do not fill"),
        (r#"{"model_type": "clip", "text_config": {"num_attention_heads": 7}}"#, "7 heads"),
        (r#"{"model_type": "clip", "text_config": {"hidden_act": "x"}}"#, "unknown variant"),
        (r#"{"model_type": "clip""#, "EOF"),
    ];
    assert_config_errors(ClipConfig::read, &cases);
    let defaults = read_config(ClipConfig::read, r#"{"model_type": "clip"}"#)?;
    assert_eq!((defaults.vision_config.num_patches(), defaults.projection_dim), (49, 512));
    Ok(())
}
