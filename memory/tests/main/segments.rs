//! Any history of small changes leaves few segments, files and mappings.

use std::fs;
use std::path::Path;

use crate::support::*;
use engram_memory::format::manifest::SegmentRecord;

/// The largest number of segments of a memory.
const MAX_SEGMENTS: usize = 64;
/// The maximum number of segments after single edits: three in each of eight tiers, the built
/// segment, and the new segment.
const MAX_SMALL_SEGMENTS: usize = 26;

/// Ids and a memory that random single edits change.
struct Edited {
    writer: Writer,
    format: MemoryFormat,
    rng: Rng,
    ids: Vec<i64>,
    next_id: i64,
}

impl Edited {
    /// Builds a memory of `rows` entries.
    fn build(folder: &Path, format: MemoryFormat, rows: i64) -> Self {
        let mut rng = Rng::new(1);
        let ids: Vec<i64> = (0..rows).collect();
        let batches = ids.chunks(1000).map(|ids| Ok(batch(&mut rng, format, ids)));
        let writer = Writer::create(folder, format, rows as usize, batches).unwrap();
        Self { writer, format, rng, ids, next_id: rows }
    }

    /// Adds this many entries.
    fn add(&mut self, rows: i64) {
        let ids = self.next_id..self.next_id + rows;
        self.next_id += rows;
        add(&mut self.writer, batch(&mut self.rng, self.format, ids));
    }

    /// Adds, updates or deletes an entry: three of five edits add.
    fn edit(&mut self, plain: Option<&mut PlainMemory>) {
        let kind = if self.ids.len() < 2 { 0 } else { self.rng.below(5) };
        if kind == 4 {
            let index = self.rng.below(self.ids.len() as u64) as usize;
            let id = self.ids.swap_remove(index);
            self.writer.delete(&[id]).unwrap();
            plain.into_iter().for_each(|plain| plain.delete(&[id]));
            return;
        }
        let id = if kind == 3 {
            self.ids[self.rng.below(self.ids.len() as u64) as usize]
        } else {
            self.ids.push(self.next_id);
            self.next_id += 1;
            self.next_id - 1
        };
        let rows = batch(&mut self.rng, self.format, [id]);
        let change = if kind == 3 { Writer::update } else { Writer::add };
        change(&mut self.writer, 1, [Ok(rows.clone())].into_iter()).unwrap();
        plain.into_iter().for_each(|plain| plain.put(&rows));
    }

    fn segments(&self) -> usize {
        self.writer.generation().manifest().segments.len()
    }
}

/// The hits of a query in a generation.
fn hits(generation: &Generation) -> Vec<Hit> {
    let width = generation.manifest().width;
    let query: Vec<f32> = (0..width).map(|i| (i as f32 + 0.5).sin()).collect();
    exact(generation, &query, 10, &Filter::default()).hits.remove(0)
}

/// The number of files below a folder.
fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// The number of this process's mappings of files below a folder.
#[cfg(target_os = "linux")]
fn mappings(folder: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(folder.to_str().unwrap())).count()
}

#[test]
fn many_edits_leave_few_segments_files_and_mappings() {
    let (_temporary, memory) = new_path();
    let values = Some(ValueFormat { tokens: 1, width: 4, dtype: ValueDtype::Int4 });
    let format = MemoryFormat { width: 8, normalised: true, values };
    let mut edited = Edited::build(&memory, format, 0);
    let mut plain = PlainMemory::new(format);
    let mut held = Vec::new();
    for number in 0..3000 {
        edited.edit(Some(&mut plain));
        assert!(edited.segments() <= MAX_SMALL_SEGMENTS, "{} segments", edited.segments());
        if number % 500 == 250 {
            let generation = Memory::open(&memory).unwrap().generation();
            let entries: Vec<_> =
                hits(&generation).iter().map(|hit| generation.entry(hit.row).unwrap()).collect();
            held.push((hits(&generation), entries, generation));
        }
    }
    // Readers of older generations still have their files.
    for (expected, entries, generation) in held.drain(..) {
        assert!(generation.verify().is_empty());
        let found = hits(&generation);
        assert_eq!(found, expected);
        for (hit, entry) in found.iter().zip(&entries) {
            assert_eq!(generation.entry(hit.row).unwrap(), *entry);
        }
    }
    edited.edit(Some(&mut plain));
    // Each segment is a part of one pack. The other files are `CURRENT`, `LOCK`, and the packs of
    // the current and of the previous generation.
    let segments = edited.segments();
    assert!(files(&memory) <= 2 * MAX_SMALL_SEGMENTS + 4, "{} files", files(&memory));
    #[cfg(target_os = "linux")]
    assert!(mappings(&memory) <= segments, "{} mappings", mappings(&memory));
    let pack =
        memory.join(format!("gen-{:06}.pack", edited.writer.generation().manifest().generation));
    let bytes = fs::metadata(pack).unwrap().len();
    assert!(bytes < 100_000, "{bytes} bytes for one edit, with {segments} segments");
    let generation = Memory::open(&memory).unwrap().generation();
    assert!(generation.verify().is_empty());
    assert_eq!(generation.len(), plain.ids().len());
    for id in plain.ids() {
        let row = generation.row_of(id).unwrap().unwrap();
        assert_eq!(generation.entry(row).unwrap(), *plain.get(id).0);
    }
    let before: Vec<_> = hits(&generation).iter().map(|hit| (hit.id, hit.score)).collect();
    edited.writer.compact(|_| ()).unwrap();
    let compacted = hits(edited.writer.generation());
    assert_eq!(compacted.iter().map(|hit| (hit.id, hit.score)).collect::<Vec<_>>(), before);
}

