//! Reads audio files as mono samples from -1 to 1, at a given sample rate.
//!
//! Supported formats: uncompressed samples (integers of 8 to 64 bits, floats, A-law, mu-law) in WAV,
//! RF64, W64, AIFF, CAF and AU; FLAC; MP3; AAC in ADTS; Opus and Vorbis in Ogg; and these codecs and
//! ALAC in MP4, Matroska, WebM and CAF. Channels are averaged; `rubato` converts other sample rates.
//! A file is read in blocks, so an hour of audio needs no more memory than a second.
//!
//! Sizes and counts in headers are only hints, because some programs cannot fill them in. The
//! reader reads all samples that are present, or refuses the file.

mod blocks;
mod descriptions;
mod flac;
mod input;
pub mod mixing;
mod mp4;
mod mpeg;
pub mod noise;
mod opus;
mod packets;
mod pcm;
mod resample;
mod text;
mod wave;

use std::io::Cursor;
use std::path::{Path, PathBuf};

use engram_textfile::refuse_lfs_pointer;
use symphonia::core::formats::probe::Hint;

use crate::DataError;
pub use blocks::file_format;
use blocks::{Blocks, Format};
use input::{Input, Source};
use resample::Resampler;
pub(crate) use text::check_is_not_text;

/// Supported speed factors.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// The number of bytes to look at before the format is known.
const HEAD_BYTES: usize = 64;

/// Valid sample rates of a file, in Hz. Other rates mean a damaged header.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Changes the speed of samples by the factor `speed`: values above 1 are faster. The pitch changes
/// too. `rate` is the sample rate of input and output, in Hz.
///
/// # Errors
/// `Audio` for a speed that is not between 0.5 and 2
pub fn change_speed(samples: &[f32], rate: u32, speed: f64) -> Result<Vec<f32>, DataError> {
    let audio_error =
        |reason| DataError::Audio { path: PathBuf::from(format!("speed {speed}")), reason };
    if !SPEEDS.contains(&speed) {
        return Err(audio_error("is not between 0.5 and 2".to_string()));
    }
    let from = (f64::from(rate) * speed).round() as u32;
    if from == rate {
        return Ok(samples.to_vec());
    }
    let (mut resampler, mut output) =
        (Resampler::new(from, rate).map_err(audio_error)?, Vec::new());
    resampler.push(samples.iter().copied(), &mut output).map_err(audio_error)?;
    resampler.finish(&mut output).map_err(audio_error)?;
    Ok(output)
}

/// A streaming reader of an audio file.
pub struct AudioReader {
    path: PathBuf,
    blocks: Box<dyn Blocks>,
    /// The format of the preceding samples; `None` before the first sample.
    format: Option<Format>,
    /// `None` if the file has the target sample rate.
    resampler: Option<Resampler>,
    /// The target sample rate, in Hz.
    rate: u32,
    /// The decoded block, before its channels are averaged.
    interleaved: Vec<f32>,
    ended: bool,
}

impl AudioReader {
    /// Opens a file and converts its samples to `rate` Hz.
    ///
    /// # Errors
    /// `Io`; `EmptyFile`; `Audio` for a file that is not audio; `Text` for a text file
    pub fn open(path: impl AsRef<Path>, rate: u32) -> Result<Self, DataError> {
        let path = path.as_ref();
        let io = |source| DataError::Io { path: path.into(), source };
        // Of pipes, only an open one is read: a named pipe in a folder may never deliver a byte.
        let file = match engram_durable::is_open_already(path) {
            true => engram_durable::open_input(path),
            false => engram_durable::open_file(path),
        };
        let file = file.map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.is_dir() {
            return Err(DataError::of_file(path, "is a folder", "name an audio file in it"));
        }
        if metadata.is_file() && metadata.len() == 0 {
            return Err(DataError::EmptyFile { path: path.into() });
        }
        let length = metadata.is_file().then_some(metadata.len());
        let opened = Self::from_source(path, Box::new(file), length, rate);
        opened.map_err(|error| check_is_not_text(path).err().unwrap_or(error))
    }

    /// Like [`AudioReader::open`], for a file in memory; error messages name `name`.
    ///
    /// # Errors
    /// `Audio`
    pub fn from_bytes(
        name: impl AsRef<Path>,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        rate: u32,
    ) -> Result<Self, DataError> {
        let length = bytes.as_ref().len() as u64;
        Self::from_source(name.as_ref(), Box::new(Cursor::new(bytes)), Some(length), rate)
    }

