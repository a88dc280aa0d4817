//! The [`Study`] of AVFormer.

use engram_data::messages::counted;
use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;
use engram_data::world::questions::Split;
use engram_data::world::speech::SAMPLE_RATE;
use engram_eval::wer::count_word_errors;
use engram_infer::asr::{AsrModel, open_avformer};
use engram_infer::encode::Encoder;
use engram_models::avformer::{Avformer, FrozenAsrModel, VisualTokens};
use engram_models::compute::Compute;
use engram_models::compute::to_host;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::AudioStates;
use rand::seq::{SliceRandom, index};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::super::reports::hash_of_clips;
use super::corpus::{ClipWithFrames, Corpus};
use super::embedding_store::EmbeddingStore;
use super::gallery::Gallery;
use super::scoring::Scoring;
use super::settings::{AvformerData, AvformerFeed, AvformerModel, OnError, ProjectionBiasInit};
use super::transcription::{EmbeddedClip, VisualInput};
use crate::card::USAGE;
use crate::log::{self, Progress};
use crate::recipe::{BatchSettings, Phase};
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study,
    StudyExtension, StudyResult,
};

/// The maximum number of random draws to find a clip with another topic.
const MAX_DRAWS: usize = 16;

/// A frozen ASR model with trainable adapters and visual tokens.
pub struct AvformerStudy {
    pub(super) data: AvformerData,
    pub(super) model: AvformerModel,
    pub(super) feeds: Vec<AvformerFeed>,
    batch: BatchSettings,
    quiet: bool,
    pub(super) corpus: Corpus,
    pub(super) asr_model: AsrModel,
    pub(super) frozen_model: FrozenAsrModel,
    pub(super) gallery: Option<Gallery>,
    pub(super) encoder_sha256: String,
    pub(super) encoder_inputs_sha256: String,
    validation: Vec<ClipWithFrames>,
    rehearsal: Vec<EmbeddedClip>,
    /// The embedded clips, by the index of the first phase that uses them.
    pub(super) embedded_clips: BTreeMap<usize, Vec<EmbeddedClip>>,
    /// The current phase.
    pub(super) phase: usize,
}

/// One clip of a batch, with its random choices.
#[derive(Debug, Clone, Copy)]
pub struct DrawnExample {
    /// The index among the phase's clips, or among the rehearsal clips.
    pub(super) clip: usize,
    /// Whether the clip is a rehearsal clip.
    is_rehearsal: bool,
    /// The index of the clip whose frames are shown.
    frames_of: usize,
    /// The seed that selects the frames.
    seed: u64,
}

