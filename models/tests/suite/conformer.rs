//! Compares the Conformer with `transformers`: frames, states, logits and every gradient. Also
//! compares the gradients of models with random weights with central differences, and parameter
//! counts with the published counts.
//!
//! `tests/reference/conformer.py` creates the fixtures.

use super::reference::{
    assert_every_third_frame, assert_gradients, assert_output, builder, expected, fixture,
    integers, largest_difference, lengths, tensors, value_count, weights,
};
use candle_core::{DType, Device, Tensor, Var};
use engram_models::Result;
use engram_models::adapter::{AdapterConfig, Adapters};
use engram_models::compute::Compute;
use engram_models::conformer::{
    ConformerAsrConfig, ConformerAsrModel, ConformerConfig, ConformerDecoder, ConformerEncoder,
    ConvolutionNorm, Subsampling,
};
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::best_rq::{BestRq, BestRqConfig};

use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::{Frames, LogMel};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[test]
fn states_logits_and_gradients_equal_the_reference() -> Result<()> {
    let tensors = expected("conformer")?;
    let lengths = lengths(&tensors["lengths"])?;
    let targets = vec![integers(&tensors["text.0"])?, integers(&tensors["text.1"])?];
    let config = ConformerAsrConfig::read(&fixture("conformer", "config.json"))?;
    for (dtype, tolerance) in [(DType::F64, 2e-6), (DType::F32, 2e-4)] {
        let builder = builder(0, dtype).with_weights(weights("conformer")?);
        let model = ConformerAsrModel::new(&config, &builder)?;
        let ConformerDecoder::Ctc(head) = &model.decoder else { panic!("a CTC head") };
        let parameters = builder.finish()?;
        let frames = Var::from_tensor(&tensors["frames"].to_dtype(dtype)?)?;
        let mode = Mode::evaluate();
        let audio_tokens = model.encoder.embed(frames.as_tensor(), &lengths)?;
        assert_eq!(audio_tokens.lengths, [11, 6]);
        let audio = model.encoder.forward(audio_tokens, &Adapters::NONE, &mode)?;
        assert_output(("conformer", "states"), &audio.states, &tensors, tolerance)?;
        assert_output(("conformer", "logits"), &head.logits(&audio)?, &tensors, tolerance)?;
        let losses = head.losses(&audio, &targets)?;
        assert_output(("conformer", "losses"), &losses, &tensors, tolerance)?;
        let loss = losses.mean_all()?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(frames.as_tensor()).expect("a gradient of the frames");
        assert_output(("conformer", "frames_gradient"), gradient, &tensors, tolerance)?;
        assert_gradients("conformer", &loss, &parameters, &tensors, tolerance)?;
        // Batch statistics are frozen parameters.
        let frozen = parameters.iter().filter(|p| !p.is_trainable()).map(|p| p.name());
        assert!(frozen.clone().all(|name| name.contains(".running_")));
        assert_eq!(frozen.count(), 4);
    }
    Ok(())
}

#[test]
fn frames_equal_the_reference() -> Result<()> {
    let samples = tensors("", "log_mel.safetensors")?["samples"].to_dtype(DType::F32)?;
    let samples = (samples / 32_768.0)?.to_vec1::<f32>()?;
    let computed = LogMel::conformer(80)?.frames(&samples, 0);
    assert_eq!(computed.len(), samples.len() / 160);
    // torch computes the transform in f32 too, and quiet bands have few significant digits left.
    let expected = &tensors("", "log_mel_normalised.safetensors")?["frames"];
    assert_eq!(expected.dim(0)?, computed.len().div_ceil(3));
    assert_every_third_frame(&computed, expected, 3e-4)
}

/// The configuration of a small encoder.
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
fn gradients_of_frames_equal_central_differences() -> Result<()> {
    let frames: Vec<f64> = (0..48).map(|i| (f64::from(i) * 1.7).sin()).collect();
    for subsampling in [Subsampling::Full, Subsampling::Depthwise] {
        for convolution_norm in [ConvolutionNorm::LayerNorm, ConvolutionNorm::BatchNorm] {
            let config = ConformerConfig { subsampling, convolution_norm, ..small() };
            check_gradients(&[(frames.clone(), &[12, 4])], |t| {
                let dtype = t[0].dtype();
                let encoder = ConformerEncoder::new(&config, &builder(3, dtype))?;
                let audio_tokens = encoder.embed(&t[0], &[7, 5])?;
                Ok(encoder.forward(audio_tokens, &Adapters::NONE, &Mode::evaluate())?.states)
            })?;
        }
    }
    Ok(())
}

