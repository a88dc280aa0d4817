//! `engram data entries`: published data sets as memory entries.

use engram_data::messages::counted;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use engram_data::DataError;
use engram_data::knowledge::coco::CocoOptions;
use engram_data::knowledge::vqa::{ImageName, VqaOptions};
use engram_data::knowledge::web::WebOptions;
use engram_data::knowledge::wikidata::{Labels, ObjectCounts, TripleOptions};
use engram_data::knowledge::wit::WitOptions;
use engram_data::knowledge::{Collector, Counts, Input, coco, vqa, web, wikidata, wit};
use indicatif::ProgressBar;
use serde::Serialize;

use super::super::paths::{InputFile, OutputFile, path_list};
use super::super::{Outcome, output};

/// Convert a published data set to memory entries (JSON lines).
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Files may be gzipped. docs/reference/formats.md has the differences from REVEAL's code.

Examples:
  engram data entries wit wit_v1.train.all-0000*.tsv.gz --language en --out wit.jsonl
  engram data entries web cc12m.tsv --out cc12m.jsonl
  engram memory build --keys keys.npy --entries wit.jsonl --out memory")]
pub enum Entries {
    Wikidata(Wikidata),
    Wit(Wit),
    Web(Web),
    Coco(Coco),
    Vqa(Vqa),
}

