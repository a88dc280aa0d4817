//! `engram data voices`: clips in which synthetic voices say the names of pictures, for training, and
//! recordings of people in noise, for the test. Views of the pictures are the frames.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use engram_data::audio::mixing::add_noise;
use engram_data::audio::noise::NoiseKind;
use engram_data::audio::read_audio;
use engram_data::composite::{Composite, CutOut, open_backgrounds, photographs};
use engram_data::messages::counted;
use engram_data::speech::espeak::Speaker;
use engram_data::speech::frames::Frame;
use engram_data::speech::manifest::{Clip, manifest};
use engram_data::world::questions::Split;
use engram_data::world::seeded_rng;
use engram_textfile::{non_blank_lines, parse_json_line, read_text};
use image::codecs::jpeg::JpegEncoder;
use rand::Rng;
use rand::seq::IndexedRandom;
use rayon::prelude::*;
use serde::Deserialize;

use super::super::paths::{InputFile, InputFolder, NewFolder};
use super::super::{Outcome, output};
use super::speech::{parse_snr_db, wav};

/// The sample rate of the clips, in Hz.
const RATE: u32 = 16_000;
/// Silence before and after a synthetic voice, in samples.
const SILENCE: std::ops::Range<usize> = 800..4_800;
/// The number of test views of each picture; validation has the same views.
const TEST_VIEWS: u8 = 4;
/// One of this many background photographs is only in test views.
const TEST_BACKGROUNDS: usize = 4;
/// The edge of a view, and the longest edge of a photograph of which a view shows a part, in pixels.
const VIEW: u32 = 160;
const PHOTOGRAPH: u32 = 512;
/// The quality of the views' JPEG files.
const QUALITY: u8 = 92;
/// What to do about an entry that is not one of `engram data stamps`.
const REMEDY: &str = "write the folder with `engram data stamps`";

/// Write audio-visual clips of named pictures: synthetic voices for training, people for the test.
///
/// In training clips, voices of espeak-ng, which has to be installed, say the names of the things of
/// the training and validation splits. The clips of validation (things of the validation split) and
/// test (all others) are the recordings of people, clean and in noise. Frames are views of the
/// pictures on photographs. Training and test have other views, photographs and kinds of noise. The
/// id of a test clip begins with `seen` if its name is in training, otherwise with `unseen`, and with
/// its noise, as in `seen/-6dB/animals/birds/crow`. The same options give the same bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data stamps tuxpaint-stamps --on-error skip --out stamps
  engram data voices stamps --backgrounds photographs --languages fr,es --out voices
  engram train avformer --recipe avformer/stamps --run runs/fr --set model.asr_model=whisper-base \\
      --set model.image_encoder=mobilenet --set model.language=fr --set data.train=voices/fr-train.jsonl \\
      --set data.validation=voices/fr-validation.jsonl --set data.test=voices/fr-test.jsonl")]
pub struct Voices {
    /// Folder that `engram data stamps` wrote
    folder: InputFolder,
    /// Folder of photographs on which the pictures are pasted
    #[arg(long, value_name = "FOLDER")]
    backgrounds: InputFolder,
    /// Languages, as in entries.jsonl
    #[arg(long, value_name = "CODE,…", value_delimiter = ',', required = true)]
    languages: Vec<String>,
    /// Output folder for manifests such as fr-train.jsonl, fr-validation.jsonl and fr-test.jsonl,
    /// audio files and views
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// Synthetic clips of each picture and language
    #[arg(long, value_name = "N", default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clips: u32,
    /// Training views of each picture
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(1..=100))]
    views: u8,
    /// Signal-to-noise ratios of the test in dB; validation has the last one
    #[arg(long, value_name = "DB,…", value_delimiter = ',', allow_negative_numbers = true,
        default_values_t = [0.0f32, -6.0], value_parser = parse_snr_db)]
    snr_db: Vec<f32>,
    /// Signal-to-noise ratio in dB for a part of the test in which sounds of other things are the
    /// noise
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = parse_snr_db)]
    sounds_db: Option<f32>,
    /// Recordings of people to leave out: lines such as fr/animals/birds/crow, a language and a
    /// `picture` of entries.jsonl
    #[arg(long, value_name = "FILE")]
    leave_out: Option<InputFile>,
    /// Random seed of voices, noise and views
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A line of entries.jsonl.
#[derive(Debug, Deserialize)]
struct Entry {
    image: PathBuf,
    picture: String,
    names: BTreeMap<String, String>,
    sounds: Vec<Recording>,
    split: Split,
}

