//! The [`Study`] of REVEAL.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use engram_data::text_to_text::T5Tokenizer;
use engram_infer::digest;
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::augmentation::BatchAugmentation;
use engram_infer::reveal::corpus::{Corpus, Example, Task, UNKNOWN};
use engram_infer::reveal::encoding::{Encoding, TOKENIZER};
use engram_infer::reveal::feature_maps::FeatureMaps;
use engram_infer::reveal::forward::Forward;
use engram_infer::reveal::images::{FIRST_TRAINING_VIEW, Images};
use engram_infer::reveal::retriever::Retriever;
use engram_infer::reveal::sequences::Sequencer;
use engram_memory::Entry;
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::reveal::Reveal;
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::corpus::{self, continuations, too_few_images, training_texts};
use super::dataset_metrics;
use super::image_recall::validation_recall;
use super::losses::{self, BatchTargets};
use super::metrics::QuestionMetrics;
use super::published::Published;
use super::run_memory::RunMemory;
use super::settings::{Examples, RevealData, RevealFeed, RevealMemory, RevealSettings, Size};
use super::shards;
use super::sizes::{config_of, fit};
use crate::card::USAGE;
use crate::error::TrainError;
use crate::recipe::{BatchSettings, Phase};
use crate::step_features::Features;
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study,
    StudyExtension, StudyResult,
};

/// The folder of the memory for evaluations during training, in the run's folder.
pub(crate) const EVALUATION_MEMORY: &str = "memory-evaluation";

/// Trains REVEAL on a corpus.
pub struct RevealStudy {
    pub(super) data: RevealData,
    pub(super) memory: RevealMemory,
    feeds: Vec<RevealFeed>,
    batch: BatchSettings,
    encoding: Arc<Encoding>,
    data_notes: Vec<String>,
    continuations: Vec<Example>,
    pub(super) published: Published,
    size: Size,
    /// Whether the key head begins as a copy of the query head.
    equal_heads: bool,
    run: PathBuf,
    pub(super) run_memory: RunMemory,
    /// The memory of the last evaluation.
    evaluation_memory: Option<Retriever>,
}

/// A batch of examples.
#[derive(Debug, Clone)]
pub struct Batch {
    examples: Vec<DrawnExample>,
    /// The augmentation of the images of all examples.
    augmentation: BatchAugmentation,
}

/// One example of a batch, with its random choices.
#[derive(Debug, Clone, Copy)]
pub struct DrawnExample {
    /// The index of the example, or of the image in a phase on images alone.
    index: usize,
    /// The number of the image's view.
    view: u32,
    /// A random number in `[0, 1)`. It selects the position at which a text is split, or the
    /// caption that is the target.
    fraction: f64,
    /// Whether the example reads its own entry instead of its re-encoded entries.
    reads_own_entry: bool,
    /// Whether the example does not find its own entry.
    is_absent: bool,
}

impl DrawnExample {
    /// The target text: the first answer to a question, or a random caption of an image.
    fn answer<'a>(&self, example: &'a Example) -> &'a str {
        if self.is_absent {
            return UNKNOWN;
        }
        let index = match example.task {
            Task::Answer => 0,
            Task::Describe => (self.fraction * example.answers.len() as f64) as usize,
        };
        example.answers.get(index).map_or("", String::as_str)
    }
}

/// Keeps as many graphics as other training images, drawn anew for each epoch. More of them would
/// teach less about photographs.
fn draw_graphics(corpus: &Corpus, indices: &mut Vec<usize>, rng: &mut ChaCha8Rng) {
    let is_graphic = |index: &usize| corpus.is_graphic(corpus.training_images[*index]);
    let (mut graphics, mut drawn): (Vec<usize>, Vec<usize>) =
        indices.iter().partition(|index| is_graphic(index));
    graphics.shuffle(rng);
    graphics.truncate(drawn.len());
    drawn.append(&mut graphics);
    *indices = drawn;
}

