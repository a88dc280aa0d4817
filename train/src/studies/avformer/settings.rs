//! What a recipe of the study says in `[data]`, `[model]` and in the feed of a phase.

use engram_data::audio::noise::NoiseKind;
use engram_data::world::audiovisual::{Hearing, MOST_SNR_DB};
use engram_models::adapter::AdapterConfig;
use engram_models::avformer::{AvformerConfig, ProjectionConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recognise::{MOST_FRAMES, MOST_SILENCE};

/// Views of each name's picture in validation and test.
pub const EVALUATED_VIEWS: usize = 8;
/// Gigabytes of states that are kept.
const STATES_GB: f64 = 8.0;
/// The weight at which rehearsed clips keep tiny.en as it was (docs/avformer.md).
const DISTILLATION: f64 = 40.0;
/// The largest edge of a view, in pixels.
const MOST_PIXELS: usize = 1024;
/// The most clips and names of the embedded world.
const MOST_CLIPS: usize = 1_000_000;
/// The most views of a name.
const MOST_VIEWS: usize = 1_000;

/// `[data]`: clips of speech with their frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AvformerData {
    /// A manifest (JSON lines) of clips with texts and frames to train on; empty for the embedded world.
    pub train: String,
    /// A manifest of clips that are measured while it trains.
    pub validation: String,
    /// A manifest of clips that are measured at the end.
    pub test: String,
    /// A manifest of clean speech with texts, as the frozen recogniser writes them, that phases
    /// rehearse; empty for none.
    pub rehearsal: String,
    /// Speeds at which clips of `rehearsal` are heard, each at all of them; 1 is as it was recorded.
    pub rehearsal_speeds: Vec<f64>,
    /// A manifest of other speech that is measured with and without adapters at the end; empty for none.
    pub kept: String,
    /// What is done about clips without frames, with frames outside their time, or with a frame or a sound
    /// that cannot be read.
    pub on_error: OnError,
    /// A folder in which embeddings of pictures and texts of the frozen recogniser are kept for other
    /// runs, by content; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("default" = ""))]
    pub cache: String,
    /// Gigabytes of memory for what lies before the first block of a phase's clips; where that is full,
    /// other clips are read and embedded in each step.
    #[serde(skip_serializing_if = "is_usual_size")]
    #[schemars(extend("default" = STATES_GB))]
    pub states_gb: f64,
    /// Frames that are shown of each clip, a visual token each.
    pub frames: usize,
    /// Seconds of silence behind each clip, in training, test and use. With one Whisper tells better where longer
    /// speech ends; names need none.
    pub silence: f64,
    /// The longest clip that is learnt from or measured, in seconds: memory grows with its square.
    pub max_seconds: f64,
    /// Of the embedded world: the seed of voices, noise and views.
    pub world_seed: u64,
    /// Of the embedded world: names that are said, of 138.
    pub names: usize,
    /// Of the embedded world: clips to train on.
    pub clips: usize,
    /// Of the embedded world: clips of validation.
    pub validation_clips: usize,
    /// Of the embedded world: clips of the test, noisy and once more clean.
    pub test_clips: usize,
    /// Of the embedded world: views of each name's picture to train on.
    pub views: usize,
    /// Of the embedded world: the edge of a view, in pixels.
    pub view_size: u32,
    /// Of the embedded world: noise that is heard in training and validation.
    pub noise: Vec<NoiseKind>,
    /// Of the embedded world: noise that is heard in the test.
    pub test_noise: Vec<NoiseKind>,
    /// Of the embedded world: the lowest and highest ratio of speech over noise in validation and test,
    /// in dB.
    pub test_snr_db: [f32; 2],
    /// Of the embedded world: ratios at which the first `sweep_clips` of the test are measured besides, in
    /// dB.
    pub sweep_snr_db: Vec<f32>,
    /// Of the embedded world: clips of the sweep, of those of the test; 0 for none.
    pub sweep_clips: usize,
    /// Whether the test is heard by the frozen recogniser too, as `engram predict --recogniser` hears it:
    /// Whisper with 30 seconds for each clip, and without a text where it says that nobody speaks, which
    /// gives it fewer insertions. Adapted recognisers always write the likeliest text.
    pub frozen_baseline: bool,
}

/// What is done about a clip that cannot be heard or seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The run ends with the clip's name.
    Stop,
    /// The clip is left out, told and counted.
    Skip,
}

