//! Compares the transducer with `torchaudio` and `transformers`, its searches with all texts of
//! small lattices, and its gradients with central differences.
//!
//! `tests/reference/transducer.py` creates the fixtures.

use std::sync::Arc;

use super::reference::{
    assert_gradients, assert_output, bits, builder, expected, fixture, integers, lengths,
    value_count, weights,
};
use candle_core::{DType, Tensor};
use engram_models::Result;
use engram_models::adapter::Adapters;
use engram_models::conformer::{
    ConformerAsrConfig, ConformerAsrModel, ConformerConfig, ConformerDecoder,
    ConformerTransducerConfig,
};
use engram_models::finite_difference::check_gradients;
use engram_models::generation::boosting::{Bonus, BoostTree, WordBoundaries};
use engram_models::kernels::{Activation, Mode};
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_models::recompute::Recompute;
use engram_models::speech::AudioStates;
use engram_models::speech::ctc_beam::BeamSearchOptions;
use engram_models::transducer::{
    GreedyDecoder, Prediction, TransducerConfig, TransducerDecoder, beam_search, beam_search_paths,
};

#[test]
fn logits_losses_gradients_and_greedy_texts_equal_the_reference() -> Result<()> {
    let tensors = expected("transducer")?;
    let lengths = lengths(&tensors["lengths"])?;
    let texts = vec![integers(&tensors["text.0"])?, integers(&tensors["text.1"])?];
    let config = ConformerAsrConfig::read(&fixture("transducer", "config.json"))?;
    let greedy_texts = [integers(&tensors["greedy.0"])?, integers(&tensors["greedy.1"])?];
    for (dtype, tolerance) in [(DType::F64, 2e-6), (DType::F32, 2e-4)] {
        let builder = builder(0, dtype).with_weights(weights("transducer")?);
        let model = ConformerAsrModel::new(&config, &builder)?;
        let ConformerDecoder::Transducer(decoder) = &model.decoder else { panic!("a transducer") };
        let mode = Mode::evaluate();
        let embedded = model.encoder.embed(&tensors["frames"].to_dtype(dtype)?, &lengths)?;
        let audio = model.encoder.forward(embedded, &Adapters::NONE, &mode)?;
        let logits = decoder.logits(&audio, &texts, &mode)?;
        assert_output(("transducer", "logits"), &logits, &tensors, tolerance)?;
        let losses = decoder.losses(&audio, &texts, &mode)?;
        assert_output(("transducer", "losses"), &losses, &tensors, tolerance)?;
        let loss = losses.mean_all()?;
        assert_gradients("transducer", &loss, &builder.finish()?, &tensors, tolerance)?;
        let mut greedy = GreedyDecoder::new(decoder, 2)?;
        greedy.push(&audio)?;
        let paths = greedy.paths();
        assert_eq!([&paths[0].tokens, &paths[1].tokens], greedy_texts.each_ref());
    }
    Ok(())
}

const WIDTH: usize = 6;

fn config(prediction: Prediction, max_symbols_per_step: usize) -> TransducerConfig {
    TransducerConfig {
        vocab_size: 4,
        decoder_hidden_size: 5,
        num_decoder_layers: 2,
        joint_hidden_size: Some(3),
        hidden_act: Activation::Tanh,
        max_symbols_per_step,
        blank: 0,
        prediction,
        ..TransducerConfig::default()
    }
}

fn decoder(
    prediction: Prediction,
    max_symbols: usize,
    dtype: DType,
    seed: u64,
) -> Result<(TransducerDecoder, Parameters)> {
    let builder = builder(seed, dtype);
    let decoder = TransducerDecoder::new(&config(prediction, max_symbols), WIDTH, 1.5, &builder)?;
    Ok((decoder, builder.finish()?))
}

/// Random encoder states.
fn states(length: usize, seed: u64) -> Result<Tensor> {
    ParameterBuilder::on_cpu(seed).get("states", &[length, WIDTH], Init::Normal(1.0))
}

const PREDICTIONS: [Prediction; 2] = [Prediction::Lstm, Prediction::Stateless];

