//! BM25 search in the texts of the entries.
//!
//! The score of an entry is the sum, over the words of the query, of `idf · f / (f + k1 · (1 - b +
//! b · length / mean length))` with `idf = ln(1 + (N - n + 0.5) / (n + 0.5))`. `f` is the number of
//! times that the word is in the entry, `n` the number of entries with the word, and `N` the number
//! of entries with a text. This is the BM25 of Lucene 8 and later, and of `bm25s` with
//! `method="lucene"`, with Lucene's `k1` = 1.2 and `b` = 0.75. A word that is twice in the query
//! counts twice.
//!
//! Source: Robertson and Zaragoza, "The probabilistic relevance framework: BM25 and beyond", 2009;
//! for the variant, Kamphuis and others, "Which BM25 do you mean?", ECIR 2020.
//!
//! Words are found by Unicode's word boundaries (UAX #29) in the normal form NFKC and in lower
//! case. So a full-width or decomposed letter equals the plain letter, but accents distinguish
//! words. There are no stop words and no stemming, because an entry may be in any language. Chinese
//! and Japanese kanji and hiragana, and Thai, are written without spaces: there, each character is
//! a word.
//!
//! The index is in main memory, and belongs to one generation. It is not stored, so it needs no
//! space on disk, and no edit can leave it behind.
//!
//! Two crates were compared. `bm25` 2.3 hashes words to 32 bits, fixes the mean length before
//! edits, returns equal scores in random order and has no filters. `tantivy` 0.27 needs 52 more
//! crates and its own files beside the memory's.

use std::collections::HashMap;

use rayon::prelude::*;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};
use unicode_segmentation::UnicodeSegmentation;

use crate::error::MemoryError;
use crate::generation::{Generation, Row};
use crate::search::ranking::by_score;
use crate::search::{Filter, Hit, PreparedFilter, SearchResults, hidden_rows};
use crate::store::{Description, Snapshot};

/// The saturation of repeated words: with a smaller number, they count less.
pub const K1: f64 = 1.2;
/// How much long texts are weighted down: 0 not at all, 1 in proportion to their length.
pub const B: f64 = 0.75;

/// The number of entries that are read at a time.
const READ_ROWS: usize = 1 << 16;
/// The number of entries that a thread indexes at a time.
const CHUNK_ROWS: usize = 1024;

/// The words of the entries of a generation.
#[derive(Debug)]
pub struct TextIndex {
    /// The number of the generation.
    generation: u64,
    /// The number of words of each row; 0 for a deleted row.
    lengths: Vec<u32>,
    /// The number of entries with at least one word.
    texts: usize,
    /// The mean number of words of these entries.
    mean_length: f64,
    /// For each word, the entries that have it, in the order of their rows.
    postings: HashMap<String, Vec<Posting>>,
}

/// An entry that has a word.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Posting {
    row: u32,
    /// The number of times that the word is in the entry.
    count: u32,
}

/// The words of some rows, in the order of the rows.
#[derive(Default)]
struct Chunk {
    /// Each row with its number of words.
    lengths: Vec<(u32, u32)>,
    postings: HashMap<String, Vec<Posting>>,
}

impl Chunk {
    fn push(&mut self, Row(row): Row, text: &str) {
        let counts = word_counts(text);
        self.lengths.push((row, counts.iter().map(|(_, count)| count).sum::<u32>()));
        for (word, count) in counts {
            self.postings.entry(word).or_default().push(Posting { row, count });
        }
    }
}

/// An entry that a filter allows, as a search in texts sees it.
#[derive(Debug, Clone, Copy)]
pub struct TextRow {
    /// The id of the entry.
    pub id: i64,
    /// The index of its source.
    pub source: u32,
    /// The [hash](crate::stored_rows::EncodedRow::document) of its document; 0 without a document.
    pub document: u64,
}

impl TextIndex {
    /// Indexes the texts of all rows of a generation, in the order of the rows. `texts` returns
    /// them in batches.
    ///
    /// # Errors
    /// The errors of `texts`.
    pub fn of_texts(
        generation: u64,
        texts: impl Iterator<Item = Result<Vec<(Row, String)>, MemoryError>>,
    ) -> Result<Self, MemoryError> {
        let chunks = texts.map(|texts| {
            let texts = texts?;
            let chunks = texts.par_chunks(CHUNK_ROWS).map(|texts| {
                let mut chunk = Chunk::default();
                texts.iter().for_each(|(row, text)| chunk.push(*row, text));
                chunk
            });
            Ok(chunks.collect::<Vec<_>>())
        });
        let chunks = chunks.collect::<Result<Vec<_>, MemoryError>>()?;
        let chunks: Vec<Chunk> = chunks.into_iter().flatten().collect();
        let last = chunks.iter().filter_map(|chunk| chunk.lengths.last()).next_back();
        let mut lengths = vec![0; last.map_or(0, |(row, _)| *row as usize + 1)];
        let mut postings: HashMap<String, Vec<Posting>> = HashMap::new();
        for chunk in chunks {
            for (row, words) in chunk.lengths {
                lengths[row as usize] = words;
            }
            for (word, rows) in chunk.postings {
                postings.entry(word).or_default().extend(rows);
            }
        }
        let texts = lengths.iter().filter(|length| **length > 0).count();
        let words: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let mean_length = words as f64 / texts.max(1) as f64;
        Ok(Self { generation, lengths, texts, mean_length, postings })
    }

