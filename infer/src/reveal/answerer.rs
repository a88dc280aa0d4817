//! Answers questions with a finished run, and returns the evidence: the retrieved entries and their
//! attribution.

pub mod facts;
mod one;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_data::DataError;
use engram_data::image::Preprocessing;
use engram_data::text_to_text::T5Tokenizer;
use engram_data::world::IMAGES;
use engram_data::world::haystack::WorldId;
use engram_memory::search::Hit;
use engram_memory::{Entry, Memory, Store, ValueStorage};
use engram_models::compute::{Compute, to_host};
use engram_models::kernels::Mode;
use engram_models::mobilenet::{IMAGE_SIZE, MobileNet};
use engram_models::reveal::{Reveal, RevealConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::augmentation::BatchAugmentation;
use super::control::Control;
use super::corpus::Corpus;
use super::encoding::{Encoding, MODEL, TOKENIZER};
use super::evidence::{Attribution, AttributionCase};
use super::feature_maps::FeatureMaps;
use super::forward::{EntryRef, Forward};
use super::identity::Identity;
use super::images::{Images, PROCESSOR, preprocessing};
use super::needle;
use super::questions::Question;
use super::retriever::Retriever;
use super::sequences::{SequenceSettings, Sequencer};
use super::shapley::Subsets;
use crate::error::{InferError, Result};
use crate::finished_run::{RECIPE, WEIGHTS, check_checksums};

/// An answer with its evidence.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The question's id.
    pub id: Value,
    /// The question; `None` if the image was to be described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Whether the question was truncated to the recipe's `data.max_query_tokens`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub question_truncated: bool,
    /// The answer.
    pub answer: String,
    /// The log-probability of the answer, in nats.
    pub log_probability: f64,
    /// The retrieved entries, best first.
    pub evidence: Vec<Evidence>,
    /// The answer's tokens, one per value of `attribution`. The end token is last, unless the
    /// answer reached its maximum length. Empty unless [`Detail`] requests the attribution.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// The answer's log-probability for each subset of the evidence: entry `i` is in subset `s` if
    /// bit `i` of `s` is set. Empty unless [`Detail::shapley`].
    #[serde(skip)]
    pub subsets: Vec<f64>,
}

/// A retrieved entry.
#[derive(Debug, Clone, Serialize)]
pub struct Evidence {
    /// The id of the entry.
    pub id: i64,
    /// The source of the entry.
    pub source: String,
    /// The text of the entry.
    pub text: String,
    /// The path or URL of the image of the entry; `None` without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The path of a recording of the entry's words, from its payload; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// The cosine of query and key, times `gate`.
    pub score: f64,
    /// The weight that the model's gate gives the entry's source for this query; 1 without a gate.
    pub gate: f64,
    /// The weight (prior) of the entry in the fusion, 1 on average over the entries of an answer;
    /// `None` in search results without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prior: Option<f64>,
    /// For each answer token, the decrease of its log-probability if the entry is removed, in nats.
    /// Empty unless [`Detail`] requests the attribution.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attribution: Vec<f64>,
    /// The estimate of `attribution` from the gradient.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gradient_attribution: Vec<f64>,
    /// The [Shapley value](super::shapley) for each answer token, in nats. Empty unless
    /// [`Detail::shapley`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shapley: Vec<f64>,
}

/// The path of the recording of an entry's words: `recording` in its payload.
pub fn recording(entry: &Entry) -> Option<&str> {
    entry.payload.get("recording")?.as_str()
}

impl Evidence {
    /// Creates the evidence of a search result. `gates` holds the gate of each source for this
    /// query.
    fn of(entry: Entry, hit: &Hit, gates: &[f32]) -> Self {
        Self {
            id: hit.id,
            text: entry.text(),
            image: entry.image().map(Into::into),
            recording: recording(&entry).map(Into::into),
            source: entry.source,
            score: f64::from(hit.score),
            gate: f64::from(gates[hit.source as usize]),
            prior: None,
            attribution: Vec::new(),
            gradient_attribution: Vec::new(),
            shapley: Vec::new(),
        }
    }
}

/// The optional parts of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Detail {
    /// The attribution of each entry.
    pub attribution: bool,
    /// The Shapley value of each entry. This also requests the attribution.
    pub shapley: bool,
}

