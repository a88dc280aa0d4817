//! `engram data entries`.

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

use super::super::{Outcome, output};

/// Turn a published data set into entries of a memory.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Files are plain or gzip. What becomes of each data set, and how REVEAL's code does it: docs/memory.md.
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

/// What all of them take.
#[derive(Debug, Args)]
struct Output {
    /// The entries to write, JSON lines
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Count malformed lines and items, where otherwise the first of them ends the command
    #[arg(long)]
    skip_bad_lines: bool,
    /// Do not show progress
    #[arg(long)]
    quiet: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// Edges of Wikidata, or of another knowledge graph, and descriptions of its entities.
#[derive(Debug, Args)]
#[command(after_help = "\
Edges: [[subject, relation, object], ...] as REVEAL has them, or lines `subject TAB relation TAB object`.
Labels: {id: label}, {id: {\"label\": ..., \"description\": ...}}, or lines `id TAB label [TAB alias ...]`.
Examples:
  engram data entries wikidata wikidata5m_transductive_train.txt --labels wikidata5m_entity.txt \\
      --labels wikidata5m_relation.txt --reverse --out wikidata.jsonl
  engram data entries wikidata --labels entity2wikidata.json --descriptions --out passages.jsonl")]
pub struct Wikidata {
    /// Files of edges
    edges: Vec<PathBuf>,
    /// A file of labels for entities, relations or both; several times for several
    #[arg(long, value_name = "FILE")]
    labels: Vec<PathBuf>,
    /// Keep the ids of entities that have no label, where otherwise the first of them ends the command
    #[arg(long, requires = "labels")]
    keep_ids: bool,
    /// Give the reverse of each edge too, with `_R` behind its relation, unless 10,000 edges have that relation and object
    #[arg(long)]
    reverse: bool,
    /// Give each label that has a description as a passage `label: description`
    #[arg(long, requires = "labels")]
    descriptions: bool,
    /// The source of the entries
    #[arg(long, value_name = "NAME", default_value = "wikidata",
        value_parser = NonEmptyStringValueParser::new())]
    source: String,
    #[command(flatten)]
    output: Output,
}

/// WIT: pictures of Wikipedia with the texts around them.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data entries wit wit_v1.train.all-0000*.tsv.gz --language en --out wit.jsonl")]
pub struct Wit {
    /// Files of WIT, .tsv or .tsv.gz
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Keep this language alone, such as en; all without it
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    /// The source of the entries
    #[arg(long, value_name = "NAME", default_value = "wit",
        value_parser = NonEmptyStringValueParser::new())]
    source: String,
    #[command(flatten)]
    output: Output,
}

/// Pictures of the web with captions: CC12M, CC3M.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data entries web cc12m.tsv --out cc12m.jsonl
  engram data entries web Train_GCC-training.tsv --caption-first --source cc3m --out cc3m.jsonl")]
pub struct Web {
    /// Files of lines `address TAB caption`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The caption comes before the address, as in CC3M
    #[arg(long)]
    caption_first: bool,
    /// Leave out captions of fewer characters; for its web pairs in pre-training REVEAL's code has 33
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_characters: usize,
    /// The source of the entries
    #[arg(long, value_name = "NAME", default_value = "cc12m",
        value_parser = NonEmptyStringValueParser::new())]
    source: String,
    #[command(flatten)]
    output: Output,
}

/// Captions of COCO, NoCaps, or of Karpathy's files.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data entries coco captions_train2017.json --folder train2017 --out coco.jsonl
  engram data entries coco dataset_coco.json --split train,restval --join --out coco.jsonl")]
pub struct Coco {
    /// Files of captions
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The folder to put before the names of the pictures
    #[arg(long, value_name = "DIR")]
    folder: Option<String>,
    /// Make one entry of all captions of an image
    #[arg(long)]
    join: bool,
    /// Keep these splits of Karpathy's file: train, restval, val, test
    #[arg(long = "split", value_name = "NAME", value_delimiter = ',')]
    splits: Vec<String>,
    /// The source of the entries
    #[arg(long, value_name = "NAME", default_value = "coco",
        value_parser = NonEmptyStringValueParser::new())]
    source: String,
    #[command(flatten)]
    output: Output,
}

