//! A change of some rows: new rows, deleted rows, and the segments that are merged with them.

use std::path::Path;
use std::sync::Arc;

use crate::change::copied_rows;
use crate::encoded::EncodedRows;
use crate::error::MemoryError;
use crate::format::file::{FileRecord, FileWriter, hex};
use crate::format::manifest::{
    DeletedBits, DeletedFile, DeletedRecord, Manifest, SegmentRecord, folder_name,
};
use crate::format::pack::Pack;
use crate::generation::{Bits, Generation, Row};
use crate::keep_graphs::builds_graph;
use crate::merge::{SegmentSize, choose};
use crate::segment_writer::{
    MAX_PACK_BYTES, SegmentWriter, fits_pack, pack_segment, segment_record,
};
use crate::values::StoredValue;

/// Segments of at most this many rows have their deleted rows in the manifest: at most 8 KiB.
const MAX_INLINE_ROWS: usize = 1 << 16;

/// The file or folder of a change.
pub(crate) enum Target<'a> {
    Pack(&'a mut Pack),
    Folder(&'a Path),
}

impl Target<'_> {
    /// Writes the deleted rows of segment `number`.
    fn write_bits(&mut self, number: usize, bits: &Bits) -> Result<FileRecord, MemoryError> {
        match self {
            Self::Pack(pack) => Ok(pack.push(&bits.0)),
            Self::Folder(folder) => {
                let mut file = FileWriter::create(folder.join(format!("deleted-{number}.bits")))?;
                file.write(&bits.0)?;
                file.finish()
            }
        }
    }
}

/// The segments of a generation after a change.
pub(crate) struct Edit {
    generation: Arc<Generation>,
    /// The deleted rows of each segment after the change; `None` if the change deletes none of its
    /// rows.
    deleted: Vec<Option<Bits>>,
    /// For each segment, the number of its rows that remain.
    live_rows: Vec<usize>,
    /// For each segment, whether its remaining rows move to the new segment.
    merged: Vec<bool>,
}

impl Edit {
    /// Deletes rows of a generation. No segments are merged.
    pub(crate) fn new(generation: &Arc<Generation>, deleted_rows: &[Row]) -> Self {
        let mut deleted: Vec<Option<Bits>> = vec![None; generation.parts().len()];
        for row in deleted_rows {
            let index = generation.part_index(*row);
            let part = &generation.parts()[index];
            let bits = deleted[index].get_or_insert_with(|| {
                part.deleted.clone().unwrap_or_else(|| Bits::zeros(part.segment.rows))
            });
            bits.set(row.0 as usize - part.start);
        }
        let records = generation.manifest().segments.iter().zip(&deleted);
        let live_rows = records.map(|(record, deleted)| {
            deleted.as_ref().map_or_else(|| record.live_rows(), |bits| record.rows - bits.count())
        });
        Self {
            live_rows: live_rows.collect(),
            merged: vec![false; deleted.len()],
            deleted,
            generation: Arc::clone(generation),
        }
    }

    /// Chooses the segments that are merged with `new_rows` new rows, so that at most
    /// `max_segments` segments remain.
    pub(crate) fn merge(mut self, new_rows: usize, max_segments: usize) -> Self {
        let records = self.generation.manifest().segments.iter().zip(&self.live_rows).enumerate();
        // Empty segments are dropped in any case.
        let remaining = records.filter(|(_, (_, live_rows))| **live_rows > 0);
        let (indices, sizes): (Vec<usize>, Vec<SegmentSize>) = remaining
            .map(|(index, (record, live_rows))| {
                let (rows, has_graph) = (record.rows, record.graph.is_some());
                (index, SegmentSize { rows, live_rows: *live_rows, has_graph })
            })
            .unzip();
        for (index, is_chosen) in indices.into_iter().zip(choose(&sizes, new_rows, max_segments)) {
            self.merged[index] = is_chosen;
        }
        self
    }

    /// Returns the number of rows of the new segment: `new_rows` and the merged rows.
    pub(crate) fn output_rows(&self, new_rows: usize) -> usize {
        let merged = self.live_rows.iter().zip(&self.merged);
        new_rows + merged.filter(|(_, merged)| **merged).map(|(rows, _)| rows).sum::<usize>()
    }

    /// Reduces the segments of `manifest` to those that the change keeps, without the new segment.
    pub(crate) fn write_remaining(
        &self,
        manifest: &mut Manifest,
        target: &mut Target<'_>,
    ) -> Result<(), MemoryError> {
        let name = folder_name(manifest.generation);
        let mut segments: Vec<SegmentRecord> = Vec::new();
        for (index, record) in self.generation.manifest().segments.iter().enumerate() {
            if self.live_rows[index] == 0 || self.merged[index] {
                continue;
            }
            let mut record = record.clone();
            if let Some(bits) = &self.deleted[index] {
                let rows = bits.count();
                record.deleted = Some(if record.rows <= MAX_INLINE_ROWS {
                    DeletedRecord::Inline(DeletedBits { rows, hex: hex(&bits.0) })
                } else {
                    let bits = target.write_bits(segments.len(), bits)?;
                    DeletedRecord::File(DeletedFile { folder: name.clone(), rows, bits })
                });
            }
            segments.push(record);
        }
        manifest.segments = segments;
        Ok(())
    }

