//! Trains and evaluates the configurations of a grid that are not finished yet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engram_infer::finished_run::is_finished;

use super::folder::{self, LockedRun};
use super::report::GridReport;
use super::settings::{Configuration, Grid, Phases};
use super::study::Hashes;
use crate::Stop;
use crate::error::{Result, TrainError};
use crate::log;
use crate::program::Program;
use crate::recipe::Recipe;
use crate::run_folder::recipe_hash;
use crate::trainer::RunOptions;

/// The number of hash digits in the folder name of a run of shared phases.
const HASH_DIGITS: usize = 12;
/// The interval at which a process checks whether another process has finished a run.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Options for running a grid.
#[derive(Debug, Clone)]
pub struct GridOptions {
    /// The folder for the runs: `seed-1/CONFIGURATION` and so on.
    pub out: PathBuf,
    /// The number of seeds. The seeds are 1, 2 and so on.
    pub seeds: u64,
    /// Whether to hide the progress of the runs.
    pub quiet: bool,
    /// Whether to accept and continue runs that another build of the program trained.
    pub reuse: bool,
    /// The stop request. It stops the current run, and the grid returns [`TrainError::Stopped`].
    pub stop: Stop,
}

/// The progress of a grid when a run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridProgress {
    /// The seed and the configuration of the run, as `seed 1, cold-start`.
    pub run: String,
    /// The number of remaining runs, including this one.
    pub runs_left: usize,
}

/// A run to train.
struct Job {
    seed: u64,
    name: String,
    folder: PathBuf,
    recipe: JobRecipe,
}

/// The recipe of a job.
enum JobRecipe {
    /// A run that can start at once.
    Ready(Box<Recipe>),
    /// The phases of a configuration that are not shared. They start from the weights of the run
    /// in this folder, which trains the shared phases.
    After(PathBuf, Configuration),
}

