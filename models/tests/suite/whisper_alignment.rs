//! Token timestamps against `transformers` in f64.
//!
//! `tests/reference/word_times.py` creates the fixture.

use std::collections::HashMap;

use candle_core::{DType, Tensor};
use engram_models::Result;
use engram_models::speech::AudioStates;
use engram_models::whisper::{Alignment, AlignmentHeads, AlignmentText, Whisper};

use super::reference::{
    builder, expected, fixture, integers, relative_difference, tensors, values,
};

/// The first token id in the fixture's vocabulary that is not a word token.
const END: u32 = 30;

fn load(dtype: DType) -> Result<(Whisper, AudioStates)> {
    let whisper = Whisper::load(&fixture("whisper", ""), &builder(0, dtype))?;
    let states = expected("whisper")?["states"].to_dtype(dtype)?;
    Ok((whisper, AudioStates { states, lengths: vec![12, 7] }))
}

/// The inputs and outputs of the reference.
struct Example {
    tensors: HashMap<String, Tensor>,
    heads: Vec<[usize; 2]>,
    prompt: Vec<u32>,
    texts: [Vec<u32>; 2],
}

fn example() -> Result<Example> {
    let tensors = tensors("whisper", "alignment.safetensors")?;
    let heads = integers(&tensors["heads"])?;
    Ok(Example {
        heads: heads.chunks(2).map(|head| [head[0] as usize, head[1] as usize]).collect(),
        prompt: integers(&tensors["prompt"])?,
        texts: [integers(&tensors["text.0"])?, integers(&tensors["text.1"])?],
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
    let expected = |what: &str| &example.tensors[&format!("{what}.{name}")];
    let starts: Vec<u32> = actual.starts.iter().map(|start| *start as u32).collect();
    assert_eq!(starts, integers(expected("starts"))?);
    let weights: Vec<f32> = actual.weights.iter().map(|weight| *weight as f32).collect();
    for (what, found) in [("weights", &weights), ("probabilities", &actual.probabilities)] {
        let difference = relative_difference(found, &values(expected(what))?);
        assert!(difference < tolerance, "text {name}: {what} are off by {difference:.1e}");
    }
    Ok(())
}

#[test]
fn token_times_equal_the_reference() -> Result<()> {
    let example = example()?;
    for (dtype, tolerance) in [(DType::F64, 2e-6), (DType::F32, 2e-4)] {
        let (whisper, audio) = load(dtype)?;
        let heads = AlignmentHeads::new(&example.heads, &whisper.config)?;
        let texts = [
            AlignmentText { tokens: &example.texts[0], num_states: 10 },
            AlignmentText { tokens: &example.texts[1], num_states: 7 },
        ];
        let align = |audio: &AudioStates, texts: &[AlignmentText<'_>]| {
            whisper.decoder.align(audio, texts, &example.prompt, END, &heads)
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
    let heads = AlignmentHeads::new(&[], &whisper.config)?;
    let upper: Vec<[usize; 2]> = (1..3).flat_map(|layer| (0..4).map(move |i| [layer, i])).collect();
    assert_eq!(heads, AlignmentHeads::new(&upper, &whisper.config)?);
    let text: Vec<u32> = (3..10).collect();
    for states in [0, 1, 3, 7] {
        let texts = [
            AlignmentText { tokens: &text, num_states: states },
            AlignmentText { tokens: &text[..5], num_states: states },
        ];
        let prompt = example.prompt.as_slice();
        for (text, actual) in
            texts.iter().zip(whisper.decoder.align(&audio, &texts, prompt, END, &heads)?)
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
    let heads = AlignmentHeads::new(&example.heads, &whisper.config)?;
    let error_of = |texts: &[&[u32]], prompt: &[u32]| {
        let texts: Vec<AlignmentText<'_>> =
            texts.iter().map(|text| AlignmentText { tokens: text, num_states: 5 }).collect();
        whisper.decoder.align(&audio, &texts, prompt, END, &heads).unwrap_err().to_string()
    };
    assert!(error_of(&[&[1]], &[31]).contains("1 texts but 2 clips"));
    assert!(error_of(&[&[1], &[]], &[]).contains("prompt"));
    assert!(error_of(&[&[1], &[2, 30]], &[31]).contains("token 30"));
    assert!(error_of(&[&[1; 10], &[2]], &[31]).contains("11 tokens"));
    let heads_error =
        |head| AlignmentHeads::new(&[[0, 0], head], &whisper.config).unwrap_err().to_string();
    assert!(heads_error([3, 0]).contains("[3, 0]") && heads_error([0, 4]).contains("4 heads"));
    Ok(())
}
