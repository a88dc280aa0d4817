//! Answers of a finished run, with their evidence.

mod one;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_data::DataError;
use engram_data::image::Preprocessing;
use engram_data::text_to_text::T5Tokenizer;
use engram_data::world::haystack::WorldId;
use engram_infer::finished_run::{WEIGHTS, check_checksums};
use engram_memory::Entry;
use engram_memory::search::Hit;
use engram_models::kernels::Mode;
use engram_models::reveal::{Reveal, RevealConfig};
use engram_textfile::{TextError, not_blank, read_text};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::NAME;
use super::augmentation::BatchAugmentation;
use super::corpus::{Corpus, Images};
use super::evaluation::FinishedRun;
use super::evidence::{AttributionCase, Credit, Curves, order};
use super::forward::{EntryRef, Forward};
use super::identity::Identity;
use super::needle;
use super::published::{PROCESSOR, preprocessing};
use super::retriever::Retriever;
use super::run::{MODEL, TOKENIZER};
use super::run_memory::Encoding;
use super::sequences::Sequencer;
use super::settings::{RevealData, RevealMemory};
use crate::error::{Result, TrainError};
use crate::log;
use crate::recipe::{Recipe, RecipeOptions};
use crate::study::StudyResult;

/// A line of the input: a question about an image, or an image to describe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The id, copied to the answer.
    pub id: Value,
    /// The question; without it, the image is described.
    #[serde(default, alias = "text")]
    pub question: Option<String>,
    /// The image, relative to the file of questions.
    pub image: PathBuf,
    /// The index of the image.
    #[serde(skip)]
    pub place: usize,
    /// The line of the file, from 1.
    #[serde(skip)]
    pub line: u64,
}

/// Questions, and their distinct images.
#[derive(Debug, Clone, Default)]
pub struct Questions {
    /// The questions.
    pub list: Vec<Question>,
    /// The image files.
    pub images: Vec<PathBuf>,
}

/// An answer with its evidence.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The question's id.
    pub id: Value,
    /// The question; `None` for a description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Whether the question was truncated to the recipe's `data.max_query_tokens`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub question_cut: bool,
    /// The answer.
    pub answer: String,
    /// Its log-probability, in nats.
    pub log_probability: f64,
    /// The retrieved entries, best first.
    pub evidence: Vec<Evidence>,
    /// The answer's tokens, which label the columns of the credit; the end token is last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// Spearman's correlation between exact and estimated credit, over entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
    /// The answer's log-probability during deletion and insertion of entries, in several orders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<OrderedCurves>,
}

/// A retrieved entry.
#[derive(Debug, Clone, Serialize)]
pub struct Evidence {
    /// Its id.
    pub id: i64,
    /// Its source.
    pub source: String,
    /// Its text.
    pub text: String,
    /// Its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The cosine of query and key, times the gate.
    pub score: f64,
    /// The gate of its source for this query.
    pub gate: f64,
    /// Its weight in the fusion, 1 on average; `None` in search results without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prior: Option<f64>,
    /// The fall of each token's log-probability without the entry, in nats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credit: Vec<f64>,
    /// The same, estimated from the gradient.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gradient_credit: Vec<f64>,
}

impl Evidence {
    /// Creates the evidence of a search result; `gates` are the query's.
    fn of(entry: Entry, hit: &Hit, gates: &[f32]) -> Self {
        Self {
            id: hit.id,
            text: entry.text(),
            image: entry.image().map(Into::into),
            source: entry.source,
            score: f64::from(hit.score),
            gate: f64::from(gates[hit.source as usize]),
            prior: None,
            credit: Vec::new(),
            gradient_credit: Vec::new(),
        }
    }
}

/// The curves of one order of the entries.
#[derive(Debug, Clone, Serialize)]
pub struct OrderedCurves {
    /// The order: by `credit`, `gradient`, `score` or `reversed score`.
    pub order: &'static str,
    /// The curves.
    #[serde(flatten)]
    pub curves: Curves,
}

