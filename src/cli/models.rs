//! `engram models`: the families of models, and what is in a model's folder.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use engram_data::hub::{HubSettings, cached_models};
use engram_infer::families::ModelFamily;
use engram_infer::pretrained::PretrainedFolder;
use engram_models::compute::Compute;
use serde_json::{Map, Value, json};

use super::paths::ModelName;
use super::{Outcome, output};

/// List the families of models that can be loaded, and the models in the cache, or explain a model.
#[derive(Debug, Args)]
#[command(after_help = "\
Without MODEL, models in the cache of the hub are listed with their family, or with the reason why
they cannot be used. With MODEL, the model is loaded (an address on the hub is downloaded), and the
exit code is 1 if it does not load. It is 2 if the family is not known or a file is missing. The
files are listed of a local folder only.

Examples:
  engram models
  engram models hf://sentence-transformers/all-MiniLM-L6-v2
  engram models train/bundled/clip --json")]
pub struct Models {
    /// A folder, hf://owner/name, or the run of `engram train clip`, `similarity`, `patent` or
    /// `speech`; with a LoRA or DoRA adapter, MODEL?adapter=ADAPTER
    #[arg(value_name = "MODEL")]
    model: Option<ModelName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the families as a Markdown page
    #[arg(long, conflicts_with_all = ["model", "json"])]
    markdown: bool,
}

impl Models {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match &self.model {
            Some(model) => return self.explain(model),
            None if self.markdown => output::print(ModelFamily::PAGE)?,
            None => self.list()?,
        }
        Ok(Outcome::Done)
    }

    /// Loads a model and prints what it contains.
    fn explain(&self, model: &str) -> anyhow::Result<Outcome> {
        let family = ModelFamily::of_folder(&PretrainedFolder::open(model)?)?;
        let loaded = family.load(model, &Compute::cpu());
        let error = loaded.as_ref().err().map(ToString::to_string);
        let (facts, files) = (loaded.unwrap_or_default(), file_sizes(Path::new(model)));
        let report = json!({"model": model, "family": family, "facts": facts, "files": files,
            "error": error});
        output::print_report(self.json, &report, || {
            let mut text = format!("{model}\n{}, for {}\n", family.name, family.task);
            for (name, value) in facts.iter().chain(&files) {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let _ = writeln!(text, "  {name:<22}  {value}");
            }
            text + &error
                .as_ref()
                .map_or("loads".to_owned(), |error| format!("does not load: {error}"))
        })?;
        Ok(if error.is_some() { Outcome::CheckFailed } else { Outcome::Done })
    }

    /// Prints the families and the models in the cache.
    fn list(&self) -> anyhow::Result<()> {
        let cached = cached_models(&HubSettings::from_env()?).into_iter();
        let (mut models, mut lines) = (Vec::new(), String::new());
        for (location, folder) in cached {
            let model = location.to_string();
            let folder = PretrainedFolder::open(&folder.display().to_string());
            let family = folder.and_then(|folder| ModelFamily::of_folder(&folder));
            let (family, error) = match family {
                Ok(family) => (Some(family.name), None),
                Err(error) => (None, Some(error.to_string())),
            };
            let _ = match &error {
                None => writeln!(lines, "  {model}  {}", family.unwrap_or_default()),
                Some(error) => writeln!(lines, "  {model}  cannot be used: {error}"),
            };
            models.push(json!({"model": model, "family": family, "error": error}));
        }
        let families: Vec<ModelFamily> = ModelFamily::all().collect();
        let report = json!({"families": families, "cached": models});
        output::print_report(self.json, &report, || {
            let mut text = String::from("Families\n");
            for ModelFamily { name, task, examples, .. } in families {
                let _ = writeln!(text, "  {name:<39}{task:<18}{}", examples.join(", "));
            }
            text + "\nModels in the cache\n" + &lines
        })
    }
}

/// The names and sizes in bytes of the files in a folder; empty for an address on the hub.
fn file_sizes(folder: &Path) -> Map<String, Value> {
    let listing = engram_data::folder::files(folder, &|_| true).unwrap_or_default();
    let entry = |path: PathBuf| {
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        (path.strip_prefix(folder).unwrap_or(&path).display().to_string(), bytes.into())
    };
    listing.files.into_iter().map(entry).collect()
}
