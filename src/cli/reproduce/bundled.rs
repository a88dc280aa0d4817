//! The bundled models in `train/bundled/`, with 16-bit weights. The smoke scale evaluates them;
//! notebooks and `engram explore train/bundled` open them without training.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use engram_durable::{FolderWriter, create_folder, remove_folder, remove_leftovers, rename};
use engram_infer::finished_run::CHECKSUMS;
use engram_models::weights::to_f16;
use engram_train::write_checksums;
use sha2::{Digest, Sha256};

use crate::cli::output;

/// REVEAL's memory, which is built when it is needed, and the lock for this.
const BUILT_AGAIN: [&str; 2] = ["memory", ".lock"];
const WEIGHTS: &str = "model.safetensors";
/// The SHA-256 checksums of the weights, in the format of `sha256sum`.
const SUMS: &str = "SHA256SUMS";
const BUNDLED_SUMS: &str = include_str!("../../../train/bundled/SHA256SUMS");

/// Pairs of a file's path below the folder of bundled models, and its content.
macro_rules! bundled_files {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../../train/bundled/", $path)))),+]
    };
}

/// The files that scale smoke needs.
static EMBEDDED_FILES: &[(&str, &[u8])] = bundled_files![
    "clip/run.sha256",
    "clip/config.json",
    "clip/preprocessor_config.json",
    "clip/model.safetensors",
    "conformer/run.sha256",
    "conformer/config.json",
    "conformer/tokenizer.json",
    "conformer/model.safetensors",
    "avformer/config.json",
    "avformer/model.safetensors",
    "avformer-audio-only/run.sha256",
    "avformer-audio-only/config.json",
    "avformer-audio-only/model.safetensors",
    "avformer-joint/run.sha256",
    "avformer-joint/config.json",
    "avformer-joint/model.safetensors",
    "reveal/tokenizer.json",
    "reveal/model.safetensors",
    "reveal-frozen-retriever/tokenizer.json",
    "reveal-frozen-retriever/model.safetensors",
];

/// A bundled model.
pub(super) struct BundledModel {
    /// The folder name.
    pub(super) name: &'static str,
    /// The files other than the weights.
    files: &'static [&'static str],
    /// Name prefix of tensors that only training needs; they are omitted. Empty for none.
    omitted_prefix: &'static str,
}

/// The image encoder.
pub(super) const CLIP: BundledModel = BundledModel {
    name: "clip",
    files: &["config.json", "preprocessor_config.json"],
    omitted_prefix: "",
};
/// The ASR model.
pub(super) const CONFORMER: BundledModel = BundledModel {
    name: "conformer",
    files: &["config.json", "tokenizer.json"],
    omitted_prefix: "best_rq.",
};
/// AVFormer's adapters and projection for the ASR model, trained by the curriculum.
pub(super) const AVFORMER: BundledModel = BundledModel {
    name: "avformer",
    files: &["config.json", "recipe.toml", "summary.json", "metrics.jsonl"],
    omitted_prefix: "",
};
/// The same, with adapters trained alone.
pub(super) const AUDIO_ONLY: BundledModel =
    BundledModel { name: "avformer-audio-only", files: &["config.json"], omitted_prefix: "" };
/// The same, trained jointly.
pub(super) const JOINT: BundledModel =
    BundledModel { name: "avformer-joint", files: &["config.json"], omitted_prefix: "" };
/// The models of AVFormer's claims.
pub(super) const AVFORMER_MODELS: [BundledModel; 5] =
    [CLIP, CONFORMER, AVFORMER, AUDIO_ONLY, JOINT];
/// REVEAL. Its memory is not bundled, because it can be built from the weights.
pub(super) const REVEAL: BundledModel = BundledModel {
    name: "reveal",
    files: &[
        "model.json",
        "recipe.toml",
        "inputs.json",
        "tokenizer.json",
        "summary.json",
        "metrics.jsonl",
    ],
    omitted_prefix: "",
};
/// The weights of REVEAL with a frozen retriever in its last phase.
pub(super) const FROZEN_RETRIEVER: BundledModel = BundledModel {
    name: "reveal-frozen-retriever",
    files: &["tokenizer.json"],
    omitted_prefix: "",
};
/// The encoder of the embedded phrases.
pub(super) const PATENT: BundledModel = BundledModel {
    name: "patent",
    files: &[
        "config.json",
        "recipe.toml",
        "inputs.json",
        "tokenizer.json",
        "titles.tsv",
        "calibration.json",
        "summary.json",
        "metrics.jsonl",
    ],
    omitted_prefix: "",
};
/// All bundled models.
const ALL: [BundledModel; 8] =
    [CLIP, CONFORMER, AVFORMER, AUDIO_ONLY, JOINT, REVEAL, FROZEN_RETRIEVER, PATENT];

