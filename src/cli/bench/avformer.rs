//! `engram bench avformer`: the time that a cache of the frozen parts saves in a training step.

use clap::Args;
use engram_train::recipe::BatchSettings;
use engram_train::studies::avformer::settings::{AvformerData, AvformerModel};
use engram_train::studies::avformer::timing::{StepTimes, step_times};

use super::super::paths::ModelName;
use super::super::{Outcome, output};
use super::median;

/// Measure how much time a cache of the frozen parts saves in an AVFormer training step.
#[derive(Debug, Args)]
#[command(after_help = "\
A step is a forward and a backward pass over clips of the embedded world, with frames. It is timed
twice: with cached outputs of the frozen parts, and with log-mel frames, convolutions and image
embeddings computed in the step, as for new clips.

Example:
  engram bench avformer --asr-model whisper --image-encoder runs/clip")]
pub struct AvformerBench {
    /// The frozen ASR model
    #[arg(long, value_name = "WEIGHTS")]
    asr_model: ModelName,
    /// The frozen image encoder
    #[arg(long, value_name = "WEIGHTS")]
    image_encoder: ModelName,
    /// Number of clips in a step
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Number of steps to time
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

impl AvformerBench {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let batch = usize::from(self.batch);
        let data = AvformerData {
            clips: batch * self.rounds.clamp(1, 20),
            validation_clips: 1,
            ..AvformerData::default()
        };
        let model = AvformerModel {
            asr_model: self.asr_model.to_string(),
            image_encoder: self.image_encoder.to_string(),
            ..AvformerModel::default()
        };
        let batch = BatchSettings { examples: batch, ..BatchSettings::default() };
        let bar = output::progress_bar(self.rounds.max(1), "steps");
        let times = step_times(data, model, batch, self.rounds.max(1), &|done| {
            bar.set_position(done as u64);
        });
        let times = times.map_err(anyhow::Error::from_boxed)?;
        bar.finish_and_clear();
        let StepTimes { cached, uncached, audio, images } = times;
        let [cached, uncached, audio, images] = [cached, uncached, audio, images].map(median);
        output::print(&format!(
            "step with cached frozen outputs     {:>8.1} ms\n\
             step without the cache              {:>8.1} ms ({:.2} times)\n\
             \x20 audio, up to the first block       {:>8.1} ms\n\
             \x20 images                             {:>8.1} ms",
            1e3 * cached,
            1e3 * uncached,
            uncached / cached.max(1e-9),
            1e3 * audio,
            1e3 * images
        ))?;
        Ok(Outcome::Done)
    }
}
