//! Values outside of a memory's folder, for example in an object store. The keys stay in the
//! folder, and are searched there.
//!
//! The values of a segment are in its files, or external. For external values, the manifest records
//! the address and the generation there ([`ValuesLocation`]).
//! [`Writer::move_values`](crate::Writer::move_values) moves values to an address. Values of later
//! changes are in the folder until they are moved, too.
//!
//! This crate cannot read an object store itself, so a program passes a [`ValueStorage`] to
//! [`Memory::open_with`](crate::Memory::open_with). Without one, everything works except reading
//! external values.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::cache::ValueKey;
use crate::error::MemoryError;
use crate::generation::{Generation, Part, Row};
use crate::values::{StoredValue, ValueFormat};

/// The location of external values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValuesLocation {
    /// The address, such as `s3://bucket/prefix`.
    pub address: String,
    /// The number of the generation at the address.
    pub generation: u64,
}

/// A client of stores for external values.
pub trait ValueStorage: Debug + Send + Sync {
    /// Opens the values at a location.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::InvalidOption`] for an address that is not valid
    fn open(&self, at: &ValuesLocation) -> Result<Arc<dyn SegmentValues>, MemoryError>;

    /// Copies the values of a generation to an address, and returns their location.
    ///
    /// # Errors
    /// as [`ValueStorage::open`]; [`MemoryError::ForeignValues`] if a memory with another identity
    /// has its values there
    fn store(&self, address: &str, generation: &Generation) -> Result<ValuesLocation, MemoryError>;

    /// The address to which each change moves its values; `None` to leave them in the folder.
    fn target(&self) -> Option<&str> {
        None
    }
}

/// The values at a location.
pub trait SegmentValues: Debug + Send + Sync {
    /// Checks that the location has a segment with this identity, number of rows and format.
    ///
    /// # Errors
    /// [`MemoryError::DamagedObject`] if it does not
    fn check(&self, id: u64, rows: usize, format: ValueFormat) -> Result<(), MemoryError>;

    /// Checks the objects of segments with these identities. With `all`, reads them and compares
    /// all checksums, or else reads only the end of each. Returns the errors, one per object that
    /// is missing or damaged.
    ///
    /// # Errors
    /// [`MemoryError::Remote`]
    fn verify(&self, ids: &[u64], all: bool) -> Result<Vec<MemoryError>, MemoryError>;

    /// Reads values, one per key.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::DamagedObject`]
    fn read(&self, keys: &[ValueKey]) -> Result<Vec<Arc<StoredValue<'static>>>, MemoryError>;

    /// Starts reading values in the background for a later [`SegmentValues::read`].
    fn prefetch(&self, keys: &[ValueKey]);
}

/// The external values of a generation. A location is opened when it is first read.
#[derive(Debug, Default)]
pub(crate) struct ExternalValues {
    pub(crate) storage: Option<Arc<dyn ValueStorage>>,
    opened: Mutex<HashMap<ValuesLocation, Arc<dyn SegmentValues>>>,
}

impl ExternalValues {
    pub(crate) fn new(storage: Option<Arc<dyn ValueStorage>>) -> Self {
        Self { storage, opened: Mutex::default() }
    }

    /// Opens a location, and checks that it has the segments of the generation.
    fn open(
        &self,
        at: &ValuesLocation,
        generation: &Generation,
    ) -> Result<Arc<dyn SegmentValues>, MemoryError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(values) = opened.get(at) {
            return Ok(Arc::clone(values));
        }
        let Some(storage) = &self.storage else {
            let (location, folder) = (at.address.clone(), generation.folder().to_owned());
            return Err(MemoryError::UnreadableValues { location, folder });
        };
        let values = storage.open(at)?;
        if let Some(format) = generation.manifest().values {
            for part in generation.parts().iter().filter(|part| part.values_at.as_ref() == Some(at))
            {
                values.check(part.values_id, part.segment.rows, format)?;
            }
        }
        opened.insert(at.clone(), Arc::clone(&values));
        Ok(values)
    }
}

/// A requested external value: the index of its row among the requested rows, and its key.
type ValueRequest = (usize, ValueKey);

impl Generation {
    /// The locations of external values, each with its number of entries.
    pub fn external_values(&self) -> BTreeMap<&ValuesLocation, usize> {
        let mut entries = BTreeMap::new();
        for row in self.live_rows() {
            if let Ok((Part { values_at: Some(at), .. }, _)) = self.locate(row) {
                *entries.entry(at).or_default() += 1;
            }
        }
        entries
    }

    /// Checks the external values of all segments as [`SegmentValues::verify`] does. Returns the
    /// errors, one per object that is missing or damaged.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::UnreadableValues`]
    pub fn verify_external_values(&self, all: bool) -> Result<Vec<MemoryError>, MemoryError> {
        let mut segments: BTreeMap<&ValuesLocation, Vec<u64>> = BTreeMap::new();
        for Part { values_at, values_id, .. } in self.parts() {
            values_at.iter().for_each(|at| segments.entry(at).or_default().push(*values_id));
        }
        let mut damaged = Vec::new();
        for (at, ids) in segments {
            match self.external().open(at, self).and_then(|values| values.verify(&ids, all)) {
                Ok(errors) => damaged.extend(errors),
                Err(error @ MemoryError::DamagedObject { .. }) => damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    }

    /// Groups the rows with external values by location.
    fn external_requests(
        &self,
        rows: &[Row],
    ) -> Result<BTreeMap<&ValuesLocation, Vec<ValueRequest>>, MemoryError> {
        let mut requests: BTreeMap<&ValuesLocation, Vec<ValueRequest>> = BTreeMap::new();
        if self.parts().iter().all(|part| part.values_at.is_none()) {
            return Ok(requests);
        }
        for (index, row) in rows.iter().enumerate() {
            let (part, row) = self.locate(*row)?;
            if let Some(at) = &part.values_at {
                requests.entry(at).or_default().push((index, (part.values_id, row as u32)));
            }
        }
        Ok(requests)
    }

    /// Reads the external values of rows, with one read per location. Returns each with the
    /// index of its row in `rows`.
    pub(crate) fn read_external_values(
        &self,
        rows: &[Row],
    ) -> Result<Vec<(usize, Arc<StoredValue<'static>>)>, MemoryError> {
        let mut read = Vec::new();
        for (at, requests) in self.external_requests(rows)? {
            let keys: Vec<ValueKey> = requests.iter().map(|(_, key)| *key).collect();
            let values = self.external().open(at, self)?.read(&keys)?;
            MemoryError::check_count("values", keys.len(), values.len())?;
            read.extend(requests.into_iter().map(|(index, _)| index).zip(values));
        }
        Ok(read)
    }

    /// Starts to read the external values of rows.
    pub(crate) fn prefetch_values(&self, rows: &[Row]) -> Result<(), MemoryError> {
        for (at, requests) in self.external_requests(rows)? {
            let keys: Vec<ValueKey> = requests.iter().map(|(_, key)| *key).collect();
            self.external().open(at, self)?.prefetch(&keys);
        }
        Ok(())
    }
}
