//! The Conformer against `transformers`: frames, states, logits and every gradient; fresh ones of each
//! kind against central differences; the published sizes.
//!
//! The fixtures are made by `tests/reference/conformer.py`.

mod reference;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use engram_models::Result;
use engram_models::conformer::{
    ConformerConfig, ConformerCtc, ConformerCtcConfig, ConformerEncoder, ConvolutionNorm,
    Subsampling,
};
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::Mode;
use engram_models::params::ParameterBuilder;
use engram_models::speech::log_mel::LogMel;
use engram_models::weights::Weights;
use reference::{assert_output, expected, fixture};

fn load(dtype: DType) -> Result<(ConformerCtc, ParameterBuilder)> {
    let config = ConformerCtcConfig::read(&fixture("conformer", "config.json"))?;
    let builder = ParameterBuilder::new(0, Vec::new(), dtype, &Device::Cpu);
    let weights = Arc::new(Weights::open(&fixture("conformer", "model.safetensors"))?);
    Ok((ConformerCtc::new(&config, &builder.with_weights(weights))?, builder))
}

#[test]
fn states_logits_and_gradients_are_those_of_the_reference() -> Result<()> {
    let tensors = expected("conformer")?;
    let lengths: Vec<usize> = tensors["lengths"]
        .to_dtype(DType::U32)?
        .to_vec1::<u32>()?
        .iter()
        .map(|&length| length as usize)
        .collect();
    for (dtype, tolerance) in [(DType::F64, 2e-6), (DType::F32, 2e-4)] {
        let (model, _) = load(dtype)?;
        let frames = Var::from_tensor(&tensors["frames"].to_dtype(dtype)?)?;
        let mode = Mode::evaluate();
        let embedded = model.encoder().embed(frames.as_tensor(), &lengths)?;
        assert_eq!(embedded.lengths, [11, 6]);
        let audio = model.encoder().forward(embedded, &[], &mode)?;
        assert_output(("conformer", "states"), &audio.states, &tensors, tolerance)?;
        let logits = model.logits(&audio)?;
        assert_output(("conformer", "logits"), &logits, &tensors, tolerance)?;
    }
    Ok(())
}

#[test]
fn frames_are_those_of_the_reference() -> Result<()> {
    let read = |file| candle_core::safetensors::load(fixture("", file), &Device::Cpu);
    let samples = read("log_mel.safetensors")?["samples"].to_dtype(DType::F32)?;
    let samples = (samples / 32_768.0)?.to_vec1::<f32>()?;
    let want = read("log_mel_normalised.safetensors")?["frames"].to_vec2::<f32>()?;
    let made = LogMel::normalised(80)?.frames(&samples, 0);
    assert_eq!(made.len(), samples.len() / 160);
    assert_eq!(want.len(), made.len().div_ceil(3));
    for (i, want) in want.iter().enumerate() {
        let row = &made.values[3 * i * 80..][..80];
        for (found, want) in row.iter().zip(want) {
            // torch transforms in f32 too, and quiet bands have few digits left.
            assert!((found - want).abs() < 3e-4, "frame {}: {found}, {want}", 3 * i);
        }
    }
    Ok(())
}

/// A small encoder of each kind.
fn small() -> ConformerConfig {
    ConformerConfig {
        hidden_size: 4,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        intermediate_size: 6,
        conv_kernel_size: 3,
        subsampling_conv_channels: 2,
        num_mel_bins: 4,
        dropout: 0.0,
        attention_dropout: 0.0,
        initializer_range: 0.4,
        ..ConformerConfig::tiny()
    }
}

#[test]
fn gradients_of_frames_against_central_differences() -> Result<()> {
    let frames: Vec<f64> = (0..48).map(|i| (f64::from(i) * 1.7).sin()).collect();
    for subsampling in [Subsampling::Full, Subsampling::Depthwise] {
        for convolution_norm in [ConvolutionNorm::LayerNorm, ConvolutionNorm::BatchNorm] {
            let config = ConformerConfig { subsampling, convolution_norm, ..small() };
            check_gradients(&[(frames.clone(), &[12, 4])], |t| {
                let dtype = t[0].dtype();
                let builder = ParameterBuilder::new(3, Vec::new(), dtype, &Device::Cpu);
                let encoder = ConformerEncoder::new(&config, &builder)?;
                let embedded = encoder.embed(&t[0], &[7, 5])?;
                Ok(encoder.forward(embedded, &[], &Mode::evaluate())?.states)
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_clip_does_not_hear_the_others() -> Result<()> {
    let encoder = ConformerEncoder::new(&small(), &ParameterBuilder::on_cpu(1))?;
    let encode = |frames: &Tensor, lengths: &[usize]| {
        let embedded = encoder.embed(frames, lengths)?;
        encoder.forward(embedded, &[], &Mode::predict())
    };
    let frames = Tensor::randn(0f32, 1.0, (23, 4), &Device::Cpu)?;
    let both = encode(&frames, &[14, 9])?;
    let second = encode(&frames.narrow(0, 14, 9)?, &[9])?;
    assert_eq!(both.lengths, [4, 3]);
    let of_second = both.states.narrow(0, 4, 3)?.to_vec2::<f32>()?;
    for (a, b) in of_second.iter().flatten().zip(second.states.to_vec2::<f32>()?.iter().flatten()) {
        assert!((a - b).abs() < 1e-5);
    }
    assert!(encoder.embed(&frames, &[23, 0]).is_err());
    Ok(())
}

#[test]
fn published_sizes() -> Result<()> {
    let millions = |config: ConformerConfig| -> Result<f64> {
        let builder = ParameterBuilder::of_shapes();
        ConformerEncoder::new(&config, &builder)?;
        Ok(builder.finish()?.element_counts().0 as f64 / 1e6)
    };
    for (config, from, to) in [
        (ConformerConfig::tiny(), 1.0, 4.0),
        (ConformerConfig::large(), 100.0, 125.0),
        (ConformerConfig::extra_large(), 580.0, 640.0),
        (ConformerConfig::default(), 580.0, 640.0),
    ] {
        let found = millions(config)?;
        println!("{found:.1} million");
        assert!((from..to).contains(&found), "{found}");
    }
    Ok(())
}
