//! The [`Study`] of REVEAL.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_data::text_to_text::T5Tokenizer;
use engram_memory::Entry;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::reveal::{BaseStates, Reveal};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use super::alteration::Alteration;
use super::answers::Answers;
use super::corpus::{Corpus, Example, Judge, Pictures, Task};
use super::figures::Figures;
use super::forward::{Forward, Known, Losses};
use super::judge;
use super::published::Published;
use super::retriever::Retriever;
use super::run_memory::{Encoding, RunMemory};
use super::sequences::Sequencer;
use super::settings::{
    Examples, Knowledge, RevealData, RevealFeed, RevealMemory, RevealModel, Size,
};
use super::sizes::{config_of, fit};
use crate::digest;
use crate::recipe::{BatchSettings, Phase};
use crate::stop::Stop;
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study, StudyResult,
};

/// The folder of the memory for evaluations during training, in the run's folder.
pub const EVALUATED: &str = "memory-evaluation";

/// The first view number of training; evaluation questions use lower numbers.
const FIRST_TRAINING_VIEW: u32 = 16;

/// Views per image in [`RevealStudy::picture_recall`].
const ASKED_VIEWS: u32 = 4;

/// Images per batch there.
const PICTURES_AT_A_TIME: usize = 256;

/// [`Reveal::query`] or [`Reveal::key`].
type Head = fn(&Reveal, &BaseStates, &Mode) -> engram_models::Result<Tensor>;

/// Trains REVEAL on a corpus.
pub struct RevealStudy {
    data: RevealData,
    memory: RevealMemory,
    feeds: Vec<RevealFeed>,
    batch: BatchSettings,
    seed: u64,
    encoding: Arc<Encoding>,
    cut_off: Vec<String>,
    continuations: Vec<Example>,
    published: Published,
    size: Size,
    run: PathBuf,
    model: Option<Reveal>,
    run_memory: RunMemory,
}

/// A batch of examples.
#[derive(Debug, Clone)]
pub struct Batch {
    examples: Vec<Drawn>,
    /// The augmentation of all their images.
    alteration: Alteration,
}

/// One example of a batch, with its random choices.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    place: usize,
    view: u32,
    cut: f64,
    replaced: bool,
}

impl Drawn {
    /// The target text: for several captions, a random one.
    fn answer<'a>(&self, example: &'a Example) -> &'a str {
        let place = match example.task {
            Task::Answer => 0,
            Task::Describe => (self.cut * example.answers.len() as f64) as usize,
        };
        example.answers.get(place).map_or("", String::as_str)
    }
}

impl RevealStudy {
    /// The seed of the world, and of the tasks that all runs on it share.
    pub fn world_seed(&self) -> u64 {
        self.data.world_seed
    }