/// A finished run that answers questions.
pub struct Answerer {
    model: Reveal,
    encoding: Arc<Encoding>,
    /// `None` if the answers use no memory.
    retriever: Option<Retriever>,
    /// The number of retrieved entries per answer.
    k: usize,
    /// A change to what questions read from the memory; `None` in normal use.
    control: Option<Control>,
    /// The embedded world that the run was trained on; `None` for a run on data from files.
    world: Option<WorldId>,
    /// Whether the run was trained on facts alone.
    is_of_facts: bool,
    /// For images that are given after [`Answerer::open`].
    inputs: ImageInputs,
}

/// How the model takes images from files.
struct ImageInputs {
    /// Width and height of an image after the preprocessing, in pixels.
    size: usize,
    preprocessing: Preprocessing,
    /// `None` for a model that takes pixels.
    network: Option<Arc<MobileNet>>,
}

impl ImageInputs {
    /// Reads the files of a run that has a model of these sizes.
    fn of_run(run: &Path, config: &RevealConfig) -> Result<Self> {
        let network = FeatureMaps::network_of(run, config)?;
        let size = network.as_ref().map_or(config.image.image_size, |_| IMAGE_SIZE);
        let processor = Some(run.join(PROCESSOR)).filter(|path| path.is_file());
        let preprocessing = preprocessing(processor.as_deref(), size)?;
        Ok(Self { size, preprocessing, network })
    }

    /// A corpus of images only.
    fn corpus(&self, paths: Vec<PathBuf>) -> Corpus {
        let corpus = Corpus::of_images(paths, self.size, self.preprocessing.clone());
        // Each image is read once, so there is no cache.
        let maps = self.network.as_ref().map(|network| FeatureMaps::new(Arc::clone(network), 0));
        Corpus { maps, ..corpus }
    }
}

impl Answerer {
    /// Opens a run for questions about these images. `memory` (with its folder or address) replaces
    /// the run's own memory. `k` replaces its number of retrieved entries; 0 answers without a
    /// memory. `None` keeps the run's own. The model computes on `compute`. `values` reads the
    /// values of the run's own memory that are outside of its folder.
    ///
    /// # Errors
    /// [`InferError`] if the run is not finished, or its files do not belong together.
    pub fn open(
        run: &Path,
        memory: Option<(&Path, Box<dyn Store>)>,
        k: Option<usize>,
        images: Vec<PathBuf>,
        compute: &Compute,
        values: Option<Arc<dyn ValueStorage>>,
    ) -> Result<Self> {
        let mut answerer = Self::without_memory(run, k, images, compute)?;
        if answerer.k > 0 {
            let run_memory = run.join("memory");
            let (location, memory) = match memory {
                Some(memory) => memory,
                None => (&*run_memory, Box::new(Memory::open_with(&run_memory, values)?) as _),
            };
            let retriever = Retriever::of(memory);
            retriever.check_fits(&answerer.encoding.config)?;
            let snapshot = retriever.snapshot();
            let encoders = &snapshot.description().encoders;
            Identity::of_run(run)?.check(location, encoders, &run_memory)?;
            answerer.retriever = Some(retriever);
        }
        Ok(answerer)
    }

    /// Opens a run without its own memory, for memories of facts ([`Answerer::fact_memory`]). `k` is
    /// as in [`Answerer::open`].
    ///
    /// # Errors
    /// [`InferError`] if the run is not finished, or its files do not belong together.
    pub fn without_memory(
        run: &Path,
        k: Option<usize>,
        images: Vec<PathBuf>,
        compute: &Compute,
    ) -> Result<Self> {
        check_checksums(run)?;
        let recipe = RunRecipe::read(run)?;
        let config: RevealConfig = serde_json::from_str(&read(&run.join(MODEL))?)
            .map_err(|error| format!("{}: {error}", run.join(MODEL).display()))?;
        let path = run.join(TOKENIZER);
        let tokens = T5Tokenizer::parse(&read(&path)?, &path)?;
        tokens.check_embeddings(config.t5.vocab_size)?;
        let inputs = ImageInputs::of_run(run, &config)?;
        let corpus = inputs.corpus(images);
        let sequencer = Sequencer::new(tokens, &corpus, &recipe.data.sequences)?;
        let encoding = Arc::new(Encoding { config, corpus, sequencer });
        let weights = run.join(WEIGHTS);
        let model = encoding.load_checked(&weights, compute)?;
        let own_k = recipe.memory.k;
        let k = k.unwrap_or(own_k);
        if k > 0 && own_k == 0 {
            return Err(InferError::NoMemory);
        }
        let (world, is_of_facts) = (recipe.data.world(), recipe.data.triplets > 0);
        let (retriever, control) = (None, None);
        Ok(Self { model, encoding, retriever, k, control, world, is_of_facts, inputs })
    }

