//! Options for the format and the columns of files with references and hypotheses.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use engram_eval::error::EvalError;
use engram_eval::result::SourceFile;
use engram_eval::wer::read::{
    Columns, Pairs, Side, TextFormat, detect_format, join, other_names, parse_pairs, parse_side,
};

use super::output;

/// The last part of the help texts of `wer` and `text`.
pub(super) const FORMATS: &str = "\
Formats, chosen by the file extension or --format:
  lines   one text per line; line i of --ref belongs to line i of --hyp
  trn     text (id)
  kaldi   id text; also a Kaldi folder with a file `text`
  tsv     id<TAB>text, or a table with a header
  csv     a table with a header
  jsonl   JSON lines, such as NeMo manifests
Files may be gzipped; - is standard input.

Columns of tables and keys of JSON lines are found by their usual names: id, utterance_id or
audio_filepath; reference, ref, text, transcript or sentence; hypothesis, hyp, pred_text or
prediction, otherwise text, transcript or sentence. Name others with --id-column, --ref-column and
--hyp-column. Two files without a known extension are read as kaldi if all lines begin with ids that
cannot be words, such as 84-1211-0013. If only one of two files has a known extension, the other is
read as kaldi if its lines begin with the ids of the first. All reports name the formats.";

/// The remedy for a file of another format than its name says, beside a file whose name is right.
const NAME_IT: &str = "give it the ending of its format (.trn, .tsv, .csv or .jsonl), or write it as \
                       id<TAB>text with the ending .tsv";

/// Format and columns of the files.
#[derive(Debug, Args)]
pub(super) struct FormatOptions {
    /// Format of all files [default: from the file extension, see below]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Column (CSV, TSV) or key (JSON lines) of the ids [default: a usual name, see below]
    #[arg(long, value_name = "NAME")]
    id_column: Option<String>,
    /// Column or key of the references [default: a usual name]
    #[arg(long, value_name = "NAME")]
    ref_column: Option<String>,
    /// Column or key of the hypotheses [default: a usual name]
    #[arg(long, value_name = "NAME")]
    hyp_column: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// One text per line
    #[value(alias = "plain")]
    Lines,
    /// text (id); the text may have sclite markup
    Trn,
    /// id text, as in Kaldi's file `text`
    Kaldi,
    /// id<TAB>text, or tab-separated values with a header
    Tsv,
    /// Comma-separated values with a header
    Csv,
    /// JSON lines, such as NeMo manifests
    #[value(alias = "json", alias = "nemo")]
    Jsonl,
}