    /// Creates the study from a recipe's settings; its memory is in `run`.
    ///
    /// # Errors
    /// Errors of reading the data.
    pub fn new(
        (data, model, memory): (RevealData, RevealModel, RevealMemory),
        feeds: Vec<RevealFeed>,
        batch: BatchSettings,
        seed: u64,
        run: PathBuf,
    ) -> StudyResult<Self> {
        let mut published = Published::find(&model)?;
        let mut config = config_of(&model, &published);
        let size = config.image.image_size;
        let corpus = Corpus::load(&data, size, published.preprocessing(size)?)?;
        judge::check(&corpus)?;
        let tokens = match published.tokens.take() {
            Some(tokens) => tokens,
            None => T5Tokenizer::train(corpus.training_texts().into_iter(), data.vocabulary)?,
        };
        fit(&mut config, &model, &corpus, &tokens);
        let sequencer = Sequencer::new(tokens, &corpus, &data, size)?;
        let cut_off = sequencer.cut_off(&corpus)?;
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
            cut_off,
            continuations,
            published,
            size: model.size,
            run,
            model: None,
        })
    }

    /// The data.
    pub fn corpus(&self) -> &Corpus {
        &self.encoding.corpus
    }

    /// The data, the model's sizes and the sequences.
    pub fn encoding(&self) -> Arc<Encoding> {
        Arc::clone(&self.encoding)
    }

    /// Notes for the report: skipped or truncated data, and parts that start from random weights.
    pub fn notes(&self) -> Vec<String> {
        let corpus = &self.encoding.corpus;
        let mut notes = match corpus.pictures {
            // A small model on the embedded world always starts from random weights.
            Pictures::World { .. } if self.size == Size::Own && self.published.is_none() => {
                Vec::new()
            }
            _ => corpus.notes.iter().chain(&self.published.notes).cloned().collect(),
        };
        notes.extend(self.cut_off.iter().cloned());
        notes
    }

    /// The image processor's file, if one was published.
    pub fn processor(&self) -> Option<&Path> {
        self.published.processor.as_deref()
    }

    /// Waits for the running refresh.
    ///
    /// # Errors
    /// Errors of the refresh.
    pub fn settle(&mut self) -> StudyResult<()> {
        self.run_memory.settle()
    }

    /// The parts of forward passes.
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
            alteration: Alteration::default(),
        }
    }

    fn model(&self) -> StudyResult<&Reveal> {
        Ok(self.model.as_ref().ok_or("the model is not built yet")?)
    }

    /// The loss of views of images that must match the memory's images.
    fn picture_losses(
        &self,
        batch: &Batch,
        feed: &RevealFeed,
        mode: &Mode,
    ) -> StudyResult<(Losses, usize)> {
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        let examples = &batch.examples;
        let texts = vec![[sequencer.tokens().begin]; examples.len()];
        let pictures =
            examples.iter().map(|drawn| (corpus.training_pictures[drawn.place], drawn.view));
        let (views, clean): (Vec<_>, Vec<_>) =
            pictures.map(|(place, view)| (Some((place, view)), Some((place, 0)))).unzip();
        let queries = batch.alteration.of(sequencer.input(corpus, &texts, &views)?)?;
        let entries = batch.alteration.of(sequencer.input(corpus, &texts, &clean)?)?;
        let forward = self.forward(self.model()?, None);
        let losses = forward.contrast(&queries, &entries, feed.temperature, mode)?;
        Ok((losses, 2 * examples.len()))
    }

    /// The recall of images that training has not seen: how often their views match the right image
    /// among the memory's images and their own, first and among the first ten.
    fn picture_recall(&self, stop: &Stop) -> StudyResult<Evaluation> {
        let corpus = &self.encoding.corpus;
        let (model, mode) = (self.model()?, Mode::inference());
        let encode = |views: &[(usize, u32)], head: Head| -> StudyResult<Vec<Vec<f32>>> {
            let mut vectors = Vec::new();
            for views in views.chunks(PICTURES_AT_A_TIME) {
                stop.check()?;
                let texts = vec![[self.encoding.sequencer.tokens().begin]; views.len()];
                let views: Vec<_> = views.iter().copied().map(Some).collect();
                let input = self.encoding.sequencer.input(corpus, &texts, &views)?;
                vectors.extend(head(model, &model.encode(&input, &mode)?, &mode)?.to_vec2()?);
            }
            Ok(vectors)
        };
        let held_out = corpus.held_out_pictures();
        // Files may have images without entries, and entries with missing images.
        let shown = corpus.items.iter().filter_map(|item| item.picture);
        let all: BTreeSet<usize> = shown.chain(held_out.iter().copied()).collect();
        let clean: Vec<(usize, u32)> = all.iter().map(|place| (*place, 0)).collect();
        let keys = encode(&clean, Reveal::key)?;
        let row_of: HashMap<usize, usize> = all.into_iter().zip(0..).collect();
        let views: Vec<(usize, u32)> = held_out
            .into_iter()
            .flat_map(|place| (1..=ASKED_VIEWS).map(move |view| (place, view)))
            .collect();
        let queries = encode(&views, Reveal::query)?;
        let ranks = queries.iter().zip(&views).map(|(query, (place, _))| {
            let score = |key: &Vec<f32>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
            let own = score(&keys[row_of[place]]);
            keys.iter().filter(|key| score(key) > own).count()
        });
        let ranks: Vec<usize> = ranks.collect();
        let within = |k: usize| {
            ranks.iter().filter(|rank| **rank < k).count() as f64 / ranks.len().max(1) as f64
        };
        Ok(Evaluation {
            metrics: vec![
                ("recall_at_1/pictures".to_owned(), within(1)),
                ("recall_at_10/pictures".to_owned(), within(10)),
            ],
            counts: vec![("pictures".to_owned(), views.len() as u64)],
        })
    }

    fn examples(&self, feed: &RevealFeed) -> &[Example] {
        match feed.examples {
            Examples::Pictures => &[],
            Examples::Entries => &self.continuations,
            Examples::Questions => &self.encoding.corpus.train,
        }
    }

    fn reads_memory(&self, phase: &Phase) -> bool {
        self.feeds[phase.index].retrieves() && self.memory.k > 0
    }
}

