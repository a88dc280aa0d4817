//! Scans the [codes](crate::codes) of all keys for the rows that may be among the best `k` of each
//! query.

use super::exact::QueryBatch;
use super::kernels::{MAX_GROUP, Sums, TILE_PANELS};
use super::query_codes::{Passed, select};
use super::top_k::{Candidate, TopK};
use super::{Hidden, PreparedFilter};
use crate::codes::{PANEL_KEYS, PanelBounds, round_up};
use crate::error::MemoryError;
use crate::generation::{Generation, Part};

/// The number of keys per block: a multiple of the keys of a tile.
const BLOCK_KEYS: usize = 512;
/// The number of keys in a tile.
const TILE_KEYS: usize = TILE_PANELS * PANEL_KEYS;

/// One of this many tiles is in the sample.
const SAMPLE_STEP: usize = 16;
/// The smallest number of rows for which a sample is scanned first.
const MIN_SAMPLED_ROWS: usize = 8192;

/// A block of keys.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    part_index: usize,
    part: &'a Part,
    /// The first row in the segment.
    start: usize,
    /// The number of rows.
    rows: usize,
}

impl<'a> Block<'a> {
    /// Returns all blocks with searchable rows.
    pub(super) fn all(generation: &'a Generation, prepared: &PreparedFilter<'_>) -> Vec<Self> {
        let parts = generation.parts().iter().enumerate();
        let blocks = parts.flat_map(|(part_index, part)| {
            let block = move |start| {
                let rows = BLOCK_KEYS.min(part.segment.rows - start);
                Self { part_index, part, start, rows }
            };
            (0..part.segment.rows).step_by(BLOCK_KEYS).map(block)
        });
        blocks.filter(|block| block.is_searched(prepared)).collect()
    }

    fn is_searched(&self, prepared: &PreparedFilter<'_>) -> bool {
        match &prepared.hidden[self.part_index] {
            Hidden::Nothing => true,
            Hidden::Rows(hidden) => {
                (self.start..self.start + self.rows).any(|row| !hidden.get(row))
            }
            Hidden::Everything => false,
        }
    }

    /// Divides blocks into a sample of their tiles, and the rest. The sample is empty if there are
    /// few rows.
    pub(super) fn sample(blocks: Vec<Self>) -> (Vec<Self>, Vec<Self>) {
        if blocks.iter().map(|block| block.rows).sum::<usize>() < MIN_SAMPLED_ROWS {
            return (Vec::new(), blocks);
        }
        let (mut sample, mut rest) = (Vec::new(), Vec::new());
        for block in blocks {
            let is_sampled = (block.start / TILE_KEYS).is_multiple_of(SAMPLE_STEP);
            let sampled_rows = if is_sampled { TILE_KEYS.min(block.rows) } else { 0 };
            let (start, rows) = (block.start + sampled_rows, block.rows - sampled_rows);
            sample.extend((sampled_rows > 0).then_some(Self { rows: sampled_rows, ..block }));
            rest.extend((rows > 0).then_some(Self { start, rows, ..block }));
        }
        (sample, rest)
    }

    /// Returns the rank in the sample whose score very probably does not exceed the `k`th best
    /// score of all rows. The number of the best `k` rows in a random sample has about a Poisson
    /// distribution with a mean of about `k / SAMPLE_STEP`.
    pub(super) fn sample_rank(k: usize) -> usize {
        let mean = k as f64 / SAMPLE_STEP as f64;
        (mean + 3.0 * mean.sqrt() + 2.0).ceil() as usize
    }
}

