//! `engram data speech`: spoken sentences of the embedded world as audio files.

use engram_data::messages::counted;
use std::io::Cursor;

use clap::Args;
use engram_data::speech::manifest::{Clip, manifest};
use engram_data::world::speech::SAMPLE_RATE;
use engram_train::studies::speech::corpus::Corpus;
use engram_train::studies::speech::settings::SpeechData;
use hound::{SampleFormat, WavSpec, WavWriter};

use super::super::paths::NewFolder;
use super::super::{Outcome, output};
use super::SplitName;

/// Write spoken sentences of the embedded world and a manifest.
///
/// The validation and test splits are the same as in `engram train speech`: their voices do not
/// occur in training. The same options give the same bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, to evaluate an ASR model:
  engram data speech --out spoken
  engram transcribe spoken/clips.jsonl --model runs/s1 --out hyp.tsv
  engram eval wer --ref spoken/ref.tsv --hyp hyp.tsv

Example, to make clean speech for the rehearsal of adapters, transcribed by a frozen ASR model:
  engram data speech --out rehearsal --split train --count 800 --snr-db 60
  engram transcribe rehearsal/clips.jsonl --model whisper --format manifest \\
      --out rehearsal.jsonl")]
pub struct Speech {
    /// Output folder for clips.jsonl, ref.tsv and audio files
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// Split of the sentences and voices
    #[arg(long, default_value = "test")]
    split: SplitName,
    /// Number of sentences
    #[arg(long, value_name = "N", default_value_t = 400,
        value_parser = clap::value_parser!(u16).range(1..=5000))]
    count: u16,
    /// Signal-to-noise ratio with white noise, in dB
    #[arg(long, value_name = "DB", default_value_t = 30.0, allow_negative_numbers = true,
        value_parser = parse_snr_db)]
    snr_db: f32,
}

impl Speech {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        output::check_new_folder(&self.out)?;
        let data = SpeechData {
            evaluation_sentences: usize::from(self.count),
            evaluated_snr_db: self.snr_db,
            speeds: vec![1.0],
            ..SpeechData::default()
        };
        let utterances = Corpus::load(&data)?.evaluated(self.split.into())?;
        output::write_folder(&self.out, |staging| {
            let (mut clips, mut references) = (Vec::new(), String::new());
            for utterance in &utterances {
                let audio = staging.join(format!("{}.wav", utterance.id));
                output::write_new(&audio, &wav(&utterance.samples)?)?;
                references += &format!("{}\t{}\n", utterance.id, utterance.text);
                let (id, text) = (utterance.id.clone(), Some(utterance.text.clone()));
                clips.push(Clip { id, audio, text, ..Clip::default() });
            }
            output::write_new(&staging.join("ref.tsv"), references.as_bytes())?;
            let manifest_path = staging.join("clips.jsonl");
            output::write_new(&manifest_path, &manifest(&manifest_path, &clips)?)
        })?;
        let sentences = counted(utterances.len(), "sentence");
        output::print(&format!("{}: {sentences}", self.out.display()))?;
        Ok(Outcome::Done)
    }
}

pub(super) fn parse_snr_db(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(snr_db) if snr_db.is_finite() => Ok(snr_db),
        _ => Err("must be a finite signal-to-noise ratio in dB".to_string()),
    }
}

/// Encodes samples as a WAV file of floats, so that loud noise is not clipped.
pub(in crate::cli) fn wav(samples: &[f32]) -> anyhow::Result<Vec<u8>> {
    let spec = WavSpec {
        channels: 1,
        sample_rate: SAMPLE_RATE,
        bits_per_sample: 32,
        sample_format: SampleFormat::Float,
    };
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = WavWriter::new(&mut bytes, spec)?;
    for sample in samples {
        writer.write_sample(*sample)?;
    }
    writer.finalize()?;
    Ok(bytes.into_inner())
}