impl Study for RevealStudy {
    type Batch = Batch;

    fn name(&self) -> &str {
        "reveal"
    }

    fn primary_metric(&self) -> MetricSpec {
        // The metric of the first validation example, which every evaluation answers.
        let Encoding { corpus, .. } = self.encoding.as_ref();
        let judge = corpus.validation.first().and_then(|example| corpus.judges.get(example.judge));
        MetricSpec::higher(judge.and_then(Judge::primary_metric).unwrap_or("exact_match"))
    }

    fn build(&mut self, groups: Vec<ParameterGroup>, seed: u64) -> StudyResult<Parameters> {
        let builder = ParameterBuilder::new(seed, groups, DType::F32, &Device::Cpu);
        self.model = Some(Reveal::new(&self.encoding.config, &builder)?);
        let parameters = builder.finish()?;
        self.published.weights.load_into(&parameters)?;
        Ok(parameters)
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

    fn batches(&mut self, phase: &Phase, epoch: usize) -> StudyResult<Vec<Batch>> {
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
        // An example that reads its own entry needs one in the memory.
        let reads_own = feed.knowledge == Knowledge::Own && feed.examples != Examples::Pictures;
        let wanted = |place: &usize| !reads_own || examples[*place].own.is_some();
        let places: Vec<usize> = (0..count).filter(wanted).collect();
        let size = feed.neighbours.max(1);
        let (first, rest) = places.split_at(rng.random_range(0..size).min(places.len()));
        let mut runs: Vec<&[usize]> = std::iter::once(first).chain(rest.chunks(size)).collect();
        runs.shuffle(&mut rng);
        let mut order = runs.concat().into_iter();
        let mut batches = Vec::new();
        loop {
            let alteration = Alteration::draw(feed.altered, &mut rng);
            let drawn = order.by_ref().take(feed.batch.unwrap_or(self.batch.examples));
            let examples: Vec<Drawn> = drawn
                .map(|place| Drawn {
                    place,
                    view: rng.random_range(FIRST_TRAINING_VIEW..u32::MAX),
                    cut: rng.random(),
                    replaced: rng.random_bool(feed.own_knowledge),
                })
                .collect();
            // A last example alone has no negative.
            if examples.len() < 2 {
                return Ok(batches);
            }
            batches.push(Batch { examples, alteration });
        }
    }

    fn loss(&self, batch: &Batch, step: &StepContext<'_>) -> StudyResult<BatchLoss> {
        let feed = &self.feeds[step.phase.index];
        let mode = Mode::train(step.step_seed);
        if feed.examples == Examples::Pictures {
            let (losses, tokens) = self.picture_losses(batch, feed, &mode)?;
            let (loss, parts) = (losses.total, losses.parts);
            return Ok(BatchLoss { loss, examples: batch.examples.len(), tokens, parts });
        }
        let (mut texts, mut targets) = (Vec::new(), Vec::new());
        let (mut views, mut own, mut documents) = (Vec::new(), Vec::new(), Vec::new());
        for drawn in &batch.examples {
            let example = &self.examples(feed)[drawn.place];
            let (text, target) = match feed.examples {
                Examples::Entries => {
                    self.encoding.sequencer.continuation(&example.text, drawn.cut)?
                }
                Examples::Questions | Examples::Pictures => {
                    let sequencer = &self.encoding.sequencer;
                    let answer = sequencer.tokens().encode(drawn.answer(example))?;
                    (sequencer.asked(example)?, sequencer.target(&answer))
                }
            };
            texts.push(text);
            targets.push(target);
            views.push(example.picture.map(|picture| (picture, drawn.view)));
            documents.push(example.document.as_deref());
            own.push(example.own.map(|place| (place, self.encoding.corpus.source_of(place))));
        }
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        let input = batch.alteration.of(sequencer.input(corpus, &texts, &views)?)?;
        let replaced: Vec<bool> = batch.examples.iter().map(|drawn| drawn.replaced).collect();
        let retriever = match self.reads_memory(step.phase) {
            true => self.run_memory.retriever(),
            false => None,
        };
        let forward =
            Forward { alteration: batch.alteration, ..self.forward(self.model()?, retriever) };
        let (targets, own, replaced) = (&*targets, &*own, &*replaced);
        let known = Known { targets, own, replaced, documents: &documents };
        let mut losses = forward.losses(&input, known, feed, &mode)?;
        if retriever.is_some() {
            losses.parts.extend(self.run_memory.figures(step.step));
        }
        Ok(BatchLoss {
            loss: losses.total,
            examples: batch.examples.len(),
            tokens: input.tokens.len(),
            parts: losses.parts,
        })
    }

    fn inputs(&self) -> StudyResult<Inputs> {
        let Encoding { corpus, .. } = self.encoding.as_ref();
        let questions = [&corpus.train, &corpus.validation, &corpus.test].into_iter().flatten();
        let lines = |texts: Vec<String>| digest::of_bytes(texts.join("\n"));
        let questions = questions.map(|one| {
            let Example { id, text, answers, document, picture, part, .. } = one;
            format!("{id} {text} {answers:?} {document:?} {picture:?} {part:?}")
        });
        let entries = corpus.items.iter().map(|item| {
            let Entry { id, source, document, .. } = &item.entry;
            format!("{id} {source} {} {document:?} {:?}", item.text, item.picture)
        });
        let mut inputs = Inputs::from([
            ("entries".to_owned(), lines(entries.collect())),
            ("questions".to_owned(), lines(questions.collect())),
        ]);
        inputs.extend(corpus.digests.iter().chain(&self.published.digests).cloned());
        Ok(inputs)
    }

    fn card(&self) -> Vec<(String, String)> {
        let Encoding { corpus, .. } = self.encoding.as_ref();
        let data = match corpus.pictures {
            Pictures::World { .. } => {
                "the embedded world (graphics: Twemoji, CC-BY 4.0): it shows \
                mechanisms, not the paper's results"
                    .to_owned()
            }
            Pictures::Files(_) => {
                format!("files in {}; {}", self.data.path, self.notes().join("; "))
            }
        };
        vec![
            ("Entries in the memory".into(), corpus.items.len().to_string()),
            ("Sources".into(), corpus.sources.join(", ")),
            ("Training questions".into(), corpus.train.len().to_string()),
            ("Test questions".into(), corpus.test.len().to_string()),
            ("Data".into(), data),
        ]
    }

    fn evaluate(&self, context: &EvaluationContext<'_>) -> StudyResult<Evaluation> {
        let model = self.model()?;
        let retriever = match self.memory.k {
            0 => None,
            _ => {
                let folder = self.run.join(EVALUATED);
                let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
                Some(Retriever::build(&folder, model, (corpus, sequencer), context.stop)?.0)
            }
        };
        let forward = self.forward(model, retriever.as_ref());
        let all = &self.encoding.corpus.validation;
        let wanted = match self.data.evaluated_questions {
            0 => all.len(),
            most => most.min(all.len()),
        };
        // Evenly spread over the images.
        let asked: Vec<&Example> = (0..wanted).map(|i| &all[i * all.len() / wanted]).collect();
        let answers = Answers::of(&forward, &asked, context.stop)?;
        let corpus = &self.encoding.corpus;
        let mut evaluation = Figures::evaluation(&Figures::of_parts(corpus, &asked, &answers));
        for sides in judge::sides(corpus, &asked, &answers.texts)? {
            for measure in sides.measure()?.measures {
                // If two kinds of metrics share a name, the first is reported.
                if evaluation.get(&measure.metric).is_none() {
                    evaluation.metrics.push((measure.metric, measure.value));
                }
            }
        }
        if self.feeds.iter().any(|feed| feed.examples == Examples::Pictures) {
            let of_pictures = self.picture_recall(context.stop)?;
            evaluation.metrics.extend(of_pictures.metrics);
            evaluation.counts.extend(of_pictures.counts);
        }
        Ok(evaluation)
    }
}