/// Clips and texts of different lengths, one without labels.
#[test]
fn gradients_equal_central_differences() -> Result<()> {
    let values: Vec<f64> = (0..6 * WIDTH).map(|i| (i as f64 * 1.7).sin()).collect();
    for prediction in PREDICTIONS {
        check_gradients(&[(values.clone(), &[6, WIDTH])], |t| {
            let (decoder, _) = decoder(prediction, 3, t[0].dtype(), 3)?;
            let audio = AudioStates { states: t[0].clone(), lengths: vec![3, 1, 2] };
            decoder.losses(&audio, &[vec![1, 3], vec![], vec![2, 2, 1]], &Mode::evaluate())
        })?;
    }
    Ok(())
}

#[test]
fn recomputed_blocks_give_the_same_losses_and_gradients() -> Result<()> {
    let (decoder, parameters) = decoder(Prediction::Lstm, 3, DType::F32, 5)?;
    let audio = AudioStates { states: states(7, 2)?, lengths: vec![3, 4] };
    let run = |recompute| -> Result<(Vec<f32>, Vec<u32>)> {
        let mode = Mode::train(4).recompute(recompute);
        let losses = decoder.losses(&audio, &[vec![1, 3, 2], vec![2]], &mode)?;
        let mut gradients = engram_models::gradients::Gradients::new(&parameters);
        gradients.backward(&losses.sum_all()?)?;
        Ok((losses.to_vec1()?, bits(&gradients)))
    };
    assert_eq!(run(Recompute::Block)?, run(Recompute::None)?);
    Ok(())
}

/// Every sequence of up to `length` of the labels 1 to 3.
fn all_texts(length: usize) -> Vec<Vec<u32>> {
    let mut texts = vec![Vec::new()];
    let mut last = texts.clone();
    for _ in 0..length {
        let extend = |text: &Vec<u32>| -> Vec<Vec<u32>> {
            (1..4).map(|label| [text.as_slice(), &[label]].concat()).collect()
        };
        last = last.iter().flat_map(extend).collect::<Vec<_>>();
        texts.extend(last.clone());
    }
    texts
}

/// With as many beams as there are texts, no hypothesis is pruned. Texts of at most
/// `max_symbols_per_step` labels then have their exact probabilities.
#[test]
fn beam_search_finds_the_likeliest_of_all_texts() -> Result<()> {
    let mut num_changed = 0;
    for (prediction, seed) in PREDICTIONS.into_iter().flat_map(|p| (0..8).map(move |s| (p, s))) {
        let (decoder, _) = decoder(prediction, 3, DType::F32, seed)?;
        let states = states(2, seed)?;
        let texts = all_texts(3);
        let count = texts.len();
        let audio =
            AudioStates { states: Tensor::cat(&vec![&states; count], 0)?, lengths: vec![2; count] };
        let losses = decoder.losses(&audio, &texts, &Mode::inference())?.to_vec1::<f32>()?;
        let mut ranked: Vec<(f32, &Vec<u32>)> = losses.into_iter().zip(&texts).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let hypotheses = beam_search(&decoder, &states, all_texts(6).len(), None)?;
        let short: Vec<_> = hypotheses.iter().filter(|text| text.tokens.len() <= 3).collect();
        assert_eq!(short.len(), ranked.len());
        for (found, (loss, text)) in short.iter().zip(&ranked) {
            let error = (found.log_probability + f64::from(*loss)).abs();
            assert!(error < 1e-4, "{prediction:?}, seed {seed}: {found:?}, {text:?}, {loss}");
        }
        assert_eq!(&short[0].tokens, ranked[0].1);
        let mut greedy = GreedyDecoder::new(&decoder, 1)?;
        greedy.push(&AudioStates { states, lengths: vec![2] })?;
        num_changed += usize::from(greedy.paths()[0].tokens != hypotheses[0].tokens);
    }
    assert!(num_changed > 0, "greedy decoding always found the best text");
    Ok(())
}

