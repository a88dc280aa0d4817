//! `engram encode`: writes the vectors of texts or images to a file.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use engram_data::folder::{FolderFiles, SkippedFiles, files};
use engram_data::messages::counted;
use engram_eval::wer::read::TextFormat;
use engram_infer::encode::{Encoder, Item, PromptChoice, to_unit_length};
use engram_memory::vectors::npy_header;
use engram_textfile::{
    Input, Lines, ONE_OBJECT, Table, TextError, base_folder, check_line_ends, lines,
    parse_json_line, read_text,
};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::compute::ComputeOptions;
use super::memory::prompt_choice;
use super::output::{AtomicFile, STDOUT, not_written};
use super::paths::{InputFile, ModelName, OutputFile, check_not_overwritten};
use super::{Outcome, output};

/// The number of texts that are tokenized at a time, and of images that are in memory.
const TEXT_BATCH: usize = 256;
const IMAGE_BATCH: usize = 64;
/// The endings of the image files in a folder.
const IMAGE_ENDINGS: [&str; 6] = ["jpg", "jpeg", "png", "webp", "gif", "bmp"];

/// Write the vectors of texts or images to a .npy or safetensors file.
#[derive(Debug, Args)]
#[command(after_help = "\
The output has one f32 row per text or image, in the order of the input: the vectors that `encode`
of sentence-transformers gives. A .safetensors file has them as the tensor `embeddings`. The bytes
do not depend on the number of threads.

`--column` names the column of a .csv or .tsv file, or the field of a .jsonl (.ndjson, .json) file;
ids are the column or field `id`, otherwise numbers. Of other files, each line is a text, and its id
is the number of the line. All these may be compressed (.gz). Of a folder, only the images are read
(.jpg, .jpeg, .png, .webp, .gif, .bmp), sorted by path, and the path is the id.

For a memory, use `engram memory build --model`: it knows the model's prompts, and can encode the
queries. If you build one from --keys and --texts, the file of texts must have no blank lines: they
are rows here, but no entries there.

Examples:
  engram encode notes.txt --model hf://sentence-transformers/all-MiniLM-L6-v2 --out notes.npy
  engram encode notes.csv --column body --model minilm --ids ids.txt --out notes.safetensors
  engram encode questions.jsonl --model hf://intfloat/e5-small-v2 --prompt-text 'query: ' --out q.npy
  engram encode photographs --model hf://openai/clip-vit-base-patch32 --normalize --out images.npy
  echo 'a bridge at night' | engram encode - --model minilm --out - > bridge.npy
  engram memory build --keys notes.npy --texts notes.txt --out memory")]
pub struct Encode {
    /// A file of texts (- is standard input), an image file, or a folder of images
    #[arg(value_name = "INPUT")]
    input: InputFile,
    /// The encoder: a folder, hf://owner/name, or the run of `engram train clip` or `similarity`;
    /// with a LoRA or DoRA adapter, MODEL?adapter=ADAPTER
    #[arg(long, value_name = "MODEL")]
    model: ModelName,
    /// Output file: .npy or .safetensors; - is standard output, as .npy
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Write the id of each row to this file, one on each line
    #[arg(long, value_name = "FILE")]
    ids: Option<OutputFile>,
    /// Column of a .csv or .tsv file, or field of a .jsonl file; default: `text`
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// The texts are paths of image files, relative to the folder of the input
    #[arg(long)]
    images: bool,
    /// Name of the prompt before each text, from config_sentence_transformers.json; '' for no
    /// prompt; default: the model's default prompt
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// A text to put before each text, instead of a named prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt")]
    prompt_text: Option<String>,
    /// Cut texts to N tokens, including the special tokens; default: the model's maximum
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..))]
    max_length: Option<u32>,
    /// Keep only the first N components of each vector, for models that were trained for it
    /// (Matryoshka)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,
    /// Scale the vectors to unit length, after --dimensions
    #[arg(long)]
    normalize: bool,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// The rows of the output: their ids, and either their texts or their image files. The other list is
/// empty.
struct Rows {
    ids: Vec<String>,
    texts: Vec<String>,
    images: Vec<PathBuf>,
}

