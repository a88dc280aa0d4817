//! AVFormer runs: a spoken name in noise, transcribed by the frozen ASR model and with adapters,
//! with different images.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use engram_data::audio::noise::NoiseKind;
use engram_data::world::audiovisual::{Audiovisual, AudiovisualClip, MAX_SNR_DB, NoiseSettings};
use engram_data::world::questions::Split;
use engram_eval::normalise::Normaliser;
use engram_eval::wer::align;
use engram_eval::wer::alignment::Edit;
use engram_eval::wer::tokens::TokenUnit;
use engram_infer::asr::{
    AdaptedAsrModel, AdaptedClip, AsrModel, AvformerRunConfig, TranscribeOptions, Word,
};
use engram_infer::finished_run::RECIPE;
use engram_models::compute::Compute;
use engram_models::speech::log_mel::samples_to_seconds;
use engram_train::studies::avformer::settings::{AvformerData, NUM_EVALUATION_VIEWS};
use engram_train::{Recipe, RecipeOptions};
use serde::{Deserialize, Serialize};

use super::discover::Run;
use super::lazy::{FromRun, Lazy, png};
use super::rescue::{self, RescueSearch};
use crate::cli::data::wav;
use crate::cli::output;
use crate::cli::studies::ExplorerTab;

/// The name of the run's adapters in the ASR model.
const ADAPTERS: &str = "run";
/// Maximum number of segments of the waveform; each shows its lowest and highest sample.
const PEAKS: usize = 300;
/// Peak amplitude for playback: with noise, samples may exceed [-1, 1].
const MAX_PEAK: f32 = 0.7;

/// A run that transcribes clips.
pub(super) struct AvformerRun {
    pub(super) folder: PathBuf,
    pub(super) data: AvformerData,
    pub(super) world: Audiovisual,
    adapted: Mutex<AdaptedAsrModel>,
    rescue: Lazy<RescueSearch>,
}

/// The clips that can be requested.
#[derive(Serialize)]
pub(super) struct SpokenNames {
    names: Vec<String>,
    /// Number of views of each image.
    views: usize,
    /// Number of video frames per clip; 0 if the run was trained without frames.
    frames: usize,
}

/// A request for a clip in a test voice. It also describes the clip in a response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ClipRequest {
    /// Index of the spoken name.
    pub(super) name: usize,
    /// Index of the clip of this name.
    #[serde(default)]
    pub(super) take: usize,
    /// The kind of noise; `None` for clean speech.
    pub(super) noise: Option<NoiseKind>,
    /// Signal-to-noise ratio in dB.
    #[serde(default)]
    pub(super) snr_db: f32,
    /// Index of the name whose images replace the clip's own.
    #[serde(default)]
    pub(super) other: usize,
}

#[derive(Serialize)]
pub(super) struct ClipTranscripts {
    text: String,
    voice: &'static str,
    seconds: f64,
    /// The lowest and highest sample of each segment of the clip.
    peaks: Vec<[f32; 2]>,
    /// Words of the frozen ASR model with their times.
    words: Vec<Word>,
    pub(super) transcripts: Vec<Transcript>,
    /// Indices of the reference words that the adapters with images of the spoken name transcribe
    /// correctly, and without images incorrectly.
    pub(super) rescued: Vec<usize>,
}

/// The transcript of one system.
#[derive(Serialize)]
pub(super) struct Transcript {
    /// `frozen` for the ASR model without adapters. With adapters: `nothing` without images, or the
    /// name whose images were used.
    images: String,
    text: String,
    /// The word alignment: edit kind (`hit`, `substitution`, `deletion`, `insertion`), reference
    /// word, hypothesis word.
    words: Vec<(&'static str, String, String)>,
    pub(super) errors: usize,
}

impl FromRun for AvformerRun {
    const TAB: ExplorerTab = ExplorerTab::Avformer;