/// Few beams give probabilities of at most the exact ones, and never a worse best text than the
/// greedy path.
#[test]
fn narrow_beams_are_bounded_by_the_exact_probabilities() -> Result<()> {
    for seed in 0..6 {
        let (decoder, _) = decoder(Prediction::Lstm, 4, DType::F32, seed)?;
        let audio = AudioStates { states: states(5, seed)?, lengths: vec![5] };
        let loss = |tokens: &Vec<u32>| -> Result<f64> {
            let losses =
                decoder.losses(&audio, std::slice::from_ref(tokens), &Mode::inference())?;
            Ok(f64::from(losses.to_vec1::<f32>()?[0]))
        };
        for num_beams in [1, 2, 4, 16] {
            let hypotheses = beam_search(&decoder, &audio.states, num_beams, None)?;
            assert!(hypotheses.len() <= num_beams && !hypotheses.is_empty());
            for text in &hypotheses {
                assert!(text.log_probability <= 1e-4 - loss(&text.tokens)?, "{text:?}");
            }
            let scores = hypotheses.iter().map(|text| text.log_probability);
            assert!(scores.collect::<Vec<_>>().is_sorted_by(|a, b| a >= b));
        }
    }
    Ok(())
}

/// The states of packed clips arrive in chunks of any length; the paths are those of whole clips.
#[test]
fn a_stream_has_the_paths_of_the_whole_clips() -> Result<()> {
    for prediction in PREDICTIONS {
        let (decoder, _) = decoder(prediction, 3, DType::F32, 8)?;
        let clips = [states(9, 1)?, states(5, 2)?];
        let mut whole = GreedyDecoder::new(&decoder, 2)?;
        let states = Tensor::cat(&[&clips[0], &clips[1]], 0)?;
        whole.push(&AudioStates { states, lengths: vec![9, 5] })?;
        let whole = whole.paths();
        assert!(whole.iter().all(|path| path.tokens.len() > 1), "{whole:?}");
        for chunks in [vec![[1, 2], [0, 3], [7, 0], [1, 0]], vec![[9, 1], [0, 4]]] {
            let mut stream = GreedyDecoder::new(&decoder, 2)?;
            let mut starts = [0, 0];
            for lengths in chunks {
                let chunk = |i: usize| clips[i].narrow(0, starts[i], lengths[i]);
                let states = Tensor::cat(&[chunk(0)?, chunk(1)?], 0)?;
                stream.push(&AudioStates { states, lengths: lengths.to_vec() })?;
                starts = [starts[0] + lengths[0], starts[1] + lengths[1]];
            }
            for (stream, whole) in stream.paths().iter().zip(&whole) {
                assert_eq!((&stream.tokens, &stream.states), (&whole.tokens, &whole.states));
                let difference = stream.mean_log_probability - whole.mean_log_probability;
                assert!(difference.abs() < 1e-5);
            }
        }
    }
    Ok(())
}

/// A path of a beam search is the likeliest alignment of its text; a greedy clip in the same batch
/// keeps its greedy path.
#[test]
fn paths_are_alignments_of_the_best_texts_and_words_can_be_boosted() -> Result<()> {
    let (decoder, _) = decoder(Prediction::Stateless, 3, DType::F32, 1)?;
    let audio = AudioStates { states: states(8, 4)?, lengths: vec![3, 5] };
    let search = |num_beams, boost: &Option<Arc<BoostTree>>| BeamSearchOptions {
        num_beams,
        boost: boost.clone(),
    };
    let paths = beam_search_paths(&decoder, &audio, &[search(8, &None), search(1, &None)])?;
    let best = beam_search(&decoder, &audio.states.narrow(0, 0, 3)?, 8, None)?.remove(0);
    assert_eq!(paths[0].tokens, best.tokens);
    for (path, length) in paths.iter().zip([3, 5]) {
        assert_eq!(path.states.len(), path.tokens.len());
        assert!(path.states.is_sorted() && path.states.iter().all(|state| *state < length));
        assert!((0.0..=1.0).contains(&path.min_blank_probability));
        // The mean over all labels and blanks of the path.
        let labels: f32 = path.log_probabilities.iter().sum();
        let steps = (length + path.tokens.len()) as f32;
        assert!(path.mean_log_probability * steps <= labels + 1e-4);
    }
    let mut greedy = GreedyDecoder::new(&decoder, 1)?;
    greedy.push(&AudioStates { states: audio.states.narrow(0, 3, 5)?, lengths: vec![5] })?;
    assert_eq!(paths[1].tokens, greedy.paths()[0].tokens);

    let boundaries = Arc::new(WordBoundaries::from_tokens(["", "a", "b", "c"]));
    let words = [vec![3, 2, 3, 1]];
    let tree = BoostTree::new(&words, Bonus { begin: 30.0, next: 30.0 }, boundaries);
    let boosted = [search(1, &Some(Arc::new(tree))), search(1, &None)];
    let boosted = beam_search_paths(&decoder, &audio, &boosted)?;
    let contains = |tokens: &[u32]| tokens.windows(4).any(|window| window == words[0]);
    assert!(contains(&boosted[0].tokens) && !contains(&paths[0].tokens), "{boosted:?}");
    assert!(beam_search_paths(&decoder, &audio, &[search(2, &None)]).is_err());
    Ok(())
}

