//! The study as the trainer sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use engram_data::text_to_text::TextToText;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::reveal::{Reveal, RevealConfig};
use engram_models::t5::T5Config;
use engram_models::vit::ViTConfig;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use super::answers::Answers;
use super::corpus::{Corpus, Example};
use super::figures::Figures;
use super::forward::{Forward, Known, Losses};
use super::retriever::Retriever;
use super::run_memory::{Encoding, RunMemory};
use super::sequences::Sequencer;
use super::settings::{Examples, Knowledge, RevealData, RevealFeed, RevealMemory, RevealModel};
use crate::digest;
use crate::recipe::{BatchSettings, Phase};
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study, StudyResult,
};

/// Views that training shows are counted from here: none of them is a question's in the evaluation.
const FIRST_TRAINING_VIEW: u32 = 16;

/// REVEAL on a corpus.
pub struct RevealStudy {
    data: RevealData,
    memory: RevealMemory,
    feeds: Vec<RevealFeed>,
    batch: BatchSettings,
    seed: u64,
    encoding: Arc<Encoding>,
    continuations: Vec<Example>,
    run: PathBuf,
    model: Option<Reveal>,
    run_memory: RunMemory,
}

/// One example of a batch, with what is drawn for it.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    place: usize,
    view: u32,
    cut: f64,
    replaced: bool,
}

impl RevealStudy {
    /// The study of a recipe's settings; its memory lies in `run`.
    ///
    /// # Errors
    /// Those of reading the data.
    pub fn new(
        (data, model, memory): (RevealData, RevealModel, RevealMemory),
        feeds: Vec<RevealFeed>,
        batch: BatchSettings,
        seed: u64,
        run: PathBuf,
    ) -> StudyResult<Self> {
        let corpus = Corpus::load(&data, model.image_size)?;
        let texts: Vec<String> = corpus
            .items
            .iter()
            .filter(|item| item.training)
            .map(|item| item.text.clone())
            .chain(corpus.train.iter().map(|example| example.text.clone()))
            .collect();
        let tokens = TextToText::train(texts.into_iter(), data.vocabulary)?;
        let config = config_of(&model, &corpus, &tokens);
        let sequencer = Sequencer::new(tokens, &corpus, &data, model.image_size)?;
        let continuations = corpus.continuations();
        let encoding = Arc::new(Encoding { config, corpus, sequencer });
        Ok(Self {
            data,
            run_memory: RunMemory::new(&run, memory.clone(), Arc::clone(&encoding)),
            memory,
            feeds,
            batch,
            seed,
            encoding,
            continuations,
            run,
            model: None,
        })
    }

    /// The data.
    pub fn corpus(&self) -> &Corpus {
        &self.encoding.corpus
    }

    /// The data, the sizes of the model and its sequences.
    pub fn encoding(&self) -> Arc<Encoding> {
        Arc::clone(&self.encoding)
    }

    /// Waits for a refresh under way.
    ///
    /// # Errors
    /// Those of the refresh.
    pub fn settle(&mut self) -> StudyResult<()> {
        self.run_memory.settle()
    }

    /// What forward passes work with.
    pub fn forward<'a>(
        &'a self,
        model: &'a Reveal,
        retriever: Option<&'a Retriever>,
    ) -> Forward<'a> {
        let (k, share) = (self.memory.k, self.memory.reencoded);
        Forward {
            model,
            corpus: &self.encoding.corpus,
            sequencer: &self.encoding.sequencer,
            retriever,
            k,
            reencoded: (k as f64 * share).ceil() as usize,
        }
    }

    fn model(&self) -> StudyResult<&Reveal> {
        Ok(self.model.as_ref().ok_or("the model is not built yet")?)
    }

    /// Views of pictures that are to find the pictures of the memory.
    fn picture_losses(
        &self,
        batch: &[Drawn],
        feed: &RevealFeed,
        mode: &Mode,
    ) -> StudyResult<(Losses, usize)> {
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        let texts = vec![[sequencer.tokens().begin]; batch.len()];
        let pictures =
            batch.iter().map(|drawn| (corpus.training_pictures[drawn.place], drawn.view));
        let (views, clean): (Vec<_>, Vec<_>) =
            pictures.map(|(place, view)| (Some((place, view)), Some((place, 0)))).unzip();
        let queries = sequencer.input(corpus, &texts, &views)?;
        let entries = sequencer.input(corpus, &texts, &clean)?;
        let forward = self.forward(self.model()?, None);
        let losses = forward.contrast(&queries, &entries, feed.temperature, mode)?;
        Ok((losses, 2 * batch.len()))
    }

    fn examples(&self, feed: &RevealFeed) -> &[Example] {
        match feed.examples {
            Examples::Pictures => &[],
            Examples::Entries => &self.continuations,
            Examples::Questions => &self.encoding.corpus.train,
        }
    }

    fn reads_memory(&self, phase: &Phase) -> bool {
        let feed = &self.feeds[phase.index];
        let retrieves =
            feed.knowledge == Knowledge::Retrieved && feed.examples != Examples::Pictures;
        retrieves && self.memory.k > 0
    }
}