    fn open(run: &Run) -> anyhow::Result<Self> {
        let run = run.folder.as_path();
        let mut recipe = Recipe::load(&run.join(RECIPE), &RecipeOptions::default())?;
        let data: AvformerData = recipe.data()?;
        anyhow::ensure!(
            data.is_world(),
            "{}: was trained on clips from files; transcribe them with \
             `engram transcribe … --adapters {}`",
            run.display(),
            run.display()
        );
        let mut adapted = AdaptedAsrModel::new(AsrModel::open(
            &AvformerRunConfig::read(run)?.asr_model,
            &Compute::cpu(),
        )?);
        adapted.add(ADAPTERS, run, None)?;
        adapted.activate(Some(ADAPTERS))?;
        let world = Audiovisual::new(data.names, data.world_seed)?;
        let (folder, adapted) = (run.to_path_buf(), Mutex::new(adapted));
        Ok(Self { folder, data, world, adapted, rescue: Lazy::default() })
    }
}

impl AvformerRun {
    pub(super) fn names(&self) -> SpokenNames {
        let frames = self.adapted().frames();
        let names = self.world.names().map(str::to_owned).collect();
        SpokenNames { names, views: NUM_EVALUATION_VIEWS, frames }
    }

    /// The audio of a clip as WAV, scaled down if it is too loud to play.
    pub(super) fn audio(&self, request: &ClipRequest) -> anyhow::Result<Vec<u8>> {
        let mut samples = self.clip(request)?.samples;
        let peak = samples.iter().fold(0.0f32, |maximum, sample| maximum.max(sample.abs()));
        if peak > MAX_PEAK {
            samples.iter_mut().for_each(|sample| *sample *= MAX_PEAK / peak);
        }
        wav(&samples)
    }

    /// A view of a name's image, as PNG.
    pub(super) fn view(&self, name: usize, view: usize) -> anyhow::Result<Vec<u8>> {
        png(&self.world.view(Split::Test, name, view, self.data.view_size)?)
    }

    /// The ASR model; the adapters are active.
    fn adapted(&self) -> MutexGuard<'_, AdaptedAsrModel> {
        self.adapted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A clip in which the images correct a word, for the first view of the page.
    pub(super) fn rescue(&self) -> anyhow::Result<&RescueSearch> {
        self.rescue.get(|| rescue::find(self))
    }

    /// Transcribes a clip with adapters and images of the name `images`; `None` for no images.
    fn adapted_transcript(
        &self,
        adapted: &AdaptedAsrModel,
        clip: &AudiovisualClip,
        images: Option<usize>,
    ) -> anyhow::Result<Transcript> {
        let (label, embeddings) = match images {
            None => ("nothing", Vec::new()),
            Some(name) => {
                let text = self.world.names().nth(name);
                let text = text.with_context(|| format!("there is no name {name}"))?;
                (text, self.embed_images_of(adapted, name)?)
            }
        };
        let adapted_clip = AdaptedClip { samples: clip.samples.clone(), embeddings };
        let text = adapted.transcribe(&[adapted_clip])?.pop();
        let text = text.context("the ASR model returned no transcript")?;
        Ok(Transcript::of(label, &clip.text, text))
    }

    /// Transcribes a clip with the frozen ASR model, and with adapters: without images, with images
    /// of the spoken name, and with images of another name.
    pub(super) fn transcribe(&self, request: &ClipRequest) -> anyhow::Result<ClipTranscripts> {
        let clip = self.clip(request)?;
        let mut adapted = self.adapted();
        adapted.activate(None)?;
        let options = TranscribeOptions { word_times: true, ..TranscribeOptions::default() };
        let frozen = adapted.asr_model().transcribe(&[&clip.samples], &[], &options);
        adapted.activate(Some(ADAPTERS))?;
        let frozen = frozen?.into_iter().next().context("the ASR model returned no transcript")?;
        let mut transcripts = vec![Transcript::of("frozen", &clip.text, frozen.text)];
        let with_frames = [None, Some(clip.name), Some(request.other)];
        let images = if adapted.frames() > 0 { &with_frames[..] } else { &with_frames[..1] };
        for images in images {
            transcripts.push(self.adapted_transcript(&adapted, &clip, *images)?);
        }
        let rescued = match &transcripts[..] {
            [_, without, with, ..] => with.rescued_from(without),
            _ => Vec::new(),
        };
        let AudiovisualClip { text, voice, samples, .. } = clip;
        let segment_length = samples.len().div_ceil(PEAKS).max(1);
        let peak = |segment: &[f32]| {
            let fold = |[low, high]: [f32; 2], sample: &f32| [low.min(*sample), high.max(*sample)];
            segment.iter().fold([0.0f32; 2], fold)
        };
        let peaks = samples.chunks(segment_length).map(peak).collect();
        let seconds = samples_to_seconds(samples.len());
        let words = frozen.words;
        Ok(ClipTranscripts { text, voice, seconds, peaks, words, transcripts, rescued })
    }