#[test]
fn clips_do_not_attend_to_each_other() -> Result<()> {
    let encoder = ConformerEncoder::new(&small(), &ParameterBuilder::on_cpu(1))?;
    let encode = |frames: &Tensor, lengths: &[usize]| {
        let audio_tokens = encoder.embed(frames, lengths)?;
        encoder.forward(audio_tokens, &Adapters::NONE, &Mode::inference())
    };
    let frames = Tensor::randn(0f32, 1.0, (23, 4), &Device::Cpu)?;
    let both = encode(&frames, &[14, 9])?;
    let second = encode(&frames.narrow(0, 14, 9)?, &[9])?;
    assert_eq!(both.lengths, [4, 3]);
    assert!(largest_difference(&both.states.narrow(0, 4, 3)?, &second.states)? < 1e-5);
    assert!(encoder.embed(&frames, &[23, 0]).is_err());
    Ok(())
}

/// Separate runs of tokens are not convolved with each other, but attend to each other.
#[test]
fn runs_of_tokens_are_convolved_separately() -> Result<()> {
    let encoder = ConformerEncoder::new(&small(), &ParameterBuilder::on_cpu(1))?;
    let frames = Tensor::randn(0f32, 1.0, (16, 4), &Device::Cpu)?;
    let tokens = encoder.embed(&frames, &[16])?;
    let encode = |tokens: &AudioStates, parts: &[usize]| -> Result<Vec<Vec<f32>>> {
        let (adapters, mode) = (&Adapters::NONE, &Mode::inference());
        let encoded = encoder.forward_parts(tokens.clone(), parts.to_vec(), adapters, mode)?;
        Ok(encoded.states.to_vec2()?)
    };
    let together = encode(&tokens, &[4])?;
    let forward = encoder.forward(tokens.clone(), &Adapters::NONE, &Mode::inference())?;
    assert_eq!(together, forward.states.to_vec2::<f32>()?);
    let separate = encode(&tokens, &[2, 2])?;
    // With a kernel of three states, only the states next to the end of a run read across it.
    let differs: Vec<bool> = together.iter().zip(&separate).map(|(a, b)| a != b).collect();
    assert_eq!(differs, [false, true, true, false]);
    // As two clips, the runs do not attend to each other either.
    let clips = AudioStates { lengths: vec![2, 2], ..tokens.clone() };
    assert!(encode(&clips, &[2, 2])?.iter().zip(&separate).all(|(a, b)| a != b));
    assert!(encode(&tokens, &[2, 3]).is_err());
    Ok(())
}

#[test]
fn presets_have_about_the_published_parameter_counts() -> Result<()> {
    for (config, min, max) in [
        (ConformerConfig::tiny(), 1.0, 4.0),
        (ConformerConfig::large(), 100.0, 125.0),
        (ConformerConfig::extra_large(), 580.0, 640.0),
        (ConformerConfig::default(), 580.0, 640.0),
    ] {
        let found = value_count(|builder| ConformerEncoder::new(&config, builder))? as f64 / 1e6;
        println!("{found:.1} million");
        assert!((min..max).contains(&found), "{found}");
    }
    Ok(())
}

