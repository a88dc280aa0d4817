//! ViT against `transformers`: the last hidden state, all gradients, and the stop-gradient.
//!
//! `tests/reference/vit.py` creates the fixtures.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::gradients::Gradients;
use engram_models::kernels::{Activation, Mode};
use engram_models::params::Parameters;
use engram_models::vit::{ViT, ViTConfig, ViTOutput};
use engram_models::weights::Weights;
use engram_models::{ModelError, Result};

use super::reference::{
    assert_config_errors, assert_gradients, assert_output, builder, expected, fixture, read_config,
    relative_difference, value_count, values, waves, weighted_sum, weights,
};

const MODELS: [&str; 3] = ["vit", "vit_classifier", "vit_patches"];

fn load(name: &str, dtype: DType) -> Result<(ViT, Parameters)> {
    let config = ViTConfig::read(&fixture(name, "config.json"))?;
    let weights = Weights::open(&fixture(name, "model.safetensors"))?;
    let builder = builder(0, dtype).with_weights(Arc::new(weights.with_optional_prefix("vit.")));
    Ok((ViT::new(&config, &builder)?, builder.finish()?))
}

/// A model with random weights, small enough for central differences.
fn tiny(class_token: bool) -> Result<(ViT, Parameters)> {
    let config = ViTConfig {
        image_size: 4,
        patch_size: 2,
        hidden_size: 4,
        intermediate_size: 6,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        layer_norm_eps: 1e-6,
        initializer_range: 0.4,
        class_token,
        ..ViTConfig::base_16()
    };
    let builder = builder(5, DType::F32);
    Ok((ViT::new(&config, &builder)?, builder.finish()?))
}

/// Images for [`tiny`], `[2, 3, 4, 4]`.
fn images() -> Result<Tensor> {
    waves(&[2, 3, 4, 4], 0.9, DType::F32)
}

/// Returns all tokens, in the layout of the reference.
fn last_hidden_state(output: &ViTOutput) -> Result<Tensor> {
    Ok(match &output.class_token {
        Some(class) => Tensor::cat(&[&class.unsqueeze(1)?, &output.patch_tokens], 1)?,
        None => output.patch_tokens.clone(),
    })
}

/// Compares the hidden state and the gradients of a fixture with the reference.
fn check(name: &str, dtype: DType, tolerance: f32) -> Result<()> {
    let (vit, parameters) = load(name, dtype)?;
    let tensors = expected(name)?;
    let output = vit.forward(&tensors["pixels"].to_dtype(dtype)?, None, &Mode::evaluate())?;
    assert_eq!(output.class_token.is_some(), vit.config.class_token);
    let hidden = last_hidden_state(&output)?;
    assert_output((name, "hidden"), &hidden, &tensors, tolerance)?;
    assert_gradients(name, &weighted_sum(&hidden)?, &parameters, &tensors, 20.0 * tolerance)
}

#[test]
fn the_last_hidden_state_and_every_gradient_equal_the_reference() -> Result<()> {
    for name in MODELS {
        check(name, DType::F32, 5e-6)?;
        check(name, DType::F64, 1e-6)?;
    }
    Ok(())
}

#[test]
fn published_configurations_are_read_with_their_values() -> Result<()> {
    let published = ViTConfig::read(&fixture("vit_classifier", "config.json"))?;
    assert_eq!((published.hidden_act, published.layer_norm_eps), (Activation::GeluTanh, 1e-3));
    assert!(published.class_token && !published.qkv_bias);
    let patches = ViTConfig::read(&fixture("vit_patches", "config.json"))?;
    assert!(!patches.class_token && patches.qkv_bias);
    Ok(())
}

#[test]
fn every_parameter_has_a_gradient() -> Result<()> {
    for class_token in [true, false] {
        let (vit, parameters) = tiny(class_token)?;
        let output = vit.forward(&images()?, None, &Mode::train(1))?;
        let mut gradients = Gradients::new(&parameters);
        gradients.backward(&weighted_sum(&last_hidden_state(&output)?)?)?;
        let faults = gradients.faults();
        // A key bias shifts all scores of a row equally: its gradient is rounding error, or zero.
        assert!(faults.iter().all(|(name, _)| name.ends_with("key.bias")), "{faults:?}");
        assert_eq!(parameters.len(), if class_token { 54 } else { 53 });
    }
    Ok(())
}

