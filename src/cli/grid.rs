//! `engram grid`: trains the configurations of a grid, compares them and tests its claims.

use std::time::Instant;

use clap::Args;
use engram_data::messages::counted;
use engram_train::Stop;
use engram_train::grid::{Grid, GridOptions, GridProgress, GridReport, measure_finished, run_grid};
use engram_train::studies::ALL;

use super::claims::Report;
use super::interrupt::{Interrupt, shell_quoted};
use super::paths::{NewFolder, RecipeFile};
use super::{Outcome, output};

/// Train all configurations of a grid, compare them and test the grid's claims.
///
/// A grid is a file (TOML) with a recipe of any study, changes of its keys and claims. Finished
/// configurations are not trained again: to continue a stopped grid, run the same command. The report
/// of a stopped grid has the configurations that are finished. To share the work, run the same command
/// in a second terminal and give both --threads. The reports grid.json and grid.html are written to
/// the folder.
#[derive(Debug, Args)]
#[command(after_help = "\
A grid of learning rates, in rates.toml:

  recipe = \"patent/world\"               # a built-in recipe, or a file
  main = \"main\"
  [[configuration]]
  name = \"main\"
  [[configuration]]
  name = \"slow\"
  set = [\"optimiser.learning_rate=1e-4\"]
  [[claim]]
  id = \"patent.rate\"
  claim = \"the recipe's learning rate is better than a slow one\"
  better = \"main\"
  worse = \"slow\"

Examples:
  engram grid rates.toml --out runs/rates --seeds 3
  engram grid reveal/ablations --out runs/ablations --configurations k-1,k-50
  engram grid avformer/ablations --out runs/avformer \\
      --configurations audio-only,joint \\
      --set model.asr_model=whisper --set model.image_encoder=runs/clip")]
pub struct GridCommand {
    /// The grid: a file (TOML), or a built-in name as in `engram recipe list`
    file: RecipeFile,
    /// Output folder for runs and reports
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// Number of seeds; the seeds are 1 to N
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Train only these configurations and the main one; claims about others are skipped
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    configurations: Vec<String>,
    /// Change a value in the recipes of all configurations, for example `data.max_images=100`
    /// (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Accept runs in the folder that another build of this program trained; the report says so
    #[arg(long)]
    reuse: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl GridCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let interrupt = Interrupt::watch(None)?;
        let stop = interrupt.stop();
        let _hold = stop.hold();
        interrupt.finish(self.train(stop))
    }

    fn train(&self, stop: Stop) -> anyhow::Result<Outcome> {
        let start = Instant::now();
        let mut grid = Grid::load(&self.file, ALL)?;
        if !self.configurations.is_empty() {
            let names: Vec<&str> = grid
                .configurations
                .iter()
                .map(|configuration| configuration.name.as_str())
                .collect();
            if let Some(name) =
                self.configurations.iter().find(|name| !names.contains(&name.as_str()))
            {
                let (file, names) = (self.file.display(), names.join(", "));
                anyhow::bail!("{file}: has no configuration `{name}`; it has {names}");
            }
            grid = grid.select(&self.configurations.iter().map(String::as_str).collect::<Vec<_>>());
        }
        // After the selection: claims about other configurations need not fit these settings.
        let grid = grid.with_settings(&self.set)?;
        let options = GridOptions {
            out: self.out.to_path_buf(),
            seeds: self.seeds,
            quiet: output::is_quiet(),
            reuse: self.reuse,
            stop,
        };
        match run_grid(&grid, &options, &mut print_progress) {
            Ok(report) => self.write(&grid, report, start)?,
            Err(error) if options.stop.is_requested() => {
                if let Some(report) = measure_finished(&grid, &options)? {
                    self.write(&grid, report, start)?;
                }
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::Done)
    }

    /// Writes and prints the report.
    fn write(&self, grid: &Grid, mut report: GridReport, start: Instant) -> anyhow::Result<()> {
        let claims = &grid.claims;
        for report in &mut report.claims {
            let claim = claims.iter().find(|claim| claim.id == report.id);
            report.command =
                self.command(claim.map_or_else(Vec::new, |claim| claim.configurations()));
        }
        let report = Report::of_grid(report, start.elapsed().as_secs())?;
        output::replace_atomic(&self.out.join("grid.json"), &serde_json::to_vec_pretty(&report)?)?;
        output::replace_atomic(&self.out.join("grid.html"), report.to_html().as_bytes())?;
        output::print_report(self.json, &report, || report.to_text())?;
        output::note(&format!("grid.json, grid.html in {}", self.out.display()));
        Ok(())
    }

    /// The command that trains only these configurations and the main one.
    fn command(&self, mut configurations: Vec<&str>) -> String {
        configurations.sort_unstable();
        configurations.dedup();
        let mut words =
            vec!["engram".to_owned(), "grid".to_owned(), self.file.display().to_string()];
        words.extend(["--configurations".to_owned(), configurations.join(",")]);
        words.extend(["--seeds".to_owned(), self.seeds.to_string()]);
        words.extend(["--out".to_owned(), self.out.display().to_string()]);
        words.extend(self.set.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
        words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// Prints the name of each run as it starts, with the number of runs.
pub(super) fn print_progress(progress: &GridProgress) {
    let GridProgress { run, runs_left } = progress;
    output::note(&format!("{run}: {} left", counted(*runs_left, "run")));
}
