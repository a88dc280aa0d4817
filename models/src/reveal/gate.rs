//! The gate, which weights the sources for a query, and the transform of scores to the fusion's
//! prior.

use candle_core::{D, Tensor};

use super::config::RevealConfig;
use crate::compute::full_precision;
use crate::error::{Result, bail};
use crate::kernels::{Mode, softmax};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};

/// The score of a padded slot without an entry, far below all real scores.
const NO_ENTRY: f32 = -1e30;

/// The weights of the sources, computed from a query.
#[derive(Debug, Clone)]
pub(super) struct CorpusGate {
    /// `None` if all sources have weight 1.
    linear: Option<Linear>,
    sources: usize,
}

impl CorpusGate {
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (width, sources) = (config.key_dim, config.sources);
        let std = (width as f64).powf(-0.5);
        let linear =
            if config.gate { Some(Linear::new(width, sources, std, builder)?) } else { None };
        Ok(Self { linear, sources })
    }

    /// Returns the weight of each source for each query: `[B, key_dim]` → `[B, sources]`.
    pub(super) fn forward(&self, queries: &Tensor) -> Result<Tensor> {
        match &self.linear {
            Some(linear) => {
                Ok(softmax(&full_precision(&linear.forward(queries, &Mode::evaluate())?)?)?)
            }
            None => {
                let shape = (queries.dim(0)?, self.sources);
                Ok(Tensor::ones(shape, queries.dtype(), queries.device())?)
            }
        }
    }
}

/// The released code's `att_transform`, `s → s σ(scale) ceiling`. The bias is omitted, because the
/// softmax ignores an equal shift of all scores of a query.
#[derive(Debug, Clone)]
pub struct ScoreTransform {
    scale: Tensor,
    ceiling: f64,
}

impl ScoreTransform {
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        Ok(Self { scale: builder.get("scale", &[1], Init::Ones)?, ceiling: config.score_ceiling })
    }

    /// Returns the prior of retrieved entries. `scores` `[ΣK]` are gated scores, query after query,
    /// and `counts` is the number of entries of each query. The output `[ΣK]` is the softmax of
    /// each query's transformed scores, times the query's number of entries; its mean is 1.
    pub fn prior(&self, scores: &Tensor, counts: &[usize]) -> Result<Tensor> {
        let (num_entries, max_count) =
            (counts.iter().sum::<usize>(), counts.iter().copied().max().unwrap_or(0));
        if scores.dims() != [num_entries] || num_entries == 0 {
            bail!("scores of shape {:?} for {num_entries} retrieved entries", scores.dims());
        }
        let factor = (candle_nn::ops::sigmoid(&self.scale)? * self.ceiling)?;
        let transformed = scores.broadcast_mul(&factor)?;
        let table = if counts.iter().all(|count| *count == max_count) {
            transformed.reshape((counts.len(), max_count))?
        } else {
            let no_entry = Tensor::full(NO_ENTRY, 1, scores.device())?.to_dtype(scores.dtype())?;
            let padded = Tensor::cat(&[&transformed, &no_entry], 0)?;
            let mut next_entry = 0;
            let indices = counts.iter().flat_map(|&count| {
                let first = next_entry;
                next_entry += count;
                (0..max_count).map(move |k| if k < count { first + k } else { num_entries } as u32)
            });
            let indices = Tensor::from_iter(indices.collect::<Vec<u32>>(), scores.device())?;
            padded.index_select(&indices, 0)?.reshape((counts.len(), max_count))?
        };
        let weights = softmax(&table)?;
        let counts_column: Vec<f32> = counts.iter().map(|count| *count as f32).collect();
        let counts_column = Tensor::from_vec(counts_column, (counts.len(), 1), scores.device())?;
        let weights = weights.broadcast_mul(&counts_column.to_dtype(scores.dtype())?)?;
        let rows = counts.iter().enumerate();
        let entry_cells =
            rows.flat_map(|(row, &count)| (0..count).map(move |k| (row * max_count + k) as u32));
        let entry_cells = Tensor::from_iter(entry_cells.collect::<Vec<u32>>(), scores.device())?;
        Ok(weights.flatten_all()?.index_select(&entry_cells, D::Minus1)?)
    }
}
