//! Keys that a model computes from texts and images.

use engram_data::messages::counted;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use engram_data::image::DecodedImage;
use engram_infer::encode::{Item, JointEncoder, Modalities, PromptChoice};
use engram_memory::rows::{EntryFile, EntryLines, RowReader};
use engram_memory::{Batch, Description, EncoderRecord, Entry, MemoryError};
use engram_models::compute::Compute;
use rayon::prelude::*;

use super::super::compute::ComputeOptions;
use super::super::output;
use super::super::paths::{BaseFolder, ModelName};

/// Options for the encoder of the keys.
#[derive(Debug, Args)]
pub(super) struct Encoding {
    /// Encode the entries' texts and images as keys with this model: a folder, hf://owner/name, or
    /// the run of `engram train clip` or `engram train similarity`; with a LoRA or DoRA
    /// adapter, MODEL?adapter=ADAPTER
    #[arg(long, value_name = "MODEL", requires = "entry_file")]
    model: Option<ModelName>,
    #[command(flatten)]
    options: EncoderOptions,
}

/// Options beside the model.
#[derive(Debug, Args)]
pub(super) struct EncoderOptions {
    /// Image encoder, if --model encodes only text; its vectors are appended to the text vectors
    #[arg(long, value_name = "MODEL", requires = "model")]
    image_model: Option<ModelName>,
    /// Base folder of image paths; default: the folder of the entry file (`reencode`: the current
    /// folder)
    #[arg(long, value_name = "DIR")]
    images: Option<BaseFolder>,
    /// Name of the prompt before each text, from config_sentence_transformers.json; '' for no
    /// prompt; default: `document`
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Number of entries to encode in a batch
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Skip entries that the model cannot encode, such as damaged images, and print their number
    #[arg(long)]
    pub(super) skip_unencodable: bool,
    #[command(flatten)]
    compute: ComputeOptions,
}

impl EncoderOptions {
    /// Opens the model, or that of the keys of `memory`. `folder` is the default base folder of
    /// image paths.
    pub(super) fn open(
        &self,
        model: Option<&str>,
        memory: Option<&Description>,
        folder: &Path,
    ) -> anyhow::Result<EntryEncoder> {
        let prompt = prompt_choice(self.prompt.as_deref(), PromptChoice::Document);
        let (image_model, compute) = (self.image_model.as_deref(), self.compute.open()?);
        let encoder = match (model, memory) {
            (Some(model), _) => JointEncoder::open(model, image_model, &prompt, &compute)?,
            (None, Some(memory)) => open_own_model(memory, &prompt, &compute)?,
            (None, None) => anyhow::bail!("give --keys or --model"),
        };
        print_advice(&encoder, &prompt);
        let images = self.images.as_deref().unwrap_or(folder).to_owned();
        let (skip_unencodable, unreadable) = (self.skip_unencodable, HashSet::new());
        Ok(EntryEncoder { encoder, images, skip_unencodable, unreadable })
    }

    /// Number of entries in a batch.
    pub(super) fn batch(&self) -> usize {
        usize::from(self.batch)
    }
}

impl Encoding {
    /// Opens an entry file for encoding with `--model`, or with the model of the keys of `memory`.
    pub(super) fn open(
        &self,
        file: &EntryFile,
        first_id: i64,
        memory: Option<&Description>,
    ) -> anyhow::Result<NewRows> {
        let path = &file.path;
        if let (None, Some(Description { location, encoders, .. })) = (&self.model, memory)
            && encoders.is_empty()
        {
            anyhow::bail!(
                "{location}: has keys of an unknown model, because they were given as vectors; give \
                 the keys of the new entries with --keys, or, if you know the model, --model with \
                 --same-model"
            );
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut source = self.options.open(self.model.as_deref(), memory, folder)?;
        // All entries are validated before the first entry is encoded.
        let (mut rows, mut skipped) = (0, 0);
        let mut lines = EntryLines::open(file, first_id)?;
        while let Some(entry) = lines.next() {
            let is_row = source.check(&entry?, &|reason, remedy| lines.error(reason, remedy))?;
            if is_row { rows += 1 } else { skipped += 1 }
        }
        print_skipped(path, skipped);
        if lines.file_names() > 0 {
            output::note(&format!("{}: file_name is read as image", path.display()));
        }
        let blank = lines.blank_texts();
        if blank > 0 {
            let unit = if path.is_dir() { "empty file" } else { "empty line" };
            output::note(&format!("{}: skipped {}", path.display(), counted(blank, unit)));
        }
        if rows == 0 {
            anyhow::bail!("{}: has no entry to encode; give another file", path.display());
        }
        let (lines, batch) = (EntryLines::open(file, first_id)?, self.options.batch());
        Ok(NewRows {
            rows,
            width: source.encoder.width(),
            value_shape: None,
            encoders: records(&source.encoder),
            batches: Box::new(EncodedRows { source, lines, batch }),
        })
    }
}

/// Warns of skipped entries of a file or memory.
pub(super) fn print_skipped(path: &Path, skipped: usize) {
    if skipped > 0 {
        let entries = counted(skipped, "entry");
        output::warn(&format!(
            "{}: skipped {entries} without a text or image that the model can encode",
            path.display()
        ));
    }
}

/// Added to the error of an entry that cannot be encoded.
const SKIP: &str = "--skip-unencodable skips such entries";

/// The text and image that a key is computed from.
pub(super) struct Content {
    text: Option<String>,
    image: Option<PathBuf>,
}

/// Makes an error about an entry from a reason and a remedy.
type EntryError<'a> = dyn Fn(String, &'static str) -> MemoryError + 'a;

