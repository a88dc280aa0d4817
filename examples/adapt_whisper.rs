//! Adds adapters to a frozen Whisper model and trains the adapters on a few spoken names. The
//! Whisper weights do not change.
//!
//! ```text
//! cargo run --release --example adapt_whisper -- whisper-tiny.en      # a folder, or hf://openai/whisper-tiny.en
//! ```

use std::error::Error;

use engram::data::world::audiovisual::{Audiovisual, NoiseSettings};
use engram::data::world::questions::Split;
use engram::infer::asr::AsrModel;
use engram::models::ModelError;
use engram::models::avformer::{Avformer, AvformerConfig};
use engram::models::compute::Compute;
use engram::models::gradients::Gradients;
use engram::models::kernels::Mode;
use engram::models::params::{ParameterBuilder, ParameterGroup};
use engram::train::optimiser::{Optimiser, RuleSet, StepSize};

const NAMES: usize = 8;
const CLIPS: usize = 16;
const STEPS: usize = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let weights = std::env::args().nth(1).ok_or("give a Whisper model")?;
    let asr_model = AsrModel::open(&weights, &Compute::cpu())?;
    let fingerprint = asr_model.parameters().fingerprint(|_| true)?;

    // This example has no images. The image projection is frozen; only the adapters are trained.
    let frozen = ParameterGroup { pattern: "projection.**".to_owned(), rate: 0.0 };
    let builder = ParameterBuilder::new(1, vec![frozen], &Compute::cpu());
    let avformer = Avformer::new(asr_model.frozen()?, &AvformerConfig::default(), 1, &builder)?;
    let parameters = builder.finish()?;
    let (trained, _) = parameters.value_counts();
    println!("{trained} trainable parameters");

    let spoken_names = Audiovisual::new(NAMES, 1)?;
    let encoded_clips = |split| {
        let clips =
            (0..CLIPS).map(|number| spoken_names.clip(split, number, &NoiseSettings::clean()));
        let (audio, texts): (Vec<_>, Vec<_>) = clips.map(|clip| (clip.samples, clip.text)).unzip();
        let tokens = texts.iter().map(|text| asr_model.tokens_of(text));
        // The layers before the first adapter are computed once.
        let embedded = asr_model.embed(&avformer.asr_model, &audio, 0)?;
        Ok::<_, Box<dyn Error>>((embedded, tokens.collect::<Result<Vec<_>, _>>()?))
    };
    let (training, test) = (encoded_clips(Split::Train)?, encoded_clips(Split::Test)?);
    let mean_loss = |(embedded, tokens): &(_, Vec<Vec<u32>>), mode: &Mode| {
        let states = avformer.encode(Clone::clone(embedded), None, mode)?;
        let losses = avformer.asr_model.text_losses(&states, tokens, mode)?;
        Ok::<_, ModelError>(losses.mean_all()?)
    };
    println!(
        "held-out voice, before training: {:.3} nats per token",
        mean_loss(&test, &Mode::inference())?.to_scalar::<f32>()?
    );

    let mut gradients = Gradients::new(&parameters);
    let mut optimiser = Optimiser::new(&RuleSet::default(), &parameters);
    let rates: Vec<f64> = parameters.trainable().map(|parameter| parameter.rate()).collect();
    for step in 1..=STEPS {
        let loss = mean_loss(&training, &Mode::train(step as u64))?;
        gradients.clear();
        gradients.backward(&loss)?;
        let step_size = StepSize { learning_rate: 1e-3, gradient_scale: 1.0 };
        optimiser.step(&parameters, &gradients, &rates, step_size)?;
        if step % 10 == 0 {
            println!("step {step}: {:.3}", loss.to_scalar::<f32>()?);
        }
    }
    println!(
        "held-out voice, after training: {:.3} nats per token",
        mean_loss(&test, &Mode::inference())?.to_scalar::<f32>()?
    );
    assert_eq!(
        asr_model.parameters().fingerprint(|_| true)?,
        fingerprint,
        "the Whisper weights have changed"
    );
    Ok(())
}
