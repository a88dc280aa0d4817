//! Published weights for the models of `candle-transformers`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Error, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use engram_models::weights::{Weights, WeightsFiles};
use engram_models::{ModelError, Result};

/// Reads the tensor that a model asks for by this shape and name.
pub(crate) type Lookup =
    Box<dyn Fn(&Source, &[usize], &str) -> candle_core::Result<Tensor> + Send + Sync>;

/// The weights of a model, and the names that were read.
pub(crate) struct Source {
    weights: Weights,
    /// The possible beginnings of names in the file that the model's names lack.
    prefixes: &'static [&'static str],
    read: Mutex<BTreeSet<String>>,
}

/// Parts of tensor names that no encoder reads: heads, tables that are computed, and the token of
/// masked patches.
const UNUSED: [&str; 9] = [
    "pooler.",
    "cls.",
    "lm_head.",
    "classifier.",
    "position_ids",
    "inv_freq",
    "mask_token",
    "logit_scale",
    "logit_bias",
];

impl Source {
    /// Opens the weights.
    pub(crate) fn open(
        files: &WeightsFiles,
        prefixes: &'static [&'static str],
    ) -> Result<Arc<Self>> {
        let mut weights = files.open()?;
        for prefix in prefixes {
            weights = weights.with_optional_prefix(prefix);
        }
        Ok(Arc::new(Self { weights, prefixes, read: Mutex::default() }))
    }

    /// Reads a tensor in f32.
    pub(crate) fn read(&self, shape: &[usize], name: &str) -> candle_core::Result<Tensor> {
        let tensor = self.weights.get(name, shape, DType::F32, &Device::Cpu);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        tensor.map_err(|error| Error::Msg(error.to_string()))
    }

    /// A builder of models, which reads each tensor with `lookup`.
    pub(crate) fn builder(self: &Arc<Self>, lookup: Lookup) -> VarBuilder<'static> {
        let backend = Backend { source: Arc::clone(self), lookup };
        VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu)
    }

    /// A builder of models, for files with the names that `candle-transformers` uses.
    pub(crate) fn plain_builder(self: &Arc<Self>) -> VarBuilder<'static> {
        self.builder(Box::new(Self::read))
    }

    /// Refuses weights with a tensor that the model did not read: they belong to a variant with
    /// other layers.
    pub(crate) fn refuse_unread(&self, path: &Path) -> Result<()> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unread = |stored: &String| {
            let name = self.prefixes.iter().find_map(|prefix| stored.strip_prefix(prefix));
            let name = name.unwrap_or(stored);
            !read.contains(name) && !UNUSED.iter().any(|part| name.contains(part))
        };
        match self.weights.names().find(is_unread) {
            None => Ok(()),
            Some(name) => Err(ModelError::BadFile {
                path: path.to_owned(),
                reason: format!(
                    "tensor `{name}` belongs to a variant of this architecture that is not \
                     supported; use another model, or the weights that belong to config.json"
                ),
            }),
        }
    }
}

struct Backend {
    source: Arc<Source>,
    lookup: Lookup,
}

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _init: Init,
        _dtype: DType,
        _device: &Device,
    ) -> candle_core::Result<Tensor> {
        (self.lookup)(&self.source, shape.dims(), name)
    }

    fn get_unchecked(
        &self,
        name: &str,
        _dtype: DType,
        _device: &Device,
    ) -> candle_core::Result<Tensor> {
        candle_core::bail!("tensor `{name}` is read without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.source.weights.names().any(|stored| stored == name)
    }
}
