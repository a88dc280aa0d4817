//! Finished runs on a device, compared with f32 on the CPU: every study except AVFormer.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use engram_data::image::DecodedImage;
use engram_data::patent::PhrasePair;
use engram_data::world::questions::Split;
use engram_infer::asr::{AsrModel, TranscribeOptions};
use engram_infer::encode::Encoder;
use engram_infer::reveal::answerer::{Answerer, Detail};
use engram_infer::similarity::run::SimilarityRun;
use engram_models::compute::Compute;
use engram_train::studies::speech::corpus::Corpus;
use engram_train::studies::speech::settings::SpeechData;

/// One use of a finished run on both devices.
pub struct InferenceComparison {
    /// The study of the run.
    pub study: &'static str,
    /// The largest difference of scores or vectors, divided by the largest value on the CPU.
    pub error: f64,
    /// Whether texts are equal; `None` without texts.
    pub equal_texts: Option<bool>,
}

/// Uses the runs of `compare_trainings` in `folder` on the device.
pub fn compare_inference(compute: &Compute, folder: &Path) -> Result<Vec<InferenceComparison>> {
    let cpu = Compute::cpu();
    let run = |study: &str| folder.join("cpu").join(study);
    let mut comparisons = Vec::new();
    let mut push = |study, values: [Vec<f64>; 2], texts: Option<[Vec<String>; 2]>| {
        let equal_texts = texts.map(|[on_cpu, on_device]| on_cpu == on_device);
        comparisons.push(InferenceComparison { study, error: error(&values), equal_texts });
    };
    let scores = |compute: &Compute| -> Result<Vec<f64>> {
        Ok(SimilarityRun::open(&run("patent"), compute)?.predict(&pairs(), &|_| ())?)
    };
    push("patent", [scores(&cpu)?, scores(compute)?], None);
    let [a, b] = [embeddings(&run("clip"), &cpu)?, embeddings(&run("clip"), compute)?];
    push("clip", [a, b], None);
    let [a, b] = [answer(&run("reveal"), &cpu)?, answer(&run("reveal"), compute)?];
    push("reveal", [a.0, b.0], Some([a.1, b.1]));
    let [a, b] = [transcript(&run("speech"), &cpu)?, transcript(&run("speech"), compute)?];
    push("speech", [a.0, b.0], Some([a.1, b.1]));
    Ok(comparisons)
}

/// NaN for different numbers of values, and for a value that is NaN.
fn error([expected, found]: &[Vec<f64>; 2]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let errors = expected.iter().zip(found).map(|(a, b)| (a - b).abs() / largest);
    if expected.len() == found.len() { largest_error(errors) } else { f64::NAN }
}

/// The largest error, at least 0; NaN if an error is NaN.
pub fn largest_error(errors: impl Iterator<Item = f64>) -> f64 {
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    errors.fold(0.0, larger)
}

fn pairs() -> Vec<PhrasePair> {
    let anchors = ["opaque layer", "rotary seal", "metal bracket"];
    let targets = ["opaque film", "sealing ring", "bracket made of metal", "steering wheel"];
    let pairs = anchors.iter().flat_map(|anchor| targets.map(|target| (*anchor, target)));
    let pair = |(index, (anchor, target)): (usize, (&str, &str))| PhrasePair {
        id: index.to_string(),
        anchor: anchor.to_owned(),
        target: target.to_owned(),
        context: "A47".to_owned(),
        score: None,
        rating: None,
    };
    pairs.enumerate().map(pair).collect()
}

/// A ramp of colours as a bitmap file.
fn image_file(folder: &Path) -> Result<PathBuf> {
    const SIDE: u32 = 64;
    const HEADER: u32 = 54;
    let path = folder.join("ramp.bmp");
    let mut bytes = b"BM".to_vec();
    // The file's size, two unused fields, the offset of the pixels, the size of the second header,
    // width, height, one plane with 24 bits, and six fields that may be 0.
    let planes_and_bits = 1 | 24 << 16;
    let fields = [HEADER + 3 * SIDE * SIDE, 0, HEADER, 40, SIDE, SIDE, planes_and_bits];
    bytes.extend(fields.into_iter().chain([0; 6]).flat_map(u32::to_le_bytes));
    bytes.extend((0..SIDE * SIDE).flat_map(|i| [(i % SIDE * 4) as u8, (i / SIDE * 4) as u8, 90]));
    fs::write(&path, bytes)?;
    Ok(path)
}

fn embeddings(run: &Path, compute: &Compute) -> Result<Vec<f64>> {
    let encoder = Encoder::open(run.to_str().context("the path is not UTF-8")?, compute)?;
    let path = image_file(run.parent().context("the run has no parent")?)?;
    let prepared = encoder.prepare_image(&DecodedImage::open(&path)?, &path)?;
    Ok(encoder.encode(&[&prepared])?.into_iter().map(f64::from).collect())
}

/// The scores and attributions of the retrieved entries, and the answers.
fn answer(run: &Path, compute: &Compute) -> Result<(Vec<f64>, Vec<String>)> {
    let answerer = Answerer::open(run, None, None, Vec::new(), compute, None)?;
    let path = image_file(run.parent().context("the run has no parent")?)?;
    let detail = Detail { attribution: true, shapley: true };
    let (mut values, mut texts) = (Vec::new(), Vec::new());
    for question in ["Who made it?", "What is the colour of the badge?", "Where is it?"] {
        let answer = answerer.answer_one(Some(question), &path, &[], detail)?;
        values.push(answer.log_probability);
        for evidence in answer.evidence {
            values.extend([evidence.score, evidence.gate, evidence.prior.unwrap_or_default()]);
            values.extend(evidence.attribution);
            values.extend(evidence.gradient_attribution);
            values.extend(evidence.shapley);
        }
        texts.push(answer.answer);
    }
    Ok((values, texts))
}

/// The log-probabilities, the probabilities of no speech, and the texts of two clips.
fn transcript(run: &Path, compute: &Compute) -> Result<(Vec<f64>, Vec<String>)> {
    let model = AsrModel::open(run.to_str().context("the path is not UTF-8")?, compute)?;
    let data = SpeechData { evaluation_sentences: 2, ..SpeechData::default() };
    let utterances = Corpus::load(&data)?.evaluated(Split::Test)?;
    let clips: Vec<&[f32]> = utterances.iter().map(|clip| clip.samples.as_slice()).collect();
    let boosts = vec![None; clips.len()];
    let transcripts = model.transcribe(&clips, &boosts, &TranscribeOptions::default())?;
    let texts = transcripts.iter().map(|transcript| transcript.text.clone()).collect();
    let values = transcripts.iter().flat_map(|transcript| {
        [transcript.mean_log_probability, transcript.no_speech_probability].map(f64::from)
    });
    Ok((values.collect(), texts))
}
