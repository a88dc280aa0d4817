//! Writes segments: as one part of a pack, or as one file per column.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::codes::{self, Encoder};
use crate::encoded::EncodedRows;
use crate::error::MemoryError;
use crate::format::file::{FileRecord, FileWriter};
use crate::format::manifest::{Manifest, ORDER, SegmentRecord};
use crate::format::tensor::{Number, TensorFileBytes, TensorWriter, write_tensor};
use crate::values::columns::ValueWriter;

/// The maximum number of rows of a segment in a pack.
const MAX_PACK_ROWS: usize = 1 << 16;
/// The maximum size in bytes of a segment's numbers in a pack, and likewise of its entries. It is
/// limited because packs are written from main memory.
pub(crate) const MAX_PACK_BYTES: usize = 1 << 25;

/// Whether a segment with this many rows is written to a pack.
pub(crate) fn fits_pack(rows: usize, manifest: &Manifest) -> bool {
    // At most 5 bytes per component, with its code, and 48 bytes for other numbers.
    let row_bytes = (manifest.width + manifest.value_len()).saturating_mul(5).saturating_add(48);
    rows <= MAX_PACK_ROWS && rows.saturating_mul(row_bytes) <= MAX_PACK_BYTES
}

/// Returns the bytes of a segment for a pack: a safetensors file with one tensor per column.
/// Columns of larger numbers come first, so that all are aligned.
pub(crate) fn pack_segment(rows: &EncodedRows, manifest: &Manifest) -> Vec<u8> {
    let (num_rows, width) = (rows.len(), manifest.width);
    let mut file = TensorFileBytes::default();
    let mut encoder = Encoder::new(width);
    let mut panels = encoder.encode(&rows.keys);
    panels.extend(encoder.finish());
    file.push("codes", &codes::shape(num_rows, width), &panels);
    file.push("ids", &[num_rows], &rows.ids);
    file.push("documents", &[num_rows], &rows.documents);
    file.push("offsets", &[num_rows + 1], &rows.offsets);
    file.push("keys", &[num_rows, width], &rows.keys);
    file.push("sources", &[num_rows], &rows.sources);
    rows.values.push_to(&mut file, num_rows);
    file.push("entries", &[rows.lines.len()], &rows.lines);
    file.into_bytes()
}

/// Returns the record of a segment of the generation `name`, without files of columns.
pub(crate) fn segment_record(
    name: &str,
    rows: usize,
    longest_key: f32,
    pack: Option<FileRecord>,
) -> SegmentRecord {
    SegmentRecord {
        folder: name.to_owned(),
        rows,
        longest_key,
        pack,
        columns: BTreeMap::new(),
        values_at: None,
        deleted: None,
        graph: None,
    }
}

/// Writes a segment as one file per column, chunk by chunk.
pub(crate) struct SegmentWriter {
    folder: PathBuf,
    rows: usize,
    keys: TensorWriter,
    codes: TensorWriter,
    encoder: Encoder,
    values: Option<ValueWriter>,
    lines: FileWriter,
    ids: Vec<i64>,
    sources: Vec<u32>,
    documents: Vec<u64>,
    offsets: Vec<u64>,
}

impl SegmentWriter {
    /// Creates the files of a segment of `rows` rows.
    pub(crate) fn create(
        folder: &Path,
        rows: usize,
        manifest: &Manifest,
    ) -> Result<Self, MemoryError> {
        let keys = TensorWriter::of_column(folder, "keys", Dtype::F32, &[rows, manifest.width])?;
        let codes = codes::shape(rows, manifest.width);
        let codes = TensorWriter::of_column(folder, "codes", Dtype::U8, &codes)?;
        let values = manifest.values;
        let values = values.map(|format| ValueWriter::create(folder, format, rows)).transpose()?;
        Ok(Self {
            rows,
            keys,
            codes,
            encoder: Encoder::new(manifest.width),
            values,
            lines: FileWriter::create(folder.join("entries.jsonl"))?,
            ids: Vec::new(),
            sources: Vec::new(),
            documents: Vec::new(),
            offsets: vec![0],
            folder: folder.to_owned(),
        })
    }

    pub(crate) fn push(&mut self, rows: &EncodedRows) -> Result<(), MemoryError> {
        self.keys.write(&rows.keys)?;
        self.codes.write(&self.encoder.encode(&rows.keys))?;
        if let Some(writer) = &mut self.values {
            writer.push(&rows.values)?;
        }
        self.lines.write(&rows.lines)?;
        self.ids.extend(&rows.ids);
        self.sources.extend(&rows.sources);
        self.documents.extend(&rows.documents);
        let end = self.offsets.last().copied().unwrap_or(0);
        self.offsets.extend(rows.offsets[1..].iter().map(|offset| end + offset));
        Ok(())
    }

    /// Writes the other columns. Returns the record of the segment; `name` is the name of its
    /// generation.
    pub(crate) fn finish(
        mut self,
        name: &str,
        longest_key: f32,
    ) -> Result<SegmentRecord, MemoryError> {
        fn write<T: Number>(
            folder: &Path,
            name: &'static str,
            numbers: &[T],
        ) -> Result<(&'static str, FileRecord), MemoryError> {
            let path = folder.join(format!("{name}.safetensors"));
            Ok((name, write_tensor(path, name, &[numbers.len()], numbers)?))
        }
        let (folder, rows) = (&self.folder, self.rows);
        self.codes.write(&self.encoder.finish())?;
        let mut columns = vec![
            ("keys", self.keys.finish()?),
            ("codes", self.codes.finish()?),
            ("entries", self.lines.finish()?),
            write(folder, "ids", &self.ids)?,
            write(folder, "sources", &self.sources)?,
            write(folder, "documents", &self.documents)?,
            write(folder, "offsets", &self.offsets)?,
        ];
        if let Some(values) = self.values {
            let (numbers, scales) = values.finish()?;
            columns.push(("values", numbers));
            columns.extend(scales.map(|scales| ("scales", scales)));
        }
        if !self.ids.is_sorted() {
            let mut order: Vec<u32> = (0..rows as u32).collect();
            order.sort_unstable_by_key(|row| self.ids[*row as usize]);
            columns.push(write(folder, ORDER, &order)?);
        }
        let columns = columns.into_iter().map(|(name, file)| (name.to_owned(), file)).collect();
        Ok(SegmentRecord { columns, ..segment_record(name, rows, longest_key, None) })
    }
}
