//! Vectors from files: NumPy's `.npy` and safetensors, row by row; and `.npy` files of results.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use npyz::{NpyFile, Order, WriterBuilder};
use safetensors::{Dtype, SafeTensors};

use crate::error::MemoryError;

const REMEDY: &str =
    "give a .npy file (C order) or a safetensors file of 16-, 32- or 64-bit floating point";

/// A file of vectors that is read row by row.
pub struct VectorFile {
    path: PathBuf,
    shape: Vec<usize>,
    numbers: Box<dyn Iterator<Item = io::Result<f32>>>,
}

impl VectorFile {
    /// Opens a file. In a safetensors file the tensor `name` is taken, or the only one that there is.
    ///
    /// # Errors   [`MemoryError::Read`]; [`MemoryError::Malformed`] for other formats, types and orders
    pub fn open(path: &Path, name: &str) -> Result<Self, MemoryError> {
        let file = File::open(path).map_err(MemoryError::read(path))?;
        let malformed = |reason: String| MemoryError::Malformed {
            file: path.to_owned(),
            line: None,
            reason,
            remedy: REMEDY,
        };
        let npy = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"));
        let (shape, numbers) = match npy {
            true => read_npy(file).map_err(malformed)?,
            false => read_safetensors(&file, name).map_err(malformed)?,
        };
        if shape.len() < 2 {
            return Err(malformed(format!("has the shape {shape:?}, not one row for each vector")));
        }
        if shape.contains(&0) {
            return Err(malformed(format!("is empty: it has the shape {shape:?}")));
        }
        if shape.iter().try_fold(4usize, |bytes, size| bytes.checked_mul(*size)).is_none() {
            return Err(malformed(format!("cannot have the shape {shape:?}")));
        }
        Ok(Self { path: path.to_owned(), shape, numbers })
    }

    /// The whole shape, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Numbers of a row.
    pub fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The next rows, one after the other.
    ///
    /// # Errors   [`MemoryError::Malformed`] where the file ends before
    pub fn read_rows(&mut self, rows: usize) -> Result<Vec<f32>, MemoryError> {
        let numbers = rows * self.row_len();
        let read: io::Result<Vec<f32>> = self.numbers.by_ref().take(numbers).collect();
        let reason = match read {
            Ok(read) if read.len() == numbers => return Ok(read),
            Ok(_) => "ends before its last row".to_owned(),
            Err(error) => format!("ends before its last row, or cannot be read ({error})"),
        };
        let (file, remedy) = (self.path.clone(), "write or copy the file again");
        Err(MemoryError::Malformed { file, line: None, reason, remedy })
    }
}

type Numbers = (Vec<usize>, Box<dyn Iterator<Item = io::Result<f32>>>);

fn read_npy(file: File) -> Result<Numbers, String> {
    let npy = NpyFile::new(BufReader::with_capacity(1 << 20, file))
        .map_err(|error| format!("is no .npy file: {error}"))?;
    if npy.order() != Order::C {
        return Err("is in Fortran order".to_owned());
    }
    let shape = npy.shape().iter().map(|size| *size as usize).collect();
    let npy = match npy.try_data::<f32>() {
        Ok(numbers) => return Ok((shape, Box::new(numbers))),
        Err(npy) => npy,
    };
    let npy = match npy.try_data::<f16>() {
        Ok(numbers) => return Ok((shape, Box::new(numbers.map(|n| n.map(f16::to_f32))))),
        Err(npy) => npy,
    };
    match npy.try_data::<f64>() {
        Ok(numbers) => Ok((shape, Box::new(numbers.map(|n| n.map(|n| n as f32))))),
        Err(npy) => Err(format!("has numbers of type {}", npy.dtype().descr())),
    }
}