impl Default for AvformerData {
    fn default() -> Self {
        Self {
            train: String::new(),
            validation: String::new(),
            test: String::new(),
            rehearsal: String::new(),
            rehearsal_speeds: vec![0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15],
            kept: String::new(),
            on_error: OnError::Stop,
            cache: String::new(),
            states_gb: STATES_GB,
            frames: 4,
            silence: 0.0,
            max_seconds: 20.0,
            world_seed: 1,
            names: 138,
            clips: 3_312,
            validation_clips: 138,
            test_clips: 1_104,
            views: 16,
            view_size: 48,
            noise: vec![NoiseKind::Coloured],
            test_noise: vec![NoiseKind::Bands],
            test_snr_db: [-16.0, -8.0],
            sweep_snr_db: vec![20.0, 15.0, 10.0, 5.0, 0.0, -4.0, -8.0, -12.0, -16.0],
            sweep_clips: 276,
            frozen_baseline: true,
        }
    }
}

impl AvformerData {
    /// Whether the embedded world is what is learnt.
    pub fn is_world(&self) -> bool {
        self.train.is_empty()
    }

    /// What is heard of the embedded world in validation and, with other noise, in the test.
    pub fn test_hearing(&self, noise: &[NoiseKind]) -> Hearing {
        Hearing { noise: noise.to_vec(), snr_db: self.test_snr_db, blanked: 0.0 }
    }

    /// A value that cannot be, and why.
    pub fn conflict(&self) -> Option<(&'static str, String)> {
        if !self.is_world() && (self.validation.is_empty() || self.test.is_empty()) {
            return Some(("train", "needs `validation` and `test` beside it".into()));
        }
        if self.is_world() && !(self.validation.is_empty() && self.test.is_empty()) {
            let key = if self.test.is_empty() { "validation" } else { "test" };
            return Some((key, "is given, but `data.train` is empty".into()));
        }
        if !(self.max_seconds > 0.0 && self.max_seconds.is_finite()) {
            return Some(("max_seconds", format!("{} is no length", self.max_seconds)));
        }
        if !(0.0..=MOST_SILENCE).contains(&self.silence) {
            let reason = format!("{} is no length up to {MOST_SILENCE} seconds", self.silence);
            return Some(("silence", reason));
        }
        if !(self.states_gb >= 0.0 && self.states_gb.is_finite()) {
            return Some(("states_gb", format!("{} is no size", self.states_gb)));
        }
        let is_speed = |speed: &&f64| !(0.5..=2.0).contains(*speed);
        if let Some(speed) = self.rehearsal_speeds.iter().find(is_speed) {
            return Some(("rehearsal_speeds", format!("{speed} is not between 0.5 and 2")));
        }
        if self.rehearsal_speeds.is_empty() {
            return Some(("rehearsal_speeds", "wants one speed at least".into()));
        }
        if !is_range(self.test_snr_db) {
            return Some(("test_snr_db", wants_range()));
        }
        if let Some(ratio) = self.sweep_snr_db.iter().find(|ratio| !is_range([**ratio; 2])) {
            let reason = format!("has {ratio}, which is no ratio within {MOST_SNR_DB} dB of 0");
            return Some(("sweep_snr_db", reason));
        }
        if self.is_world() && (self.noise.is_empty() || self.test_noise.is_empty()) {
            return Some(("noise", "and `test_noise` want one kind at least".into()));
        }
        let counts = [
            ("names", self.names, MOST_CLIPS),
            ("clips", self.clips, MOST_CLIPS),
            ("validation_clips", self.validation_clips, MOST_CLIPS),
            ("test_clips", self.test_clips, MOST_CLIPS),
            ("views", self.views, MOST_VIEWS),
            ("view_size", self.view_size as usize, MOST_PIXELS),
        ];
        let is_wrong = |(_, count, most): &&(_, usize, usize)| !(1..=*most).contains(count);
        let wrong = counts.iter().find(is_wrong).filter(|_| self.is_world());
        if let Some((key, count, most)) = wrong {
            return Some((*key, format!("is {count}, not 1 to {most}")));
        }
        if self.frames > MOST_FRAMES {
            return Some(("frames", format!("are more than {MOST_FRAMES}")));
        }
        if self.is_world() && self.frames > self.views.min(EVALUATED_VIEWS) {
            let most = self.views.min(EVALUATED_VIEWS);
            let reason = format!(
                "are more than there are views: {most} (data.views in training, {EVALUATED_VIEWS} in the test)"
            );
            return Some(("frames", reason));
        }
        None
    }
}

