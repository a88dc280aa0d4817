//! A segment: rows that were written together and never change.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use engram_entry::Entry;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::codes::{self, Encoder, PANEL_KEYS};
use crate::document::document_hash;
use crate::error::MemoryError;
use crate::format::file::{CheckedFile, FileWriter};
use crate::format::manifest::{Manifest, SegmentRecord, ValueDtype, ValueFormat};
use crate::format::tensor::{MappedTensor, TensorWriter};

/// Rows to be written to a memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// One entry per row.
    pub entries: Vec<Entry>,
    /// Keys, `[rows, width]`.
    pub keys: Vec<f32>,
    /// Values, `[rows, tokens, width]`; empty for a memory without values.
    pub values: Vec<f32>,
}

/// The values of a segment. With int8, each component is a number times the
/// scale of its token.
#[derive(Debug)]
enum Values {
    F16(MappedTensor<f16>),
    Int8 { numbers: MappedTensor<i8>, scales: MappedTensor<f32> },
}

/// A stored value: in the mapped file, or in main memory.
#[derive(Debug, Clone)]
pub(crate) enum StoredValue<'a> {
    F16(Cow<'a, [f16]>),
    Int8 { numbers: Cow<'a, [i8]>, scales: Cow<'a, [f32]> },
}

impl StoredValue<'_> {
    /// Writes the components of the value, `tokens * width`, to `out`.
    pub(crate) fn read(&self, out: &mut [f32]) {
        match self {
            Self::F16(numbers) => numbers.convert_to_f32_slice(out),
            Self::Int8 { numbers, scales } => {
                let width = numbers.len() / scales.len().max(1);
                for ((out, token), scale) in
                    out.chunks_mut(width).zip(numbers.chunks(width)).zip(scales.iter())
                {
                    for (out, number) in out.iter_mut().zip(token) {
                        *out = f32::from(*number) * scale;
                    }
                }
            }
        }
    }

    /// Returns a copy in main memory.
    pub(crate) fn copied(self) -> StoredValue<'static> {
        match self {
            Self::F16(numbers) => StoredValue::F16(Cow::Owned(numbers.into_owned())),
            Self::Int8 { numbers, scales } => StoredValue::Int8 {
                numbers: Cow::Owned(numbers.into_owned()),
                scales: Cow::Owned(scales.into_owned()),
            },
        }
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::F16(numbers) => size_of_val::<[f16]>(numbers),
            Self::Int8 { numbers, scales } => {
                size_of_val::<[i8]>(numbers) + size_of_val::<[f32]>(scales)
            }
        }
    }
}

/// The memory-mapped rows of a segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) rows: usize,
    keys: MappedTensor<f32>,
    /// The panels of [codes](codes) of the keys; `None` if the segment has none.
    codes: Option<MappedTensor<u8>>,
    values: Option<Values>,
    ids: MappedTensor<i64>,
    sources: MappedTensor<u32>,
    /// The number of sources in the manifest; source indices must be below it.
    known_sources: usize,
    are_sources_checked: AtomicBool,
    /// The hash of each row's document; 0 for a row without one.
    documents: MappedTensor<u64>,
    /// The entries as JSON lines.
    entries: CheckedFile,
    /// The offset of each line in `entries`, and the end of the last line.
    offsets: MappedTensor<u64>,
    /// The rows sorted by id; `None` if the ids already ascend.
    by_id: Option<Vec<u32>>,
}

