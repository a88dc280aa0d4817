//! Reads vectors row by row from NumPy `.npy` and safetensors files, and writes results as `.npy`.
//!
//! Files are read through a buffer, so a file that becomes shorter meanwhile gives an error. A pipe
//! can be read, too, except in Fortran order.

mod columns;
mod npy;
mod tensors;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use crate::error::{MemoryError, one_line};
use columns::Columns;
pub use npy::{NpyNumber, npy_bytes, npy_bytes_of_rows, npy_header};

/// The remedy for an unsupported file.
const REMEDY: &str = "give a .npy or safetensors file of 16-, 32- or 64-bit floating point";
/// The maximum number of components that are converted at a time.
const MAX_CONVERTED: usize = 1 << 16;

/// A file of vectors, read row by row.
pub struct VectorFile {
    path: PathBuf,
    shape: Vec<usize>,
    number_type: NumberType,
    reader: BufReader<File>,
    /// The columns of a file in Fortran order; `None` in C order.
    columns: Option<Columns>,
    /// The number of components still to be read.
    remaining: usize,
}

/// The content of a file's header.
#[derive(Debug, PartialEq)]
struct Layout {
    shape: Vec<usize>,
    number_type: NumberType,
    /// Whether the first index changes fastest.
    fortran_order: bool,
    /// The number of bytes between the header and the first component.
    skipped_bytes: u64,
}

/// A number type that can be converted to `f32`; little endian unless the name says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberType {
    F16,
    BF16,
    F32,
    F64,
    BigEndianF16,
    BigEndianF32,
    BigEndianF64,
}