/// Questions about pictures with answers: VQA, OK-VQA, A-OKVQA.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data entries vqa --questions train_questions.json --annotations train_annotations.json \\
      --questions val_questions.json --annotations val_annotations.json \\
      --image-name COCO_train2014_%012d.jpg --image-name COCO_val2014_%012d.jpg \\
      --per-image --out vqa.jsonl
  engram data entries vqa --aokvqa aokvqa_v1p0_val.json --image-name val2017/%012d.jpg --out aokvqa.jsonl")]
pub struct Vqa {
    /// Questions of VQA or OK-VQA; several times for several
    #[arg(long, value_name = "FILE", required_unless_present = "aokvqa")]
    questions: Vec<PathBuf>,
    /// Their annotations, in the same order
    #[arg(long, value_name = "FILE")]
    annotations: Vec<PathBuf>,
    /// A-OKVQA, questions and answers in one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["questions", "annotations"])]
    aokvqa: Vec<PathBuf>,
    /// How pictures are called: %012d, %d or %s stands for the image's id. Once, or once for each file of questions
    #[arg(long = "image-name", value_name = "PATTERN")]
    image_names: Vec<ImageName>,
    /// Make one entry of all questions of an image, with the text that REVEAL has
    #[arg(long)]
    per_image: bool,
    /// The source of the entries
    #[arg(long, value_name = "NAME", default_value = "vqa",
        value_parser = NonEmptyStringValueParser::new())]
    source: String,
    #[command(flatten)]
    output: Output,
}

impl Entries {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Wikidata(command) => command.run()?,
            Self::Wit(Wit { files, language, source, output }) => {
                let options = WitOptions { source, language };
                output.write_each(&files, |input, to| wit::read(input, &options, to))?;
            }
            Self::Web(Web { files, caption_first, min_characters, source, output }) => {
                let options = WebOptions { source, caption_first, min_characters };
                output.write_each(&files, |input, to| web::read(input, &options, to))?;
            }
            Self::Coco(Coco { files, folder, join, splits, source, output }) => {
                let options = CocoOptions { source, folder, join, splits };
                output.write_each(&files, |input, to| coco::read(input, &options, to))?;
            }
            Self::Vqa(command) => command.run()?,
        }
        Ok(Outcome::Done)
    }
}

impl Wikidata {
    fn run(self) -> anyhow::Result<()> {
        let Self { edges, labels, keep_ids, reverse, descriptions, source, output } = self;
        if edges.is_empty() && !descriptions {
            anyhow::bail!("no edges and no --descriptions; give files of edges, or both options");
        }
        let mut again = Vec::new();
        again.extend(edges.iter().filter(|_| reverse).cloned());
        again.extend(labels.iter().filter(|_| descriptions).cloned());
        if let Some(pipe) =
            again.iter().find(|path| fs::metadata(path).is_ok_and(|found| !found.is_file()))
        {
            let pipe = pipe.display();
            anyhow::bail!("{pipe}: is read twice, which only a file can be; write it to one");
        }
        let files = [&edges[..], &labels, &again].concat();
        output.write(&files, |reading, to| {
            let mut known = Labels::default();
            for path in &labels {
                known.read(reading.open(path)?, &mut reading.counter())?;
            }
            if descriptions {
                for path in &labels {
                    wikidata::read_descriptions(reading.open(path)?, &source, to)?;
                }
            }
            let mut counts = ObjectCounts::default();
            if reverse {
                for path in &edges {
                    counts.read(reading.open(path)?, &mut reading.counter())?;
                }
            }
            let options = TripleOptions {
                source: &source,
                labels: (!labels.is_empty()).then_some(&known),
                keep_ids,
                reverse: reverse.then_some(&counts),
            };
            edges
                .iter()
                .try_for_each(|path| wikidata::read_triples(reading.open(path)?, &options, to))
        })
    }
}