impl Segment {
    pub(crate) fn open(
        memory: &Path,
        record: &SegmentRecord,
        manifest: &Manifest,
    ) -> Result<Self, MemoryError> {
        let folder = memory.join(&record.folder);
        let (rows, folder) = (record.rows, folder.as_path());
        let values = match (manifest.values, &record.values, &record.scales) {
            (Some(format @ ValueFormat { dtype: ValueDtype::F16, .. }), Some(values), _) => {
                let shape = [rows, format.tokens, format.width];
                Some(Values::F16(MappedTensor::open(folder, values, "values", &shape)?))
            }
            (Some(format), Some(values), Some(scales)) => Some(Values::Int8 {
                numbers: MappedTensor::open(
                    folder,
                    values,
                    "values",
                    &[rows, format.tokens, format.width],
                )?,
                scales: MappedTensor::open(folder, scales, "scales", &[rows, format.tokens])?,
            }),
            (None, ..) => None,
            _ => {
                return Err(MemoryError::corrupt(
                    folder,
                    "has no values, but the manifest lists some",
                ));
            }
        };
        let codes = match &record.codes {
            None => None,
            Some(_) if manifest.width > codes::MAX_WIDTH => {
                return Err(MemoryError::corrupt(folder, "has codes of keys that are too wide"));
            }
            Some(codes) => {
                let shape = [rows.div_ceil(PANEL_KEYS), codes::panel_bytes(manifest.width)];
                Some(MappedTensor::open(folder, codes, "codes", &shape)?)
            }
        };
        let ids: MappedTensor<i64> = MappedTensor::open(folder, &record.ids, "ids", &[rows])?;
        let by_id = if record.ids_ascend {
            None
        } else {
            let ids = ids.read(0..rows)?;
            let mut order: Vec<u32> = (0..rows as u32).collect();
            order.sort_unstable_by_key(|row| ids[*row as usize]);
            Some(order)
        };
        Ok(Self {
            rows,
            keys: MappedTensor::open(folder, &record.keys, "keys", &[rows, manifest.width])?,
            codes,
            values,
            ids,
            sources: MappedTensor::open(folder, &record.sources, "sources", &[rows])?,
            known_sources: manifest.sources.len(),
            are_sources_checked: AtomicBool::new(false),
            documents: MappedTensor::open(folder, &record.documents, "documents", &[rows])?,
            entries: CheckedFile::open(folder, &record.entries)?,
            offsets: MappedTensor::open(folder, &record.offsets, "offsets", &[rows + 1])?,
            by_id,
        })
    }

    /// Returns the keys of rows, `[rows, width]`.
    pub(crate) fn keys(&self, rows: Range<usize>) -> Result<&[f32], MemoryError> {
        self.keys.read(rows)
    }

    /// Whether the segment has codes of its keys.
    pub(crate) fn has_codes(&self) -> bool {
        self.codes.is_some()
    }

    /// Returns panels of codes, `[panels, bytes of a panel]`; empty without codes.
    pub(crate) fn panels(&self, panels: Range<usize>) -> Result<&[u8], MemoryError> {
        self.codes.as_ref().map_or(Ok(&[]), |codes| codes.read(panels))
    }

    pub(crate) fn ids(&self) -> Result<&[i64], MemoryError> {
        self.ids.read(0..self.rows)
    }

    /// Returns the index of each row's source in the manifest's list. Checks that the indices are
    /// within the list.
    pub(crate) fn sources(&self) -> Result<&[u32], MemoryError> {
        let sources = self.sources.read(0..self.rows)?;
        if !self.are_sources_checked.load(Ordering::Acquire) {
            let known = self.known_sources;
            if let Some(row) = sources.iter().position(|source| *source as usize >= known) {
                let reason = format!("row {row} has source {} of {known}", sources[row]);
                return Err(self.sources.corrupt(reason));
            }
            self.are_sources_checked.store(true, Ordering::Release);
        }
        Ok(sources)
    }

    pub(crate) fn documents(&self) -> Result<&[u64], MemoryError> {
        self.documents.read(0..self.rows)
    }

    /// Returns the row of an id; `None` if the segment does not have the id.
    pub(crate) fn row_of(&self, id: i64) -> Result<Option<usize>, MemoryError> {
        let ids = self.ids()?;
        Ok(match &self.by_id {
            None => ids.binary_search(&id).ok(),
            Some(order) => {
                let position = order.binary_search_by_key(&id, |row| ids[*row as usize]);
                position.ok().map(|position| order[position] as usize)
            }
        })
    }

    pub(crate) fn entry(&self, row: usize) -> Result<Entry, MemoryError> {
        let offsets = self.offsets.read(row..row + 2)?;
        let line = self.entries.bytes(offsets[0] as usize..offsets[1] as usize)?;
        serde_json::from_slice(line).map_err(|error| {
            MemoryError::corrupt(self.entries.path(), format!("row {row} is not an entry: {error}"))
        })
    }

    /// Returns the stored value of a row; empty if the memory has no values.
    pub(crate) fn value(&self, row: usize) -> Result<StoredValue<'_>, MemoryError> {
        Ok(match &self.values {
            None => StoredValue::F16(Cow::Borrowed(&[])),
            Some(Values::F16(values)) => {
                StoredValue::F16(Cow::Borrowed(values.read(row..row + 1)?))
            }
            Some(Values::Int8 { numbers, scales }) => StoredValue::Int8 {
                numbers: Cow::Borrowed(numbers.read(row..row + 1)?),
                scales: Cow::Borrowed(scales.read(row..row + 1)?),
            },
        })
    }

    /// Checks every file against its checksums. Returns one result per file, in a fixed order.
    pub(crate) fn verify(&self) -> Vec<Result<(), MemoryError>> {
        let mut results = vec![self.keys.verify()];
        results.extend(self.codes.as_ref().map(MappedTensor::verify));
        match &self.values {
            None => {}
            Some(Values::F16(values)) => results.push(values.verify()),
            Some(Values::Int8 { numbers, scales }) => {
                results.extend([numbers.verify(), scales.verify()]);
            }
        }
        results.extend([
            self.ids.verify(),
            self.sources.verify(),
            self.documents.verify(),
            self.entries.verify(),
            self.offsets.verify(),
        ]);
        results
    }
}