/// Writes the files of a bundled model below `folder`, and returns the model's folder.
pub(super) fn unpack(model: &BundledModel, folder: &Path) -> anyhow::Result<PathBuf> {
    let of_model = |path: &str| Path::new(path).starts_with(model.name);
    for (path, bytes) in EMBEDDED_FILES.iter().filter(|(path, _)| of_model(path)) {
        let file = folder.join(path);
        if fs::read(&file).is_ok_and(|existing| existing == *bytes) {
            continue;
        }
        let parent = file.parent().unwrap_or(folder);
        output::create_folder(parent)?;
        output::replace_atomic(&file, bytes)?;
    }
    Ok(folder.join(model.name))
}

impl BundledModel {
    /// Returns a note that says whether a run's weights equal the bundled weights.
    pub(super) fn comparison_note(&self, run: &Path) -> anyhow::Result<String> {
        let bytes = to_f16(&run.join(WEIGHTS), self.omitted_prefix)?;
        let run_sum = format!("{:x}", Sha256::digest(&bytes));
        let bundled = parse_sums(BUNDLED_SUMS).find(|(_, name)| *name == self.weights_name());
        let (run, name) = (run.display(), self.name);
        Ok(match bundled {
            Some((sum, _)) if sum == run_sum => {
                format!("{run}: the weights equal train/bundled/{name}, bit for bit.")
            }
            _ => format!(
                "{run}: the weights differ from train/bundled/{name}, because of another machine, \
                 build or seed."
            ),
        })
    }

    /// Writes a run as a bundled model below `folder`, and replaces an earlier one. In its files,
    /// paths to the frozen models below `out` become relative, and other paths below `out` name the
    /// default folder; `out` is the folder of all runs.
    pub(super) fn export(&self, run: &Path, out: &Path, folder: &Path) -> anyhow::Result<()> {
        let target = folder.join(self.name);
        self.check_files(&target)?;
        // Temporary folders. A later call removes the folders that a killed process left.
        let [new_name, old_name] =
            ["newest", "before"].map(|suffix| format!(".{}.engram-{suffix}", self.name));
        let [staged, old] = [&new_name, &old_name].map(|name| folder.join(name));
        let staging = (|| {
            if old.exists() && !target.exists() {
                rename(&old, &target)?;
            }
            remove_leftovers(folder, &[self.name, &new_name])?;
            FolderWriter::create(&staged)
        })();
        let staging = staging.with_context(|| {
            format!("{}: cannot be written; give another --export-bundled", folder.display())
        })?;
        let staging_folder = staging.path();
        for name in self.files {
            let file = run.join(name);
            let text = fs::read_to_string(&file);
            let text = text.with_context(|| format!("{}: could not be read", file.display()))?;
            let frozen = format!("{}/", out.join(FOLDER).display());
            let text = text.replace(&frozen, "../");
            let text = text.replace(&format!("{}/", out.display()), "runs/reproduce/");
            output::write_new(&staging_folder.join(name), text.as_bytes())?;
        }
        let bytes = to_f16(&run.join(WEIGHTS), self.omitted_prefix)?;
        output::write_new(&staging_folder.join(WEIGHTS), &bytes)?;
        write_checksums(staging_folder)?;
        let replace = || {
            staging.commit()?;
            if target.exists() {
                rename(&target, &old)?;
            }
            rename(&staged, &target)?;
            remove_folder(&old)
        };
        replace().with_context(|| format!("{}: could not be replaced", target.display()))?;
        let file = folder.join(SUMS);
        let previous = fs::read_to_string(&file).unwrap_or_default();
        let weights = self.weights_name();
        let mut lines: Vec<(String, String)> = parse_sums(&previous)
            .filter(|(_, name)| *name != weights)
            .map(|(sum, name)| (name.to_owned(), sum.to_owned()))
            .collect();
        lines.push((weights, format!("{:x}", Sha256::digest(&bytes))));
        lines.sort();
        let text: String =
            lines.into_iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        output::replace_atomic(&file, text.as_bytes())
    }

