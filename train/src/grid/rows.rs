//! Training and asking the rows of a grid, where it was not done before.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ablated::Hashes;
use super::folder::{GridFolder, TakenRun};
use super::report::GridReport;
use super::settings::{Grid, Phases, RowSettings};
use crate::error::{Result, TrainError};
use crate::log;
use crate::program::Program;
use crate::recipe::Recipe;
use crate::run_folder::is_finished;
use crate::stop::Stop;
use crate::trainer::RunOptions;

/// The hash's digits in the name of a folder.
const DIGITS: usize = 12;
/// How long a process waits before it asks again whether another one has finished a run.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a grid is run.
#[derive(Debug, Clone)]
pub struct GridOptions {
    /// The folder for the runs: `seed-1/ROW` and so on.
    pub out: PathBuf,
    /// How many seeds, from 1 on.
    pub seeds: u64,
    /// Shows no progress of the runs.
    pub quiet: bool,
    /// Takes runs of other programs as they are, and goes on with them.
    pub reuse: bool,
    /// Through which the run under way is asked to stop: the grid then ends with
    /// [`TrainError::Stopped`].
    pub stop: Stop,
}

/// Where a grid stands when a run begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridProgress {
    /// The run: `seed 1, cold-start`.
    pub run: String,
    /// Training steps that were made by this call.
    pub steps_made: u64,
    /// Training steps that are left, this run's with them.
    pub steps_left: u64,
}

/// A run to be trained.
struct Job {
    seed: u64,
    name: String,
    folder: PathBuf,
    steps: u64,
    recipe: JobRecipe,
}

/// The recipe of a job: that of the rest of a row needs the weights of the shared phases first.
enum JobRecipe {
    Ready(Box<Recipe>),
    After(PathBuf, RowSettings),
}

/// Trains and asks all rows with all seeds; what was finished by an earlier call is not done again.
///
/// Several processes may be given the same grid and folder: each takes runs that no other has, and returns when all are
/// finished.
///
/// # Errors
/// Those of the study; [`TrainError::Recipe`] where a finished run in the folder is of other settings, or of
/// another program.
pub fn run_grid(
    grid: &Grid,
    options: &GridOptions,
    progress: &mut dyn FnMut(&GridProgress),
) -> Result<GridReport> {
    let folder = GridFolder::open(&options.out)?;
    let report = run_in(grid, options, progress);
    if report.is_err() {
        // The first error matters.
        let _ = folder.tidy();
    }
    report
}

fn run_in(
    grid: &Grid,
    options: &GridOptions,
    progress: &mut dyn FnMut(&GridProgress),
) -> Result<GridReport> {
    let mut waiting = Vec::new();
    for seed in 1..=options.seeds {
        waiting.extend(jobs(grid, seed, &options.out.join(format!("seed-{seed}")))?);
    }
    // Before anything is trained.
    let mut reused = Vec::new();
    for job in &waiting {
        if Program::is_other(&job.folder, options.reuse)? {
            reused.push(job.label());
        }
    }
    let mut rows = Rows { grid, options, hashes: Hashes::new(), steps_made: 0 };
    let mut is_told = options.quiet;
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting = rows.make_free_ones(waiting, progress)?;
        if let Some(job) = waiting.first().filter(|_| waiting.len() == before) {
            if !is_told {
                log::print(&format!("{}: another process is at it", job.label()));
            }
            is_told = true;
            std::thread::sleep(PATIENCE);
        }
    }
    for seed in 1..=options.seeds {
        let folder = options.out.join(format!("seed-{seed}"));
        for row in grid.rows() {
            if let Some(of) = &row.of {
                let run = folder.join(&row.name);
                let _taken = TakenRun::wait_for(&run)?;
                grid.study().ask_again(row, &folder.join(of), &run)?;
            }
        }
    }
    GridReport::new(grid, options, reused)
}

/// The rows while they are made.
struct Rows<'a> {
    grid: &'a Grid,
    options: &'a GridOptions,
    /// Of the weights that finished runs were trained with, by path.
    hashes: Hashes,
    steps_made: u64,
}

