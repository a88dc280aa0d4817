//! The time of a training step, with and without cached frozen computations.

use engram_models::compute::Compute;
use engram_models::params::ParameterBuilder;
use engram_models::recompute::Recompute;
use std::path::PathBuf;
use std::time::Instant;

use engram_data::image::DecodedImage;
use engram_infer::encode::{Encoder, Prepared};
use rayon::prelude::*;

use super::corpus::ClipWithFrames;
use super::settings::{AvformerData, AvformerFeed, AvformerModel};
use super::study::AvformerStudy;
use crate::recipe::{BatchSettings, Phase};
use crate::study::{StepContext, Study, StudyResult, epoch_rng};

/// Seconds of each step, for the same steps with and without cached computations.
#[derive(Debug, Clone, Default)]
pub struct StepTimes {
    /// With cached audio states and image embeddings.
    pub cached: Vec<f64>,
    /// With the frozen parts computed in each step: the ASR model up to the first encoder block,
    /// and the image encoder.
    pub uncached: Vec<f64>,
    /// The audio part of [`StepTimes::uncached`].
    pub audio: Vec<f64>,
    /// The image part of [`StepTimes::uncached`], without decoding.
    pub images: Vec<f64>,
}

/// Times the forward and backward passes of `rounds` steps with frames, after one warm-up step.
/// `report` receives the number of timed steps.
///
/// # Errors
/// The errors of [`AvformerStudy::new`].
pub fn step_times(
    data: AvformerData,
    model: AvformerModel,
    batch: BatchSettings,
    rounds: usize,
    report: &dyn Fn(usize),
) -> StudyResult<StepTimes> {
    let feed = AvformerFeed { frames: true, ..AvformerFeed::default() };
    let encoder = Encoder::open(&model.image_encoder, &Compute::cpu())?;
    let frames = data.frames;
    let mut study =
        AvformerStudy::new(data, model, vec![feed.clone()], batch, &Compute::cpu(), true)?;
    let avformer = study.build(&ParameterBuilder::on_cpu(1))?;
    let phase = Phase {
        name: "timing".into(),
        index: 0,
        epochs: None,
        steps: Some(rounds as u64),
        learning_rate: None,
        group: Vec::new(),
        feed: Default::default(),
    };
    study.begin_phase(&phase)?;
    let batches = study.batches(&phase, &mut epoch_rng(1, &phase, 0))?;
    let mut times = StepTimes::default();
    for round in 0..=rounds {
        let batch = &batches[round % batches.len()];
        let context = StepContext {
            step_seed: 1,
            step: 1,
            micro_batch: 0,
            phase: &phase,
            epoch: 0,
            progress: 0.0,
            recompute: Recompute::None,
            features: None,
        };
        let clips = batch.iter().map(|drawn| study.corpus.training(drawn.clip, &feed));
        let clips: Vec<ClipWithFrames> = clips.collect::<Result<_, _>>()?;
        let images = clips.iter().flat_map(|clip| clip.frames.iter().take(frames));
        let images = images.map(|index| study.corpus.image(*index));
        let images: Vec<(DecodedImage, PathBuf)> = images.collect::<Result<_, _>>()?;

        let started = Instant::now();
        study.encoder_inputs(&clips)?;
        let audio = started.elapsed().as_secs_f64();
        let prepare = |(image, name): &(DecodedImage, PathBuf)| encoder.prepare_image(image, name);
        let prepared: Vec<Prepared> = images.par_iter().map(prepare).collect::<Result<_, _>>()?;
        encoder.encode(&prepared.iter().collect::<Vec<_>>())?;
        let frozen_parts = started.elapsed().as_secs_f64();
        let started = Instant::now();
        study.loss(&avformer, batch, &context)?.loss.backward()?;
        let cached = started.elapsed().as_secs_f64();
        // The first step is a warm-up.
        if round > 0 {
            times.cached.push(cached);
            times.uncached.push(cached + frozen_parts);
            times.audio.push(audio);
            times.images.push(frozen_parts - audio);
            report(round);
        }
    }
    Ok(times)
}