/// Reads the tokenizer of a run.
fn tokenizer_of_run(run: &Path) -> StudyResult<T5Tokenizer> {
    let path = run.join(TOKENIZER);
    let json = engram_durable::read_text(&path).map_err(TrainError::io(&path))?;
    Ok(T5Tokenizer::parse(&json, &path)?)
}

impl RevealStudy {
    /// The study of a recipe's settings, with its data. The memory is in the run folder `run`, and
    /// its entries are encoded on `compute`. The tokenizer comes from the run `tokenizer_of`, else
    /// from `model.t5`, else it is new.
    ///
    /// # Errors
    /// Errors of reading the data.
    pub fn new(
        settings: RevealSettings,
        batch: BatchSettings,
        compute: Compute,
        run: PathBuf,
        tokenizer_of: Option<&Path>,
    ) -> StudyResult<Self> {
        let RevealSettings { data, model, memory, feeds } = settings;
        let mut published = Published::find(&model)?;
        let mut config = config_of(&model, &published);
        let size = published.image_size(&config);
        let mut corpus = corpus::load(&data, size, published.preprocessing(size)?)?;
        let cached_bytes = data.image_cache_mib << 20;
        corpus.maps =
            published.mobilenet.take().map(|network| FeatureMaps::new(network, cached_bytes));
        dataset_metrics::check(&corpus)?;
        let tokenizer = match (tokenizer_of, published.tokenizer.take()) {
            (Some(run), _) => tokenizer_of_run(run)?,
            (None, Some(tokenizer)) => tokenizer,
            (None, None) => {
                T5Tokenizer::train(training_texts(&corpus).into_iter(), data.vocabulary)?
            }
        };
        fit(&mut config, &model, &corpus, &tokenizer);
        let sequencer = Sequencer::new(tokenizer, &corpus, &data.sequences())?;
        let mut data_notes = sequencer.truncation_warnings(&corpus)?;
        if tokenizer_of.is_none() {
            data_notes.extend(too_few_images(&corpus));
        }
        let continuations = continuations(&corpus);
        let encoding = Arc::new(Encoding { config, corpus, sequencer });
        Ok(Self {
            data,
            run_memory: RunMemory::new(&run, memory.clone(), Arc::clone(&encoding), compute),
            memory,
            feeds,
            batch,
            encoding,
            data_notes,
            continuations,
            published,
            size: model.size,
            equal_heads: model.equal_heads,
            run,
            evaluation_memory: None,
        })
    }

    /// The data, the model's sizes and the sequences.
    pub fn encoding(&self) -> Arc<Encoding> {
        Arc::clone(&self.encoding)
    }

    /// Notes for the report: skipped or truncated data, and parts that start from random weights.
    pub fn notes(&self) -> Vec<String> {
        let corpus = &self.encoding.corpus;
        let mut notes = match corpus.images {
            // A small model on the embedded world always starts from random weights.
            Images::World { .. } if self.size == Size::Own && self.published.is_unused() => {
                Vec::new()
            }
            _ => corpus.notes.iter().chain(&self.published.notes).cloned().collect(),
        };
        notes.extend(self.data_notes.iter().cloned());
        notes
    }

    /// Ends the running refresh and closes the memories.
    pub(super) fn close_memories(&mut self) {
        self.run_memory.close();
        self.evaluation_memory = None;
    }