/// An encoder and the rules for its entries.
pub(super) struct EntryEncoder {
    pub(super) encoder: JointEncoder,
    /// Base folder of image paths.
    images: PathBuf,
    skip_unencodable: bool,
    /// The ids of entries to skip because their images cannot be read.
    unreadable: HashSet<i64>,
}

impl EntryEncoder {
    /// Whether an entry is a row of the memory. With `skip_unencodable`, its image is decoded, and
    /// the entry is skipped with a warning if this fails or the image is missing.
    pub(super) fn check(
        &mut self,
        entry: &Entry,
        error: &EntryError<'_>,
    ) -> Result<bool, MemoryError> {
        let fault = match self.content(entry, error) {
            Ok(None) => return Ok(false),
            Ok(Some(content)) => {
                let image = content.image.filter(|_| self.skip_unencodable);
                image.and_then(|image| DecodedImage::open(image).err()).map(|e| e.to_string())
            }
            Err(error) if self.skip_unencodable => Some(error.to_string()),
            Err(error) => return Err(error),
        };
        if let Some(fault) = &fault {
            output::warn(&format!("skipped the entry {}: {fault}", entry.id));
            self.unreadable.insert(entry.id);
        }
        Ok(fault.is_none())
    }

    /// The parts of an entry that the encoder can encode; `None` to skip the entry.
    pub(super) fn content(
        &self,
        entry: &Entry,
        error: &EntryError<'_>,
    ) -> Result<Option<Content>, MemoryError> {
        if self.unreadable.contains(&entry.id) {
            return Ok(None);
        }
        let modalities = self.encoder.modalities();
        let text = Some(entry.text()).filter(|text| modalities.text && !text.trim().is_empty());
        let image = match entry.payload.get("image").filter(|_| modalities.images) {
            None => None,
            Some(image) => Some(self.image_file(entry.id, image, error)?),
        };
        if text.is_some() || image.is_some() {
            return Ok(Some(Content { text, image }));
        }
        if self.skip_unencodable {
            return Ok(None);
        }
        let id = entry.id;
        Err(match (modalities.text, modalities.images, entry.payload.contains_key("image")) {
            (true, false, true) => error(
                format!("the entry {id} has only an image, but the model encodes texts"),
                "give CLIP as --model, add an --image-model, or skip these entries with \
                 --skip-unencodable",
            ),
            (false, true, _) => error(
                format!("the entry {id} has no image, but the model encodes images"),
                "give CLIP or a text encoder as --model, or skip these entries with \
                 --skip-unencodable",
            ),
            _ => error(
                format!("the entry {id} has no text to encode"),
                "add a text, or skip these entries with --skip-unencodable",
            ),
        })
    }

    /// The image file of an entry.
    fn image_file(
        &self,
        id: i64,
        image: &serde_json::Value,
        error: &EntryError<'_>,
    ) -> Result<PathBuf, MemoryError> {
        let Some(path) = image.as_str().filter(|path| !path.is_empty()) else {
            let reason = format!("the image of the entry {id} is {image}");
            return Err(error(reason, "write the path of an image file"));
        };
        if path.contains("://") {
            let reason = format!("the image of the entry {id} is the URL {path}");
            return Err(error(reason, "download the images, and write paths relative to --images"));
        }
        let file = self.images.join(path);
        if !file.is_file() {
            let reason = format!("the image of the entry {id} is not at {}", file.display());
            return Err(error(reason, "give the base folder of the image paths with --images"));
        }
        Ok(file)
    }