/// The settings of all graphs of a memory with large segments that have graphs.
fn graph_settings(generation: &Generation) -> Vec<GraphSettings> {
    let segments = &generation.manifest().segments;
    let lacks_graph = |segment: &SegmentRecord| segment.graph.is_none() && segment.rows >= 16_384;
    assert!(!segments.iter().any(lacks_graph), "a large segment has no graph");
    segments.iter().filter_map(|segment| Some(segment.graph.as_ref()?.settings)).collect()
}

/// The share of the exact results that graph search finds.
fn graph_recall(generation: &Generation) -> f64 {
    let width = generation.manifest().width;
    let keys: Vec<f32> = (0..100 * width).map(|i| (i as f32 * 0.61).sin()).collect();
    let queries = Queries { keys: &keys, k: 10 };
    let found = generation.search(Method::GRAPH, queries, &Filter::default()).unwrap();
    found.recall(&exact(generation, &keys, 10, &Filter::default()))
}

#[test]
fn a_memory_keeps_its_graph_through_all_changes() {
    let (_temporary, memory) = new_path();
    let format = MemoryFormat { width: 8, normalised: true, values: None };
    let mut edited = Edited::build(&memory, format, 500);
    let hnsw = GraphSettings { kind: GraphKind::Hnsw, connections: 8, ef_construction: 20 };
    let vamana = GraphSettings { kind: GraphKind::Vamana, connections: 12, ef_construction: 40 };
    for settings in [hnsw, vamana] {
        edited.writer.index(settings, || ()).unwrap();
        // Many segments are merged, also that with the graph.
        for _ in 0..600 {
            let before = edited.writer.generation().manifest().generation;
            edited.edit(None);
            // Rows and graph are one generation, so a crash never loses the graph.
            assert_eq!(edited.writer.generation().manifest().generation, before + 1);
            let graphs = graph_settings(edited.writer.generation());
            assert!(!graphs.is_empty() && graphs.iter().all(|graph| *graph == settings));
            assert!(edited.segments() <= MAX_SMALL_SEGMENTS);
        }
        let entries = edited.writer.generation().len();
        assert!(edited.writer.generation().manifest().segments[0].rows != 500);
        assert!(graph_recall(edited.writer.generation()) >= 0.98);
        edited.writer.compact(|_| ()).unwrap();
        assert_eq!(graph_settings(edited.writer.generation()), [settings]);
        // A change that removes everything, and the graph with it.
        let ids = std::mem::take(&mut edited.ids);
        edited.writer.delete(&ids).unwrap();
        assert!(edited.writer.generation().is_empty() && entries == ids.len());
        for _ in 0..500 {
            edited.edit(None);
        }
        assert_eq!(graph_settings(edited.writer.generation()), []);
    }
    edited.writer.index(vamana, || ()).unwrap();
    // A large addition, and small ones that become a large segment.
    edited.add(17_000);
    (0..5).for_each(|_| edited.add(5_000));
    let generation = Memory::open(&memory).unwrap().generation();
    assert_eq!(generation.manifest().segments.iter().map(|s| s.rows).max(), Some(20_000));
    assert!(graph_settings(&generation).len() >= 2 && generation.verify().is_empty());
    assert!(graph_recall(&generation) >= 0.98);
}

#[test]
fn large_additions_leave_few_segments() {
    let (_temporary, memory) = new_path();
    let format = MemoryFormat { width: 2, normalised: true, values: None };
    let mut edited = Edited::build(&memory, format, 1);
    for number in 0..MAX_SEGMENTS as i64 + 3 {
        edited.add(66_000 + number);
        assert!(edited.segments() <= MAX_SEGMENTS);
    }
    let generation = Memory::open(&memory).unwrap().generation();
    assert_eq!(generation.len() as i64, edited.next_id);
    assert!(generation.verify().is_empty());
}

#[test]
fn deleted_segments_disappear() {
    let (_temporary, memory) = new_path();
    let format = MemoryFormat { width: 8, normalised: true, values: None };
    let mut edited = Edited::build(&memory, format, 300);
    edited.writer.index(GraphSettings::default(), || ()).unwrap();
    edited.add(3);
    for (deleted, segments, deleted_rows, entries) in [
        ((0..60).collect(), 2, 60, 243),
        ((60..300).collect(), 1, 0, 3),
        (vec![300, 302], 1, 0, 1),
        (vec![301], 0, 0, 0),
    ] {
        edited.writer.delete(&deleted).unwrap();
        let generation = edited.writer.generation();
        let state = (edited.segments(), generation.deleted(), generation.len());
        assert_eq!(state, (segments, deleted_rows, entries));
    }
    assert!(Memory::verify(&memory).unwrap().is_empty());
}