impl AvformerStudy {
    /// The study of a recipe's settings. Reads the data and encodes all images.
    ///
    /// # Errors
    /// Errors of reading the data and the frozen models, and of an image that does not decode.
    pub fn new(
        data: AvformerData,
        model: AvformerModel,
        feeds: Vec<AvformerFeed>,
        batch: BatchSettings,
        compute: &Compute,
        quiet: bool,
    ) -> StudyResult<Self> {
        let mut asr_model = AsrModel::open(&model.asr_model, compute)?;
        if !model.language.is_empty() {
            let set = asr_model.set_language(&model.language);
            set.map_err(|error| format!("model.language: {error}"))?;
        }
        let frozen_model = asr_model.frozen()?.start_at(model.first_block)?;
        // If no phase shows frames, the test shows none either.
        let shows_frames = feeds.iter().any(|feed| feed.frames);
        // With `on_error = "skip"`, frames are searched even if none are shown. Clips without
        // usable frames are then skipped in all configurations of a grid.
        let searches_frames = shows_frames || data.on_error == OnError::Skip;
        let [searched_frames, frames] =
            [searches_frames, shows_frames].map(|is_used| if is_used { data.frames } else { 0 });
        if data.max_seconds > asr_model.max_seconds() {
            let (seconds, max) = (data.max_seconds, asr_model.max_seconds());
            return Err(
                format!("data.max_seconds = {seconds}: the ASR model accepts {max} s").into()
            );
        }
        let data = AvformerData { frames: searched_frames, ..data };
        let mut corpus = Corpus::load(&data, asr_model.min_samples(), quiet)?;
        corpus.check_texts(|text| asr_model.text_error(text))?;
        let data = AvformerData { frames, ..data };
        let (mut gallery, mut encoder_sha256) = (None, String::new());
        let mut encoder_inputs_sha256 = String::new();
        if data.frames > 0 {
            let encoder = Encoder::open(&model.image_encoder, &Compute::cpu())?;
            if !encoder.modalities().images {
                let remedy = "encodes only text; use CLIP, SigLIP, DINOv2 or MobileNetV2";
                return Err(format!("model.image_encoder: {} {remedy}", encoder.name()).into());
            }
            let mut progress = Progress::new(quiet, "images", 0, corpus.num_images() as u64);
            let mut store = EmbeddingStore::open(&data.cache, &encoder)?;
            let (embedded_images, broken) =
                Gallery::of(&corpus, &encoder, &mut store, &mut progress)?;
            corpus.skip_broken_images(broken)?;
            gallery = Some(embedded_images);
            encoder_sha256 = encoder.sha256().to_string();
            encoder_inputs_sha256 = encoder.inputs_sha256().to_string();
        } else if searched_frames > 0 {
            let broken = corpus.broken_images();
            corpus.skip_broken_images(broken)?;
        }
        for reason in corpus.skipped() {
            log::print(&format!("skipped: {reason}"));
        }
        let mut study = Self {
            validation: corpus.evaluated(Split::Validation, false)?,
            rehearsal: Vec::new(),
            embedded_clips: BTreeMap::new(),
            phase: 0,
            data,
            model,
            feeds,
            batch,
            quiet,
            corpus,
            asr_model,
            frozen_model,
            gallery,
            encoder_sha256,
            encoder_inputs_sha256,
        };
        if study.feeds.iter().any(|feed| feed.rehearsal > 0.0) {
            study.rehearsal = study.rehearsal()?;
        }
        Ok(study)
    }

    /// A progress bar over `clips` clips; hidden if the run is quiet.
    pub(super) fn progress(&self, label: &str, clips: usize) -> Progress {
        Progress::new(self.quiet, label, 0, clips as u64)
    }

    /// The width `E` of the image embeddings.
    pub fn image_width(&self) -> usize {
        // Without images the projection still exists, with an input width of 1.
        self.gallery.as_ref().map_or(1, |gallery| gallery.width)
    }

    /// Whether any phase shows frames.
    pub(crate) fn uses_frames(&self) -> bool {
        self.feeds.iter().any(|feed| feed.frames)
    }

    /// Loads trained parameters from a file into the frozen ASR model.
    ///
    /// # Errors
    /// If the file cannot be read, belongs to another model, or has values that are not finite.
    pub fn load(&self, weights: &Path) -> StudyResult<Avformer> {
        let config = self.model.avformer();
        Ok(open_avformer(self.frozen_model.clone(), &config, self.image_width(), weights)?)
    }

    /// The names and element counts of the parameters that are trained in a phase with these
    /// groups.
    ///
    /// # Errors
    /// Errors of building the model.
    pub fn trainable(&self, groups: Vec<ParameterGroup>) -> StudyResult<BTreeMap<String, usize>> {
        let builder = ParameterBuilder::new(0, groups, &Compute::cpu());
        self.avformer(&builder)?;
        let parameters = builder.finish()?;
        let sizes = parameters.trainable();
        Ok(sizes
            .map(|parameter| (parameter.name().to_string(), parameter.tensor().elem_count()))
            .collect())
    }

    /// Builds the frozen ASR model with adapters and projection.
    fn avformer(&self, builder: &ParameterBuilder) -> StudyResult<Avformer> {
        let (frozen_model, config) = (self.frozen_model.clone(), self.model.avformer());
        Ok(Avformer::new(frozen_model, &config, self.image_width(), builder)?)
    }

    /// The initial bias of the projection, `[D]`; `None` for zeros.
    fn projection_bias(&self) -> StudyResult<Option<Vec<f32>>> {
        let clips = match self.model.projection_bias_init {
            ProjectionBiasInit::Zeros => return Ok(None),
            ProjectionBiasInit::Mean => {
                let indices: Vec<usize> = (0..self.corpus.training_len().min(64)).collect();
                let feed = AvformerFeed::default();
                let clips = indices.par_iter().map(|index| self.corpus.training(*index, &feed));
                clips.collect::<Result<Vec<_>, _>>()?
            }
            ProjectionBiasInit::Silence => {
                let samples = vec![0.0; SAMPLE_RATE as usize];
                vec![ClipWithFrames { samples, ..ClipWithFrames::default() }]
            }
        };
        Ok(Some(to_host(&self.encoder_inputs(&clips)?.states.mean(0)?)?))
    }

