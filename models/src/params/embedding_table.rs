//! Embedding tables: parameters, or external tables, whose values the trainer keeps elsewhere.
//!
//! A model reads a table only with [`sum_of_rows`]. So a trainer can keep a large table in parts on
//! several machines, and give the model only the rows that it needs.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{DType, Device, Tensor};

use super::init::{Init, draw};
use crate::compute::to_host;
use crate::error::{ModelError, Result};
use crate::kernels::embedding_sum;
use crate::weights::Weights;

/// An embedding table of a model, `[V, D]`.
#[derive(Debug, Clone)]
pub struct EmbeddingTable(Source);

#[derive(Debug, Clone)]
enum Source {
    Parameter(Tensor),
    External(Arc<ExternalTable>),
}

/// A trainable embedding table that is not a parameter: see
/// [`ParameterBuilder::with_external_tables`](super::ParameterBuilder::with_external_tables).
pub struct ExternalTable {
    name: String,
    rows: usize,
    width: usize,
    rate: f64,
    index: usize,
    initial: Initial,
    current: RwLock<Option<Rows>>,
}

/// The source of a table's initial values.
pub(super) enum Initial {
    Drawn { seed: u64, init: Init },
    Loaded(Arc<Weights>),
}

/// The rows of a table that the model may read.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The ids of the rows in ascending order, each once; `None` for all rows.
    pub ids: Option<Arc<[u32]>>,
    /// The rows, `[U, D]`.
    pub values: Tensor,
}

/// A table, and the ids `[T]` to look up in it.
pub type Lookup<'a> = (&'a EmbeddingTable, Arc<[u32]>);

