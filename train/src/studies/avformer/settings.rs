//! Settings of the study: `[data]`, `[model]` and the feed of a phase.

use engram_data::audio::noise::NoiseKind;
use engram_data::world::audiovisual::{MAX_SNR_DB, NoiseSettings};
use engram_eval::normalise::Normaliser;
use engram_infer::asr::{MAX_FRAMES, MAX_SILENCE_SECONDS};
use engram_models::adapter::AdapterConfig;
use engram_models::avformer::{AvformerConfig, ProjectionConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::checks::{
    Invalid, at_least_zero, count, first, fraction, invalid_if, manifests, positive,
};
use super::evaluate::system_name;
use super::transcription::VisualInput;
use crate::recipe::{is_default, table};

/// The number of views of each name's image in validation and test.
pub const NUM_EVALUATION_VIEWS: usize = 8;
/// The default of `state_cache_gb`.
const STATE_CACHE_GB: f64 = 8.0;
/// The default of `distillation`. At this weight, rehearsal keeps the accuracy of Whisper tiny.en
/// on clean speech (docs/explanation/avformer.md).
const DISTILLATION: f64 = 40.0;
/// The default of `normalizer`: ASR models differ in case and punctuation.
const ENGLISH: &str = "whisper-en";
/// The maximum edge of a view, in pixels.
const MAX_VIEW_SIZE: usize = 1024;
/// The maximum number of clips, and of names, in the embedded world.
const MAX_CLIPS: usize = 1_000_000;
/// All visual inputs, in the order in which they are tested.
const ALL_INPUTS: [VisualInput; 4] =
    [VisualInput::Nothing, VisualInput::Right, VisualInput::Wrong, VisualInput::Zero];
/// The maximum number of views of a name.
const MAX_VIEWS: usize = 1_000;

table! {
    /// `[data]`: speech clips with their frames.
    pub struct AvformerData {
        /// Manifest (JSON lines) of training clips with texts and frames; empty for the embedded
        /// world.
        pub train: String = String::new(),
        /// Manifest of validation clips, measured during training.
        pub validation: String = String::new(),
        /// Manifest of test clips, measured at the end.
        pub test: String = String::new(),
        /// Manifest of clean speech for rehearsal: training on it keeps adapters from worsening the
        /// transcripts of clean speech. The texts should be the frozen ASR model's own transcripts.
        /// Empty for none.
        pub rehearsal: String = String::new(),
        /// Speeds of the `rehearsal` clips, each clip at each speed; 1 is the original speed.
        pub rehearsal_speeds: Vec<f64> = vec![0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15],
        /// Manifest of other speech, transcribed at the end with and without adapters, to measure
        /// the effect of adapters there; empty for none.
        pub general_speech: String = String::new(),
        /// What to do with a clip without frames, with frames outside its time, or with an
        /// unreadable image or audio file.
        pub on_error: OnError = OnError::Stop,
        /// Folder that caches image embeddings and transcripts of the frozen ASR model between
        /// runs, by content; empty for none.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(extend("default" = ""))]
        pub cache: String = String::new(),
        /// Gigabytes of memory to cache the input of the first encoder block for each clip. Beyond
        /// this limit, clips are read and embedded in each step.
        #[serde(skip_serializing_if = "is_default_size")]
        #[schemars(extend("default" = STATE_CACHE_GB))]
        pub state_cache_gb: f64 = STATE_CACHE_GB,
        /// Frames shown per clip, one visual token each.
        pub frames: usize = 4,
        /// Seconds of silence after each clip, in training, test and use. Silence helps Whisper
        /// find the end of longer speech; single names need none.
        pub silence_seconds: f64 = 0.0,
        /// The longest clip in training or test, in seconds; memory grows with its square.
        pub max_seconds: f64 = 20.0,
        /// Whether the training clips of a manifest get the noise of a phase, like those of the
        /// embedded world, with `noise` and `world_seed`. Masking replaces the whole clip.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("default" = false))]
        pub add_noise: bool = false,
        /// The normaliser of texts before words are compared, as in `engram eval wer`.
        #[serde(skip_serializing_if = "is_english")]
        #[schemars(extend("default" = ENGLISH))]
        pub normalizer: String = ENGLISH.to_owned(),
        /// Beginnings of texts that do not count, such as the articles `un ` and `l'`: people may
        /// say a name without its article. They are removed from references and from transcripts.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("default" = []))]
        pub articles: Vec<String> = Vec::new(),
        /// Embedded world: the seed of voices, noise and views.
        pub world_seed: u64 = 1,
        /// Embedded world: the number of names spoken, of 138.
        pub names: usize = 138,
        /// Embedded world: training clips.
        pub clips: usize = 3_312,
        /// Embedded world: validation clips.
        pub validation_clips: usize = 138,
        /// Embedded world: test clips, each transcribed with and without noise.
        pub test_clips: usize = 1_104,
        /// Embedded world: training views of each name's image.
        pub views: usize = 16,
        /// Embedded world: the edge of a view, in pixels.
        pub view_size: u32 = 48,
        /// Frames with which test clips are transcribed: their own, those of another clip, zero
        /// embeddings, or none. Without visual tokens in training, clips are transcribed without
        /// frames.
        #[serde(skip_serializing_if = "is_all_inputs")]
        #[schemars(extend("default" = ALL_INPUTS))]
        pub test_frames: Vec<VisualInput> = ALL_INPUTS.to_vec(),
        /// Embedded world: noise in training and validation.
        pub noise: Vec<NoiseKind> = vec![NoiseKind::Coloured],
        /// Embedded world: noise in the test.
        pub test_noise: Vec<NoiseKind> = vec![NoiseKind::Bands],
        /// Embedded world: the lowest and highest signal-to-noise ratio in validation and test, in
        /// dB.
        pub test_snr_db: [f32; 2] = [-16.0, -8.0],
        /// Embedded world: signal-to-noise ratios in dB at which the first `sweep_clips` test clips
        /// are also transcribed.
        pub sweep_snr_db: Vec<f32> = vec![20.0, 15.0, 10.0, 5.0, 0.0, -4.0, -8.0, -12.0, -16.0],
        /// Embedded world: test clips in the sweep; 0 for none.
        pub sweep_clips: usize = 276,
        /// Whether to test the unmodified ASR model too, as in `engram transcribe`. Whisper
        /// then pads each clip to 30 seconds and writes no text where it detects no speech, which
        /// reduces insertions. Adapted models always write the most likely text.
        pub frozen_baseline: bool = true,
    }
}

/// What to do with a clip that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// End the run with an error that names the clip.
    Stop,
    /// Skip the clip with a warning, and count it.
    Skip,
}

