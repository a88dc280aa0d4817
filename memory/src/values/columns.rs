//! The columns of a segment with values of any number type.

use std::borrow::Cow;
use std::path::Path;

use super::{StoredValue, ValueFormat};
use crate::error::MemoryError;
use crate::format::file::FileRecord;
use crate::format::tensor::{MappedTensor, TensorFileBytes, TensorWriter};
use crate::segment::Columns;

/// The names of the columns.
const NUMBERS: &str = "values";
const SCALES: &str = "scales";

/// Values in main memory, as a segment stores them.
#[derive(Debug)]
pub(crate) struct EncodedValues {
    /// `None` for a memory without values.
    format: Option<ValueFormat>,
    numbers: Vec<u8>,
    scales: Vec<u8>,
}

impl EncodedValues {
    /// Creates an empty list of values.
    pub(crate) fn new(format: Option<ValueFormat>) -> Self {
        Self { format, numbers: Vec::new(), scales: Vec::new() }
    }

    /// Appends a stored value, which has the same format.
    pub(crate) fn push(&mut self, value: &StoredValue<'_>) {
        self.numbers.extend_from_slice(&value.numbers);
        self.scales.extend_from_slice(&value.scales);
    }

    /// Encodes and appends the components of whole values, `[rows, tokens, width]`.
    pub(crate) fn encode(&mut self, components: &[f32]) {
        if let Some(ValueFormat { width, dtype, .. }) = self.format {
            dtype.codec().encode(width, components, &mut self.numbers, &mut self.scales);
        }
    }

    /// Returns the value of a row.
    pub(crate) fn value(&self, row: usize) -> StoredValue<'_> {
        let (numbers, scales) = self.format.map_or((0, 0), |format| format.row_bytes());
        StoredValue {
            format: self.format,
            numbers: Cow::Borrowed(&self.numbers[row * numbers..(row + 1) * numbers]),
            scales: Cow::Borrowed(&self.scales[row * scales..(row + 1) * scales]),
        }
    }

    /// Adds the columns of `rows` values to the file of a segment in a pack.
    pub(crate) fn push_to(&self, file: &mut TensorFileBytes, rows: usize) {
        let Some(format) = self.format else { return };
        if let Some((dtype, shape)) = format.scales(rows) {
            file.push_bytes(SCALES, dtype, &shape, &self.scales);
        }
        let (dtype, shape) = format.numbers(rows);
        file.push_bytes(NUMBERS, dtype, &shape, &self.numbers);
    }
}

/// The memory-mapped values of a segment.
#[derive(Debug)]
pub(crate) struct MappedValues {
    format: ValueFormat,
    numbers: MappedTensor<u8>,
    scales: Option<MappedTensor<u8>>,
}

impl MappedValues {
    pub(crate) fn open(
        columns: &Columns<'_>,
        rows: usize,
        format: ValueFormat,
    ) -> Result<Self, MemoryError> {
        let (dtype, shape) = format.numbers(rows);
        let numbers = columns.tensor_file(NUMBERS)?.bytes(NUMBERS, dtype, &shape)?;
        let scales = match format.scales(rows) {
            None => None,
            Some((dtype, shape)) => {
                Some(columns.tensor_file(SCALES)?.bytes(SCALES, dtype, &shape)?)
            }
        };
        Ok(Self { format, numbers, scales })
    }

    /// Returns the value of a row.
    pub(crate) fn value(&self, row: usize) -> Result<StoredValue<'_>, MemoryError> {
        let scales = self.scales.as_ref().map_or(Ok(&[][..]), |scales| scales.read(row..row + 1));
        Ok(StoredValue {
            format: Some(self.format),
            numbers: Cow::Borrowed(self.numbers.read(row..row + 1)?),
            scales: Cow::Borrowed(scales?),
        })
    }

    /// Checks every file against its checksums. Returns one result per file.
    pub(crate) fn verify(&self) -> impl Iterator<Item = Result<(), MemoryError>> {
        [&self.numbers].into_iter().chain(&self.scales).map(MappedTensor::verify)
    }
}

/// Writes the values of a segment as one file per column.
pub(crate) struct ValueWriter {
    numbers: TensorWriter,
    scales: Option<TensorWriter>,
}

impl ValueWriter {
    /// Creates the files of `rows` values.
    pub(crate) fn create(
        folder: &Path,
        format: ValueFormat,
        rows: usize,
    ) -> Result<Self, MemoryError> {
        let (dtype, shape) = format.numbers(rows);
        let numbers = TensorWriter::of_column(folder, NUMBERS, dtype, &shape)?;
        let scales = match format.scales(rows) {
            None => None,
            Some((dtype, shape)) => Some(TensorWriter::of_column(folder, SCALES, dtype, &shape)?),
        };
        Ok(Self { numbers, scales })
    }

    /// Appends values of the same format.
    pub(crate) fn push(&mut self, values: &EncodedValues) -> Result<(), MemoryError> {
        self.numbers.write_bytes(&values.numbers)?;
        self.scales.as_mut().map_or(Ok(()), |scales| scales.write_bytes(&values.scales))
    }

    /// Returns the records of the numbers and of the scales.
    pub(crate) fn finish(self) -> Result<(FileRecord, Option<FileRecord>), MemoryError> {
        Ok((self.numbers.finish()?, self.scales.map(TensorWriter::finish).transpose()?))
    }
}
