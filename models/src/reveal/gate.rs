//! The gate, which weights the sources for a query, and the transform of scores to the fusion's
//! prior.

use candle_core::{D, Tensor};

use super::config::RevealConfig;
use crate::compute::full_precision;
use crate::error::{Result, bail};
use crate::kernels::{Mode, softmax};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};

/// The score of a padded slot, far below all real scores.
const PADDING: f32 = -1e30;
/// The score of finding no entry before training: a cosine between those of right and wrong keys.
const NO_ENTRY_AT_START: f64 = 0.5;

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
    /// The score of finding no entry `[1]`; `None` if the retrieved entries share all the weight.
    no_entry: Option<Tensor>,
}

impl ScoreTransform {
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        let no_entry = || builder.get("no_entry", &[1], Init::Constant(NO_ENTRY_AT_START));
        Ok(Self {
            scale: builder.get("scale", &[1], Init::Ones)?,
            ceiling: config.score_ceiling,
            no_entry: if config.no_entry { Some(no_entry()?) } else { None },
        })
    }

    /// The score of finding no entry, `[1]`, if there is one.
    pub(super) fn no_entry(&self) -> Option<&Tensor> {
        self.no_entry.as_ref()
    }

    /// Returns the prior of retrieved entries. `scores` `[ΣK]` are gated scores, query after query,
    /// and `counts` is the number of entries of each query. The output `[ΣK]` is the softmax of
    /// each query's transformed scores, times the query's number of entries; its mean is 1. With a
    /// score of finding no entry, the softmax has that score, too, and the mean is lower.
    pub fn prior(&self, scores: &Tensor, counts: &[usize]) -> Result<Tensor> {
        let (num_entries, max_count) =
            (counts.iter().sum::<usize>(), counts.iter().copied().max().unwrap_or(0));
        if scores.dims() != [num_entries] || num_entries == 0 {
            bail!("scores of shape {:?} for {num_entries} retrieved entries", scores.dims());
        }
        let factor = (candle_nn::ops::sigmoid(&self.scale)? * self.ceiling)?;
        let transformed = scores.broadcast_mul(&factor)?;
        let padding = Tensor::full(PADDING, 1, scores.device())?.to_dtype(scores.dtype())?;
        let mut cells = vec![transformed, padding];
        if let Some(no_entry) = &self.no_entry {
            cells.push((no_entry.to_dtype(scores.dtype())? * &factor)?);
        }
        let width = max_count + usize::from(self.no_entry.is_some());
        let table = if width == max_count && counts.iter().all(|count| *count == max_count) {
            cells.swap_remove(0).reshape((counts.len(), max_count))?
        } else {
            let mut next_entry = 0;
            let indices = counts.iter().flat_map(|&count| {
                let first = next_entry;
                next_entry += count;
                let entries =
                    (0..max_count).map(move |k| if k < count { first + k } else { num_entries });
                entries.chain((max_count..width).map(|_| num_entries + 1)).map(|cell| cell as u32)
            });
            let indices = Tensor::from_iter(indices.collect::<Vec<u32>>(), scores.device())?;
            Tensor::cat(&cells, 0)?.index_select(&indices, 0)?.reshape((counts.len(), width))?
        };
        let weights = softmax(&table)?;
        let counts_column: Vec<f32> = counts.iter().map(|count| *count as f32).collect();
        let counts_column = Tensor::from_vec(counts_column, (counts.len(), 1), scores.device())?;
        let weights = weights.broadcast_mul(&counts_column.to_dtype(scores.dtype())?)?;
        let rows = counts.iter().enumerate();
        let entry_cells =
            rows.flat_map(|(row, &count)| (0..count).map(move |k| (row * width + k) as u32));
        let entry_cells = Tensor::from_iter(entry_cells.collect::<Vec<u32>>(), scores.device())?;
        Ok(weights.flatten_all()?.index_select(&entry_cells, D::Minus1)?)
    }
}
