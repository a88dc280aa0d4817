//! Training and asking the rows of a grid, where it was not done before.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs4::fs_std::FileExt;

use super::ablated::Hashes;
use super::report::GridReport;
use super::settings::{Grid, Phases, RowSettings};
use crate::error::{Result, TrainError};
use crate::log;
use crate::program::Program;
use crate::recipe::Recipe;
use crate::run_folder::SUMMARY;
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
    refuse_other_folder(&options.out)?;
    let mut plan: Vec<(u64, Vec<Job>)> = Vec::new();
    for seed in 1..=options.seeds {
        plan.push((seed, jobs(grid, seed, &options.out.join(format!("seed-{seed}")))?));
    }
    let mut hashes = Hashes::new();
    // Before anything is trained.
    let mut reused = Vec::new();
    for (seed, job) in plan.iter().flat_map(|(seed, jobs)| jobs.iter().map(move |job| (seed, job)))
    {
        if Program::is_other(&job.folder, options.reuse)? {
            reused.push(format!("seed {seed}, {}", job.name));
        }
    }
    let mut waiting: Vec<(u64, Job)> = plan
        .into_iter()
        .flat_map(|(seed, jobs)| jobs.into_iter().map(move |job| (seed, job)))
        .collect();
    let (mut made, mut is_told) = (0, options.quiet);
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut later = Vec::new();
        let mut jobs = waiting.into_iter();
        while let Some((seed, job)) = jobs.next() {
            let taken = if job.can_begin() { take(&job.folder)? } else { None };
            let Some(_taken) = taken else {
                later.push((seed, job));
                continue;
            };
            let (is_finished, steps, folder) = (job.is_finished(), job.steps, job.folder.clone());
            if !is_finished {
                let others = later.iter().chain(jobs.as_slice()).map(|(_, job)| job);
                let unfinished = others.filter(|job| !job.is_finished());
                let steps_left = steps + unfinished.map(|job| job.steps).sum::<u64>();
                let run = format!("seed {seed}, {}", job.name);
                progress(&GridProgress { run, steps_made: made, steps_left });
            }
            job.train(grid, seed, options.quiet, &mut hashes)?;
            // Finished ones as well: a call may have ended between the two.
            tidy(grid, &folder)?;
            made += if is_finished { 0 } else { steps };
        }
        if let Some((seed, job)) = later.first().filter(|_| later.len() == before) {
            if !is_told {
                log::print(&format!("seed {seed}, {}: another process is at it", job.name));
            }
            is_told = true;
            std::thread::sleep(PATIENCE);
        }
        waiting = later;
    }
    for seed in 1..=options.seeds {
        let folder = options.out.join(format!("seed-{seed}"));
        for row in grid.rows() {
            if let Some(of) = &row.of {
                let run = folder.join(&row.name);
                let _taken = wait_for(&run)?;
                grid.study().ask_again(row, &folder.join(of), &run)?;
            }
        }
    }
    GridReport::new(grid, options, reused)
}

/// Takes a run of the grid until the file is dropped; `None` while another process has it.
fn take(run: &Path) -> Result<Option<File>> {
    let (path, file) = lock_file(run)?;
    let is_free = file.try_lock_exclusive().map_err(TrainError::io(&path))?;
    Ok(is_free.then_some(file))
}

/// The same, as soon as no other process has it.
fn wait_for(run: &Path) -> Result<File> {
    let (path, file) = lock_file(run)?;
    file.lock_exclusive().map_err(TrainError::io(&path))?;
    Ok(file)
}

/// The file beside a run's folder that tells processes with the same grid who has it.
fn lock_file(run: &Path) -> Result<(PathBuf, File)> {
    let path = run.with_extension("lock");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(TrainError::io(folder))?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(TrainError::io(&path))?;
    Ok((path, file))
}

/// Fails for a folder that has things in it, and none of a grid's.
fn refuse_other_folder(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let mut others = false;
    for found in fs::read_dir(folder).map_err(TrainError::io(folder))? {
        let name = found.map_err(TrainError::io(folder))?.file_name();
        if name.to_string_lossy().starts_with("seed-") {
            return Ok(());
        }
        others = true;
    }
    match others {
        false => Ok(()),
        true => Err(TrainError::Recipe {
            place: folder.display().to_string(),
            reason: "has other things in it than the runs of a grid; give a new folder".to_owned(),
        }),
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
            jobs.push(Job { name, folder: own, steps, recipe: JobRecipe::Ready(whole.into()) });
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
            jobs.push(Job { name, folder, steps: before, recipe });
        }
        let recipe = JobRecipe::After(start, row.clone());
        jobs.push(Job { name: row.name.clone(), folder: own, steps: all - before, recipe });
    }
    Ok(jobs)
}

impl Job {
    fn is_finished(&self) -> bool {
        self.folder.join(SUMMARY).is_file()
    }

    /// Whether the run that it goes on from is finished, where there is one.
    fn can_begin(&self) -> bool {
        match &self.recipe {
            JobRecipe::Ready(_) => true,
            JobRecipe::After(start, _) => start.join(SUMMARY).is_file(),
        }
    }

    /// Trains the run, or checks that the finished one is the same.
    fn train(self, grid: &Grid, seed: u64, quiet: bool, hashes: &mut Hashes) -> Result<()> {
        let finished = self.is_finished();
        let mut recipe = match self.recipe {
            JobRecipe::Ready(recipe) => *recipe,
            JobRecipe::After(start, row) => grid.recipe(&row, seed, Phases::Rest(&start))?,
        };
        if finished {
            recipe.pin_start()?;
            grid.study().complete_recipe(&mut recipe)?;
            if grid.study().recipe_hash(&self.folder)? != recipe.hash()? {
                let reason = "has a finished run of other settings; give another folder for the \
                              grid, or remove this one";
                return Err(TrainError::Recipe {
                    place: self.folder.display().to_string(),
                    reason: reason.to_owned(),
                });
            }
            if let Some(reason) = grid.study().other_weights(&mut recipe, &self.folder, hashes)? {
                let reason =
                    format!("{reason}; give another folder for the grid, or remove this one");
                let place = self.folder.display().to_string();
                return Err(TrainError::Recipe { place, reason });
            }
            return Ok(());
        }
        let label = Some(format!("seed {seed}, {}", self.name));
        let options =
            RunOptions { run: self.folder, resume: true, quiet, label, ..RunOptions::default() };
        grid.study().train(&mut recipe, &options)
    }
}

/// Removes what only a run under way needs, and what only rows that ask it again need, where there are none.
fn tidy(grid: &Grid, run: &Path) -> Result<()> {
    let name = run.file_name().and_then(|name| name.to_str());
    let is_asked_again = name == Some(grid.main())
        || grid.rows().iter().any(|row| row.of.is_some() && row.of.as_deref() == name);
    for part in grid.study().leftovers(is_asked_again) {
        let folder = run.join(part);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(TrainError::io(&folder))?;
        }
    }
    Ok(())
}