    /// Writes a segment of `new` rows and the rows of merged segments, sorted by id, and adds it to
    /// the manifest. Adds nothing if there are no such rows.
    pub(crate) fn write_new(
        &self,
        manifest: &mut Manifest,
        target: &mut Target<'_>,
        new: &EncodedRows,
        mut longest_key: f32,
    ) -> Result<(), MemoryError> {
        let mut origins = Vec::with_capacity(self.output_rows(new.len()));
        for (index, part) in self.generation.parts().iter().enumerate() {
            if !self.merged[index] || self.live_rows[index] == 0 {
                continue;
            }
            let record = &self.generation.manifest().segments[index];
            longest_key = longest_key.max(record.longest_key);
            let deleted = self.deleted[index].as_ref().or(part.deleted.as_ref());
            let ids = part.segment.ids()?.iter().enumerate();
            let live = ids.filter(|(row, _)| !deleted.is_some_and(|deleted| deleted.get(*row)));
            origins.extend(live.map(|(row, id)| Origin { id: *id, segment: Some(index), row }));
        }
        let ids = new.ids.iter().enumerate();
        origins.extend(ids.map(|(row, id)| Origin { id: *id, segment: None, row }));
        origins.sort_unstable();
        if origins.is_empty() {
            return Ok(());
        }
        let name = folder_name(manifest.generation);
        let record = match target {
            Target::Pack(pack) => {
                let rows = self.gather(manifest, new, &origins)?;
                let part = pack.push(&pack_segment(&rows, manifest));
                segment_record(&name, rows.len(), longest_key, Some(part))
            }
            Target::Folder(folder) => {
                let mut writer = SegmentWriter::create(folder, origins.len(), manifest)?;
                for origins in origins.chunks(copied_rows(manifest)) {
                    writer.push(&self.gather(manifest, new, origins)?)?;
                }
                writer.finish(&name, longest_key)?
            }
        };
        manifest.segments.push(record);
        Ok(())
    }

    /// Copies rows of the merged segments and of the new rows.
    fn gather(
        &self,
        manifest: &Manifest,
        new: &EncodedRows,
        origins: &[Origin],
    ) -> Result<EncodedRows, MemoryError> {
        let mut rows = EncodedRows::new(manifest);
        let parts = self.generation.parts();
        let is_external = |index: &usize| parts[*index].values_at.is_some();
        let external = origins.iter().filter_map(|Origin { segment, row, .. }| {
            let index = segment.filter(is_external)?;
            Some(Row((parts[index].start + row) as u32))
        });
        let mut values = self.generation.read_external_values(&external.collect::<Vec<_>>())?;
        values.sort_unstable_by_key(|(index, _)| *index);
        let mut values = values.iter();
        for Origin { segment, row, .. } in origins {
            match segment {
                None => rows.push(&new.row(*row)),
                Some(index) => {
                    let mut row = parts[*index].segment.encoded_row(*row)?;
                    if is_external(index)
                        && let Some((_, value)) = values.next()
                    {
                        row.value = StoredValue::clone(value);
                    }
                    rows.push(&row);
                }
            }
        }
        Ok(rows)
    }

    /// Whether the change builds a graph.
    pub(crate) fn builds_graph(&self, new_rows: usize) -> bool {
        let manifest = self.generation.manifest();
        let states = self.live_rows.iter().zip(&self.merged);
        let remains = manifest.segments.iter().zip(states);
        let remaining = remains.filter(|(_, (rows, merged))| **rows > 0 && !**merged);
        builds_graph(manifest, remaining.map(|(record, _)| record), self.output_rows(new_rows))
    }

    /// Whether the change can be written as a pack: it is small and builds no graph.
    pub(crate) fn fits_pack(&self, new: &EncodedRows) -> Result<bool, MemoryError> {
        let mut line_bytes = new.lines.len();
        for (part, _) in self.generation.parts().iter().zip(&self.merged).filter(|(_, is)| **is) {
            line_bytes = line_bytes.saturating_add(part.segment.line_bytes()?);
        }
        let fits = fits_pack(self.output_rows(new.len()), self.generation.manifest());
        Ok(fits && line_bytes <= MAX_PACK_BYTES && !self.builds_graph(new.len()))
    }

    /// Whether any segment is merged.
    pub(crate) fn merges(&self) -> bool {
        self.merged.contains(&true)
    }
}

/// The position of a row before the change. `segment` is `None` for a new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    id: i64,
    segment: Option<usize>,
    row: usize,
}
