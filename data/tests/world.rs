#![allow(clippy::unwrap_used)]
use engram_data::world::features::*;
use engram_data::world::*;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::time::Instant;
#[test]
fn probe() {
    let t = Instant::now();
    let world = World::new(&WorldOptions::default()).unwrap();
    println!(
        "world {:?}: {} pictures {} entries {} questions",
        t.elapsed(),
        world.pictures.len(),
        world.entries.len(),
        world.questions.len()
    );
    let t = Instant::now();
    let f = Featuriser::new(&world);
    let keys = f.entry_keys(&world.entries).unwrap();
    println!("keys {:?}", t.elapsed());
    let t = Instant::now();
    let test: Vec<_> =
        world.questions.iter().filter(|q| q.split != questions::Split::Train).cloned().collect();
    let q = f.queries(&test).unwrap();
    println!("queries {:?} {}", t.elapsed(), test.len());
    let t = Instant::now();
    let ranks: Vec<usize> = test
        .par_iter()
        .zip(q.par_chunks(KEY_WIDTH))
        .map(|(question, query)| {
            let dot = |k: &[f32]| k.iter().zip(query).map(|(a, b)| a * b).sum::<f32>();
            let right = world.entries.iter().position(|e| e.id == question.entry).unwrap();
            let s = dot(&keys[right * KEY_WIDTH..(right + 1) * KEY_WIDTH]);
            keys.chunks(KEY_WIDTH).filter(|k| dot(k) > s).count()
        })
        .collect();
    println!("search {:?}", t.elapsed());
    let mut by: BTreeMap<(questions::Part, attributes::Source, bool), Vec<usize>> = BTreeMap::new();
    for (q, r) in test.iter().zip(&ranks) {
        by.entry((q.part, q.source, q.made_up)).or_default().push(*r);
    }
    for (k, v) in by {
        let at = |n| v.iter().filter(|r| **r < n).count() as f64 / v.len() as f64;
        println!("{k:?} n {} @1 {:.3} @10 {:.3} @50 {:.3}", v.len(), at(1), at(10), at(50));
    }
    let t = Instant::now();
    println!("swap {} ", world.swap(100, 3).unwrap().questions.len());
    println!(
        "hay {} {:?}",
        world
            .haystack(&haystack::HaystackOptions { tasks: 100, needles: 3, others: 1000, seed: 1 })
            .unwrap()
            .len(),
        t.elapsed()
    );
    for e in world.entries.iter().filter(|e| e.id % 1600 < 14) {
        println!("{}", serde_json::to_string(&e.knowledge).unwrap());
    }
    for q in world.questions.iter().step_by(997) {
        println!("{}", serde_json::to_string(&q).unwrap());
    }
}
