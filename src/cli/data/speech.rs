//! `engram data speech`: sentences of the embedded world's voices as sound files.

use std::io::Cursor;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engram_data::speech::manifest::{Clip, manifest};
use engram_data::world::questions::Split;
use engram_data::world::speech::SAMPLE_RATE;
use engram_train::studies::speech::corpus::Corpus;
use engram_train::studies::speech::settings::SpeechData;
use hound::{SampleFormat, WavSpec, WavWriter};

use super::super::{Outcome, output};

/// Write sentences of the embedded world's voices, with a manifest.
///
/// Those of validation and test are the ones by which `engram train speech` validates and tests: the
/// voice of each is heard in no training. The same options give the same bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data speech spoken
  engram predict --recogniser runs/s1 --input spoken/clips.jsonl --output hyp.tsv
  engram eval wer --ref spoken/ref.tsv --hyp hyp.tsv

Clean speech that adapters may rehearse, as a frozen recogniser writes it:
  engram data speech heard --split train --count 800 --snr-db 60
  engram predict --recogniser whisper --input heard/clips.jsonl --format manifest \\
      --output rehearsal.jsonl")]
pub struct Speech {
    /// The folder to make: clips.jsonl, ref.tsv and sound files
    folder: PathBuf,
    /// Whose sentences
    #[arg(long, default_value = "test")]
    split: SplitName,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 400,
        value_parser = clap::value_parser!(u16).range(1..=5000))]
    count: u16,
    /// Speech over white noise, in dB
    #[arg(long, value_name = "DB", default_value_t = 30.0, allow_negative_numbers = true,
        value_parser = ratio)]
    snr_db: f32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SplitName {
    Train,
    Validation,
    Test,
}

impl Speech {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        output::check_new_folder(&self.folder)?;
        let data = SpeechData {
            evaluated: usize::from(self.count),
            evaluated_snr_db: self.snr_db,
            speeds: vec![1.0],
            ..SpeechData::default()
        };
        let split = match self.split {
            SplitName::Train => Split::Train,
            SplitName::Validation => Split::Validation,
            SplitName::Test => Split::Test,
        };
        let utterances = Corpus::load(&data)?.evaluated(split)?;
        output::write_folder(&self.folder, |whole| {
            let (mut clips, mut said) = (Vec::new(), String::new());
            for one in &utterances {
                let audio = whole.join(format!("{}.wav", one.id));
                output::write_new(&audio, &wav(&one.samples)?)?;
                said += &format!("{}\t{}\n", one.id, one.text);
                let (id, text) = (one.id.clone(), Some(one.text.clone()));
                clips.push(Clip { id, audio, text, ..Clip::default() });
            }
            output::write_new(&whole.join("ref.tsv"), said.as_bytes())?;
            let list = whole.join("clips.jsonl");
            output::write_new(&list, &manifest(&list, &clips)?)
        })?;
        output::print(&format!("{}: {} sentences", self.folder.display(), utterances.len()))?;
        Ok(Outcome::Done)
    }
}

fn ratio(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(ratio) if ratio.is_finite() => Ok(ratio),
        _ => Err("is no ratio in dB".to_string()),
    }
}

/// Samples as a WAV file of floats, which loud noise does not clip.
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
