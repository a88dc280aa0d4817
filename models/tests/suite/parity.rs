//! Compares the text encoders with `transformers`: hidden states and all gradients, with packed
//! sequences.
//!
//! `tests/reference/text_encoders.py` creates the fixtures. Also compares low-rank branches with
//! `peft`, and NF4 with `bitsandbytes`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use engram_models::gradients::Gradients;
use engram_models::kernels::{Mode, Nf4};
use engram_models::layers::{LowRank, LowRankPattern, merge};
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::text_encoder::{TextEncoder, TextEncoderConfig};
use engram_models::weights;
use engram_models::{ModelError, Result};
use serde_json::{Value, json};

use super::reference::{
    DTYPES, assert_gradients, assert_output, assert_same_for_any_threads, bits, builder, expected,
    fixture, frozen_builder, integers, largest, largest_difference, sequences, tensors, values,
    weighted_sum,
};

const ENCODERS: [&str; 9] = [
    "bert",
    "deberta_v2",
    "deberta_v3",
    "distilbert",
    "modernbert",
    "modernbert_biased",
    "mpnet",
    "roberta",
    "xlm_roberta",
];

/// The configuration of a fixture, with changes.
pub(super) fn config(name: &str, changes: Value) -> Result<TextEncoderConfig> {
    let text = std::fs::read_to_string(fixture(name, "config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    for (field, value) in changes.as_object().expect("fields") {
        config[field] = value.clone();
    }
    TextEncoderConfig::parse(&config.to_string(), "config.json")
}

/// The encoder of a fixture, with the weights of a file.
fn build(
    name: &str,
    changes: Value,
    path: &Path,
    builder: &ParameterBuilder,
) -> Result<TextEncoder> {
    let config = config(name, changes)?;
    config.build(&builder.with_weights(config.open_weights(&path.into())?))
}

/// The encoder of a fixture with its weights, and its parameters.
fn load(
    name: &str,
    changes: Value,
    builder: ParameterBuilder,
) -> Result<(TextEncoder, Parameters)> {
    let encoder = build(name, changes, &fixture(name, "model.safetensors"), &builder)?;
    Ok((encoder, builder.finish()?))
}

/// The encoder of a fixture in f32.
fn load_plain(name: &str) -> Result<(TextEncoder, Parameters)> {
    load(name, json!({}), builder(0, DType::F32))
}

/// The inputs and outputs of `transformers`.
pub(super) struct Expected {
    sequences: Vec<Vec<u32>>,
    pub(super) tokens: PackedTokens,
    tensors: HashMap<String, Tensor>,
}

pub(super) fn example(name: &str) -> Result<Expected> {
    let tensors = expected(name)?;
    let sequences = sequences(&tensors["ids"], &tensors["lengths"])?;
    let mut tokens = PackedTokens::new(&sequences);
    tokens.types = integers(&tensors["types"])?.into();
    Ok(Expected { sequences, tokens, tensors })
}

/// Low-rank branches on queries and values, against `peft` (`tests/reference/low_rank.py`).
#[test]
fn low_rank_branches_equal_peft() -> Result<()> {
    let branches = tensors("low_rank", "branches.safetensors")?;
    let reference = expected("low_rank")?;
    let mut parameters: BTreeMap<String, Tensor> =
        tensors("bert", "model.safetensors")?.into_iter().chain(branches).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.safetensors");
    weights::save(&path, parameters.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let settings = LowRank { rank: 2, alpha: 3.0, dropout: 0.0 };
    let patterns = ["**.query", "**.value"]
        .map(|pattern| LowRankPattern { pattern: pattern.into(), settings });
    let builder = builder(0, DType::F32).with_low_rank(patterns.to_vec());
    let encoder = build("bert", json!({}), &path, &builder)?;
    let hidden = encoder.encode(&example("bert")?.tokens, &Mode::evaluate())?;
    assert_output(("low rank", "hidden"), &hidden, &reference, 1e-5)?;
    let trained = builder.finish()?;
    assert_eq!(trained.trainable().count(), 8);
    assert_gradients("low rank", &weighted_sum(&hidden)?, &trained, &reference, 2e-5)?;
    parameters = merge(parameters, &patterns)?;
    let merged = &parameters["encoder.layer.0.attention.self.query.weight"];
    assert!(largest_difference(merged, &reference["merged"])? < 1e-6);
    Ok(())
}

/// NF4 against `bitsandbytes` (`tests/reference/low_rank.py`).
#[test]
fn nf4_equals_bitsandbytes() -> Result<()> {
    let reference = expected("low_rank")?;
    let quantised = Nf4::quantise(&values(&reference["nf4.values"])?);
    assert_eq!(quantised.codes, reference["nf4.codes"].to_vec1::<u8>()?);
    assert_eq!(quantised.scales, values(&reference["nf4.scales"])?);
    let dequantised = values(&reference["nf4.dequantised"])?;
    let difference = quantised.dequantise().into_iter().zip(&dequantised).map(|(a, b)| a - b);
    assert!(largest(difference) < 1e-7 * largest(dequantised.iter().copied()));
    Ok(())
}

#[test]
fn hidden_states_and_every_gradient_equal_the_reference() -> Result<()> {
    for (name, dtype) in ENCODERS.into_iter().flat_map(|name| DTYPES.map(|dtype| (name, dtype))) {
        let (encoder, parameters) = load(name, json!({}), builder(0, dtype))?;
        let Expected { tokens, tensors, .. } = example(name)?;
        let hidden = encoder.encode(&tokens, &Mode::evaluate())?;
        let (tolerance, of_gradients) =
            if dtype == DType::F32 { (5e-6, 1e-4) } else { (1e-6, 1e-6) };
        assert_output((name, "hidden"), &hidden, &tensors, tolerance)?;
        let loss = weighted_sum(&hidden)?;
        assert_gradients(name, &loss, &parameters, &tensors, of_gradients)?;
    }
    Ok(())
}

/// A sequence gives the same result alone and in a packed batch.
#[test]
fn a_sequence_alone_equals_itself_in_a_batch() -> Result<()> {
    for name in ENCODERS {
        let (encoder, _) = load_plain(name)?;
        let Expected { sequences, .. } = example(name)?;
        let batch = encoder.encode(&PackedTokens::new(&sequences), &Mode::evaluate())?;
        let alone = sequences.iter().map(|sequence| {
            encoder.encode(&PackedTokens::new(std::slice::from_ref(sequence)), &Mode::evaluate())
        });
        let alone = Tensor::cat(&alone.collect::<Result<Vec<_>>>()?, 0)?;
        // Not bit for bit: products with one row and products with many rows use different code.
        let difference = largest_difference(&batch, &alone)?;
        assert!(difference < 2e-6, "{name}: differs by {difference:e}");
    }
    Ok(())
}

#[test]
fn an_empty_sequence_does_not_affect_its_batch() -> Result<()> {
    for name in ENCODERS {
        let run = |sequences: &[Vec<u32>]| -> Result<(Vec<f32>, f64)> {
            let (encoder, parameters) = load_plain(name)?;
            let hidden = encoder.encode(&PackedTokens::new(sequences), &Mode::evaluate())?;
            let mut gradients = Gradients::new(&parameters);
            gradients.backward(&weighted_sum(&hidden)?)?;
            Ok((values(&hidden)?, gradients.global_norm()))
        };
        let (full, empty) = (vec![3, 1, 4, 1, 5], Vec::new());
        let reference = run(std::slice::from_ref(&full))?;
        assert!(run(&[empty.clone(), full, empty])? == reference, "{name}");
    }
    Ok(())
}

#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    for name in ENCODERS {
        assert_same_for_any_threads(|| {
            let (encoder, parameters) = load_plain(name)?;
            let hidden = encoder.encode(&example(name)?.tokens, &Mode::train(3))?;
            let mut gradients = Gradients::new(&parameters);
            gradients.backward(&weighted_sum(&hidden)?)?;
            Ok((values(&hidden)?, bits(&gradients)))
        });
    }
}

