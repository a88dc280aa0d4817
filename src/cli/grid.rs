//! `engram grid`: trains the configurations of an ablation grid and compares them.

use engram_data::messages::counted;

use clap::Args;
use engram_train::Stop;
use engram_train::grid::{Grid, GridOptions, GridProgress, GridReport, run_grid};
use engram_train::studies::ALL;
use indicatif::HumanDuration;

use super::interrupt::Interrupt;
use super::paths::{NewFolder, RecipeFile};
use super::{Outcome, output};

/// Train all configurations of an ablation grid, compare them and check the grid's claims.
///
/// Finished configurations are not trained again: to continue a stopped grid, run the same command.
/// To share the work, run the same command in a second terminal and give both --threads.
/// The reports grid.json, grid.md and grid.html are written to the folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram grid reveal/ablations --out runs/ablations
  engram grid reveal/ablations --out runs/ablations --seeds 3 \\
      --configurations k-1,k-50
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
        interrupt.finish(self.train(interrupt.stop()))
    }

    fn train(&self, stop: Stop) -> anyhow::Result<Outcome> {
        let mut grid = Grid::load(&self.file, ALL)?;
        if !self.configurations.is_empty() {
            let names: Vec<&str> = grid
                .configurations()
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
        let report = run_grid(&grid, &options, &mut print_progress)?;
        self.write(&report)?;
        output::print_report(self.json, &report, || report.to_markdown())?;
        output::note(&format!("grid.json, grid.md, grid.html in {}", self.out.display()));
        Ok(Outcome::Done)
    }

    fn write(&self, report: &GridReport) -> anyhow::Result<()> {
        let json = serde_json::to_vec_pretty(report)?;
        output::replace_atomic(&self.out.join("grid.json"), &json)?;
        output::replace_atomic(&self.out.join("grid.md"), report.to_markdown().as_bytes())?;
        output::replace_atomic(&self.out.join("grid.html"), report.to_html().as_bytes())
    }
}

/// Prints the name of each run as it starts, with the number of runs and the time left.
pub(super) fn print_progress(progress: &GridProgress) {
    let GridProgress { run, runs_left, time_left } = progress;
    let runs = counted(*runs_left, "run");
    let time = match time_left {
        Some(time) => format!(", {}", HumanDuration(*time)),
        None => String::new(),
    };
    output::note(&format!("{run}: {runs}{time} left"));
}