/// Writes values to files.
enum ValueWriter {
    F16(Box<TensorWriter<f16>>),
    Int8(Box<(TensorWriter<i8>, TensorWriter<f32>)>),
}

impl ValueWriter {
    /// Creates `values.safetensors`, and `scales.safetensors` for int8 values.
    fn create(folder: &Path, rows: usize, format: ValueFormat) -> Result<Self, MemoryError> {
        let (path, shape) =
            (folder.join("values.safetensors"), [rows, format.tokens, format.width]);
        Ok(match format.dtype {
            ValueDtype::F16 => Self::F16(Box::new(TensorWriter::create(path, "values", &shape)?)),
            ValueDtype::Int8 => {
                let numbers = TensorWriter::create(path, "values", &shape)?;
                let (path, shape) = (folder.join("scales.safetensors"), [rows, format.tokens]);
                Self::Int8(Box::new((numbers, TensorWriter::create(path, "scales", &shape)?)))
            }
        })
    }

    /// Appends the values of whole rows, `[rows, tokens, width]` in row-major order.
    fn write(&mut self, values: &[f32], width: usize) -> Result<(), MemoryError> {
        match self {
            Self::F16(writer) => {
                let mut numbers = vec![f16::ZERO; values.len()];
                numbers.convert_from_f32_slice(values);
                writer.write(&numbers)
            }
            Self::Int8(writers) => {
                let (numbers, scales) = &mut **writers;
                for token in values.chunks(width) {
                    let max_abs = token.iter().fold(0f32, |max, value| max.max(value.abs()));
                    let scale = max_abs / f32::from(i8::MAX);
                    let number =
                        |value: &f32| if scale > 0.0 { (value / scale).round() as i8 } else { 0 };
                    numbers.write(&token.iter().map(number).collect::<Vec<_>>())?;
                    scales.write(&[scale])?;
                }
                Ok(())
            }
        }
    }
}