fn is_english(normalizer: &str) -> bool {
    normalizer == ENGLISH
}

fn is_all_inputs(inputs: &[VisualInput]) -> bool {
    inputs == ALL_INPUTS
}

impl AvformerData {
    /// Whether the data are the embedded world.
    pub fn is_world(&self) -> bool {
        self.train.is_empty()
    }

    /// Whether `test_frames` has the visual input of a system; true for systems without one.
    pub(crate) fn tests(&self, system: &str) -> bool {
        let input = ALL_INPUTS.into_iter().find(|input| system_name(*input) == system);
        input.is_none_or(|input| self.test_frames.contains(&input))
    }

    /// The audio conditions of the embedded world in validation and test.
    pub(crate) fn test_noise_settings(&self, noise: &[NoiseKind]) -> NoiseSettings {
        NoiseSettings { noise: noise.to_vec(), snr_db: self.test_snr_db, masked: 0.0 }
    }

    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        let (is_world, silence) = (self.is_world(), self.silence_seconds);
        let is_invalid_speed = |speed: &&f64| !(0.5..=2.0).contains(*speed);
        let is_invalid_ratio = |snr_db: &&f32| !is_range([**snr_db; 2]);
        let general = first([
            manifests(&self.train, &self.validation, &self.test),
            invalid_if(
                self.test_frames.is_empty(),
                "test_frames",
                "is empty; give at least one, such as `right`",
            ),
            positive("max_seconds", self.max_seconds),
            Normaliser::parse(&self.normalizer)
                .err()
                .map(|error| ("normalizer", error.to_string())),
            self.articles
                .iter()
                .find(|article| article.trim().is_empty())
                .map(|_| ("articles", "has an empty article".to_owned())),
            invalid_if(
                !(0.0..=MAX_SILENCE_SECONDS).contains(&silence),
                "silence_seconds",
                format!("{silence} is not between 0 and {MAX_SILENCE_SECONDS} seconds"),
            ),
            at_least_zero("state_cache_gb", self.state_cache_gb),
            self.rehearsal_speeds
                .iter()
                .find(is_invalid_speed)
                .map(|speed| ("rehearsal_speeds", format!("{speed} is not between 0.5 and 2"))),
            invalid_if(
                self.rehearsal_speeds.is_empty(),
                "rehearsal_speeds",
                "needs at least one speed",
            ),
            invalid_if(!is_range(self.test_snr_db), "test_snr_db", range_error()),
            self.sweep_snr_db.iter().find(is_invalid_ratio).map(|snr_db| {
                ("sweep_snr_db", format!("{snr_db} is not from -{MAX_SNR_DB} to {MAX_SNR_DB} dB"))
            }),
            invalid_if(
                self.frames > MAX_FRAMES,
                "frames",
                format!("are {}; must be at most {MAX_FRAMES}", self.frames),
            ),
        ]);
        let views = self.views.min(NUM_EVALUATION_VIEWS);
        let reason = format!(
            "exceed the number of views: {views} (data.views in training, {NUM_EVALUATION_VIEWS} in \
             the test)"
        );
        let of_world = || {
            first([
                invalid_if(
                    self.noise.is_empty() || self.test_noise.is_empty(),
                    "noise",
                    "and `test_noise` need at least one kind",
                ),
                count("names", self.names, MAX_CLIPS),
                count("clips", self.clips, MAX_CLIPS),
                count("validation_clips", self.validation_clips, MAX_CLIPS),
                count("test_clips", self.test_clips, MAX_CLIPS),
                count("views", self.views, MAX_VIEWS),
                count("view_size", self.view_size as usize, MAX_VIEW_SIZE),
                invalid_if(self.frames > views, "frames", reason),
            ])
        };
        general.or_else(|| if is_world { of_world() } else { None })
    }
}

