//! `engram score`: scores the similarity of phrase pairs.

use std::path::Path;

use clap::Args;
use engram_data::patent::{Labels, PhrasePair, predictions_csv, read_pairs};
use engram_infer::InferError;
use engram_infer::encode::{Encoder, PromptChoice};
use engram_infer::finished_run::study;
use engram_infer::pretrained::{is_missing, is_model_file};
use engram_infer::reveal;
use engram_infer::similarity::run::{SimilarityRun, is_run};
use engram_infer::similarity::zero_shot;

use super::compute::ComputeOptions;
use super::memory::prompt_choice;
use super::paths::{InputFile, ModelName, OutputFile};
use super::{Outcome, log, output};

/// Score the similarity of phrase pairs with a trained model, a sentence encoder or word vectors.
#[derive(Debug, Args)]
#[command(after_help = "\
--model is a run of `engram train patent` or `similarity`, a sentence encoder (`hf://owner/name` or
a folder), a file of word vectors (GloVe or word2vec text), or `word-overlap`. The last three are
baselines without training: their score is a cosine similarity, or the share of common words.

Scores of a run depend on which targets share an anchor. Give all pairs of an anchor in one file.

Examples:
  engram score test.csv --model runs/p1 --out scores.csv
  engram score validation.csv --model hf://sentence-transformers/all-MiniLM-L6-v2 --out cosine.csv
  engram score validation.csv --model glove.6B.300d.txt --out glove.csv
  engram eval phrase --ref validation.csv --hyp cosine.csv")]
pub struct Score {
    /// Phrase pairs: CSV with id, anchor, target, context. For a run of `train similarity`: a CSV
    /// with the columns of its training. - is standard input
    #[arg(value_name = "PAIRS")]
    pairs: InputFile,
    /// A run of `train patent` or `train similarity`, a sentence encoder, a file of word vectors, or
    /// `word-overlap`
    #[arg(long, value_name = "MODEL")]
    model: ModelName,
    /// Output file: CSV with id, score; - is standard output
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Score with the sentence encoder of a run, by cosine similarity
    #[arg(long)]
    cosine: bool,
    /// Name of the encoder's prompt, from config_sentence_transformers.json; '' for no prompt
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// The kind of `--model`.
enum Model<'a> {
    Run(SimilarityRun),
    WordVectors(&'a Path),
    WordOverlap,
    Encoder(Box<Encoder>),
}

impl Score {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let model = self.model()?;
        let pairs = match &model {
            Model::Run(run) => run.read_rows(&self.pairs)?,
            _ => read_pairs(&self.pairs, Labels::Optional)?,
        };
        let scores = log::stage("scored the pairs", || self.scores(&model, &pairs))?;
        if let Some((pair, score)) = pairs.iter().zip(&scores).find(|(_, score)| !score.is_finite())
        {
            anyhow::bail!("pair `{}`: the score is {score}; check the model's weights", pair.id);
        }
        output::write_atomic(&self.out, &predictions_csv(&pairs, &scores))?;
        let message = format!("{} scores written to {}", scores.len(), self.out.display());
        output::note(&message);
        Ok(Outcome::Done)
    }

    /// Determines the kind of `--model`.
    fn model(&self) -> anyhow::Result<Model<'_>> {
        let path = Path::new(&*self.model);
        if reveal::is_finished(path) || study(path).as_deref() == Some(reveal::STUDY) {
            let remedy = "use `engram answer`";
            anyhow::bail!("{}: is a REVEAL run, which answers questions; {remedy}", self.model);
        }
        if *self.model == *"word-overlap" && !path.exists() {
            return Ok(Model::WordOverlap);
        }
        let is_file = path.is_file() && !is_model_file(path);
        if !is_file && (self.cosine || !is_run(path)) {
            let prompt = prompt_choice(self.prompt.as_deref(), PromptChoice::Default);
            let encoder = Encoder::with_prompt(&self.model, &prompt, &self.compute.open()?);
            let lacks = |name: &&str| !path.join(name).exists();
            let is_other_folder =
                path.is_dir() && ["config.json", "modules.json"].iter().all(lacks);
            return match encoder {
                Err(InferError::Data(error)) if is_other_folder && is_missing(&error) => {
                    let remedy = "train one with `engram train patent`, or give a model's folder";
                    let model = &self.model;
                    anyhow::bail!("{model}: is neither a run nor a sentence encoder; {remedy}")
                }
                encoder => Ok(Model::Encoder(Box::new(encoder?))),
            };
        }
        let kind = if is_file { "a file of word vectors" } else { "a run" };
        if self.prompt.is_some() {
            anyhow::bail!("{}: is {kind}, which uses no prompt; remove --prompt", self.model);
        }
        if is_file {
            return Ok(Model::WordVectors(path));
        }
        Ok(Model::Run(SimilarityRun::open(path, &self.compute.open()?)?))
    }

    fn scores(&self, model: &Model<'_>, pairs: &[PhrasePair]) -> anyhow::Result<Vec<f64>> {
        let length = match model {
            Model::Run(run) => run.num_scores(pairs.len())?,
            _ => pairs.len(),
        };
        let bar = output::progress_bar(length, "scores");
        let report_progress = |done: usize| bar.inc(done as u64);
        let scores = match model {
            Model::Run(run) => run.predict(pairs, &report_progress)?,
            Model::WordOverlap => zero_shot::word_overlap(pairs),
            Model::WordVectors(file) => zero_shot::word_vector_cosines(file, pairs)?,
            Model::Encoder(encoder) => {
                zero_shot::encoder_cosines(encoder, pairs, &report_progress)?
            }
        };
        bar.finish_and_clear();
        Ok(scores)
    }
}
