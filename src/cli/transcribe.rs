//! `engram transcribe`: transcribes speech.

mod adapted;
mod boost;
mod inputs;
mod recordings;
mod streaming;
mod subtitles;
mod transcripts;

use engram_data::messages::counted;

use clap::{Args, ValueEnum};
use engram_data::DataError;
use engram_data::speech::manifest::Clip;
use engram_infer::asr::{Padding, TranscribeOptions};
use engram_models::whisper::Task;

use self::adapted::Adapted;
use self::boost::Boost;
use self::inputs::Inputs;
pub(super) use self::inputs::files_of;
use self::streaming::Streaming;
use self::transcripts::Format;
use super::compute::ComputeOptions;
use super::paths::{BaseFolder, ModelName, OutputFileOrFolder, path_list};
use super::{Outcome, output};

/// Transcribe speech with a Whisper or Conformer model.
#[derive(Debug, Args)]
#[command(after_help = "\
The format of the output follows from the extension of --out: .jsonl (with times and probabilities),
.tsv (for `engram eval wer`), .txt, .srt or .vtt. Several clips give one file; subtitles of several
clips give a folder with one file per clip. In subtitles, --word-times underlines each word while it
is spoken.

Examples:
  engram transcribe talk.mp3 --model hf://openai/whisper-tiny.en --out talk.srt
  engram transcribe monday.mp3 talks/ --model hf://openai/whisper-tiny.en --out talks.tsv
  engram transcribe talk.mp3 --model hf://openai/whisper-tiny.en --out talk.txt --boost names.txt
  engram transcribe talk.mp3 --model runs/s1 --out talk.jsonl --stream 1
  arecord -f S16_LE -r 16000 -d 60 | engram transcribe - --model runs/s1 --stream 1 --out talk.txt
  engram transcribe unlabelled.jsonl --model whisper --format manifest --out train.jsonl
  engram transcribe talk.mp3 --model 'hf://openai/whisper-tiny.en?adapter=my-lora' --out talk.txt
  engram transcribe clips.jsonl --model whisper --adapters runs/a1 --out hyp.tsv")]
pub struct Transcribe {
    /// Audio files, folders of audio files, or lists: manifests (JSON lines with audio, start, end),
    /// NeMo manifests (.json), tables of Common Voice (.tsv), metadata of Hugging Face (.csv, .jsonl),
    /// Kaldi's wav.scp; - is a stream of raw audio from standard input
    #[arg(required = true, value_name = "AUDIO")]
    inputs: Vec<BaseFolder>,
    /// The model: `hf://owner/name`, a folder or a run; with a LoRA or DoRA adapter,
    /// MODEL?adapter=ADAPTER
    #[arg(long, value_name = "WEIGHTS")]
    model: ModelName,
    /// Output file, or a folder for subtitles; - is standard output
    #[arg(long, value_name = "FILE")]
    out: OutputFileOrFolder,
    /// Format of --out; default: from the file extension, otherwise JSON lines
    #[arg(long)]
    format: Option<Format>,
    /// Break the lines of subtitles after at most N characters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_line_length: Option<u16>,
    /// Number of clips in a batch
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// How to treat a clip that cannot be decoded
    #[arg(long, value_name = "ACTION", default_value = "stop")]
    on_error: OnError,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    decoding: Decoding,
    #[command(flatten)]
    boost: Boost,
    #[command(flatten)]
    streaming: Streaming,
    #[command(flatten)]
    adapted: Adapted,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// Decoding options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Decoding")]
struct Decoding {
    /// Beam size; a Conformer with --boost uses 8 instead of 1
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    beams: u16,
    /// Spoken language, for multilingual models, for example en
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    /// Translate speech to English
    #[arg(long)]
    translate: bool,
    /// Add start and end times of segments (always on for subtitles)
    #[arg(long)]
    timestamps: bool,
    /// Add start, end, text and probability of each word, in JSON lines; underline it in subtitles
    #[arg(long)]
    word_times: bool,
    /// Padding after each clip
    #[arg(long, value_name = "PADDING", default_value = "zeros")]
    padding: PaddingName,
}

/// How to treat files that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OnError {
    /// Stop with an error and write nothing
    Stop,
    /// Skip it with a warning
    Skip,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaddingName {
    /// Zero frames up to 30 seconds, as in faster-whisper
    Zeros,
    /// Silence up to 30 seconds, as in openai-whisper
    Silence,
    /// Five seconds of silence, or 30 seconds if the text is doubtful; faster for short clips
    Short,
}

impl Transcribe {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        if self.max_line_length.is_some() && !self.writes_subtitles() {
            anyhow::bail!(
                "--max-line-length needs --format srt or vtt; give it, or name a .srt file"
            );
        }
        let inputs = Inputs::read(path_list(&self.inputs), self.streaming.is_on())?;
        if self.on_error == OnError::Stop {
            // Before the work on other clips begins.
            for clip in &inputs.clips {
                clip.check_name().or_else(|error| self.skip(&inputs, clip, error).map(drop))?;
            }
        }
        match &self.adapted.adapters {
            Some(run) => self.transcribe_adapted(run, &inputs),
            None => self.transcribe(&inputs),
        }
    }