    fn forward(&self) -> Forward<'_> {
        let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
        Forward {
            model: &self.model,
            corpus,
            sequencer,
            retriever: self.retriever.as_ref(),
            k: self.k,
            reencoded: 0,
            augmentation: BatchAugmentation::default(),
            control: self.control,
        }
    }

    /// Answers with a control from now on.
    ///
    /// # Errors
    /// The control has no effect on this run.
    pub fn set_control(&mut self, control: Control) -> Result<()> {
        if self.k == 0 || (control == Control::FixedGate && !self.model.config.gate) {
            let missing = if self.k == 0 { "no memory is read" } else { "the model has no gate" };
            return Err(format!("{missing}, so the control has no effect; leave it out").into());
        }
        self.control = Some(control);
        Ok(())
    }

    /// The number of entries retrieved per answer.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The index of the first image that cannot be decoded, with its error; `None` if all can be
    /// decoded.
    pub fn first_broken_image(&self) -> Option<(usize, DataError)> {
        let Images::Files(files) = &self.encoding.corpus.images else { return None };
        let mut results = files.check().into_iter().enumerate();
        results.find_map(|(index, result)| Some((index, result.err()?)))
    }

    /// Replies to haystack tasks about the images. For each task, only the entries of its haystack
    /// can be retrieved.
    ///
    /// # Errors
    /// The errors of [`needle::replies`]; an error for a task about another world than the run's.
    pub fn reply(&self, tasks: &[needle::Task]) -> Result<Vec<needle::Reply>> {
        for task in tasks {
            if let Some(task_world) =
                task.world.filter(|task_world| Some(*task_world) != self.world)
            {
                let location = &task.location;
                let reason = match self.world {
                    Some(run_world) => format!(
                        "the run was trained on the world of {run_world}: make its tasks with \
                         `engram data world`"
                    ),
                    None => "the run uses images from files: ask it questions".to_owned(),
                };
                return Err(format!(
                    "{location}: is about the world of {task_world}, but {reason}"
                )
                .into());
            }
        }
        needle::replies(&self.forward(), tasks)
    }

    /// Answers questions.
    ///
    /// # Errors
    /// An image cannot be read, or the memory is damaged.
    pub fn answer(&self, questions: &[Question], detail: Detail) -> Result<Vec<Answer>> {
        self.answer_about(&self.encoding.corpus, questions, detail, &[])
    }

    /// Answers questions about the images of a corpus. Ignores the entries with the ids in
    /// `ignored_ids`.
    fn answer_about(
        &self,
        corpus: &Corpus,
        questions: &[Question],
        detail: Detail,
        ignored_ids: &[i64],
    ) -> Result<Vec<Answer>> {
        let sequencer = &self.encoding.sequencer;
        // The next-ranked entries replace ignored entries.
        let k = if self.k == 0 { 0 } else { self.k + ignored_ids.len() };
        let forward = Forward { corpus, k, ..self.forward() };
        let mode = Mode::inference();
        let texts = questions.iter().map(|question| match &question.question {
            Some(text) => sequencer.question(text),
            None => Ok((sequencer.describe(), false)),
        });
        let (texts, is_truncated): (Vec<Vec<u32>>, Vec<bool>) = texts.collect::<Result<_>>()?;
        let views: Vec<_> =
            questions.iter().map(|question| Some((question.image_index, 0))).collect();
        let base = self.model.encode(&sequencer.input(corpus, &texts, &views)?, &mode)?;
        let queries = self.model.query(&base, &mode)?;
        let gates = forward.gates(&queries)?;
        let num_sources = gates.dim(1)?;
        let gates = to_host(&gates)?;
        let mut hits = forward.search(&queries, &[])?;
        for hits in &mut hits {
            hits.retain(|hit| !ignored_ids.contains(&hit.id));
            hits.truncate(self.k);
        }
        let entries = forward.entries_to_fuse(&hits);
        let fused = forward.fuse(&base, &queries, &entries, &[], &mode)?;
        let generated = self.model.generate(&fused.states, &forward.generation())?;
        let mut answers = Vec::new();
        for (i, (question, generated)) in questions.iter().zip(generated).enumerate() {
            let query = queries.narrow(0, i, 1)?;
            let query_entries = vec![entries[i].clone()];
            let text = sequencer.tokens().decode(generated.without_end())?;
            let mut answer = Answer {
                id: question.id.clone(),
                question: question.question.clone(),
                question_truncated: is_truncated[i],
                answer: text.trim().to_owned(),
                log_probability: f64::from(generated.log_probability),
                evidence: Vec::new(),
                tokens: Vec::new(),
                subsets: Vec::new(),
            };
            if let (Some(retriever), false) = (&self.retriever, query_entries[0].is_empty()) {
                let prior = to_host(&forward.read(&query, &query_entries)?.0)?;
                let snapshot = retriever.snapshot();
                let scored = hits[i].iter().zip(&query_entries[0]).zip(prior);
                for ((hit, (entry, _)), prior) in scored {
                    let EntryRef::Stored(row) = entry else { continue };
                    let entry = snapshot.entry(*row)?;
                    let evidence =
                        Evidence::of(entry, hit, &gates[i * num_sources..][..num_sources]);
                    answer.evidence.push(Evidence { prior: Some(f64::from(prior)), ..evidence });
                }
                if detail.attribution || detail.shapley {
                    let case = AttributionCase {
                        forward,
                        base: base.select(&[i])?,
                        query,
                        entries_to_fuse: query_entries,
                        target: sequencer.generated(&generated.tokens),
                    };
                    add_attribution(&case, detail, &mut answer)?;
                    let token = |id: &u32| sequencer.tokens().token_of(*id).unwrap_or_default();
                    answer.tokens = generated.tokens.iter().map(token).collect();
                }
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// The keys of a finished run's recipe that answering needs. A run's recipe has all keys.
#[derive(Deserialize)]
struct RunRecipe {
    data: RunData,
    memory: RunMemory,
}

#[derive(Deserialize)]
struct RunData {
    world_seed: u64,
    max_images: usize,
    captions: Vec<toml::Value>,
    questions: Vec<toml::Value>,
    entries: Vec<String>,
    /// Pictures of things, if the run has them.
    things: Option<toml::Value>,
    /// The number of made-up databases; 0 if the recipe does not name them.
    #[serde(default)]
    triplets: usize,
    #[serde(flatten)]
    sequences: SequenceSettings,
}

#[derive(Deserialize)]
struct RunMemory {
    k: usize,
}

impl RunRecipe {
    fn read(run: &Path) -> Result<Self> {
        let path = run.join(RECIPE);
        toml::from_str(&read(&path)?).map_err(|error: toml::de::Error| {
            let reason = error.message().trim();
            format!("{}: is not the recipe of a REVEAL run: {reason}", path.display()).into()
        })
    }
}

impl RunData {
    /// The embedded world of the data; `None` for data from files.
    fn world(&self) -> Option<WorldId> {
        // In a recipe, 0 means all images.
        let images = if self.max_images == 0 { IMAGES } else { self.max_images };
        let has_files = self.things.is_some()
            || self.triplets > 0
            || !(self.captions.is_empty() && self.questions.is_empty() && self.entries.is_empty());
        (!has_files).then_some(WorldId { seed: self.world_seed, images })
    }
}

fn read(path: &Path) -> Result<String> {
    engram_durable::read_text(path).map_err(InferError::io(path))
}

/// Adds the attribution of each entry to an answer, and what else `detail` requests.
fn add_attribution(case: &AttributionCase<'_>, detail: Detail, answer: &mut Answer) -> Result<()> {
    let Attribution { exact, gradient, .. } = case.attribution()?;
    for ((evidence, exact), gradient) in answer.evidence.iter_mut().zip(exact).zip(gradient) {
        (evidence.attribution, evidence.gradient_attribution) = (exact, gradient);
    }
    if detail.shapley {
        let subsets = Subsets::of(case)?;
        for (evidence, shapley) in answer.evidence.iter_mut().zip(subsets.shapley()) {
            evidence.shapley = shapley;
        }
        answer.subsets = subsets.sums();
    }
    Ok(())
}