    /// Fails if the folder contains a file that [`BundledModel::export`] does not write, because it
    /// would be lost.
    fn check_files(&self, folder: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry =
                entry.with_context(|| format!("{}: could not be read", folder.display()))?;
            let name = entry.file_name();
            let is_written_by_export = self.files.iter().any(|file| name == *file)
                || name == WEIGHTS
                || name == CHECKSUMS
                || (self.name == REVEAL.name && BUILT_AGAIN.iter().any(|file| name == *file));
            anyhow::ensure!(
                is_written_by_export,
                "{}: is not a file of a bundled model; move it, or give another --export-bundled",
                entry.path().display()
            );
        }
        Ok(())
    }

    /// The name of the weights in `SHA256SUMS`.
    fn weights_name(&self) -> String {
        format!("{}/{WEIGHTS}", self.name)
    }
}

/// Creates the folder if it is missing. Fails if the folder is not writable, or if it contains
/// other files: [`BundledModel::export`] replaces folders.
pub(super) fn check_folder(folder: &Path) -> anyhow::Result<()> {
    let reason = || {
        format!("{}: cannot store bundled models; give another --export-bundled", folder.display())
    };
    create_folder(folder).with_context(reason)?;
    tempfile::NamedTempFile::new_in(folder).with_context(reason)?;
    let has_files = fs::read_dir(folder).with_context(reason)?.next().is_some();
    anyhow::ensure!(
        !has_files || folder.join(SUMS).is_file(),
        "{}: contains files other than bundled models ({SUMS} is missing); give another --export-bundled",
        folder.display()
    );
    ALL.iter().try_for_each(|model| model.check_files(&folder.join(model.name)))
}

/// The folder of the models in the repository.
pub(super) const REPOSITORY: &str = "train/bundled/";
/// The folder for the unpacked models, below the folder of all runs.
pub(super) const FOLDER: &str = "bundled";

/// Parses lines of `sha256sum`: pairs of checksum and file name.
fn parse_sums(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once("  "))
}

#[cfg(test)]
mod tests {
    use engram_infer::finished_run::check_checksums;

    use super::*;

    #[test]
    fn unpacked_models_equal_the_bundled_models() {
        let folder = tempfile::tempdir().expect("a folder");
        let [clip, conformer] =
            [CLIP, CONFORMER].map(|model| unpack(&model, folder.path()).expect("unpacked"));
        for (model, folder) in [(CLIP, clip), (CONFORMER, conformer)] {
            let note = model.comparison_note(&folder).expect("a note");
            assert!(note.contains("bit for bit"), "{note}");
        }
    }

    #[test]
    fn only_bundled_models_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let clip = unpack(&CLIP, &folder.path().join("runs")).expect("unpacked");
        let export = folder.path().join("export");
        check_folder(&export).expect("an empty folder");
        for _ in 0..2 {
            CLIP.export(&clip, folder.path(), &export).expect("exported");
            assert!(
                CLIP.comparison_note(&export.join("clip")).expect("a note").contains("bit for bit")
            );
            check_folder(&export).expect("a folder of bundled models");
        }
        let mut names: Vec<_> = fs::read_dir(&export)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, [SUMS, "clip"]);
        // A file of the user is preserved.
        fs::write(export.join("clip/notes.txt"), "mine").expect("written");
        for result in [check_folder(&export), CLIP.export(&clip, folder.path(), &export)] {
            let error = result.expect_err("refused").to_string();
            assert!(error.contains("notes.txt: is not a file of a bundled model"), "{error}");
        }
        assert_eq!(fs::read(export.join("clip/notes.txt")).expect("exported"), b"mine");
        fs::remove_file(export.join("clip/notes.txt")).expect("removed");
        fs::remove_file(export.join(SUMS)).expect("removed");
        let error = check_folder(&export).expect_err("refused").to_string();
        assert!(error.contains("SHA256SUMS is missing"), "{error}");
    }

    #[test]
    fn other_weights_differ_from_the_bundled_weights() {
        let folder = tempfile::tempdir().expect("a folder");
        let [clip, conformer] =
            [CLIP, CONFORMER].map(|model| unpack(&model, folder.path()).expect("unpacked"));
        fs::copy(clip.join(WEIGHTS), conformer.join(WEIGHTS)).expect("copied");
        let note = CONFORMER.comparison_note(&conformer).expect("a note");
        assert!(note.contains("the weights differ from train/bundled/conformer"), "{note}");
        // Modified files are unpacked again.
        unpack(&CONFORMER, folder.path()).expect("unpacked");
        assert!(CONFORMER.comparison_note(&conformer).expect("a note").contains("bit for bit"));
    }

    #[test]
    fn bundled_models_match_their_checksums() {
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/bundled");
        for model in ALL {
            let folder = bundled.join(model.name);
            assert!(folder.join(CHECKSUMS).is_file(), "{}", model.name);
            check_checksums(&folder).expect("intact");
        }
    }
}