/// The output options of all formats.
#[derive(Debug, Args)]
struct Output {
    /// Output file for the entries (JSON lines)
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Source name of the entries; default: the name of the format, and cc12m for web
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// Skip and count malformed lines and items, instead of stopping with an error
    #[arg(long)]
    skip_bad_lines: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// Convert triples and entity descriptions of Wikidata or another knowledge graph.
#[derive(Debug, Args)]
#[command(after_help = "\
Triples: [[subject, relation, object], ...] as in REVEAL, or lines
`subject TAB relation TAB object`.
Labels: {id: label}, {id: {\"label\": ..., \"description\": ...}}, or lines
`id TAB label [TAB alias ...]`.

Examples:
  engram data entries wikidata wikidata5m_transductive_train.txt --labels wikidata5m_entity.txt \\
      --labels wikidata5m_relation.txt --reverse --out wikidata.jsonl
  engram data entries wikidata --labels entity2wikidata.json --descriptions --out passages.jsonl")]
pub struct Wikidata {
    /// Files of triples
    triples: Vec<InputFile>,
    /// File of labels of entities, relations or both (repeatable)
    #[arg(long, value_name = "FILE")]
    labels: Vec<InputFile>,
    /// Use the id of an entity without a label, instead of stopping with an error
    #[arg(long, requires = "labels")]
    keep_ids: bool,
    /// Also add the reverse of each triple, with `_R` after its relation, unless 10,000 or more
    /// triples have the same relation and object
    #[arg(long)]
    reverse: bool,
    /// Also add a passage `label: description` for each label with a description
    #[arg(long, requires = "labels")]
    descriptions: bool,
    #[command(flatten)]
    output: Output,
}

/// Convert WIT: images of Wikipedia with the texts around them.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data entries wit wit_v1.train.all-0000*.tsv.gz --language en --out wit.jsonl")]
pub struct Wit {
    /// WIT files, .tsv or .tsv.gz
    #[arg(required = true)]
    files: Vec<InputFile>,
    /// Keep only this language, for example en; default: all
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Convert web images with captions: CC12M, CC3M.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data entries web cc12m.tsv --out cc12m.jsonl
  engram data entries web Train_GCC-training.tsv --caption-first --source cc3m --out cc3m.jsonl")]
pub struct Web {
    /// Files with lines `URL TAB caption`
    #[arg(required = true)]
    files: Vec<InputFile>,
    /// Read lines `caption TAB URL`, as in CC3M
    #[arg(long)]
    caption_first: bool,
    /// Skip captions with fewer than N characters; REVEAL's code uses 33 for web pairs in
    /// pre-training
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_characters: usize,
    #[command(flatten)]
    output: Output,
}

/// Convert captions of COCO or NoCaps, also from Karpathy's files or from a CSV.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data entries coco captions_train2017.json --folder train2017 --out coco.jsonl
  engram data entries coco dataset_coco.json --split train,restval --join --out coco.jsonl
  engram data entries coco captions.csv --out captions.jsonl")]
pub struct Coco {
    /// Caption files; a CSV has the columns image, caption and optionally split
    #[arg(required = true)]
    files: Vec<InputFile>,
    /// Folder name to put before the image file names
    #[arg(long, value_name = "NAME")]
    folder: Option<String>,
    /// Join all captions of an image to one entry
    #[arg(long)]
    join: bool,
    /// Keep only these splits of a CSV or of Karpathy's file (train, restval, val, test)
    #[arg(long = "split", value_name = "NAME", value_delimiter = ',')]
    splits: Vec<String>,
    #[command(flatten)]
    output: Output,
}

/// Convert visual questions and answers: VQA, OK-VQA, A-OKVQA.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data entries vqa --questions train_questions.json --annotations train_annotations.json \\
      --questions val_questions.json --annotations val_annotations.json \\
      --image-name COCO_train2014_%012d.jpg --image-name COCO_val2014_%012d.jpg \\
      --per-image --out vqa.jsonl
  engram data entries vqa --aokvqa aokvqa_v1p0_val.json --image-name val2017/%012d.jpg \\
      --out aokvqa.jsonl")]
pub struct Vqa {
    /// Question file of VQA or OK-VQA (repeatable)
    #[arg(long, value_name = "FILE", required_unless_present = "aokvqa")]
    questions: Vec<InputFile>,
    /// Annotation file for each question file, in the same order
    #[arg(long, value_name = "FILE")]
    annotations: Vec<InputFile>,
    /// A-OKVQA file with questions and answers (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["questions", "annotations"])]
    aokvqa: Vec<InputFile>,
    /// Pattern of image file names, where %012d, %d or %s stands for the image id; give one for all
    /// question files, or one for each
    #[arg(long = "image-name", value_name = "PATTERN")]
    image_names: Vec<ImageName>,
    /// Join all questions of an image to one entry, with REVEAL's text format
    #[arg(long)]
    per_image: bool,
    #[command(flatten)]
    output: Output,
}

impl Entries {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Wikidata(command) => command.run()?,
            Self::Wit(Wit { files, language, output }) => {
                let options = WitOptions { source: output.source("wit"), language };
                output.convert_files(&path_list(&files), |input, collector| {
                    wit::read(input, &options, collector)
                })?;
            }
            Self::Web(Web { files, caption_first, min_characters, output }) => {
                let source = output.source("cc12m");
                let options = WebOptions { source, caption_first, min_characters };
                output.convert_files(&path_list(&files), |input, collector| {
                    web::read(input, &options, collector)
                })?;
            }
            Self::Coco(Coco { files, folder, join, splits, output }) => {
                let options = CocoOptions { source: output.source("coco"), folder, join, splits };
                output.convert_files(&path_list(&files), |input, collector| {
                    coco::read(input, &options, collector)
                })?;
            }
            Self::Vqa(command) => command.run()?,
        }
        Ok(Outcome::Done)
    }
}

impl Wikidata {
    fn run(self) -> anyhow::Result<()> {
        let Self { keep_ids, reverse, descriptions, output, .. } = self;
        let source = output.source("wikidata");
        let (triples, labels) = (path_list(&self.triples), path_list(&self.labels));
        if triples.is_empty() && !descriptions {
            anyhow::bail!(
                "no triples and no --descriptions; give files of triples, or --labels with \
                 --descriptions"
            );
        }
        let mut read_twice = Vec::new();
        read_twice.extend(triples.iter().filter(|_| reverse).cloned());
        read_twice.extend(labels.iter().filter(|_| descriptions).cloned());
        if let Some(pipe) = read_twice
            .iter()
            .find(|path| fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()))
        {
            let pipe = pipe.display();
            anyhow::bail!(
                "{pipe}: is a pipe or a device, but these options read it twice; save it to a \
                 file"
            );
        }
        let files = [&triples[..], &labels, &read_twice].concat();
        output.write(&files, |inputs, collector| {
            let mut label_table = Labels::default();
            for path in &labels {
                label_table.read(inputs.open(path)?, &mut inputs.discarding_collector())?;
            }
            if descriptions {
                for path in &labels {
                    wikidata::read_descriptions(inputs.open(path)?, &source, collector)?;
                }
            }
            let mut counts = ObjectCounts::default();
            if reverse {
                for path in &triples {
                    counts.read(inputs.open(path)?, &mut inputs.discarding_collector())?;
                }
            }
            let options = TripleOptions {
                source: &source,
                labels: (!labels.is_empty()).then_some(&label_table),
                keep_ids,
                reverse: reverse.then_some(&counts),
            };
            triples.iter().try_for_each(|path| {
                wikidata::read_triples(inputs.open(path)?, &options, collector)
            })
        })
    }
}

impl Vqa {
    fn run(self) -> anyhow::Result<()> {
        let Self { image_names, per_image, output, .. } = self;
        let source = output.source("vqa");
        let [questions, annotations, aokvqa] =
            [self.questions, self.annotations, self.aokvqa].map(|files| path_list(&files));
        if questions.len() != annotations.len() {
            let (questions, annotations) = (questions.len(), annotations.len());
            anyhow::bail!(
                "{questions} question files, {annotations} annotation files; give one of each, in \
                 the same order"
            );
        }
        let count = questions.len() + aokvqa.len();
        let names: Vec<Option<ImageName>> = match image_names.len() {
            0 => vec![None; count],
            1 => vec![image_names.into_iter().next(); count],
            given if given == count => image_names.into_iter().map(Some).collect(),
            given => anyhow::bail!(
                "{given} --image-name for {count} question files; give one, or one for each file"
            ),
        };
        let options: Vec<VqaOptions> = names
            .into_iter()
            .map(|image_name| VqaOptions { source: source.clone(), image_name, per_image })
            .collect();
        let files = [&questions[..], &annotations, &aokvqa].concat();
        output.write(&files, |inputs, collector| {
            for ((questions, annotations), options) in
                questions.iter().zip(&annotations).zip(&options)
            {
                let annotations = Some(inputs.open(annotations)?);
                vqa::read(inputs.open(questions)?, annotations, options, collector)?;
            }
            aokvqa.iter().zip(&options).try_for_each(|(path, options)| {
                vqa::read(inputs.open(path)?, None, options, collector)
            })
        })
    }
}

/// Opens input files and shows progress.
struct InputFiles {
    bar: ProgressBar,
    skip_bad_lines: bool,
}

impl InputFiles {
    fn open(&self, path: &Path) -> Result<Input<'static>, DataError> {
        let file = File::open(path);
        let file = file.map_err(|source| DataError::Io { path: path.to_owned(), source })?;
        Ok(Input::new(path, self.bar.wrap_read(file))?)
    }