/// The model's configuration.
fn config_of(model: &RevealModel, corpus: &Corpus, tokens: &TextToText) -> RevealConfig {
    RevealConfig {
        t5: T5Config {
            vocab_size: tokens.vocabulary(),
            d_model: model.d_model,
            d_kv: model.d_kv,
            d_ff: model.d_ff,
            num_layers: model.text_layers + model.fusion_layers,
            num_decoder_layers: Some(model.decoder_layers),
            num_heads: model.num_heads,
            dropout_rate: model.dropout,
            eos_token_id: tokens.end,
            pad_token_id: tokens.pad,
            decoder_start_token_id: tokens.begin,
            ..T5Config::small()
        },
        image: ViTConfig {
            hidden_size: model.image_width,
            num_hidden_layers: model.image_layers,
            num_attention_heads: model.image_heads,
            intermediate_size: model.image_ff,
            image_size: model.image_size,
            patch_size: model.patch_size,
            class_token: false,
            layer_norm_eps: 1e-6,
            initializer_range: (model.image_width as f64).powf(-0.5),
            ..ViTConfig::base_16()
        },
        fusion_layers: model.fusion_layers,
        head_layers: model.head_layers,
        value_tokens: model.value_tokens,
        key_dim: model.key_dim,
        sources: corpus.sources.len(),
        gate: model.gate,
        score_ceiling: model.score_ceiling,
        token_scale: model.token_scale,
        frozen_image_layers: 0,
        frozen_text_layers: 0,
    }
}

impl Study for RevealStudy {
    type Batch = Vec<Drawn>;

    fn name(&self) -> &str {
        "reveal"
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::higher("exact_match")
    }

    fn build(&mut self, groups: Vec<ParameterGroup>, seed: u64) -> StudyResult<Parameters> {
        let builder = ParameterBuilder::new(seed, groups, DType::F32, &Device::Cpu);
        self.model = Some(Reveal::new(&self.encoding.config, &builder)?);
        Ok(builder.finish()?)
    }

    fn before_step(&mut self, step: &StepContext<'_>, parameters: &Parameters) -> StudyResult<()> {
        match self.reads_memory(step.phase) {
            true => self.run_memory.before_step((step.phase.index, step.step), parameters),
            false => Ok(()),
        }
    }

    fn save(&self, folder: &Path) -> StudyResult<()> {
        self.run_memory.save(folder)
    }

    fn restore(&mut self, folder: &Path) -> StudyResult<()> {
        self.run_memory.restore(folder)
    }

    fn batches(&mut self, phase: &Phase, epoch: usize) -> StudyResult<Vec<Vec<Drawn>>> {
        let mut hash = Sha256::new();
        for number in [self.seed, phase.index as u64, epoch as u64] {
            hash.update(number.to_le_bytes());
        }
        let mut rng = ChaCha8Rng::from_seed(hash.finalize().into());
        let feed = &self.feeds[phase.index];
        let examples = self.examples(feed);
        let count = match feed.examples {
            Examples::Pictures => self.encoding.corpus.training_pictures.len(),
            _ => examples.len(),
        };
        // Where an example reads its own entry, it has to be in the memory.
        let reads_own = feed.knowledge == Knowledge::Own && feed.examples != Examples::Pictures;
        let wanted = |place: &usize| !reads_own || examples[*place].own.is_some();
        let places: Vec<usize> = (0..count).filter(wanted).collect();
        let size = feed.neighbours.max(1);
        let (first, rest) = places.split_at(rng.random_range(0..size).min(places.len()));
        let mut runs: Vec<&[usize]> = std::iter::once(first).chain(rest.chunks(size)).collect();
        runs.shuffle(&mut rng);
        let order = runs.concat();
        let mut drawn = order.into_iter().map(|place| Drawn {
            place,
            view: rng.random_range(FIRST_TRAINING_VIEW..u32::MAX),
            cut: rng.random(),
            replaced: rng.random_bool(feed.own_knowledge),
        });
        let mut batches = Vec::new();
        loop {
            let batch: Vec<Drawn> =
                drawn.by_ref().take(feed.batch.unwrap_or(self.batch.examples)).collect();
            // A lone last example has no negative.
            if batch.len() < 2 {
                return Ok(batches);
            }
            batches.push(batch);
        }
    }

