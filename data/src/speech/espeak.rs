//! Synthetic voices: the program espeak-ng, which has to be installed.

use std::process::Command;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::DataError;
use crate::audio::AudioReader;

/// The program.
const PROGRAM: &str = "espeak-ng";
/// Variants of a language's voice: other speakers, all of whom can be understood.
const VARIANTS: [&str; 24] = [
    "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5", "Alex", "Alicia",
    "Andrea", "Denis", "Diogo", "Hugo", "Mario", "belinda", "linda", "steph", "victor",
];
/// Words per minute.
const SPEEDS: std::ops::RangeInclusive<u32> = 110..=190;
/// The pitch, from 0 to 99.
const PITCHES: std::ops::RangeInclusive<u32> = 20..=80;

/// A voice of espeak-ng, with its speed and pitch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speaker {
    /// Language and variant, such as `fr+f2`.
    pub voice: String,
    /// Words per minute.
    pub speed: u32,
    /// The pitch, from 0 to 99.
    pub pitch: u32,
}

impl Speaker {
    /// Draws a speaker of a language, such as `fr` or `pt_BR`.
    pub fn draw(language: &str, rng: &mut ChaCha8Rng) -> Self {
        let variant = VARIANTS[rng.random_range(0..VARIANTS.len())];
        let voice = format!("{}+{variant}", language.replace('_', "-").to_lowercase());
        Self { voice, speed: rng.random_range(SPEEDS), pitch: rng.random_range(PITCHES) }
    }

    /// Speaks a text. Returns samples at `rate` Hz.
    ///
    /// # Errors
    /// `Arguments` if the program is missing, or does not know the language
    pub fn say(&self, text: &str, rate: u32) -> Result<Vec<f32>, DataError> {
        let Self { voice, speed, pitch } = self;
        let options = ["-v", voice, "-s", &speed.to_string(), "-p", &pitch.to_string()];
        let output = Command::new(PROGRAM).args(options).args(["--stdout", "--", text]).output();
        let output = output.map_err(|error| DataError::Arguments {
            reason: format!("the program {PROGRAM} does not run: {error}"),
            remedy: "install it, for example with apt-get install espeak-ng",
        })?;
        let samples = AudioReader::from_bytes(voice, output.stdout, rate)
            .and_then(|mut reader| reader.read_all());
        match samples {
            Ok(samples) if output.status.success() && !samples.is_empty() => Ok(samples),
            _ => {
                let message = String::from_utf8_lossy(&output.stderr);
                let message = message.lines().next().unwrap_or("no message").trim().to_owned();
                Err(DataError::Arguments {
                    reason: format!("{PROGRAM} does not say {text:?} as {voice}: {message}"),
                    remedy: "use a language of `espeak-ng --voices`",
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn an_unknown_language_or_a_missing_program_is_an_error_with_a_remedy() {
        let speaker = Speaker::draw("xx_SUCH", &mut ChaCha8Rng::seed_from_u64(1));
        assert!(speaker.voice.starts_with("xx-such+"), "{}", speaker.voice);
        let error = speaker.say("a", 16_000).map(|samples| samples.len()).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("espeak-ng --voices") || message.contains("install"), "{message}");
    }
}
