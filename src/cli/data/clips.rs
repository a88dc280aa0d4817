//! `engram data clips`.

use std::path::PathBuf;

use clap::Args;
use engram_data::speech::manifest::manifest;
use engram_data::speech::{SpeechClips, SpeechFormat, SpeechSource, read};
use serde::Serialize;

use super::super::predict::files_of;
use super::super::{Outcome, output, paths};

/// Missing files that are named.
const MOST_TOLD: usize = 20;

/// Write the clips of a published data set of speech as a manifest.
///
/// The manifest (JSON lines: id, audio, start, end, text, frames, speaker) is what `engram predict`
/// transcribes and `engram train speech` learns from. Sound files are looked for, and not opened.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data clips librispeech LibriSpeech/dev-clean --out dev-clean.jsonl
  engram data clips how2 data/train --audio wavs --out train.jsonl
  engram data clips visspeech VisSpeech.csv --audio audio --frames frames --skip-missing \\
    --out visspeech.jsonl
  engram data clips ego4d av_val.json --audio clips --out ego4d.jsonl
  engram data clips howto100m caption.json --audio audio --skip-missing --out howto.jsonl")]
pub struct Clips {
    /// librispeech, how2 (and other folders in the form of Kaldi), visspeech, ego4d, howto100m, or
    /// manifest (our own, or a folder of sound files)
    format: SpeechFormat,
    /// The folder or file of the data set
    path: PathBuf,
    /// The folder of its sound files, where it does not say itself where they are
    #[arg(long, value_name = "FOLDER")]
    audio: Option<PathBuf>,
    /// A folder with a folder of pictures for each clip or recording
    #[arg(long, value_name = "FOLDER")]
    frames: Option<PathBuf>,
    /// Pictures are numbered from 0, so many of them in a second: clips get those of their own time
    #[arg(long, value_name = "HZ", requires = "frames", value_parser = frame_rate)]
    frame_rate: Option<f64>,
    /// Leave out clips without their sound file, instead of ending
    #[arg(long)]
    skip_missing: bool,
    /// The manifest to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print what was read as JSON, with all that is missing
    #[arg(long)]
    json: bool,
}

/// What was read.
#[derive(Serialize)]
struct Summary<'a> {
    clips: usize,
    with_frames: usize,
    without_text: usize,
    without_length: usize,
    hidden: usize,
    missing: &'a [engram_data::speech::MissingAudio],
}

impl Clips {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let Self { path, audio, frames, frame_rate, skip_missing, .. } = self;
        let source = SpeechSource { path, audio, frames, frame_rate, skip_missing };
        let SpeechClips { clips, missing, without_text, without_length, hidden } =
            read(self.format, &source)?;
        paths::check_named(&self.out, files_of(&clips))?;
        output::write_whole(&self.out, &manifest(&self.out, &clips)?)?;
        if self.json {
            let with_frames = clips.iter().filter(|clip| !clip.frames.is_empty()).count();
            let clips = clips.len();
            let missing = &missing;
            output::print_json(&Summary {
                clips,
                with_frames,
                without_text,
                without_length,
                hidden,
                missing,
            })?;
            return Ok(Outcome::Done);
        }
        for one in missing.iter().take(MOST_TOLD) {
            output::note(
                &format!("left out: {}, {}: no {}", one.id, one.position, one.expected_file),
                false,
            );
        }
        if missing.len() > MOST_TOLD {
            let more = missing.len() - MOST_TOLD;
            output::note(&format!("and {more} more without their sound; --json has all"), false);
        }
        let mut told = format!("{}: {} clips", self.out.display(), clips.len());
        for (count, what) in [
            (missing.iter().map(|one| one.clips).sum(), "without their sound"),
            (without_text, "without words"),
            (without_length, "without length"),
        ] {
            if count > 0 {
                told += &format!("; {count} {what} left out");
            }
        }
        if hidden > 0 {
            told += &format!("; {hidden} hidden files passed over");
        }
        output::print(&told)?;
        Ok(Outcome::Done)
    }
}

fn frame_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("is no positive number of pictures in a second".to_string()),
    }
}
