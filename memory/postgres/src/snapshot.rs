//! One state of a memory, on one server or several.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use engram_memory::generation::Info;
use engram_memory::search::{Filter, Queries, SearchResults};
use engram_memory::{Description, Entry, MemoryError, Method, Row, Snapshot};

use crate::fan_out::each;
use crate::part::Part;
use crate::record::{GenerationRecord, server_of};
use crate::servers::Servers;
use crate::text::Texts;

/// One state of a memory on a server, or on several. It is held as long as this value exists.
pub struct PostgresSnapshot {
    servers: Arc<Servers>,
    /// The part of each server; `None` if it was unreachable. The first server is always there.
    parts: Vec<Option<Part>>,
    pub(crate) description: Description,
    /// The words of all entries, once they were searched.
    pub(crate) texts: OnceLock<Texts>,
    /// The indices of the servers that were missing from results.
    missing: Mutex<BTreeSet<usize>>,
}

impl fmt::Debug for PostgresSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { location, generation, .. } = &self.description;
        write!(f, "generation {generation} of {location}")
    }
}

impl PostgresSnapshot {
    /// The state with these parts, one for each server. `lead` is the part of the first server.
    pub(crate) fn new(servers: Arc<Servers>, lead: Part, others: Vec<Option<Part>>) -> Self {
        let number = lead.generation.number;
        let mut description = lead.generation.record.description(&servers.location(), number);
        let missing = (1..).zip(&others).filter(|(_, part)| part.is_none());
        let missing = Mutex::new(missing.map(|(index, _)| index).collect());
        let parts: Vec<Option<Part>> = std::iter::once(Some(lead)).chain(others).collect();
        for part in parts[1..].iter().flatten() {
            let part = part.generation.record.description("", number);
            description.entries += part.entries;
            description.deleted += part.deleted;
        }
        Self { servers, parts, description, texts: OnceLock::new(), missing }
    }

