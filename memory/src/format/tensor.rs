//! A safetensors file with one tensor, written row by row and read in place.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::json;

use super::file::{BLOCK, CheckedFile, FileRecord, FileWriter};
use crate::error::MemoryError;

/// The alignment of the data in bytes, so that numbers can be read in place.
const ALIGNMENT: usize = 64;

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

/// Writes the tensor `name` with a known shape.
pub(crate) struct TensorWriter<T> {
    file: FileWriter,
    /// A buffer that is reused.
    bytes: Vec<u8>,
    /// The number of components still to be written.
    remaining: usize,
    path: PathBuf,
    number_type: std::marker::PhantomData<T>,
}

impl<T: Number> TensorWriter<T> {
    pub(crate) fn create(path: PathBuf, name: &str, shape: &[usize]) -> Result<Self, MemoryError> {
        let numbers: usize = shape.iter().product();
        let header = json!({ name: {
            "dtype": T::DTYPE,
            "shape": shape,
            "data_offsets": [0, numbers * size_of::<T>()],
        }});
        let mut header = header.to_string().into_bytes();
        header.resize((8 + header.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
        let mut file = FileWriter::create(path.clone())?;
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(&header)?;
        Ok(Self {
            file,
            bytes: Vec::new(),
            remaining: numbers,
            path,
            number_type: std::marker::PhantomData,
        })
    }

    pub(crate) fn write(&mut self, numbers: &[T]) -> Result<(), MemoryError> {
        self.remaining =
            self.remaining.checked_sub(numbers.len()).ok_or_else(|| self.wrong_count())?;
        self.bytes.clear();
        numbers.iter().for_each(|number| number.push_to(&mut self.bytes));
        self.file.write(&self.bytes)
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

/// A memory-mapped tensor of a memory.
#[derive(Debug)]
pub(crate) struct MappedTensor<T> {
    file: CheckedFile,
    /// The offset of the tensor's data in the file, in bytes.
    start: usize,
    shape: Vec<usize>,
    number_type: std::marker::PhantomData<T>,
}

impl<T: Number> MappedTensor<T> {
    /// Opens the tensor `name`, which must have the shape `shape`.
    pub(crate) fn open(
        folder: &Path,
        record: &FileRecord,
        name: &str,
        shape: &[usize],
    ) -> Result<Self, MemoryError> {
        let file = CheckedFile::open(folder, record)?;
        let corrupt = |reason: String| MemoryError::corrupt(file.path(), reason);
        // Opening reads and checks only the first block, which holds the header.
        let first_block = file.bytes(0..file.len().min(BLOCK))?;
        let (header_len, header) = SafeTensors::read_metadata(file.unchecked())
            .map_err(|error| corrupt(format!("is not a safetensors file: {error}")))?;
        let info = header.info(name).ok_or_else(|| corrupt(format!("has no tensor `{name}`")))?;
        if info.dtype != T::DTYPE || info.shape != shape {
            return Err(corrupt(format!(
                "has {:?} {:?}, expected {:?} {shape:?}",
                info.dtype,
                info.shape,
                T::DTYPE
            )));
        }
        let start = 8 + header_len + info.data_offsets.0;
        if start > first_block.len() || start % ALIGNMENT != 0 {
            return Err(corrupt("has misaligned data".to_owned()));
        }
        let shape = shape.to_vec();
        Ok(Self { file, start, shape, number_type: std::marker::PhantomData })
    }

    /// The number of components of a row.
    pub(crate) fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the components of a range of rows, `[rows, row_len]`.
    pub(crate) fn read(&self, rows: std::ops::Range<usize>) -> Result<&[T], MemoryError> {
        let row_bytes = self.row_len() * size_of::<T>();
        let range = self.start + rows.start * row_bytes..self.start + rows.end * row_bytes;
        let bytes = self.file.bytes(range)?;
        // SAFETY: every bit pattern is valid for each `Number` type. This crate builds only for
        // little-endian machines, where the bytes give the written number.
        let (before, numbers, after) = unsafe { bytes.align_to::<T>() };
        if !before.is_empty() || !after.is_empty() {
            return Err(MemoryError::corrupt(self.file.path(), "has misaligned data"));
        }
        Ok(numbers)
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
        let mut writer = TensorWriter::<f32>::create(path.clone(), "keys", &[4, 3]).unwrap();
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
        let mut writer = TensorWriter::<u32>::create(path, "t", &[2, 2]).unwrap();
        writer.write(&[1, 2]).unwrap();
        assert!(writer.write(&[1, 2, 3]).is_err());
        assert!(writer.finish().is_err());
    }
}