    /// A collector that writes no entries, for files of labels and counts.
    fn discarding_collector(&self) -> Collector<'static> {
        Collector::new(|_| Ok(())).skip_malformed(self.skip_bad_lines)
    }
}

/// The summary that `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    out: &'a Path,
    #[serde(flatten)]
    counts: &'a Counts,
}

impl Output {
    /// The source name of the entries.
    fn source(&self, default: &str) -> String {
        self.source.clone().unwrap_or_else(|| default.to_owned())
    }

    /// Reads files one after the other and writes their entries.
    fn convert_files(
        &self,
        files: &[PathBuf],
        mut read: impl FnMut(Input<'static>, &mut Collector<'_>) -> Result<(), DataError>,
    ) -> anyhow::Result<()> {
        self.write(files, |inputs, collector| {
            files.iter().try_for_each(|path| read(inputs.open(path)?, collector))
        })
    }

    /// Writes the entries that `read` produces, then prints the counts. `files` has every file that
    /// `read` opens, repeated if it opens the file several times.
    fn write(
        &self,
        files: &[PathBuf],
        read: impl FnOnce(&InputFiles, &mut Collector<'_>) -> Result<(), DataError>,
    ) -> anyhow::Result<()> {
        let bytes = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|f| f.len()).sum();
        let bar = output::byte_progress_bar(bytes);
        let inputs = InputFiles { bar, skip_bad_lines: self.skip_bad_lines };

        let not_written = |error| output::not_written(&self.out, error);
        let mut file = BufWriter::new(output::AtomicFile::create(&self.out).map_err(not_written)?);
        let mut write_error = None;
        let mut collector = Collector::new(|knowledge| {
            let line = serde_json::to_writer(&mut file, &knowledge).map_err(io::Error::from);
            line.and_then(|()| file.write_all(b"\n")).map_err(|error| {
                let source = error.kind().into();
                write_error = Some(error);
                DataError::Io { path: self.out.to_path_buf(), source }
            })
        })
        .skip_malformed(self.skip_bad_lines);
        let result = read(&inputs, &mut collector);
        let counts = collector.counts().clone();
        drop(collector);
        inputs.bar.finish_and_clear();
        if let Some(error) = write_error {
            return Err(not_written(error));
        }
        result?;
        if counts.entries == 0 {
            anyhow::bail!(
                "{}: no entries from {}, so {} is not written; check the files and the options",
                names(files),
                counts_text(&counts),
                self.out.display()
            );
        }
        let file = file.into_inner().map_err(|error| not_written(error.into_error()))?;
        file.commit().map_err(not_written)?;
        self.report(&counts)
    }

    fn report(&self, counts: &Counts) -> anyhow::Result<()> {
        let summary = Summary { out: &self.out, counts };
        let text = || {
            format!(
                "{}: {} from {}",
                self.out.display(),
                counted(counts.entries, "entry"),
                counts_text(counts)
            )
        };
        output::print_report(self.json, &summary, text)
    }
}

/// The names of the input files, each once.
fn names(files: &[PathBuf]) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in files.iter().map(|path| path.display().to_string()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The number of records read and of records skipped, with reasons.
fn counts_text(counts: &Counts) -> String {
    let mut text = counted(counts.records, "record");
    let reasons: Vec<String> =
        counts.skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !reasons.is_empty() {
        text += &format!("; skipped: {}", reasons.join(", "));
    }
    for (note, count) in &counts.notes {
        text += &format!("; {count} {note}");
    }
    text
}
