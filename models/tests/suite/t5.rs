//! Compares T5 v1.1 with `transformers`: states, logits, all gradients of the cross-entropy, and
//! generated texts.
//!
//! `tests/reference/t5.py` creates the fixtures.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::{Mode, Segments};
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::t5::blocks::{BlockInputs, RelativeBias, decoder_block, encoder_block};
use engram_models::t5::{GenerateOptions, T5, T5Config};
use serde::Deserialize;

use super::reference::{
    DTYPES, assert_config_errors, assert_gradients, assert_output, builder, expected, fixture,
    frozen_builder, input, mean_loss, read_config, sequences, value_count,
};

const MODELS: [&str; 2] = ["t5", "t5_wide"];

fn load(name: &str, builder: ParameterBuilder) -> Result<(T5, Parameters)> {
    Ok((T5::load(&fixture(name, ""), &builder)?, builder.finish()?))
}

/// The input texts of a fixture.
fn texts(name: &str) -> Result<PackedTokens> {
    let tensors = expected(name)?;
    Ok(PackedTokens::new(&sequences(&tensors["ids"], &tensors["lengths"])?))
}

fn lengths(tokens: &PackedTokens) -> Vec<usize> {
    tokens.sequences().iter().map(|span| span.length).collect()
}

fn check(name: &str, dtype: DType, tolerance: f32) -> Result<()> {
    let (t5, parameters) = load(name, builder(0, dtype))?;
    let (texts, tensors) = (texts(name)?, expected(name)?);
    let targets = sequences(&tensors["target_ids"], &tensors["target_lengths"])?;
    // The decoder's input: the start token, then the targets without the last.
    let shifted = |target: &Vec<u32>| [&[0], &target[..target.len() - 1]].concat();
    let tokens = PackedTokens::new(&targets.iter().map(shifted).collect::<Vec<_>>());
    let states = t5.encode(&texts, &Mode::evaluate())?;
    let logits = t5.decode(&tokens, &states, &lengths(&texts), &Mode::evaluate())?;
    for (what, actual) in [("states", &states), ("logits", &logits)] {
        assert_output((name, what), actual, &tensors, tolerance)?;
    }
    let loss = mean_loss(&logits, &targets.concat())?;
    assert_gradients(name, &loss, &parameters, &tensors, 20.0 * tolerance)
}

#[test]
fn states_logits_and_every_gradient_equal_the_reference() -> Result<()> {
    for name in MODELS {
        check(name, DType::F32, 5e-6)?;
        check(name, DType::F64, 1e-6)?;
    }
    Ok(())
}

/// A search of `transformers`, and its output for each text.
#[derive(Deserialize)]
struct Search {
    options: GenerateOptions,
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    tokens: Vec<u32>,
    log_probabilities: Vec<f32>,
}

fn searches(name: &str) -> Vec<Search> {
    let text = std::fs::read_to_string(fixture(name, "generated.json")).expect("a fixture");
    serde_json::from_str(&text).expect("JSON")
}

/// Checks greedy search and beam search, with the kernels (f32) and with candle operations (f64).
#[test]
fn outputs_equal_the_reference() -> Result<()> {
    for (name, dtype) in MODELS.into_iter().flat_map(|name| DTYPES.map(|dtype| (name, dtype))) {
        let (t5, _) = load(name, builder(0, dtype))?;
        let texts = texts(name)?;
        for Search { options, outputs } in searches(name) {
            let generated = t5.generate(&texts, &options)?;
            assert_eq!(generated.len(), outputs.len());
            for (output, Output { tokens, log_probabilities }) in generated.iter().zip(&outputs) {
                let case = format!("{name} {dtype:?} {options:?}");
                assert_eq!(&output.tokens, tokens, "{case}");
                assert_eq!(output.ended, tokens.last() == Some(&1), "{case}");
                assert_eq!(output.without_end().len(), tokens.len() - usize::from(output.ended));
                for (actual, expected) in output.log_probabilities.iter().zip(log_probabilities) {
                    assert!(
                        (actual - expected).abs() < 5e-5,
                        "{case}: {actual}, expected {expected}"
                    );
                }
                let sum: f32 = log_probabilities.iter().sum();
                assert!((output.log_probability - sum).abs() < 2e-4, "{case}");
                let length = (tokens.len() as f32).powf(options.length_penalty as f32);
                let score = sum / length;
                assert!((output.score - score).abs() < 1e-4 * (1.0 + score.abs()), "{case}");
            }
        }
    }
    Ok(())
}