/// With a stop-gradient, values do not change, lower gradients are missing, and upper gradients are
/// equal.
#[test]
fn no_gradient_passes_a_stop_gradient() -> Result<()> {
    let (vit, parameters) = tiny(true)?;
    let pixels = images()?;
    let run = |frozen_blocks| -> Result<(Vec<f32>, Gradients)> {
        let hidden = last_hidden_state(&vit.forward(&pixels, frozen_blocks, &Mode::evaluate())?)?;
        let mut gradients = Gradients::new(&parameters);
        gradients.backward(&weighted_sum(&hidden)?)?;
        Ok((values(&hidden)?, gradients))
    };
    let (full, all_gradients) = run(None)?;
    for frozen_blocks in 0..=3 {
        let (hidden, gradients) = run(Some(frozen_blocks))?;
        assert_eq!(hidden, full, "{frozen_blocks} frozen blocks");
        for parameter in parameters.iter() {
            let name = parameter.name();
            let block = name.strip_prefix("encoder.layer.").and_then(|rest| rest.split('.').next());
            let is_frozen = match block.map(|block| block.parse::<usize>().expect("a number")) {
                Some(block) => block < frozen_blocks,
                None => name.starts_with("embeddings."),
            };
            let expected = if is_frozen { None } else { all_gradients.by_name(name) };
            assert_eq!(gradients.by_name(name), expected, "{frozen_blocks} frozen blocks: {name}");
        }
    }
    let error = vit.forward(&pixels, Some(4), &Mode::evaluate()).expect_err("an error");
    assert!(error.to_string().contains("after 4 blocks, but there are 3"), "{error}");
    Ok(())
}

/// Dropout is active only in training. An image gives the same result alone and in a batch.
#[test]
fn dropout_acts_only_in_training_and_images_are_independent() -> Result<()> {
    let pixels = images()?;
    let (tiny, _) = tiny(false)?;
    let builder = builder(5, DType::F32);
    let config = ViTConfig { hidden_dropout_prob: 0.3, ..tiny.config.clone() };
    let vit = ViT::new(&config, &builder)?;
    let run = |vit: &ViT, pixels: &Tensor, mode: Mode| -> Result<Vec<f32>> {
        values(&vit.forward(pixels, None, &mode)?.patch_tokens)
    };
    let expected = run(&tiny, &pixels, Mode::evaluate())?;
    assert_eq!(run(&vit, &pixels, Mode::evaluate())?, expected);
    assert_eq!(run(&vit, &pixels, Mode::inference())?, expected);
    let trained = run(&vit, &pixels, Mode::train(1))?;
    assert_ne!(trained, expected);
    assert_ne!(trained, run(&vit, &pixels, Mode::train(2))?);
    assert_eq!(trained, run(&vit, &pixels, Mode::train(1))?);
    let second = run(&vit, &pixels.narrow(0, 1, 1)?, Mode::evaluate())?;
    assert!(relative_difference(&second, &expected[second.len()..]) < 1e-6);
    Ok(())
}

#[test]
fn images_of_another_shape_are_errors() -> Result<()> {
    let (vit, _) = load("vit", DType::F32)?;
    for shape in [&[2, 3, 12, 11][..], &[2, 1, 12, 12], &[0, 3, 12, 12], &[3, 12, 12], &[12]] {
        let pixels = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
        let error = vit.forward(&pixels, None, &Mode::inference()).expect_err("an error");
        assert!(error.to_string().contains("takes [B, 3, 12, 12]"), "{error}");
    }
    Ok(())
}

/// Weights with a class token cannot be loaded into a model without one.
#[test]
fn weights_of_another_shape_are_errors() -> Result<()> {
    let config =
        ViTConfig { class_token: false, ..ViTConfig::read(&fixture("vit", "config.json"))? };
    let builder = builder(0, DType::F32).with_weights(weights("vit")?);
    let error = ViT::new(&config, &builder).expect_err("an error").to_string();
    assert!(error.contains("position_embeddings") && error.contains("[1, 9, 16]"), "{error}");
    Ok(())
}

