//! Token timestamps against `transformers` in f64.
//!
//! `tests/reference/word_times.py` creates the fixture.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::compute::Compute;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::AudioStates;
use engram_models::weights::Weights;
use engram_models::whisper::{Alignment, AlignmentHeads, AlignmentText, Whisper, WhisperConfig};
use engram_models::{ModelError, Result};

/// The first token id in the fixture's vocabulary that is not a word token.
const END: u32 = 30;

/// Returns the path of a file of the fixture.
fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/whisper").join(file)
}

fn tensors(file: &str) -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(fixture(file), &Device::Cpu)?)
}

/// Returns the largest absolute difference, divided by the largest absolute expected value.
fn relative_difference(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f32>| {
        values.map(f32::abs).max_by(f32::total_cmp).unwrap_or(0.0)
    };
    let difference =
        largest(&mut actual.iter().zip(expected).map(|(actual, expected)| actual - expected));
    difference / largest(&mut expected.iter().copied())
}

fn load(dtype: DType) -> Result<(Whisper, AudioStates)> {
    let config = WhisperConfig::read(&fixture("config.json"))?;
    let frozen = vec![ParameterGroup::all_frozen()];
    let builder = ParameterBuilder::new(0, frozen, &Compute { dtype, ..Compute::cpu() });
    let weights = Arc::new(Weights::open(&fixture("model.safetensors"))?);
    let whisper = Whisper::new(&config, &builder.with_weights(weights))?;
    let states = tensors("expected.safetensors")?["states"].to_dtype(dtype)?;
    Ok((whisper, AudioStates { states, lengths: vec![12, 7] }))
}

fn integers(tensors: &HashMap<String, Tensor>, name: &str) -> Result<Vec<u32>> {
    Ok(tensors[name].flatten_all()?.to_dtype(DType::U32)?.to_vec1()?)
}

/// The inputs and outputs of the reference.
struct Example {
    tensors: HashMap<String, Tensor>,
    heads: Vec<[usize; 2]>,
    prompt: Vec<u32>,
    texts: [Vec<u32>; 2],
}

fn example() -> Result<Example> {
    let tensors = tensors("alignment.safetensors")?;
    let heads = integers(&tensors, "heads")?;
    Ok(Example {
        heads: heads.chunks(2).map(|head| [head[0] as usize, head[1] as usize]).collect(),
        prompt: integers(&tensors, "prompt")?,
        texts: [integers(&tensors, "text.0")?, integers(&tensors, "text.1")?],
        tensors,
    })
}

/// Asserts that an alignment equals the reference's alignment of text `name`.
fn assert_alignment(
    name: &str,
    actual: &Alignment,
    example: &Example,
    tolerance: f32,
) -> Result<()> {
    let expected_tensor =
        |what: &str| Ok::<_, ModelError>(example.tensors[&format!("{what}.{name}")].clone());
    let starts: Vec<u32> = actual.starts.iter().map(|start| *start as u32).collect();
    assert_eq!(starts, integers(&example.tensors, &format!("starts.{name}"))?);
    let floats = |tensor: Tensor| -> Result<Vec<f32>> {
        Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
    };
    let weights: Vec<f32> = actual.weights.iter().map(|weight| *weight as f32).collect();
    let difference = relative_difference(&weights, &floats(expected_tensor("weights")?)?);
    assert!(difference < tolerance, "text {name}: weights are off by {difference:.1e}");
    let difference =
        relative_difference(&actual.probabilities, &floats(expected_tensor("probabilities")?)?);
    assert!(difference < tolerance, "text {name}: probabilities are off by {difference:.1e}");
    Ok(())
}

