//! Search in the texts of entries: the scores of another BM25, filters, edits, and the fusion with
//! a search by keys.

use std::path::Path;

use crate::support::*;
use engram_memory::EntryLine;
use engram_memory::retrieval::rank_fusion::{FusedHit, reciprocal_rank_fusion};
use engram_memory::retrieval::text::{B, K1};
use serde::Deserialize;

const FORMAT: MemoryFormat = MemoryFormat { width: 2, normalised: true, values: None };

/// Returns rows with these texts, ids from `first_id`, and the key [1, 0].
fn texts(first_id: i64, texts: &[&str]) -> Batch {
    let entry = |(id, text): (i64, &&str)| EntryLine::passage("notes", *text).with_id(id);
    let entries: Vec<Entry> = (first_id..).zip(texts).map(entry).collect();
    Batch { keys: [1.0, 0.0].repeat(entries.len()), entries, values: vec![] }
}

/// The ids that a search for one text finds.
fn found(writer: &Writer, text: &str, k: usize, filter: &Filter) -> Vec<i64> {
    ids(&writer.generation().search_texts(&[text], k, filter).unwrap()).remove(0)
}

/// The content of `fixtures/bm25/scores.json`, which its `make.py` wrote with bm25s.
#[derive(Deserialize)]
struct Scores {
    k1: f64,
    b: f64,
    texts: Vec<String>,
    queries: Vec<String>,
    /// `[queries, texts]`
    scores: Vec<Vec<f64>>,
}

#[test]
fn scores_equal_those_of_bm25s() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bm25/scores.json");
    let expected: Scores = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((expected.k1, expected.b), (K1, B));
    // An entry without a text does not change the scores of the others.
    let mut rows =
        texts(0, &expected.texts.iter().map(String::as_str).chain([" "]).collect::<Vec<_>>());
    rows.entries.push(Entry::bare(900));
    rows.keys.extend([1.0, 0.0]);
    let (_folder, writer) = temporary(FORMAT, rows);
    let queries: Vec<&str> = expected.queries.iter().map(String::as_str).collect();
    let search =
        |k: usize| writer.generation().search_texts(&queries, k, &Filter::default()).unwrap();
    let (all, first) = (search(1000), search(7));
    let mut compared = 0;
    for (query, expected) in expected.scores.iter().enumerate() {
        let mut order: Vec<i64> = (0..expected.len() as i64).collect();
        order.retain(|id| expected[*id as usize] > 0.0);
        // The scores are rounded to 12 digits in the file.
        order
            .sort_by(|a, b| expected[*b as usize].total_cmp(&expected[*a as usize]).then(a.cmp(b)));
        assert_eq!(ids(&all)[query], order, "query {query}");
        assert_eq!(first.hits[query], all.hits[query][..order.len().min(7)]);
        for hit in &all.hits[query] {
            let expected = expected[hit.id as usize];
            assert!((f64::from(hit.score) - expected).abs() < 1e-6 * expected, "{hit:?}");
            compared += 1;
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut rng = Rng::new(5);
    let words: Vec<String> = (0..20_000)
        .map(|_| (0..4).map(|_| format!("w{} ", rng.below(50))).collect::<String>())
        .collect();
    let rows = texts(0, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let (_folder, writer) = temporary(FORMAT, rows);
    let search = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let queries = ["w1 w2 w3", "w7", "w49 w1"];
            writer.generation().search_texts(&queries, 500, &Filter::default()).unwrap()
        })
    };
    assert_eq!(search(1), search(3));
}

#[test]
fn filters_and_gates_apply_to_texts() {
    let mut rng = Rng::new(11);
    let mut rows = batch(&mut rng, FORMAT, 0..60);
    for entry in &mut rows.entries {
        let text = format!("word {}", "word ".repeat(entry.id as usize % 4));
        entry.payload.insert("text".to_owned(), text.into());
    }
    let entries = rows.entries.clone();
    let (_folder, mut writer) = temporary(FORMAT, rows);
    writer.delete(&[3, 7]).unwrap();
    let all = found(&writer, "word", 100, &Filter::default());
    assert_eq!(all.len(), 58);
    let kept = |keep: &dyn Fn(&Entry) -> bool| -> Vec<i64> {
        all.iter().copied().filter(|id| keep(&entries[*id as usize])).collect()
    };
    let documents = ["d0", "d2"].map(str::to_owned).to_vec();
    let is_kept = |entry: &Entry| !matches!(entry.document.as_deref(), Some("d0" | "d2"));
    for (filter, expected) in [
        (of_sources(&["kg", "vqa"]), kept(&|entry| entry.source != "wit")),
        (of_ids(&[40, 5, 21]), kept(&|entry| [40, 5, 21].contains(&entry.id))),
        (without([documents].into_iter()), kept(&is_kept)),
    ] {
        assert_eq!(found(&writer, "word", 100, &filter), expected);
    }
    // A gate of 0 for all sources but one puts the entries of that source first.
    let names = writer.generation().manifest().sources.clone();
    let filter = with_gates(&names, names.iter().map(|name| f32::from(u8::from(name == "wit"))));
    let of_source = kept(&|entry| entry.source == "wit");
    assert_eq!(found(&writer, "word", of_source.len(), &filter), of_source);
    for (texts, k, filter, expected) in [
        (&["a", "b"][..], 5, filter, "the number of gates is 3"),
        (&["a"], 0, Filter::default(), "k is 0"),
        (&["a"], 5, of_sources(&["web"]), "no entry has the source `web`"),
        (&["a"], 5, of_ids(&[3]), "no entry has the id 3"),
    ] {
        assert_refused(writer.generation().search_texts(texts, k, &filter), [expected]);
    }
}

