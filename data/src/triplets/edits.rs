//! A sequence of changes to made-up facts: facts are added, get another object or another subject, or
//! are deleted.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::generate::{PromptedFact, database};

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A new fact.
    Added,
    /// Another object.
    Updated,
    /// Another subject.
    Renamed,
    /// The fact is deleted.
    Deleted,
}

/// A change of one fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// The kind.
    pub change: Change,
    /// The id of the fact. New facts have the next ids.
    pub fact: usize,
    /// The index of the new version of the fact; for a deletion, of its last one.
    pub version: usize,
}

/// Facts and their changes.
#[derive(Debug)]
pub struct Edits {
    /// The versions of all facts. The first ones are the facts at the start, and their indices are
    /// the ids of these facts.
    pub versions: Vec<PromptedFact>,
    /// The number of facts at the start.
    pub initial: usize,
    /// The changes in their order.
    pub edits: Vec<Edit>,
}

impl Edits {
    /// Draws `count` changes of at least `initial` made-up facts.
    pub fn draw(initial: usize, count: usize, rng: &mut ChaCha8Rng) -> Self {
        let mut versions = Vec::new();
        while versions.len() < initial {
            versions.extend(database(rng));
        }
        let initial = versions.len();
        let mut living: Vec<(usize, usize)> = (0..initial).map(|fact| (fact, fact)).collect();
        let (mut new_facts, mut facts) = (Vec::new(), initial);
        let mut edits = Vec::with_capacity(count);
        for _ in 0..count {
            let new = loop {
                match new_facts.pop() {
                    Some(new) => break new,
                    None => new_facts = database(rng),
                }
            };
            let change = [Change::Added, Change::Updated, Change::Renamed, Change::Deleted];
            let change = change.choose(rng).copied().unwrap_or(Change::Added);
            let place = rng.random_range(0..living.len().max(1));
            match (change, living.get(place).copied()) {
                (Change::Deleted, Some((fact, version))) => {
                    living.swap_remove(place);
                    edits.push(Edit { change, fact, version });
                }
                (Change::Updated | Change::Renamed, Some((fact, version))) => {
                    let mut changed = versions[version].clone();
                    if change == Change::Updated {
                        changed.triplet.object = new.triplet.object;
                    } else {
                        changed.prompt =
                            changed.prompt.replace(&changed.triplet.subject, &new.triplet.subject);
                        changed.triplet.subject = new.triplet.subject;
                    }
                    living[place] = (fact, versions.len());
                    edits.push(Edit { change, fact, version: versions.len() });
                    versions.push(changed);
                }
                _ => {
                    let (change, fact, version) = (Change::Added, facts, versions.len());
                    living.push((fact, version));
                    edits.push(Edit { change, fact, version });
                    versions.push(new);
                    facts += 1;
                }
            }
        }
        Self { versions, initial, edits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeMap;

    #[test]
    fn changes_are_about_facts_that_exist_and_change_one_part() {
        let Edits { versions, initial, edits } =
            Edits::draw(200, 2000, &mut ChaCha8Rng::seed_from_u64(1));
        assert!(initial >= 200 && edits.len() == 2000);
        let mut current: BTreeMap<usize, usize> = (0..initial).map(|fact| (fact, fact)).collect();
        let mut counts = [0; 4];
        for Edit { change, fact, version } in edits {
            counts[change as usize] += 1;
            let new = &versions[version];
            assert!(new.prompt.contains(&new.triplet.subject), "{new:?}");
            let old = match change {
                Change::Added => current.insert(fact, version),
                Change::Deleted => current.remove(&fact),
                _ => current.insert(fact, version),
            };
            assert_eq!(old.is_none(), change == Change::Added);
            let Some(old) = old.map(|old| &versions[old]) else { continue };
            let parts = [
                old.triplet.subject != new.triplet.subject,
                old.triplet.relation != new.triplet.relation,
                old.triplet.object != new.triplet.object,
            ];
            match change {
                Change::Deleted => assert_eq!(parts, [false; 3]),
                Change::Renamed => assert!(!parts[1] && !parts[2]),
                _ => assert!(!parts[0] && !parts[1] && old.prompt == new.prompt),
            }
        }
        assert!(counts.iter().all(|count| *count > 400), "{counts:?}");
    }
}