#[test]
fn token_times_equal_the_reference() -> Result<()> {
    let example = example()?;
    for (dtype, tolerance) in [(DType::F64, 2e-6), (DType::F32, 2e-4)] {
        let (whisper, audio) = load(dtype)?;
        let heads = AlignmentHeads::new(&example.heads, whisper.config())?;
        let texts = [
            AlignmentText { tokens: &example.texts[0], num_states: 10 },
            AlignmentText { tokens: &example.texts[1], num_states: 7 },
        ];
        let align = |audio: &AudioStates, texts: &[AlignmentText<'_>]| {
            whisper.decoder().align(audio, texts, &example.prompt, END, &heads)
        };
        let actual = align(&audio, &texts)?;
        assert_alignment("0", &actual[0], &example, tolerance)?;
        assert_alignment("1", &actual[1], &example, tolerance)?;
        // An empty text gives an empty alignment and does not affect other clips. Surplus states
        // are ignored.
        let states = 9;
        let actual = align(
            &audio,
            &[
                AlignmentText { tokens: &[], num_states: states },
                AlignmentText { tokens: &example.texts[1], num_states: states },
            ],
        )?;
        assert_eq!(actual[0], Alignment::default());
        assert_alignment("1", &actual[1], &example, tolerance)?;
        let empty = AlignmentText { tokens: &[], num_states: states };
        assert!(align(&audio, &[empty; 2])?.iter().all(|actual| *actual == Alignment::default()));
    }
    Ok(())
}

/// Clips with fewer states than tokens, with one state or none, and a text that leaves no position
/// for the end token.
#[test]
fn short_clips_and_long_texts_have_times() -> Result<()> {
    let (example, (whisper, audio)) = (example()?, load(DType::F32)?);
    // Without listed heads, all heads in the upper half of the layers are used.
    let heads = AlignmentHeads::new(&[], whisper.config())?;
    let upper: Vec<[usize; 2]> = (1..3).flat_map(|layer| (0..4).map(move |i| [layer, i])).collect();
    assert_eq!(heads, AlignmentHeads::new(&upper, whisper.config())?);
    let text: Vec<u32> = (3..10).collect();
    for states in [0, 1, 3, 7] {
        let texts = [
            AlignmentText { tokens: &text, num_states: states },
            AlignmentText { tokens: &text[..5], num_states: states },
        ];
        let prompt = example.prompt.as_slice();
        for (text, actual) in
            texts.iter().zip(whisper.decoder().align(&audio, &texts, prompt, END, &heads)?)
        {
            assert_eq!(actual.starts.len(), text.tokens.len() + 1);
            assert_eq!(actual.weights.len(), actual.starts.len() * states.max(1));
            assert!(actual.starts.is_sorted() && actual.starts[text.tokens.len()] < states.max(1));
            assert!(actual.probabilities.iter().all(|p| (0.0..=1.0).contains(p)));
            assert!(actual.weights.iter().all(|weight| weight.is_finite()));
        }
    }
    Ok(())
}

#[test]
fn invalid_alignment_inputs_are_errors() -> Result<()> {
    let (example, (whisper, audio)) = (example()?, load(DType::F32)?);
    let heads = AlignmentHeads::new(&example.heads, whisper.config())?;
    let error_of = |texts: &[&[u32]], prompt: &[u32]| {
        let texts: Vec<AlignmentText<'_>> =
            texts.iter().map(|text| AlignmentText { tokens: text, num_states: 5 }).collect();
        whisper.decoder().align(&audio, &texts, prompt, END, &heads).unwrap_err().to_string()
    };
    assert!(error_of(&[&[1]], &[31]).contains("1 texts but 2 clips"));
    assert!(error_of(&[&[1], &[]], &[]).contains("prompt"));
    assert!(error_of(&[&[1], &[2, 30]], &[31]).contains("token 30"));
    assert!(error_of(&[&[1; 10], &[2]], &[31]).contains("11 tokens"));
    let heads_error =
        |head| AlignmentHeads::new(&[[0, 0], head], whisper.config()).unwrap_err().to_string();
    assert!(heads_error([3, 0]).contains("[3, 0]") && heads_error([0, 4]).contains("4 heads"));
    Ok(())
}