    /// Encodes contents as keys: `[contents, width]`. Each content has its location for error
    /// messages.
    pub(super) fn encode(&self, contents: &[(String, Content)]) -> Result<Vec<f32>, MemoryError> {
        let prepare = |(location, content): &(String, Content)| {
            let (text, image) = (content.text.as_deref(), content.image.as_deref());
            let prepared = self.encoder.prepare(Item { text, image });
            prepared.map_err(|error| format!("{location}: {error} ({SKIP})"))
        };
        let prepared: Vec<_> = contents.par_iter().map(prepare).collect();
        let items = prepared.into_iter().collect::<Result<Vec<_>, String>>();
        let items = items.map_err(|error| MemoryError::Rows(error.into()))?;
        self.encoder.encode(&items).map_err(|error| MemoryError::Rows(error.into()))
    }
}

/// Reads an entry file and encodes its keys, batch by batch.
struct EncodedRows {
    source: EntryEncoder,
    lines: EntryLines,
    /// Number of entries in a batch.
    batch: usize,
}

impl EncodedRows {
    /// Reads and encodes the next batch; an empty batch at the end.
    fn read_batch(&mut self) -> Result<Batch, MemoryError> {
        let (mut entries, mut contents) = (Vec::new(), Vec::new());
        while entries.len() < self.batch
            && let Some(entry) = self.lines.next()
        {
            let entry = entry?;
            let error = |reason, remedy| self.lines.error(reason, remedy);
            if let Some(content) = self.source.content(&entry, &error)? {
                let location = match self.lines.location() {
                    (file, Some(line)) => format!("{}:{line}", file.display()),
                    (file, None) => file.display().to_string(),
                };
                contents.push((format!("{location}: the entry {}", entry.id), content));
                entries.push(entry);
            }
        }
        let keys = self.source.encode(&contents)?;
        Ok(Batch { entries, keys, values: Vec::new() })
    }
}

impl Iterator for EncodedRows {
    type Item = Result<Batch, MemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.read_batch() {
            Ok(batch) if batch.entries.is_empty() => None,
            batch => Some(batch),
        }
    }
}

/// New rows: from vector files, or from an encoder.
pub(super) struct NewRows {
    /// Number of rows.
    pub(super) rows: usize,
    /// Dimension of a key.
    pub(super) width: usize,
    /// The shape of a value: tokens and width. `None` for rows without values.
    pub(super) value_shape: Option<(usize, usize)>,
    /// The models that encode the keys; empty for keys from a file.
    pub(super) encoders: Vec<EncoderRecord>,
    pub(super) batches: Box<dyn Iterator<Item = Result<Batch, MemoryError>>>,
}

impl NewRows {
    pub(super) fn from_files(files: RowReader) -> Self {
        let (rows, width, value_shape) = (files.rows(), files.width(), files.value_shape());
        Self { rows, width, value_shape, encoders: Vec::new(), batches: Box::new(files) }
    }

    /// Returns an error if the records of these keys and of the memory's keys name different
    /// models, or if only one of them has a record and `is_same_model` is false. `keys` is the file
    /// of the keys.
    pub(super) fn check_model(
        &self,
        memory: &Description,
        keys: Option<&Path>,
        is_same_model: bool,
    ) -> anyhow::Result<()> {
        let Description { location: folder, encoders: stored, .. } = memory;
        match (self.encoders.is_empty(), stored.is_empty()) {
            (false, false) => {
                check_model(&self.encoders, memory)?;
                check_prompt(&self.encoders, memory)
            }
            (true, true) => Ok(()),
            _ if is_same_model => Ok(()),
            (true, false) => {
                let file =
                    keys.map_or("the key file".to_owned(), |keys| keys.display().to_string());
                anyhow::bail!(
                    "{file}: does not name the model of its keys, but the keys of {folder} come \
                     from {}; give that model with --model instead of --keys, or, if the file's \
                     keys come from it, add --same-model",
                    names_with_hashes(stored)
                )
            }
            (false, true) => anyhow::bail!(
                "{folder}: does not name the model of its keys, so keys of {} cannot be added; \
                 encode all entries with that model (`engram memory reencode`), or, if the \
                 memory's keys come from it, add --same-model",
                names_with_hashes(&self.encoders)
            ),
        }
    }
}

