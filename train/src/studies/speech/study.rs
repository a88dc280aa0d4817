//! The [`Study`] of the Conformer ASR model.

use candle_core::{DType, Device, Tensor};
use engram_data::audio::noise::NoiseKind;
use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_data::world::questions::Split;
use engram_data::world::speech::SAMPLE_RATE;
use engram_eval::wer::count_word_errors;
use engram_infer::digest;
use engram_models::adapter::Adapters;
use engram_models::conformer::ConformerDecoder;
use engram_models::kernels::Mode;
use engram_models::params::ParameterBuilder;
use engram_models::speech::AudioStates;
use engram_models::speech::best_rq::MaskedStates;
use engram_models::speech::log_mel::{Frames, LogMel};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::super::reports::{hash_of_clips, rank};
use super::corpus::{Corpus, Utterance};
use super::model::SpeechModules;
use super::settings::{Objective, SpeechData, SpeechFeed, SpeechModel};
use crate::Stop;
use crate::card::USAGE;
use crate::recipe::{BatchSettings, Phase};
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study,
    StudyExtension, StudyResult,
};

/// Utterances per forward pass in evaluation.
const UTTERANCES_PER_PASS: usize = 16;
/// The length of noise-only clips, in samples: half a second to six seconds.
const NOISE_ONLY: std::ops::Range<usize> = SAMPLE_RATE as usize / 2..6 * SAMPLE_RATE as usize;
/// The seed of the evaluation masks.
const MASK_SEED: u64 = 1;
/// The metric of BEST-RQ: the share of masked states whose code is predicted correctly.
const MASKED_ACCURACY: &str = "masked_accuracy";

/// Trains an ASR model on a corpus.
pub struct SpeechStudy {
    data: SpeechData,
    pub(super) model: SpeechModel,
    feeds: Vec<SpeechFeed>,
    batch: BatchSettings,
    corpus: Corpus,
    pub(super) tokenizer: SpeechTokenizer,
    mel: LogMel,
    validation: Vec<Utterance>,
}

/// A batch of utterances: the clip index of each, and the seed of its augmentation.
pub type Batch = Vec<(usize, u64)>;

/// The spectrogram frames of a clip, with its target: codes (BEST-RQ) or the tokens of its text.
type TrainingExample = (Frames, Vec<u32>);

/// The frames of several clips, concatenated.
struct Packed {
    /// Frames `[F, M]`.
    frames: Tensor,
    /// The number of frames of each clip.
    lengths: Vec<usize>,
}

impl SpeechStudy {
    /// The study of a recipe's settings, with its data.
    ///
    /// # Errors
    /// Errors of reading the data. If a phase trains on texts: a text with a character that is not
    /// in the vocabulary.
    pub fn new(
        data: SpeechData,
        model: SpeechModel,
        feeds: Vec<SpeechFeed>,
        batch: BatchSettings,
    ) -> StudyResult<Self> {
        let corpus = Corpus::load(&data)?;
        let tokenizer = match data.tokenizer.as_str() {
            "" if data.word_pieces > 0 => {
                SpeechTokenizer::word_pieces(corpus.training_texts().into_iter(), data.word_pieces)?
            }
            "" => SpeechTokenizer::letters()?,
            file => SpeechTokenizer::from_file(file.as_ref())?,
        };
        let mel = LogMel::conformer(model.encoder().num_mel_bins)?;
        let validation = Vec::new();
        let mut study = Self { data, model, feeds, batch, corpus, tokenizer, mel, validation };
        if study.learns_texts() {
            study.corpus.check_texts(&study.tokenizer)?;
        }
        study.validation = study.evaluated(Split::Validation)?;
        Ok(study)
    }

    /// Whether any phase trains on texts. Otherwise clips need no texts, and there is no word error
    /// rate.
    pub(crate) fn learns_texts(&self) -> bool {
        self.feeds.iter().any(|feed| feed.objective != Objective::BestRq)
    }

