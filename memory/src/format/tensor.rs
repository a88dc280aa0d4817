//! Safetensors files, read in place: with one tensor, written row by row, or with several tensors,
//! written from main memory.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::file::{BLOCK, CheckedFile, FileRecord, FileWriter};
use super::pack::ALIGNMENT;
use crate::error::MemoryError;

/// A number type in a file, little endian.
pub(crate) trait Number: Copy + Send + Sync + 'static {
    /// The name of the type in safetensors.
    const DTYPE: Dtype;
    /// Appends the bytes of the number.
    fn push_to(self, bytes: &mut Vec<u8>);
}

macro_rules! number {
    ($type:ty, $dtype:ident) => {
        impl Number for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            fn push_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    };
}
number!(f32, F32);
number!(half::f16, F16);
number!(i8, I8);
number!(u8, U8);
number!(i64, I64);
number!(u32, U32);
number!(u64, U64);

/// Returns bytes as numbers; `None` if the bytes are misaligned.
pub(crate) fn as_numbers<T: Number>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: every bit pattern is valid for each `Number` type. This crate builds only for
    // little-endian machines, where the bytes give the written number.
    let (before, numbers, after) = unsafe { bytes.align_to::<T>() };
    (before.is_empty() && after.is_empty()).then_some(numbers)
}

/// The description of a tensor in a header.
fn info(dtype: Dtype, shape: &[usize], start: usize, end: usize) -> Value {
    json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] })
}

/// Returns the length of a header and the header, padded so that the data are aligned.
fn header_bytes(header: &Value) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(header.to_string().into_bytes());
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), b' ');
    let header_len = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&header_len.to_le_bytes());
    bytes
}

/// A safetensors file in main memory. The caller adds tensors so that each is aligned.
#[derive(Debug, Default)]
pub(crate) struct TensorFileBytes {
    header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl TensorFileBytes {
    pub(crate) fn push<T: Number>(&mut self, name: &str, shape: &[usize], numbers: &[T]) {
        let mut bytes = Vec::with_capacity(size_of_val(numbers));
        numbers.iter().for_each(|number| number.push_to(&mut bytes));
        self.push_bytes(name, T::DTYPE, shape, &bytes);
    }

    /// Adds a tensor of numbers of any type, given as bytes.
    pub(crate) fn push_bytes(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        self.header.insert(name.to_owned(), info(dtype, shape, start, self.data.len()));
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = header_bytes(&Value::Object(self.header));
        bytes.extend(self.data);
        bytes
    }
}

/// Writes the tensor `name` with a known shape.
pub(crate) struct TensorWriter {
    file: FileWriter,
    /// A buffer that is reused.
    bytes: Vec<u8>,
    /// The number of bytes still to be written.
    remaining: usize,
    path: PathBuf,
}

impl TensorWriter {
    /// Creates a file with a tensor of this name.
    pub(crate) fn create(
        path: PathBuf,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Self, MemoryError> {
        let remaining = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let header = json!({ name: info(dtype, shape, 0, remaining) });
        let mut file = FileWriter::create(path.clone())?;
        file.write(&header_bytes(&header))?;
        Ok(Self { file, bytes: Vec::new(), remaining, path })
    }

    /// Creates the file of a column in a folder.
    pub(crate) fn of_column(
        folder: &Path,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Self, MemoryError> {
        Self::create(folder.join(format!("{name}.safetensors")), name, dtype, shape)
    }

    pub(crate) fn write<T: Number>(&mut self, numbers: &[T]) -> Result<(), MemoryError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        numbers.iter().for_each(|number| number.push_to(&mut bytes));
        let written = self.write_bytes(&bytes);
        self.bytes = bytes;
        written
    }

    /// Writes the bytes of numbers.
    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), MemoryError> {
        self.remaining =
            self.remaining.checked_sub(bytes.len()).ok_or_else(|| self.wrong_count())?;
        self.file.write(bytes)
    }

    pub(crate) fn finish(self) -> Result<FileRecord, MemoryError> {
        if self.remaining > 0 {
            return Err(self.wrong_count());
        }
        self.file.finish()
    }

    fn wrong_count(&self) -> MemoryError {
        let source = std::io::Error::other("the number of rows differs from the shape");
        MemoryError::Write { file: self.path.clone(), source }
    }
}

/// Writes a tensor to a new file.
pub(crate) fn write_tensor<T: Number>(
    path: PathBuf,
    name: &str,
    shape: &[usize],
    numbers: &[T],
) -> Result<FileRecord, MemoryError> {
    let mut writer = TensorWriter::create(path, name, T::DTYPE, shape)?;
    writer.write(numbers)?;
    writer.finish()
}

/// A memory-mapped safetensors file.
#[derive(Debug)]
pub(crate) struct TensorFile {
    file: Arc<CheckedFile>,
    /// The offset of the data in the file, in bytes.
    start: usize,
    header: Metadata,
}

impl TensorFile {
    pub(crate) fn open(folder: &Path, record: &FileRecord) -> Result<Self, MemoryError> {
        let file = CheckedFile::open(folder, record)?;
        // Opening reads and checks only the first block, which holds the header.
        let first_block = file.bytes(0..file.len().min(BLOCK))?;
        let (header_len, header) =
            SafeTensors::read_metadata(file.unchecked()).map_err(|error| {
                MemoryError::corrupt(file.path(), format!("is not a safetensors file: {error}"))
            })?;
        let start = 8 + header_len;
        if start > first_block.len() || start % ALIGNMENT != 0 {
            return Err(MemoryError::corrupt(file.path(), "has misaligned data"));
        }
        Ok(Self { file: Arc::new(file), start, header })
    }

