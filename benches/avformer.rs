//! The time that a cache of the frozen parts saves in a training step of AVFormer.
//!
//! ```text
//! cargo bench --bench avformer [-- ASR_MODEL IMAGE_ENCODER]
//! ```
//!
//! A step is a forward and a backward pass over clips of the embedded world, with frames. It is timed
//! twice: with cached outputs of the frozen parts, and with log-mel frames, convolutions and image
//! embeddings computed in the step, as for new clips.

use engram::train::recipe::BatchSettings;
use engram::train::studies::avformer::settings::{AvformerData, AvformerModel};
use engram::train::studies::avformer::timing::{StepTimes, step_times};

#[path = "measure/mod.rs"]
mod measure;

use measure::{arguments, median};

/// The number of clips in a step.
const BATCH: usize = 16;
/// The number of timed steps.
const ROUNDS: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut weights = arguments();
    let mut weights_or =
        |bundled: &str| weights.next().unwrap_or_else(|| format!("train/bundled/{bundled}"));
    let model = AvformerModel {
        asr_model: weights_or("conformer"),
        image_encoder: weights_or("clip"),
        ..AvformerModel::default()
    };
    let data =
        AvformerData { clips: BATCH * ROUNDS, validation_clips: 1, ..AvformerData::default() };
    let batch = BatchSettings { examples: BATCH, ..BatchSettings::default() };
    let StepTimes { cached, uncached, audio, images } =
        step_times(data, model, batch, ROUNDS, &|_| {}).map_err(|error| error.to_string())?;
    let [cached, uncached, audio, images] =
        [cached, uncached, audio, images].map(|seconds| 1e3 * median(seconds));
    println!("step with cached frozen outputs     {cached:>8.1} ms");
    println!(
        "step without the cache              {uncached:>8.1} ms ({:.2} times)",
        uncached / cached
    );
    println!("  audio, up to the first block      {audio:>8.1} ms");
    println!("  images                            {images:>8.1} ms");
    Ok(())
}