fn read_safetensors(file: &File, name: &str) -> Result<Numbers, String> {
    // SAFETY: as with any mapped file, who truncates it meanwhile ends this process.
    let map = unsafe { Mmap::map(file) }.map_err(|error| format!("cannot be mapped: {error}"))?;
    let (header_len, header) = SafeTensors::read_metadata(&map)
        .map_err(|error| format!("is neither .npy nor safetensors: {error}"))?;
    let names = header.offset_keys();
    let found = match (header.info(name), names.as_slice()) {
        (Some(found), _) => found,
        (None, [only]) => header.info(only).ok_or("has no tensor")?,
        (None, _) => return Err(format!("has no tensor `{name}`, but {}", names.join(", "))),
    };
    let start = 8 + header_len;
    let (shape, dtype) = (found.shape.clone(), found.dtype);
    let range = start + found.data_offsets.0..start + found.data_offsets.1;
    let size = match dtype {
        Dtype::F32 => 4,
        Dtype::F16 | Dtype::BF16 => 2,
        Dtype::F64 => 8,
        other => return Err(format!("has numbers of type {other:?}")),
    };
    let number = move |at: usize| {
        let bytes = map.get(at..at + size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let pair = || [bytes[0], bytes[1]];
        Ok(match dtype {
            Dtype::F16 => f16::from_le_bytes(pair()).to_f32(),
            Dtype::BF16 => bf16::from_le_bytes(pair()).to_f32(),
            Dtype::F64 => {
                let mut number = [0; 8];
                number.copy_from_slice(bytes);
                f64::from_le_bytes(number) as f32
            }
            _ => {
                let mut number = [0; 4];
                number.copy_from_slice(bytes);
                f32::from_le_bytes(number)
            }
        })
    };
    Ok((shape, Box::new(range.step_by(size).map(number))))
}

/// A `.npy` file of a matrix, `[rows, columns]`.
///
/// # Errors   [`MemoryError::BadOption`] for a matrix that is no rectangle
pub fn npy_bytes<T: npyz::AutoSerialize + Copy>(
    matrix: &[T],
    columns: usize,
) -> Result<Vec<u8>, MemoryError> {
    let rows = matrix.len() / columns.max(1);
    let write = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let shape = [rows as u64, columns as u64];
        let mut writer = npyz::WriteOptions::new()
            .default_dtype()
            .shape(&shape)
            .writer(&mut bytes)
            .begin_nd()?;
        writer.extend(matrix.iter().copied())?;
        writer.finish()?;
        Ok(bytes)
    };
    write().map_err(|error| MemoryError::BadOption {
        option: "the matrix",
        found: error.to_string(),
        expected: "of full rows",
    })
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn npy_and_safetensors_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let numbers: Vec<f32> = (0..12).map(|i| i as f32 / 2.0).collect();
        let npy = folder.path().join("a.npy");
        std::fs::write(&npy, npy_bytes(&numbers, 3).unwrap()).unwrap();
        let doubles: Vec<f64> = numbers.iter().map(|n| f64::from(*n)).collect();
        let double = folder.path().join("b.npy");
        std::fs::write(&double, npy_bytes(&doubles, 3).unwrap()).unwrap();
        let halves: Vec<u8> =
            numbers.iter().flat_map(|n| f16::from_f32(*n).to_le_bytes()).collect();
        let tensors = folder.path().join("c.safetensors");
        let view = TensorView::new(Dtype::F16, vec![4, 3], &halves).unwrap();
        std::fs::write(&tensors, safetensors::serialize([("x", view)], None).unwrap()).unwrap();
        for path in [npy, double, tensors] {
            let mut file = VectorFile::open(&path, "keys").unwrap();
            assert_eq!((file.shape(), file.row_len()), (&[4, 3][..], 3));
            assert_eq!(file.read_rows(1).unwrap(), numbers[..3]);
            assert_eq!(file.read_rows(3).unwrap(), numbers[3..]);
            let error = file.read_rows(1).unwrap_err().to_string();
            assert!(error.contains("ends before its last row"), "{error}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            VectorFile::open(&path, "keys").err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(write("a.npy", b"no").contains("a.npy: is no .npy file"));
        assert!(write("a.txt", b"no numbers").contains("is neither .npy nor safetensors"));
        let numbers = npy_bytes(&[1i64, 2], 2).unwrap();
        assert!(write("b.npy", &numbers).contains("has numbers of type '<i8'"));
        assert!(write("d.npy", &npy_bytes::<f32>(&[], 4).unwrap()).contains("is empty"));
        let cut = npy_bytes(&[1f32; 8], 2).unwrap();
        let path = folder.path().join("c.npy");
        std::fs::write(&path, &cut[..cut.len() - 5]).unwrap();
        let mut file = VectorFile::open(&path, "keys").unwrap();
        assert!(file.read_rows(4).is_err());
    }
}