/// `[model]`: the frozen models, and the parts trained on top.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AvformerModel {
    /// The frozen ASR model: `hf://owner/name`, a folder, or a run of the speech study.
    pub asr_model: String,
    /// The language of speech for a multilingual Whisper model, such as `en`; empty for other models.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("default" = ""))]
    pub language: String,
    /// The frozen image encoder: `hf://owner/name`, a folder, or a run of the clip study.
    pub image_encoder: String,
    /// The first encoder block with an adapter, from 0; visual tokens come before it. The blocks
    /// before run once per clip, which is faster. Only for Whisper models.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = 0))]
    pub first_block: usize,
    /// The adapters after the ASR model's blocks.
    pub adapters: AdapterConfig,
    /// The projection of image embeddings to tokens.
    pub projection: ProjectionConfig,
    /// The initial bias of the projection.
    pub projection_bias_init: ProjectionBiasInit,
}

/// The initial bias of the projection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProjectionBiasInit {
    /// Zeros.
    #[default]
    Zeros,
    /// The mean of the audio tokens of training clips.
    Mean,
    /// The mean of the audio tokens of one second of silence.
    Silence,
}

impl AvformerModel {
    /// The configuration of the parts added to the ASR model.
    pub fn avformer(&self) -> AvformerConfig {
        let Self { adapters, projection, first_block, .. } = self.clone();
        AvformerConfig { adapters, projection, first_block }
    }

    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        let adapters = self.adapters.validate().err().map(|error| ("adapters.bottleneck", error));
        let invalid =
            adapters.or_else(|| Some(("projection.init_std", self.projection.validate().err()?)));
        invalid.map(|(key, error)| (key, format!("is invalid: {error}")))
    }
}

table! {
    /// `[phase.feed]`: the training examples of a phase.
    pub struct AvformerFeed {
        /// Whether frames are shown.
        pub frames: bool = false,
        /// The share of clips with frames of another name or text, as in videos whose frames do not
        /// show the spoken words. Clips whose name is masked are never mismatched.
        pub mismatched: f64 = 0.0,
        /// The share of examples from `data.rehearsal`. If frames are shown, these examples get the
        /// frames of another clip.
        pub rehearsal: f64 = 0.0,
        /// The weight of the distance between the output states of the adapted and the frozen
        /// encoder, in the loss of a rehearsal clip. Without effect if frames are shown.
        pub distillation: f64 = DISTILLATION,
        /// The share of the clips to train on.
        pub share: f64 = 1.0,
        /// Embedded world: the lowest and highest signal-to-noise ratio, in dB.
        pub snr_db: [f32; 2] = [-18.0, -2.0],
        /// Embedded world: the share of clips without noise.
        pub clean: f64 = 0.1,
        /// Embedded world: the share of noisy clips whose name is replaced by noise.
        pub masked: f64 = 0.0,
    }
}

impl AvformerFeed {
    /// Whether two feeds have the same clips with the same audio.
    pub(crate) fn has_same_audio(&self, other: &Self) -> bool {
        let key = |feed: &Self| (feed.snr_db, feed.clean, feed.masked, feed.share);
        key(self) == key(other)
    }

    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self, data: &AvformerData) -> Invalid {
        first([
            fraction("mismatched", self.mismatched),
            fraction("rehearsal", self.rehearsal),
            fraction("share", self.share),
            fraction("clean", self.clean),
            fraction("masked", self.masked),
            positive("share", self.share),
            at_least_zero("distillation", self.distillation),
            invalid_if(
                self.rehearsal > 0.0 && data.rehearsal.is_empty(),
                "rehearsal",
                "needs the manifest `data.rehearsal`",
            ),
            invalid_if(
                self.frames && data.frames == 0,
                "frames",
                "needs frames, but `data.frames` is 0",
            ),
            invalid_if(
                self.masked > 0.0 && !self.frames,
                "masked",
                "removes names from the audio, which needs `frames`",
            ),
            invalid_if(!is_range(self.snr_db), "snr_db", range_error()),
        ])
    }
}

/// Whether a cache size is the default. The size does not affect training, so only other sizes are
/// written to the recipe.
fn is_default_size(gigabytes: &f64) -> bool {
    *gigabytes == STATE_CACHE_GB
}

/// Whether these are the lowest and the highest ratio of a valid range, in dB.
fn is_range([low, high]: [f32; 2]) -> bool {
    low <= high && low >= -MAX_SNR_DB && high <= MAX_SNR_DB
}

/// The reason for an invalid range of ratios.
fn range_error() -> String {
    format!("needs the lowest and the highest ratio, from -{MAX_SNR_DB} to {MAX_SNR_DB} dB")
}
