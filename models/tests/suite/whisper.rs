//! Compares Whisper with `transformers`: frames, states, logits and every gradient. Also compares
//! texts with the decoder without a cache, and checks gradients through frozen blocks to inserted
//! tokens and adapters.
//!
//! `tests/reference/whisper.py` creates the fixtures.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor, Var};
use engram_models::Result;
use engram_models::adapter::{AdapterConfig, Adapters};
use engram_models::ctranslate2::PublishedWhisper;
use engram_models::generation::GenerateOptions;
use engram_models::kernels::{Activation, Mode};
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::LogMel;
use engram_models::whisper::{
    DecodingRules, EarlierContext, Whisper, WhisperConfig, WhisperTokens,
};

use super::reference::{
    assert_every_third_frame, assert_gradients, assert_output, builder, expected, fixture,
    frozen_builder, integers, largest_difference, lengths, mean_loss, relative_difference, tensors,
    value_count, values, waves,
};

fn load(builder: ParameterBuilder) -> Result<(Whisper, ParameterBuilder)> {
    Ok((Whisper::load(&fixture("whisper", ""), &builder)?, builder))
}

/// The inputs and the expected outputs of the reference.
struct Example {
    tensors: HashMap<String, Tensor>,
    lengths: Vec<usize>,
    inputs: PackedTokens,
    targets: Vec<u32>,
}

fn example() -> Result<Example> {
    let tensors = expected("whisper")?;
    let lengths = lengths(&tensors["lengths"])?;
    let texts = [integers(&tensors["text.0"])?, integers(&tensors["text.1"])?];
    let inputs = PackedTokens::new(&texts.each_ref().map(|text| &text[..text.len() - 1]));
    let targets = texts.iter().flat_map(|text| text[1..].to_vec()).collect();
    Ok(Example { tensors, lengths, inputs, targets })
}

fn frames(example: &Example, dtype: DType) -> Result<Var> {
    Ok(Var::from_tensor(&example.tensors["frames"].to_dtype(dtype)?)?)
}

#[test]
fn states_logits_and_gradients_equal_the_reference() -> Result<()> {
    let example = example()?;
    for (dtype, tolerance) in [(DType::F64, 2e-6), (DType::F32, 2e-4)] {
        let (whisper, builder) = load(builder(0, dtype))?;
        let parameters: Parameters = builder.finish()?;
        let frames = frames(&example, dtype)?;
        let mode = Mode::evaluate();
        let audio = whisper.encode(frames.as_tensor(), &example.lengths, &mode)?;
        assert_eq!(audio.lengths, [12, 7]);
        assert_output(("whisper", "states"), &audio.states, &example.tensors, tolerance)?;
        let logits = whisper.decode(&example.inputs, None, &audio, &mode)?;
        assert_output(("whisper", "logits"), &logits, &example.tensors, tolerance)?;
        let loss = mean_loss(&logits, &example.targets)?;
        let expected = &example.tensors["loss"];
        assert!(relative_difference(&values(&loss)?, &values(expected)?) < 1e-4);
        let gradients = loss.backward()?;
        let gradient = gradients.get(frames.as_tensor()).expect("a gradient of the frames");
        assert_output(("whisper", "frames_gradient"), gradient, &example.tensors, tolerance)?;
        assert_gradients("whisper", &loss, &parameters, &example.tensors, tolerance)?;
    }
    Ok(())
}

/// A model without published weights has the sinusoids of published models.
#[test]
fn initial_positions_are_the_published_sinusoids() -> Result<()> {
    let table = |builder: &ParameterBuilder| -> Result<Vec<f32>> {
        let parameters = builder.finish()?;
        parameters.get("model.encoder.embed_positions.weight").expect("positions").to_vec()
    };
    let config = WhisperConfig::read(&fixture("whisper", "config.json"))?;
    let builder = ParameterBuilder::on_cpu(1);
    Whisper::new(&config, &builder)?;
    let computed = table(&builder)?;
    let step = 10_000f64.ln() / 7.0;
    for (i, value) in computed.iter().enumerate() {
        let (position, channel) = ((i / 16) as f64, i % 16);
        let angle = position * (-step * (channel % 8) as f64).exp();
        let expected = if channel < 8 { angle.sin() } else { angle.cos() };
        assert!((f64::from(*value) - expected).abs() < 1e-6);
    }
    Ok(())
}

