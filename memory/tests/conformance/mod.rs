//! A conformance suite for any [`Store`]: random sequences of transactions and searches, compared
//! with a plain list in main memory. Long sequences accumulate many small changes.

use std::sync::Arc;

use crate::support::*;
use rayon::prelude::*;

/// One of this many sequences is long.
const LONG_STEP: u64 = 20;
const WIDTH: usize = 3;

/// A kind of store that the suite tests.
pub trait Subject: Sync {
    /// A store, with all that a sequence needs beside it.
    type Instance: AsRef<dyn Store>;

    /// Creates a store with these entries. The name is unique.
    fn create(&self, name: &str, format: MemoryFormat, first: &Batch) -> Self::Instance;

    /// Maintenance that changes no entry, such as a compaction.
    fn maintain(&self, instance: &mut Self::Instance);

    /// Further checks after each search, with the ids that it found.
    fn check(&self, instance: &Self::Instance, ids: &[i64]);

    /// Checks that all is consistent at the end of a sequence, and removes the store.
    fn finish(&self, instance: Self::Instance);
}

/// Runs this many random sequences on all threads.
pub fn run_sequences<S: Subject>(subject: &S, sequences: u64) {
    (0..sequences).into_par_iter().for_each(|seed| Sequence::new(subject, seed).run());
}

/// A random sequence of changes and searches.
struct Sequence<'a, S: Subject> {
    subject: &'a S,
    seed: u64,
    rng: Rng,
    format: MemoryFormat,
    instance: S::Instance,
    plain: PlainMemory,
    /// An earlier snapshot, which must not change, with the entries that it has.
    earlier: Option<(Arc<dyn Snapshot>, PlainMemory)>,
}

impl<'a, S: Subject> Sequence<'a, S> {
    fn new(subject: &'a S, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let dtype = ValueDtype::ALL.get(rng.below(4) as usize);
        let values = dtype.map(|dtype| ValueFormat { tokens: 2, width: 3, dtype: *dtype });
        let format = MemoryFormat { width: WIDTH, normalised: rng.below(2) == 0, values };
        let mut plain = PlainMemory::new(format);
        let ids: Vec<i64> = (0..rng.below(6)).map(|_| plain.new_id(&mut rng)).collect();
        let first = batch(&mut rng, format, &ids);
        plain.put(&first);
        let instance = subject.create(&seed.to_string(), format, &first);
        Self { subject, seed, rng, format, instance, plain, earlier: None }
    }

    fn store(&self) -> &dyn Store {
        self.instance.as_ref()
    }

    fn run(mut self) {
        // Long sequences have few rewrites, so that small changes accumulate.
        let (steps, kinds) = if self.seed.is_multiple_of(LONG_STEP) { (100, 50) } else { (6, 7) };
        for _ in 0..steps {
            match self.rng.below(kinds) {
                0 => self.change_much(),
                1 => self.change_nothing(),
                2 => {
                    let ids = self.some_ids(3);
                    self.commit(|transaction| transaction.delete(&ids));
                    self.plain.delete(&ids);
                }
                3 => self.subject.maintain(&mut self.instance),
                4 => self.re_encode(),
                5 => {
                    let snapshot = self.store().snapshot();
                    self.store().reload().unwrap();
                    // A snapshot shows the state of the last reload.
                    assert!(snapshot.description().generation <= self.generation());
                    self.earlier = Some((self.store().snapshot(), self.plain.clone()));
                }
                6..20 => self.search(),
                20..35 => {
                    let id = self.plain.new_id(&mut self.rng);
                    self.put(&[id], Transaction::add);
                }
                kind => {
                    let ids = self.plain.ids();
                    let index = self.rng.below(ids.len().max(1) as u64) as usize;
                    match ids.get(index) {
                        Some(id) if kind < 45 => self.put(&[*id], Transaction::update),
                        Some(id) => {
                            self.commit(|transaction| transaction.delete(&[*id]));
                            self.plain.delete(&[*id]);
                        }
                        None => {}
                    }
                }
            }
        }
        self.search();
        if let Some((snapshot, plain)) = self.earlier.take() {
            self.compare(snapshot.as_ref(), &plain);
        }
        self.subject.finish(self.instance);
    }