    pub(crate) fn file(&self) -> &Arc<CheckedFile> {
        &self.file
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, MemoryError> {
        self.header.info(name).ok_or_else(|| {
            MemoryError::corrupt(self.file.path(), format!("has no tensor `{name}`"))
        })
    }

    /// Returns the tensor `name`, which must have the shape `shape`.
    pub(crate) fn tensor<T: Number>(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<MappedTensor<T>, MemoryError> {
        self.check(name, T::DTYPE, shape)?;
        self.mapped(name, shape)
    }

    /// Returns a tensor of numbers of any type as bytes, `[rows, bytes of a row]`.
    pub(crate) fn bytes(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<MappedTensor<u8>, MemoryError> {
        self.check(name, dtype, shape)?;
        let (rows, row) = shape.split_first().unwrap_or((&1, &[]));
        self.mapped(name, &[*rows, row.iter().product::<usize>() * dtype.bitsize() / 8])
    }

    /// Returns an error unless the tensor `name` has this type and shape.
    fn check(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<(), MemoryError> {
        let info = self.info(name)?;
        if info.dtype == dtype && info.shape == shape {
            return Ok(());
        }
        let (found, found_shape) = (info.dtype, &info.shape);
        let reason = format!("has {found:?} {found_shape:?}, expected {dtype:?} {shape:?}");
        Err(MemoryError::corrupt(self.file.path(), reason))
    }

    fn mapped<T>(&self, name: &str, shape: &[usize]) -> Result<MappedTensor<T>, MemoryError> {
        Ok(MappedTensor {
            file: Arc::clone(&self.file),
            start: self.start + self.info(name)?.data_offsets.0,
            shape: shape.to_vec(),
            number_type: std::marker::PhantomData,
        })
    }

    /// Returns the bytes of the file that hold the tensor `name`.
    pub(crate) fn range(&self, name: &str) -> Result<Range<usize>, MemoryError> {
        let (start, end) = self.info(name)?.data_offsets;
        Ok(self.start + start..self.start + end)
    }
}

/// A memory-mapped tensor of a memory.
#[derive(Debug)]
pub(crate) struct MappedTensor<T> {
    file: Arc<CheckedFile>,
    /// The offset of the tensor's data in the file, in bytes.
    start: usize,
    shape: Vec<usize>,
    number_type: std::marker::PhantomData<T>,
}

impl<T: Number> MappedTensor<T> {
    /// Opens the tensor `name` of a file, which must have the shape `shape`.
    pub(crate) fn open(
        folder: &Path,
        record: &FileRecord,
        name: &str,
        shape: &[usize],
    ) -> Result<Self, MemoryError> {
        TensorFile::open(folder, record)?.tensor(name, shape)
    }

    /// The number of components of a row.
    pub(crate) fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the components of a range of rows, `[rows, row_len]`.
    pub(crate) fn read(&self, rows: Range<usize>) -> Result<&[T], MemoryError> {
        let row_bytes = self.row_len() * size_of::<T>();
        let range = self.start + rows.start * row_bytes..self.start + rows.end * row_bytes;
        as_numbers(self.file.bytes(range)?)
            .ok_or_else(|| MemoryError::corrupt(self.file.path(), "has misaligned data"))
    }

    /// Returns an error about the tensor's content.
    pub(crate) fn corrupt(&self, reason: String) -> MemoryError {
        MemoryError::corrupt(self.file.path(), reason)
    }

    pub(crate) fn verify(&self) -> Result<(), MemoryError> {
        self.file.verify()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_read_in_place_and_by_the_safetensors_crate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.safetensors");
        let numbers: Vec<f32> = (0..12).map(|i| i as f32 / 3.0).collect();
        let mut writer = TensorWriter::create(path.clone(), "keys", Dtype::F32, &[4, 3]).unwrap();
        numbers.chunks(6).for_each(|part| writer.write(part).unwrap());
        let record = writer.finish().unwrap();
        let tensor = MappedTensor::<f32>::open(folder.path(), &record, "keys", &[4, 3]).unwrap();
        assert_eq!(tensor.row_len(), 3);
        assert_eq!(tensor.read(1..3).unwrap(), &numbers[3..9]);
        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let view = tensors.tensor("keys").unwrap();
        assert_eq!((view.shape(), view.dtype()), (&[4, 3][..], Dtype::F32));
        assert_eq!(view.data(), numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>());
        for (name, shape) in [("values", [4, 3]), ("keys", [3, 4])] {
            let result = MappedTensor::<f32>::open(folder.path(), &record, name, &shape);
            assert!(result.is_err());
        }
    }

    #[test]
    fn too_many_or_too_few_numbers_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let mut writer = TensorWriter::create(path, "t", Dtype::U32, &[2, 2]).unwrap();
        writer.write(&[1u32, 2]).unwrap();
        assert!(writer.write(&[1u32, 2, 3]).is_err());
        assert!(writer.finish().is_err());
    }
}