#[test]
fn frames_equal_the_reference() -> Result<()> {
    let tensors = tensors("", "log_mel.safetensors")?;
    let samples = (tensors["samples"].to_dtype(DType::F32)? / 32_768.0)?.to_vec1::<f32>()?;
    for bands in [80, 128] {
        let mel = LogMel::whisper(bands)?;
        for (what, length) in [("alone", 0), ("padded", 480_000)] {
            let computed = mel.frames(&samples, length);
            assert_every_third_frame(&computed, &tensors[&format!("{what}.{bands}")], 1e-4)?;
        }
    }
    Ok(())
}

/// Compares with the published filters.
#[test]
#[ignore = "needs ENGRAM_DATA: speech/mel_filters.safetensors"]
fn filters_equal_the_published_filters() -> Result<()> {
    let data = std::env::var_os("ENGRAM_DATA").expect("ENGRAM_DATA");
    let path = PathBuf::from(data).join("speech/mel_filters.safetensors");
    let published = candle_core::safetensors::load(path, &Device::Cpu)?;
    for bands in [80, 128] {
        let mel = LogMel::whisper(bands)?;
        for (band, expected) in
            published[&format!("mel_{bands}")].to_vec2::<f32>()?.into_iter().enumerate()
        {
            for (i, (found, expected)) in mel.filter(band).iter().zip(expected).enumerate() {
                let is_close = (found - expected).abs() < 1e-8;
                assert!(is_close, "band {band} at {i}: {found}, {expected}");
            }
        }
    }
    Ok(())
}

/// Rules of a vocabulary with special tokens from 1 to 4, which suppress tokens 5 to 7.
pub fn rules(max_tokens: [usize; 2]) -> DecodingRules {
    DecodingRules {
        tokens: WhisperTokens {
            start: 2,
            end: 1,
            no_timestamps: 3,
            no_speech: Some(4),
            previous: None,
            transcribe: None,
            translate: None,
            language_model: None,
        },
        suppress_tokens: vec![5, 6],
        begin_suppress_tokens: vec![7],
        timestamps: false,
        max_tokens: max_tokens.to_vec(),
        boosts: Vec::new(),
    }
}

