//! Transcripts of speech.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use engram_data::DataError;
use engram_data::folder::SkippedFiles;
use engram_data::speech::manifest::{Clip, ClipReader, clips_and_skipped};
use engram_models::speech::log_mel::SAMPLE_RATE;
use engram_models::whisper::Task;
use engram_train::TrainError;
use engram_train::recognise::{Listener, Padding, RecogniseOptions, Segment, Streamed, Transcript};
use indicatif::HumanDuration;
use rayon::prelude::*;
use serde::Serialize;

use super::Predict;
use super::boost::Boost;
use super::streaming::{self, Report, Streaming};
use super::transcripts::{Format, files_of};
use crate::cli::{Outcome, output, paths};

/// How speech is transcribed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speech")]
pub struct Speech {
    /// Transcribe sound with a Whisper model or a Conformer, `hf://owner/name`, a folder or a run;
    /// --input is a sound file, a folder of them, or a manifest (JSON lines with audio, start, end)
    #[arg(long, value_name = "WEIGHTS", conflicts_with_all = ["run", "encoder", "vectors"])]
    pub(super) recogniser: Option<String>,
    /// What --output is, by default by its ending, else JSON lines
    #[arg(long, requires = "recogniser")]
    format: Option<Format>,
    /// Texts that are followed at the same time; a Conformer that is given words to --boost takes 8
    /// where this is 1
    #[arg(long, value_name = "N", default_value_t = 1, requires = "recogniser",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    beams: u16,
    /// The language that is spoken, for multilingual models
    #[arg(long, value_name = "en", requires = "recogniser")]
    language: Option<String>,
    /// Write in English what is said in another language
    #[arg(long, requires = "recogniser")]
    translate: bool,
    /// Say when each part is said (subtitles have it always)
    #[arg(long, requires = "recogniser")]
    timestamps: bool,
    /// Say when each word is said, in JSON lines: start, end, text and probability
    #[arg(long, requires = "recogniser")]
    word_times: bool,
    /// What is put behind a clip
    #[arg(long, value_name = "WHAT", default_value = "zeros", requires = "recogniser")]
    padding: PaddingName,
    /// Clips that are transcribed together
    #[arg(long, value_name = "N", default_value_t = 8, requires = "recogniser",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// What happens where a clip cannot be read
    #[arg(long, value_name = "WHAT", default_value = "stop", requires = "recogniser")]
    on_error: OnError,
    /// Print what was done as JSON
    #[arg(long, requires = "recogniser")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) boost: Boost,
    #[command(flatten)]
    streaming: Streaming,
}