/// Each token of the greedy search is the argmax of the decoder without a cache. The output is
/// longer than the initial cache.
#[test]
fn each_greedy_token_is_the_argmax_without_a_cache() -> Result<()> {
    for name in MODELS {
        let (t5, _) = load(name, frozen_builder())?;
        let texts = texts(name)?;
        let options =
            GenerateOptions { max_new_tokens: 40, eos_token_id: 39, ..Default::default() };
        let generated = t5.generate(&texts, &options)?;
        assert!(generated.iter().any(|output| output.tokens.len() > 32), "{name}");
        let states = t5.encode(&texts, &Mode::inference())?;
        let inputs: Vec<Vec<u32>> = generated
            .iter()
            .map(|output| [&[0], &output.tokens[..output.tokens.len() - 1]].concat())
            .collect();
        let inputs = PackedTokens::new(&inputs);
        let logits = t5.decode(&inputs, &states, &lengths(&texts), &Mode::inference())?;
        let mut rows = logits.to_vec2::<f32>()?.into_iter();
        for output in &generated {
            for (token, log_probability) in output.tokens.iter().zip(&output.log_probabilities) {
                let row = rows.next().expect("a row of logits");
                let top = row.iter().fold(f32::MIN, |a, b| a.max(*b));
                let total: f32 = row.iter().map(|logit| (logit - top).exp()).sum();
                assert_eq!(row.iter().position(|logit| *logit == top), Some(*token as usize));
                assert!((log_probability + total.ln()).abs() < 1e-5, "{log_probability}, {total}");
            }
        }
    }
    Ok(())
}

/// The output for a text does not depend on the other texts of the batch.
#[test]
fn outputs_of_a_batch_equal_outputs_of_single_texts() -> Result<()> {
    let (t5, _) = load("t5", frozen_builder())?;
    let texts = texts("t5")?;
    let options = GenerateOptions { num_beams: 3, max_new_tokens: 30, ..Default::default() };
    let together = t5.generate(&texts, &options)?;
    for (span, together) in texts.sequences().iter().zip(together) {
        let text = PackedTokens::new(&[&texts.ids[span.start..span.start + span.length]]);
        let alone = t5.generate(&text, &options)?;
        assert_eq!(alone[0].tokens, together.tokens);
        assert!((alone[0].score - together.score).abs() < 1e-5);
    }
    Ok(())
}

#[test]
fn ties_go_to_the_lowest_token() -> Result<()> {
    let config = T5Config { dropout_rate: 0.0, ..small_config() };
    let builder = builder(3, DType::F32);
    let t5 = T5::new(&config, &builder)?;
    let parameters = builder.finish()?;
    let output = parameters.get("lm_head.weight").expect("the output projection");
    output.update(&mut |values| values.fill(0.5))?;
    let options = GenerateOptions { max_new_tokens: 3, eos_token_id: 8, ..Default::default() };
    let texts = PackedTokens::new(&[[5, 6]]);
    assert_eq!(t5.generate(&texts, &options)?[0].tokens, [0, 0, 0]);
    // With end token 0, the first output ends at once.
    let options = GenerateOptions { eos_token_id: 0, ..options };
    let output = &t5.generate(&texts, &options)?[0];
    assert_eq!((output.tokens.as_slice(), output.without_end()), ([0].as_slice(), [].as_slice()));
    Ok(())
}