/// Writes the `rows` rows of `batches` to `folder`, which the segment's record names `name`.
/// `source_index` returns a source's index in the manifest's list.
///
/// Keys are normalised to unit length if the memory is normalised.
pub(crate) fn write_segment(
    folder: &Path,
    name: &str,
    manifest: &Manifest,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    mut source_index: impl FnMut(&str) -> u32,
) -> Result<SegmentRecord, MemoryError> {
    let tensor = |file: &str| folder.join(format!("{file}.safetensors"));
    let mut keys = TensorWriter::<f32>::create(tensor("keys"), "keys", &[rows, manifest.width])?;
    let mut codes = if codes::has_codes(rows, manifest.width) {
        let shape = [rows.div_ceil(PANEL_KEYS), codes::panel_bytes(manifest.width)];
        let writer = TensorWriter::<u8>::create(tensor("codes"), "codes", &shape)?;
        Some((writer, Encoder::new(manifest.width)))
    } else {
        None
    };
    let mut values = match manifest.values {
        Some(format) => Some((ValueWriter::create(folder, rows, format)?, format)),
        None => None,
    };
    let mut lines = FileWriter::create(folder.join("entries.jsonl"))?;
    let (mut ids, mut sources, mut documents) = (Vec::new(), Vec::new(), Vec::new());
    let (mut offsets, mut end) = (vec![0u64], 0);
    let (mut longest_key, mut largest_rounding) = (0f32, 0f64);
    for batch in batches {
        let Batch { entries, keys: mut batch_keys, values: batch_values } = batch?;
        let first_row = ids.len();
        check_count("key components", entries.len() * manifest.width, batch_keys.len())?;
        for (row, key) in batch_keys.chunks_mut(manifest.width).enumerate() {
            longest_key = longest_key.max(check_key(first_row + row, key, manifest.normalised)?);
            largest_rounding = largest_rounding.max(rounding_error(key));
        }
        keys.write(&batch_keys)?;
        if let Some((writer, encoder)) = &mut codes {
            writer.write(&encoder.encode(&batch_keys))?;
        }
        let size = manifest.value_len();
        check_count("value components", entries.len() * size, batch_values.len())?;
        if let Some((writer, format)) = &mut values {
            check_values(first_row, &batch_values, size, format.dtype)?;
            writer.write(&batch_values, format.width)?;
        }
        for entry in &entries {
            ids.push(entry.id);
            sources.push(source_index(&entry.source));
            documents.push(entry.document.as_deref().map_or(0, document_hash));
            let mut line = serde_json::to_vec(entry)
                .map_err(|error| MemoryError::write(folder)(error.into()))?;
            line.push(b'\n');
            end += line.len() as u64;
            offsets.push(end);
            lines.write(&line)?;
        }
    }
    check_count("entries", rows, ids.len())?;
    let codes = match codes {
        None => None,
        Some((mut writer, encoder)) => {
            writer.write(&encoder.finish())?;
            Some(writer.finish()?)
        }
    };
    let (values, scales) = match values {
        None => (None, None),
        Some((ValueWriter::F16(values), _)) => (Some(values.finish()?), None),
        Some((ValueWriter::Int8(writers), _)) => {
            let (numbers, scales) = *writers;
            (Some(numbers.finish()?), Some(scales.finish()?))
        }
    };
    let mut columns = (
        TensorWriter::<i64>::create(tensor("ids"), "ids", &[rows])?,
        TensorWriter::<u32>::create(tensor("sources"), "sources", &[rows])?,
        TensorWriter::<u64>::create(tensor("documents"), "documents", &[rows])?,
        TensorWriter::<u64>::create(tensor("offsets"), "offsets", &[rows + 1])?,
    );
    columns.0.write(&ids)?;
    columns.1.write(&sources)?;
    columns.2.write(&documents)?;
    columns.3.write(&offsets)?;
    Ok(SegmentRecord {
        folder: name.to_owned(),
        rows,
        longest_key,
        // The conversion to f32 may round down.
        largest_rounding: (largest_rounding as f32).next_up(),
        ids_ascend: ids.windows(2).all(|pair| pair[0] < pair[1]),
        keys: keys.finish()?,
        codes,
        values,
        scales,
        ids: columns.0.finish()?,
        sources: columns.1.finish()?,
        documents: columns.2.finish()?,
        entries: lines.finish()?,
        offsets: columns.3.finish()?,
        deleted: None,
        graph: None,
    })
}

fn check_count(what: &'static str, expected: usize, found: usize) -> Result<(), MemoryError> {
    if expected == found {
        return Ok(());
    }
    Err(MemoryError::Count { what, expected, found })
}

/// Returns the norm of the error of rounding a key to bfloat16, which older programs read. The key
/// must be finite.
fn rounding_error(key: &[f32]) -> f64 {
    let squared_error = |number: &f32| {
        let rounded = half::bf16::from_f32(*number).to_f64();
        (f64::from(*number) - rounded).powi(2)
    };
    key.iter().map(squared_error).sum::<f64>().sqrt()
}

/// Checks a key, normalises it to unit length if `normalise` is set, and returns its norm.
fn check_key(row: usize, key: &mut [f32], normalise: bool) -> Result<f32, MemoryError> {
    let bad_key = |reason| MemoryError::BadVector { what: "the key of row", row, reason };
    if key.iter().any(|number| !number.is_finite()) {
        return Err(bad_key("contains NaN or infinity"));
    }
    let norm = key.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if normalise {
        if norm == 0.0 {
            return Err(bad_key("is a zero vector"));
        }
        // An already normalised key stays unchanged, so rewriting it does not change scores.
        if (norm - 1.0).abs() > f64::from(f32::EPSILON) {
            key.iter_mut().for_each(|number| *number = (f64::from(*number) / norm) as f32);
        }
        return Ok(1.0);
    }
    // With longer keys, products of keys and queries could overflow.
    if norm > 1e18 {
        return Err(bad_key("has a norm above 1e18"));
    }
    Ok(norm as f32)
}

/// Checks that all values of `size` components fit their number type. `first_row` is the row of the
/// first value.
fn check_values(
    first_row: usize,
    values: &[f32],
    size: usize,
    dtype: ValueDtype,
) -> Result<(), MemoryError> {
    let max_abs = match dtype {
        ValueDtype::F16 => f16::MAX.to_f32(),
        ValueDtype::Int8 => f32::MAX,
    };
    let fits = |value: &f32| value.abs() <= max_abs;
    match values.iter().position(|value| !fits(value)) {
        None => Ok(()),
        Some(index) => Err(MemoryError::BadVector {
            what: "the value of row",
            row: first_row + index / size,
            reason: "contains NaN, infinity or a number beyond the f16 range",
        }),
    }
}