/// Trains and evaluates all configurations with all seeds. Runs that an earlier call finished are
/// not repeated.
///
/// Several processes may run the same grid in the same folder. Each trains runs that no other
/// process has locked, and returns when all are finished.
///
/// # Errors
/// The errors of the study; [`TrainError::Recipe`] if a finished run in the folder has other
/// settings or was trained by another build of the program.
pub fn run_grid(
    grid: &Grid,
    options: &GridOptions,
    progress: &mut dyn FnMut(&GridProgress),
) -> Result<GridReport> {
    let mut waiting = all_jobs(grid, options)?;
    // A run of another build is an error before training starts.
    let reused = reused(&waiting, options)?;
    folder::open(&options.out)?;
    let mut runner = GridRunner { grid, options, hashes: Hashes::new() };
    let mut is_wait_reported = options.quiet;
    while !waiting.is_empty() {
        let num_waiting = waiting.len();
        waiting = runner.train_available(waiting, progress)?;
        if let Some(job) = waiting.first().filter(|_| waiting.len() == num_waiting) {
            if !is_wait_reported {
                log::print(&format!("{}: another process is training it; waiting", job.label()));
            }
            is_wait_reported = true;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    for seed in 1..=options.seeds {
        let folder = options.out.join(format!("seed-{seed}"));
        for configuration in &grid.configurations {
            if let Some(run_of) = &configuration.run_of {
                let run = folder.join(&configuration.name);
                let _lock = runner.lock(&run)?;
                grid.study.ablations.evaluate_again(configuration, &folder.join(run_of), &run)?;
            }
        }
    }
    GridReport::new(grid, options, reused)
}

/// Measures the configurations whose runs are finished and tested for all seeds, for a report on a
/// grid that was stopped. Runs with other settings count as unfinished. `None` if the main
/// configuration is not finished.
///
/// # Errors
/// Results that cannot be read; [`TrainError::Recipe`] for a run of another build of the program.
pub fn measure_finished(grid: &Grid, options: &GridOptions) -> Result<Option<GridReport>> {
    let mut runner = GridRunner { grid, options, hashes: Hashes::new() };
    let mut measured = Vec::new();
    for job in all_jobs(grid, options)? {
        if runner.is_measured(&job)? {
            measured.push(job);
        }
    }
    let (mut finished, mut unfinished) = (Vec::new(), Vec::new());
    for configuration in &grid.configurations {
        let is_finished = runner.is_finished(configuration, &measured)?;
        let names = if is_finished { &mut finished } else { &mut unfinished };
        names.push(configuration.name.clone());
    }
    let names: Vec<&str> = finished.iter().map(String::as_str).collect();
    if !names.contains(&grid.main.as_str()) {
        return Ok(None);
    }
    let reused = reused(&measured, options)?;
    let report = GridReport::new(&grid.clone().select(&names), options, reused)?;
    Ok(Some(GridReport { unfinished, ..report }))
}

/// The state of a running grid.
struct GridRunner<'a> {
    grid: &'a Grid,
    options: &'a GridOptions,
    /// The hashes of the weights that the recipes name, as a cache.
    hashes: Hashes,
}

impl GridRunner<'_> {
    /// Trains the runs that can start, except runs that another process has locked. Returns the
    /// remaining jobs.
    fn train_available(
        &mut self,
        waiting: Vec<Job>,
        progress: &mut dyn FnMut(&GridProgress),
    ) -> Result<Vec<Job>> {
        let mut remaining = Vec::new();
        let mut jobs = waiting.into_iter();
        while let Some(job) = jobs.next() {
            self.check_stop(&job.folder)?;
            let locked = if job.can_start() { LockedRun::try_lock(&job.folder)? } else { None };
            let Some(_lock) = locked else {
                remaining.push(job);
                continue;
            };
            if is_finished(&job.folder) {
                self.check(&job)?;
            } else {
                let others = remaining.iter().chain(jobs.as_slice());
                let unfinished = others.filter(|other| !is_finished(&other.folder)).count();
                progress(&GridProgress { run: job.label(), runs_left: 1 + unfinished });
                self.train(&job)?;
            }
            if self.is_configuration(&job) {
                self.grid.study.ablations.test(&job.folder)?;
            }
            // Also tidies runs of an earlier call that was killed before it removed the files.
            remove_unneeded_files(self.grid, &job.folder)?;
        }
        Ok(remaining)
    }

    /// Returns an error before work on a run if the grid was asked to stop.
    fn check_stop(&self, run: &Path) -> Result<()> {
        if self.options.stop.is_requested() {
            return Err(TrainError::Stopped { run: run.to_path_buf(), step: 0 });
        }
        Ok(())
    }

    /// Locks a run, waiting for other processes.
    fn lock(&self, run: &Path) -> Result<LockedRun> {
        loop {
            self.check_stop(run)?;
            if let Some(locked) = LockedRun::try_lock(run)? {
                return Ok(locked);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether a job trains a configuration, and not shared phases.
    fn is_configuration(&self, job: &Job) -> bool {
        self.grid.configurations.iter().any(|configuration| configuration.name == job.name)
    }

    /// Whether the run of a job is finished, with the settings of the current grid, and tested.
    fn is_measured(&mut self, job: &Job) -> Result<bool> {
        if !job.can_start() || !is_finished(&job.folder) || self.mismatch(job)?.is_some() {
            return Ok(false);
        }
        Ok(!self.is_configuration(job) || self.grid.study.ablations.is_tested(&job.folder)?)
    }

    /// Whether a configuration has its results for all seeds. `measured` are the runs with results.
    fn is_finished(&self, configuration: &Configuration, measured: &[Job]) -> Result<bool> {
        for seed in 1..=self.options.seeds {
            let folder = self.options.out.join(format!("seed-{seed}"));
            let run = folder.join(configuration.trained());
            let is_trained = measured.iter().any(|job| job.folder == run);
            let results = folder.join(&configuration.name);
            let study = self.grid.study.ablations;
            if !is_trained
                || configuration.run_of.is_some()
                    && !study.is_evaluated(configuration, &run, &results)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Trains the run of a job, or continues it.
    fn train(&self, job: &Job) -> Result<()> {
        let options = RunOptions {
            run: job.folder.clone(),
            resume: true,
            quiet: self.options.quiet,
            label: Some(job.label()),
            stop: self.options.stop.clone(),
            ..RunOptions::default()
        };
        (self.grid.study.train)(&mut job.recipe(self.grid)?, &options).map(drop)
    }

    /// Returns an error unless a finished run has the settings and weights of the current grid.
    fn check(&mut self, job: &Job) -> Result<()> {
        let Some(reason) = self.mismatch(job)? else { return Ok(()) };
        let reason = format!("{reason}; choose another folder for the grid, or remove this one");
        Err(TrainError::Recipe { location: job.folder.display().to_string(), reason })
    }

    /// The reason why a finished run does not have the settings and weights of the current grid;
    /// `None` if it has.
    fn mismatch(&mut self, job: &Job) -> Result<Option<String>> {
        let (grid, mut recipe) = (self.grid, job.recipe(self.grid)?);
        recipe.fill_start_hash()?;
        (grid.study.complete)(&mut recipe)?;
        if recipe_hash(&job.folder)? != recipe.hash()? {
            return Ok(Some("has a finished run with other settings".to_owned()));
        }
        grid.study.ablations.weights_mismatch(&mut recipe, &job.folder, &mut self.hashes)
    }
}

/// The runs of all seeds, in training order.
fn all_jobs(grid: &Grid, options: &GridOptions) -> Result<Vec<Job>> {
    let mut all = Vec::new();
    for seed in 1..=options.seeds {
        all.extend(jobs(grid, seed, &options.out.join(format!("seed-{seed}")))?);
    }
    Ok(all)
}

/// The names of the runs that another build of the program trained.
fn reused(jobs: &[Job], options: &GridOptions) -> Result<Vec<String>> {
    let mut reused = Vec::new();
    for job in jobs {
        if Program::differs_from_running(&job.folder, options.reuse)? {
            reused.push(job.label());
        }
    }
    Ok(reused)
}

/// The runs of a seed, in training order.
fn jobs(grid: &Grid, seed: u64, folder: &Path) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    for configuration in
        grid.configurations.iter().filter(|configuration| configuration.run_of.is_none())
    {
        let mut recipe = grid.recipe(configuration, seed, Phases::Whole)?;
        (grid.study.complete)(&mut recipe)?;
        let run_folder = folder.join(&configuration.name);
        if !grid.has_shared_and_own_phases(&recipe) {
            let (name, recipe) = (configuration.name.clone(), JobRecipe::Ready(recipe.into()));
            jobs.push(Job { seed, name, folder: run_folder, recipe });
            continue;
        }
        let mut shared = grid.recipe(configuration, seed, Phases::Shared)?;
        (grid.study.complete)(&mut shared)?;
        let hash = shared.hash()?;
        let name = format!("shared-{}", hash.get(..HASH_DIGITS).unwrap_or(&hash));
        let start = folder.join(&name);
        if !jobs.iter().any(|job| job.name == name) {
            let (folder, recipe) = (start.clone(), JobRecipe::Ready(shared.into()));
            jobs.push(Job { seed, name, folder, recipe });
        }
        let name = configuration.name.clone();
        let recipe = JobRecipe::After(start, configuration.clone());
        jobs.push(Job { seed, name, folder: run_folder, recipe });
    }
    Ok(jobs)
}

impl Job {
    /// The name in progress and error texts: `seed 1, cold-start`.
    fn label(&self) -> String {
        format!("seed {}, {}", self.seed, self.name)
    }

    /// Whether training can start: the run of the shared phases, if the job needs one, is finished.
    fn can_start(&self) -> bool {
        match &self.recipe {
            JobRecipe::Ready(_) => true,
            JobRecipe::After(start, _) => is_finished(start),
        }
    }

    /// The recipe of the run. Call it only if `can_start` is true.
    fn recipe(&self, grid: &Grid) -> Result<Recipe> {
        match &self.recipe {
            JobRecipe::Ready(recipe) => Ok(Recipe::clone(recipe)),
            JobRecipe::After(start, configuration) => {
                grid.recipe(configuration, self.seed, Phases::Remaining(start))
            }
        }
    }
}

/// Removes the files of a run that only training needs. Also removes the files for another
/// evaluation, except in the runs of the main configuration and of configurations in a `run_of`.
fn remove_unneeded_files(grid: &Grid, run: &Path) -> Result<()> {
    let name = run.file_name().and_then(|name| name.to_str());
    let is_evaluated_again = name == Some(grid.main.as_str())
        || grid.configurations.iter().any(|configuration| {
            configuration.run_of.is_some() && configuration.run_of.as_deref() == name
        });
    grid.study.ablations.remove_unneeded_files(run, is_evaluated_again)
}