#[test]
fn invalid_search_options_and_inputs_are_errors() -> Result<()> {
    let (t5, parameters) = load("t5", builder(0, DType::F32))?;
    let texts = PackedTokens::new(&[[5, 6], [7, 8]]);
    let default = GenerateOptions::default;
    for (options, expected) in [
        (GenerateOptions { num_beams: 0, ..default() }, "num_beams"),
        (GenerateOptions { num_beams: 5000, ..default() }, "num_beams"),
        (GenerateOptions { max_new_tokens: 0, ..default() }, "max_new_tokens"),
        (GenerateOptions { length_penalty: f64::NAN, ..default() }, "length_penalty"),
        (GenerateOptions { eos_token_id: 40, ..default() }, "eos_token_id"),
        (GenerateOptions { start_token_id: 40, ..default() }, "start_token_id"),
    ] {
        let error = t5.generate(&texts, &options).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let none = Tensor::zeros((0, 16), DType::F32, &Device::Cpu)?;
    assert!(t5.decoder.generate(&t5.shared, &none, &[], &default())?.is_empty());
    let states = t5.encode(&texts, &Mode::inference())?;
    for result in [
        t5.decoder.generate(&t5.shared, &states, &[2, 1], &default()).map(drop),
        t5.decode(&texts, &states, &[2, 1], &Mode::inference()).map(drop),
    ] {
        let error = result.expect_err("an error").to_string();
        assert!(error.contains("4 encoder states, but the lengths sum to 3"), "{error}");
    }
    let output = parameters.get("lm_head.weight").expect("the output projection");
    output.update(&mut |values| values[0] = f32::NAN)?;
    let error = t5.generate(&texts, &default()).expect_err("an error").to_string();
    assert!(error.contains("NaN or infinite logits"), "{error}");
    Ok(())
}

/// A T5 with six channels and three heads of width four.
fn small_config() -> T5Config {
    let sizes = T5Config { d_model: 6, d_kv: 4, d_ff: 5, num_heads: 3, ..T5Config::small() };
    T5Config { vocab_size: 9, num_layers: 1, ..sizes }
}

/// As in REVEAL's fusion, the weights of an encoder layer's rows (there, the prior of retrieved
/// entries) get a gradient.
#[test]
fn an_encoder_layer_with_weights_has_all_gradients() -> Result<()> {
    let mut weights = input(&[5, 1], 3);
    weights.0.iter_mut().for_each(|weight| *weight += 1.5);
    let inputs = [input(&[5, 6], 1), input(&[3, 3, 3], 2), weights];
    let config = small_config();
    let segments = Segments::packed(&[2, 3]);
    check_gradients(&inputs, |t| {
        let block = encoder_block(&config, &builder(3, t[0].dtype()))?;
        let (bias, weights) = (Some(&t[1]), Some(&t[2]));
        let inputs = BlockInputs { bias, weights, ..BlockInputs::new(&segments) };
        block.forward(&t[0], inputs, &Mode::evaluate())
    })
}

/// As in REVEAL's Perceiver, the layer's queries attend to each other without a causal mask, and to
/// the encoder's states.
#[test]
fn a_decoder_layer_has_all_gradients() -> Result<()> {
    let inputs = [input(&[5, 6], 1), input(&[3, 3, 3], 2), input(&[7, 6], 3)];
    let config = small_config();
    let (self_segments, cross) = (Segments::packed(&[3, 2]), Segments::cross(&[3, 2], &[4, 3]));
    for causal in [false, true] {
        check_gradients(&inputs, |t| {
            let block = decoder_block(&config, &builder(3, t[0].dtype()))?;
            let (bias, cross) = (Some(&t[1]), Some((&t[2], &cross)));
            let inputs = BlockInputs { causal, bias, cross, ..BlockInputs::new(&self_segments) };
            block.forward(&t[0], inputs, &Mode::evaluate())
        })?;
    }
    Ok(())
}

#[test]
fn more_queries_than_keys_are_an_error() -> Result<()> {
    let bias = RelativeBias::new(&small_config(), true, &builder(3, DType::F32))?;
    assert_eq!(bias.forward(2, 3)?.dims(), [3, 2, 3]);
    assert!(bias.forward(3, 2).expect_err("an error").to_string().contains("3 queries for 2 keys"));
    Ok(())
}

/// `python tests/reference/t5.py --counts` prints the expected counts.
#[test]
fn published_sizes_have_the_published_parameter_counts() -> Result<()> {
    for (config, expected) in [
        (T5Config::small(), 76_961_152),
        (T5Config::base(), 247_577_856),
        (T5Config::large(), 783_150_080),
    ] {
        assert_eq!(value_count(|builder| T5::new(&config, builder))?, expected);
    }
    Ok(())
}

/// The published configuration of `google/t5-v1_1-base`.
const BASE: &str = r#"{"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64,
    "d_model": 768, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": true,
    "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 12, "num_heads": 12,
    "num_layers": 12, "output_past": true, "pad_token_id": 0,
    "relative_attention_num_buckets": 32, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 32128}"#;

#[test]
fn published_configurations_are_read() -> Result<()> {
    let base = T5Config { num_decoder_layers: Some(12), ..T5Config::base() };
    assert_eq!(read_config(T5Config::read, BASE)?, base);
    // transformers 5 writes these fields for the same model.
    let tied = r#""tie_word_embeddings": true, "scale_decoder_outputs": false"#;
    assert_eq!(
        read_config(T5Config::read, &BASE.replace(r#""tie_word_embeddings": false"#, tied))?,
        base
    );
    Ok(())
}

#[test]
fn invalid_configurations_are_errors() {
    for (from, to, expected) in [
        (r#""num_heads": 12"#, r#""num_heads": 0"#, "num_heads"),
        (r#""num_heads": 12,"#, "", "`num_heads` is missing"),
        (r#""num_layers": 12"#, r#""num_layers": 0"#, "num_layers"),
        (r#""num_decoder_layers": 12"#, r#""num_decoder_layers": 9999"#, "num_decoder_layers"),
        (r#""d_kv": 64"#, r#""d_kv": 99999999999"#, "d_kv"),
        (r#""d_kv": 64"#, r#""d_kv": -1"#, "invalid value"),
        ("gated-gelu", "relu", "`relu` is not `gated-gelu`"),
        (r#""tie_word_embeddings": false"#, r#""tie_word_embeddings": true"#, "T5 1.0"),
        (r#""tie_word_embeddings": false,"#, "", "`tie_word_embeddings` is missing"),
        (r#"num_buckets": 32"#, r#"num_buckets": 6"#, "multiple of 4"),
        (r#"num_buckets": 32"#, r#"num_buckets": 512"#, "max_distance"),
        (r#""dropout_rate": 0.1"#, r#""dropout_rate": 1.0"#, "dropout_rate"),
        ("1e-06", "-1", "layer_norm_epsilon"),
        (r#""eos_token_id": 1"#, r#""eos_token_id": 32128"#, "token 32128"),
        ("32128}", "", "EOF"),
    ] {
        assert!(BASE.contains(from), "{from}");
        assert_config_errors(T5Config::read, &[(&BASE.replace(from, to), expected)]);
    }
}