    fn from_source(
        path: &Path,
        source: Box<dyn Source>,
        length: Option<u64>,
        rate: u32,
    ) -> Result<Self, DataError> {
        let mut hint = Hint::new();
        if let Some(extension) = path.extension().and_then(|extension| extension.to_str()) {
            hint.with_extension(extension);
        }
        let mut input = Input::new(source, length);
        let io = |source| DataError::Io { path: path.into(), source };
        refuse_lfs_pointer(path, input.peek(HEAD_BYTES).map_err(io)?)?;
        let blocks = blocks::open(input, &hint);
        Ok(Self {
            path: path.into(),
            blocks: blocks.map_err(|reason| audio_error(path, reason))?,
            format: None,
            resampler: None,
            rate,
            interleaved: Vec::new(),
            ended: false,
        })
    }

    /// Appends the next block of samples to `samples`; returns `false` if it was the last.
    ///
    /// # Errors
    /// `Audio` for samples that cannot be decoded, for a truncated file, and for samples
    /// that are NaN, infinite or far too large
    pub fn read(&mut self, samples: &mut Vec<f32>) -> Result<bool, DataError> {
        while !self.ended {
            match self
                .blocks
                .next(&mut self.interleaved)
                .map_err(|reason| self.audio_error(reason))?
            {
                Some(_) if self.interleaved.is_empty() => {}
                Some(format) => {
                    self.start_format(format, samples)?;
                    self.convert(format, samples)?;
                    return Ok(true);
                }
                None => {
                    self.flush_resampler(samples)?;
                    self.ended = true;
                }
            }
        }
        Ok(false)
    }

    /// Prepares for a new format: the first of the file, or another one if several files were
    /// joined.
    fn start_format(&mut self, format: Format, samples: &mut Vec<f32>) -> Result<(), DataError> {
        if self.format == Some(format) {
            return Ok(());
        }
        let Format { rate, channels } = format;
        if !RATES.contains(&rate) || channels == 0 {
            return Err(
                self.audio_error(format!("has {channels} channels at {rate} Hz in its header"))
            );
        }
        if self.format.is_none_or(|previous| previous.rate != rate) {
            self.flush_resampler(samples)?;
            if rate != self.rate {
                let resampler = Resampler::new(rate, self.rate);
                self.resampler = Some(resampler.map_err(|reason| self.audio_error(reason))?);
            }
        }
        self.format = Some(format);
        Ok(())
    }

    /// Appends the decoded block as mono samples at the target rate.
    fn convert(&mut self, format: Format, samples: &mut Vec<f32>) -> Result<(), DataError> {
        let is_valid = |sample: &f32| sample.is_finite() && sample.abs() < MAX_MAGNITUDE;
        if let Some(sample) = self.interleaved.iter().find(|sample| !is_valid(sample)) {
            return Err(
                self.audio_error(format!("has a sample of {sample}; samples must be from -1 to 1"))
            );
        }
        let weight = 1.0 / format.channels as f32;
        let mono = self.interleaved.chunks_exact(format.channels).map(|frame| match frame {
            [only] => *only,
            frame => frame.iter().sum::<f32>() * weight,
        });
        match &mut self.resampler {
            None => samples.extend(mono),
            Some(resampler) => {
                resampler.push(mono, samples).map_err(|reason| audio_error(&self.path, reason))?;
            }
        }
        Ok(())
    }

    /// Appends the remaining samples of the resampler.
    fn flush_resampler(&mut self, samples: &mut Vec<f32>) -> Result<(), DataError> {
        match self.resampler.take() {
            Some(mut resampler) => {
                resampler.finish(samples).map_err(|reason| audio_error(&self.path, reason))
            }
            None => Ok(()),
        }
    }

    fn audio_error(&self, reason: String) -> DataError {
        audio_error(&self.path, reason)
    }

    /// Returns all samples that were not read before.
    ///
    /// # Errors
    /// as [`AudioReader::read`]
    pub fn read_all(&mut self) -> Result<Vec<f32>, DataError> {
        let mut samples = Vec::new();
        while self.read(&mut samples)? {}
        Ok(samples)
    }

    /// Returns the approximate duration in seconds, or `None` if it is unknown.
    pub fn seconds(&self) -> Option<f64> {
        self.blocks.seconds()
    }
}

/// Samples with a larger absolute value are invalid, even in a float file with a scale other than
/// -1 to 1.
const MAX_MAGNITUDE: f32 = 1e6;

fn audio_error(path: &Path, reason: String) -> DataError {
    DataError::Audio { path: path.into(), reason }
}