    /// The model, data and settings of forward passes. `retriever` is `None` without a memory.
    pub fn forward<'a>(
        &'a self,
        model: &'a Reveal,
        retriever: Option<&'a Retriever>,
    ) -> Forward<'a> {
        let (k, fraction) = (self.memory.k, self.memory.reencoded_fraction);
        Forward {
            model,
            corpus: &self.encoding.corpus,
            sequencer: &self.encoding.sequencer,
            retriever,
            k,
            reencoded: (k as f64 * fraction).ceil() as usize,
            augmentation: BatchAugmentation::default(),
            control: None,
        }
    }

    /// The queries and the keys of a phase on images alone: a view of each image, and the image's
    /// view in the memory, which must match.
    fn image_vectors(
        &self,
        model: &Reveal,
        batch: &Batch,
        mode: &Mode,
    ) -> StudyResult<[Tensor; 2]> {
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        let examples = &batch.examples;
        let texts = vec![[sequencer.tokens().begin]; examples.len()];
        let images = examples.iter().map(|drawn| (corpus.training_images[drawn.index], drawn.view));
        let (views, originals): (Vec<_>, Vec<_>) =
            images.map(|(index, view)| (Some((index, view)), Some((index, 0)))).unzip();
        let queries = batch.augmentation.of(sequencer.input(corpus, &texts, &views)?)?;
        let entries = batch.augmentation.of(sequencer.input(corpus, &texts, &originals)?)?;
        let queries = model.query(&model.encode(&queries, mode)?, mode)?;
        let keys = model.key(&model.encode(&entries, mode)?, mode)?;
        Ok([queries, keys])
    }

    /// The training examples of a phase; empty for images alone.
    fn examples(&self, feed: &RevealFeed) -> &[Example] {
        match feed.examples {
            Examples::Images => &[],
            Examples::Entries => &self.continuations,
            Examples::Questions => &self.encoding.corpus.train,
            Examples::Reading => &self.encoding.corpus.reading,
            Examples::Naming => &self.encoding.corpus.naming,
        }
    }

    /// Whether a phase retrieves entries from the memory.
    fn reads_memory(&self, phase: &Phase) -> bool {
        self.feeds[phase.index].retrieves() && self.memory.k > 0
    }
}

impl Study for RevealStudy {
    type Model = Reveal;
    type Batch = Batch;

    fn name(&self) -> &str {
        super::NAME
    }

