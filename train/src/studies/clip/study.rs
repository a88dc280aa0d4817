//! The [`Study`] of the CLIP image encoder.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use engram_data::world::questions::Split;
use engram_models::clip::{ClipVision, ClipVisionConfig, contrastive_loss, matching_loss};
use engram_models::compute::{Compute, to_host};
use engram_models::kernels::{embedding_sum, linear};
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_models::weights::{self, Weights};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::evaluation::{NamePredictions, embed};
use super::images::ImageSet;
use super::names::NameVectors;
use super::settings::{ClipData, ClipModel};
use crate::Stop;
use crate::card::USAGE;
use crate::recipe::{BatchSettings, Phase};
use crate::step_features::Features;
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study,
    StudyExtension, StudyResult,
};

/// The parameter with the logarithm of the logit scale, which is the inverse temperature.
const LOGIT_SCALE: &str = "logit_scale";
/// The maximum of [`LOGIT_SCALE`], as in CLIP: ln 100.
const MAX_LOGIT_SCALE: f32 = 4.605_17;

/// The features of a micro-batch.
const EMBEDDINGS: usize = 0;
const INDICES: usize = 1;

/// Trains an image encoder on the embedded world.
pub struct ClipStudy {
    data: ClipData,
    model: ClipModel,
    batch: BatchSettings,
    pub(super) images: ImageSet,
    names: NameVectors,
}

/// A batch of distinct images: the index of each image, and the seed of its view.
pub type Batch = Vec<(usize, u64)>;

/// The trained parts of the model.
pub struct Tower {
    vision: ClipVision,
    /// The logarithm of the logit scale, a scalar.
    logit_scale: Tensor,
}

impl ClipStudy {
    /// The study of a recipe's settings, the images and the vectors of their names.
    pub fn new(
        data: ClipData,
        model: ClipModel,
        images: ImageSet,
        names: NameVectors,
        batch: BatchSettings,
    ) -> Self {
        Self { data, model, batch, images, names }
    }

    /// The configuration of the encoder.
    pub fn vision_config(&self) -> ClipVisionConfig {
        self.model.vision(self.names.width())
    }

    /// Reduces a weights file to the encoder's parameters, in the published form.
    ///
    /// # Errors
    /// If the file cannot be read or written, or belongs to another model.
    pub fn publish(&self, path: &Path) -> StudyResult<()> {
        let (_, parameters) = self.open_with_parameters(path, &Compute::cpu())?;
        weights::save(
            path,
            parameters.iter().map(|parameter| (parameter.name(), parameter.tensor())),
        )?;
        Ok(())
    }

    /// Loads the encoder from a weights file, frozen, to compute on `compute`.
    ///
    /// # Errors
    /// If the file cannot be read, or belongs to another model.
    pub fn open(&self, path: &Path, compute: &Compute) -> StudyResult<ClipVision> {
        Ok(self.open_with_parameters(path, compute)?.0)
    }

    /// Computes the embeddings of training views, `[images, width]`.
    fn embed_views(
        &self,
        tower: &Tower,
        batch: &Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<Tensor> {
        let views = batch.par_iter().map(|(image, seed)| self.images.training_view(*image, *seed));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        embed(&tower.vision, &views, &step.mode())
    }

    /// Returns the contrastive loss between image embeddings and the names with these indices.
    fn contrast(
        &self,
        images: &Tensor,
        indices: Arc<[u32]>,
        logit_scale: &Tensor,
    ) -> StudyResult<Tensor> {
        let names = self.names.vectors.to_device(images.device())?;
        let texts = embedding_sum(&[(&names, indices.clone())])?;
        let factor = logit_scale.exp()?;
        let logits = linear(images, &texts, None)?.broadcast_mul(&factor)?;
        if !self.data.all_names {
            return Ok(contrastive_loss(&logits)?);
        }
        let all_logits = linear(images, &names, None)?.broadcast_mul(&factor)?;
        let to_images = matching_loss(&logits.t()?, (0..indices.len() as u32).collect())?;
        Ok(((matching_loss(&all_logits, indices)? + to_images)? * 0.5)?)
    }

    fn open_with_parameters(
        &self,
        path: &Path,
        compute: &Compute,
    ) -> StudyResult<(ClipVision, Parameters)> {
        let source = Arc::new(Weights::open(path)?);
        let builder = ParameterBuilder::frozen(compute).with_weights(source);
        let vision = ClipVision::new(&self.vision_config(), &builder)?;
        Ok((vision, builder.finish()?))
    }

    /// Predicts the names of the test views.
    ///
    /// # Errors
    /// Errors of the model.
    pub fn test(&self, vision: &ClipVision) -> StudyResult<NamePredictions> {
        NamePredictions::of(
            vision,
            &self.images,
            &self.names,
            Split::Test,
            self.data.test_views,
            &Stop::default(),
        )
    }
}

impl Study for ClipStudy {
    type Model = Tower;
    type Batch = Batch;

