//! `engram eval wer`: word and character error rates of transcripts.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use engram_eval::normalise::Normaliser;
use engram_eval::wer::Alignment;
use engram_eval::wer::labels::LabelTable;
use engram_eval::wer::rare_words::{RareWords, parse_biasing_lists, parse_word_list};
use engram_eval::wer::read::{Pairs, TextFormat};
use engram_eval::wer::report::{Labels, WerOptions, evaluate};
use engram_eval::wer::tokens::TokenUnit;
use engram_textfile::read_text;

use super::super::Outcome;
use super::formats::{FORMATS, FormatOptions, text_file};
use super::output;
use super::shared::{IntervalOptions, OutputOptions, normaliser, read_named, source_file};
use crate::cli::paths::InputFile;

/// Evaluate speech recognition: WER and CER, alignments, confusions, rare words.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  engram eval wer --ref ref.txt --hyp hyp.txt
  engram eval wer --ref ref.trn --hyp hyp.trn --align 10
  engram eval wer --ref ref.trn --hyp hyp.trn --normalizer lowercase -D     # like sclite -D
  engram eval wer --ref data/test/text --hyp exp/text --format kaldi
  engram eval wer --pairs manifest.json                        # NeMo: text and pred_text
  engram eval wer --pairs results.csv --ref-column sentence --hyp-column output
  engram eval wer --pairs pairs.jsonl --unit char --json
  engram eval wer --ref ref.tsv --hyp hyp.tsv --normalizer whisper-en --compare-normalizers
  engram eval wer --ref ref.tsv --hyp hyp.tsv --table utterances.tsv --by subset --cluster speaker
  engram eval wer --ref ref.tsv --hyp hyp.tsv --html report.html
  engram eval wer --ref ref.tsv --hyp hyp.tsv --biasing test-other.biasing_100.tsv

{FORMATS}

A .trn file may have sclite markup: alternatives {{ a b / c / @ }}, @ for no word, (uh) for an
optional word, ;; for a comment. Texts with markup are aligned like sclite.