#[test]
fn edits_change_the_index_of_the_next_generation() {
    let (_folder, mut writer) = temporary(FORMAT, texts(0, &["red fish", "blue fish", "red bird"]));
    let search = |writer: &Writer, text: &str| found(writer, text, 10, &Filter::default());
    assert_eq!(search(&writer, "red"), [0, 2]);
    writer.update(1, [Ok(texts(0, &["green fish"]))].into_iter()).unwrap();
    add(&mut writer, texts(9, &["red red red"]));
    assert_eq!(search(&writer, "red"), [9, 2]);
    assert_eq!(search(&writer, "green"), [0]);
    writer.delete(&[9]).unwrap();
    assert_eq!(search(&writer, "red"), [2]);
    let before = search(&writer, "fish red");
    writer.compact(|_| {}).unwrap();
    assert_eq!(search(&writer, "fish red"), before);
    writer.delete(&[0, 1, 2]).unwrap();
    assert!(search(&writer, "red").is_empty());
}

#[test]
fn thousands_of_equal_texts_are_sorted_by_id() {
    let same = vec!["the same text"; 5000];
    let (_folder, writer) = temporary(FORMAT, texts(100, &same));
    assert_eq!(found(&writer, "text", 40, &Filter::default()), (100..140).collect::<Vec<_>>());
}

/// Fuses two lists as the paper's formula says, over all entries.
fn fused_by_formula(vector: &[Hit], text: &[Hit], k: usize) -> Vec<(i64, f32)> {
    let part = |hits: &[Hit], id: i64| {
        let position = hits.iter().position(|hit| hit.id == id);
        position.map_or(0.0, |position| 1.0 / (60.0 + (position + 1) as f64))
    };
    let mut scored: Vec<(f64, i64)> =
        (0..200).map(|id| (part(vector, id) + part(text, id), id)).collect();
    scored.retain(|(score, _)| *score > 0.0);
    scored.sort_by(|(a, id_a), (b, id_b)| b.total_cmp(a).then(id_a.cmp(id_b)));
    scored.into_iter().take(k).map(|(score, id)| (id, score as f32)).collect()
}

#[test]
fn a_fused_list_has_the_order_of_the_formula_and_both_ranks() {
    let mut rng = Rng::new(3);
    let rows = batch(&mut rng, FORMAT, 0..200);
    let (_folder, writer) = temporary(FORMAT, rows);
    let generation = writer.generation();
    let queries: Vec<String> = (0..20).map(|i| format!("text {i}")).collect();
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    let keys: Vec<f32> = (0..40).map(|_| rng.uniform()).collect();
    let filter = Filter::default();
    let vector = exact(generation, &keys, 30, &filter);
    let text = generation.search_texts(&queries, 30, &filter).unwrap();
    let fused = reciprocal_rank_fusion(&vector, &text, 25).unwrap();
    let mut in_both = 0;
    for (query, fused) in fused.iter().enumerate() {
        let (vector, text) = (&vector.hits[query], &text.hits[query]);
        let found: Vec<(i64, f32)> =
            fused.iter().map(|FusedHit { hit, .. }| (hit.id, hit.score)).collect();
        assert_eq!(found, fused_by_formula(vector, text, 25));
        for FusedHit { hit, vector: in_vector, text: in_text } in fused {
            for (list, place) in [(vector, in_vector), (text, in_text)] {
                let position = list.iter().position(|other| other.id == hit.id);
                let place = place.map(|place| (place.rank, place.score));
                assert_eq!(place, position.map(|rank| (rank + 1, list[rank].score)));
            }
            in_both += usize::from(in_vector.is_some() && in_text.is_some());
        }
    }
    assert!(in_both > 0);
    // A list may be empty.
    let nothing = generation.search_texts(&["zebra"; 20], 30, &filter).unwrap();
    let fused = reciprocal_rank_fusion(&vector, &nothing, 5).unwrap();
    let first = |hits: &[Hit]| hits.iter().take(5).map(|hit| hit.id).collect::<Vec<i64>>();
    let fused_ids = fused[0].iter().map(|fused| fused.hit.id).collect::<Vec<i64>>();
    assert_eq!(fused_ids, first(&vector.hits[0]));

    let fewer = SearchResults { hits: vec![], ..text.clone() };
    assert_refused(reciprocal_rank_fusion(&vector, &fewer, 5), ["the number of queries is 0"]);
    let other = SearchResults { generation: 9, ..text };
    assert_refused(reciprocal_rank_fusion(&vector, &other, 5), ["the generation is 9"]);
}
