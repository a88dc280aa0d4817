//! The memory of a run: made from the corpus by the model, searched, read, made anew.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Found, Index, Queries};
use engram_memory::{
    Batch, Generation, Memory, MemoryError, MemoryFormat, Row, ValueFormat, ValueNumber, Writer,
};
use engram_models::kernels::Mode;
use engram_models::reveal::Reveal;

use super::corpus::Corpus;
use super::sequences::Sequencer;
use crate::study::StudyResult;

/// Entries that are encoded at a time.
const ENCODED_AT_A_TIME: usize = 256;

/// A memory that is open for reading.
pub struct Retriever {
    memory: Memory,
}

impl Retriever {
    /// Encodes all items of the corpus into a new memory, in the place of one that is there; also its
    /// writer.
    pub fn build(
        folder: &Path,
        model: &Reveal,
        corpus: &Corpus,
        sequencer: &Sequencer,
    ) -> StudyResult<(Self, Writer)> {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        let config = model.config();
        let values = ValueFormat {
            tokens: config.value_tokens,
            width: config.t5.d_model,
            number: ValueNumber::F16,
        };
        let format =
            MemoryFormat { width: config.key_dim, normalised: false, values: Some(values) };
        let places: Vec<usize> = (0..corpus.items.len()).collect();
        let batches = places.chunks(ENCODED_AT_A_TIME).map(|places| {
            let entries = places.iter().map(|place| corpus.items[*place].entry.clone()).collect();
            let (keys, values) =
                encode(model, corpus, sequencer, places).map_err(MemoryError::Rows)?;
            Ok(Batch { entries, keys, values })
        });
        let writer = Writer::create(folder, format, corpus.items.len(), batches)?;
        Ok((Self { memory: Memory::open(folder)? }, writer))
    }

    /// The memory itself.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The present generation.
    pub fn generation(&self) -> Arc<Generation> {
        self.memory.generation()
    }

    /// The best `k` entries of each query by gated scores.
    pub fn search(&self, queries: &Tensor, gates: &Tensor, k: usize) -> StudyResult<Found> {
        let keys = queries.flatten_all()?.to_vec1::<f32>()?;
        let gates = gates.flatten_all()?.to_vec1::<f32>()?;
        let filter = Filter { gates: Some(gates), ..Filter::default() };
        Ok(Exact.search(&self.generation(), Queries { keys: &keys, k }, &filter)?)
    }

    /// The stored keys `[N, key_dim]` and values `[N M, D]`, flat, of rows.
    pub fn read(&self, rows: &[Row]) -> StudyResult<(Vec<f32>, Vec<f32>)> {
        let generation = self.generation();
        let mut keys = Vec::new();
        for row in rows {
            keys.extend_from_slice(generation.key(*row)?);
        }
        Ok((keys, generation.values(rows)?))
    }
}

/// Keys and values of items, flat.
pub fn encode(
    model: &Reveal,
    corpus: &Corpus,
    sequencer: &Sequencer,
    places: &[usize],
) -> StudyResult<(Vec<f32>, Vec<f32>)> {
    let mode = Mode::predict();
    let states = model.encode(&sequencer.entries(corpus, places)?, &mode)?;
    let keys = model.key(&states, &mode)?.flatten_all()?.to_vec1()?;
    let values = model.value(&states, &mode)?.flatten_all()?.to_vec1()?;
    Ok((keys, values))
}
