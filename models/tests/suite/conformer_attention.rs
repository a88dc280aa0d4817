//! The Conformer with an attention decoder and a CTC head: losses, gradients, and decoding.

use candle_core::{DType, Var};
use engram_models::conformer::{
    AttentionDecoder, AttentionDecoderConfig, ConformerAsrConfig, ConformerAsrModel,
    ConformerAttentionConfig, ConformerConfig,
};
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::Mode;
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_models::speech::ctc::ctc_loss;
use engram_models::speech::ctc_beam::{BeamSearchOptions, beam_search};
use engram_models::speech::{AlignedTargets, AudioStates};
use engram_models::{ModelError, Result};

use super::reference::{builder, read_config, values};

const BLANK: u32 = 5;

fn config(ctc_weight: f64) -> ConformerAttentionConfig {
    let encoder_config = ConformerConfig {
        hidden_size: 8,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        intermediate_size: 6,
        conv_kernel_size: 3,
        subsampling_conv_channels: 2,
        num_mel_bins: 4,
        initializer_range: 0.6,
        ..ConformerConfig::tiny()
    };
    let decoder = AttentionDecoderConfig {
        num_layers: 2,
        num_heads: 2,
        intermediate_size: 12,
        max_tokens: 8,
        dropout: 0.0,
    };
    ConformerAttentionConfig { encoder_config, vocab_size: 6, blank: BLANK, ctc_weight, decoder }
}

fn model(ctc_weight: f64, dtype: DType) -> Result<(AttentionDecoder, Parameters)> {
    let builder = builder(3, dtype);
    Ok((AttentionDecoder::new(&config(ctc_weight), &builder)?, builder.finish()?))
}

fn states(lengths: &[usize]) -> Result<AudioStates> {
    let shape = [lengths.iter().sum(), 8];
    let states = ParameterBuilder::on_cpu(2).get("states", &shape, Init::Normal(1.0))?;
    Ok(AudioStates { states, lengths: lengths.to_vec() })
}

#[test]
fn gradients_of_the_states_equal_central_differences() -> Result<()> {
    let values: Vec<f64> = (0..56).map(|i| (f64::from(i) * 1.7).sin()).collect();
    for weight in [0.0, 0.3, 1.0] {
        check_gradients(&[(values.clone(), &[7, 8])], |t| {
            let (model, _) = model(weight, t[0].dtype())?;
            let audio = AudioStates { states: t[0].clone(), lengths: vec![4, 3] };
            model.losses(&audio, &[vec![1, 3, 0], vec![]], &Mode::evaluate())
        })?;
    }
    Ok(())
}

#[test]
fn the_loss_is_the_weighted_sum_and_every_decoder_parameter_gets_a_gradient() -> Result<()> {
    let texts = [vec![1, 3, 3], vec![2]];
    let audio = states(&[5, 3])?;
    let mode = Mode::evaluate();
    let losses = |weight| -> Result<Vec<f32>> {
        values(&model(weight, DType::F32)?.0.losses(&audio, &texts, &mode)?)
    };
    let (attention, ctc, both) = (losses(0.0)?, losses(1.0)?, losses(0.3)?);
    for i in 0..2 {
        assert!((both[i] - 0.3 * ctc[i] - 0.7 * attention[i]).abs() < 1e-4);
    }
    let (model, parameters) = model(0.3, DType::F32)?;
    let states = Var::from_tensor(&audio.states)?;
    let audio = AudioStates { states: states.as_tensor().clone(), ..audio };
    let gradients = model.losses(&audio, &texts, &mode)?.sum_all()?.backward()?;
    for parameter in parameters.iter().filter(|p| !p.name().starts_with("encoder")) {
        let gradient = gradients.get(parameter.tensor()).expect("a gradient");
        let values = gradient.flatten_all()?.to_vec1::<f32>()?;
        let name = parameter.name();
        assert!(values.iter().all(|g| g.is_finite()) && values.iter().any(|g| *g != 0.0), "{name}");
    }
    Ok(())
}