impl Encode {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let is_npy = match self.out.extension().and_then(OsStr::to_str) {
            Some("npy") => true,
            Some("safetensors") => false,
            _ if *self.out == *Path::new(STDOUT) => true,
            _ => bail!("{}: name a .npy or .safetensors file", self.out.display()),
        };
        let rows = self.read()?;
        let (ids, input) = (&rows.ids, self.input.display());
        if let Some(id) = ids.iter().find(|id| self.ids.is_some() && id.contains(char::is_control))
        {
            bail!("{input}: the id {id:?} does not fit on a line; omit --ids");
        }
        let prompt = match &self.prompt_text {
            Some(text) => PromptChoice::Text(text.clone()),
            None => prompt_choice(self.prompt.as_deref(), PromptChoice::Default),
        };
        let mut encoder = Encoder::with_prompt(&self.model, &prompt, &self.compute.open()?)?;
        let modalities = encoder.modalities();
        let (is_encodable, what, remedy) = match rows.images.is_empty() {
            true => (modalities.text, "texts", "give images, or --images"),
            false => {
                (modalities.images, "images", "give texts, or CLIP, SigLIP or DINOv2 as --model")
            }
        };
        ensure!(
            is_encodable,
            "{input}: has {what}, which {} does not encode; {remedy}",
            self.model
        );
        if let Some(length) = self.max_length {
            encoder.set_max_length(length as usize)?;
        }
        let width = self.dimensions.map_or(encoder.width(), |dimensions| dimensions as usize);
        ensure!(
            width <= encoder.width(),
            "--dimensions is {width}, but {} has vectors of width {}",
            self.model,
            encoder.width()
        );
        let shape = [ids.len(), width];
        let header = if is_npy { npy_header::<f32>(&shape) } else { safetensors_header(&shape) };
        self.write(&header, &rows, &encoder, width)?;
        if let Some(path) = &self.ids {
            output::write_atomic(path, (ids.join("\n") + "\n").as_bytes())?;
        }
        let empty = rows.texts.iter().filter(|text| text.trim().is_empty()).count();
        if empty > 0 {
            output::warn(&format!("{input}: has {}", counted(empty, "empty text")));
        }
        if self.json {
            output::print_json(&json!({
                "out": *self.out, "rows": ids.len(), "width": width, "empty": empty,
                "truncated": encoder.truncated_texts(), "model": encoder.name(),
                "sha256": encoder.sha256(), "prompt": encoder.prompt(),
            }))?;
        } else {
            let (vectors, out) = (counted(ids.len(), "vector"), self.out.display());
            output::note(&format!("{vectors} of width {width} written to {out}"));
        }
        Ok(Outcome::Done)
    }

    /// Encodes the rows batch by batch, and writes the first `width` components of the vectors.
    fn write(
        &self,
        header: &[u8],
        Rows { ids, texts, images }: &Rows,
        encoder: &Encoder,
        width: usize,
    ) -> anyhow::Result<()> {
        let error = |error| not_written(&self.out, error);
        let mut file = AtomicFile::create(&self.out).map_err(error)?;
        file.write_all(header).map_err(error)?;
        let (batch, unit) =
            if images.is_empty() { (TEXT_BATCH, "texts") } else { (IMAGE_BATCH, "images") };
        let bar = output::progress_bar(ids.len(), unit);
        let rows: Vec<usize> = (0..ids.len()).collect();
        for rows in rows.chunks(batch) {
            let prepare = |row: &usize| {
                let text = texts.get(*row).map(String::as_str);
                let item = Item { text, image: images.get(*row).map(PathBuf::as_path) };
                let location = || format!("{}: {}", self.input.display(), ids[*row]);
                encoder.prepare(item).with_context(location)
            };
            let prepared: Vec<_> = rows.par_iter().map(prepare).collect();
            let prepared = prepared.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            let vectors = encoder.embed(&prepared.iter().collect::<Vec<_>>())?;
            let mut bytes = Vec::with_capacity(rows.len() * width * size_of::<f32>());
            for (row, vector) in rows.iter().zip(vectors.chunks(encoder.width())) {
                let mut vector = vector[..width].to_vec();
                if self.normalize {
                    to_unit_length(&mut vector);
                }
                ensure!(
                    vector.iter().all(|x| x.is_finite()),
                    "{}: {}: the vector is not finite; check the weights of {}",
                    self.input.display(),
                    ids[*row],
                    self.model
                );
                bytes.extend(vector.into_iter().flat_map(f32::to_le_bytes));
            }
            file.write_all(&bytes).map_err(error)?;
            bar.inc(rows.len() as u64);
        }
        bar.finish_and_clear();
        file.commit().map_err(error)
    }

    /// Reads the input.
    fn read(&self) -> anyhow::Result<Rows> {
        let is_image = |path: &Path| {
            let ending = path.extension().unwrap_or_default();
            IMAGE_ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
        };
        let (path, input) = (&*self.input, self.input.display());
        let mut rows = Rows { ids: Vec::new(), texts: Vec::new(), images: Vec::new() };
        if path.is_dir() || is_image(path) {
            ensure!(self.column.is_none(), "{input}: has no columns; omit --column");
            let mut base = base_folder(path);
            rows.images.push(path.to_owned());
            if path.is_dir() {
                let FolderFiles { files, skipped } = files(path, &is_image)?;
                if skipped != SkippedFiles::default() {
                    output::note(&format!("{input}: skipped {skipped}"));
                }
                (base, rows.images) = (path, files);
            }
            let id =
                |image: &PathBuf| image.strip_prefix(base).unwrap_or(image).display().to_string();
            rows.ids = rows.images.iter().map(id).collect();
        } else {
            (rows.ids, rows.texts) = self.read_texts()?.into_iter().unzip();
            if self.images {
                let texts = std::mem::take(&mut rows.texts).into_iter();
                rows.images = texts.map(|text| base_folder(path).join(text.trim())).collect();
            }
        }
        let remedy = "give a file of texts, or a folder of images";
        ensure!(!rows.ids.is_empty(), "{input}: has no texts and no images; {remedy}");
        for output in [Some(&self.out), self.ids.as_ref()].into_iter().flatten() {
            check_not_overwritten(output, rows.images.iter().map(PathBuf::as_path))?;
        }
        Ok(rows)
    }

    /// Reads the texts with their ids.
    fn read_texts(&self) -> anyhow::Result<Vec<(String, String)>> {
        let path = &*self.input;
        let column = self.column.as_deref().unwrap_or("text");
        let mut rows: Vec<(String, String)> = Vec::new();
        match TextFormat::of_path(path) {
            TextFormat::Jsonl => {
                let mut lines = Lines::new(Input::open(path)?);
                while lines.advance()? {
                    let (file, line) = (path.display().to_string(), lines.number());
                    let mut object: Map<String, Value> =
                        parse_json_line(&file, line, lines.text(), ONE_OBJECT)?;
                    let id = match object.get("id") {
                        Some(Value::String(id)) => id.clone(),
                        Some(id) => id.to_string(),
                        None => line.to_string(),
                    };
                    let Some(Value::String(text)) = object.remove(column) else {
                        let remedy = "name the field of the texts with --column";
                        return Err(lines.error(format!("has no text `{column}`"), remedy).into());
                    };
                    rows.push((id, text));
                }
            }
            format @ (TextFormat::Csv | TextFormat::Tsv) => {
                let input = Input::open(path)?;
                let mut table = match format {
                    TextFormat::Csv => Table::csv(input),
                    _ => Table::tsv(input, false),
                }?;
                let text = table.column(column).map_err(|error| match error {
                    TextError::MissingColumn { .. } if self.column.is_none() => {
                        anyhow::anyhow!("{error}, or name another with --column")
                    }
                    error => error.into(),
                })?;
                let id = table.optional_column("id")?;
                while table.advance()? {
                    let number = || (rows.len() + 1).to_string();
                    let id = id.map_or_else(number, |id| table.field(id).trim().to_owned());
                    rows.push((id, table.field(text).to_owned()));
                }
            }
            _ => {
                let name = path.display().to_string();
                ensure!(
                    self.column.is_none(),
                    "{name}: --column needs a .csv, .tsv or .jsonl file; rename the file"
                );
                let text = read_text(path)?;
                check_line_ends(&name, &text)?;
                rows.extend(lines(&text).map(|(line, text)| (line.to_string(), text.to_owned())));
            }
        }
        Ok(rows)
    }
}

/// The bytes of a safetensors file before the values of its only tensor, `embeddings`.
fn safetensors_header(shape: &[usize; 2]) -> Vec<u8> {
    let end = shape[0] * shape[1] * size_of::<f32>();
    let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": [0, end]});
    let mut header = json!({"embeddings": tensor}).to_string();
    // Values start at a multiple of 8.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}
