//! Sound files as mono samples from -1 to 1, at the rate that a model takes.
//!
//! WAV (integers of 8 to 32 bits, floats), FLAC, MP3, Ogg Vorbis and AAC in MP4, through `symphonia`.
//! Channels are averaged; other rates are converted by `rubato`. A file is read in blocks, so an
//! hour of sound needs no more memory than a second.

pub mod mixing;
pub mod noise;
mod resample;

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::CODEC_ID_FLAC;
use symphonia::core::codecs::audio::{AudioCodecId, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::DataError;
use resample::Resampler;

/// How much faster or slower than it was recorded a sound may be played.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Rates that sound is recorded at, in Hz. Others are a damaged header.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Samples played faster (above 1) or slower: the pitch and the length change with it.
///
/// # Errors   `Audio` for a speed that is not between 0.5 and 2
pub fn at_speed(samples: &[f32], rate: u32, speed: f64) -> Result<Vec<f32>, DataError> {
    let bad = |reason| DataError::Audio { path: PathBuf::from(format!("speed {speed}")), reason };
    if !SPEEDS.contains(&speed) {
        return Err(bad("is not between 0.5 and 2".to_string()));
    }
    let from = (f64::from(rate) * speed).round() as u32;
    if from == rate {
        return Ok(samples.to_vec());
    }
    let (mut resampler, mut played) = (Resampler::new(from, rate).map_err(bad)?, Vec::new());
    resampler.push(samples.iter().copied(), &mut played).map_err(bad)?;
    resampler.finish(&mut played).map_err(bad)?;
    Ok(played)
}

/// A sound file that is being read.
pub struct AudioReader {
    path: PathBuf,
    format: Box<dyn FormatReader>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    /// Samples of a channel that the file has, if its header counts them.
    promised: Option<u64>,
    /// Its length, where the header says or the first packets let guess it.
    seconds: Option<f64>,
    /// Samples of a channel that were decoded.
    decoded: u64,
    /// Of the file; known from the first packet on.
    source: Option<Source>,
    resampler: Option<Resampler>,
    rate: u32,
    interleaved: Vec<f32>,
    ended: bool,
}

/// What the samples of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    rate: u32,
    channels: usize,
}

impl AudioReader {
    /// Opens a file whose samples are wanted at `rate` Hz.
    ///
    /// # Errors   `Io`; `EmptyFile`; `Audio` for what is no sound
    pub fn open(path: impl AsRef<Path>, rate: u32) -> Result<Self, DataError> {
        let path = path.as_ref();
        let io = |source| DataError::Io { path: path.into(), source };
        let bad = |reason: String| DataError::Audio { path: path.into(), reason };
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        if found.is_dir() {
            return Err(bad("is a folder".to_string()));
        }
        if found.is_file() && found.len() == 0 {
            return Err(DataError::EmptyFile { path: path.into() });
        }
        Self::from_source(path, Box::new(file), rate)
    }

    /// The same for a file that is in memory; errors call it `name`.
    ///
    /// # Errors   `Audio`
    pub fn from_bytes(
        name: impl AsRef<Path>,
        bytes: &'static [u8],
        rate: u32,
    ) -> Result<Self, DataError> {
        Self::from_source(name.as_ref(), Box::new(Cursor::new(bytes)), rate)
    }

    fn from_source(
        path: &Path,
        source: Box<dyn MediaSource>,
        rate: u32,
    ) -> Result<Self, DataError> {
        let bad = |reason: String| DataError::Audio { path: path.into(), reason };
        let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
        let mut hint = Hint::new();
        if let Some(extension) = path.extension().and_then(|extension| extension.to_str()) {
            hint.with_extension(extension);
        }
        let (options, metadata) = (FormatOptions::default(), MetadataOptions::default());
        let format = symphonia::default::get_probe()
            .probe(&hint, stream, options, metadata)
            .map_err(|error| bad(format!("not a sound file that can be read ({error})")))?;
        let Some(track) = format.default_track(TrackType::Audio) else {
            return Err(bad("has no sound".to_string()));
        };
        let (id, count) = (track.id, track.num_frames);
        let has_delay = track.delay.is_some();
        let Some(parameters) = track.codec_params.as_ref().and_then(|codec| codec.audio()) else {
            return Err(bad("its sound is coded in a way that is not known".to_string()));
        };
        // Only these have a count in their header; of others it is guessed from the first packets, and
        // what is cut off by a guess is lost.
        let counted = parameters.codec == CODEC_ID_FLAC || is_pcm(parameters.codec);
        let promised = count.filter(|_| counted);
        let seconds = count.zip(parameters.sample_rate).map(|(n, rate)| n as f64 / f64::from(rate));
        let options = AudioDecoderOptions::default().gapless(counted || has_delay);
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(parameters, &options)
            .map_err(|error| bad(format!("its sound cannot be decoded ({error})")))?;
        Ok(Self {
            path: path.into(),
            format,
            decoder,
            track: id,
            promised,
            seconds,
            decoded: 0,
            source: None,
            resampler: None,
            rate,
            interleaved: Vec::new(),
            ended: false,
        })
    }