    fn name(&self) -> &str {
        super::NAME
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::higher("accuracy")
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Self::Model> {
        let start = Init::Constant(self.model.logit_scale_init_value);
        Ok(Tower {
            vision: ClipVision::new(&self.vision_config(), builder)?,
            logit_scale: builder.get(LOGIT_SCALE, &[], start)?,
        })
    }

    /// The batches of an epoch: each image once, in a new order and with a new view.
    fn batches(&self, _: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<Batch>> {
        let mut views: Batch = (0..self.images.len()).map(|image| (image, rng.random())).collect();
        views.shuffle(rng);
        // An incomplete batch is dropped: the best temperature depends on the batch size.
        Ok(views.chunks_exact(self.batch.examples).map(<[_]>::to_vec).collect())
    }

    /// Limits the logit scale to 100, before each step.
    fn before_step(&mut self, _: &StepContext<'_>, parameters: &Parameters) -> StudyResult<()> {
        if let Some(scale) = parameters.get(LOGIT_SCALE) {
            let limit = |value: &mut f32| *value = value.min(MAX_LOGIT_SCALE);
            scale.update(&mut |values| values.iter_mut().for_each(limit))?;
        }
        Ok(())
    }

    fn loss(&self, tower: &Tower, batch: &Batch, step: &StepContext<'_>) -> StudyResult<BatchLoss> {
        let Tower { vision, logit_scale } = tower;
        let images = self.embed_views(tower, batch, step)?;
        let indices = batch.iter().map(|(image, _)| *image as u32);
        let loss = match step.features {
            None => self.contrast(&images, indices.collect(), logit_scale)?,
            Some(features) => {
                let images = features.join(EMBEDDINGS, &images)?;
                let indices = to_host(&features.all(INDICES)?)?;
                let indices = indices.into_iter().map(|index| index as u32).collect();
                features.loss(&self.contrast(
                    &images,
                    indices,
                    &features.parameter(logit_scale),
                )?)?
            }
        };
        let temperature = f64::from(logit_scale.to_scalar::<f32>()?).exp();
        Ok(BatchLoss {
            loss,
            examples: batch.len(),
            tokens: batch.len() * vision.config.num_patches(),
            parts: vec![("temperature".into(), temperature)],
        })
    }

    fn evaluate(&self, tower: &Tower, context: &EvaluationContext<'_>) -> StudyResult<Evaluation> {
        let predictions = NamePredictions::of(
            &tower.vision,
            &self.images,
            &self.names,
            Split::Validation,
            self.data.validation_views,
            context.stop,
        )?;
        let accuracy = predictions.accuracy();
        let mut evaluation = Evaluation {
            metrics: vec![("accuracy".into(), accuracy.value)],
            counts: vec![("validation views".into(), accuracy.n as u64)],
        };
        if let Some(spoken) = predictions.spoken_accuracy() {
            evaluation.metrics.push(("accuracy/spoken".into(), spoken.value));
            evaluation.counts.push(("validation views of spoken names".into(), spoken.n as u64));
        }
        Ok(evaluation)
    }

    fn inputs(&self) -> StudyResult<Inputs> {
        Ok(Inputs::from([("text vectors".to_string(), self.names.sha256.clone())]))
    }

    fn card(&self) -> Vec<(String, String)> {
        let images = format!("{} of the embedded world (Twemoji, CC-BY 4.0)", self.images.len());
        vec![
            ("Images".into(), images),
            ("Text vectors of their names".into(), self.names.source.clone()),
            (USAGE.into(), "`engram memory build --entries e.jsonl --model RUN --out m`".into()),
        ]
    }
}

impl StudyExtension for ClipStudy {
    /// The embeddings of the views, and the indices of the images, as numbers.
    fn features(
        &self,
        tower: &Tower,
        batch: &Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<Option<Features>> {
        let images = self.embed_views(tower, batch, step)?;
        let indices: Vec<f32> = batch.iter().map(|(image, _)| *image as f32).collect();
        let indices = Tensor::from_vec(indices, batch.len(), images.device())?;
        Ok(Some(Features { examples: batch.len(), tensors: vec![images, indices] }))
    }
}