    fn embed_images_of(&self, adapted: &AdaptedAsrModel, name: usize) -> anyhow::Result<Vec<f32>> {
        let folder =
            tempfile::tempdir().context("cannot create a temporary folder for the images")?;
        let mut files = Vec::new();
        for view in 0..NUM_EVALUATION_VIEWS {
            let file = folder.path().join(format!("{view}.png"));
            output::write_new(&file, &self.view(name, view)?)?;
            files.push(file);
        }
        Ok(adapted.embed_images(&files)?)
    }

    fn clip(&self, request: &ClipRequest) -> anyhow::Result<AudiovisualClip> {
        let name_count = self.world.names().len();
        anyhow::ensure!(request.name < name_count, "there are {name_count} names");
        let is_in_range = request.snr_db.abs() <= MAX_SNR_DB;
        anyhow::ensure!(
            is_in_range,
            "snr_db is {}; expected -{MAX_SNR_DB} to {MAX_SNR_DB}",
            request.snr_db
        );
        let noise_settings = NoiseSettings {
            noise: request.noise.into_iter().collect(),
            snr_db: [request.snr_db; 2],
            masked: 0.0,
        };
        let number =
            request.take.checked_mul(name_count).and_then(|first| first.checked_add(request.name));
        let number = number.context("the index of the clip is too large")?;
        Ok(self.world.clip(Split::Test, number, &noise_settings))
    }
}

impl Transcript {
    fn of(images: &str, reference: &str, text: String) -> Self {
        let normaliser = Normaliser::WhisperEnglish;
        let (reference, hypothesis) =
            (normaliser.normalise(reference), normaliser.normalise(&text));
        let mut reference_words = reference.split_whitespace().map(str::to_owned);
        let mut hypothesis_words = hypothesis.split_whitespace().map(str::to_owned);
        let mut next_words = |in_reference: bool, in_hypothesis: bool| {
            let next_word = |exists: bool, words: &mut dyn Iterator<Item = String>| {
                exists.then(|| words.next()).flatten().unwrap_or_default()
            };
            (
                next_word(in_reference, &mut reference_words),
                next_word(in_hypothesis, &mut hypothesis_words),
            )
        };
        let mut errors = 0;
        let words = align(TokenUnit::Word, &reference, &hypothesis).into_iter().map(|edit| {
            let (kind, (reference, hypothesis)) = match edit {
                Edit::Hit => ("hit", next_words(true, true)),
                Edit::Substitution => ("substitution", next_words(true, true)),
                Edit::Deletion => ("deletion", next_words(true, false)),
                Edit::Insertion => ("insertion", next_words(false, true)),
            };
            errors += usize::from(kind != "hit");
            (kind, reference, hypothesis)
        });
        let words = words.collect();
        Self { images: images.to_owned(), text, words, errors }
    }

    /// Indices of the reference words that are correct here, and incorrect in the other transcript.
    fn rescued_from(&self, other: &Self) -> Vec<usize> {
        let pairs = self.correct_words().zip(other.correct_words()).enumerate();
        pairs.filter(|(_, (here, there))| *here && !there).map(|(index, _)| index).collect()
    }

    /// For each reference word, whether it is transcribed correctly.
    fn correct_words(&self) -> impl Iterator<Item = bool> + '_ {
        let reference = self.words.iter().filter(|(kind, ..)| *kind != "insertion");
        reference.map(|(kind, ..)| *kind == "hit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescued_words_are_correct_only_with_images() {
        let transcript = |text: &str| Transcript::of("", "a red fox", text.to_owned());
        let with = transcript("so a red fox");
        assert_eq!(with.rescued_from(&transcript("a box")), [1, 2]);
        assert_eq!(with.rescued_from(&transcript("a red fox now")), [0; 0]);
        assert_eq!(transcript("red").rescued_from(&with), [0; 0]);
    }
}