#[derive(Debug, Deserialize)]
struct Recording {
    file: PathBuf,
    language: Option<String>,
}

/// A language's clips: training, validation and test.
type Manifests = [(&'static str, Vec<Clip>); 3];

impl Voices {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        output::check_new_folder(&self.out)?;
        let entries = read_entries(&self.folder.join("entries.jsonl"))?;
        let left_out = self.left_out(&entries)?;
        let sounds = entries.iter().flat_map(|entry| &entry.sounds);
        let spoken: BTreeSet<&str> = sounds.filter_map(|sound| sound.language.as_deref()).collect();
        if let Some(language) = self.languages.iter().find(|it| !spoken.contains(it.as_str())) {
            let spoken = spoken.into_iter().collect::<Vec<_>>().join(", ");
            anyhow::bail!("--languages: there are no recordings in `{language}`, but in: {spoken}");
        }
        anyhow::ensure!(
            self.sounds_db.is_none()
                || entries.iter().filter(|it| it.effects().next().is_some()).count() > 1,
            "--sounds-db: the entries have fewer than two sounds of things; leave the option out"
        );
        let backgrounds = backgrounds(&self.backgrounds)?;
        output::write_folder(&self.out, |staging| {
            let progress = output::progress_bar(entries.len(), "pictures");
            let frames = entries.par_iter().map(|entry| {
                let frames = self.views(entry, &backgrounds, staging);
                progress.inc(1);
                frames
            });
            let frames: Vec<[Vec<Frame>; 2]> = frames.collect::<anyhow::Result<_>>()?;
            progress.finish_and_clear();
            for language in &self.languages {
                let clips = self.clips_of(language, &entries, &frames, &left_out, staging)?;
                let counts = clips.each_ref().map(|(_, clips)| clips.len());
                for (name, clips) in clips {
                    let path = staging.join(format!("{language}-{name}.jsonl"));
                    output::write_new(&path, &manifest(&path, &clips)?)?;
                }
                let [train, validation, test] = counts;
                let clips = counted(train, "training clip");
                output::note(&format!(
                    "{language}: {clips}, {validation} of validation, {test} of test"
                ));
            }
            Ok(())
        })?;
        output::print(&self.out.display().to_string())?;
        Ok(Outcome::Done)
    }

    /// The recordings to leave out. It is an error if a line names none.
    fn left_out(&self, entries: &[Entry]) -> anyhow::Result<BTreeSet<String>> {
        let Some(file) = self.leave_out.as_deref() else { return Ok(BTreeSet::new()) };
        let mut left_out = BTreeSet::new();
        for (line, text) in non_blank_lines(&read_text(file)?) {
            let text = text.trim();
            let is_recording = text.split_once('/').is_some_and(|(language, picture)| {
                let is_it = |entry: &&Entry| entry.picture == picture;
                entries.iter().find(is_it).is_some_and(|entry| entry.recording(language).is_some())
            });
            anyhow::ensure!(
                is_recording,
                "{}, line {line}: there is no recording `{text}`; write a language and a `picture` \
                 of entries.jsonl, such as fr/animals/birds/crow",
                file.display()
            );
            left_out.insert(text.to_owned());
        }
        Ok(left_out)
    }

    /// Writes the training and the test views of a picture.
    fn views(
        &self,
        entry: &Entry,
        backgrounds: &[Vec<CutOut>; 2],
        staging: &Path,
    ) -> anyhow::Result<[Vec<Frame>; 2]> {
        let thing = CutOut::open(&self.folder.join(&entry.image), VIEW)?;
        let composite = Composite::new(VIEW);
        let folder = staging.join("views").join(&entry.picture);
        output::create_folder(&folder)?;
        let training = if entry.split == Split::Test { 0 } else { self.views };
        let mut frames = [Vec::new(), Vec::new()];
        for (part, count) in [training, TEST_VIEWS].into_iter().enumerate() {
            for view in 0..count {
                let name = format!("{}-{view:02}", ["train", "test"][part]);
                let mut rng = seeded_rng(self.seed, &["view", &entry.picture, &name]);
                let background = backgrounds[part].choose(&mut rng).context("no photograph")?;
                let view = composite.view(&thing, background, &mut rng);
                let mut jpeg = Vec::new();
                view.write_with_encoder(JpegEncoder::new_with_quality(&mut jpeg, QUALITY))?;
                let path = folder.join(format!("{name}.jpg"));
                output::write_new(&path, &jpeg)?;
                frames[part].push(Frame::from(path));
            }
        }
        Ok(frames)
    }

    /// Writes the audio of a language, and returns its clips.
    fn clips_of(
        &self,
        language: &str,
        entries: &[Entry],
        frames: &[[Vec<Frame>; 2]],
        left_out: &BTreeSet<String>,
        staging: &Path,
    ) -> anyhow::Result<Manifests> {
        let named: Vec<(&Entry, &[Vec<Frame>; 2], &String)> = entries
            .iter()
            .zip(frames)
            .filter_map(|(entry, frames)| Some((entry, frames, entry.names.get(language)?)))
            .collect();
        let is_training = |entry: &Entry| entry.split != Split::Test;
        let trained: BTreeSet<String> = named
            .iter()
            .filter(|(entry, ..)| is_training(entry))
            .map(|(.., name)| name.to_lowercase())
            .collect();
        let synthetic = named.iter().filter(|(entry, ..)| is_training(entry));
        let synthetic: Vec<_> =
            synthetic.flat_map(|named| (0..self.clips).map(move |clip| (named, clip))).collect();
        let progress = output::progress_bar(synthetic.len(), "synthetic clips");
        let speak = |((entry, frames, name), clip): (&(&Entry, &[Vec<Frame>; 2], &String), u32)| {
            let id = format!("{}-{clip:03}", entry.picture);
            let mut rng = seeded_rng(self.seed, &["voice", language, &id]);
            let speaker = Speaker::draw(language, &mut rng);
            let mut samples = vec![0.0; rng.random_range(SILENCE)];
            samples.extend(speaker.say(name, RATE)?);
            samples.resize(samples.len() + rng.random_range(SILENCE), 0.0);
            let audio = write_wav(staging, &format!("{language}/train/{id}"), &samples)?;
            progress.inc(1);
            let (text, frames) = (Some((*name).clone()), frames[0].clone());
            Ok(Clip { id, audio, text, frames, speaker: Some(speaker.voice), ..Clip::default() })
        };
        let train = synthetic.into_par_iter().map(speak).collect::<anyhow::Result<Vec<Clip>>>()?;
        progress.finish_and_clear();
        let effects: Vec<(&str, &Path)> = entries.iter().flat_map(Entry::effects).collect();
        let recordings = named.par_iter().filter_map(|(entry, frames, name)| {
            let file = entry.recording(language)?;
            let is_used = !left_out.contains(&format!("{language}/{}", entry.picture));
            is_used.then_some((entry, frames, name, file))
        });
        let noisy = recordings.map(|(entry, frames, name, file)| {
            let part = if trained.contains(&name.to_lowercase()) { "seen" } else { "unseen" };
            let speech = read_audio(file, RATE)?;
            let mut clips = Vec::new();
            for (condition, snr_db) in self.conditions(entry.split) {
                let id = format!("{part}/{condition}/{}", entry.picture);
                let mut rng = seeded_rng(self.seed, &["noise", language, &id]);
                let noise = match (condition.starts_with("sounds"), snr_db) {
                    (_, None) => Vec::new(),
                    (false, _) => NoiseKind::Bands.make(speech.len(), &mut rng),
                    (true, _) => {
                        let others: Vec<_> =
                            effects.iter().filter(|(of, _)| *of != entry.picture).collect();
                        let (_, file) = others.choose(&mut rng).context("there are no sounds")?;
                        read_audio(file, RATE)?
                    }
                };
                let samples = add_noise(&speech, &noise, snr_db.unwrap_or_default(), 0);
                let audio = write_wav(staging, &format!("{language}/people/{id}"), &samples)?;
                let (text, frames) = (Some((*name).clone()), frames[1].clone());
                clips.push(Clip { id, audio, text, frames, ..Clip::default() });
            }
            Ok((entry.split == Split::Validation, clips))
        });
        let (mut validation, mut test) = (Vec::new(), Vec::new());
        for (is_validation, clips) in noisy.collect::<anyhow::Result<Vec<_>>>()? {
            if is_validation { &mut validation } else { &mut test }.extend(clips);
        }
        Ok([("train", train), ("validation", validation), ("test", test)])
    }

    /// The kinds of noise of a split, by name, each with its signal-to-noise ratio.
    fn conditions(&self, split: Split) -> Vec<(String, Option<f32>)> {
        let noise = self.snr_db.iter().map(|snr_db| (format!("{snr_db}dB"), Some(*snr_db)));
        let sounds = self.sounds_db.map(|snr_db| ("sounds".to_owned(), Some(snr_db)));
        if split == Split::Validation {
            return noise.skip(self.snr_db.len() - 1).collect();
        }
        std::iter::once(("clean".to_owned(), None)).chain(noise).chain(sounds).collect()
    }
}

impl Entry {
    /// The recording of a person who says the name.
    fn recording(&self, language: &str) -> Option<&Path> {
        let is_it = |sound: &&Recording| sound.language.as_deref() == Some(language);
        self.sounds.iter().find(is_it).map(|sound| sound.file.as_path())
    }

    /// The sounds of the thing, each with the picture's name.
    fn effects(&self) -> impl Iterator<Item = (&str, &Path)> {
        let effects = self.sounds.iter().filter(|sound| sound.language.is_none());
        effects.map(|sound| (self.picture.as_str(), sound.file.as_path()))
    }
}

fn read_entries(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let (text, file) = (read_text(path)?, path.display().to_string());
    let entries =
        non_blank_lines(&text).map(|(line, text)| parse_json_line(&file, line, text, REMEDY));
    let entries: Vec<Entry> = entries.collect::<Result<_, _>>()?;
    anyhow::ensure!(!entries.is_empty(), "{file}: has no entries; {REMEDY}");
    Ok(entries)
}

/// The photographs of a folder: for training views, and for test views.
fn backgrounds(folder: &Path) -> anyhow::Result<[Vec<CutOut>; 2]> {
    let files = photographs(folder)?;
    anyhow::ensure!(
        files.len() >= TEST_BACKGROUNDS,
        "{}: has {} (JPEG, PNG or WebP); give a folder with at least {TEST_BACKGROUNDS}",
        folder.display(),
        counted(files.len(), "photograph")
    );
    Ok(open_backgrounds(&files, PHOTOGRAPH, TEST_BACKGROUNDS)?)
}

/// Writes samples to a WAV file in the output folder. Returns its path.
fn write_wav(staging: &Path, name: &str, samples: &[f32]) -> anyhow::Result<PathBuf> {
    let path = staging.join(format!("{name}.wav"));
    output::create_folder(path.parent().unwrap_or(staging))?;
    output::write_new(&path, &wav(samples)?)?;
    Ok(path)
}
