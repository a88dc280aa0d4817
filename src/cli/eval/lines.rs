//! `engram eval normalize` and `tokenize`: one output line for each input line.

use std::io::{self, BufRead, BufWriter, Write};

use clap::Args;
use engram_eval::normalise::Normaliser;
use engram_eval::tokenize::ptb::{tokenize, tokenize_raw};
use engram_textfile::{Input, Location, TextError};

use super::super::Outcome;
use super::super::output::Stdout;
use super::shared::normaliser;

/// Number of lines that are read and normalised at a time.
const BLOCK: usize = 16_384;

/// Normalise each line of standard input, which may be gzipped.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval normalize --normalizer whisper-en < transcripts.txt > normal.txt
  engram eval normalize --normalizer basic < transcripts.txt.gz > normal.txt")]
pub struct Normalize {
    /// Normaliser: none, lowercase, jiwer-standardize, basic (+remove-diacritics, +split-letters),
    /// whisper-en
    #[arg(long, value_name = "NAME", value_parser = normaliser(), hide_possible_values = true)]
    normalizer: Normaliser,
}

impl Normalize {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut input = Input::stdin()?;
        let mut out = BufWriter::new(Stdout::lock()?);
        let mut first_number = 1;
        loop {
            let lines = read_lines(&mut input, BLOCK, first_number)?;
            if lines.is_empty() {
                out.flush()?;
                return Ok(Outcome::Done);
            }
            first_number += lines.len() as u64;
            write_lines(&mut out, self.normalizer.normalise_all(&lines))?;
        }
    }
}

/// Tokenize each line of standard input as `engram eval caption` tokenizes captions.
///
/// Prints the tokens of Stanford's PTBTokenizer with pycocoevalcap's settings: in lower case,
/// without punctuation, separated by spaces.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram eval tokenize < captions.txt > tokens.txt")]
pub struct Tokenize {
    /// Also print punctuation tokens
    #[arg(long)]
    raw: bool,
}

impl Tokenize {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        // All lines at once, because the next line can change the last tokens of a line.
        let lines = read_lines(&mut Input::stdin()?, usize::MAX, 1)?;
        let tokens = if self.raw { tokenize_raw(&lines) } else { tokenize(&lines) };
        let mut out = BufWriter::new(Stdout::lock()?);
        write_lines(&mut out, tokens)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn write_lines(out: &mut impl Write, lines: Vec<String>) -> io::Result<()> {
    lines.into_iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Reads at most `count` lines, without their line ends. Only `\n` ends a line. `first_number`
/// is the number of the first line, for error messages.
fn read_lines(
    input: &mut Input<'_>,
    count: usize,
    first_number: u64,
) -> Result<Vec<String>, TextError> {
    let mut lines = Vec::new();
    while lines.len() < count {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).map_err(|error| input.error(error))? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let line = String::from_utf8(line).map_err(|_| {
            let location = Location::new(input.file(), first_number + lines.len() as u64);
            TextError::NotUtf8 { location }
        })?;
        lines.push(line);
    }
    Ok(lines)
}
