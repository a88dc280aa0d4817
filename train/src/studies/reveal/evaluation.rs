//! Further tests of a finished run on its data: answering the test questions with other settings,
//! and measuring the quality of attributions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_infer::finished_run::{RECIPE, WEIGHTS, check_checksums};
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::control::Control;
use engram_infer::reveal::corpus::Example;
use engram_infer::reveal::encoding::Encoding;
use engram_infer::reveal::evidence::{Attribution, AttributionCase, area, order};
use engram_infer::reveal::forward::Forward;
use engram_infer::reveal::identity::Identity;
use engram_infer::reveal::retriever::Retriever;
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::reveal::Reveal;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::NAME;
use super::run::{TestAnswer, settings, test_answers};
use super::settings::RevealMemory;
use super::study::RevealStudy;
use crate::Stop;
use crate::error::{Result, TrainError};
use crate::log;
use crate::recipe::{Recipe, RecipeOptions};
use crate::run_folder::{check_inputs, lock};
use crate::study::{Study, StudyError, StudyResult};

/// A finished run with its data and weights.
pub struct FinishedRun {
    run: PathBuf,
    study: RevealStudy,
    encoding: Arc<Encoding>,
    model: Reveal,
}

/// The areas under an answer's deletion curves, for three orders of deletion. A deletion curve is
/// the log-probability of the answer in nats while retrieved entries are deleted one by one. The
/// area under the curve is its mean. A lower area means that the order deletes important entries
/// earlier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeletionAreas {
    /// The index of the question's image; `None` if it has none.
    pub image: Option<usize>,
    /// In order of descending exact attribution (leave-one-out).
    pub exact: f64,
    /// In order of descending attribution as estimated from the gradient.
    pub gradient: f64,
    /// In random order.
    pub random: f64,
}

impl FinishedRun {
    /// Opens a run.
    ///
    /// # Errors
    /// Errors of the run's recipe and weights; an error if the data differ from the training data.
    pub fn open(run: &Path) -> Result<Self> {
        check_checksums(run)?;
        let mut recipe = Recipe::load(&run.join(RECIPE), &RecipeOptions::default())?;
        let settings = settings(&mut recipe)?;
        let batch = recipe.batch.clone();
        // The machine may lack the device of the training.
        let compute = Compute::cpu();
        let study = RevealStudy::new(settings, batch, compute.clone(), run.into(), Some(run));
        let study = study.map_err(TrainError::in_study(NAME, "reading the data"))?;
        let inputs = study.inputs().map_err(TrainError::in_study(NAME, "reading the data"))?;
        check_inputs(run, &inputs)?;
        let encoding = study.encoding();
        for (file, content) in
            encoding.files().map_err(TrainError::in_study(NAME, "opening the run"))?
        {
            let path = run.join(file);
            if engram_durable::read_text(&path).map_err(TrainError::io(&path))? != content {
                let reason = "differs from the file that this program derives from the run's \
                              recipe and data; use the build that trained the run";
                let message = format!("{}: {reason}", path.display());
                return Err(TrainError::in_study(NAME, "opening the run")(message));
            }
        }
        let model = encoding.load_checked(&run.join(WEIGHTS), &compute);
        let model = model.map_err(TrainError::in_study(NAME, "reading the weights"))?;
        Ok(Self { run: run.to_path_buf(), study, encoding, model })
    }

    /// Answers the test questions again, with another `k`, without some sources, or with a control.
    ///
    /// # Errors
    /// Errors of opening the memory; an error for a source that is not in the memory.
    pub fn evaluate(
        &self,
        k: Option<usize>,
        without_sources: &[String],
        control: Option<Control>,
    ) -> Result<Vec<TestAnswer>> {
        let evaluate = || -> StudyResult<Vec<TestAnswer>> {
            let k = k.unwrap_or(self.study.forward(&self.model, None).k);
            let corpus = &self.encoding.corpus;
            let retriever = self.retriever(k, without_sources)?;
            let forward =
                Forward { k, control, ..self.study.forward(&self.model, retriever.as_ref()) };
            let changed_examples = control.map(|control| control.examples(corpus));
            let examples: Vec<&Example> =
                changed_examples.as_ref().unwrap_or(&corpus.test).iter().collect();
            let answer = match control {
                Some(Control::OwnEntry) => Answers::of_own_entries,
                _ => Answers::of,
            };
            let answers = answer(&forward, &examples, &Stop::default())?;
            Ok(test_answers(corpus, &examples, &answers))
        };
        evaluate().map_err(TrainError::in_study(NAME, "evaluating a finished run again"))
    }