/// Each token is the argmax of the allowed tokens, computed by the decoder without a cache; also
/// with embeddings before the prompt. The text of a clip does not depend on the other clips of the
/// batch.
#[test]
fn texts_equal_the_decoder_without_a_cache() -> Result<()> {
    let example = example()?;
    let (whisper, _) = load(frozen_builder())?;
    let frames = example.tensors["frames"].clone();
    let audio = whisper.encode(&frames, &example.lengths, &Mode::inference())?;
    let context_of = |step: f64, first: usize, count: usize| -> Result<EarlierContext> {
        let embeddings = waves(&[4, whisper.config.d_model], step, DType::F32)?;
        let embeddings = embeddings.narrow(0, first, count)?;
        Ok(EarlierContext { embeddings, counts: vec![2; count / 2], start: 8 })
    };
    // The ids of embeddings begin after the vocabulary.
    let of_context = [vec![8, 40, 41, 2, 3], vec![8, 42, 43, 2, 3]];
    let mut first_probabilities = Vec::new();
    for step in [None, Some(0.9), Some(0.4), Some(1.7)] {
        let context = step.map(|step| context_of(step, 0, 4)).transpose()?;
        let prompts = step.map_or([vec![2, 3], vec![2, 3]], |_| of_context.clone());
        // The decoder has 10 positions.
        let max_new_tokens = 10 - prompts[0].len();
        let options = GenerateOptions { max_new_tokens, ..GenerateOptions::default() };
        let decoder = &whisper.decoder;
        let generate = |rules: &DecodingRules, options: &GenerateOptions| {
            decoder.generate(&audio, context.as_ref(), &[2, 3], rules, options)
        };
        let transcripts = generate(&rules([5, 7]), &options)?;
        let lengths = transcripts.iter().map(|transcript| transcript.generated.tokens.len());
        assert!(step.is_some() || lengths.max() > Some(3), "{transcripts:?}");
        for (clip, (transcript, audio)) in transcripts.iter().zip(audio.clips()?).enumerate() {
            let (tokens, prompt) = (&transcript.generated.tokens, &prompts[clip]);
            let inputs = PackedTokens::new(&[[&**prompt, &tokens[..tokens.len() - 1]].concat()]);
            let extra = context.as_ref().map(|context| &context.embeddings);
            let rows = whisper.decode(&inputs, extra, &audio, &Mode::inference())?;
            let rows = rows.to_vec2::<f32>()?;
            let rows = &rows[prompt.len() - 2..];
            let softmax = |row: &[f32], token: usize| {
                let total: f32 = row.iter().map(|logit| logit.exp()).sum();
                row[token].exp() / total
            };
            assert!((transcript.no_speech_prob - softmax(&rows[0], 4)).abs() < 1e-5);
            for (i, token) in tokens.iter().enumerate() {
                let mut row = rows[i + 1].clone();
                for forbidden in [5, 6, 2, 3, 4].into_iter().chain((i == 0).then_some(7)) {
                    row[forbidden] = f32::NEG_INFINITY;
                }
                let best = (0..40).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
                if i < [5, 7][clip] {
                    assert_eq!(best as u32, *token, "clip {clip}, token {i}");
                    let expected = softmax(&row, best).ln();
                    assert!((transcript.generated.log_probabilities[i] - expected).abs() < 1e-4);
                } else {
                    assert_eq!((*token, i), (1, [5, 7][clip]), "a text of {i} tokens is ended");
                }
            }
            let mut rules_of_clip = rules([5, 7]);
            rules_of_clip.max_tokens = vec![rules_of_clip.max_tokens[clip]];
            let own = step.map(|step| context_of(step, 2 * clip, 2)).transpose()?;
            let alone =
                decoder.generate(&audio, own.as_ref(), &[2, 3], &rules_of_clip, &options)?;
            assert_eq!(&alone[0].generated.tokens, tokens);
        }
        // Beam search finds a text that is at least as likely.
        let beams = GenerateOptions { num_beams: 4, length_penalty: 0.0, ..options };
        let beam_transcripts = generate(&rules([5, 7]), &beams)?;
        for (beam, greedy) in beam_transcripts.iter().zip(&transcripts) {
            assert!(beam.generated.log_probability >= greedy.generated.log_probability - 1e-5);
        }
        first_probabilities.push(transcripts[0].generated.log_probabilities[0]);
    }
    assert!(first_probabilities[1..].iter().all(|p| (p - first_probabilities[0]).abs() > 1e-4));
    let uneven = EarlierContext { counts: vec![1, 3], ..context_of(0.9, 0, 4)? };
    let options = GenerateOptions::default();
    let error = whisper.decoder.generate(&audio, Some(&uneven), &[2, 3], &rules([5, 7]), &options);
    assert!(error.is_err_and(|error| error.to_string().contains("same number of embeddings")));
    Ok(())
}