    /// The parts of the reachable servers.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flatten()
    }

    /// The part of each server.
    ///
    /// # Errors
    /// [`MemoryError::Remote`] if a server was unreachable
    pub(crate) fn all_parts(&self) -> Result<Vec<&Part>, MemoryError> {
        (0..self.parts.len()).map(|index| self.part(index)).collect()
    }

    /// The part of each reachable server. With partial results, records the others as missing.
    ///
    /// # Errors
    /// [`MemoryError::Remote`] if a server is unreachable, without partial results
    pub(crate) fn present_parts(&self) -> Result<Vec<&Part>, MemoryError> {
        let present = self.each_part(|part| {
            part.read(|connection| part.check_exists(connection))?;
            Ok(part.generation.record.share)
        })?;
        Ok(self.parts().filter(|part| present.contains(&part.generation.record.share)).collect())
    }

    fn part(&self, index: usize) -> Result<&Part, MemoryError> {
        self.parts[index].as_ref().ok_or_else(|| self.away(index))
    }

    fn away(&self, index: usize) -> MemoryError {
        let server = &self.servers.all()[index].server;
        server.remote("was unreachable when the memory was opened", "start it, and open it again")
    }

    /// The records of the parts.
    fn records(&self) -> impl Iterator<Item = &GenerationRecord> {
        self.parts().map(|part| &part.generation.record)
    }

    /// The number of entries of each source.
    pub(crate) fn entries_by_source(&self) -> Vec<u64> {
        let mut sums = vec![0; self.description.sources.len()];
        for record in self.records() {
            for (sum, source) in sums.iter_mut().zip(&record.sources) {
                *sum += source.entries;
            }
        }
        sums
    }

    /// The largest norm of a key so far.
    pub(crate) fn longest_key(&self) -> f32 {
        self.records().map(|record| record.longest_key).fold(0.0, f32::max)
    }

    /// Calls `work` for the part of each server, all at the same time. With partial results, leaves
    /// out unreachable servers, and records them as missing.
    pub(crate) fn each_part<T: Send>(
        &self,
        work: impl Fn(&Part) -> Result<T, MemoryError> + Sync,
    ) -> Result<Vec<T>, MemoryError> {
        let is_partial = self.servers.is_partial();
        let results = each(self.parts.iter(), |index, part| match part {
            Some(part) => work(part),
            None => Err(self.away(index)),
        });
        let mut found = Vec::with_capacity(results.len());
        for (index, result) in results.into_iter().enumerate() {
            match result {
                Ok(result) => found.push(result),
                Err(MemoryError::Remote { .. }) if is_partial => {
                    self.missing.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Reads items of rows from their servers, and returns them in the order of `rows`.
    fn gather<T: Send>(
        &self,
        rows: &[Row],
        read: impl Fn(&Part, &[Row]) -> Result<Vec<T>, MemoryError> + Sync,
    ) -> Result<Vec<T>, MemoryError> {
        let servers = self.parts.len();
        let mut by_server = vec![Vec::new(); servers];
        rows.iter().for_each(|row| by_server[row.number() as usize % servers].push(*row));
        let found = each(by_server.iter(), |index, rows| match rows.is_empty() {
            true => Ok(Vec::new()),
            false => read(self.part(index)?, rows),
        });
        let mut found = found
            .into_iter()
            .map(|found| Ok(found?.into_iter()))
            .collect::<Result<Vec<_>, MemoryError>>()?;
        let items = rows.iter().filter_map(|row| found[row.number() as usize % servers].next());
        Ok(items.collect())
    }

    /// Reads vectors of `len` components.
    fn gather_vectors(
        &self,
        rows: &[Row],
        len: usize,
        read: impl Fn(&Part, &[Row]) -> Result<Vec<f32>, MemoryError> + Sync,
    ) -> Result<Vec<f32>, MemoryError> {
        if self.parts.len() == 1 || len == 0 {
            return read(self.part(0)?, rows);
        }
        let vectors = self.gather(rows, |part, rows| {
            Ok(read(part, rows)?.chunks(len).map(<[f32]>::to_vec).collect())
        })?;
        Ok(vectors.concat())
    }
}

impl Snapshot for PostgresSnapshot {
    fn description(&self) -> &Description {
        &self.description
    }

    fn info(&self) -> Result<Info, MemoryError> {
        let bytes: u64 = self.each_part(Part::bytes)?.iter().sum();
        let stored_rows: u64 = self.records().map(|record| record.stored_rows).sum();
        let counts = self.entries_by_source().into_iter().map(|count| count as usize);
        Ok(Info::new(&self.description, counts.collect(), bytes, stored_rows as usize))
    }

    fn search(
        &self,
        method: Method,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        crate::search::search(self, method, queries, filter)
    }

    fn search_texts(
        &self,
        queries: &[&str],
        k: usize,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        crate::text::search(self, queries, k, filter)
    }

    fn missing(&self) -> Vec<String> {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.iter().map(|index| self.servers.all()[*index].server.address.to_string()).collect()
    }

    fn rows(&self) -> Result<Vec<Row>, MemoryError> {
        Ok(self.each_part(Part::rows)?.concat())
    }

    fn find(&self, ids: &[i64]) -> Result<Vec<Option<Row>>, MemoryError> {
        let servers = self.parts.len();
        let mut by_server = vec![Vec::new(); servers];
        ids.iter().for_each(|id| by_server[server_of(*id, servers)].push(*id));
        let found = each(by_server.iter(), |index, ids| {
            if ids.is_empty() {
                return Ok(HashMap::new());
            }
            let rows = self.part(index)?.find(ids)?;
            Ok(ids.iter().copied().zip(rows).collect())
        });
        let found: Vec<HashMap<i64, Option<Row>>> =
            found.into_iter().collect::<Result<_, MemoryError>>()?;
        let row = |id: &i64| found[server_of(*id, servers)].get(id).copied().flatten();
        Ok(ids.iter().map(row).collect())
    }

    fn entries(&self, rows: &[Row]) -> Result<Vec<Entry>, MemoryError> {
        self.gather(rows, Part::entries)
    }

    fn keys(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        self.gather_vectors(rows, self.description.width, Part::keys)
    }

    fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let len = self.description.values.map_or(0, |values| values.tokens * values.width);
        self.gather_vectors(rows, len, Part::values)
    }
}