    /// Returns the best `k` entries for each query text, best first; equal scores are sorted by id.
    /// An entry must pass the filter and have a word of the query. Scores are multiplied by the
    /// filter's gates. Word frequencies are counted over all entries, whatever the filter. `row`
    /// returns the entry of a row; `None` if the filter does not allow its source or its id.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for a filter that does not match the queries; the errors of
    /// `row`
    pub fn search(
        &self,
        description: &Description,
        queries: &[&str],
        k: usize,
        filter: &Filter,
        row: impl Fn(Row) -> Result<Option<TextRow>, MemoryError> + Sync,
    ) -> Result<SearchResults, MemoryError> {
        let prepared = PreparedFilter::without_rows(description, queries.len(), k, filter)?;
        let hits = queries
            .par_iter()
            .enumerate()
            .map_init(
                || vec![0.0; self.lengths.len()],
                |scores, (query, text)| self.search_one(&prepared, query, text, scores, &row),
            )
            .collect::<Result<_, MemoryError>>()?;
        Ok(SearchResults { generation: self.generation, hits })
    }

    /// Searches for one query. `scores` has one score per row, all 0 before and after the call.
    fn search_one(
        &self,
        prepared: &PreparedFilter<'_>,
        query: usize,
        text: &str,
        scores: &mut [f64],
        allowed: &impl Fn(Row) -> Result<Option<TextRow>, MemoryError>,
    ) -> Result<Vec<Hit>, MemoryError> {
        let mut rows = Vec::new();
        for (word, query_count) in word_counts(text) {
            let Some(postings) = self.postings.get(&word) else { continue };
            let n = postings.len() as f64;
            let idf = (1.0 + (self.texts as f64 - n + 0.5) / (n + 0.5)).ln();
            for Posting { row, count } in postings {
                let score = &mut scores[*row as usize];
                if *score == 0.0 {
                    rows.push(*row);
                }
                let length = f64::from(self.lengths[*row as usize]) / self.mean_length;
                let count = f64::from(*count);
                let weight = count / (count + K1 * (1.0 - B + B * length));
                *score += f64::from(query_count) * idf * weight;
            }
        }
        let excluded = prepared.excluded.get(query);
        let mut found: Vec<(f64, Hit)> = Vec::with_capacity(rows.len());
        for row in rows {
            let score = std::mem::take(&mut scores[row as usize]);
            let Some(TextRow { id, source, document }) = allowed(Row(row))? else { continue };
            if excluded.is_some_and(|excluded| excluded.contains(&document)) {
                continue;
            }
            // Adding 0 turns -0 into 0, so that both compare as equal.
            let score = score * f64::from(prepared.gate(query, source)) + 0.0;
            found.push((score, Hit { id, score: score as f32, source, row: Row(row) }));
        }
        if found.len() > prepared.k {
            found.select_nth_unstable_by(prepared.k - 1, by_score);
            found.truncate(prepared.k);
        }
        found.sort_unstable_by(by_score);
        Ok(found.into_iter().map(|(_, hit)| hit).collect())
    }
}

/// Searches the [texts](engram_entry::Entry::text) of all entries of a generation, which are read
/// on all threads.
pub(crate) fn search(
    generation: &Generation,
    queries: &[&str],
    k: usize,
    filter: &Filter,
) -> Result<SearchResults, MemoryError> {
    let hidden = hidden_rows(generation, filter)?;
    let rows: Vec<Row> = generation.live_rows().collect();
    let texts = rows.chunks(READ_ROWS).map(|rows| {
        let text = |row: &Row| Ok((*row, generation.entry(*row)?.text()));
        rows.par_iter().map(text).collect()
    });
    let index = TextIndex::of_texts(generation.manifest().generation, texts)?;
    index.search(generation.description(), queries, k, filter, |row| {
        let number = generation.part_index(row);
        let part = &generation.parts()[number];
        let (segment, row) = (&part.segment, row.0 as usize - part.start);
        if hidden[number].has(row) {
            return Ok(None);
        }
        Ok(Some(TextRow {
            id: segment.ids()?[row],
            source: segment.sources()?[row],
            document: segment.documents()?[row],
        }))
    })
}

/// The words of a text, each with its number, in the order in which they first occur.
fn word_counts(text: &str) -> Vec<(String, u32)> {
    let normalised = match is_nfkc_quick(text.chars()) {
        IsNormalized::Yes => text.to_lowercase(),
        IsNormalized::No | IsNormalized::Maybe => text.nfkc().collect::<String>().to_lowercase(),
    };
    let mut counts: Vec<(String, u32)> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for word in normalised.unicode_words() {
        let position = *positions.entry(word).or_insert(counts.len());
        match counts.get_mut(position) {
            Some((_, count)) => *count += 1,
            None => counts.push((word.to_owned(), 1)),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_any_script() {
        for (text, expected) in [
            ("", &[][..]),
            (" \n, …", &[]),
            ("The cat, the CAT!", &[("the", 2), ("cat", 2)]),
            (
                "can't 3.14 well-known x_1",
                &[("can't", 1), ("3.14", 1), ("well", 1), ("known", 1), ("x_1", 1)],
            ),
            // Composed and decomposed letters are the same word; a letter without accent is not.
            ("Café cafe\u{301} cafe", &[("café", 2), ("cafe", 1)]),
            ("ＦＵＬＬ ﬁne", &[("full", 1), ("fine", 1)]),
            ("Straße ΣΟΦΟΣ Ёлка", &[("straße", 1), ("σοφος", 1), ("ёлка", 1)]),
            ("東京都 東", &[("東", 2), ("京", 1), ("都", 1)]),
            ("ไทย", &[("ไ", 1), ("ท", 1), ("ย", 1)]),
            ("서울은 도시", &[("서울은", 1), ("도시", 1)]),
        ] {
            let counts = word_counts(text);
            let counts: Vec<(&str, u32)> =
                counts.iter().map(|(word, count)| (word.as_str(), *count)).collect();
            assert_eq!(counts, expected, "{text}");
        }
    }
}