    /// The utterances of validation or test. Their texts are encoded and decoded by the tokenizer,
    /// so that an ASR model without capitals is not penalised for capitals in the data.
    ///
    /// # Errors
    /// The errors of [`Corpus::evaluated`].
    pub fn evaluated(&self, split: Split) -> StudyResult<Vec<Utterance>> {
        let mut utterances = self.corpus.evaluated(split)?;
        if self.learns_texts() {
            for utterance in &mut utterances {
                utterance.text = self.tokenizer.round_trip(&utterance.text)?;
            }
        }
        Ok(utterances)
    }

    /// The frames and the target of a clip of a batch.
    fn training_example(
        &self,
        modules: &SpeechModules,
        (clip, seed): (usize, u64),
        feed: &SpeechFeed,
    ) -> StudyResult<TrainingExample> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        if feed.objective != Objective::BestRq && rng.random_bool(self.data.noise_only) {
            let samples = rng.random_range(NOISE_ONLY);
            let kind = if rng.random_bool(0.5) { NoiseKind::Bands } else { NoiseKind::Coloured };
            return Ok((self.mel.frames(&kind.make(samples, &mut rng), 0), Vec::new()));
        }
        let utterance = self.corpus.training(clip, feed.voices, &mut rng)?;
        let mut frames = self.mel.frames(&utterance.samples, 0);
        let targets = match feed.objective {
            Objective::BestRq => self.codes(modules, &utterance)?,
            Objective::Ctc | Objective::Transducer | Objective::Attention => {
                let bands = frames.bands;
                self.data.spec_augment.apply(&mut frames.values, bands, &mut rng)?;
                self.tokenizer.encode_strict(&utterance.text)?
            }
        };
        Ok((frames, targets))
    }

    fn frames(&self, utterances: &[Utterance]) -> Vec<Frames> {
        utterances.par_iter().map(|utterance| self.mel.frames(&utterance.samples, 0)).collect()
    }

    /// The BEST-RQ codes of an utterance's audio without added noise.
    fn codes(&self, modules: &SpeechModules, utterance: &Utterance) -> StudyResult<Vec<u32>> {
        Ok(modules.best_rq.codes(&self.mel.frames(utterance.clean(), 0))?)
    }

    /// Transcribes utterances with a model.
    ///
    /// # Errors
    /// [`engram_models::ModelError::BadInput`] for a clip that is shorter than one frame.
    pub fn transcribe(
        &self,
        modules: &SpeechModules,
        utterances: &[Utterance],
        stop: &Stop,
    ) -> StudyResult<Vec<String>> {
        let mut texts = Vec::with_capacity(utterances.len());
        for utterances in utterances.chunks(UTTERANCES_PER_PASS) {
            stop.check()?;
            let audio = encode(modules, &pack(&self.frames(utterances))?, &Mode::inference())?;
            for path in modules.asr_model.greedy_paths(&audio)? {
                texts.push(self.tokenizer.decode(&path.tokens)?);
            }
        }
        Ok(texts)
    }

    /// The share of masked states of the validation clips whose code is predicted correctly.
    fn masked_accuracy(&self, modules: &SpeechModules, stop: &Stop) -> StudyResult<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(MASK_SEED);
        let (mut correct, mut total) = (0, 0);
        for utterances in self.validation.chunks(UTTERANCES_PER_PASS) {
            stop.check()?;
            let mut frames = self.frames(utterances);
            let codes = utterances.par_iter().map(|utterance| self.codes(modules, utterance));
            let codes = codes.collect::<StudyResult<Vec<_>>>()?;
            let masked = modules.best_rq.mask(&mut frames, &codes, &mut rng);
            let audio = encode(modules, &pack(&frames)?, &Mode::inference())?;
            correct += num_correct(&modules.best_rq.logits(&audio, &masked)?, &masked)?;
            total += masked.codes.len();
        }
        Ok(correct as f64 / total.max(1) as f64)
    }

    /// The BEST-RQ loss of the masked states. `seed` draws the mask.
    fn best_rq_loss(
        &self,
        modules: &SpeechModules,
        mut frames: Vec<Frames>,
        codes: &[Vec<u32>],
        mode: &Mode,
        seed: u64,
    ) -> StudyResult<BatchLoss> {
        let masked: MaskedStates =
            modules.best_rq.mask(&mut frames, codes, &mut ChaCha8Rng::seed_from_u64(seed));
        let audio = encode(modules, &pack(&frames)?, mode)?;
        let logits = modules.best_rq.logits(&audio, &masked)?;
        let loss = modules.best_rq.loss(&logits, &masked)?;
        let correct = num_correct(&logits.detach(), &masked)?;
        let accuracy = correct as f64 / masked.codes.len() as f64;
        Ok(BatchLoss {
            loss,
            examples: frames.len(),
            tokens: audio.lengths.iter().sum(),
            parts: vec![(MASKED_ACCURACY.into(), accuracy)],
        })
    }

    /// The mean loss of the clips that are long enough for their texts. The share of clips that are
    /// too short is logged.
    fn text_loss_of_batch(
        &self,
        modules: &SpeechModules,
        frames: &[Frames],
        targets: Vec<Vec<u32>>,
        mode: &Mode,
    ) -> StudyResult<BatchLoss> {
        let encoder = &modules.asr_model.encoder.config;
        let is_long_enough = |clip: &u32| {
            let clip = *clip as usize;
            let states = encoder.num_states(frames[clip].len());
            modules.asr_model.is_feasible(states, &targets[clip])
        };
        let feasible: Vec<u32> = (0..frames.len() as u32).filter(is_long_enough).collect();
        let audio = encode(modules, &pack(frames)?, mode)?;
        let loss = if feasible.is_empty() {
            // No clip is long enough: a loss with zero gradient.
            let outputs = match &modules.asr_model.decoder {
                ConformerDecoder::Ctc(head) => head.logits(&audio)?,
                ConformerDecoder::Attention(decoder) => decoder.ctc.logits(&audio)?,
                ConformerDecoder::Transducer(_) => audio.states.clone(),
            };
            (outputs.sum_all()? * 0.0)?
        } else {
            let losses = modules.asr_model.losses(&audio, &targets, mode)?;
            let feasible = Tensor::new(feasible.as_slice(), losses.device())?;
            losses.index_select(&feasible, 0)?.mean_all()?
        };
        let too_short = 1.0 - feasible.len() as f64 / frames.len() as f64;
        Ok(BatchLoss {
            loss,
            examples: feasible.len(),
            tokens: audio.lengths.iter().sum(),
            parts: vec![("too_short".into(), too_short)],
        })
    }
}

