//! Compares exact search with brute force in double precision, at sizes with several blocks and
//! threads.

use tempfile::TempDir;

use crate::support::*;

const ROWS: usize = 3000;

/// Creates a memory of three segments with deleted rows. Its keys lie around ten centres, and some
/// keys occur twice.
fn memory(width: usize, normalised: bool) -> (TempDir, Writer, PlainMemory) {
    let folder = folder();
    let format = MemoryFormat { width, normalised, values: None };
    let mut rng = Rng::new(width as u64);
    let centres: Vec<f32> = (0..10 * width).map(|_| rng.uniform()).collect();
    let mut plain = PlainMemory::new(format);
    let mut rows = batch(&mut rng, format, 0..ROWS as i64);
    for row in 0..ROWS {
        let centre = rng.below(10) as usize;
        for i in 0..width {
            let near_centre = centres[centre * width + i] + 0.1 * rng.uniform();
            rows.keys[row * width + i] =
                if row % 50 == 49 { rows.keys[(row - 7) * width + i] } else { near_centre };
        }
    }
    plain.put(&rows);
    let part = |range: std::ops::Range<usize>| Batch {
        entries: rows.entries[range.clone()].to_vec(),
        keys: rows.keys[range.start * width..range.end * width].to_vec(),
        values: Vec::new(),
    };
    let first_batches = [Ok(part(0..700)), Ok(part(700..1000))].into_iter();
    let mut writer = Writer::create(folder.path(), format, 1000, first_batches).unwrap();
    add(&mut writer, part(1000..2999));
    add(&mut writer, part(2999..3000));
    let deleted: Vec<i64> = (0..ROWS as i64).filter(|id| id % 11 == 3).collect();
    writer.delete(&deleted).unwrap();
    plain.delete(&deleted);
    (folder, writer, plain)
}

#[test]
fn exact_search_equals_brute_force_in_double_precision() {
    for (width, normalised) in [(1, true), (5, false), (64, true), (128, false), (384, true)] {
        let (_folder, writer, plain) = memory(width, normalised);
        let generation = writer.generation();
        let sources = generation.manifest().sources.clone();
        let mut rng = Rng::new(77);
        let num_queries = 530;
        let queries: Vec<f32> = (0..num_queries * width).map(|_| rng.uniform()).collect();
        let filters = [
            Filter::default(),
            of_sources(&["wit"]),
            without((0..num_queries).map(|query| vec![format!("d{}", query % 4)])),
            Filter {
                sources: of_sources(&["kg", "vqa"]).sources,
                ..with_gates(&sources, (0..num_queries * 3).map(|_| rng.uniform().abs()))
            },
        ];
        for (filter, k) in filters.iter().zip([10, 100, 1, 5000]) {
            let results = exact(generation, &queries, k, filter);
            let expected = plain.search(&queries, k, filter);
            assert_eq!(ids(&results), expected, "width {width}");
        }
    }
}

#[test]
fn rewriting_keys_does_not_change_them() {
    let (width, rows) = (5, 2000);
    let format = MemoryFormat { width, normalised: true, values: None };
    let mut rng = Rng::new(31);
    let keys: Vec<f32> = (0..rows * width).map(|_| rng.uniform()).collect();
    let (_folder, mut writer) = temporary(format, bare(0, keys, width));
    let keys = |writer: &Writer| -> Vec<Vec<f32>> {
        let generation = writer.generation();
        generation.live_rows().map(|row| generation.key(row).unwrap().to_vec()).collect()
    };
    let before = keys(&writer);
    writer.compact(|_| ()).unwrap();
    assert_eq!(keys(&writer), before);
}

/// Compares a memory of unnormalised keys with brute force.
fn compare_unnormalised(width: usize, keys: Vec<f32>, queries: &[f32], gates: Option<Vec<f32>>) {
    let format = MemoryFormat { width, normalised: false, values: None };
    let batch = bare(0, keys, width);
    let mut plain = PlainMemory::new(format);
    plain.put(&batch);
    let (_folder, writer) = temporary(format, batch);
    let sources = &writer.generation().manifest().sources;
    let filter = gates.map_or_else(Filter::default, |weights| with_gates(sources, weights));
    let results = exact(writer.generation(), queries, 5, &filter);
    assert_eq!(ids(&results), plain.search(queries, 5, &filter));
}

#[test]
fn products_near_the_limits_of_single_precision_are_ordered_correctly() {
    let mut rng = Rng::new(21);
    for scale in [1e-20f32, 1e-21, 3e-22, 1e-22, 1e-23] {
        let mut numbers =
            |count: usize| -> Vec<f32> { (0..count).map(|_| scale * rng.uniform()).collect() };
        let (keys, queries) = (numbers(300 * 16), numbers(20 * 16));
        compare_unnormalised(16, keys, &queries, None);
    }
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.uniform()).collect() };
    let (keys, queries) = (numbers(300 * 16), numbers(20 * 16));
    for gate in [1e-40, -1e-38, 1e-30, 1e18] {
        compare_unnormalised(16, keys.clone(), &queries, Some(vec![gate; 20]));
    }
}