/// As in the training of AVFormer, gradients pass through the frozen blocks to a token before the
/// audio tokens and to adapters, but not to other parameters.
#[test]
fn gradients_pass_through_frozen_blocks() -> Result<()> {
    let config = small();
    let token: Vec<f64> = vec![0.3, -0.2, 0.5, 0.1];
    let frames: Vec<f64> = (0..28).map(|i| (f64::from(i) * 1.7).sin()).collect();
    check_gradients(&[(token, &[1, 4])], |t| {
        let (dtype, device) = (t[0].dtype(), &Device::Cpu);
        let frozen = vec![ParameterGroup::all_frozen()];
        let builder = ParameterBuilder::new(3, frozen, &Compute { device: device.clone(), dtype });
        let encoder = ConformerEncoder::new(&config, &builder)?;
        let adapter = AdapterConfig { bottleneck: 2, ..AdapterConfig::default() };
        let adapters =
            Adapters::new(&adapter, config.num_hidden_layers, 4, &builder.pp("adapters"))?;
        let frames = Tensor::from_vec(frames.clone(), (7, 4), device)?.to_dtype(dtype)?;
        let audio_tokens = encoder.embed(&frames, &[7])?;
        let states = Tensor::cat(&[&t[0], &audio_tokens.states], 0)?;
        let lengths = vec![audio_tokens.lengths[0] + 1];
        let audio = AudioStates { states, lengths };
        Ok(encoder.forward(audio, &adapters, &Mode::evaluate())?.states)
    })
}

fn best_rq(config: &BestRqConfig) -> Result<(BestRq, ConformerEncoder, ParameterBuilder)> {
    let builder = ParameterBuilder::on_cpu(5);
    let encoder = ConformerEncoder::new(&small(), &builder.pp("encoder"))?;
    Ok((BestRq::new(config, &small(), &builder.pp("best_rq"))?, encoder, builder))
}

fn clip(length: usize, seed: f32) -> Frames {
    let values = (0..length * 4).map(|i| (i as f32 * seed).sin() * 1.4).collect();
    Frames { values, bands: 4 }
}

#[test]
fn best_rq_masks_spans_and_returns_their_codes() -> Result<()> {
    let config = BestRqConfig {
        num_codes: 11,
        code_dim: 3,
        mask_probability: 0.02,
        mask_length: 8,
        mask_std: 0.1,
    };
    let (best_rq, encoder, _) = best_rq(&config)?;
    let clean = [clip(61, 0.37), clip(5, 0.9), clip(200, 0.11)];
    let codes: Vec<Vec<u32>> =
        clean.iter().map(|frames| best_rq.codes(frames)).collect::<Result<_>>()?;
    let distinct: std::collections::HashSet<u32> = codes.iter().flatten().copied().collect();
    assert!(distinct.len() > 4, "{distinct:?}");
    // Louder audio has the same codes, which depend only on the angle.
    let louder: Vec<f32> = clean[0].values.iter().map(|value| 3.0 * value).collect();
    assert_eq!(best_rq.codes(&Frames { values: louder, bands: 4 })?, codes[0]);

    let mut frames = clean.clone();
    let masked = best_rq.mask(&mut frames, &codes, &mut ChaCha8Rng::seed_from_u64(1));
    let all_codes: Vec<u32> = codes.concat();
    assert_eq!(all_codes.len(), clean.iter().map(|f| small().num_states(f.len())).sum::<usize>());
    assert!(!masked.states.is_empty());
    let (mut first, mut num_masked) = (0, 0);
    for (before, after) in clean.iter().zip(&frames) {
        let rows = |frames: &Frames| -> Vec<Vec<f32>> {
            frames.values.chunks(4).map(<[f32]>::to_vec).collect()
        };
        let (before, after) = (rows(before), rows(after));
        let changed: Vec<bool> = before.iter().zip(&after).map(|(a, b)| a != b).collect();
        num_masked += changed.iter().filter(|changed| **changed).count();
        for (row, _) in after.iter().zip(&changed).filter(|(_, changed)| **changed) {
            assert!(
                row.iter().all(|value| value.abs() < 0.6),
                "noise with standard deviation 0.1: {row:?}"
            );
        }
        for (state, changed) in changed.chunks(4).enumerate() {
            let index = first + state as u32;
            let is_masked = masked.states.contains(&index);
            assert_eq!(is_masked, changed.iter().all(|changed| *changed), "state {index}");
        }
        first += before.len().div_ceil(4) as u32;
    }
    assert!(num_masked >= 5 + 8 + 8, "each clip has a span, the short one all of it");
    for (state, code) in masked.states.iter().zip(&masked.codes) {
        assert_eq!(*code, all_codes[*state as usize]);
    }

    let lengths: Vec<usize> = frames.iter().map(Frames::len).collect();
    let values: Vec<f32> = frames.iter().flat_map(|frames| frames.values.clone()).collect();
    let packed = Tensor::from_vec(values, (266, 4), &Device::Cpu)?;
    let audio_tokens = encoder.embed(&packed, &lengths)?;
    let audio = encoder.forward(audio_tokens, &Adapters::NONE, &Mode::evaluate())?;
    let logits = best_rq.logits(&audio, &masked)?;
    assert_eq!(logits.dims(), [masked.states.len(), 11]);
    let loss = best_rq.loss(&logits, &masked)?.to_scalar::<f32>()?;
    assert!((loss - 11f32.ln()).abs() < 1.5, "near chance before training: {loss}");
    Ok(())
}