/// The sizes in millions of parameters: Conformer S, M and L (arXiv 2005.08100, table 1) and
/// BEST-RQ's model of 0.6 billion parameters (arXiv 2202.01855), with 1,024 word pieces.
#[test]
fn presets_have_about_the_published_parameter_counts() -> Result<()> {
    for (encoder_config, [width, layers, joint], published) in [
        (ConformerConfig::small(), [320, 1, 320], 10.3),
        (ConformerConfig::medium(), [640, 1, 640], 30.7),
        (ConformerConfig::large(), [640, 1, 640], 118.8),
        (ConformerConfig::extra_large(), [1280, 2, 640], 635.0),
    ] {
        let decoder = TransducerConfig {
            vocab_size: 1025,
            decoder_hidden_size: width,
            num_decoder_layers: layers,
            joint_hidden_size: Some(joint),
            blank: 1024,
            ..TransducerConfig::default()
        };
        let config = ConformerTransducerConfig { encoder_config, decoder };
        let config = ConformerAsrConfig::Transducer(config);
        let count = value_count(|builder| ConformerAsrModel::new(&config, builder))?;
        let millions = count as f64 / 1e6;
        println!("{millions:.1} million, published {published}");
        assert!((0.85..1.15).contains(&(millions / published)), "{millions}, {published}");
    }
    Ok(())
}

#[test]
fn invalid_configurations_and_inputs_are_errors() -> Result<()> {
    let valid = config(Prediction::Lstm, 3);
    for (invalid, field) in [
        (TransducerConfig { blank: 4, ..valid.clone() }, "blank_token_id"),
        (TransducerConfig { num_decoder_layers: 0, ..valid.clone() }, "num_decoder_layers"),
        (TransducerConfig { joint_hidden_size: Some(0), ..valid.clone() }, "joint_hidden_size"),
        (TransducerConfig { decoder_dropout: 1.0, ..valid }, "decoder_dropout"),
    ] {
        let error = TransducerDecoder::new(&invalid, 2, 0.1, &ParameterBuilder::on_cpu(0));
        assert!(error.unwrap_err().to_string().contains(field));
    }
    let (decoder, _) = decoder(Prediction::Lstm, 3, DType::F32, 1)?;
    let audio = AudioStates { states: states(3, 1)?, lengths: vec![3] };
    for texts in [vec![], vec![vec![1], vec![2]], vec![vec![0]], vec![vec![4]]] {
        assert!(decoder.losses(&audio, &texts, &Mode::inference()).is_err(), "{texts:?}");
    }
    assert!(GreedyDecoder::new(&decoder, 2)?.push(&audio).is_err());
    let nan = AudioStates { states: (&audio.states * f64::NAN)?, ..audio };
    let error = GreedyDecoder::new(&decoder, 1)?.push(&nan).unwrap_err().to_string();
    assert!(error.contains("NaN"), "{error}");
    assert!(beam_search(&decoder, &nan.states, 2, None).is_err());
    Ok(())
}
