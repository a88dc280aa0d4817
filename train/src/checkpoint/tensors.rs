//! Writes safetensors files tensor by tensor, without a copy of all tensors in memory.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use engram_durable::FileWriter;
use engram_models::params::Parameter;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::{Result, TrainError};

/// Spaces pad the header of a safetensors file to a multiple of this size.
const HEADER_ALIGNMENT: usize = 8;

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
    /// A parameter's current values.
    pub(super) fn parameter(parameter: &'a Parameter) -> Self {
        let shape = Cow::Borrowed(parameter.tensor().dims());
        Self { name: parameter.name(), shape, values: Values::Parameter(parameter) }
    }

    /// Other values.
    pub(super) fn new(
        name: &'a str,
        shape: impl Into<Cow<'a, [usize]>>,
        values: &'a [f32],
    ) -> Self {
        Self { name, shape: shape.into(), values: Values::Slice(values) }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        Ok(match self.values {
            Values::Slice(values) => to_bytes(values),
            Values::Parameter(parameter) => parameter.read(to_bytes)?,
        })
    }

    fn byte_count(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

/// Writes the tensors to a file atomically and syncs it.
pub(super) fn write(path: &Path, mut tensors: Vec<Source<'_>>) -> Result<()> {
    // The safetensors library also sorts tensors of one type by name.
    tensors.sort_by_key(|source| source.name);
    let header = header(&tensors)
        .map_err(|reason| TrainError::BadCheckpoint { path: path.to_path_buf(), reason })?;
    let io = || TrainError::io(path);
    let mut file = FileWriter::create(path).map_err(io())?;
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io())?;
    file.write_all(&header).map_err(io())?;
    for source in &tensors {
        file.write_all(&source.bytes()?).map_err(io())?;
    }
    file.commit().map_err(io())
}

fn header(tensors: &[Source<'_>]) -> Result<Vec<u8>, String> {
    let mut end = 0;
    let infos = tensors.iter().map(|source| {
        let start = end;
        end += source.byte_count();
        let shape = source.shape.to_vec();
        let info = TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) };
        (source.name.to_string(), info)
    });
    let metadata = Metadata::new(None, infos.collect()).map_err(|error| error.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    Ok(header)
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(values)];
    for (bytes, value) in bytes.chunks_exact_mut(size_of::<f32>()).zip(values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn a_written_file_equals_the_file_of_the_safetensors_library() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.safetensors");
        let (long, short) = (vec![1.5f32, -2.0, 3.25], vec![0.5f32]);
        write(
            &path,
            vec![Source::new("second", vec![3], &long), Source::new("first", vec![1], &short)],
        )
        .expect("written");
        let (long_bytes, short_bytes) = (to_bytes(&long), to_bytes(&short));
        let view = |shape: usize, bytes| {
            TensorView::new(Dtype::F32, vec![shape], bytes).expect("a tensor")
        };
        let named = [("second", view(3, &long_bytes)), ("first", view(1, &short_bytes))];
        let expected = safetensors::serialize(named, None).expect("serialised");
        assert_eq!(std::fs::read(&path).expect("a file"), expected);
    }
}
