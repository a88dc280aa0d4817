//! Validates a manifest. The checksum in `CURRENT` shows only that the manifest belongs to
//! `CURRENT`, but not that Engram wrote both, so all sizes and names are checked before use.

use super::file::FileRecord;
use super::manifest::{
    GraphRecord, Manifest, ORDER, REQUIRED_COLUMNS, SegmentRecord, VALUE_COLUMNS,
};
use super::pack::{ALIGNMENT, SUFFIX};
use super::pointer::generation_number;
use crate::codes::MAX_WIDTH;
use crate::generation::MAX_ROWS;

impl Manifest {
    /// Checks the manifest, and returns the first error.
    pub(super) fn check(&self) -> Result<(), String> {
        let widths = [self.width, self.values.map_or(1, |values| values.tokens)];
        if widths.contains(&0) || self.values.is_some_and(|values| values.width == 0) {
            return Err("has a width of 0".to_owned());
        }
        if self.width > MAX_WIDTH {
            return Err(format!("has keys of width {}, more than {MAX_WIDTH}", self.width));
        }
        let value_len =
            self.values.map_or(Some(0), |values| values.tokens.checked_mul(values.width));
        if value_len.and_then(|value_len| value_len.checked_add(self.width)).is_none() {
            return Err("has keys and values that are too large".to_owned());
        }
        if self.next_id < 0 {
            return Err(format!("has the negative next id {}", self.next_id));
        }
        let mut rows = 0usize;
        for (number, segment) in self.segments.iter().enumerate() {
            segment.check(self).map_err(|reason| format!("segment {number}: {reason}"))?;
            rows = rows.saturating_add(segment.rows);
        }
        if rows > MAX_ROWS {
            return Err(format!("has {rows} rows, more than {MAX_ROWS}"));
        }
        Ok(())
    }
}

impl SegmentRecord {
    fn check(&self, manifest: &Manifest) -> Result<(), String> {
        if self.rows == 0 || self.rows > MAX_ROWS {
            return Err(format!("has {} rows", self.rows));
        }
        if !(0.0..f32::INFINITY).contains(&self.longest_key) {
            return Err("has a norm that is negative or not finite".to_owned());
        }
        if self.pack.is_some() && !self.columns.is_empty() {
            return Err("has files of columns, but is a pack".to_owned());
        }
        let is_missing = |name: &&&str| !self.columns.contains_key(**name);
        let missing = REQUIRED_COLUMNS.iter().find(is_missing);
        if let Some(name) = missing.filter(|_| self.pack.is_none()) {
            return Err(format!("has no {name}"));
        }
        let known = || REQUIRED_COLUMNS.iter().chain(&VALUE_COLUMNS).chain([&ORDER]);
        if let Some(name) = self.columns.keys().find(|name| !known().any(|known| known == name)) {
            return Err(format!("has the unknown column {name:?}"));
        }
        let folders = self.files().map(|(folder, _)| folder).chain([self.folder.as_str()]);
        for folder in folders {
            if generation_number(folder).is_none_or(|number| number > manifest.generation) {
                return Err(format!("has the folder {folder:?}, which is not part of this memory"));
            }
        }
        self.files().try_for_each(|(folder, file)| file.check(folder))?;
        if self.deleted.as_ref().is_some_and(|deleted| deleted.rows() > self.rows) {
            return Err("has more deleted rows than rows".to_owned());
        }
        if self.values_at.is_some() {
            if self.pack.is_some() {
                return Err("has `values_at`, but is a pack".to_owned());
            }
            if !self.columns.contains_key("values") || manifest.values.is_none() {
                return Err("has `values_at`, but no `values`".to_owned());
            }
        }
        self.graph.as_ref().map_or(Ok(()), |graph| graph.check(self.rows))
    }
}

impl GraphRecord {
    fn check(&self, rows: usize) -> Result<(), String> {
        self.settings.check().map_err(|error| format!("has a graph of which {error}"))?;
        // Layers become larger, up to all rows.
        let sizes = [&[1], self.nodes.as_slice(), &[rows]].concat();
        if self.start as usize >= rows || !sizes.is_sorted() {
            let (start, nodes) = (self.start, &self.nodes);
            return Err(format!(
                "has a graph with the start {start} and layers of {nodes:?} nodes for {rows} rows"
            ));
        }
        Ok(())
    }
}

impl FileRecord {
    fn check(&self, folder: &str) -> Result<(), String> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c);
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(is_allowed)
        {
            return Err(format!("has the invalid file name {:?}", self.name));
        }
        let is_part = self.start.is_none_or(|start| {
            start.is_multiple_of(ALIGNMENT as u64) && self.name.strip_prefix(folder) == Some(SUFFIX)
        });
        if !is_part {
            return Err(format!("has a part of {:?} that is not part of {folder}", self.name));
        }
        let end = self.start.unwrap_or(0).saturating_add(self.bytes);
        if end > isize::MAX as u64 {
            return Err(format!("has {} of an impossible size, {} bytes", self.name, self.bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_has_no_files_of_columns() {
        let name = "gen-000001.pack";
        let mut segment = SegmentRecord {
            folder: "gen-000001".to_owned(),
            rows: 1,
            longest_key: 1.0,
            pack: Some(FileRecord::of_part(name, 0, b"part")),
            columns: Default::default(),
            values_at: None,
            deleted: None,
            graph: None,
        };
        let manifest = |segment: &SegmentRecord| Manifest {
            format_version: 1,
            generation: 1,
            identity: None,
            width: 1,
            normalised: true,
            values: None,
            encoders: Vec::new(),
            sources: Vec::new(),
            next_id: 1,
            segments: vec![segment.clone()],
        };
        assert_eq!(manifest(&segment).check(), Ok(()));
        segment.columns.insert("keys".to_owned(), FileRecord::of_part(name, 64, b"keys"));
        let error = manifest(&segment).check().unwrap_err();
        assert!(error.ends_with("has files of columns, but is a pack"), "{error}");
    }
}
