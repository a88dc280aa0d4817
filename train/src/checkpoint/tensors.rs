//! Tensors to safetensors, one at a time, without a copy of them all in memory.

use std::borrow::Cow;
use std::path::Path;

use engram_models::params::Parameter;
use safetensors::{Dtype, View};

use crate::error::{Result, TrainError};

/// One tensor to write.
pub(super) struct Source<'a> {
    name: &'a str,
    shape: Cow<'a, [usize]>,
    values: Values<'a>,
}

enum Values<'a> {
    Slice(&'a [f32]),
    Parameter(&'a Parameter),
}

impl<'a> Source<'a> {
    /// A parameter's present values.
    pub(super) fn parameter(parameter: &'a Parameter) -> Result<Self> {
        // Asked here, because a view cannot fail later.
        parameter.read(|_| ())?;
        let shape = Cow::Borrowed(parameter.tensor().dims());
        Ok(Self { name: parameter.name(), shape, values: Values::Parameter(parameter) })
    }

    /// Other values under a parameter's name and shape.
    pub(super) fn shaped(parameter: &'a Parameter, values: &'a [f32]) -> Self {
        let shape = Cow::Borrowed(parameter.tensor().dims());
        Self { name: parameter.name(), shape, values: Values::Slice(values) }
    }

    /// Values without a shape.
    pub(super) fn flat(name: &'a str, values: &'a [f32]) -> Self {
        Self { name, shape: Cow::Owned(vec![values.len()]), values: Values::Slice(values) }
    }
}

impl View for &Source<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(match self.values {
            Values::Slice(values) => to_bytes(values),
            Values::Parameter(parameter) => parameter.read(to_bytes).unwrap_or_default(),
        })
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

/// Writes the tensors to a file and syncs it.
pub(super) fn write(path: &Path, tensors: Vec<Source<'_>>) -> Result<()> {
    let named = tensors.iter().map(|source| (source.name, source));
    safetensors::serialize_to_file(named, None, path).map_err(|e| match e {
        safetensors::SafeTensorError::IoError(source) => {
            TrainError::Io { path: path.to_path_buf(), source }
        }
        other => TrainError::BadCheckpoint { path: path.to_path_buf(), reason: other.to_string() },
    })?;
    super::sync(path)
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(values)];
    for (bytes, value) in bytes.chunks_exact_mut(size_of::<f32>()).zip(values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