/// The optional parts of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Detail {
    /// The credit of each entry.
    pub credit: bool,
    /// Deletion and insertion curves.
    pub curves: bool,
}

/// A finished run that answers questions.
pub struct Answerer {
    model: Reveal,
    encoding: Arc<Encoding>,
    retriever: Option<Retriever>,
    k: usize,
    world: Option<WorldId>,
    /// For images that are added later.
    preprocessing: Preprocessing,
}

impl Answerer {
    /// Opens a run for questions about these images. `memory` replaces the run's own memory, `k`
    /// the number of retrieved entries.
    ///
    /// # Errors
    /// [`TrainError`] if the run is not finished, or its files do not belong together.
    pub fn open(
        run: &Path,
        memory: Option<&Path>,
        k: Option<usize>,
        images: Vec<PathBuf>,
    ) -> Result<Self> {
        check_checksums(run)?;
        let mut recipe = Recipe::load(&run.join("recipe.toml"), &RecipeOptions::default())?;
        let data: RevealData = recipe.data()?;
        let settings: RevealMemory = recipe.memory()?;
        let read = |file: &str| {
            let path = run.join(file);
            std::fs::read_to_string(&path).map_err(TrainError::io(&path))
        };
        let config: RevealConfig = serde_json::from_str(&read(MODEL)?).map_err(|error| {
            let file = run.join(MODEL);
            TrainError::in_study(NAME, "reading the sizes")(format!("{}: {error}", file.display()))
        })?;
        let path = run.join(TOKENIZER);
        let tokens = T5Tokenizer::parse(&read(TOKENIZER)?, &path)?;
        tokens.check_fits(config.t5.vocab_size)?;
        let size = config.image.image_size;
        let processor = Some(run.join(PROCESSOR)).filter(|path| path.is_file());
        let preprocessing = preprocessing(processor.as_deref(), size)
            .map_err(TrainError::in_study(NAME, "reading the image processor"))?;
        let corpus = Corpus::of_images(images, size, preprocessing.clone());
        let sequencer = Sequencer::new(tokens, &corpus, &data, config.image.image_size)
            .map_err(TrainError::in_study(NAME, "reading the tokenizer"))?;
        let encoding = Arc::new(Encoding { config, corpus, sequencer });
        let weights = run.join(WEIGHTS);
        let model = encoding
            .load_checked(&weights)
            .map_err(TrainError::in_study(NAME, "reading the weights"))?;
        let k = k.unwrap_or(settings.k);
        let retriever = match k {
            0 => None,
            _ => {
                let own = run.join("memory");
                let folder = memory.unwrap_or(&own);
                if settings.k == 0 {
                    let reason = "the run was trained without a memory; omit -k and --memory";
                    return Err(TrainError::in_study(NAME, "opening the memory")(reason));
                }
                if memory.is_none() && !folder.exists() {
                    log::print(&format!("{}: is missing and is built again", folder.display()));
                    FinishedRun::open(run)?.restore_memory()?;
                }
                if !folder.is_dir() {
                    let remedy = "use the folder of this run's memory, or a copy of it";
                    let reason = format!("{}: no such folder; {remedy}", folder.display());
                    return Err(TrainError::in_study(NAME, "opening the memory")(reason));
                }
                let opened = Retriever::open(folder).and_then(|retriever| {
                    retriever.check_fits(&encoding.config)?;
                    Identity::of(&weights, &path)?.check(folder, &own)?;
                    Ok(retriever)
                });
                Some(opened.map_err(TrainError::in_study(NAME, "opening the memory"))?)
            }
        };
        Ok(Self { model, encoding, retriever, k, world: data.world(), preprocessing })
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
        }
    }

    /// The number of entries retrieved per answer.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The first image that does not decode, with its index.
    pub fn first_broken_image(&self) -> Option<(usize, DataError)> {
        let Images::Files(files) = &self.encoding.corpus.images else { return None };
        let checked = files.check().into_iter().enumerate();
        checked.into_iter().find_map(|(index, checked)| Some((index, checked.err()?)))
    }

    /// Replies to haystack tasks about the images, each with its own entries of the memory.
    ///
    /// # Errors
    /// The errors of [`needle::replies`]; an error for a task about another world than the run's.
    pub fn reply(&self, tasks: &[needle::Task]) -> StudyResult<Vec<needle::Reply>> {
        for task in tasks {
            if let Some(task_world) =
                task.world.filter(|task_world| Some(*task_world) != self.world)
            {
                let location = &task.place;
                let own_world = match self.world {
                    Some(own_world) => format!(
                        "the run knows the world of {own_world}: make its tasks with `engram data world`"
                    ),
                    None => "the run uses images from files: ask it questions".to_owned(),
                };
                return Err(format!(
                    "{location}: is about the world of {task_world}, but {own_world}"
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
    pub fn answer(&self, questions: &[Question], detail: Detail) -> StudyResult<Vec<Answer>> {
        self.answer_about(&self.encoding.corpus, questions, detail, &[])
    }

    /// Answers questions about the images of a corpus, ignoring the entries in `without`.
    fn answer_about(
        &self,
        corpus: &Corpus,
        questions: &[Question],
        detail: Detail,
        without: &[i64],
    ) -> StudyResult<Vec<Answer>> {
        let sequencer = &self.encoding.sequencer;
        // The next-ranked entries replace ignored ones.
        let k = if self.k == 0 { 0 } else { self.k + without.len() };
        let forward = Forward { corpus, k, ..self.forward() };
        let mode = Mode::inference();
        let texts = questions.iter().map(|question| match &question.question {
            Some(text) => sequencer.question(text),
            None => Ok((sequencer.describe(), false)),
        });
        let (texts, is_truncated): (Vec<Vec<u32>>, Vec<bool>) =
            texts.collect::<StudyResult<_>>()?;
        let views: Vec<_> = questions.iter().map(|question| Some((question.place, 0))).collect();
        let base = self.model.encode(&sequencer.input(corpus, &texts, &views)?, &mode)?;
        let queries = self.model.query(&base, &mode)?;
        let gates = self.model.gates(&queries)?.to_vec2::<f32>()?;
        let mut hits = forward.search(&queries, &[])?;
        for hits in &mut hits {
            hits.retain(|hit| !without.contains(&hit.id));
            hits.truncate(self.k);
        }
        let reading = forward.reading(&hits);
        let fused = forward.fuse(&base, &queries, &reading, &[], &mode)?;
        let generated = self.model.generate(&fused.states, &forward.generation())?;
        let mut answers = Vec::new();
        for (i, (question, generated)) in questions.iter().zip(generated).enumerate() {
            let query = queries.narrow(0, i, 1)?;
            let own = vec![reading[i].clone()];
            let text = sequencer.tokens().decode(generated.without_end())?;
            let mut answer = Answer {
                id: question.id.clone(),
                question: question.question.clone(),
                question_cut: is_truncated[i],
                answer: text.trim().to_owned(),
                log_probability: f64::from(generated.log_probability),
                evidence: Vec::new(),
                tokens: Vec::new(),
                rank_correlation: None,
                curves: Vec::new(),
            };
            if let (Some(retriever), false) = (&self.retriever, own[0].is_empty()) {
                let prior = forward.read(&query, &own)?.0.to_vec1::<f32>()?;
                let generation = retriever.generation();
                for ((hit, (read, _)), prior) in hits[i].iter().zip(&own[0]).zip(prior) {
                    let EntryRef::Stored(row) = read else { continue };
                    let entry = generation.entry(*row)?;
                    let evidence = Evidence::of(entry, hit, &gates[i]);
                    answer.evidence.push(Evidence { prior: Some(f64::from(prior)), ..evidence });
                }
                if detail.credit || detail.curves {
                    let case = AttributionCase {
                        forward,
                        base: base.select(&[i])?,
                        query,
                        reading: own,
                        target: sequencer.generated(&generated.tokens),
                    };
                    explain(&case, detail, &mut answer)?;
                    let name = |id: &u32| sequencer.tokens().token_of(*id).unwrap_or_default();
                    answer.tokens = generated.tokens.iter().map(name).collect();
                }
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// Adds the credit of each entry, and the curves.
fn explain(case: &AttributionCase<'_>, detail: Detail, answer: &mut Answer) -> StudyResult<()> {
    let Credit { exact, gradient, rank_correlation, .. } = case.credit()?;
    if detail.curves {
        let ranked: Vec<usize> = (0..exact.len()).collect();
        let orders = [
            ("credit", order(&exact)),
            ("gradient", order(&gradient)),
            ("score", ranked.clone()),
            ("reversed score", ranked.into_iter().rev().collect()),
        ];
        for (name, order) in orders {
            answer.curves.push(OrderedCurves { order: name, curves: case.curves(&order)? });
        }
    }
    answer.rank_correlation = rank_correlation;
    for ((evidence, exact), gradient) in answer.evidence.iter_mut().zip(exact).zip(gradient) {
        (evidence.credit, evidence.gradient_credit) = (exact, gradient);
    }
    Ok(())
}

const QUESTION: &str = "a line is {\"id\": …, \"question\": …, \"image\": a path from the file's \
                        folder}, or without a question, for a description of the image";

/// Reads questions from JSON lines.
///
/// # Errors
/// [`TextError::Malformed`] naming the file and line of an invalid question, a missing image or a
/// repeated id.
pub fn read_questions(path: &Path) -> Result<Questions> {
    let text = read_text(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut questions = Questions::default();
    let mut index_of: HashMap<PathBuf, usize> = HashMap::new();
    let mut line_of: HashMap<String, u64> = HashMap::new();
    for (number, line) in not_blank(&text) {
        let wrong = |reason: String| TextError::malformed(path, number, reason, QUESTION);
        let mut question = parse_question(line).map_err(wrong)?;
        if let Some(first) = line_of.insert(question.id.to_string(), number) {
            let id = &question.id;
            return Err(wrong(format!("the id {id} is already used in line {first}")).into());
        }
        let file = folder.join(&question.image);
        if !file.is_file() {
            return Err(wrong(format!("image not found: {}", file.display())).into());
        }
        question.place = *index_of.entry(file.clone()).or_insert_with(|| {
            questions.images.push(file);
            questions.images.len() - 1
        });
        question.line = number;
        questions.list.push(question);
    }
    if questions.list.is_empty() {
        let remedy = "write JSON lines, each with `id`, `question` and `image`";
        return Err(TextError::malformed(path, None, "has no questions", remedy).into());
    }
    Ok(questions)
}

/// Parses a question, or returns the fault.
fn parse_question(line: &str) -> std::result::Result<Question, String> {
    let without_line = |error: serde_json::Error| error.to_string().replace(" at line 1 ", " at ");
    let fields: Map<String, Value> = serde_json::from_str(line).map_err(without_line)?;
    // Other fields are allowed, but a misspelt `question` would turn the line into a description.
    for key in fields.keys() {
        let keys = ["id", "question", "text", "image"];
        if let Some(key_name) =
            keys.into_iter().find(|known| key.trim().eq_ignore_ascii_case(known))
            && key != key_name
        {
            return Err(format!("has `{key}`; did you mean `{key_name}`?"));
        }
    }
    let question: Question = serde_json::from_value(Value::Object(fields)).map_err(without_line)?;
    if question.id.is_null() {
        return Err("has no id".to_owned());
    }
    if question.question.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err("has an empty question; remove it for a description of the image".to_owned());
    }
    Ok(question)
}