impl FormatOptions {
    /// Parses a file with both references and hypotheses (`--pairs`). Without a known extension, it
    /// is read as JSON lines.
    pub(super) fn parse_one_file<'a>(
        &self,
        path: &Path,
        text: &'a str,
    ) -> anyhow::Result<Pairs<'a>> {
        let format = match self.format_of(path) {
            TextFormat::Lines if self.format.is_none() => TextFormat::Jsonl,
            format => format,
        };
        parse_pairs(&path.display().to_string(), text, format, &self.columns()).map_err(with_option)
    }

    /// Like `join_two_files`; errors name the option that helps.
    pub(super) fn parse_two_files<'a>(
        &self,
        reference: &Path,
        reference_text: &'a str,
        hyp: &Path,
        hyp_text: &'a str,
    ) -> anyhow::Result<Pairs<'a>> {
        self.join_two_files([reference, hyp], [reference_text, hyp_text]).map_err(with_option)
    }

    /// Parses and joins a file of references and a file of hypotheses. Without `--format`, returns
    /// an error for a file whose content looks like another format than its extension says.
    fn join_two_files<'a>(
        &self,
        paths: [&Path; 2],
        texts: [&'a str; 2],
    ) -> Result<Pairs<'a>, EvalError> {
        let names = paths.map(|path| path.display().to_string());
        let mut formats = paths.map(|path| self.format_of(path));
        if self.format.is_none() {
            for (format, text) in formats.iter_mut().zip(texts) {
                if *format == TextFormat::Lines {
                    *format = detect_format::of_content(text);
                }
            }
            if formats == [TextFormat::Lines; 2] {
                let files = [(&*names[0], texts[0]), (&*names[1], texts[1])];
                formats = [detect_format::of_pair(files)?; 2];
                let [a, b] = &names;
                if formats[0] == TextFormat::Kaldi {
                    output::note(&format!(
                        "{a} and {b}: read as Kaldi's `id text`, because all lines begin with the \
                         same ids; if these are words, give --format lines"
                    ));
                } else if detect_format::may_begin_with_ids(texts) {
                    output::warn(&format!(
                        "{a} and {b}: read as lines, although they begin with the same words; if \
                         these are ids, give --format kaldi"
                    ));
                }
            } else if let Some(plain) = formats.iter().position(|f| *f == TextFormat::Lines) {
                // The other file has ids.
                let side = [Side::Hypothesis, Side::Reference][plain];
                let (other, columns) = (1 - plain, self.columns());
                let utterances =
                    parse_side(&names[other], texts[other], formats[other], side, &columns)?;
                let ids = utterances.iter().filter_map(|utterance| utterance.id.as_deref());
                if formats[other] == TextFormat::Kaldi {
                    formats[plain] = TextFormat::Kaldi;
                } else if detect_format::begins_with_ids(texts[plain], ids) {
                    formats[plain] = TextFormat::Kaldi;
                    let (name, other) = (&names[plain], &names[other]);
                    output::note(&format!(
                        "{name}: read as Kaldi's `id text`, because its lines begin with the ids \
                         of {other}"
                    ));
                }
            }
            let is_named =
                |format: &TextFormat| !matches!(format, TextFormat::Lines | TextFormat::Kaldi);
            let has_named = formats.iter().any(is_named);
            for ((name, text), format) in names.iter().zip(texts).zip(formats) {
                detect_format::check(name, text, format).map_err(|error| match error {
                    // --format would change the format of the other file, too.
                    EvalError::OtherFormat { location, reason, .. } if has_named => {
                        let (remedy, formats, holds_both) = (NAME_IT, &[][..], false);
                        EvalError::OtherFormat { location, reason, remedy, formats, holds_both }
                    }
                    error => error,
                })?;
            }
        }
        let columns = self.columns();
        let parse = |file: usize, side| {
            parse_side(&names[file], texts[file], formats[file], side, &columns)
        };
        let (references, hypotheses) = (parse(0, Side::Reference)?, parse(1, Side::Hypothesis)?);
        let pairs = join(&names[0], references, &names[1], hypotheses)?;
        Ok(Pairs { formats: formats.map(Some), ..pairs })
    }

    /// The format given by the user; otherwise the format from the path.
    pub(super) fn format_of(&self, path: &Path) -> TextFormat {
        match self.format {
            None if is_in_kaldi_folder(path) => TextFormat::Kaldi,
            None => TextFormat::of_path(path),
            Some(Format::Lines) => TextFormat::Lines,
            Some(Format::Trn) => TextFormat::Trn,
            Some(Format::Kaldi) => TextFormat::Kaldi,
            Some(Format::Tsv) => TextFormat::Tsv,
            Some(Format::Csv) => TextFormat::Csv,
            Some(Format::Jsonl) => TextFormat::Jsonl,
        }
    }

    /// Adds the format and the columns of a file with `text` to its description.
    pub(super) fn describe(
        &self,
        source: SourceFile,
        text: &str,
        format: Option<TextFormat>,
    ) -> Result<SourceFile, EvalError> {
        let sides = match source.role.as_str() {
            "pairs" => &[Side::Reference, Side::Hypothesis][..],
            "references" => &[Side::Reference],
            _ => &[Side::Hypothesis],
        };
        let names = |format| other_names((&source.path, text), format, sides, &self.columns());
        let columns = format.map(names).transpose()?.flatten();
        Ok(SourceFile { format, columns, ..source })
    }

    fn columns(&self) -> Columns {
        Columns {
            id: self.id_column.clone(),
            reference: self.ref_column.clone(),
            hypothesis: self.hyp_column.clone(),
        }
    }
}

/// The error with the option that helps.
fn with_option(error: EvalError) -> anyhow::Error {
    let options = match &error {
        EvalError::OtherFormat { formats: [], .. } => return error.into(),
        EvalError::OtherFormat { formats, holds_both, .. } => {
            let pairs = if *holds_both { "--pairs or " } else { "" };
            format!("{pairs}--format {}", formats.join(" or --format "))
        }
        EvalError::NoColumn { column: "ids", .. } => "--id-column".to_owned(),
        EvalError::NoColumn { column: "references", .. } => "--ref-column".to_owned(),
        EvalError::NoColumn { .. } => "--hyp-column".to_owned(),
        _ => return error.into(),
    };
    anyhow::anyhow!("{error}: {options}")
}

/// The file with the texts: the file `text` if the path is a folder with such a file, otherwise the
/// path itself.
pub(super) fn text_file(path: &Path) -> PathBuf {
    let text = path.join("text");
    if text.is_file() { text } else { path.to_owned() }
}

/// Whether a file is named `text` and one of Kaldi's other files is in the same folder.
fn is_in_kaldi_folder(path: &Path) -> bool {
    let is_in_same_folder = |name: &str| path.with_file_name(name).is_file();
    path.file_name().is_some_and(|name| name == "text")
        && ["wav.scp", "utt2spk", "feats.scp", "segments"].into_iter().any(is_in_same_folder)
}
