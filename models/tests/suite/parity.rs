//! Compares the text encoders with `transformers`: hidden states and all gradients, with packed
//! sequences.
//!
//! `tests/reference/text_encoders.py` creates the fixtures. Also compares low-rank branches with
//! `peft`, and NF4 with `bitsandbytes`.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::bert::{Bert, BertConfig};
use engram_models::compute::Compute;
use engram_models::deberta::Deberta;
use engram_models::gradients::Gradients;
use engram_models::kernels::{Mode, Nf4};
use engram_models::layers::{LowRank, LowRankPattern, merge};
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::text_encoder::TextEncoder;
use engram_models::weights::{self, Weights};
use engram_models::{ModelError, Result};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ENCODERS: [&str; 3] = ["bert", "deberta_v2", "deberta_v3"];

/// The encoder of a fixture, with `changes` to its configuration.
fn build(name: &str, changes: Value, builder: &ParameterBuilder) -> Result<TextEncoder> {
    if name == "bert" {
        Ok(TextEncoder::Bert(Bert::new(&config(name, changes), builder)?))
    } else {
        Ok(TextEncoder::Deberta(Deberta::new(&config(name, changes), builder)?))
    }
}

fn fixture(name: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).join(file)
}

fn config<C: DeserializeOwned>(name: &str, changes: Value) -> C {
    let text = std::fs::read_to_string(fixture(name, "config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    for (field, value) in changes.as_object().expect("fields") {
        config[field] = value.clone();
    }
    serde_json::from_value(config).expect("a configuration")
}

/// Opens the weights of a fixture, or a changed copy of them.
fn open(path: &Path) -> Result<Arc<Weights>> {
    let weights = Weights::open(path)?;
    let prefix = if path.to_string_lossy().contains("deberta") { "deberta." } else { "bert." };
    Ok(Arc::new(weights.with_optional_prefix(prefix)?))
}

/// The encoder of a fixture with its weights, and its parameters.
fn load(name: &str, groups: Vec<ParameterGroup>) -> Result<(TextEncoder, Parameters)> {
    load_changed(name, json!({}), groups)
}

fn load_changed(
    name: &str,
    changes: Value,
    groups: Vec<ParameterGroup>,
) -> Result<(TextEncoder, Parameters)> {
    let builder = ParameterBuilder::new(0, groups, &Compute::cpu());
    let weights = open(&fixture(name, "model.safetensors"))?;
    let encoder = build(name, changes, &builder.with_weights(weights))?;
    Ok((encoder, builder.finish()?))
}

/// The inputs and outputs of `transformers`.
struct Expected {
    sequences: Vec<Vec<u32>>,
    tokens: PackedTokens,
    tensors: HashMap<String, Tensor>,
}

fn expected(name: &str) -> Result<Expected> {
    let path = fixture(name, "expected.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    let list = |name: &str| tensors[name].to_dtype(DType::U32)?.to_vec1::<u32>();
    let (ids, mut sequences, mut start) = (list("ids")?, Vec::new(), 0);
    for length in list("lengths")? {
        sequences.push(ids[start..start + length as usize].to_vec());
        start += length as usize;
    }
    let mut tokens = PackedTokens::new(&sequences);
    tokens.types = list("types")?.into();
    Ok(Expected { sequences, tokens, tensors })
}

/// The scalar whose gradients are in the fixtures.
fn loss(hidden: &Tensor) -> Result<Tensor> {
    let weights: Vec<f64> =
        (0..hidden.elem_count()).map(|n| (1.7 * n as f64 + 0.3).sin()).collect();
    let weights = Tensor::from_vec(weights, hidden.shape(), &Device::Cpu)?;
    Ok((hidden * weights.to_dtype(hidden.dtype())?)?.sum_all()?)
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    // NaN counts as larger than any number.
    values.map(f32::abs).max_by(f32::total_cmp).unwrap_or(0.0)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    largest(a.iter().zip(b).map(|(a, b)| a - b))
}

/// Asserts that a gradient differs from the reference by at most `tolerance` of its largest
/// element.
fn assert_gradient(name: &str, actual: &[f32], reference: &Tensor, tolerance: f32) -> Result<()> {
    let reference = values(reference)?;
    let (scale, difference) =
        (largest(reference.iter().copied()), largest_difference(actual, &reference));
    println!("  {name}: up to {scale:.1e}, off by {difference:.1e}");
    // A bias that shifts all scores of a row equally has no effect, and its gradient is rounding
    // error: the tolerance is absolute.
    let scale = if scale < 1e-12 { 1.0 } else { scale };
    assert!(difference <= tolerance * scale, "{name} is off by {difference:e}");
    Ok(())
}

/// Low-rank branches on queries and values, against `peft` (`tests/reference/low_rank.py`).
#[test]
fn low_rank_branches_equal_peft() -> Result<()> {
    let load =
        |name: &str, file: &str| candle_core::safetensors::load(fixture(name, file), &Device::Cpu);
    let (branches, reference) =
        (load("low_rank", "branches.safetensors")?, load("low_rank", "expected.safetensors")?);
    let mut tensors: BTreeMap<String, Tensor> =
        load("bert", "model.safetensors")?.into_iter().chain(branches).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.safetensors");
    weights::save(&path, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let settings = LowRank { rank: 2, alpha: 3.0, dropout: 0.0 };
    let patterns = ["**.query", "**.value"]
        .map(|pattern| LowRankPattern { pattern: pattern.into(), settings });
    let builder = ParameterBuilder::on_cpu(0).with_low_rank(patterns.to_vec());
    let encoder = build("bert", json!({}), &builder.with_weights(open(&path)?))?;
    let parameters = builder.finish()?;
    let hidden = encoder.encode(&expected("bert")?.tokens, &Mode::evaluate())?;
    let difference = largest_difference(&values(&hidden)?, &values(&reference["hidden"])?);
    assert!(difference < 1e-5, "hidden states are off by {difference:e}");
    let mut gradients = Gradients::new(&parameters);
    gradients.backward(&loss(&hidden)?)?;
    assert_eq!(gradients.len(), 8);
    for parameter in parameters.trainable() {
        let gradient = gradients.by_name(parameter.name()).expect("a gradient");
        let expected = &reference[&format!("gradient.{}", parameter.name())];
        assert_gradient(parameter.name(), gradient, expected, 2e-5)?;
    }
    tensors = merge(tensors, &patterns)?;
    let merged = values(&tensors["encoder.layer.0.attention.self.query.weight"])?;
    assert!(largest_difference(&merged, &values(&reference["merged"])?) < 1e-6);
    Ok(())
}

/// NF4 against `bitsandbytes` (`tests/reference/low_rank.py`).
#[test]
fn nf4_equals_bitsandbytes() -> Result<()> {
    let path = fixture("low_rank", "expected.safetensors");
    let reference = candle_core::safetensors::load(path, &Device::Cpu)?;
    let quantised = Nf4::quantise(&values(&reference["nf4.values"])?);
    assert_eq!(quantised.codes(), reference["nf4.codes"].to_vec1::<u8>()?);
    assert_eq!(quantised.scales(), values(&reference["nf4.scales"])?);
    let dequantised = values(&reference["nf4.dequantised"])?;
    let scale = largest(dequantised.iter().copied());
    assert!(largest_difference(&quantised.dequantise(), &dequantised) < 1e-7 * scale);
    Ok(())
}

#[test]
fn hidden_states_and_every_gradient_equal_the_reference() -> Result<()> {
    for name in ENCODERS {
        let (encoder, parameters) = load(name, Vec::new())?;
        let Expected { tokens, tensors, .. } = expected(name)?;
        let hidden = encoder.encode(&tokens, &Mode::evaluate())?;
        let difference = largest_difference(&values(&hidden)?, &values(&tensors["hidden"])?);
        println!("{name}: hidden states are off by {difference:.1e}");
        assert!(difference < 1e-5, "{name}: hidden states are off by {difference:e}");

        let mut gradients = Gradients::new(&parameters);
        gradients.backward(&loss(&hidden)?)?;
        let mut names: Vec<_> =
            tensors.keys().filter_map(|name| name.strip_prefix("gradient.")).collect();
        let mut actual_names: Vec<_> =
            parameters.iter().map(|parameter| parameter.name()).collect();
        names.sort();
        actual_names.sort();
        assert_eq!(actual_names, names, "{name}: parameters");
        for parameter in names {
            let actual = gradients.by_name(parameter).expect("a gradient");
            assert_gradient(parameter, actual, &tensors[&format!("gradient.{parameter}")], 1e-4)?;
        }
    }
    Ok(())
}

/// The candle operations that replace the kernels in f64 equal the reference.
#[test]
fn the_composites_equal_the_reference() -> Result<()> {
    for name in ENCODERS {
        let builder =
            ParameterBuilder::new(0, Vec::new(), &Compute { dtype: DType::F64, ..Compute::cpu() });
        let weights = open(&fixture(name, "model.safetensors"))?;
        let encoder = build(name, json!({}), &builder.with_weights(weights))?;
        let Expected { tokens, tensors, .. } = expected(name)?;
        let hidden = encoder.encode(&tokens, &Mode::evaluate())?;
        let difference = largest_difference(&values(&hidden)?, &values(&tensors["hidden"])?);
        println!("{name} in f64: hidden states are off by {difference:.1e}");
        assert!(difference < 1e-6, "{name}: hidden states are off by {difference:e}");
        let candle_gradients = loss(&hidden)?.backward()?;
        for parameter in builder.finish()?.iter() {
            let actual = values(candle_gradients.get(parameter.tensor()).expect("a gradient"))?;
            let reference = &tensors[&format!("gradient.{}", parameter.name())];
            assert_gradient(parameter.name(), &actual, reference, 1e-6)?;
        }
    }
    Ok(())
}

/// A sequence gives the same result alone and in a packed batch.
#[test]
fn a_sequence_alone_equals_itself_in_a_batch() -> Result<()> {
    for name in ENCODERS {
        let (encoder, _) = load(name, Vec::new())?;
        let Expected { sequences, .. } = expected(name)?;
        let batch = encoder.encode(&PackedTokens::new(&sequences), &Mode::evaluate())?;
        let mut alone = Vec::new();
        for sequence in &sequences {
            let tokens = PackedTokens::new(std::slice::from_ref(sequence));
            alone.extend(values(&encoder.encode(&tokens, &Mode::evaluate())?)?);
        }
        // Not bit for bit: products with one row and products with many rows use different code.
        let difference = largest_difference(&values(&batch)?, &alone);
        assert!(difference < 2e-6, "{name}: differs by {difference:e}");
    }
    Ok(())
}

#[test]
fn an_empty_sequence_does_not_affect_its_batch() -> Result<()> {
    for name in ENCODERS {
        let run = |sequences: &[Vec<u32>]| -> Result<(Vec<f32>, f64)> {
            let (encoder, parameters) = load(name, Vec::new())?;
            let hidden = encoder.encode(&PackedTokens::new(sequences), &Mode::evaluate())?;
            let mut gradients = Gradients::new(&parameters);
            gradients.backward(&loss(&hidden)?)?;
            Ok((values(&hidden)?, gradients.global_norm()))
        };
        let (full, empty) = (vec![3, 1, 4, 1, 5], Vec::new());
        let reference = run(std::slice::from_ref(&full))?;
        assert!(run(&[empty.clone(), full, empty])? == reference, "{name}");
    }
    Ok(())
}

#[test]
fn results_are_bit_identical_for_any_number_of_threads() -> Result<()> {
    for name in ENCODERS {
        let run = |threads: usize| -> Result<Vec<u32>> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.map_err(|e| ModelError::BadInput(e.to_string()))?.install(|| {
                let (encoder, parameters) = load(name, Vec::new())?;
                let hidden = encoder.encode(&expected(name)?.tokens, &Mode::train(3))?;
                let mut gradients = Gradients::new(&parameters);
                gradients.backward(&loss(&hidden)?)?;
                let all_gradients = (0..gradients.len()).filter_map(|i| gradients.get(i));
                Ok(all_gradients.flatten().chain(&values(&hidden)?).map(|v| v.to_bits()).collect())
            })
        };
        assert!(run(1)? == run(3)?, "{name}");
    }
    Ok(())
}

#[test]
fn a_sequence_beyond_the_position_table_is_an_error() -> Result<()> {
    let too_long = PackedTokens::new(&[vec![1; 3], vec![1; 25]]);
    for name in ["bert", "deberta_v2"] {
        let (encoder, _) = load(name, Vec::new())?;
        let text = encoder.encode(&too_long, &Mode::evaluate()).unwrap_err().to_string();
        assert!(text.contains("25 tokens") && text.contains("takes at most 24"), "{text}");
    }
    let (without_positions, _) = load("deberta_v3", Vec::new())?;
    assert_eq!(without_positions.encode(&too_long, &Mode::evaluate())?.dims(), [28, 32]);
    Ok(())
}

#[test]
fn mismatched_weights_give_an_error_with_their_shapes() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, projection) in [("bert", "query"), ("deberta_v3", "query_proj")] {
        let missing = format!("encoder.layer.1.attention.self.{projection}.weight");
        let path = folder.path().join(format!("{name}.safetensors"));
        let tensors =
            candle_core::safetensors::load(fixture(name, "model.safetensors"), &Device::Cpu)?;
        let remaining = tensors.iter().filter(|(name, _)| **name != missing);
        weights::save(&path, remaining.map(|(name, tensor)| (name.as_str(), tensor)))?;
        let builder = ParameterBuilder::on_cpu(0).with_weights(open(&path)?);
        let error = build(name, json!({}), &builder).expect_err("a tensor is missing");
        let text = error.to_string();
        assert!(text.contains(&missing) && text.contains("[32, 32]"), "{text}");

        let error = load_changed(name, json!({"vocab_size": 61}), Vec::new()).err();
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
        for frozen in [&[][..], &["embeddings.**", "encoder.layer.0.**"]] {
            let group = |pattern: &&str| ParameterGroup { pattern: pattern.to_string(), rate: 0.0 };
            let groups = frozen.iter().map(group).collect();
            let dropout = json!({"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1});
            let (encoder, parameters) = load_changed(name, dropout, groups)?;
            let fingerprint =
                |is_trainable: bool| parameters.fingerprint(|p| p.is_trainable() == is_trainable);
            let before = (fingerprint(true)?, fingerprint(false)?);

            let hidden = encoder.encode(&expected(name)?.tokens, &Mode::train(1))?;
            let mut gradients = Gradients::new(&parameters);
            gradients.backward(&loss(&hidden)?)?;
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
        let Expected { tokens, .. } = expected(name)?;
        let (encoder, _) = load(name, Vec::new())?;
        let reference = encoder.forward(&tokens, &Mode::evaluate())?;
        assert!(reference.iter().all(Tensor::track_op), "{name}");
        let (frozen, _) = load(name, vec![ParameterGroup::all_frozen()])?;
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
        ("deberta_v3", "intermediate_size", json!(0)),
        ("deberta_v2", "max_position_embeddings", json!(0)),
        ("deberta_v3", "conv_kernel_size", json!(3)),
        ("deberta_v3", "attention_head_size", json!(16)),
        ("deberta_v3", "pos_att_type", json!([])),
        ("deberta_v3", "position_buckets", json!(1)),
        ("deberta_v3", "position_buckets", json!(64)),
        ("deberta_v3", "max_relative_positions", json!(i64::MAX)),
    ] {
        let error = load_changed(name, json!({ field: value }), Vec::new()).err();
        match error.expect("an error") {
            ModelError::BadConfig { what, .. } => assert_eq!(what, field),
            other => panic!("{field}: {other}"),
        }
    }
}

/// Compares the published all-MiniLM-L6-v2, if `ENGRAM_MINILM` names its folder.
#[test]
fn minilm_equals_the_reference() -> Result<()> {
    let Some(folder) = std::env::var_os("ENGRAM_MINILM").map(PathBuf::from) else {
        // Not with a macro, because the test runner captures its output.
        let text = b"SKIPPED: set ENGRAM_MINILM to the folder of all-MiniLM-L6-v2 to compare it\n";
        std::io::stderr().write_all(text).expect("standard error");
        return Ok(());
    };
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("a file");
    let config: BertConfig =
        serde_json::from_str(&read(folder.join("config.json"))).expect("a configuration");
    let builder = ParameterBuilder::on_cpu(0);
    let weights = open(&folder.join("model.safetensors"))?;
    let encoder = TextEncoder::Bert(Bert::new(&config, &builder.with_weights(weights))?);

    #[derive(serde::Deserialize)]
    struct Sentence {
        ids: Vec<u32>,
        first_token: Vec<f32>,
        last_token: Vec<f32>,
        mean_magnitude: f32,
    }
    let sentences: Vec<Sentence> =
        serde_json::from_str(&read(fixture("", "minilm.json"))).expect("sentences");
    let ids: Vec<_> = sentences.iter().map(|sentence| &sentence.ids).collect();
    let tokens = PackedTokens::new(&ids);
    let hidden = encoder.encode(&tokens, &Mode::evaluate())?;
    for (sentence, span) in sentences.iter().zip(tokens.sequences().iter()) {
        let hidden = values(&hidden.narrow(0, span.start, span.length)?)?;
        let magnitude = hidden.iter().map(|v| v.abs()).sum::<f32>() / hidden.len() as f32;
        let (first, last) = (&hidden[..8], &hidden[hidden.len() - 8..]);
        let difference = largest_difference(first, &sentence.first_token)
            .max(largest_difference(last, &sentence.last_token))
            .max((magnitude - sentence.mean_magnitude).abs());
        println!("MiniLM: {} tokens, off by {difference:.1e}", span.length);
        assert!(difference < 1e-5, "differs by {difference:e}");
    }
    Ok(())
}