    /// Adds the next block of samples to `samples`; `false` at the end of the file.
    ///
    /// # Errors   `Audio` for what cannot be decoded, for a file that is cut, and for samples that
    /// are no numbers
    pub fn read(&mut self, samples: &mut Vec<f32>) -> Result<bool, DataError> {
        if self.ended {
            return Ok(false);
        }
        match self.decode()? {
            true => self.convert(samples)?,
            false => self.end(samples)?,
        }
        Ok(!self.ended)
    }

    /// Decodes the next packet of the track; `false` at the end.
    fn decode(&mut self) -> Result<bool, DataError> {
        loop {
            let packet = match self.format.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(false),
                Err(Error::ResetRequired) => {
                    return Err(
                        self.bad("holds several recordings, one after the other".to_string())
                    );
                }
                Err(Error::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(false);
                }
                Err(error) => return Err(self.bad(format!("cannot be decoded ({error})"))),
            };
            if packet.track_id != self.track {
                continue;
            }
            let decoded = match self.decoder.decode(&packet) {
                Ok(decoded) => decoded,
                Err(error) => {
                    let reason = error.to_string();
                    return Err(self.bad(format!("cannot be decoded ({reason})")));
                }
            };
            let source = source_of(&decoded);
            self.interleaved.clear();
            decoded.copy_to_vec_interleaved(&mut self.interleaved);
            match self.source {
                Some(known) if known == source => {}
                Some(_) => {
                    return Err(self.bad("its rate or channels change on the way".to_string()));
                }
                None => self.start(source)?,
            }
            if !self.interleaved.is_empty() {
                return Ok(true);
            }
        }
    }

    fn start(&mut self, source: Source) -> Result<(), DataError> {
        if !RATES.contains(&source.rate) || source.channels == 0 {
            let Source { rate, channels } = source;
            return Err(self.bad(format!("{channels} channels at {rate} Hz are no sound")));
        }
        if source.rate != self.rate {
            let made = Resampler::new(source.rate, self.rate);
            self.resampler = Some(made.map_err(|reason| self.bad(reason))?);
        }
        self.source = Some(source);
        Ok(())
    }

    /// Makes of the decoded block mono samples at the wanted rate.
    fn convert(&mut self, samples: &mut Vec<f32>) -> Result<(), DataError> {
        let channels = self.source.map_or(1, |source| source.channels);
        let is_sound = |sample: &f32| sample.is_finite() && sample.abs() < LOUDEST;
        if let Some(sample) = self.interleaved.iter().find(|sample| !is_sound(sample)) {
            return Err(self.bad(format!("has a sample of {sample}; sound is from -1 to 1")));
        }
        let share = 1.0 / channels as f32;
        let mono = self.interleaved.chunks_exact(channels).map(|frame| match frame {
            [only] => *only,
            frame => frame.iter().sum::<f32>() * share,
        });
        match &mut self.resampler {
            None => samples.extend(mono),
            Some(resampler) => {
                resampler.push(mono, samples).map_err(|reason| bad(&self.path, reason))?;
            }
        }
        self.decoded += (self.interleaved.len() / channels) as u64;
        Ok(())
    }

    fn end(&mut self, samples: &mut Vec<f32>) -> Result<(), DataError> {
        self.ended = true;
        if let Some(promised) = self.promised.filter(|promised| self.decoded < *promised) {
            let decoded = self.decoded;
            return Err(self.bad(format!("is cut: {decoded} of {promised} samples are there")));
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.finish(samples).map_err(|reason| bad(&self.path, reason))?;
        }
        Ok(())
    }

    fn bad(&self, reason: String) -> DataError {
        bad(&self.path, reason)
    }

    /// About how long the file is, in seconds; `None` where nothing tells.
    pub fn seconds(&self) -> Option<f64> {
        self.seconds
    }
}

/// Whether these samples lie in the file as they are.
fn is_pcm(codec: AudioCodecId) -> bool {
    use symphonia::core::codecs::audio::well_known as known;
    [
        known::CODEC_ID_PCM_U8,
        known::CODEC_ID_PCM_S16LE,
        known::CODEC_ID_PCM_S24LE,
        known::CODEC_ID_PCM_S32LE,
        known::CODEC_ID_PCM_F32LE,
        known::CODEC_ID_PCM_F64LE,
        known::CODEC_ID_PCM_ALAW,
        known::CODEC_ID_PCM_MULAW,
    ]
    .contains(&codec)
}

