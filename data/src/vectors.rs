//! Word vectors in text format: GloVe (`word v1 v2 …`) and word2vec (the same, after a first line
//! `count width`). The similarity of two phrases is the cosine of their mean vectors. This is a
//! zero-shot baseline of the patent study.

use std::collections::{HashMap, HashSet};
use std::io::BufRead;
use std::path::Path;

use engram_textfile::{Input, TextError};

use crate::DataError;

/// Word vectors, by word.
#[derive(Debug, Clone)]
pub struct WordVectors {
    width: usize,
    /// The row in `values` of each word.
    row_of_word: HashMap<String, usize>,
    /// One row of `width` values per word.
    values: Vec<f32>,
}

impl WordVectors {
    /// Reads the vectors of `words` from a file; `None` reads all vectors.
    ///
    /// A word may contain spaces: the values are the last fields of the line. Bytes of a word that
    /// are not UTF-8 become U+FFFD; published files contain such words. If a word occurs twice, the
    /// first vector is used.
    ///
    /// # Errors
    /// `Text` with file and line, also for too few values, a value that is not a finite number,
    /// or fewer lines than line 1 announces
    pub fn read(
        path: impl AsRef<Path>,
        words: Option<&HashSet<String>>,
    ) -> Result<Self, DataError> {
        let path = path.as_ref();
        let mut input = Input::open(path)?;
        let line_error = |line: u64, reason: String| {
            let remedy = "use a complete GloVe or word2vec file in text format";
            TextError::malformed(path, line, reason, remedy)
        };
        let mut bytes = Vec::new();
        let mut line = 0;
        let mut header = None;
        let mut vectors: Option<Self> = None;
        let mut word_count = 0;
        loop {
            bytes.clear();
            if input.read_until(b'\n', &mut bytes).map_err(|error| input.error(error))? == 0 {
                break;
            }
            line += 1;
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_matches(['\u{feff}', ' ', '\r', '\n', '\t']);
            if text.is_empty() {
                continue;
            }
            if line == 1 {
                header = count_and_width(text);
                if header.is_some() {
                    continue;
                }
            }
            let vectors = vectors.get_or_insert_with(|| {
                let width =
                    header.map_or_else(|| text.split(SEPARATORS).count() - 1, |(_, width)| width);
                Self { width, row_of_word: HashMap::new(), values: Vec::new() }
            });
            vectors.read_line(text, words).map_err(|reason| line_error(line, reason))?;
            word_count += 1;
        }
        let vectors =
            vectors.ok_or_else(|| TextError::Empty { file: path.display().to_string() })?;
        match header {
            Some((count, _)) if word_count != count => {
                let reason =
                    format!("the file ends after {word_count} words, but line 1 announces {count}");
                Err(line_error(line, reason).into())
            }
            _ => Ok(vectors),
        }
    }

    /// Returns the vector width.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of loaded words.
    pub fn len(&self) -> usize {
        self.row_of_word.len()
    }

    /// Whether no word was loaded.
    pub fn is_empty(&self) -> bool {
        self.row_of_word.is_empty()
    }

    /// Returns the vector of a word as written. If it has none, returns the vector of its
    /// lower-case form; `None` if that has none either.
    pub fn word(&self, word: &str) -> Option<&[f32]> {
        let row = self.row_of_word.get(word);
        let row = *row.or_else(|| self.row_of_word.get(&word.to_lowercase()))?;
        self.values.get(row * self.width..(row + 1) * self.width)
    }

    /// Returns the mean of the vectors of a phrase's words; zeros if no word has a vector.
    fn phrase(&self, phrase: &str) -> Vec<f32> {
        let mut mean = vec![0.0; self.width];
        let mut found_count = 0_usize;
        for vector in phrase.split_whitespace().filter_map(|word| self.word(word)) {
            found_count += 1;
            for (sum, value) in mean.iter_mut().zip(vector) {
                *sum += value;
            }
        }
        for sum in &mut mean {
            *sum /= found_count.max(1) as f32;
        }
        mean
    }

    /// Returns the cosine similarity of two phrases' mean vectors; 0 if one of them has no known
    /// word.
    pub fn similarity(&self, left: &str, right: &str) -> f32 {
        cosine(&self.phrase(left), &self.phrase(right))
    }

    /// Adds the vector of a line, unless the word is not requested or already has a vector.
    fn read_line(&mut self, text: &str, words: Option<&HashSet<String>>) -> Result<(), String> {
        let width = self.width;
        let too_few = || format!("expected a word and {width} values");
        if width == 0 {
            return Err("expected a word and its values".to_owned());
        }
        let mut fields = text.rsplitn(width + 1, SEPARATORS);
        let start = self.values.len();
        for field in fields.by_ref().take(width) {
            match field.parse::<f32>() {
                Ok(value) if value.is_finite() => self.values.push(value),
                _ if text.split(SEPARATORS).count() <= width => return Err(too_few()),
                _ => return Err(format!("{field:?} is not a finite number")),
            }
        }
        let word = fields.next().ok_or_else(too_few)?;
        self.values[start..].reverse();
        let is_requested = words.is_none_or(|words| words.contains(word));
        if !is_requested || self.row_of_word.contains_key(word) {
            self.values.truncate(start);
        } else {
            self.row_of_word.insert(word.to_owned(), start / width);
        }
        Ok(())
    }
}

/// Only spaces and tabs separate fields: words of published files contain no-break spaces.
const SEPARATORS: [char; 2] = [' ', '\t'];

/// Parses the first line of a word2vec file; returns `None` for other lines.
fn count_and_width(line: &str) -> Option<(usize, usize)> {
    let (count, width) = line.split_once(SEPARATORS)?;
    Some((count.parse().ok()?, width.trim().parse().ok()?))
}

/// Returns the cosine similarity of two vectors of the same width; 0 if one of them is all zeros.
pub fn cosine(left: &[f32], right: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y));
        products.sum()
    };
    let norm_product = (dot(left, left) * dot(right, right)).sqrt();
    if norm_product == 0.0 {
        return 0.0;
    }
    (dot(left, right) / norm_product) as f32
}
