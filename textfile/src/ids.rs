//! Ids that must not be empty and must be unique within a file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use crate::{Location, TextError, shortened};

/// The ids that have been read from a file, each with its line.
#[derive(Debug)]
pub struct UniqueIds<K> {
    lines: HashMap<K, Option<u64>>,
}

impl<K: AsRef<str> + Eq + Hash> UniqueIds<K> {
    /// Creates an empty set with room for `count` ids.
    pub fn with_capacity(count: usize) -> Self {
        Self { lines: HashMap::with_capacity(count) }
    }

    /// Adds the id at `location`.
    ///
    /// # Errors
    /// [`TextError::EmptyField`]; [`TextError::DuplicateId`] with both locations
    pub fn add(&mut self, id: K, location: Location) -> Result<(), TextError> {
        if id.as_ref().is_empty() {
            return Err(TextError::EmptyField { location, column: "id".to_owned() });
        }
        match self.lines.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(location.line);
                Ok(())
            }
            Entry::Occupied(entry) => {
                let first = Location { file: location.file.clone(), line: *entry.get() };
                let id = shortened(entry.key().as_ref(), 60);
                Err(TextError::DuplicateId { location, first, id })
            }
        }
    }
}