    /// The format of the output.
    fn format(&self) -> Format {
        self.format.unwrap_or_else(|| {
            let extension = self.out.extension().unwrap_or_default().to_ascii_lowercase();
            match extension.to_str() {
                Some("tsv") => Format::Tsv,
                Some("txt") => Format::Txt,
                Some("srt") => Format::Srt,
                Some("vtt") => Format::Vtt,
                _ => Format::Jsonl,
            }
        })
    }

    fn writes_subtitles(&self) -> bool {
        matches!(self.format(), Format::Srt | Format::Vtt)
    }

    /// Whether `--out` names a folder, which may not exist yet.
    fn names_folder(&self) -> bool {
        self.out.is_dir() || self.out.as_os_str().as_encoded_bytes().ends_with(b"/")
    }

    /// Warns of a clip that cannot be transcribed, or returns an error with `--on-error stop`.
    fn skip(&self, inputs: &Inputs, clip: &Clip, error: DataError) -> anyhow::Result<String> {
        let message = match clip.line {
            0 => error.to_string(),
            line => format!("{}, line {line}: {error}", inputs.path_of(clip).display()),
        };
        if self.on_error == OnError::Stop {
            let is_skippable = !streaming::is_stdin(clip);
            let hint = if is_skippable { " (--on-error skip skips such clips)" } else { "" };
            anyhow::bail!("{message}{hint}");
        }
        output::warn(&format!("skipped: {message}"));
        Ok(message)
    }
}

impl Decoding {
    fn options(&self, subtitles: bool) -> TranscribeOptions {
        TranscribeOptions {
            num_beams: usize::from(self.beams),
            timestamps: self.timestamps || subtitles,
            word_times: self.word_times,
            language: self.language.clone(),
            task: if self.translate { Task::Translate } else { Task::Transcribe },
            padding: match self.padding {
                PaddingName::Zeros => Padding::Zeros,
                PaddingName::Silence => Padding::Silence,
                PaddingName::Short => Padding::Short,
            },
            boost: None,
        }
    }
}

/// The number of skipped clips, for the last line: `, 2 skipped`; empty if there are none.
fn skipped_text(count: usize) -> String {
    if count == 0 { String::new() } else { format!(", {count} skipped") }
}

/// Returns an error if all clips are skipped, because an output file without text would look like a
/// result.
fn check_any_transcribed(transcribed: usize, skipped: &[String]) -> anyhow::Result<()> {
    match skipped.first().filter(|_| transcribed == 0) {
        None => Ok(()),
        Some(first) => {
            let clips = counted(skipped.len(), "clip");
            anyhow::bail!(
                "no clip is transcribed ({clips} skipped), so nothing is written; {first}"
            )
        }
    }
}