    fn primary_metric(&self) -> MetricSpec {
        // The kind of metric of the first validation example, which is in every evaluation.
        let Encoding { corpus, .. } = self.encoding.as_ref();
        let metric_kind = corpus
            .validation
            .first()
            .and_then(|example| corpus.metric_kinds.get(example.metric_kind));
        MetricSpec::higher(
            metric_kind.and_then(dataset_metrics::primary_metric).unwrap_or("exact_match"),
        )
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Self::Model> {
        let model = Reveal::new(&self.encoding.config, builder)?;
        let parameters = builder.finish()?;
        builder.mark_loaded(&self.published.weights.load_into(&parameters)?);
        for key in parameters.iter().filter(|_| self.equal_heads) {
            let query =
                key.name().strip_prefix("key_head.").map(|rest| format!("query_head.{rest}"));
            if let Some(query) = query.and_then(|name| parameters.get(&name)) {
                key.set(query.tensor())?;
            }
        }
        Ok(model)
    }

    fn before_step(&mut self, step: &StepContext<'_>, parameters: &Parameters) -> StudyResult<()> {
        if self.reads_memory(step.phase) {
            self.run_memory.before_step(step.phase.index, step.step, parameters)
        } else {
            Ok(())
        }
    }

    fn batches(&self, phase: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<Batch>> {
        let feed = &self.feeds[phase.index];
        let (corpus, examples) = (&self.encoding.corpus, self.examples(feed));
        let count = match feed.examples {
            Examples::Images => corpus.training_images.len(),
            _ => examples.len(),
        };
        // Examples that read their own entries must have one.
        let is_usable = |index: &usize| {
            feed.examples == Examples::Images
                || !feed.knowledge.is_of_own_entries()
                || examples[*index].own_entry.is_some()
        };
        let mut indices: Vec<usize> = (0..count).filter(is_usable).collect();
        if feed.examples == Examples::Images {
            draw_graphics(corpus, &mut indices, rng);
        }
        let views_of = |index: usize| {
            let image = match feed.examples {
                Examples::Images => Some(corpus.training_images[index]),
                _ => examples[index].image,
            };
            image.map_or(corpus.training_views, |image| corpus.training_views_of(image))
        };
        let size = feed.neighbours.max(1);
        let (first_group, remaining) =
            indices.split_at(rng.random_range(0..size).min(indices.len()));
        let mut groups: Vec<&[usize]> =
            std::iter::once(first_group).chain(remaining.chunks(size)).collect();
        groups.shuffle(rng);
        let mut order = groups.concat().into_iter();
        let mut batches = Vec::new();
        loop {
            let augmentation = BatchAugmentation::draw(feed.augment, rng);
            let drawn = order.by_ref().take(feed.batch.unwrap_or(self.batch.examples));
            let examples: Vec<DrawnExample> = drawn
                .map(|index| DrawnExample {
                    index,
                    view: FIRST_TRAINING_VIEW + rng.random_range(0..views_of(index)),
                    fraction: rng.random(),
                    reads_own_entry: rng.random_bool(feed.own_knowledge),
                    // Feeds without absent entries draw no number, so that their batches stay equal.
                    is_absent: feed.absent > 0.0 && rng.random_bool(feed.absent),
                })
                .collect();
            // A single example has no negative, so it is dropped.
            if examples.len() < 2 {
                return Ok(batches);
            }
            batches.push(Batch { examples, augmentation });
        }
    }

    fn loss(
        &self,
        model: &Reveal,
        batch: &Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        let feed = &self.feeds[step.phase.index];
        let mode = step.mode();
        if feed.examples == Examples::Images {
            let [queries, keys] = self.image_vectors(model, batch, &mode)?;
            let losses = losses::contrast([&queries, &keys], feed.temperature, step.features)?;
            let examples = batch.examples.len();
            let (loss, parts) = (losses.total, losses.parts);
            return Ok(BatchLoss { loss, examples, tokens: 2 * examples, parts });
        }
        let (mut texts, mut targets) = (Vec::new(), Vec::new());
        let mut views = Vec::new();
        let (mut own_entries, mut excluded_documents) = (Vec::new(), Vec::new());
        for drawn in &batch.examples {
            let example = &self.examples(feed)[drawn.index];
            let (text, target) = match feed.examples {
                Examples::Entries => {
                    self.encoding.sequencer.continuation(&example.text, drawn.fraction)?
                }
                _ => {
                    let sequencer = &self.encoding.sequencer;
                    let answer = sequencer.tokens().encode(drawn.answer(example))?;
                    (sequencer.query_of(example)?, sequencer.target(&answer))
                }
            };
            texts.push(text);
            targets.push(target);
            views.push(example.image.map(|image| (image, drawn.view)));
            excluded_documents.push(example.document.as_deref());
            let own_entry = example.own_entry;
            own_entries.push(own_entry.map(|index| (index, self.encoding.corpus.source_of(index))));
        }
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        let input = batch.augmentation.of(sequencer.input(corpus, &texts, &views)?)?;
        let reads_own_entry: Vec<bool> =
            batch.examples.iter().map(|drawn| drawn.reads_own_entry).collect();
        let is_absent: Vec<bool> = batch.examples.iter().map(|drawn| drawn.is_absent).collect();
        let retriever =
            if self.reads_memory(step.phase) { self.run_memory.retriever.as_ref() } else { None };
        let forward =
            Forward { augmentation: batch.augmentation, ..self.forward(model, retriever) };
        let batch_targets = BatchTargets {
            targets: &targets,
            own_entries: &own_entries,
            reads_own_entry: &reads_own_entry,
            is_absent: &is_absent,
            excluded_documents: &excluded_documents,
        };
        let mut losses = losses::losses(&forward, &input, batch_targets, feed, &mode)?;
        if retriever.is_some() {
            losses.parts.extend(self.run_memory.metrics(step.step));
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
        let questions = questions.map(|example| {
            let Example { id, text, answers, document, image, part, .. } = example;
            format!("{id} {text} {answers:?} {document:?} {image:?} {part:?}")
        });
        let entries = corpus.items.iter().map(|item| {
            let Entry { id, source, document, .. } = &item.entry;
            format!("{id} {source} {} {document:?} {:?}", item.text, item.image)
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
        let data = match corpus.images {
            Images::World { .. } => "the embedded world (graphics: Twemoji, CC-BY 4.0): it shows \
                mechanisms, not the paper's results"
                .to_owned(),
            Images::Files(_) | Images::CutOuts(_) => {
                format!("files in {}; {}", self.data.path, self.notes().join("; "))
            }
        };
        vec![
            ("Entries in the memory".into(), corpus.stored.to_string()),
            ("Sources".into(), corpus.sources.join(", ")),
            ("Training questions".into(), corpus.train.len().to_string()),
            ("Test questions".into(), corpus.test.len().to_string()),
            ("Data".into(), data),
            (USAGE.into(), "`engram answer RUN --questions mine.jsonl --out answers.jsonl`".into()),
        ]
    }

    fn evaluate(&self, model: &Reveal, context: &EvaluationContext<'_>) -> StudyResult<Evaluation> {
        let forward = self.forward(model, self.evaluation_memory.as_ref());
        let validation = &self.encoding.corpus.validation;
        let count = match self.data.evaluated_questions {
            0 => validation.len(),
            limit => limit.min(validation.len()),
        };
        // The validation questions are in the order of the images, so equal steps cover all images.
        let questions: Vec<&Example> =
            (0..count).map(|i| &validation[i * validation.len() / count]).collect();
        let answers = Answers::of(&forward, &questions, context.stop)?;
        let corpus = &self.encoding.corpus;
        let mut evaluation =
            QuestionMetrics::evaluation(&QuestionMetrics::of_parts(corpus, &questions, &answers));
        for pair in dataset_metrics::references_and_answers(corpus, &questions, &answers.texts)? {
            for measure in pair.measure()?.measures {
                // If two kinds of metrics share a name, the first is reported.
                if evaluation.get(&measure.metric).is_none() {
                    evaluation.metrics.push((measure.metric, measure.value));
                }
            }
        }
        if self.feeds.iter().any(|feed| feed.examples == Examples::Images) {
            let image_recall = validation_recall(&self.encoding, model, context.stop)?;
            evaluation.metrics.extend(image_recall.metrics);
            evaluation.counts.extend(image_recall.counts);
        }
        Ok(evaluation)
    }
}

impl StudyExtension for RevealStudy {
    fn save(&self, folder: &Path) -> StudyResult<()> {
        self.run_memory.save(folder)
    }

    fn restore(&mut self, folder: &Path) -> StudyResult<()> {
        self.run_memory.restore(folder)
    }

    fn take_record(&self) -> StudyResult<String> {
        self.run_memory.take_log()
    }

    fn add_records(&self, records: &[String]) -> StudyResult<()> {
        self.run_memory.add_logs(records)
    }

    /// The queries and the keys, in phases with images.
    fn features(
        &self,
        model: &Reveal,
        batch: &Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<Option<Features>> {
        if self.feeds[step.phase.index].examples != Examples::Images {
            return Ok(None);
        }
        let tensors = self.image_vectors(model, batch, &step.mode())?.into();
        Ok(Some(Features { examples: batch.examples.len(), tensors }))
    }

    fn before_evaluation(
        &mut self,
        model: &Reveal,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<()> {
        self.evaluation_memory = None;
        if self.memory.k > 0 {
            let (folder, dtype) = (self.run.join(EVALUATION_MEMORY), self.memory.value_type);
            let (encoding, ranks) = (&self.encoding, &self.run_memory.ranks);
            let memory = shards::build(&folder, model, encoding, dtype, context.stop, ranks)?;
            self.evaluation_memory = Some(memory);
        }
        Ok(())
    }
}