/// `[model]`: what stays as it is, and what is trained beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AvformerModel {
    /// The recogniser that stays as it is: `hf://owner/name`, a folder, or a run of the speech study.
    pub recogniser: String,
    /// The image encoder that stays as it is: `hf://owner/name`, a folder, or a run of the clip study.
    pub image_encoder: String,
    /// The adapters behind the recogniser's blocks.
    pub adapters: AdapterConfig,
    /// The map of pictures to tokens.
    pub projection: ProjectionConfig,
    /// What a fresh token of a picture is like.
    pub first_token: FirstToken,
}

/// The bias of a fresh map of pictures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstToken {
    /// Zeros.
    #[default]
    Zeros,
    /// The mean of the tokens of training clips.
    Mean,
    /// The mean of the tokens of a second of silence.
    Silence,
}

impl AvformerModel {
    /// What is added to the recogniser.
    pub fn avformer(&self) -> AvformerConfig {
        AvformerConfig { adapters: self.adapters.clone(), projection: self.projection.clone() }
    }

    /// A value that cannot be, and why.
    pub fn conflict(&self) -> Option<(&'static str, String)> {
        let adapters = self.adapters.validate().err().map(|error| ("adapters.bottleneck", error));
        let wrong =
            adapters.or_else(|| Some(("projection.init_std", self.projection.validate().err()?)));
        wrong.map(|(key, error)| (key, format!("cannot be: {error}")))
    }
}

/// `[phase.feed]`: what a phase is fed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AvformerFeed {
    /// Whether frames are shown.
    pub pictures: bool,
    /// The share of clips that see frames of another name or text, as videos do that do not show what is
    /// said; never those whose name is not heard.
    pub mismatched: f64,
    /// The share of examples that are of `data.rehearsal`; where frames are shown, those of another
    /// clip.
    pub rehearsal: f64,
    /// The weight, in the loss of a clip that is rehearsed, of the distance of its encoder states from those of the
    /// frozen recogniser. Where frames are shown there is none.
    pub distillation: f64,
    /// The share of the clips that is learnt from.
    pub share: f64,
    /// Of the embedded world: the lowest and highest ratio of speech over noise, in dB.
    pub snr_db: [f32; 2],
    /// Of the embedded world: the share of clips without noise.
    pub clean: f64,
    /// Of the embedded world: the share of noisy clips whose name is not heard at all.
    pub blanked: f64,
}

impl Default for AvformerFeed {
    fn default() -> Self {
        Self {
            pictures: false,
            mismatched: 0.0,
            rehearsal: 0.0,
            distillation: DISTILLATION,
            share: 1.0,
            snr_db: [-18.0, -2.0],
            clean: 0.1,
            blanked: 0.0,
        }
    }
}

impl AvformerFeed {
    /// Whether clips of these two feeds are the same, and sound the same.
    pub fn sounds_like(&self, other: &Self) -> bool {
        let key = |feed: &Self| (feed.snr_db, feed.clean, feed.blanked, feed.share);
        key(self) == key(other)
    }

    /// A value that cannot be, and why.
    pub fn conflict(&self, data: &AvformerData) -> Option<(&'static str, String)> {
        let shares = [
            ("mismatched", self.mismatched),
            ("rehearsal", self.rehearsal),
            ("share", self.share),
            ("clean", self.clean),
            ("blanked", self.blanked),
        ];
        if let Some((key, share)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            return Some((key, format!("{share} is no share")));
        }
        if self.share == 0.0 {
            return Some(("share", "leaves no clip".into()));
        }
        if !(self.distillation >= 0.0 && self.distillation.is_finite()) {
            return Some(("distillation", format!("{} is no weight", self.distillation)));
        }
        if self.rehearsal > 0.0 && data.rehearsal.is_empty() {
            return Some(("rehearsal", "needs the manifest `data.rehearsal`".into()));
        }
        if self.pictures && data.frames == 0 {
            return Some(("pictures", "shows frames, of which `data.frames` has none".into()));
        }
        if self.blanked > 0.0 && !self.pictures {
            let reason = "takes names away that nothing else tells where no `pictures` are shown";
            return Some(("blanked", reason.into()));
        }
        (!is_range(self.snr_db)).then(|| ("snr_db", wants_range()))
    }
}

/// Not a part of what is learnt: it is written where it differs.
fn is_usual_size(gigabytes: &f64) -> bool {
    *gigabytes == STATES_GB
}

fn is_range([low, high]: [f32; 2]) -> bool {
    low <= high && low >= -MOST_SNR_DB && high <= MOST_SNR_DB
}

fn wants_range() -> String {
    format!("wants the lowest and the highest ratio, within {MOST_SNR_DB} dB of 0")
}
