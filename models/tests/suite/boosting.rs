//! Whisper's search with boosted words, on a model with random weights.

use std::sync::Arc;

use candle_core::DType;
use engram_models::Result;
use engram_models::generation::GenerateOptions;
use engram_models::generation::boosting::{Bonus, BoostTree, WordBoundaries};
use engram_models::kernels::Mode;
use engram_models::whisper::{DecodingRules, Whisper, WhisperConfig, WhisperTranscript};

use super::reference::{builder, waves};
use super::whisper::rules;

fn whisper() -> Result<Whisper> {
    let config = WhisperConfig {
        vocab_size: 40,
        num_mel_bins: 6,
        d_model: 16,
        encoder_layers: 1,
        encoder_attention_heads: 2,
        encoder_ffn_dim: 32,
        decoder_layers: 2,
        decoder_attention_heads: 2,
        decoder_ffn_dim: 32,
        max_source_positions: 12,
        max_target_positions: 12,
        init_std: 0.3,
        decoder_start_token_id: 2,
        eos_token_id: 1,
        ..WhisperConfig::default()
    };
    Whisper::new(&config, &builder(7, DType::F32))
}

/// Boosting puts a word into the text, changes no clip without boosted words, and does not change
/// the reported probabilities of tokens.
#[test]
fn boosted_words_are_transcribed() -> Result<()> {
    let whisper = whisper()?;
    let frames = waves(&[36, 6], 0.7, DType::F32)?;
    let audio = whisper.encode(&frames, &[24, 12], &Mode::inference())?;
    let generate = |num_beams, boosts: &[Option<Arc<BoostTree>>]| {
        let rules = DecodingRules { boosts: boosts.to_vec(), ..rules([7, 7]) };
        let (max_new_tokens, options) = (8, GenerateOptions::default());
        let options = GenerateOptions { max_new_tokens, num_beams, ..options };
        whisper.decoder.generate(&audio, None, &[2, 3], &rules, &options)
    };
    let tree = |words: &[&[u32]], weight: f32| {
        let bonus = Bonus { begin: weight / 2.0, next: weight };
        Some(Arc::new(BoostTree::new(words, bonus, Arc::new(WordBoundaries::default()))))
    };
    let word: &[u32] = &[31, 17, 23];
    for beams in [1, 4] {
        let unboosted = generate(beams, &[])?;
        // A bonus of zero, no words, or no list for the clip does not change the text.
        for no_boost in [tree(&[word], 0.0), tree(&[], 5.0), None] {
            assert_eq!(generate(beams, &[no_boost.clone(), no_boost])?, unboosted, "{beams} beams");
        }
        let contains_word = |transcript: &WhisperTranscript| {
            transcript.generated.tokens.windows(3).any(|part| part == word)
        };
        assert!(!unboosted.iter().any(contains_word));
        let boosted = generate(beams, &[tree(&[word], 50.0)])?;
        assert!(contains_word(&boosted[0]), "{beams} beams: {:?}", boosted[0].generated.tokens);
        // Only the clip with the list gets the boosted word.
        assert_eq!(boosted[1].generated.tokens, unboosted[1].generated.tokens);
        let both_boosted = generate(beams, &[tree(&[word], 50.0), tree(&[&[9, 11]], 50.0)])?;
        assert_eq!(both_boosted[0].generated.tokens, boosted[0].generated.tokens);
        assert!(both_boosted[1].generated.tokens.windows(2).any(|part| part == [9, 11]));
        // The reported probabilities are the model's, before bonuses.
        for transcript in &boosted {
            let (text, sum) =
                (&transcript.generated, transcript.generated.log_probabilities.iter().sum::<f32>());
            assert!(text.log_probabilities.iter().all(|p| *p <= 0.0), "{text:?}");
            assert!((text.log_probability - sum).abs() < 1e-4, "{text:?}");
        }
        // Suppressed tokens are not generated, even if boosted.
        let suppressed = generate(beams, &[tree(&[&[5], &[6, 9]], 50.0)])?;
        assert!(!suppressed[0].generated.tokens.iter().any(|token| [5, 6].contains(token)));
    }
    Ok(())
}
