//! Writes segments: as one part of a pack, or as one file per column.

use std::path::{Path, PathBuf};

use crate::codes::{self, Encoder, PANEL_KEYS};
use crate::encoded::{EncodedRows, KeyBounds};
use crate::error::MemoryError;
use crate::format::file::{FileRecord, FileWriter};
use crate::format::manifest::{Manifest, SegmentRecord};
use crate::format::tensor::{TensorFileBytes, TensorWriter};
use crate::values::columns::ValueWriter;

/// The maximum number of rows of a segment in a pack.
const MAX_PACK_ROWS: usize = 1 << 16;
/// The maximum size of the numbers of a segment in a pack, and of its entries, in bytes. Packs are
/// written from main memory.
pub(crate) const MAX_PACK_BYTES: usize = 1 << 25;

/// Whether a segment with this many rows is written to a pack.
pub(crate) fn fits_pack(rows: usize, manifest: &Manifest) -> bool {
    // At most 5 bytes per component, with its code, and 48 bytes for other numbers.
    let row_bytes = (manifest.width + manifest.value_len()).saturating_mul(5).saturating_add(48);
    rows <= MAX_PACK_ROWS && rows.saturating_mul(row_bytes) <= MAX_PACK_BYTES
}

/// Returns the bytes of a segment for a pack: a safetensors file with one tensor per column. Columns
/// of larger numbers come first, so that all are aligned.
pub(crate) fn pack_segment(rows: &EncodedRows, manifest: &Manifest) -> Vec<u8> {
    let (num_rows, width) = (rows.len(), manifest.width);
    let mut file = TensorFileBytes::default();
    if codes::has_codes(num_rows, width) {
        let mut encoder = Encoder::new(width);
        let mut panels = encoder.encode(&rows.keys);
        panels.extend(encoder.finish());
        file.push("codes", &[num_rows.div_ceil(PANEL_KEYS), codes::panel_bytes(width)], &panels);
    }
    file.push("ids", &[num_rows], &rows.ids);
    file.push("documents", &[num_rows], &rows.documents);
    file.push("offsets", &[num_rows + 1], &rows.offsets);
    file.push("keys", &[num_rows, width], &rows.keys);
    file.push("sources", &[num_rows], &rows.sources);
    rows.values.push_to(&mut file, num_rows);
    file.push("entries", &[rows.lines.len()], &rows.lines);
    file.into_bytes()
}

/// Returns the record of a segment in a pack. `name` is the name of its generation.
pub(crate) fn pack_record(
    name: &str,
    ids: &[i64],
    bounds: KeyBounds,
    pack: FileRecord,
) -> SegmentRecord {
    SegmentRecord {
        folder: name.to_owned(),
        rows: ids.len(),
        longest_key: bounds.longest_key,
        largest_rounding: bounds.largest_rounding,
        ids_ascend: ascend(ids),
        pack: Some(pack),
        keys: None,
        codes: None,
        values: None,
        scales: None,
        values_at: None,
        ids: None,
        order: None,
        sources: None,
        documents: None,
        entries: None,
        offsets: None,
        deleted: None,
        graph: None,
    }
}

fn ascend(ids: &[i64]) -> bool {
    ids.windows(2).all(|pair| pair[0] < pair[1])
}

/// Writes a segment as one file per column, chunk by chunk.
pub(crate) struct SegmentWriter {
    folder: PathBuf,
    rows: usize,
    keys: TensorWriter<f32>,
    codes: Option<(TensorWriter<u8>, Encoder)>,
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
        let keys = TensorWriter::of_column(folder, "keys", &[rows, manifest.width])?;
        let codes = if codes::has_codes(rows, manifest.width) {
            let shape = [rows.div_ceil(PANEL_KEYS), codes::panel_bytes(manifest.width)];
            let writer = TensorWriter::of_column(folder, "codes", &shape)?;
            Some((writer, Encoder::new(manifest.width)))
        } else {
            None
        };
        let values = manifest.values;
        let values = values.map(|format| ValueWriter::create(folder, format, rows)).transpose()?;
        Ok(Self {
            rows,
            keys,
            codes,
            values,
            lines: FileWriter::create(folder.join("entries.jsonl"))?,
            ids: Vec::new(),
            sources: Vec::new(),
            documents: Vec::new(),
            offsets: vec![0],
            folder: folder.to_owned(),
        })
    }

    /// Appends rows.
    pub(crate) fn push(&mut self, rows: &EncodedRows) -> Result<(), MemoryError> {
        self.keys.write(&rows.keys)?;
        if let Some((writer, encoder)) = &mut self.codes {
            writer.write(&encoder.encode(&rows.keys))?;
        }
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
        self,
        name: &str,
        bounds: KeyBounds,
    ) -> Result<SegmentRecord, MemoryError> {
        let (folder, rows) = (self.folder, self.rows);
        let codes = match self.codes {
            None => None,
            Some((mut writer, encoder)) => {
                writer.write(&encoder.finish())?;
                Some(writer.finish()?)
            }
        };
        let (values, scales) = match self.values {
            None => (None, None),
            Some(values) => {
                let (numbers, scales) = values.finish()?;
                (Some(numbers), scales)
            }
        };
        let ids_ascend = ascend(&self.ids);
        let order = if ids_ascend {
            None
        } else {
            let mut order: Vec<u32> = (0..rows as u32).collect();
            order.sort_unstable_by_key(|row| self.ids[*row as usize]);
            Some(TensorWriter::write_column(&folder, "order", &[rows], &order)?)
        };
        Ok(SegmentRecord {
            folder: name.to_owned(),
            rows,
            longest_key: bounds.longest_key,
            largest_rounding: bounds.largest_rounding,
            ids_ascend,
            pack: None,
            keys: Some(self.keys.finish()?),
            codes,
            values,
            scales,
            values_at: None,
            ids: Some(TensorWriter::write_column(&folder, "ids", &[rows], &self.ids)?),
            order,
            sources: Some(TensorWriter::write_column(&folder, "sources", &[rows], &self.sources)?),
            documents: Some(TensorWriter::write_column(
                &folder,
                "documents",
                &[rows],
                &self.documents,
            )?),
            entries: Some(self.lines.finish()?),
            offsets: Some(TensorWriter::write_column(
                &folder,
                "offsets",
                &[rows + 1],
                &self.offsets,
            )?),
            deleted: None,
            graph: None,
        })
    }
}
