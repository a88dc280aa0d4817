//! The bundled models of `train/bundled/`, with 16-bit weights, as part of the program. The smoke
//! scale of `engram reproduce` evaluates them; `engram data bundled` writes them to a folder, where
//! all commands can open them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use engram_durable::{create_folder, create_folder_in};
use engram_infer::finished_run::CHECKSUMS;
use engram_models::weights::to_f16;
use engram_train::write_checksums;
use sha2::{Digest, Sha256};

use super::output;

const WEIGHTS: &str = "model.safetensors";
/// The SHA-256 checksums of the weights, in the format of `sha256sum`.
const SUMS: &str = "SHA256SUMS";
const BUNDLED_SUMS: &str = include_str!("../../train/bundled/SHA256SUMS");

pub(super) struct BundledModel {
    /// The folder name.
    name: &'static str,
    /// The names and contents of all files.
    files: &'static [(&'static str, &'static [u8])],
    /// Name prefix of tensors that only training needs; they are omitted. Empty for none.
    omitted_prefix: &'static str,
}

/// Defines a bundled model: its name, its files, and the prefix of omitted tensors.
macro_rules! bundled {
    ($(#[$doc:meta])* $model:ident, $name:literal, whole REVEAL run) => {
        bundled!(
            $(#[$doc])*
            $model,
            $name,
            "",
            [
                "inputs.json",
                "metrics.jsonl",
                "model.json",
                "model.safetensors",
                "recipe.toml",
                "run.sha256",
                "summary.json",
                "tokenizer.json",
            ]
        );
    };
    ($(#[$doc:meta])* $model:ident, $name:literal, $omitted:literal, [$($file:literal),+ $(,)?]) => {
        $(#[$doc])*
        pub(super) static $model: BundledModel = BundledModel {
            name: $name,
            files: &[$((
                $file,
                include_bytes!(concat!("../../train/bundled/", $name, "/", $file)),
            )),+],
            omitted_prefix: $omitted,
        };
    };
}

bundled!(
    /// The image encoder.
    CLIP,
    "clip",
    "",
    ["config.json", "model.safetensors", "preprocessor_config.json", "run.sha256"]
);

bundled!(
    /// The ASR model.
    CONFORMER,
    "conformer",
    "best_rq.",
    ["config.json", "model.safetensors", "run.sha256", "tokenizer.json"]
);

bundled!(
    /// AVFormer's adapters and projection for the ASR model, trained by the curriculum.
    AVFORMER,
    "avformer",
    "",
    [
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.toml",
        "run.sha256",
        "summary.json",
    ]
);

bundled!(
    /// The same, with adapters trained alone.
    AUDIO_ONLY,
    "avformer-audio-only",
    "",
    ["config.json", "model.safetensors", "run.sha256"]
);

bundled!(
    /// The same, trained jointly.
    JOINT,
    "avformer-joint",
    "",
    ["config.json", "model.safetensors", "run.sha256"]
);

bundled!(
    /// REVEAL. Its memory is not bundled, because it can be built from the weights.
    REVEAL,
    "reveal",
    whole REVEAL run
);

bundled!(
    /// The weights of REVEAL with a frozen retriever in its last phase.
    FROZEN_RETRIEVER,
    "reveal-frozen-retriever",
    "",
    ["model.safetensors", "run.sha256", "tokenizer.json"]
);

bundled!(
    /// REVEAL on photographs of things, with its frozen image network without the classifier.
    STAMPS,
    "stamps",
    "op63.",
    ["model.safetensors", "mobilenet_v2_1.0_224.safetensors", "run.sha256", "tokenizer.json"]
);

bundled!(
    /// REVEAL on made-up facts.
    TRIPLETS,
    "triplets",
    whole REVEAL run
);

bundled!(
    /// The encoder of the embedded phrases.
    PATENT,
    "patent",
    "",
    [
        "calibration.json",
        "config.json",
        "inputs.json",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.toml",
        "run.sha256",
        "summary.json",
        "titles.tsv",
        "tokenizer.json",
    ]
);

static ALL: [&BundledModel; 10] = [
    &CLIP,
    &CONFORMER,
    &AVFORMER,
    &AUDIO_ONLY,
    &JOINT,
    &REVEAL,
    &FROZEN_RETRIEVER,
    &STAMPS,
    &TRIPLETS,
    &PATENT,
];

/// Writes all bundled models below `folder`.
pub(super) fn unpack_all(folder: &Path) -> anyhow::Result<()> {
    ALL.iter().try_for_each(|model| model.unpack(folder).map(drop))
}

impl BundledModel {
    /// Writes the files below `folder`, and returns the model's folder.
    pub(super) fn unpack(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let folder = create_folder_in(folder, self.name).with_context(|| {
            format!("{}: could not be created", folder.join(self.name).display())
        })?;
        for (name, bytes) in self.files {
            let file = folder.join(name);
            if !engram_durable::read_file(&file).is_ok_and(|existing| existing == *bytes) {
                output::replace_atomic(&file, bytes)?;
            }
        }
        Ok(folder)
    }

    /// The folder name.
    pub(super) fn name(&self) -> &str {
        self.name
    }

    /// The names of the files that training writes and an export copies.
    fn copied(&self) -> impl Iterator<Item = &'static str> {
        let names = self.files.iter().map(|(name, _)| *name);
        names.filter(|name| ![WEIGHTS, CHECKSUMS].contains(name))
    }

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

    /// Writes a run as a bundled model below `folder`, over an earlier one. `out` is the folder of
    /// all runs. Paths to the frozen models below `out` become relative to the model's folder. In
    /// other paths, the default folder replaces `out`.
    pub(super) fn export(&self, run: &Path, out: &Path, folder: &Path) -> anyhow::Result<()> {
        let target = folder.join(self.name);
        output::create_folder(&target)?;
        for name in self.copied() {
            let file = run.join(name);
            if name.ends_with(".safetensors") {
                let bytes = to_f16(&file, self.omitted_prefix)?;
                output::replace_atomic(&target.join(name), &bytes)?;
                continue;
            }
            let text = engram_durable::read_text(&file);
            let text = text.with_context(|| format!("{}: could not be read", file.display()))?;
            let frozen = format!("{}/", out.join(FOLDER).display());
            let text = text.replace(&frozen, "../");
            let text = text.replace(&format!("{}/", out.display()), "runs/reproduce/");
            output::replace_atomic(&target.join(name), text.as_bytes())?;
        }
        let bytes = to_f16(&run.join(WEIGHTS), self.omitted_prefix)?;
        output::replace_atomic(&target.join(WEIGHTS), &bytes)?;
        write_checksums(&target)?;
        let file = folder.join(SUMS);
        let previous = engram_durable::read_text(&file).unwrap_or_default();
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

    /// The name of the weights in `SHA256SUMS`.
    fn weights_name(&self) -> String {
        format!("{}/{WEIGHTS}", self.name)
    }
}

/// Creates the folder if it is missing. Fails if the folder is not writable, or if it has other
/// files: [`BundledModel::export`] replaces files by their names.
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
    Ok(())
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

    /// REVEAL's memory, which is built when it is needed, and the lock for this.
    const BUILT_AGAIN: [&str; 2] = ["memory", ".lock"];

    #[test]
    fn models_are_exported_only_into_their_own_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let clip = CLIP.unpack(&folder.path().join("runs")).expect("unpacked");
        let export = folder.path().join("export");
        for _ in 0..2 {
            check_folder(&export).expect("an empty folder, or one of bundled models");
            CLIP.export(&clip, folder.path(), &export).expect("exported");
            let note = CLIP.comparison_note(&export.join("clip")).expect("a note");
            assert!(note.contains("bit for bit"), "{note}");
            check_checksums(&export.join("clip")).expect("intact");
        }
        fs::remove_file(export.join(SUMS)).expect("removed");
        let error = check_folder(&export).expect_err("refused").to_string();
        assert!(error.contains("SHA256SUMS is missing"), "{error}");
    }

    #[test]
    fn other_weights_differ_from_the_bundled_weights() {
        let folder = tempfile::tempdir().expect("a folder");
        let [clip, conformer] =
            [&CLIP, &CONFORMER].map(|model| model.unpack(folder.path()).expect("unpacked"));
        fs::copy(clip.join(WEIGHTS), conformer.join(WEIGHTS)).expect("copied");
        let note = CONFORMER.comparison_note(&conformer).expect("a note");
        assert!(note.contains("the weights differ from train/bundled/conformer"), "{note}");
        // Modified files are unpacked again.
        CONFORMER.unpack(folder.path()).expect("unpacked");
        assert!(CONFORMER.comparison_note(&conformer).expect("a note").contains("bit for bit"));
    }

    #[test]
    fn all_bundled_models_are_part_of_the_program_and_match_their_checksums() {
        let folder = tempfile::tempdir().expect("a folder");
        unpack_all(folder.path()).expect("unpacked");
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/bundled");
        for model in ALL {
            check_checksums(&folder.path().join(model.name)).expect("intact");
            for entry in fs::read_dir(bundled.join(model.name)).expect("the repository's models") {
                let name = entry.expect("an entry").file_name();
                let is_built_again = BUILT_AGAIN.iter().any(|file| name == *file);
                assert!(
                    is_built_again || folder.path().join(model.name).join(&name).is_file(),
                    "{}/{name:?} is missing in src/cli/bundled.rs",
                    model.name
                );
            }
        }
    }
}