impl NumberType {
    /// The size of a number in bytes.
    fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 | Self::BigEndianF16 => 2,
            Self::F32 | Self::BigEndianF32 => 4,
            Self::F64 | Self::BigEndianF64 => 8,
        }
    }

    /// Appends the converted numbers of `bytes`, which holds only complete numbers.
    fn convert(self, bytes: &[u8], out: &mut Vec<f32>) {
        fn convert_each<const N: usize>(
            bytes: &[u8],
            out: &mut Vec<f32>,
            parse: impl Fn([u8; N]) -> f32,
        ) {
            out.extend(bytes.as_chunks().0.iter().map(|bytes| parse(*bytes)));
        }
        match self {
            Self::F16 => convert_each(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::BF16 => convert_each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Self::F32 => convert_each(bytes, out, f32::from_le_bytes),
            Self::F64 => convert_each(bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::BigEndianF16 => {
                convert_each(bytes, out, |bytes| f16::from_be_bytes(bytes).to_f32())
            }
            Self::BigEndianF32 => convert_each(bytes, out, f32::from_be_bytes),
            Self::BigEndianF64 => {
                convert_each(bytes, out, |bytes| f64::from_be_bytes(bytes) as f32)
            }
        }
    }
}

impl VectorFile {
    /// Opens a file: NumPy if the path ends in `.npy`, otherwise safetensors. In a safetensors
    /// file, reads the tensor `name`; if no tensor has this name, the only tensor. A row of `values`
    /// has the axes tokens and width; a row of any other name is one vector, with axes of length 1
    /// besides.
    ///
    /// # Errors
    /// [`MemoryError::Read`]; [`MemoryError::Malformed`] for unsupported formats and types, for rows
    /// with more axes, for a pipe in Fortran order, and if the file is shorter than its header says.
    pub fn open(path: &Path, name: &str) -> Result<Self, MemoryError> {
        let file = engram_durable::open_input(path).map_err(MemoryError::read(path))?;
        let metadata = file.metadata().map_err(MemoryError::read(path))?;
        if metadata.is_dir() {
            let source = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(MemoryError::Read { file: path.to_owned(), source });
        }
        engram_textfile::refuse_lfs_pointer_at(path)?;
        // The size of a pipe is unknown.
        let file_bytes = metadata.is_file().then_some(metadata.len());
        let malformed = |reason: String| MemoryError::Malformed {
            file: path.to_owned(),
            line: None,
            reason: one_line(&reason),
            remedy: REMEDY,
        };
        let is_npy = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npy"));
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let header = if is_npy {
            npy::read_header(&mut reader)
        } else {
            tensors::read_header(&mut reader, file_bytes, name)
        };
        let Layout { shape, number_type, fortran_order, skipped_bytes } =
            header.map_err(malformed)?;
        if shape.len() < 2 {
            return Err(malformed(format!(
                "has the shape {shape:?}, but needs one row per vector; give one vector as \
                 [1, width] (in NumPy, a[None])"
            )));
        }
        let (is_fine, remedy) = match name {
            "values" => (shape.len() <= 3, "give values as [rows, tokens, width]"),
            _ => (
                shape[1..].iter().filter(|size| **size > 1).count() <= 1,
                "give one vector per row: the mean of the row's vectors (in NumPy: \
                 a.mean(axis=1)), or all of them joined (a.reshape(len(a), -1))",
            ),
        };
        if !is_fine {
            let reason = one_line(&format!("has too many axes for {name}: its shape is {shape:?}"));
            return Err(MemoryError::Malformed { file: path.into(), line: None, reason, remedy });
        }
        if shape.contains(&0) {
            return Err(malformed(format!("is empty: it has the shape {shape:?}")));
        }
        let data_bytes =
            shape.iter().try_fold(number_type.bytes(), |bytes, size| bytes.checked_mul(*size));
        let Some(data_bytes) = data_bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
            return Err(malformed(format!("has the impossible shape {shape:?}")));
        };
        let data_start = reader.stream_position().unwrap_or(0) + skipped_bytes;
        if file_bytes.is_some_and(|bytes| bytes.saturating_sub(data_start) < data_bytes as u64) {
            return Err(malformed(format!(
                "ends before its last row: the shape {shape:?} needs {data_bytes} bytes"
            )));
        }
        if fortran_order && file_bytes.is_none() {
            return Err(MemoryError::Malformed {
                file: path.to_owned(),
                line: None,
                reason: "is in Fortran order, so it cannot be read from a pipe".to_owned(),
                remedy: "write it to a file, or write it in C order (numpy.ascontiguousarray)",
            });
        }
        let columns = fortran_order.then(|| Columns::new(&shape, data_start));
        let skip = io::copy(&mut reader.by_ref().take(skipped_bytes), &mut io::sink());
        skip.map_err(MemoryError::read(path))?;
        let remaining = data_bytes / number_type.bytes();
        Ok(Self { path: path.to_owned(), shape, number_type, reader, columns, remaining })
    }

    /// The complete shape, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of components of a row.
    pub fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Returns the components of the next `rows` rows, `[rows, row_len]`.
    ///
    /// # Errors
    /// [`MemoryError::Malformed`] if the file ends too early.
    pub fn read_rows(&mut self, rows: usize) -> Result<Vec<f32>, MemoryError> {
        let requested = rows.saturating_mul(self.row_len());
        if requested > self.remaining {
            return Err(self.truncated("ends before its last row".to_owned()));
        }
        if let Some(columns) = &mut self.columns {
            let read = columns.read_rows(self.reader.get_mut(), rows, self.number_type);
            let numbers = read.map_err(|error| self.unread(error))?;
            self.remaining -= requested;
            return Ok(numbers);
        }
        // Memory grows with the bytes read, not with the size in the header.
        let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
        while numbers.len() < requested {
            let count = MAX_CONVERTED.min(requested - numbers.len());
            bytes.resize(count * self.number_type.bytes(), 0);
            if let Err(error) = self.reader.read_exact(&mut bytes) {
                return Err(self.unread(error));
            }
            self.number_type.convert(&bytes, &mut numbers);
        }
        self.remaining -= requested;
        Ok(numbers)
    }

    /// The error for rows that cannot be read.
    fn unread(&self, error: io::Error) -> MemoryError {
        self.truncated(format!("ends before its last row, or cannot be read ({error})"))
    }

    /// The error for a file that ends too early.
    fn truncated(&self, reason: String) -> MemoryError {
        let (file, remedy) = (self.path.clone(), "write or copy the file again");
        MemoryError::Malformed { file, line: None, reason, remedy }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn npy_and_safetensors_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let numbers: Vec<f32> = (0..12).map(|i| i as f32 / 2.0).collect();
        let f32_npy = folder.path().join("a.npy");
        std::fs::write(&f32_npy, npy_bytes(&numbers, 3).unwrap()).unwrap();
        let doubles: Vec<f64> = numbers.iter().map(|n| f64::from(*n)).collect();
        let f64_npy = folder.path().join("b.npy");
        std::fs::write(&f64_npy, npy_bytes(&doubles, 3).unwrap()).unwrap();
        let halves: Vec<u8> =
            numbers.iter().flat_map(|n| f16::from_f32(*n).to_le_bytes()).collect();
        let tensors = folder.path().join("c.safetensors");
        let view = TensorView::new(Dtype::F16, vec![4, 3], &halves).unwrap();
        std::fs::write(&tensors, safetensors::serialize([("x", view)], None).unwrap()).unwrap();
        for path in [f32_npy, f64_npy, tensors] {
            let mut file = VectorFile::open(&path, "keys").unwrap();
            assert_eq!((file.shape(), file.row_len()), (&[4, 3][..], 3));
            assert_eq!(file.read_rows(1).unwrap(), numbers[..3]);
            assert_eq!(file.read_rows(3).unwrap(), numbers[3..]);
            let error = file.read_rows(1).unwrap_err().to_string();
            assert!(error.contains("ends before its last row"), "{error}");
        }
    }

    #[test]
    fn unsupported_and_truncated_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let error_of = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            VectorFile::open(&path, "keys").err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(error_of("a.npy", b"no").contains("a.npy: is not a .npy file"));
        assert!(error_of("a.txt", b"no numbers").contains("is neither .npy nor safetensors"));
        let numbers = npy_bytes(&[1i64, 2], 2).unwrap();
        assert!(error_of("b.npy", &numbers).contains("has numbers of type '<i8'"));
        assert!(error_of("d.npy", &npy_bytes::<f32>(&[], 4).unwrap()).contains("is empty"));
        let rows = |shape: &[usize]| npy_bytes_of_rows(&[1f32; 12], shape).unwrap();
        assert!(error_of("e.npy", &rows(&[2, 3])).contains("its shape is [2, 2, 3]"));
        assert_eq!(error_of("e.npy", &rows(&[1, 3])), "", "an axis of length 1 changes nothing");
        let path = folder.path().join("e.npy");
        for (shape, is_read) in [(&[2, 3][..], true), (&[1, 2, 3], false)] {
            std::fs::write(&path, rows(shape)).unwrap();
            assert_eq!(VectorFile::open(&path, "values").is_ok(), is_read, "{shape:?}");
        }
        let truncated = npy_bytes(&[1f32; 8], 2).unwrap();
        let path = folder.path().join("c.npy");
        std::fs::write(&path, &truncated[..truncated.len() - 5]).unwrap();
        let Err(error) = VectorFile::open(&path, "keys") else {
            panic!("a truncated file is read")
        };
        assert!(error.to_string().contains("ends before its last row"), "{error}");
    }

    #[test]
    fn a_file_truncated_while_open_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = vec![1f32; 1 << 20];
        let path = folder.path().join("a.npy");
        std::fs::write(&path, npy_bytes(&numbers, 1 << 10).unwrap()).unwrap();
        let tensors = folder.path().join("b.safetensors");
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![1 << 10, 1 << 10], &bytes).unwrap();
        std::fs::write(&tensors, safetensors::serialize([("x", view)], None).unwrap()).unwrap();
        for path in [path, tensors] {
            let mut file = VectorFile::open(&path, "keys").unwrap();
            file.read_rows(1).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
            let error = file.read_rows(1023).unwrap_err().to_string();
            assert!(error.contains("ends before its last row"), "{error}");
        }
    }
}