The alignment of one text may have up to 40,000,000,000 cells: 200,000 x 200,000 characters with
little in common."))]
pub struct Wer {
    /// Reference texts
    #[arg(long = "ref", value_name = "FILE", requires = "hyp", required_unless_present = "pairs")]
    reference: Option<InputFile>,
    /// Hypothesis texts
    #[arg(long, value_name = "FILE", requires = "reference")]
    hyp: Option<InputFile>,
    /// References and hypotheses in one file: JSON lines (such as a NeMo manifest), CSV or TSV
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reference", "hyp"])]
    pairs: Option<InputFile>,
    #[command(flatten)]
    formats: FormatOptions,
    /// Count a missing optional word, such as (uh), as correct, like sclite -D; for trn files
    #[arg(short = 'D', long, conflicts_with = "pairs")]
    optional_deletions: bool,
    /// Alignment of words [default: sclite for texts with sclite markup, otherwise jiwer]
    #[arg(long, value_enum)]
    alignment: Option<AlignmentName>,
    /// Unit of the error rate
    #[arg(long, value_enum, default_value = "word")]
    unit: UnitName,
    /// Normalise the texts first: none, lowercase, jiwer-standardize, basic (+remove-diacritics,
    /// +split-letters), whisper-en
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = normaliser(),
        hide_possible_values = true)]
    normalizer: Normaliser,
    /// Article that does not count at the start of a text, such as 'un ' or "l'" (repeatable)
    #[arg(long = "article", value_name = "TEXT")]
    articles: Vec<String>,
    /// Also print the error rate with each of none, jiwer-standardize, basic and whisper-en
    #[arg(long)]
    compare_normalizers: bool,
    /// TSV table with a header and one row per utterance id, for --by and --cluster; or utt2spk or
    /// spk2gender of a Kaldi folder, with the columns speaker and gender
    #[arg(long, value_name = "FILE")]
    table: Option<InputFile>,
    /// Report the error rate for each value of this column of the table (repeatable)
    #[arg(long, value_name = "COLUMN", requires = "table")]
    by: Vec<String>,
    /// Resample whole groups for the intervals: utterances with the same value in this column of
    /// the table, such as speaker [default: single utterances]
    #[arg(long, value_name = "COLUMN", requires = "table")]
    cluster: Option<String>,
    /// File with one rare word per line: report the errors of rare words (B-WER) and of other
    /// words (U-WER)
    #[arg(long, value_name = "FILE")]
    rare_words: Option<InputFile>,
    /// Like --rare-words, for all words that occur at most N times in the references
    #[arg(long, value_name = "N", conflicts_with_all = ["rare_words", "biasing"])]
    rare_at_most: Option<u64>,
    /// Like --rare-words, with rare words for each utterance: id<TAB>text<TAB>JSON list of words
    #[arg(long, value_name = "FILE", conflicts_with = "rare_words")]
    biasing: Option<InputFile>,
    /// Show the alignments of the N utterances with the most errors [default without N: 20]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20")]
    align: Option<usize>,
    /// List the N most frequent substitutions, deletions and insertions [default: 10 in text, 0 in
    /// JSON]
    #[arg(long, value_name = "N")]
    confusions: Option<usize>,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AlignmentName {
    /// Each edit costs 1
    Jiwer,
    /// A substitution costs 4; a deletion or insertion costs 3
    Sclite,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnitName {
    /// Words
    Word,
    /// Characters
    Char,
}

impl Wer {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let alignment_count = self.align.unwrap_or(0);
        let confusion_count = self.confusions.unwrap_or(if self.outputs.json { 0 } else { 10 });
        let mut options = WerOptions {
            unit: match self.unit {
                UnitName::Word => TokenUnit::Word,
                UnitName::Char => TokenUnit::Char,
            },
            bootstrap: self.intervals.options(),
            worst: self.outputs.worst_count(alignment_count),
            confusions: if self.outputs.writes_page() {
                confusion_count.max(20)
            } else {
                confusion_count
            },
            items: self.outputs.needs_items(),
            normaliser: self.normalizer,
            articles: self.articles.clone(),
            other_normalisers: if self.compare_normalizers { &Normaliser::COMMON[..] } else { &[] }
                .to_vec(),
            ..WerOptions::default()
        };
        let read = |role: &'static str, path: &Path| -> anyhow::Result<_> {
            let path = text_file(path);
            let text = read_text(&path)?;
            Ok((role, path, text))
        };
        let texts = match (&self.pairs, &self.reference, &self.hyp) {
            (Some(pairs), _, _) => vec![read("pairs", pairs)?],
            (None, Some(reference), Some(hyp)) => {
                vec![read("references", reference)?, read("hypotheses", hyp)?]
            }
            _ => anyhow::bail!("give --ref and --hyp, or --pairs"),
        };
        let pairs = self.read_pairs(&texts)?;
        for ((role, path, text), format) in texts.iter().zip(pairs.formats) {
            let source = source_file(role, path, pairs.ids.len());
            options.sources.push(self.formats.describe(source, text, format)?);
        }
        self.read_labels(&pairs, &mut options)?;
        options.rare_words = self.read_rare_words()?;
        let mut report = evaluate(&pairs, &options)?;
        self.outputs.write(&report.items, || report.to_html(options.unit))?;
        report.worst.truncate(alignment_count);
        report.confusions = report.confusions.filter(|_| confusion_count > 0);
        if let Some(confusions) = &mut report.confusions {
            confusions.truncate(confusion_count);
        }
        let colour = std::io::stdout().is_terminal();
        output::print_report(self.outputs.json, &report, || report.to_text(options.unit, colour))?;
        Ok(Outcome::Done)
    }

    /// Parses one file of pairs, or joins a file of references and a file of hypotheses.
    fn read_pairs<'a>(&self, texts: &'a [(&str, PathBuf, String)]) -> anyhow::Result<Pairs<'a>> {
        let mut pairs = match texts {
            [(_, path, text)] => self.formats.parse_one_file(path, text)?,
            [(_, reference, references), (_, hyp, hypotheses), ..] => {
                let pairs = self.formats.parse_two_files(reference, references, hyp, hypotheses)?;
                let is_trn = |path: &Path| self.formats.format_of(path) == TextFormat::Trn;
                if self.optional_deletions && !is_trn(reference) && !is_trn(hyp) {
                    anyhow::bail!(
                        "--optional-deletions needs a .trn file; give one, or --format trn"
                    );
                }
                pairs
            }
            [] => anyhow::bail!("give --ref and --hyp, or --pairs"),
        };
        pairs.markup.optional_deletions = self.optional_deletions;
        match self.alignment {
            Some(AlignmentName::Jiwer) => pairs.alignment = Alignment::Jiwer,
            Some(AlignmentName::Sclite) => pairs.alignment = Alignment::Sclite,
            None => {}
        }
        Ok(pairs)
    }

    /// Reads the labels for `--by` and `--cluster`.
    fn read_labels(&self, pairs: &Pairs<'_>, options: &mut WerOptions) -> anyhow::Result<()> {
        let Some(path) = &self.table else { return Ok(()) };
        let table = LabelTable::read(path)?;
        let labels = |column: &String| -> anyhow::Result<Labels> {
            let of_pair = table.column(column, &pairs.ids)?;
            Ok(Labels { name: column.clone(), of_pair })
        };
        options.by = self.by.iter().map(labels).collect::<anyhow::Result<_>>()?;
        options.cluster = self.cluster.as_ref().map(labels).transpose()?;
        Ok(())
    }

    /// Reads the rare words; `None` if no option asks for them.
    fn read_rare_words(&self) -> anyhow::Result<Option<RareWords>> {
        if let Some(path) = &self.rare_words {
            let (file, text) = read_named(path)?;
            return Ok(Some(RareWords::List(parse_word_list(&file, &text)?)));
        }
        if let Some(path) = &self.biasing {
            let (file, text) = read_named(path)?;
            return Ok(Some(RareWords::PerPair(parse_biasing_lists(&file, &text)?)));
        }
        Ok(self.rare_at_most.map(RareWords::MaxCount))
    }
}
