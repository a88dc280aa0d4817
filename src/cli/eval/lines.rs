//! `engram eval normalize` and its like: one line in, one line out.

use std::io::{self, BufRead, BufWriter, Write};

use anyhow::Context;
use clap::Args;
use engram_eval::normalise::Normaliser;
use engram_eval::source::decompress_reader;
use engram_eval::tokenise::ptb::{tokenise, tokenise_raw};

use super::super::Outcome;

/// Lines that go through all threads together.
const BLOCK: usize = 16_384;

/// Put each line of standard input through a text normaliser.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval normalize --normalizer whisper-en < transcripts.txt > normal.txt
  engram eval normalize --normalizer basic < transcripts.txt.gz > normal.txt")]
pub struct Normalize {
    /// none, lowercase, jiwer-standardize, basic (+remove-diacritics, +split-letters), whisper-en
    #[arg(long, value_name = "NAME", value_parser = Normaliser::parse)]
    normalizer: Normaliser,
}

impl Normalize {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut input = decompress_reader(io::stdin().lock())?;
        let mut out = BufWriter::new(io::stdout().lock());
        let mut first = 1;
        loop {
            let lines = read_lines(&mut input, BLOCK, first)?;
            if lines.is_empty() {
                out.flush()?;
                return Ok(Outcome::Done);
            }
            first += lines.len();
            for line in self.normalizer.normalise_all(&lines) {
                out.write_all(line.as_bytes())?;
                out.write_all(b"\n")?;
            }
        }
    }
}

/// Divide each line of standard input into tokens, as captions are.
///
/// The tokens are those of Stanford's PTBTokenizer as pycocoevalcap calls it, in lower case and
/// without punctuation, a space between them.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram eval tokenize < captions.txt > tokens.txt")]
pub struct Tokenize {
    /// Keep punctuation
    #[arg(long)]
    raw: bool,
}

impl Tokenize {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        // All lines at once: what follows a line can change its last token.
        let lines = read_lines(&mut decompress_reader(io::stdin().lock())?, usize::MAX, 1)?;
        let tokens = match self.raw {
            true => tokenise_raw(&lines),
            false => tokenise(&lines),
        };
        let mut out = BufWriter::new(io::stdout().lock());
        for line in tokens {
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// At most `count` lines without their ends; only `\n` ends a line. `first` is the number of the first.
fn read_lines(input: &mut impl BufRead, count: usize, first: usize) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    while lines.len() < count {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).context("standard input: cannot be read")? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let number = first + lines.len();
        let line = String::from_utf8(line).map_err(|_| {
            anyhow::anyhow!("standard input, line {number}: is not UTF-8; convert it to UTF-8")
        })?;
        lines.push(line);
    }
    Ok(lines)
}