/// If the drawn spans cover no whole state, a span that covers one is added.
#[test]
fn every_clip_has_a_masked_state() -> Result<()> {
    let config =
        BestRqConfig { num_codes: 11, code_dim: 3, mask_length: 7, ..BestRqConfig::default() };
    for mask_probability in [0.0, 0.01] {
        let (best_rq, ..) = best_rq(&BestRqConfig { mask_probability, ..config.clone() })?;
        for seed in 0..200 {
            let length = 1 + seed as usize % 23;
            let mut frames = [clip(length, 0.37)];
            let codes = [best_rq.codes(&frames[0])?];
            let masked = best_rq.mask(&mut frames, &codes, &mut ChaCha8Rng::seed_from_u64(seed));
            assert!(!masked.states.is_empty(), "{length} frames, seed {seed}");
        }
    }
    Ok(())
}

/// The parameter values can change after [`BestRq::new`], because a trainer may load others.
#[test]
fn codes_use_the_current_parameter_values() -> Result<()> {
    let (best_rq, _, builder) = best_rq(&BestRqConfig::default())?;
    let frames = clip(400, 0.37);
    let before = best_rq.codes(&frames)?;
    for parameter in builder.finish()?.iter().filter(|p| p.name().ends_with("projection")) {
        parameter.update(&mut |values| values.reverse())?;
    }
    assert_ne!(best_rq.codes(&frames)?, before);
    Ok(())
}

/// The quantiser is part of the model and stays fixed.
#[test]
fn the_quantiser_has_no_gradient_and_invalid_configurations_are_errors() -> Result<()> {
    let (best_rq, encoder, builder) = best_rq(&BestRqConfig::default())?;
    let mut frames = [clip(90, 0.37)];
    let codes = [best_rq.codes(&frames[0])?];
    let masked = best_rq.mask(&mut frames, &codes, &mut ChaCha8Rng::seed_from_u64(1));
    let packed = Tensor::from_vec(frames[0].values.clone(), (90, 4), &Device::Cpu)?;
    let audio =
        encoder.forward(encoder.embed(&packed, &[90])?, &Adapters::NONE, &Mode::train(1))?;
    let loss = best_rq.loss(&best_rq.logits(&audio, &masked)?, &masked)?;
    let gradients = loss.backward()?;
    for parameter in builder.finish()?.iter() {
        let name = parameter.name();
        let is_quantiser = name.ends_with("projection") || name.ends_with("codebook");
        assert_eq!(parameter.is_trainable(), !is_quantiser, "{name}");
        assert_eq!(gradients.get(parameter.tensor()).is_some(), !is_quantiser, "{name}");
    }
    let empty = engram_models::speech::best_rq::MaskedStates { states: vec![], codes: vec![] };
    assert!(best_rq.logits(&audio, &empty).is_err());
    for invalid in [
        BestRqConfig { num_codes: 0, ..BestRqConfig::default() },
        BestRqConfig { mask_probability: f64::NAN, ..BestRqConfig::default() },
        BestRqConfig { mask_length: 6, ..BestRqConfig::default() },
        BestRqConfig { mask_std: -1.0, ..BestRqConfig::default() },
    ] {
        assert!(BestRq::new(&invalid, &small(), &ParameterBuilder::on_cpu(1)).is_err());
    }
    Ok(())
}