/// What becomes of clips that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OnError {
    /// It ends the command, and nothing is written
    Stop,
    /// The clip is named and left out
    Skip,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaddingName {
    /// Frames of zeros up to 30 seconds, as faster-whisper does
    Zeros,
    /// Silence up to 30 seconds, as openai-whisper does
    Silence,
    /// Five seconds of silence, 30 where the text is doubtful: faster for short clips
    Short,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Summary {
    clips: usize,
    /// What could not be read.
    skipped: Vec<String>,
    /// Of sound.
    sound_seconds: f64,
    /// From the opened model to the last text.
    seconds: f64,
    /// Seconds of work for a second of sound.
    real_time_factor: f64,
    /// Computed for the JSON alone.
    weights_sha256: Option<String>,
    /// Clips that were transcribed again with silence up to 30 seconds.
    padded_again: usize,
    /// How late words were final, of sound that comes in.
    #[serde(skip_serializing_if = "Option::is_none")]
    streaming: Option<Report>,
}

/// A clip on its way to a text.
enum Sound {
    Short(Vec<f32>),
    Long(Vec<f32>, Box<ClipReader>),
}

impl Predict {
    /// Transcribes the clips of the input.
    pub(super) fn transcribe(&self, recogniser: &str, input: &Path) -> anyhow::Result<Outcome> {
        let clips = match self.speech.streaming.stdin(input)? {
            Some(clip) => vec![clip],
            None => read_clips(input, self.quiet)?,
        };
        let format = self.speech.format(&self.output);
        if format == Format::Manifest && input == Path::new("-") {
            anyhow::bail!("a manifest names files of sound, and standard input is none");
        }
        let subtitles = matches!(format, Format::Srt | Format::Vtt);
        if subtitles && clips.len() > 1 && !self.output.is_dir() {
            let (output, count) = (self.output.display(), clips.len());
            anyhow::bail!(
                "{output}: {count} clips have a file of subtitles each; make a folder and give it"
            );
        }
        if !subtitles && self.output.is_dir() {
            let output = self.output.display();
            anyhow::bail!(
                "{output}: is a folder; name a file for --output, or give --format srt or vtt"
            );
        }
        if subtitles {
            self.check_subtitle_files(&clips, format)?;
        } else {
            paths::check_named(&self.output, files_of(&clips))?;
        }
        if self.speech.word_times && format != Format::Jsonl {
            anyhow::bail!("--word-times is for JSON lines; give --format jsonl, or leave it out");
        }
        let lists = self.speech.boost.read(&clips, self.quiet)?;
        let recogniser = Listener::open(recogniser)?;
        let options = self.speech.options(subtitles);
        recogniser.check(&options)?;
        let stream = self.speech.streaming.options(recogniser.max_seconds())?;
        let trees = self.speech.boost.trees(lists.as_ref(), &recogniser)?;
        let tree = |clip: &Clip| trees.as_ref().map_or(Ok(None), |trees| trees.of(clip));
        let started = Instant::now();
        let bar = output::progress_bar(clips.len(), "clips", self.quiet);
        let mut made: Vec<(&Clip, Transcript)> = Vec::with_capacity(clips.len());
        let mut skipped = Vec::new();
        let mut streams: Vec<Streamed> = Vec::new();
        for batch in clips.chunks(self.speech.batch()) {
            if let Some(stream) = stream {
                for clip in batch {
                    let options = RecogniseOptions { boost: tree(clip)?, ..options.clone() };
                    let shown = (&bar, !self.speech.json && !self.quiet);
                    match streaming::stream(&recogniser, &options, stream, clip, shown) {
                        Ok(mut streamed) => {
                            if !options.timestamps {
                                streamed.transcript.segments.clear();
                            }
                            made.push((clip, streamed.transcript.clone()));
                            streams.push(streamed);
                        }
                        Err(TrainError::Data(error)) => {
                            skipped.push(self.skip(clip, input, *error)?);
                        }
                        Err(error) => return Err(error.into()),
                    }
                    bar.set_message("");
                    bar.inc(1);
                }
                continue;
            }
            let longest = (recogniser.max_seconds() * f64::from(SAMPLE_RATE)) as usize;
            let sounds: Vec<Result<Sound, DataError>> =
                batch.par_iter().map(|clip| open(clip, longest)).collect();
            let (mut short, mut transcripts) = (Vec::new(), Vec::new());
            for (clip, sound) in batch.iter().zip(sounds) {
                let made = match sound {
                    Ok(Sound::Short(samples)) => {
                        short.push((clip, samples));
                        continue;
                    }
                    Ok(Sound::Long(samples, reader)) => {
                        let tell = |text: &str| bar.set_message(text.to_string());
                        let boost = tree(clip)?;
                        let options = RecogniseOptions { boost, ..options.clone() };
                        long(&recogniser, &options, samples, *reader, &tell)
                    }
                    Err(error) => Err(error.into()),
                };
                match made {
                    Ok(transcript) => transcripts.push((clip, transcript)),
                    Err(TrainError::Data(error)) => skipped.push(self.skip(clip, input, *error)?),
                    Err(error) => return Err(error.into()),
                }
            }
            let samples: Vec<&[f32]> =
                short.iter().map(|(_, samples)| samples.as_slice()).collect();
            let boosts: Vec<_> =
                short.iter().map(|(clip, _)| tree(clip)).collect::<anyhow::Result<_>>()?;
            let texts = recogniser.transcribe(&samples, &boosts, &options)?;
            transcripts.extend(short.iter().map(|(clip, _)| *clip).zip(texts));
            // Long ones are done before short ones.
            transcripts.sort_by_key(|(clip, _)| batch.iter().position(|other| other.id == clip.id));
            made.extend(transcripts);
            bar.set_message("");
            bar.inc(batch.len() as u64);
        }
        bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64();
        check_heard(made.len(), &skipped, input)?;
        self.write_transcripts(format, &made, &streams)?;
        let sound_seconds: f64 = made.iter().map(|(_, transcript)| transcript.seconds).sum();
        let summary = Summary {
            clips: made.len(),
            sound_seconds,
            seconds,
            real_time_factor: seconds / sound_seconds.max(1e-9),
            weights_sha256: self.speech.json.then(|| recogniser.weights_sha256()).transpose()?,
            padded_again: made.iter().filter(|(_, transcript)| transcript.padded).count(),
            skipped,
            streaming: stream.map(|options| Report::of(options, &streams)),
        };
        if self.speech.json {
            output::print_json(&summary)?;
        }
        let skipped = match summary.skipped.len() {
            0 => String::new(),
            count => format!(", {count} left out"),
        };
        let told = format!(
            "{} clips{skipped}, {:.1} s of sound in {:.1} s ({:.1} times real time), written to {}",
            summary.clips,
            sound_seconds,
            seconds,
            1.0 / summary.real_time_factor.max(1e-9),
            self.output.display()
        );
        output::note(&told, self.quiet);
        if let Some(report) = &summary.streaming {
            output::note(&report.told(), self.quiet);
        }
        Ok(Outcome::Done)
    }

    /// Names a clip that cannot be transcribed, or ends with it.
    pub(super) fn skip(
        &self,
        clip: &Clip,
        input: &Path,
        error: DataError,
    ) -> anyhow::Result<String> {
        let told = match clip.line {
            0 => error.to_string(),
            line => format!("{}, line {line}: {error}", input.display()),
        };
        if self.speech.on_error == OnError::Stop {
            anyhow::bail!("{told} (or leave such clips out with --on-error skip)");
        }
        output::note(&format!("left out: {told}"), false);
        Ok(told)
    }
}

impl Speech {
    /// Clips that are transcribed together.
    pub(super) fn batch(&self) -> usize {
        usize::from(self.batch)
    }

    pub(super) fn format(&self, output: &Path) -> Format {
        self.format.unwrap_or_else(|| match output.extension().and_then(|e| e.to_str()) {
            Some("tsv") => Format::Tsv,
            Some("txt") => Format::Txt,
            Some("srt") => Format::Srt,
            Some("vtt") => Format::Vtt,
            _ => Format::Jsonl,
        })
    }

    fn options(&self, subtitles: bool) -> RecogniseOptions {
        RecogniseOptions {
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

/// Fails where all clips are left out: a file without any text would look like a result.
pub(super) fn check_heard(heard: usize, skipped: &[String], input: &Path) -> anyhow::Result<()> {
    match skipped.first().filter(|_| heard == 0) {
        None => Ok(()),
        Some(first) => {
            let (input, count) = (input.display(), skipped.len());
            anyhow::bail!(
                "{input}: all {count} clips are left out, and nothing is written; {first}"
            )
        }
    }
}

/// The samples of a clip, or the first of them if it is longer than `longest`.
fn open(clip: &Clip, longest: usize) -> Result<Sound, DataError> {
    let (mut reader, mut samples) = (clip.open(SAMPLE_RATE)?, Vec::new());
    while reader.read(&mut samples)? {
        if samples.len() > longest {
            return Ok(Sound::Long(samples, Box::new(reader)));
        }
    }
    Ok(if samples.len() > longest {
        Sound::Long(samples, Box::new(reader))
    } else {
        Sound::Short(samples)
    })
}

/// The transcript of a recording of which `first` samples are read.
fn long(
    recogniser: &Listener,
    options: &RecogniseOptions,
    mut first: Vec<f32>,
    mut reader: ClipReader,
    tell: &dyn Fn(&str),
) -> Result<Transcript, TrainError> {
    let all = reader.seconds();
    let read = |samples: &mut Vec<f32>| -> Result<bool, TrainError> {
        if !first.is_empty() {
            samples.append(&mut first);
            return Ok(true);
        }
        Ok(reader.read(samples)?)
    };
    let started = Instant::now();
    let heard = |_: &[Segment], done: f64| {
        let rest = all.map_or(String::new(), |all| {
            let left = started.elapsed().as_secs_f64() / done.max(1e-9) * (all - done).max(0.0);
            format!(" of {all:.0} s, {} left", HumanDuration(Duration::from_secs_f64(left)))
        });
        tell(&format!("(this recording: {done:.0}{rest})"));
    };
    recogniser.transcribe_long(options, read, heard)
}

/// The clips of the input, with a note of what was passed over in a folder.
pub(super) fn read_clips(input: &Path, quiet: bool) -> Result<Vec<Clip>, DataError> {
    let (clips, SkippedFiles { hidden, others }) = clips_and_skipped(input)?;
    if hidden + others > 0 {
        let input = input.display();
        output::note(
            &format!("{input}: passed over {hidden} hidden files and {others} that are no sound"),
            quiet,
        );
    }
    Ok(clips)
}