#[test]
fn invalid_inputs_are_errors() -> Result<()> {
    let (whisper, _) = load(frozen_builder())?;
    let mode = Mode::inference();
    let frames = Tensor::zeros((26, 6), DType::F32, &Device::Cpu)?;
    let error = whisper.encode(&frames, &[26], &mode).unwrap_err().to_string();
    assert!(error.contains("26 frames") && error.contains("24"), "{error}");
    assert!(whisper.encode(&frames, &[24, 0, 2], &mode).is_err());
    assert!(whisper.encode(&frames, &[24], &mode).is_err());
    let audio = whisper.encode(&frames, &[14, 12], &mode)?;
    let options = GenerateOptions { max_new_tokens: 10, ..GenerateOptions::default() };
    let result = whisper.decoder.generate(&audio, None, &[2, 3], &rules([5, 7]), &options);
    assert!(result.unwrap_err().to_string().contains("12 tokens"));
    assert!(whisper.decoder.generate(&audio, None, &[], &rules([5, 7]), &options).is_err());
    let config = |change: fn(&mut WhisperConfig)| {
        let mut config = WhisperConfig::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert!(config(|c| c.scale_embedding = true).contains("scale_embedding"));
    assert!(config(|c| c.decoder_attention_heads = 7).contains("7 heads"));
    assert!(config(|c| c.vocab_size = 100).contains("vocab_size"));
    Ok(())
}

/// Whisper tiny has the count that `model.num_parameters()` of `transformers` returns.
#[test]
fn the_default_size_has_the_published_parameter_count() -> Result<()> {
    let count = value_count(|builder| Whisper::new(&WhisperConfig::default(), builder))?;
    assert_eq!(count, 37_760_640);
    Ok(())
}

/// Returns the loss of texts, with a token before the audio tokens of each clip and adapters for
/// all blocks.
fn adapted_loss(
    whisper: &Whisper,
    example: &Example,
    (token, adapters): (&Tensor, &[Adapters; 2]),
) -> Result<Tensor> {
    let mode = Mode::evaluate();
    let frames = example.tensors["frames"].to_dtype(token.dtype())?;
    let audio_tokens = whisper.encoder.embed(&frames, &example.lengths)?;
    let clips = audio_tokens.clips()?;
    let rows: Vec<&Tensor> = clips.iter().flat_map(|clip| [token, &clip.states]).collect();
    let lengths = audio_tokens.lengths.iter().map(|length| length + 1).collect();
    let with_token = AudioStates { states: Tensor::cat(&rows, 0)?, lengths };
    let audio = whisper.encoder.forward(with_token, &adapters[0], &mode)?;
    let logits = whisper.decoder.forward(&example.inputs, None, &audio, &adapters[1], &mode)?;
    mean_loss(&logits, &example.targets)
}

/// As in the training of AVFormer, all published parameters are frozen. The gradients of inserted
/// tokens and adapters match central differences.
#[test]
fn gradients_pass_through_the_frozen_model() -> Result<()> {
    let example = example()?;
    for dtype in [DType::F64, DType::F32] {
        let groups = vec![ParameterGroup { pattern: "model.**".into(), rate: 0.0 }];
        let compute = builder(0, dtype).compute();
        let (whisper, published) = load(ParameterBuilder::new(0, groups, &compute))?;
        let adapter_builder = builder(4, dtype);
        let config =
            AdapterConfig { bottleneck: 4, activation: Activation::Gelu, ..Default::default() };
        let new_adapters =
            |blocks, name| Adapters::new(&config, blocks, 16, &adapter_builder.pp(name));
        let adapters = [new_adapters(2, "encoder")?, new_adapters(3, "decoder")?];
        let token = Var::from_tensor(&waves(&[1, 16], 1.7, dtype)?)?;
        let loss = |token: &Tensor| adapted_loss(&whisper, &example, (token, &adapters));
        // New adapters do not change the output.
        let frames = example.tensors["frames"].to_dtype(dtype)?;
        let plain = whisper.encode(&frames, &example.lengths, &Mode::evaluate())?;
        let audio_tokens = whisper.encoder.embed(&frames, &example.lengths)?;
        let adapted = whisper.encoder.forward(audio_tokens, &adapters[0], &Mode::evaluate())?;
        assert_eq!(values(&plain.states)?, values(&adapted.states)?);
        assert!(whisper.encoder.forward(plain, &adapters[1], &Mode::evaluate()).is_err());

        let gradients = loss(token.as_tensor())?.backward()?;
        assert!(published.finish()?.iter().all(|p| gradients.get(p.tensor()).is_none()));
        for parameter in
            adapter_builder.finish()?.iter().filter(|p| p.name().ends_with("up.weight"))
        {
            let gradient = values(gradients.get(parameter.tensor()).expect("a gradient"))?;
            assert!(gradient.iter().any(|g| *g != 0.0) && gradient.iter().all(|g| g.is_finite()));
        }
        let gradient = gradients.get(token.as_tensor()).expect("a gradient of the token");
        let gradient = gradient.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        assert!(gradient.iter().all(|g| *g != 0.0));
        if dtype == DType::F64 {
            let token_values = token.as_tensor().flatten_all()?.to_vec1::<f64>()?;
            for (i, gradient) in gradient.iter().enumerate() {
                let loss_at = |step: f64| -> Result<f64> {
                    let mut shifted = token_values.clone();
                    shifted[i] += step;
                    let shifted = Tensor::from_vec(shifted, (1, 16), &Device::Cpu)?;
                    Ok(loss(&shifted)?.to_scalar::<f64>()?)
                };
                let difference = (loss_at(1e-5)? - loss_at(-1e-5)?) / 2e-5;
                assert!((gradient - difference).abs() < 1e-7, "{i}: {gradient}, {difference}");
            }
        }
    }
    Ok(())
}

/// Compares the published tiny.en (`tests/fetch_weights.sh`).
#[test]
#[ignore = "needs ENGRAM_WHISPER: the folder of tiny.en, and ENGRAM_DATA: speech/wav16k/jfk.wav"]
fn tiny_en_equals_the_states_and_logits_of_the_reference() -> Result<()> {
    let folder = |name: &str| PathBuf::from(std::env::var_os(name).expect(name));
    let recording = folder("ENGRAM_DATA").join("speech/wav16k/jfk.wav");
    let published = PublishedWhisper::read_ctranslate2(&folder("ENGRAM_WHISPER"))?;
    let folder = tempfile::tempdir().expect("a folder");
    published.save(folder.path())?;
    let whisper = Whisper::load(folder.path(), &frozen_builder())?;
    // The header of this file is 44 bytes long.
    let bytes = std::fs::read(&recording).expect("a recording");
    let pairs = bytes[44..].chunks_exact(2);
    let samples: Vec<f32> =
        pairs.map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0).collect();
    let computed = LogMel::whisper(80)?.frames(&samples, whisper.config.max_samples());
    let frames = Tensor::from_vec(computed.values, (3000, 80), &Device::Cpu)?;
    let tensors = tensors("", "whisper_tiny_en.safetensors")?;
    let every_nth_row = |tensor: &Tensor, step: u32| {
        let rows: Vec<u32> = (0..tensor.dim(0)? as u32).step_by(step as usize).collect();
        let count = rows.len();
        tensor.index_select(&Tensor::from_vec(rows, count, &Device::Cpu)?, 0)
    };
    let difference = |actual: &Tensor, what: &str| -> Result<f32> {
        let difference = largest_difference(actual, &tensors[what])?;
        println!("tiny.en: {what} are off by {difference:.1e}");
        Ok(difference)
    };
    assert!(difference(&every_nth_row(&frames, 50)?, "frames")? < 1e-4);
    let audio = whisper.encode(&frames, &[3000], &Mode::inference())?;
    assert!(difference(&every_nth_row(&audio.states, 40)?, "states")? < 1e-3);
    let inputs = PackedTokens::new(&[[50_257, 50_362]]);
    let logits = whisper.decode(&inputs, None, &audio, &Mode::inference())?;
    let logits = every_nth_row(&logits.t()?.contiguous()?, 50)?.t()?.contiguous()?;
    assert!(difference(&logits, "logits")? < 1e-3);
    Ok(())
}
