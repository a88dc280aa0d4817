//! The study on photographs: its data come from two packages that the user unpacks.

use std::path::Path;

use serde_json::Value;

use super::{Reproduce, Results};
use crate::cli::bundled;
use crate::cli::output;
use crate::cli::reproduce::grids::setting;

/// The study's name, and the beginning of the ids of its claims.
pub(super) const STAMPS: &str = "stamps";
const MISSING: &str = "Photographs: not tested without --stamps (ENGRAM_STAMPS), a folder with the \
    two unpacked packages of docs/how-to/pictures.md.";

impl Reproduce {
    /// The settings of the study with the data of `--stamps`; `None`, with a note, without it.
    pub(super) fn stamps_settings(
        &self,
        results: &mut Results,
    ) -> anyhow::Result<Option<Vec<String>>> {
        let Some(packages) = self.stamps.as_deref() else {
            results.notes.push(MISSING.to_owned());
            return Ok(None);
        };
        let folders = [("stamps", "stamps-data"), ("gcompris", "gcompris-data")];
        let [stamps, gcompris] = folders.map(|(_, folder)| self.out.join(folder));
        for (reader, folder) in folders {
            self.read_pictures(reader, packages, &self.out.join(folder))?;
        }
        let backgrounds = Value::from(vec![gcompris.display().to_string()]);
        let others = Value::from(vec![gcompris.join("entries.jsonl").display().to_string()]);
        let network = self.out.join(bundled::FOLDER).join(bundled::STAMPS.name());
        Ok(Some(vec![
            setting("data.path", &stamps),
            format!("data.things.backgrounds={backgrounds}"),
            format!("data.things.others={others}"),
            setting("model.mobilenet", &network),
        ]))
    }

    /// Reads the pictures of `packages` into a folder, unless it has them.
    fn read_pictures(&self, reader: &str, packages: &Path, folder: &Path) -> anyhow::Result<()> {
        let summary = engram_durable::read_text(folder.join("summary.json"));
        let summary: Option<Value> = summary.ok().and_then(|text| serde_json::from_str(&text).ok());
        let packages = packages.display().to_string();
        if summary.is_some_and(|summary| summary["folder"] == packages.as_str()) {
            return Ok(());
        }
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        output::note(&format!("{reader}: reading the pictures"));
        let out = folder.display().to_string();
        let words = ["data", reader, &packages, "--on-error", "skip", "--out", &out];
        self.run_command(words.map(str::to_owned).to_vec(), folder)
    }
}