    /// Deletes retrieved entries of test questions, in the order of attribution and at random.
    /// Takes `questions` questions, or all if there are fewer, spread evenly over the questions
    /// about facts that only the memory contains. `seed` draws the random orders.
    ///
    /// # Errors
    /// Errors of opening the memory.
    pub fn deletion_areas(&self, questions: usize, seed: u64) -> Result<Vec<DeletionAreas>> {
        let measure = || -> StudyResult<Vec<DeletionAreas>> {
            let retriever = self.retriever(self.study.forward(&self.model, None).k, &[])?;
            let forward = self.study.forward(&self.model, retriever.as_ref());
            let test = self.encoding.corpus.test.iter();
            let candidates: Vec<&Example> = test.filter(|example| example.made_up).collect();
            let count = questions.min(candidates.len());
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            (0..count)
                .map(|i| candidates[i * candidates.len() / count])
                .map(|example| deletion_areas_of(&forward, example, &mut rng))
                .collect()
        };
        measure().map_err(TrainError::in_study(NAME, "measuring deletion areas"))
    }

    /// Builds the run's memory again if it was removed.
    ///
    /// # Errors
    /// If the folder cannot be written, or another process writes to it.
    pub fn restore_memory(&self) -> Result<()> {
        let _lock = lock(&self.run)?;
        let k = self.study.forward(&self.model, None).k;
        self.retriever(k, &[])
            .map(drop)
            .map_err(TrainError::in_study(NAME, "building the memory again"))
    }

    /// Opens the run's memory, and builds it again with the final weights if it was removed. `None`
    /// if `k` is 0.
    fn retriever(&self, k: usize, without_sources: &[String]) -> StudyResult<Option<Retriever>> {
        if k == 0 {
            return Ok(None);
        }
        let folder = self.run.join("memory");
        let identity = Identity::of_run(&self.run)?;
        // The identity file is written last, so a memory that has it is complete.
        let retriever = if Identity::is_in(&folder) {
            identity.check(&folder, &[], &folder)?;
            Retriever::open(&folder)?
        } else {
            let Encoding { corpus, sequencer, .. } = self.encoding.as_ref();
            let retriever = Retriever::build(
                &folder,
                &self.model,
                corpus,
                sequencer,
                self.study.memory.value_type,
                &Stop::default(),
            )?;
            identity.write(&folder)?;
            retriever
        };
        retriever.check_fits(&self.encoding.config)?;
        Ok(Some(retriever.without_sources(without_sources)?))
    }
}

/// Builds the memory of a finished run again if it was removed; prints a note unless `quiet`. Does
/// nothing for a run without a memory.
///
/// # Errors
/// The errors of [`FinishedRun::open`] and [`FinishedRun::restore_memory`].
pub fn restore_missing_memory(run: &Path, quiet: bool) -> Result<()> {
    let memory = run.join("memory");
    let mut recipe = Recipe::load(&run.join(RECIPE), &RecipeOptions::default())?;
    if memory.exists() || recipe.memory::<RevealMemory>()?.k == 0 {
        return Ok(());
    }
    if !quiet {
        log::print(&format!("{}: is missing and is built again", memory.display()));
    }
    FinishedRun::open(run)?.restore_memory()
}

/// The deletion areas of one question, for the model's own answer.
fn deletion_areas_of(
    forward: &Forward<'_>,
    example: &Example,
    rng: &mut ChaCha8Rng,
) -> StudyResult<DeletionAreas> {
    let (sequencer, mode) = (forward.sequencer, Mode::inference());
    let forward = Forward { reencoded: 0, ..*forward };
    let texts = [sequencer.question(&example.text)?.0];
    let views = [example.image.map(|image| (image, example.view))];
    let base = forward.model.encode(&sequencer.input(forward.corpus, &texts, &views)?, &mode)?;
    let query = forward.model.query(&base, &mode)?;
    let entries_to_fuse = forward.entries_to_fuse(&forward.search(&query, &[])?);
    let fused = forward.fuse(&base, &query, &entries_to_fuse, &[], &mode)?;
    let mut generated = forward.model.generate(&fused.states, &forward.generation())?;
    let answer = generated.pop().ok_or("no answer was generated")?;
    let mut random: Vec<usize> = (0..entries_to_fuse[0].len()).collect();
    random.shuffle(rng);
    let target = sequencer.generated(&answer.tokens);
    let case = AttributionCase { forward, base, query, entries_to_fuse, target };
    let Attribution { exact, gradient, .. } = case.attribution()?;
    let area_by = |order: &[usize]| Ok::<_, StudyError>(area(&case.deletion_curve(order)?));
    Ok(DeletionAreas {
        image: example.image,
        exact: area_by(&order(&exact))?,
        gradient: area_by(&order(&gradient))?,
        random: area_by(&random)?,
    })
}
