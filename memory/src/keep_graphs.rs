//! Keeps the graph of a memory through changes: a change that writes a large new segment also
//! builds a graph over it. If a change removes the last graph, the largest segment gets one. Small
//! new segments get no graph. Searches compare all their keys until they are merged into a large
//! segment.

use std::path::Path;

use crate::error::MemoryError;
use crate::format::manifest::{Manifest, SegmentRecord};
use crate::generation::Generation;
use crate::search::graph::GraphSettings;
use crate::segment::Segment;

/// In a memory with a graph, new segments with at least this many rows get one.
const GRAPH_ROWS: usize = 1 << 14;

/// Returns the settings of a memory's graphs; `None` for a memory without a graph.
fn settings(manifest: &Manifest) -> Option<GraphSettings> {
    let graph = manifest.segments.iter().find_map(|record| record.graph.as_ref())?;
    let is_valid = |settings: &GraphSettings| manifest.normalised && settings.check().is_ok();
    Some(graph.settings).filter(is_valid)
}

/// Whether a change builds a graph. The change keeps the segments `remaining`, and adds a segment
/// of `new_rows` rows.
pub(crate) fn builds_graph<'a>(
    before: &Manifest,
    mut remaining: impl Iterator<Item = &'a SegmentRecord> + Clone,
    new_rows: usize,
) -> bool {
    let is_empty = new_rows == 0 && remaining.clone().next().is_none();
    let keeps_graph = remaining.any(|record| record.graph.is_some());
    settings(before).is_some() && (new_rows >= GRAPH_ROWS || !keeps_graph && !is_empty)
}

/// Builds the graphs that the segments of `manifest` need after a change of `base`, and writes them
/// to `folder`, the partial folder of the generation `name`.
pub(crate) fn build_graphs(
    base: &Generation,
    (name, folder): (&str, &Path),
    manifest: &mut Manifest,
) -> Result<(), MemoryError> {
    let Some(settings) = settings(base.manifest()) else { return Ok(()) };
    let has_graph = manifest.segments.iter().any(|record| record.graph.is_some());
    let largest = manifest.segments.iter().map(|record| record.rows).max();
    for number in 0..manifest.segments.len() {
        let record = &manifest.segments[number];
        let is_new = record.folder == name;
        let is_large = is_new && record.rows >= GRAPH_ROWS;
        let replaces_graph = !has_graph && Some(record.rows) == largest;
        if record.graph.is_some() || !(is_large || replaces_graph) {
            continue;
        }
        let graph = match base.part_of(record) {
            Some((part, _)) => settings.build(&part.segment, manifest, &|| ()),
            None => settings.build(&Segment::open_in(folder, record, manifest)?, manifest, &|| ()),
        }?;
        manifest.segments[number].graph = Some(graph.write(name, folder, number)?);
    }
    Ok(())
}