/// The number of masked states whose code has the largest logit in its row of `[N, classes]`.
fn num_correct(logits: &Tensor, masked: &MaskedStates) -> StudyResult<usize> {
    let rows: Vec<Vec<f32>> = logits.to_dtype(DType::F32)?.to_vec2()?;
    let ranks = rows.iter().zip(&masked.codes).map(|(row, code)| rank(row, *code as usize));
    Ok(ranks.filter(|rank| *rank == 0).count())
}

/// Concatenates the frames of clips.
fn pack(clips: &[Frames]) -> StudyResult<Packed> {
    let bands = clips.first().map_or(1, |frames| frames.bands);
    let values: Vec<f32> = clips.iter().flat_map(|frames| frames.values.iter().copied()).collect();
    let shape = (values.len() / bands, bands);
    let lengths = clips.iter().map(Frames::len).collect();
    Ok(Packed { frames: Tensor::from_vec(values, shape, &Device::Cpu)?, lengths })
}

/// Encodes clips, without adapters.
fn encode(modules: &SpeechModules, packed: &Packed, mode: &Mode) -> StudyResult<AudioStates> {
    let encoder = &modules.asr_model.encoder;
    let embedded = encoder.embed(&packed.frames, &packed.lengths)?;
    Ok(encoder.forward(embedded, &Adapters::NONE, mode)?)
}

impl Study for SpeechStudy {
    type Model = SpeechModules;
    type Batch = Batch;

    fn name(&self) -> &str {
        super::NAME
    }

