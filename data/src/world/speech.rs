//! Image names spoken by ten voices of espeak-ng, and sentences concatenated from them.
//! `data/assets/speech/make.py` makes the recordings. Eight voices are for training, one for
//! validation and one for test: the test measures generalization to a new voice.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::questions::Split;
use crate::DataError;
use crate::audio::AudioReader;

/// The sample rate of the recordings, in Hz.
pub const SAMPLE_RATE: u32 = 16_000;

/// The maximum number of names in a sentence.
const MAX_NAMES: usize = 3;
/// The pause between two clips, and the silence before and after a sentence, in samples.
const PAUSE: std::ops::Range<usize> = 480..2_400;
const SILENCE: std::ops::Range<usize> = 800..3_200;

/// A table with the voice, split, kind, text, first sample and length of each clip.
const CLIPS: &str = include_str!("../../assets/speech/clips.tsv");

macro_rules! recording {
    ($voice:literal) => {
        ($voice, include_bytes!(concat!("../../assets/speech/", $voice, ".flac")))
    };
}

/// One recording per voice.
const RECORDINGS: [(&str, &[u8]); 10] = [
    recording!("en-us+m1"),
    recording!("en-us+f2"),
    recording!("en-gb+m3"),
    recording!("en-gb+f1"),
    recording!("en-gb-scotland+m5"),
    recording!("en-gb-x-gbclan+f3"),
    recording!("en-029+m4"),
    recording!("en-gb-x-gbcwmd+f5"),
    recording!("en-us-nyc+m7"),
    recording!("en-gb-x-rp+f4"),
];

/// A voice and its clips.
#[derive(Debug, Clone, PartialEq)]
pub struct Voice {
    /// The name in espeak-ng: accent and variant.
    pub name: &'static str,
    /// The split of the voice.
    pub split: Split,
    /// Phrases before a name: `this is a`.
    pub openers: Vec<SpokenClip>,
    /// Phrases between two names: `and the`.
    pub joiners: Vec<SpokenClip>,
    /// Image names.
    pub names: Vec<SpokenClip>,
}

/// A spoken clip.
#[derive(Debug, Clone, PartialEq)]
pub struct SpokenClip {
    /// The transcript.
    pub text: &'static str,
    /// Samples at [`SAMPLE_RATE`].
    pub samples: Vec<f32>,
}

/// A spoken sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct Sentence {
    /// The transcript.
    pub text: String,
    /// The names in the sentence, in order.
    pub names: Vec<&'static str>,
    /// Samples at [`SAMPLE_RATE`].
    pub samples: Vec<f32>,
}

/// Returns all voices, in the order of their recordings.
///
/// # Errors
/// [`DataError::Audio`]
pub fn voices() -> Result<Vec<Voice>, DataError> {
    RECORDINGS.par_iter().map(|(name, bytes)| load_voice(name, bytes)).collect()
}

fn load_voice(name: &'static str, bytes: &'static [u8]) -> Result<Voice, DataError> {
    let samples = AudioReader::from_bytes(name, bytes, SAMPLE_RATE)?.read_all()?;
    let (mut openers, mut joiners, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut split = Split::Train;
    for line in CLIPS.lines() {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let &[voice_name, split_name, kind, text, start, length] = fields.as_slice() else {
            continue;
        };
        let range = (start.parse::<usize>(), length.parse::<usize>());
        let (Ok(start), Ok(length)) = range else { continue };
        if voice_name != name {
            continue;
        }
        let Some(clip) = samples.get(start..start + length) else {
            let reason = format!("has no clip {text:?} at sample {start}");
            return Err(DataError::Audio { path: name.into(), reason });
        };
        split = match split_name {
            "train" => Split::Train,
            "validation" => Split::Validation,
            _ => Split::Test,
        };
        let clips = match kind {
            "opener" => &mut openers,
            "joiner" => &mut joiners,
            _ => &mut names,
        };
        clips.push(SpokenClip { text, samples: clip.to_vec() });
    }
    Ok(Voice { name, split, openers, joiners, names })
}

impl Voice {
    /// Makes a sentence of one to three names. Half of the sentences begin with an opener, and half
    /// of the later names follow a joiner.
    pub fn sentence(&self, rng: &mut ChaCha8Rng) -> Sentence {
        let mut clips: Vec<&SpokenClip> = Vec::new();
        if rng.random_bool(0.5) {
            clips.extend(draw_clip(&self.openers, rng));
        }
        let mut names = Vec::new();
        for i in 0..rng.random_range(1..=MAX_NAMES) {
            if i > 0 && rng.random_bool(0.5) {
                clips.extend(draw_clip(&self.joiners, rng));
            }
            if let Some(name) = draw_clip(&self.names, rng) {
                names.push(name.text);
                clips.push(name);
            }
        }
        let mut samples = vec![0.0; rng.random_range(SILENCE)];
        for (i, clip) in clips.iter().enumerate() {
            if i > 0 {
                samples.resize(samples.len() + rng.random_range(PAUSE), 0.0);
            }
            samples.extend_from_slice(&clip.samples);
        }
        samples.resize(samples.len() + rng.random_range(SILENCE), 0.0);
        let text = clips.iter().map(|clip| clip.text).collect::<Vec<_>>().join(" ");
        Sentence { text, names, samples }
    }
}

fn draw_clip<'a>(clips: &'a [SpokenClip], rng: &mut ChaCha8Rng) -> Option<&'a SpokenClip> {
    if clips.is_empty() { None } else { Some(&clips[rng.random_range(0..clips.len())]) }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::images::images;
    use super::*;

    #[test]
    fn all_voices_speak_the_same_names_of_images() -> Result<(), DataError> {
        let voices = voices()?;
        let count = |split| voices.iter().filter(|voice| voice.split == split).count();
        assert_eq!([Split::Train, Split::Validation, Split::Test].map(count), [8, 1, 1]);
        let images = images()?;
        let texts = |clips: &[SpokenClip]| clips.iter().map(|clip| clip.text).collect::<Vec<_>>();
        for voice in &voices {
            assert_eq!(texts(&voice.names), texts(&voices[0].names));
            assert_eq!((voice.names.len(), voice.openers.len(), voice.joiners.len()), (138, 6, 2));
            for clip in voice.names.iter().chain(&voice.openers).chain(&voice.joiners) {
                let seconds = clip.samples.len() as f32 / SAMPLE_RATE as f32;
                assert!((0.1..1.5).contains(&seconds), "{} {}: {seconds} s", voice.name, clip.text);
                let peak = clip.samples.iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
                assert!((0.9..1.0).contains(&peak), "{} {}: peak {peak}", voice.name, clip.text);
            }
        }
        for name in texts(&voices[0].names) {
            assert!(images.iter().any(|image| image.name == name), "no image of {name}");
        }
        Ok(())
    }

    #[test]
    fn sentences_are_reproducible() -> Result<(), DataError> {
        let voices = voices()?;
        let make = |seed| voices[0].sentence(&mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(make(1), make(1));
        assert!((0..9).any(|seed| make(seed) != make(1)));
        for seed in 0..50 {
            let Sentence { text, names, samples } = make(seed);
            assert!((1..=MAX_NAMES).contains(&names.len()));
            assert!(names.iter().all(|name| text.contains(name)), "{text}: {names:?}");
            assert!((4_000..120_000).contains(&samples.len()));
        }
        Ok(())
    }
}