    fn embedded_clip(&self, drawn: &DrawnExample) -> &EmbeddedClip {
        if drawn.is_rehearsal { &self.rehearsal[drawn.clip] } else { &self.clips()[drawn.clip] }
    }

    /// The indices of the frames to show, in ascending order.
    fn frames_to_show(&self, drawn: &DrawnExample) -> Vec<usize> {
        let frames = &self.clips()[drawn.frames_of].frames;
        let mut rng = ChaCha8Rng::seed_from_u64(drawn.seed);
        let count = self.data.frames.min(frames.len());
        let mut positions = index::sample(&mut rng, frames.len(), count).into_vec();
        positions.sort_unstable();
        positions.into_iter().map(|position| frames[position]).collect()
    }
}

impl Study for AvformerStudy {
    type Model = Avformer;
    type Batch = Vec<DrawnExample>;

    fn name(&self) -> &str {
        super::NAME
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::lower("wer")
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Self::Model> {
        let avformer = self.avformer(builder)?;
        let parameters = builder.finish()?;
        if let (Some(initial_bias), Some(bias)) =
            (self.projection_bias()?, parameters.get("projection.bias"))
        {
            bias.update(&mut |values| values.copy_from_slice(&initial_bias))?;
        }
        Ok(avformer)
    }

    fn begin_phase(&mut self, phase: &Phase) -> StudyResult<()> {
        self.prepare_phase(phase.index)
    }

    fn batches(&self, phase: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<Vec<DrawnExample>>> {
        let (feed, clips) = (&self.feeds[phase.index], self.clips());
        let mut order: Vec<usize> = (0..clips.len()).collect();
        order.shuffle(rng);
        let draw = |clip: usize| {
            let is_rehearsal = rng.random_bool(feed.rehearsal);
            let rehearsal_clip = rng.random_range(0..self.rehearsal.len().max(1));
            let is_mismatched = rng.random_bool(feed.mismatched) && !clips[clip].masked;
            let other_clips: Vec<usize> =
                (0..MAX_DRAWS).map(|_| rng.random_range(0..clips.len())).collect();
            let has_other_topic = |drawn: &usize| clips[*drawn].topic != clips[clip].topic;
            let other_clip = other_clips.into_iter().find(has_other_topic).unwrap_or(clip);
            DrawnExample {
                clip: if is_rehearsal { rehearsal_clip } else { clip },
                is_rehearsal,
                frames_of: if is_rehearsal || is_mismatched { other_clip } else { clip },
                seed: rng.random(),
            }
        };
        let drawn: Vec<DrawnExample> = order.into_iter().map(draw).collect();
        let size = self.batch.examples.max(1).min(drawn.len());
        Ok(drawn.chunks_exact(size).map(<[_]>::to_vec).collect())
    }

    fn loss(
        &self,
        avformer: &Avformer,
        batch: &Vec<DrawnExample>,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        let mode = step.mode();
        let batch_clips: Vec<&EmbeddedClip> =
            batch.iter().map(|drawn| self.embedded_clip(drawn)).collect();
        let states = self.states(&batch_clips, &self.feeds[self.phase])?;
        let feed = &self.feeds[step.phase.index];
        let lengths = states.iter().map(|states| states.dim(0)).collect::<Result<Vec<_>, _>>()?;
        let audio_states = AudioStates { states: Tensor::cat(&states, 0)?, lengths };
        let tokens = audio_states.states.dim(0)?;
        let encoded = if feed.frames {
            let frames: Vec<Vec<usize>> =
                batch.iter().map(|drawn| self.frames_to_show(drawn)).collect();
            let counts: Vec<usize> = frames.iter().map(Vec::len).collect();
            let embeddings = self.frame_embeddings(&frames.concat())?;
            let visual = VisualTokens { embeddings: &embeddings, counts: &counts };
            avformer.encode(audio_states, Some(&visual), &mode)?
        } else {
            avformer.encode(audio_states, None, &mode)?
        };
        let texts: Vec<Vec<u32>> = batch_clips.iter().map(|clip| clip.tokens.clone()).collect();
        let losses = self.frozen_model.text_losses(&encoded, &texts, &mode)?;
        let audio = &encoded.audio;
        // A clip that is too short for its text has an infinite loss, so it is excluded.
        let feasible: Vec<u32> = match &self.frozen_model {
            FrozenAsrModel::Whisper { .. } => (0..batch.len() as u32).collect(),
            FrozenAsrModel::Conformer(model) => (0..batch.len() as u32)
                .filter(|i| model.is_feasible(audio.lengths[*i as usize], &texts[*i as usize]))
                .collect(),
        };
        let mut loss = match feasible.len() {
            0 => (audio.states.sum_all()? * 0.0)?,
            count if count == batch.len() => losses.mean_all()?,
            _ => losses
                .index_select(&Tensor::new(feasible.as_slice(), losses.device())?, 0)?
                .mean_all()?,
        };
        let mut parts = Vec::new();
        if let Some((distillation_loss, distance)) =
            self.distance_loss(&batch_clips, audio, feed)?
        {
            loss = (loss + distillation_loss)?;
            parts.push(("state_distance".into(), distance));
        }
        let too_short = 1.0 - feasible.len() as f64 / batch.len() as f64;
        if matches!(self.frozen_model, FrozenAsrModel::Conformer(_)) {
            parts.push(("too_short".into(), too_short));
        }
        Ok(BatchLoss { loss, examples: feasible.len(), tokens, parts })
    }

    fn evaluate(
        &self,
        avformer: &Avformer,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<Evaluation> {
        let scoring = Scoring::of(&self.data);
        let references: Vec<&str> = self.validation.iter().map(|clip| clip.text.as_str()).collect();
        let references = scoring.normalise_all(&references);
        let (visual_inputs, names) = if self.feeds[context.phase.index].frames {
            (&[VisualInput::Right, VisualInput::Nothing][..], &["wer", "wer_without_frames"][..])
        } else {
            (&[VisualInput::Nothing][..], &["wer"][..])
        };
        let mut metrics = Vec::new();
        // A progress bar would interrupt the trainer's.
        let mut no_progress = Progress::new(true, "", 0, 0);
        let hypotheses = self.transcribe(
            avformer,
            &self.validation,
            visual_inputs,
            &mut no_progress,
            context.stop,
        )?;
        for (name, hypotheses) in names.iter().zip(hypotheses) {
            let hypotheses = scoring.normalise_all(&hypotheses);
            metrics.push((
                (*name).to_string(),
                count_word_errors(&references, &hypotheses)?.total.error_rate(),
            ));
        }
        let counts = vec![("validation".into(), self.validation.len() as u64)];
        Ok(Evaluation { metrics, counts })
    }

    fn inputs(&self) -> StudyResult<Inputs> {
        let mut inputs = Inputs::new();
        let clips = self.validation.iter().map(|clip| (&*clip.text, &*clip.samples));
        inputs.insert("validation".into(), hash_of_clips(clips));
        if let Some(gallery) = &self.gallery {
            inputs.insert("image embeddings".into(), gallery.sha256());
        }
        inputs.extend(self.corpus.inputs()?);
        inputs.insert("asr_model".into(), self.asr_model.weights_sha256()?);
        Ok(inputs)
    }

    fn card(&self) -> Vec<(String, String)> {
        let source = if self.data.is_world() {
            format!("{} of the embedded world, in noise", counted(self.data.names, "name"))
        } else {
            self.data.train.clone()
        };
        let models = format!("--model {} --adapters RUN", self.model.asr_model);
        vec![
            ("Trained on".into(), source),
            ("Skipped clips".into(), self.corpus.skipped().len().to_string()),
            ("Frozen ASR model".into(), self.model.asr_model.clone()),
            ("Frozen image encoder".into(), self.model.image_encoder.clone()),
            (USAGE.into(), format!("`engram transcribe clips.jsonl {models} --out hyp.tsv`")),
        ]
    }
}

impl StudyExtension for AvformerStudy {}