/// The counts come from `transformers`, printed by the script that creates the fixtures.
#[test]
fn published_sizes_have_the_published_parameter_counts() -> Result<()> {
    let count = |config: &ViTConfig| value_count(|builder| ViT::new(config, builder));
    for (config, parameters) in
        [(ViTConfig::base_16(), 85_798_656), (ViTConfig::large_16(), 303_301_632)]
    {
        assert_eq!((count(&config)?, config.num_patches()), (parameters, 196));
        // The values of the class token and of its position embedding.
        let class_token_values = 2 * config.hidden_size;
        let reveal = ViTConfig { class_token: false, ..config };
        assert_eq!(count(&reveal)?, parameters - class_token_values);
    }
    Ok(())
}

/// A convolutional stem does not change the number of patches. Every parameter has a gradient.
#[test]
fn a_convolution_stem_keeps_the_number_of_patches_and_has_gradients() -> Result<()> {
    let config = ViTConfig {
        image_size: 16,
        patch_size: 8,
        num_channels: 3,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        class_token: false,
        stem_channels: vec![6, 10],
        ..ViTConfig::base_16()
    };
    let builder = builder(1, DType::F32);
    let vit = ViT::new(&config, &builder)?;
    let parameters = builder.finish()?;
    let pixels = waves(&[2, 3, 16, 16], 0.37, DType::F32)?;
    let output = vit.forward(&pixels, None, &Mode::train(1))?;
    assert_eq!(output.patch_tokens.dims(), [2, 4, 8]);
    let mut gradients = Gradients::new(&parameters);
    gradients.backward(&weighted_sum(&output.patch_tokens)?)?;
    let faults = gradients.faults();
    assert!(faults.iter().all(|(name, _)| name.ends_with("key.bias")), "{faults:?}");
    // The states of an image do not depend on other images.
    let alone = vit.forward(&pixels.narrow(0, 1, 1)?, None, &Mode::inference())?.patch_tokens;
    let together = output.patch_tokens.narrow(0, 1, 1)?;
    let difference = (alone - together)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "{difference}");
    let invalid = ViTConfig { stem_channels: vec![6; 4], ..config };
    let error = invalid
        .validate()
        .expect_err("four convolutions with stride 2 need patches of 16 pixels")
        .to_string();
    assert!(error.contains("stem_channels"), "{error}");
    Ok(())
}

#[test]
fn invalid_configurations_are_errors() -> Result<()> {
    let cases = [
        (r#"{"hidden_size": 8}"#, "model_type"),
        (r#"{"model_type": "clip"}"#, "model_type is `clip`; expected `vit`"),
        (r#"{"model_type": "vit", "num_attention_heads": 7}"#, "7 heads"),
        (r#"{"model_type": "vit", "num_attention_heads": 0}"#, "0 heads"),
        (r#"{"model_type": "vit", "hidden_size": 0}"#, "hidden_size"),
        (r#"{"model_type": "vit", "intermediate_size": 0}"#, "intermediate_size"),
        (r#"{"model_type": "vit", "num_hidden_layers": 100000}"#, "num_hidden_layers"),
        (r#"{"model_type": "vit", "num_channels": 0}"#, "num_channels"),
        (r#"{"model_type": "vit", "num_channels": 100000}"#, "num_channels"),
        (r#"{"model_type": "vit", "patch_size": 0}"#, "patch_size"),
        (r#"{"model_type": "vit", "image_size": 100}"#, "do not fill"),
        (r#"{"model_type": "vit", "image_size": 1600000}"#, "do not fill"),
        (r#"{"model_type": "vit", "layer_norm_eps": 0}"#, "layer_norm_eps"),
        (r#"{"model_type": "vit", "hidden_dropout_prob": 1}"#, "hidden_dropout_prob"),
        (r#"{"model_type": "vit", "initializer_range": -1}"#, "initializer_range"),
        (r#"{"model_type": "vit", "hidden_act": "x"}"#, "unknown variant"),
        (r#"{"model_type": "vit""#, "EOF"),
    ];
    assert_config_errors(ViTConfig::read, &cases);
    let defaults = read_config(ViTConfig::read, r#"{"model_type": "vit"}"#)?;
    assert_eq!(defaults, ViTConfig::base_16());
    let absent = ViTConfig::read(&fixture("vit", "absent.json")).expect_err("no file");
    assert!(matches!(absent, ModelError::Io { .. }), "{absent}");
    Ok(())
}