/// The records of an encoder for the manifest.
pub(in crate::cli) fn records(encoder: &JointEncoder) -> Vec<EncoderRecord> {
    let record = |part: &engram_infer::encode::Encoder| EncoderRecord {
        name: part.name().to_owned(),
        sha256: part.sha256().to_owned(),
        inputs_sha256: Some(part.inputs_sha256().to_owned()),
        reads: input_kinds(part.modalities()).to_owned(),
        width: part.width(),
        prompt: Some(part.prompt().to_owned()).filter(|prompt| !prompt.is_empty()),
    };
    encoder.parts().iter().map(record).collect()
}

/// The inputs of an encoder, as text.
pub(super) fn input_kinds(modalities: Modalities) -> &'static str {
    match (modalities.text, modalities.images) {
        (true, true) => "text and images",
        (true, false) => "text",
        _ => "images",
    }
}

/// Opens the model of a memory's keys.
pub(super) fn open_own_model(
    memory: &Description,
    prompt: &PromptChoice,
    compute: &Compute,
) -> anyhow::Result<JointEncoder> {
    let Description { location, encoders, .. } = memory;
    let Some(first) = encoders.first() else {
        anyhow::bail!("{location} does not name the model of its keys; give it with --model");
    };
    let second = encoders.get(1).map(|encoder| encoder.name.as_str());
    JointEncoder::open(&first.name, second, prompt, compute)
        .with_context(|| format!("cannot open the model of {location}; give its path with --model"))
}

/// Returns an error if a memory's keys come from another encoder. Warns if their encoder is
/// unknown.
pub(in crate::cli) fn check_model(
    requested: &[EncoderRecord],
    memory: &Description,
) -> anyhow::Result<()> {
    let stored = &memory.encoders;
    let folder = &memory.location;
    if stored.is_empty() {
        let note = format!(
            "warning: {folder} does not name the model of its keys; \
             scores are valid only if the model is {}",
            names_with_hashes(requested)
        );
        output::warn(&note);
        return Ok(());
    }
    let hashes = |records: &[EncoderRecord]| -> Vec<String> {
        records.iter().map(|record| record.sha256.clone()).collect()
    };
    if hashes(requested) != hashes(stored) {
        anyhow::bail!(
            "{folder}: its keys come from {}, not {}; give that model, or encode the memory with \
             the other (`engram memory reencode`)",
            names_with_hashes(stored),
            names_with_hashes(requested)
        );
    }
    for (requested, stored) in requested.iter().zip(stored) {
        let is_known = stored.inputs_sha256.is_some();
        if is_known && requested.inputs_sha256 != stored.inputs_sha256 {
            anyhow::bail!(
                "{folder}: its keys come from {}; {} has the same weights, but another \
                 configuration, tokenizer, prompt or image preprocessing; give the original model, \
                 or encode the memory again (`engram memory reencode`)",
                stored.name,
                requested.name
            );
        }
    }
    Ok(())
}

/// Returns an error if the texts of a memory were encoded with another prompt.
fn check_prompt(requested: &[EncoderRecord], memory: &Description) -> anyhow::Result<()> {
    for (requested, stored) in requested.iter().zip(&memory.encoders) {
        if requested.prompt != stored.prompt {
            let quoted = |prompt: &Option<String>| format!("{:?}", prompt.as_deref().unwrap_or(""));
            anyhow::bail!(
                "{}: its texts were encoded with the prompt {}, not {}; name that prompt with \
                 --prompt",
                memory.location,
                quoted(&stored.prompt),
                quoted(&requested.prompt)
            );
        }
    }
    Ok(())
}

/// The prompt with this name, or the default prompt of a role.
pub(in crate::cli) fn prompt_choice(name: Option<&str>, role: PromptChoice) -> PromptChoice {
    name.map_or(role, |name| PromptChoice::Named(name.to_owned()))
}

/// Prints notes about the use of the models.
pub(in crate::cli) fn print_advice(encoder: &JointEncoder, prompt: &PromptChoice) {
    for line in encoder.parts().iter().flat_map(|part| part.notes(prompt)) {
        output::warn(&format!("note: {line}"));
    }
}

/// The names of encoders with the first 12 digits of their hashes.
pub(super) fn names_with_hashes(records: &[EncoderRecord]) -> String {
    let name = |record: &EncoderRecord| {
        let hash = record.sha256.get(..12).unwrap_or(&record.sha256);
        format!("{} (SHA-256 {hash}…)", record.name)
    };
    records.iter().map(name).collect::<Vec<_>>().join(" and ")
}
