//! `engram data clips`: manifests of the clips in published speech data sets.

use engram_data::messages::counted;

use std::path::Path;

use clap::Args;
use engram_data::folder::SkippedFiles;
use engram_data::speech::manifest::manifest;
use engram_data::speech::{SpeechClips, SpeechFormat, SpeechSource, read};
use serde::Serialize;

use super::super::paths::{self, BaseFolder, InputFile, OutputFile};
use super::super::transcribe::files_of;
use super::super::{Outcome, output};

/// The largest number of missing files to print.
const MAX_PRINTED_MISSING: usize = 20;

/// Write a manifest of the clips in a published speech data set.
///
/// `engram transcribe` transcribes a manifest, and `engram train speech` trains on it.
/// A manifest has JSON lines with id, audio, start, end, text, frames, speaker. Checks that the
/// audio files exist but does not open them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data clips librispeech LibriSpeech/dev-clean --out dev-clean.jsonl
  engram data clips how2 data/train --audio wavs --out train.jsonl
  engram data clips manifest cv-corpus/en/test.tsv --out test.jsonl
  engram data clips visspeech VisSpeech.csv --audio audio --frames frames --skip-missing \\
      --out visspeech.jsonl
  engram data clips ego4d av_val.json --audio clips --out ego4d.jsonl
  engram data clips howto100m caption.json --audio audio --skip-missing --out howto.jsonl")]
pub struct Clips {
    /// Format of the data set: librispeech, how2 (and other Kaldi folders), visspeech, ego4d,
    /// howto100m, or manifest (a folder of audio files, a manifest of this toolkit, or a list of
    /// NeMo, Common Voice, Hugging Face or Kaldi)
    format: SpeechFormat,
    /// Folder or file of the data set; - is standard input, for visspeech, ego4d, howto100m and a
    /// manifest
    path: InputFile,
    /// Folder of the audio files, if the data set does not give their paths
    #[arg(long, value_name = "FOLDER")]
    audio: Option<BaseFolder>,
    /// Folder with one subfolder of images per clip or recording
    #[arg(long, value_name = "FOLDER")]
    frames: Option<BaseFolder>,
    /// Frame rate of the images, which are numbered from 0; each clip gets the images of its time
    /// span
    #[arg(long, value_name = "HZ", requires = "frames", value_parser = parse_frame_rate)]
    frame_rate: Option<f64>,
    /// Skip clips whose audio file is missing, instead of stopping with an error
    #[arg(long)]
    skip_missing: bool,
    /// Output file of the manifest
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Print a summary as JSON, with all missing files
    #[arg(long)]
    json: bool,
}

/// The summary that is printed as JSON.
#[derive(Serialize)]
struct Summary<'a> {
    clips: usize,
    with_frames: usize,
    /// Number of skipped clips without text.
    without_text: usize,
    /// Number of skipped clips without length.
    zero_length: usize,
    /// Number of skipped hidden files and folders.
    hidden: usize,
    /// Number of links to folders, which are not followed.
    linked_folders: usize,
    /// Number of other files that were not read, such as texts and sounds of unknown formats.
    other_files: usize,
    /// What was taken for what in a list of another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_as: Option<String>,
    missing: &'a [engram_data::speech::MissingAudio],
}

impl Clips {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let source = SpeechSource {
            path: self.path.to_path_buf(),
            audio: self.audio.as_deref().map(Path::to_path_buf),
            frames: self.frames.as_deref().map(Path::to_path_buf),
            frame_rate: self.frame_rate,
            skip_missing: self.skip_missing,
        };
        let SpeechClips { clips, missing, without_text, zero_length, skipped, taken_as } =
            read(self.format, &source)?;
        let SkippedFiles { hidden, links: linked_folders, others: other_files } = skipped;
        paths::check_not_overwritten(&self.out, files_of(&clips))?;
        output::write_atomic(&self.out, &manifest(&self.out, &clips)?)?;
        if self.json {
            let with_frames = clips.iter().filter(|clip| !clip.frames.is_empty()).count();
            let clips = clips.len();
            let missing = &missing;
            output::print_json(&Summary {
                clips,
                with_frames,
                without_text,
                zero_length,
                hidden,
                linked_folders,
                other_files,
                taken_as,
                missing,
            })?;
            return Ok(Outcome::Done);
        }
        for file in missing.iter().take(MAX_PRINTED_MISSING) {
            output::warn(&format!(
                "skipped: {}, {}: no {}",
                file.id, file.position, file.expected_file
            ));
        }
        if missing.len() > MAX_PRINTED_MISSING {
            let unprinted = missing.len() - MAX_PRINTED_MISSING;
            output::warn(&format!("and {unprinted} more without audio; --json lists all"));
        }
        let mut summary = format!("{}: {}", self.out.display(), counted(clips.len(), "clip"));
        for (count, reason) in [
            (missing.iter().map(|file| file.clips).sum(), "without audio"),
            (without_text, "without text"),
            (zero_length, "without length"),
        ] {
            if count > 0 {
                summary += &format!("; skipped {count} {reason}");
            }
        }
        for (count, files) in [(hidden, "hidden file"), (linked_folders, "linked folder")] {
            if count > 0 {
                summary += &format!("; skipped {}", counted(count, files));
            }
        }
        if let Some(taken_as) = taken_as {
            summary += &format!("; {} was read as {taken_as}", self.path.display());
        }
        output::print(&summary)?;
        Ok(Outcome::Done)
    }
}

fn parse_frame_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("must be a number of images per second above 0".to_string()),
    }
}