/// A text that CTC cannot align has an infinite loss, unless CTC has no weight.
#[test]
fn texts_that_are_too_long_are_infeasible() -> Result<()> {
    for (weight, is_feasible) in [(0.3, false), (0.0, true)] {
        let builder = ParameterBuilder::on_cpu(3);
        let config = ConformerAsrConfig::Attention(config(weight));
        let model = ConformerAsrModel::new(&config, &builder)?;
        let texts = [vec![1, 1, 1]];
        assert_eq!(model.is_feasible(3, &texts[0]), is_feasible);
        assert!(!model.is_feasible(30, &[1; 8]));
        let losses = values(&model.losses(&states(&[3])?, &texts, &Mode::inference())?)?;
        assert_eq!(losses[0].is_finite(), is_feasible);
    }
    Ok(())
}

/// The greedy text takes the argmax of the decoder after each prefix, up to one token per state.
#[test]
fn greedy_texts_are_the_argmax_of_each_step() -> Result<()> {
    let (model, _) = model(0.3, DType::F32)?;
    let audio = states(&[6, 4])?;
    let greedy = BeamSearchOptions { num_beams: 1, boost: None };
    let paths = model.paths(&audio, &vec![greedy; 2])?;
    for (path, clip) in paths.iter().zip(audio.clips()?) {
        let mut tokens: Vec<u32> = Vec::new();
        while tokens.len() < clip.lengths[0] {
            let logits = model.decoder_logits(&clip, &[tokens.clone()], &Mode::inference())?;
            let next = values(&logits.argmax(1)?.to_dtype(DType::F32)?)?[tokens.len()] as u32;
            if next == BLANK {
                break;
            }
            tokens.push(next);
        }
        assert_eq!((&path.tokens, path.states.len()), (&tokens, tokens.len()));
    }
    Ok(())
}

/// With beams, the text is the best of CTC's hypotheses by the weighted sum of both scores.
#[test]
fn beams_are_rescored_by_the_decoder() -> Result<()> {
    let mut num_changed = 0;
    for weight in [0.0, 0.5, 1.0] {
        let (model, _) = model(weight, DType::F32)?;
        let audio = states(&[6])?;
        let search = BeamSearchOptions { num_beams: 8, boost: None };
        let path = model.paths(&audio, std::slice::from_ref(&search))?.remove(0);
        let rows = model.ctc.logits(&audio)?.to_vec2::<f32>()?;
        let mut best = (f64::NEG_INFINITY, Vec::new());
        let hypotheses = beam_search(&rows, BLANK, 8, None)?;
        for text in &hypotheses {
            let texts = [text.tokens.clone()];
            let decoder = values(&model.decoder_losses(&audio, &texts, &Mode::inference())?)?[0];
            let score = weight * text.log_probability - (1.0 - weight) * f64::from(decoder);
            if score > best.0 {
                best = (score, text.tokens.clone());
            }
        }
        assert_eq!(path.tokens, best.1, "weight {weight}");
        num_changed += usize::from(path.tokens != hypotheses[0].tokens);
        if weight == 1.0 {
            let targets = vec![path.tokens.clone()];
            let ctc = AlignedTargets { lengths: vec![6], targets, blank: BLANK };
            assert!(values(&ctc_loss(&model.ctc.logits(&audio)?, ctc)?)?[0].is_finite());
        }
    }
    assert!(num_changed > 0, "rescoring changed no text");
    Ok(())
}

#[test]
fn configurations_survive_their_files_and_invalid_ones_are_errors() -> Result<()> {
    let config_file = ConformerAsrConfig::Attention(config(0.3));
    let text = config_file.to_json()?.to_string();
    assert_eq!(read_config(ConformerAsrConfig::read, &text)?, config_file);
    for (invalid, field) in [
        (ConformerAttentionConfig { ctc_weight: 1.5, ..config(0.3) }, "ctc_weight"),
        (ConformerAttentionConfig { blank: 6, ..config(0.3) }, "pad_token_id"),
    ] {
        let error = AttentionDecoder::new(&invalid, &ParameterBuilder::on_cpu(0)).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    let (model, _) = model(0.3, DType::F32)?;
    let too_long = model.decoder_losses(&states(&[3])?, &[vec![1; 8]], &Mode::inference());
    assert!(matches!(too_long, Err(ModelError::BadInput(_))));
    assert!(model.paths(&states(&[3])?, &[]).is_err());
    Ok(())
}