impl Vqa {
    fn run(self) -> anyhow::Result<()> {
        let Self { questions, annotations, aokvqa, image_names, per_image, source, output } = self;
        if questions.len() != annotations.len() {
            let (questions, annotations) = (questions.len(), annotations.len());
            anyhow::bail!(
                "{questions} files of questions, {annotations} of annotations; give one of each, in one order"
            );
        }
        let count = questions.len() + aokvqa.len();
        let names: Vec<Option<ImageName>> = match image_names.len() {
            0 => vec![None; count],
            1 => vec![image_names.into_iter().next(); count],
            given if given == count => image_names.into_iter().map(Some).collect(),
            given => anyhow::bail!(
                "{given} --image-name for {count} files of questions; give one, or one for each"
            ),
        };
        let options: Vec<VqaOptions> = names
            .into_iter()
            .map(|image_name| VqaOptions { source: source.clone(), image_name, per_image })
            .collect();
        let files = [&questions[..], &annotations, &aokvqa].concat();
        output.write(&files, |reading, to| {
            for ((questions, annotations), options) in
                questions.iter().zip(&annotations).zip(&options)
            {
                vqa::read(reading.open(questions)?, reading.open(annotations)?, options, to)?;
            }
            aokvqa
                .iter()
                .zip(&options)
                .try_for_each(|(path, options)| vqa::read_aokvqa(reading.open(path)?, options, to))
        })
    }
}

/// The files on their way in.
struct Reading {
    bar: ProgressBar,
    skips_bad_rows: bool,
}

impl Reading {
    fn open(&self, path: &Path) -> Result<Input<'static>, DataError> {
        let file = File::open(path);
        let file = file.map_err(|source| DataError::Io { path: path.to_owned(), source })?;
        Input::new(path, self.bar.wrap_read(file))
    }

    /// For what gives no entries.
    fn counter(&self) -> Collector<'static> {
        Collector::new(|_| Ok(())).skipping_bad_rows(self.skips_bad_rows)
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    out: &'a Path,
    #[serde(flatten)]
    counts: &'a Counts,
}

impl Output {
    /// Writes the entries of files that are read one after the other.
    fn write_each(
        &self,
        files: &[PathBuf],
        mut read: impl FnMut(Input<'static>, &mut Collector<'_>) -> Result<(), DataError>,
    ) -> anyhow::Result<()> {
        self.write(files, |reading, to| {
            files.iter().try_for_each(|path| read(reading.open(path)?, to))
        })
    }

    /// Writes the entries that `read` gives, and tells the counts; `files` are those that it opens, each as often.
    fn write(
        &self,
        files: &[PathBuf],
        read: impl FnOnce(&Reading, &mut Collector<'_>) -> Result<(), DataError>,
    ) -> anyhow::Result<()> {
        let bytes = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|f| f.len()).sum();
        let bar = output::byte_progress_bar(bytes, self.quiet);
        let reading = Reading { bar, skips_bad_rows: self.skip_bad_lines };

        let not_written = |error| output::not_written(&self.out, error);
        let mut file = BufWriter::new(output::WholeFile::create(&self.out).map_err(not_written)?);
        let mut write_error = None;
        let mut to = Collector::new(|knowledge| {
            let line = serde_json::to_writer(&mut file, &knowledge).map_err(io::Error::from);
            line.and_then(|()| file.write_all(b"\n")).map_err(|error| {
                let source = error.kind().into();
                write_error = Some(error);
                DataError::Io { path: self.out.clone(), source }
            })
        })
        .skipping_bad_rows(self.skip_bad_lines);
        let read = read(&reading, &mut to);
        let counts = to.counts().clone();
        drop(to);
        reading.bar.finish_and_clear();
        if let Some(error) = write_error {
            return Err(not_written(error));
        }
        read?;
        if counts.entries == 0 {
            anyhow::bail!(
                "{}: no entries, {}; check the files and the options",
                self.out.display(),
                told(&counts)
            );
        }
        let file = file.into_inner().map_err(|error| not_written(error.into_error()))?;
        file.commit().map_err(not_written)?;
        self.report(&counts)
    }

    fn report(&self, counts: &Counts) -> anyhow::Result<()> {
        let summary = Summary { out: &self.out, counts };
        let text =
            || format!("{}: {} entries of {}", self.out.display(), counts.entries, told(counts));
        output::print_report(self.json, &summary, text)
    }
}

/// The rows, and the skipped rows by reason.
fn told(counts: &Counts) -> String {
    let mut text = format!("{} rows", counts.rows);
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