impl Rows<'_> {
    /// Makes the runs that can begin and that no other process has, and returns those that are left.
    fn make_free_ones(
        &mut self,
        waiting: Vec<Job>,
        progress: &mut dyn FnMut(&GridProgress),
    ) -> Result<Vec<Job>> {
        let mut left = Vec::new();
        let mut jobs = waiting.into_iter();
        while let Some(job) = jobs.next() {
            let taken = if job.can_begin() { TakenRun::take(&job.folder)? } else { None };
            let Some(_taken) = taken else {
                left.push(job);
                continue;
            };
            if is_finished(&job.folder) {
                self.check(&job)?;
            } else {
                let others = left.iter().chain(jobs.as_slice());
                let unfinished = others.filter(|other| !is_finished(&other.folder));
                let steps_left = job.steps + unfinished.map(|other| other.steps).sum::<u64>();
                let (run, steps_made) = (job.label(), self.steps_made);
                progress(&GridProgress { run, steps_made, steps_left });
                self.train(&job)?;
                self.steps_made += job.steps;
            }
            // Of finished ones as well: a call may have ended between the two.
            tidy(self.grid, &job.folder)?;
        }
        Ok(left)
    }

    fn train(&self, job: &Job) -> Result<()> {
        let options = RunOptions {
            run: job.folder.clone(),
            resume: true,
            quiet: self.options.quiet,
            label: Some(job.label()),
            stop: self.options.stop.clone(),
            ..RunOptions::default()
        };
        self.grid.study().train(&mut job.recipe(self.grid)?, &options)
    }

    /// Fails unless a finished run is of the settings and the weights that the grid has now.
    fn check(&mut self, job: &Job) -> Result<()> {
        let (grid, mut recipe) = (self.grid, job.recipe(self.grid)?);
        recipe.pin_start()?;
        grid.study().complete_recipe(&mut recipe)?;
        let reason = if grid.study().recipe_hash(&job.folder)? != recipe.hash()? {
            Some("has a finished run of other settings".to_owned())
        } else {
            grid.study().other_weights(&mut recipe, &job.folder, &mut self.hashes)?
        };
        let Some(reason) = reason else { return Ok(()) };
        let reason = format!("{reason}; give another folder for the grid, or remove this one");
        Err(TrainError::Recipe { place: job.folder.display().to_string(), reason })
    }
}

/// The runs of a seed, in the order in which they have to be made.
fn jobs(grid: &Grid, seed: u64, folder: &Path) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    let steps = |recipe: &Recipe| recipe.phases().iter().filter_map(|phase| phase.steps).sum();
    for row in grid.rows().iter().filter(|row| row.of.is_none()) {
        let mut whole = grid.recipe(row, seed, Phases::Whole)?;
        grid.study().complete_recipe(&mut whole)?;
        let own = folder.join(&row.name);
        if !grid.shares(&whole) {
            let (name, steps) = (row.name.clone(), steps(&whole));
            jobs.push(Job {
                seed,
                name,
                folder: own,
                steps,
                recipe: JobRecipe::Ready(whole.into()),
            });
            continue;
        }
        let mut shared = grid.recipe(row, seed, Phases::Shared)?;
        grid.study().complete_recipe(&mut shared)?;
        let hash = shared.hash()?;
        let name = format!("shared-{}", hash.get(..DIGITS).unwrap_or(&hash));
        let start = folder.join(&name);
        let (before, all) = (steps(&shared), steps(&whole));
        if !jobs.iter().any(|job| job.name == name) {
            let (folder, recipe) = (start.clone(), JobRecipe::Ready(shared.into()));
            jobs.push(Job { seed, name, folder, steps: before, recipe });
        }
        let recipe = JobRecipe::After(start, row.clone());
        jobs.push(Job { seed, name: row.name.clone(), folder: own, steps: all - before, recipe });
    }
    Ok(jobs)
}

impl Job {
    /// How it is called in progress and errors: `seed 1, cold-start`.
    fn label(&self) -> String {
        format!("seed {}, {}", self.seed, self.name)
    }

    /// Whether the run that it goes on from is finished, where there is one.
    fn can_begin(&self) -> bool {
        match &self.recipe {
            JobRecipe::Ready(_) => true,
            JobRecipe::After(start, _) => is_finished(start),
        }
    }

    fn recipe(&self, grid: &Grid) -> Result<Recipe> {
        match &self.recipe {
            JobRecipe::Ready(recipe) => Ok(Recipe::clone(recipe)),
            JobRecipe::After(start, row) => grid.recipe(row, self.seed, Phases::Rest(start)),
        }
    }
}

/// Removes what only a run under way needs, and what only rows that ask it again need, where there are none.
fn tidy(grid: &Grid, run: &Path) -> Result<()> {
    let name = run.file_name().and_then(|name| name.to_str());
    let is_asked_again = name == Some(grid.main())
        || grid.rows().iter().any(|row| row.of.is_some() && row.of.as_deref() == name);
    grid.study().tidy(run, is_asked_again)
}