    fn primary_metric(&self) -> MetricSpec {
        if self.learns_texts() {
            MetricSpec::lower("wer")
        } else {
            MetricSpec::higher(MASKED_ACCURACY)
        }
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Self::Model> {
        let vocabulary = self.tokenizer.vocabulary_size();
        Ok(SpeechModules::new(&self.model, vocabulary, builder)?)
    }

    fn batches(&self, _: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<Batch>> {
        let mut clips: Vec<usize> = (0..self.corpus.epoch_len()).collect();
        clips.shuffle(rng);
        let clips_with_seeds: Vec<(usize, u64)> =
            clips.into_iter().map(|clip| (clip, rng.random())).collect();
        // Drops an incomplete batch. Its clips change, because each epoch has another order.
        let size = self.batch.examples.max(1).min(clips_with_seeds.len());
        Ok(clips_with_seeds.chunks_exact(size).map(<[_]>::to_vec).collect())
    }

    fn loss(
        &self,
        modules: &SpeechModules,
        batch: &Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        let feed = &self.feeds[step.phase.index];
        let examples = batch.par_iter().map(|clip| self.training_example(modules, *clip, feed));
        let examples = examples.collect::<StudyResult<Vec<TrainingExample>>>()?;
        let (frames, targets): (Vec<Frames>, Vec<Vec<u32>>) = examples.into_iter().unzip();
        let mode = step.mode();
        match feed.objective {
            Objective::BestRq => {
                self.best_rq_loss(modules, frames, &targets, &mode, step.step_seed)
            }
            Objective::Ctc | Objective::Transducer | Objective::Attention => {
                self.text_loss_of_batch(modules, &frames, targets, &mode)
            }
        }
    }

    fn evaluate(
        &self,
        modules: &SpeechModules,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<Evaluation> {
        let mut metrics = Vec::new();
        if self.learns_texts() {
            let texts = self.transcribe(modules, &self.validation, context.stop)?;
            let references: Vec<&str> =
                self.validation.iter().map(|utterance| utterance.text.as_str()).collect();
            let errors = count_word_errors(&references, &texts)?;
            metrics.push(("wer".to_string(), errors.total.error_rate()));
        }
        if self.feeds[context.phase.index].objective == Objective::BestRq {
            metrics.push((MASKED_ACCURACY.into(), self.masked_accuracy(modules, context.stop)?));
        }
        Ok(Evaluation {
            metrics,
            counts: vec![("validation".into(), self.validation.len() as u64)],
        })
    }

    fn inputs(&self) -> StudyResult<Inputs> {
        let mut inputs = Inputs::new();
        inputs.insert("tokenizer".into(), digest::of_bytes(self.tokenizer.json()?));
        let clips = self.validation.iter().map(|clip| (&*clip.text, &*clip.samples));
        inputs.insert("validation".into(), hash_of_clips(clips));
        inputs.extend(self.corpus.inputs()?);
        Ok(inputs)
    }

    fn card(&self) -> Vec<(String, String)> {
        let source = if self.data.is_world() {
            "eight voices of espeak-ng, of the embedded world".to_string()
        } else {
            self.data.train.clone()
        };
        let mut facts = vec![
            ("Trained on".into(), source),
            ("Validation utterances".into(), self.validation.len().to_string()),
        ];
        // A model that has learnt no texts transcribes nothing.
        if self.learns_texts() {
            let command = "`engram transcribe talk.wav --model RUN --out talk.txt`";
            facts.push((USAGE.into(), command.into()));
        }
        facts
    }
}

impl StudyExtension for SpeechStudy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_and_undefined_logits_are_no_hits() -> StudyResult<()> {
        let logits = [[2.0, 1.0], [1.0, 1.0], [f32::NAN, f32::NAN], [1.0, 2.0]];
        let logits = Tensor::new(&logits, &Device::Cpu)?;
        let masked = MaskedStates { states: (0..4).collect(), codes: vec![0; 4] };
        assert_eq!(num_correct(&logits, &masked)?, 1);
        Ok(())
    }
}