    fn loss(&self, batch: &Vec<Drawn>, step: &StepContext<'_>) -> StudyResult<BatchLoss> {
        let feed = &self.feeds[step.phase.index];
        let mode = Mode::train(step.step_seed);
        if feed.examples == Examples::Pictures {
            let (losses, tokens) = self.picture_losses(batch, feed, &mode)?;
            let (loss, parts) = (losses.total, losses.parts);
            return Ok(BatchLoss { loss, examples: batch.len(), tokens, parts });
        }
        let (mut texts, mut targets) = (Vec::new(), Vec::new());
        let (mut views, mut own) = (Vec::new(), Vec::new());
        for drawn in batch {
            let example = &self.examples(feed)[drawn.place];
            let (text, target) = match feed.examples {
                Examples::Entries => {
                    self.encoding.sequencer.continuation(&example.text, drawn.cut)?
                }
                Examples::Questions | Examples::Pictures => {
                    let answer = example.answers.first().map_or("", String::as_str);
                    let answer = self.encoding.sequencer.tokens().encode(answer)?;
                    (
                        self.encoding.sequencer.question(&example.text)?,
                        self.encoding.sequencer.target(&answer),
                    )
                }
            };
            texts.push(text);
            targets.push(target);
            views.push(example.picture.map(|picture| (picture, drawn.view)));
            own.push(example.own.map(|place| (place, self.encoding.corpus.source_of(place))));
        }
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        let input = sequencer.input(corpus, &texts, &views)?;
        let replaced: Vec<bool> = batch.iter().map(|drawn| drawn.replaced).collect();
        let retriever = match self.reads_memory(step.phase) {
            true => self.run_memory.retriever(),
            false => None,
        };
        let forward = self.forward(self.model()?, retriever);
        let known = Known { targets: &targets, own: &own, replaced: &replaced };
        let mut losses = forward.losses(&input, known, feed, &mode)?;
        if retriever.is_some() {
            losses.parts.extend(self.run_memory.figures(step.step));
        }
        Ok(BatchLoss {
            loss: losses.total,
            examples: batch.len(),
            tokens: input.tokens.len(),
            parts: losses.parts,
        })
    }

    fn inputs(&self) -> Inputs {
        let Encoding { corpus, .. } = self.encoding.as_ref();
        let questions = [&corpus.train, &corpus.validation, &corpus.test].into_iter().flatten();
        let lines = |texts: Vec<String>| digest::of_bytes(texts.join("\n"));
        let questions = questions.map(|one| format!("{} {} {:?}", one.id, one.text, one.answers));
        let entries = corpus.items.iter();
        let entries =
            entries.map(|item| format!("{} {} {}", item.entry.id, item.entry.source, item.text));
        [
            ("entries".to_owned(), lines(entries.collect())),
            ("questions".to_owned(), lines(questions.collect())),
        ]
        .into()
    }

    fn card(&self) -> Vec<(String, String)> {
        let Encoding { corpus, .. } = self.encoding.as_ref();
        vec![
            ("Entries in the memory".into(), corpus.items.len().to_string()),
            ("Sources".into(), corpus.sources.join(", ")),
            ("Training questions".into(), corpus.train.len().to_string()),
            ("Test questions".into(), corpus.test.len().to_string()),
            (
                "Data".into(),
                "the embedded world (graphics: Twemoji, CC-BY 4.0): it shows mechanisms, not the \
                 paper's figures"
                    .into(),
            ),
        ]
    }

    fn evaluate(&self, _: &EvaluationContext<'_>) -> StudyResult<Evaluation> {
        let model = self.model()?;
        let retriever = match self.memory.k {
            0 => None,
            _ => {
                let folder = self.run.join("memory-evaluation");
                let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
                Some(Retriever::build(&folder, model, corpus, sequencer)?.0)
            }
        };
        let forward = self.forward(model, retriever.as_ref());
        let all = &self.encoding.corpus.validation;
        let wanted = match self.data.evaluated_questions {
            0 => all.len(),
            most => most.min(all.len()),
        };
        // Evenly spread over the pictures.
        let asked: Vec<&Example> = (0..wanted).map(|i| &all[i * all.len() / wanted]).collect();
        let answers = Answers::of(&forward, &asked)?;
        let figures = Figures::of_parts(&self.encoding.corpus, &asked, &answers);
        Ok(Figures::evaluation(&figures))
    }
}