/// A thread's part of a scan.
pub(super) struct Scan<'a> {
    batch: &'a QueryBatch<'a>,
    /// The candidates of each query.
    pub(super) best: Vec<TopK>,
    /// The threshold of each query.
    thresholds: Vec<f32>,
    passed: Vec<Passed>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(batch: &'a QueryBatch<'a>, empty: &TopK) -> Self {
        let best = vec![empty.clone(); batch.norms.len()];
        let thresholds = vec![f32::NEG_INFINITY; batch.norms.len()];
        Self { batch, best, thresholds, passed: Vec::new() }
    }

    /// Adds the rows of a block that may be among the best to each query's `best`.
    pub(super) fn block(&mut self, block: Block<'_>) -> Result<(), MemoryError> {
        for (query, (threshold, best)) in self.thresholds.iter_mut().zip(&self.best).enumerate() {
            *threshold = best.threshold().max(self.batch.threshold(query));
        }
        self.scan_codes(block)?;
        for (query, best) in self.best.iter().enumerate() {
            if best.threshold() > self.batch.threshold(query) {
                self.batch.raise_threshold(query, best.threshold());
            }
        }
        Ok(())
    }

    fn scan_codes(&mut self, block: Block<'_>) -> Result<(), MemoryError> {
        let (codes, width) = (self.batch.codes(), self.batch.prepared.width);
        let documents = self.documents(block)?;
        let mut sums: Sums = [[[0; PANEL_KEYS]; TILE_PANELS]; MAX_GROUP];
        for start in (block.start..block.start + block.rows).step_by(TILE_KEYS) {
            let rows = TILE_KEYS.min(block.part.segment.rows - start);
            let tile = Block { start, rows, ..block };
            let visible = self.visible(tile);
            if visible == [0; TILE_PANELS] {
                continue;
            }
            let num_panels = rows.div_ceil(PANEL_KEYS);
            let first_panel = start / PANEL_KEYS;
            let stored = block.part.segment.panels(first_panel..first_panel + num_panels)?;
            let mut stored = stored.chunks_exact(stored.len() / num_panels);
            let first: &[u8] = stored.next().unwrap_or_default();
            let panels: [&[u8]; TILE_PANELS] =
                std::array::from_fn(
                    |i| if i == 0 { first } else { stored.next().unwrap_or(first) },
                );
            let bounds = panels.map(|panel| PanelBounds::read(panel, width));
            let sources = self.sources(tile)?;
            for (first_query, queries, words) in codes.groups() {
                let mut thresholds = [[f32::INFINITY; TILE_PANELS]; MAX_GROUP];
                for (i, thresholds) in thresholds.iter_mut().enumerate().take(queries.len()) {
                    let query = first_query + i;
                    for panel in (0..num_panels).filter(|panel| visible[*panel] != 0) {
                        thresholds[panel] = match &sources {
                            None => self.thresholds[query],
                            Some(sources) => self.threshold_before_gates(query, &sources[panel]),
                        };
                    }
                }
                codes.sums(panels, words, queries.len(), &mut sums);
                select(&sums, queries, &bounds[..num_panels], &thresholds, &mut self.passed);
                let mut passed = std::mem::take(&mut self.passed);
                for Passed { query, panel, lane, score, error } in passed.drain(..) {
                    let (panel, lane) = (usize::from(panel), usize::from(lane));
                    if visible[panel] >> lane & 1 == 1 {
                        let row = start + panel * PANEL_KEYS + lane;
                        let query = first_query + usize::from(query);
                        self.offer(block.part, documents, (query, row), (score, error))?;
                    }
                }
                self.passed = passed;
            }
        }
        Ok(())
    }

    /// Returns a bit for each row of a tile's panels: 1 if the row may be retrieved.
    fn visible(&self, tile: Block<'_>) -> [u16; TILE_PANELS] {
        std::array::from_fn(|panel| {
            let first = panel * PANEL_KEYS;
            let rows = PANEL_KEYS.min(tile.rows.saturating_sub(first));
            let all_rows = (1u32 << rows) - 1;
            let row = tile.start + first;
            let hidden = match &self.batch.prepared.hidden[tile.part_index] {
                Hidden::Nothing => 0,
                Hidden::Rows(_) if rows == 0 => 0,
                Hidden::Rows(hidden) => {
                    let bytes = [0, 1].map(|i| hidden.0.get(row / 8 + i).copied().unwrap_or(0));
                    u32::from(u16::from_le_bytes(bytes))
                }
                Hidden::Everything => u32::MAX,
            };
            (all_rows & !hidden) as u16
        })
    }

    /// Returns the distinct sources of each panel of a tile; `None` if there are no gates.
    fn sources(&self, tile: Block<'_>) -> Result<Option<Vec<Vec<u32>>>, MemoryError> {
        if self.batch.prepared.gates.is_none() {
            return Ok(None);
        }
        let sources = &tile.part.segment.sources()?[tile.start..tile.start + tile.rows];
        Ok(Some(sources.chunks(PANEL_KEYS).map(distinct).collect()))
    }

    /// The documents of the rows of a segment; empty if no documents are excluded.
    fn documents<'b>(&self, block: Block<'b>) -> Result<&'b [u64], MemoryError> {
        if self.batch.prepared.excluded.is_empty() {
            return Ok(&[]);
        }
        block.part.segment.documents()
    }

    /// Returns the smallest score before the gate with which a row of these sources may reach the
    /// threshold.
    fn threshold_before_gates(&self, query: usize, sources: &[u32]) -> f32 {
        let threshold = f64::from(self.thresholds[query]);
        let thresholds = sources.iter().map(|source| {
            match f64::from(self.batch.prepared.gate(self.batch.first_query + query, *source)) {
                gate if gate > 0.0 => ((threshold / gate) as f32).next_down(),
                0.0 if threshold > 0.0 => f32::INFINITY,
                // With a negative gate, the lowest scores are best.
                _ => f32::NEG_INFINITY,
            }
        });
        thresholds.fold(f32::INFINITY, f32::min)
    }

    /// Adds a row of a segment to the candidates of a query, unless its score is too low or its
    /// document is excluded. The score is before the gate, for a query of norm 1.
    fn offer(
        &mut self,
        part: &Part,
        documents: &[u64],
        (query, row): (usize, usize),
        (mut score, mut error): (f32, f32),
    ) -> Result<(), MemoryError> {
        if self.batch.prepared.gates.is_some() {
            let source = part.segment.sources()?[row];
            let gate = f64::from(self.batch.prepared.gate(self.batch.first_query + query, source));
            let gated = gate * f64::from(score);
            score = gated as f32;
            error = round_up(gate.abs() * f64::from(error) + (gated - f64::from(score)).abs());
        }
        let candidate = Candidate { score, error, row: (part.start + row) as u32 };
        if candidate.upper() < self.thresholds[query] {
            return Ok(());
        }
        let excluded = self.batch.prepared.excluded.get(self.batch.first_query + query);
        if !excluded.is_some_and(|excluded| excluded.contains(&documents[row])) {
            let best = &mut self.best[query];
            best.offer(candidate);
            self.thresholds[query] = self.thresholds[query].max(best.threshold());
        }
        Ok(())
    }
}

/// Returns the distinct numbers of a list.
fn distinct(numbers: &[u32]) -> Vec<u32> {
    let mut distinct = Vec::new();
    for number in numbers {
        if !distinct.contains(number) {
            distinct.push(*number);
        }
    }
    distinct
}