/// Reads the whole file as mono samples at `rate` Hz.
///
/// # Errors
/// as [`AudioReader::open`] and [`AudioReader::read`]; `Audio` for a file without samples
pub fn read_audio(path: impl AsRef<Path>, rate: u32) -> Result<Vec<f32>, DataError> {
    let mut reader = AudioReader::open(&path, rate)?;
    let samples = reader.read_all()?;
    if samples.is_empty() {
        Err(reader.audio_error("has no samples".to_string()))
    } else {
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hound::{SampleFormat, WavSpec, WavWriter};

    const RATE: u32 = 16_000;

    fn spec(channels: u16, sample_rate: u32, bits_per_sample: u16) -> WavSpec {
        let sample_format =
            if bits_per_sample == 32 { SampleFormat::Float } else { SampleFormat::Int };
        WavSpec { channels, sample_rate, bits_per_sample, sample_format }
    }

    /// Writes one second of a 440 Hz tone of amplitude 0.5 to the first channel. Other channels are
    /// silent.
    fn write_tone(path: &Path, spec: WavSpec) {
        let mut writer = WavWriter::create(path, spec).expect("a file");
        for i in 0..spec.sample_rate {
            let phase = f64::from(i) / f64::from(spec.sample_rate) * 440.0 * std::f64::consts::TAU;
            for channel in 0..spec.channels {
                let value = if channel == 0 { 0.5 * phase.sin() } else { 0.0 };
                match spec.bits_per_sample {
                    32 => writer.write_sample(value as f32),
                    bits => writer.write_sample((value * f64::from(1u32 << (bits - 1))) as i32),
                }
                .expect("a sample");
            }
        }
        writer.finalize().expect("a header");
    }

    #[test]
    fn every_bit_depth_rate_and_channel_count_gives_the_same_tone() {
        let folder = tempfile::tempdir().expect("a folder");
        for (channels, rate, bits) in [
            (1, 16_000, 16),
            (1, 16_000, 8),
            (1, 16_000, 24),
            (2, 16_000, 32),
            (6, 96_000, 24),
            (1, 8_000, 16),
            (2, 44_100, 16),
            (1, 11_025, 16),
            (1, 47_999, 16),
        ] {
            let path = folder.path().join(format!("{channels}-{rate}-{bits}.wav"));
            write_tone(&path, spec(channels, rate, bits));
            let samples = read_audio(&path, RATE).expect("audio");
            assert_eq!(samples.len(), 16_000, "{path:?}");
            let amplitude = 0.5 / f32::from(channels);
            let tolerance = if bits == 8 { 0.01 } else { 1e-3 };
            // The resampler rings at the ends.
            for (i, sample) in samples.iter().enumerate().skip(400).take(15_200) {
                let phase = i as f64 / 16_000.0 * 440.0 * std::f64::consts::TAU;
                let expected = amplitude * phase.sin() as f32;
                assert!((sample - expected).abs() < tolerance, "{path:?} {i}: {sample} {expected}");
            }
        }
    }

    #[test]
    fn sixteen_bit_samples_are_divided_by_32768() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.wav");
        let mut writer = WavWriter::create(&path, spec(1, RATE, 16)).expect("a file");
        let values = [i16::MIN, -1, 0, 1, 12_345, i16::MAX];
        values.iter().for_each(|value| writer.write_sample(*value).expect("a sample"));
        writer.finalize().expect("a header");
        let expected: Vec<f32> = values.iter().map(|value| f32::from(*value) / 32_768.0).collect();
        assert_eq!(read_audio(&path, RATE).expect("audio"), expected);
    }

    #[test]
    fn invalid_audio_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.wav");
        let error_for = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            read_audio(&path, RATE).expect_err("an error").to_string()
        };
        assert!(error_for(b"").contains("empty"));
        assert!(error_for(b"this is a text and not audio").contains("a.wav"));
        write_tone(&path, spec(1, RATE, 16));
        let whole = std::fs::read(&path).expect("a file");
        let truncated = error_for(&whole[..whole.len() / 2]);
        assert!(truncated.contains("is truncated: "), "{truncated}");
        assert!(truncated.contains("of 16000 samples"), "{truncated}");
        assert!(error_for(&whole[..44]).contains("is truncated: 0 of 16000"));
        let mut empty = whole[..44].to_vec();
        empty[40..44].fill(0);
        assert!(error_for(&empty).contains("has no samples"), "{}", error_for(&empty));
        for rate in [RATE, 44_100] {
            let mut writer = WavWriter::create(&path, spec(1, rate, 32)).expect("a file");
            [0.0, f32::NAN].iter().for_each(|value| writer.write_sample(*value).expect("a sample"));
            writer.finalize().expect("a header");
            let error = read_audio(&path, RATE).expect_err("an error").to_string();
            assert!(error.contains("a sample of NaN"), "{error}");
        }
        let error = read_audio(folder.path(), RATE).expect_err("an error").to_string();
        assert!(error.contains("is a folder"));
        assert!(read_audio(folder.path().join("none.wav"), RATE).is_err());
    }
}