/// Looks up ids in each table and sums the rows: ids `[T]` each → `[T, D]`.
///
/// # Errors
/// As [`embedding_sum`]. [`ModelError::BadInput`] if an external table lacks a row.
pub fn sum_of_rows(lookups: &[Lookup<'_>]) -> Result<Tensor> {
    let lookups = lookups.iter().map(|(table, ids)| table.rows(ids));
    let lookups: Vec<(Tensor, Arc<[u32]>)> = lookups.collect::<Result<_>>()?;
    let lookups: Vec<_> = lookups.iter().map(|(rows, ids)| (rows, Arc::clone(ids))).collect();
    Ok(embedding_sum(&lookups)?)
}

impl EmbeddingTable {
    pub(super) fn parameter(tensor: Tensor) -> Self {
        Self(Source::Parameter(tensor))
    }

    pub(super) fn external(table: Arc<ExternalTable>) -> Self {
        Self(Source::External(table))
    }

    /// The external table; `None` if the table is a parameter.
    pub fn as_external(&self) -> Option<&Arc<ExternalTable>> {
        match &self.0 {
            Source::Parameter(_) => None,
            Source::External(table) => Some(table),
        }
    }

    /// A matrix that has the rows of these ids, and the index of each id's row in it.
    fn rows(&self, ids: &Arc<[u32]>) -> Result<(Tensor, Arc<[u32]>)> {
        match &self.0 {
            Source::Parameter(tensor) => Ok((tensor.clone(), Arc::clone(ids))),
            Source::External(table) => table.find(ids),
        }
    }
}

impl ExternalTable {
    /// A table `[V, D]`. `index` is its index among the trainable parameters and external tables of
    /// the model.
    pub(super) fn new(
        name: String,
        [rows, width]: [usize; 2],
        (rate, index): (f64, usize),
        initial: Initial,
    ) -> Self {
        Self { name, rows, width, rate, index, initial, current: RwLock::default() }
    }

    /// The name: the path of the table in the model, as of a parameter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shape `[V, D]`.
    pub fn dims(&self) -> [usize; 2] {
        [self.rows, self.width]
    }

    /// The factor on the learning rate, above 0.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The index among the trainable parameters and external tables of the model, in the order in
    /// which the model requested them.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the initial values, `[V, D]`, as of a parameter of this name. They are not stored.
    ///
    /// # Errors
    /// See [`ParameterBuilder::get`](super::ParameterBuilder::get).
    pub fn initial_values(&self) -> Result<Vec<f32>> {
        match &self.initial {
            Initial::Drawn { seed, init } => {
                draw(*seed, &self.name, self.rows.saturating_mul(self.width), *init)
            }
            Initial::Loaded(weights) => {
                let tensor = weights.get(&self.name, &self.dims(), DType::F32, &Device::Cpu)?;
                Ok(to_host(&tensor)?)
            }
        }
    }

    /// Sets the rows that the model may read; `None` for no rows.
    pub fn set_rows(&self, rows: Option<Rows>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// See [`EmbeddingTable::rows`].
    fn find(&self, ids: &Arc<[u32]>) -> Result<(Tensor, Arc<[u32]>)> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let missing = |what: String| {
            let reason = format!("{what} of the embedding table `{}` was not looked up", self.name);
            ModelError::BadInput(reason)
        };
        match &*current {
            None => Err(missing("a row".into())),
            Some(Rows { ids: None, values }) => Ok((values.clone(), Arc::clone(ids))),
            Some(Rows { ids: Some(known), values }) => {
                let find = |id: &u32| match known.binary_search(id) {
                    Ok(row) => Ok(row as u32),
                    Err(_) => Err(missing(format!("row {id}"))),
                };
                Ok((values.clone(), ids.iter().map(find).collect::<Result<_>>()?))
            }
        }
    }
}

impl fmt::Debug for ExternalTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table `{}` {:?}", self.name, self.dims())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Compute;
    use crate::params::{Init, ParameterBuilder, ParameterGroup};

    fn builder(patterns: &[&str], groups: Vec<ParameterGroup>) -> ParameterBuilder {
        let patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        ParameterBuilder::new(3, groups, &Compute::cpu()).with_external_tables(patterns)
    }

    #[test]
    fn an_external_table_gives_the_rows_that_are_set() -> Result<()> {
        let builder = builder(&["words.*"], Vec::new());
        builder.get("first", &[2], Init::Zeros)?;
        let words = builder.pp("words").embedding_table("weight", [4, 3], Init::Normal(1.0))?;
        let types = builder.embedding_table("types", [2, 3], Init::Ones)?;
        let parameters = builder.finish()?;
        assert_eq!(parameters.value_counts(), (20, 20));
        assert_eq!(parameters.names().collect::<Vec<_>>(), ["first", "types", "words.weight"]);
        let [external] = parameters.external_tables() else { panic!("one external table") };
        assert_eq!((external.index(), external.dims()), (1, [4, 3]));
        assert!(words.as_external().is_some() && types.as_external().is_none());

        let dense = ParameterBuilder::on_cpu(3);
        let whole = dense.pp("words").get("weight", &[4, 3], Init::Normal(1.0))?;
        assert_eq!(external.initial_values()?, to_host(&whole)?);

        let (ids, ones): (Arc<[u32]>, Arc<[u32]>) = (vec![3, 1, 3].into(), vec![1, 1, 1].into());
        let sum = || sum_of_rows(&[(&words, ids.clone()), (&types, ones.clone())]);
        assert!(sum().unwrap_err().to_string().contains("`words.weight` was not looked up"));
        external.set_rows(Some(Rows { ids: None, values: whole.clone() }));
        let expected = sum()?.to_vec2::<f32>()?;
        let rows = whole.index_select(&Tensor::new(&[1u32, 3], &Device::Cpu)?, 0)?;
        external.set_rows(Some(Rows { ids: Some(vec![1, 3].into()), values: rows }));
        assert_eq!(sum()?.to_vec2::<f32>()?, expected);
        let other: Arc<[u32]> = vec![2].into();
        let error = sum_of_rows(&[(&words, other)]).unwrap_err().to_string();
        assert!(error.contains("row 2"), "{error}");
        Ok(())
    }

    #[test]
    fn a_pattern_must_match_a_trained_table() -> Result<()> {
        let unmatched = builder(&["tokens.*"], Vec::new());
        unmatched.pp("words").embedding_table("weight", [4, 3], Init::Zeros)?;
        let error = unmatched.finish().unwrap_err().to_string();
        assert!(error.contains("`tokens.*`") && error.contains("`words.weight`"), "{error}");
        let frozen = builder(&["words.*"], vec![ParameterGroup::all_frozen()]);
        frozen.pp("words").embedding_table("weight", [4, 3], Init::Zeros)?;
        let error = frozen.finish().unwrap_err().to_string();
        assert!(error.contains("`words.weight` is frozen"), "{error}");
        Ok(())
    }
}