#[test]
fn a_sequence_beyond_the_position_table_is_an_error() -> Result<()> {
    let too_long = PackedTokens::new(&[vec![1; 3], vec![1; 25]]);
    for name in ["bert", "deberta_v2", "distilbert", "roberta", "xlm_roberta"] {
        let (encoder, _) = load_plain(name)?;
        let text = encoder.encode(&too_long, &Mode::evaluate()).unwrap_err().to_string();
        assert!(text.contains("25 tokens") && text.contains("takes at most 24"), "{text}");
    }
    for name in ["deberta_v3", "modernbert"] {
        let (without_positions, _) = load_plain(name)?;
        assert_eq!(without_positions.encode(&too_long, &Mode::evaluate())?.dims(), [28, 32]);
    }
    Ok(())
}

#[test]
fn mismatched_weights_give_an_error_with_their_shapes() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, projection) in [
        ("bert", "encoder.layer.1.attention.self.query"),
        ("deberta_v3", "encoder.layer.1.attention.self.query_proj"),
        ("distilbert", "transformer.layer.1.attention.q_lin"),
        ("mpnet", "encoder.layer.1.attention.attn.q"),
    ] {
        let missing = format!("{projection}.weight");
        let path = folder.path().join(format!("{name}.safetensors"));
        let tensors = tensors(name, "model.safetensors")?;
        let remaining = tensors.iter().filter(|(name, _)| !name.ends_with(&missing));
        weights::save(&path, remaining.map(|(name, tensor)| (name.as_str(), tensor)))?;
        let error = build(name, json!({}), &path, &ParameterBuilder::on_cpu(0));
        let text = error.expect_err("a tensor is missing").to_string();
        assert!(text.contains(&missing) && text.contains("[32, 32]"), "{text}");

        let error = load(name, json!({"vocab_size": 61}), builder(0, DType::F32)).err();
        let text = error.expect("another vocabulary").to_string();
        for part in ["embeddings.word_embeddings.weight", "[60, 32]", "[61, 32]"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    Ok(())
}

/// With dropout, every trainable parameter has a gradient, and no frozen parameter has one.
#[test]
fn exactly_the_trainable_parameters_have_gradients_and_change() -> Result<()> {
    for name in ENCODERS {
        let blocks = match name {
            "distilbert" => "transformer.layer.0.**",
            "modernbert" | "modernbert_biased" => "layers.0.**",
            _ => "encoder.layer.0.**",
        };
        for frozen in [&[][..], &["embeddings.**", blocks]] {
            let group = |pattern: &&str| ParameterGroup { pattern: pattern.to_string(), rate: 0.0 };
            let groups = frozen.iter().map(group).collect();
            let builder = ParameterBuilder::new(0, groups, &builder(0, DType::F32).compute());
            let mut config = config(name, json!({}))?;
            config.set_dropout(0.1, 0.1);
            let weights =
                config.open_weights(&fixture(name, "model.safetensors").as_path().into())?;
            let encoder = config.build(&builder.with_weights(weights))?;
            let parameters = builder.finish()?;
            let fingerprint =
                |is_trainable: bool| parameters.fingerprint(|p| p.is_trainable() == is_trainable);
            let before = (fingerprint(true)?, fingerprint(false)?);

            let hidden = encoder.encode(&example(name)?.tokens, &Mode::train(1))?;
            let mut gradients = Gradients::new(&parameters);
            gradients.backward(&weighted_sum(&hidden)?)?;
            assert_eq!(gradients.faults(), [], "{name}");
            for parameter in parameters.iter() {
                let is_trainable =
                    !frozen.iter().any(|f| parameter.name().starts_with(&f[..f.len() - 2]));
                let gradient = gradients.by_name(parameter.name());
                assert_eq!(gradient.is_some(), is_trainable, "{name}: {}", parameter.name());
                if let Some(gradient) = gradient {
                    parameter.update(&mut |data| {
                        data.iter_mut()
                            .zip(gradient)
                            .for_each(|(value, partial)| *value -= partial);
                    })?;
                }
            }
            assert_ne!(before.0, fingerprint(true)?, "{name}: no parameter changed");
            assert_eq!(before.1, fingerprint(false)?, "{name}: a frozen parameter changed");
        }
    }
    Ok(())
}

/// Frozen parameters and predictions build no graph; the states are equal bit for bit.
#[test]
fn no_graph_is_built_without_gradients() -> Result<()> {
    for name in ENCODERS {
        let Expected { tokens, .. } = example(name)?;
        let (encoder, _) = load_plain(name)?;
        let reference = encoder.forward(&tokens, &Mode::evaluate())?;
        assert!(reference.iter().all(Tensor::track_op), "{name}");
        let (frozen, _) = load(name, json!({}), frozen_builder())?;
        let cases = [(&frozen, Mode::train(1)), (&frozen, Mode::evaluate())];
        for (encoder, mode) in cases.into_iter().chain([(&encoder, Mode::inference())]) {
            let states = encoder.forward(&tokens, &mode)?;
            assert!(!states.iter().any(Tensor::track_op), "{name}: {mode:?}");
            assert_eq!(states.len(), reference.len());
            for (state, reference) in states.iter().zip(&reference) {
                assert!(values(state)? == values(reference)?, "{name}: {mode:?}");
            }
            let last = encoder.encode(&tokens, &mode)?;
            assert!(values(&last)? == values(&reference[reference.len() - 1])?, "{name}: {mode:?}");
        }
    }
    Ok(())
}

#[test]
fn invalid_configurations_are_errors() {
    for (name, field, value) in [
        ("bert", "num_attention_heads", json!(5)),
        ("bert", "hidden_dropout_prob", json!(1.0)),
        ("deberta_v3", "num_attention_heads", json!(0)),
        ("deberta_v3", "attention_probs_dropout_prob", json!(-0.1)),
        ("bert", "vocab_size", json!(0)),
        ("bert", "type_vocab_size", json!(0)),
        ("mpnet", "relative_attention_num_buckets", json!(6)),
        ("roberta", "max_position_embeddings", json!(2)),
        ("deberta_v3", "intermediate_size", json!(0)),
        ("deberta_v2", "max_position_embeddings", json!(0)),
        ("deberta_v3", "conv_kernel_size", json!(3)),
        ("deberta_v3", "attention_head_size", json!(16)),
        ("deberta_v3", "pos_att_type", json!([])),
        ("deberta_v3", "position_buckets", json!(1)),
        ("deberta_v3", "position_buckets", json!(64)),
        ("deberta_v3", "max_relative_positions", json!(i64::MAX)),
        ("modernbert", "num_attention_heads", json!(32)),
        ("modernbert", "attention_dropout", json!(1.0)),
        ("modernbert", "mlp_dropout", json!(-0.1)),
        ("modernbert", "norm_eps", json!(0)),
        ("modernbert", "global_attn_every_n_layers", json!(0)),
        ("modernbert", "local_rope_theta", json!(null)),
        ("modernbert", "rope_scaling", json!({"type": "linear", "factor": 2.0})),
        ("modernbert_biased", "layer_types", json!(["full_attention"])),
        ("modernbert_biased", "rope_parameters", json!({"full_attention": {"rope_type": "yarn"}})),
        ("modernbert_biased", "hidden_dropout_prob", json!(0.1)),
    ] {
        match config(name, json!({ field: value })).expect_err("an error") {
            ModelError::BadConfig { what, reason } => {
                assert_eq!(what, "config.json");
                assert!(reason.contains(&format!("`{field}`")), "{field}: {reason}");
            }
            other => panic!("{field}: {other}"),
        }
    }
    for (field, value, part) in [
        ("layer_types", json!(["full_attention", "chunked_attention"]), "`chunked_attention`"),
        ("rope_parameters", json!({"rope_theta": 20.0}), "`rope_theta`"),
        ("hidden_activation", json!("swiglu"), "`swiglu`"),
    ] {
        let text = config("modernbert", json!({ field: value })).expect_err(field).to_string();
        assert!(text.contains(part), "{text}");
    }
}

/// Compares the published all-MiniLM-L6-v2.
#[test]
#[ignore = "needs ENGRAM_MINILM: the folder of all-MiniLM-L6-v2"]
fn minilm_equals_the_reference() -> Result<()> {
    let folder = std::env::var_os("ENGRAM_MINILM").map(PathBuf::from).expect("ENGRAM_MINILM");
    let config = TextEncoderConfig::read(&folder.join("config.json"))?;
    let weights = config.open_weights(&folder.join("model.safetensors").as_path().into())?;
    let encoder = config.build(&builder(0, DType::F32).with_weights(weights))?;

    #[derive(serde::Deserialize)]
    struct Sentence {
        ids: Vec<u32>,
        first_token: Vec<f32>,
        last_token: Vec<f32>,
        mean_magnitude: f32,
    }
    let text = std::fs::read_to_string(fixture("", "minilm.json")).expect("a file");
    let sentences: Vec<Sentence> = serde_json::from_str(&text).expect("sentences");
    let ids: Vec<_> = sentences.iter().map(|sentence| &sentence.ids).collect();
    let tokens = PackedTokens::new(&ids);
    let hidden = encoder.encode(&tokens, &Mode::evaluate())?;
    for (sentence, span) in sentences.iter().zip(tokens.sequences().iter()) {
        let hidden = values(&hidden.narrow(0, span.start, span.length)?)?;
        let magnitude = hidden.iter().map(|v| v.abs()).sum::<f32>() / hidden.len() as f32;
        let found = [&hidden[..8], &hidden[hidden.len() - 8..], &[magnitude]].concat();
        let mean = [sentence.mean_magnitude];
        let expected = [&sentence.first_token[..], &sentence.last_token, &mean].concat();
        let [found, expected] = [found, expected].map(|it| Tensor::new(it, &Device::Cpu));
        let difference = largest_difference(&found?, &expected?)?;
        println!("MiniLM: {} tokens, off by {difference:.1e}", span.length);
        assert!(difference < 1e-5, "differs by {difference:e}");
    }
    Ok(())
}