    fn generation(&self) -> u64 {
        self.store().snapshot().description().generation
    }

    /// Existing ids, each with a probability of 1 / `one_of`.
    fn some_ids(&mut self, one_of: u64) -> Vec<i64> {
        self.plain.ids().into_iter().filter(|_| self.rng.below(one_of) == 0).collect()
    }

    /// Commits a transaction with one part.
    fn commit(&self, part: impl FnOnce(&mut dyn Transaction) -> Result<(), MemoryError>) {
        let mut transaction = self.store().begin().unwrap();
        let before = transaction.base().description().generation;
        part(transaction.as_mut()).unwrap();
        let after = transaction.commit().unwrap().description().generation;
        assert!(after > before, "seed {}", self.seed);
    }

    /// Adds or updates entries with these ids.
    fn put(
        &mut self,
        ids: &[i64],
        put: fn(
            &mut (dyn Transaction + 'static),
            usize,
            &mut engram_memory::Batches<'_>,
        ) -> Result<(), MemoryError>,
    ) {
        let rows = batch(&mut self.rng, self.format, ids);
        let mut transaction = self.store().begin().unwrap();
        put(transaction.as_mut(), ids.len(), &mut std::iter::once(Ok(rows.clone()))).unwrap();
        transaction.commit().unwrap();
        self.plain.put(&rows);
    }

    /// Adds, updates and deletes several entries in one transaction. A deleted entry may be added
    /// again.
    fn change_much(&mut self) {
        let mut deleted = self.some_ids(3);
        let updated: Vec<i64> =
            self.some_ids(2).into_iter().filter(|id| !deleted.contains(id)).collect();
        let mut added: Vec<i64> =
            (0..self.rng.below(6)).map(|_| self.plain.new_id(&mut self.rng)).collect();
        added.extend(deleted.first());
        let (rng, format) = (&mut self.rng, self.format);
        let (new, changed) = (batch(rng, format, &added), batch(rng, format, &updated));
        self.commit(|transaction| {
            transaction.delete(&deleted)?;
            transaction.update(updated.len(), &mut std::iter::once(Ok(changed.clone())))?;
            transaction.add(added.len(), &mut std::iter::once(Ok(new.clone())))
        });
        deleted.sort_unstable();
        self.plain.delete(&deleted);
        self.plain.put(&changed);
        self.plain.put(&new);
    }

    /// Drops a transaction, and tries a transaction with an invalid part. Both change nothing.
    fn change_nothing(&mut self) {
        self.store().reload().unwrap();
        let before = self.generation();
        let ids = self.some_ids(2);
        let new = self.plain.new_id(&mut self.rng);
        let rows = batch(&mut self.rng, self.format, [new]);
        let mut transaction = self.store().begin().unwrap();
        assert!(matches!(self.store().begin(), Err(MemoryError::Locked { .. })));
        transaction.delete(&ids).unwrap();
        transaction.add(1, &mut std::iter::once(Ok(rows.clone()))).unwrap();
        if self.rng.below(2) == 0 {
            let error = match self.rng.below(4) {
                0 => transaction.add(1, &mut std::iter::once(Ok(rows))),
                1 => transaction.update(1, &mut std::iter::once(Ok(rows))),
                2 => transaction.delete(&[new]),
                _ => transaction.add(2, &mut std::iter::empty()),
            };
            assert!(error.is_err(), "seed {}", self.seed);
            assert!(transaction.commit().is_err(), "seed {}", self.seed);
        } else {
            drop(transaction);
        }
        self.store().reload().unwrap();
        assert_eq!(self.generation(), before, "seed {}", self.seed);
    }

    /// Gives all entries new keys, as from a changed encoder.
    fn re_encode(&mut self) {
        let mut rotate = |mut batch: Batch| {
            batch.keys.chunks_mut(WIDTH).for_each(|key| key.rotate_left(1));
            Ok(batch)
        };
        self.commit(|transaction| transaction.re_encode(Vec::new(), WIDTH, &mut rotate));
        self.plain.refresh(|key| key.rotate_left(1));
    }

    /// Compares a random search of the current state with the same search of the plain list.
    fn search(&mut self) {
        self.store().reload().unwrap();
        let (snapshot, plain) = (self.store().snapshot(), self.plain.clone());
        let found = self.compare(snapshot.as_ref(), &plain);
        self.subject.check(&self.instance, &found);
    }

    /// Compares a random search of a snapshot with the same search of a plain list. Returns the ids
    /// that it found.
    fn compare(&mut self, snapshot: &dyn Snapshot, plain: &PlainMemory) -> Vec<i64> {
        let (seed, rng) = (self.seed, &mut self.rng);
        let memory = snapshot.description();
        assert_eq!(memory.entries, plain.ids().len(), "seed {seed}");
        let mut queries: Vec<f32> = (0..3 * WIDTH).map(|_| rng.small()).collect();
        // A zero query has no cosine with a key.
        let zeros = queries.chunks_mut(WIDTH).filter(|query| query.iter().all(|n| *n == 0.0));
        zeros.for_each(|query| query[0] = 1.0);
        let k = 1 + rng.below(5) as usize;
        let filter = random_filter(rng, memory.sources.clone(), plain);
        let queries = Queries { keys: &queries, k };
        let results = snapshot.search(Method::Exact, queries, &filter).unwrap();
        assert_eq!(results.generation, memory.generation);
        let expected_ids = plain.search(queries.keys, k, &filter);
        assert_eq!(results.hits.len(), expected_ids.len());
        let mut found = Vec::new();
        for (hits, expected_ids) in results.hits.iter().zip(&expected_ids) {
            let ids: Vec<i64> = hits.iter().map(|hit| hit.id).collect();
            assert_eq!(&ids, expected_ids, "seed {seed}");
            for hit in hits {
                let (entry, expected_value) = plain.get(hit.id);
                assert_eq!(snapshot.find(&[hit.id, -1]).unwrap(), [Some(hit.row), None]);
                assert_eq!(snapshot.entry(hit.row).unwrap(), *entry, "seed {seed}");
                assert_eq!(memory.sources[hit.source as usize], entry.source, "seed {seed}");
                let value = snapshot.values(&[hit.row]).unwrap();
                assert_eq!(value.len(), expected_value.len(), "seed {seed}");
                for (number, expected) in value.iter().zip(expected_value) {
                    // Half a step of int4 values, whose components are from -1 to 1.
                    let error = (number - expected).abs();
                    assert!(error < 0.072, "seed {seed}: {number}, {expected}");
                }
            }
            found.extend(ids);
        }
        let rows = snapshot.rows().unwrap();
        let mut ids: Vec<i64> =
            snapshot.entries(&rows).unwrap().iter().map(|entry| entry.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, plain.ids(), "seed {seed}");
        assert_eq!(snapshot.keys(&rows).unwrap().len(), rows.len() * WIDTH);
        assert_eq!(snapshot.info().unwrap().entries, rows.len());
        found
    }
}

fn random_filter(rng: &mut Rng, mut sources: Vec<String>, plain: &PlainMemory) -> Filter {
    let mut filter = Filter::default();
    if rng.below(3) == 0 {
        let searched = sources.iter().filter(|name| plain.has_source(name) && rng.below(2) == 0);
        filter.sources = Some(searched.cloned().collect());
    }
    if rng.below(3) == 0 {
        let document = |rng: &mut Rng| vec![format!("d{}", rng.below(3))];
        filter.excluded_documents = (0..3).map(|_| document(rng)).collect();
    }
    if rng.below(3) == 0 {
        // Gates name their sources, in any order. A source without entries may have a gate.
        sources.push("unknown".to_owned());
        let turns = rng.below(sources.len() as u64) as usize;
        sources.rotate_left(turns);
        let weights = (0..3 * sources.len()).map(|_| rng.below(4) as f32 / 4.0).collect();
        filter.gates = Some(Gates { sources, weights });
    }
    filter
}