/// Louder than this is no sound, whatever scale a file of floats has.
const LOUDEST: f32 = 1e6;

fn bad(path: &Path, reason: String) -> DataError {
    DataError::Audio { path: path.into(), reason }
}

fn source_of(decoded: &GenericAudioBufferRef<'_>) -> Source {
    Source { rate: decoded.spec().rate(), channels: decoded.spec().channels().count() }
}

/// The whole file as mono samples at `rate` Hz.
///
/// # Errors   as [`AudioReader`]; `Audio` for a file without a sample
pub fn read_audio(path: impl AsRef<Path>, rate: u32) -> Result<Vec<f32>, DataError> {
    let mut reader = AudioReader::open(&path, rate)?;
    let mut samples = Vec::new();
    while reader.read(&mut samples)? {}
    match samples.is_empty() {
        true => Err(reader.bad("has no samples".to_string())),
        false => Ok(samples),
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

    /// A second of 440 Hz with half amplitude; later channels are silent.
    fn write(path: &Path, spec: WavSpec) {
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
    fn every_width_rate_and_number_of_channels_is_the_same_tone() {
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
            write(&path, spec(channels, rate, bits));
            let samples = read_audio(&path, RATE).expect("sound");
            assert_eq!(samples.len(), 16_000, "{path:?}");
            let amplitude = 0.5 / f32::from(channels);
            let tolerance = if bits == 8 { 0.01 } else { 1e-3 };
            // Ends ring.
            for (i, sample) in samples.iter().enumerate().skip(400).take(15_200) {
                let phase = i as f64 / 16_000.0 * 440.0 * std::f64::consts::TAU;
                let want = amplitude * phase.sin() as f32;
                assert!((sample - want).abs() < tolerance, "{path:?} at {i}: {sample}, {want}");
            }
        }
    }

    #[test]
    fn sixteen_bits_are_multiples_of_2_to_the_minus_15() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.wav");
        let mut writer = WavWriter::create(&path, spec(1, RATE, 16)).expect("a file");
        let values = [i16::MIN, -1, 0, 1, 12_345, i16::MAX];
        values.iter().for_each(|value| writer.write_sample(*value).expect("a sample"));
        writer.finalize().expect("a header");
        let want: Vec<f32> = values.iter().map(|value| f32::from(*value) / 32_768.0).collect();
        assert_eq!(read_audio(&path, RATE).expect("sound"), want);
    }

    #[test]
    fn what_is_no_sound_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.wav");
        let refusal = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            read_audio(&path, RATE).expect_err("a refusal").to_string()
        };
        assert!(refusal(b"").contains("empty"));
        assert!(refusal(b"this is a text and no sound at all").contains("a.wav"));
        write(&path, spec(1, RATE, 16));
        let whole = std::fs::read(&path).expect("a file");
        let cut = refusal(&whole[..whole.len() / 2]);
        assert!(cut.contains("is cut: ") && cut.contains("of 16000 samples"), "{cut}");
        assert!(refusal(&whole[..44]).contains("is cut: 0 of 16000"));
        let mut silent = whole[..44].to_vec();
        silent[40..44].fill(0);
        assert!(refusal(&silent).contains("has no samples"), "{}", refusal(&silent));
        for rate in [RATE, 44_100] {
            let mut writer = WavWriter::create(&path, spec(1, rate, 32)).expect("a file");
            [0.0, f32::NAN].iter().for_each(|value| writer.write_sample(*value).expect("a sample"));
            writer.finalize().expect("a header");
            let error = read_audio(&path, RATE).expect_err("a refusal").to_string();
            assert!(error.contains("a sample of NaN"), "{error}");
        }
        assert!(
            read_audio(folder.path(), RATE)
                .expect_err("a refusal")
                .to_string()
                .contains("is a folder")
        );
        assert!(read_audio(folder.path().join("none.wav"), RATE).is_err());
    }

    /// Bytes are changed at many places: a refusal or some sound, and no panic.
    #[test]
    fn damaged_files_do_not_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.wav");
        write(&path, spec(2, 8_000, 16));
        let whole = std::fs::read(&path).expect("a file");
        for place in 0..60 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole[..4_000].to_vec();
                bytes[place] = value;
                std::fs::write(&path, &bytes).expect("a file");
                let _ = read_audio(&path, RATE);
            }
        }
    }
}