#[test]
fn products_beyond_single_precision_are_refused() {
    let format = MemoryFormat { width: 1, normalised: false, values: None };
    let (_folder, writer) = temporary(format, bare(0, vec![1e17], 1));
    let search = |gate: f32| {
        let filter = with_gates(&["memory".to_owned()], [1.0, gate]);
        writer.generation().search(Method::Exact, Queries { keys: &[1.0, 1e17], k: 1 }, &filter)
    };
    assert!((search(10.0).unwrap().hits[1][0].score / 1e35 - 1.0).abs() < 1e-6);
    assert_refused(search(-1e17), ["query 1 is too long"]);
}

#[test]
fn queries_and_filters_that_do_not_match_the_memory_are_refused() {
    let (_folder, writer, _) = memory(5, true);
    let gates = |names: &[&str]| {
        with_gates(&names.iter().map(ToString::to_string).collect::<Vec<_>>(), [1.0; 2])
    };
    for (keys, k, filter, expected) in [
        (vec![1.0; 5], 0, Filter::default(), "k is 0"),
        (vec![1.0; 6], 1, Filter::default(), "width 6, but the memory has width 5"),
        (vec![f32::NAN; 5], 1, Filter::default(), "query 0 contains NaN"),
        (vec![1.0; 5], 1, of_sources(&["web"]), "no entry has the source `web`; the sources are `"),
        (vec![1.0; 5], 1, gates(&["kg", "wit", "vqa"]), "the number of gates is 2"),
        (vec![1.0; 5], 1, gates(&["kg", "wit"]), "the gate of source `vqa` is missing"),
        (vec![1.0; 5], 1, without([vec![], vec![]].into_iter()), "one for each query"),
    ] {
        let queries = Queries { keys: &keys, k };
        assert_refused(writer.generation().search(Method::Exact, queries, &filter), [expected]);
    }
}

#[test]
fn only_the_ids_of_the_filter_are_found() {
    let (_folder, writer, _) = memory(5, true);
    let generation = writer.generation();
    let keys = [0.3, -1.0, 0.5, 0.2, 1.0];
    let search = |k: usize, filter: Filter| {
        generation.search(Method::Exact, Queries { keys: &keys, k }, &filter)
    };
    // Ids of all three segments. The first two share a byte of their segment's bits.
    let allowed = [0, 1, 8, 999, 1000, 2998, 2999];
    let all_ids = ids(&search(5000, Filter::default()).unwrap()).remove(0);
    let expected: Vec<i64> = all_ids.into_iter().filter(|id| allowed.contains(id)).collect();
    assert_eq!(expected.len(), 7);
    assert_eq!(ids(&search(100, of_ids(&allowed)).unwrap())[0], expected);
    assert_eq!(ids(&search(2, of_ids(&allowed)).unwrap()), [&expected[..2]]);
    assert_eq!(ids(&search(2, of_ids(&[])).unwrap()), [[0; 0]]);
    // Only entries in both the ids and the source.
    let entry_of = |id: &i64| generation.entry(generation.row_of(*id).unwrap().unwrap()).unwrap();
    let source = entry_of(&expected[0]).source;
    let with_source = Filter { ids: Some(allowed.to_vec()), ..of_sources(&[&source]) };
    let expected: Vec<i64> =
        expected.into_iter().filter(|id| entry_of(id).source == source).collect();
    assert_eq!(ids(&search(100, with_source).unwrap()), [expected]);
    // 3 is deleted; 5000 never existed.
    assert_refused(search(1, of_ids(&[0, 3, 5000])), ["3", "2"]);
}

#[test]
fn a_source_without_entries_is_an_error() {
    let (_folder, mut writer, _) = memory(5, true);
    let keys = [1.0; 5];
    let queries = Queries { keys: &keys, k: 5000 };
    let results =
        writer.generation().search(Method::Exact, queries, &of_sources(&["vqa"])).unwrap();
    let previous = writer.generation().clone();
    writer.delete(&ids(&results)[0]).unwrap();
    assert_refused(
        writer.generation().search(Method::Exact, queries, &of_sources(&["vqa"])),
        ["no entry has the source `vqa`"],
    );
    writer.compact(|_| ()).unwrap();
    // The previous generation can still be searched. Its rows are not valid in the new generation.
    assert_eq!(previous.search(Method::Exact, queries, &of_sources(&["vqa"])).unwrap(), results);
    let last_row = results.hits[0].iter().map(|hit| hit.row).max().unwrap();
    assert_refused(writer.generation().entry(last_row), ["must be a row of this generation"]);
}
