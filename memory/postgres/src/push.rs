//! Copies a local memory to the servers, in parts that are committed one after the other.
//!
//! The rows go into new tables, which no generation names before all rows and indexes are complete.
//! The table `build` records the source's fingerprint and how many of its rows the server has. So a
//! push that was killed continues where it ended, and a push of another source starts anew.

use std::sync::Arc;

use engram_memory::{Batch, EncoderRecord, Generation, MemoryError, Row, Snapshot};
use sha2::{Digest, Sha256};

use crate::address::Connect;
use crate::change::{Change, index, insert_on_all};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::holder::{Stored, exists, newest};
use crate::record::{GenerationRecord, GraphSettings, Share};
use crate::rows::write;
use crate::server::Server;
use crate::servers::Servers;
use crate::snapshot::PostgresSnapshot;
use crate::store::{check_graph, check_width};
use crate::tables::{
    create_build, create_generations, create_rows, drop_build, has_build, has_table,
};
use crate::undo::undo_later;

/// The maximum number of rows, and of key and value components, that are committed at once.
const MAX_PART: (usize, usize) = (1 << 14, 1 << 22);

/// The options of a push.
#[derive(Debug, Clone, Copy, Default)]
pub struct PushOptions<'a> {
    /// Makes the source the next generation of a memory that exists at the address.
    pub replace: bool,
    /// Builds graphs of the keys, for [`Method::Graph`](engram_memory::Method::Graph).
    pub graph: Option<GraphSettings>,
    /// The models that encoded the keys, if the source names none.
    pub encoders: &'a [EncoderRecord],
}

/// The progress of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// This many rows are on the servers.
    Rows(usize),
    /// All rows are on the servers, and the indexes are being built.
    Indexes,
}

/// Copies the state of a local memory to the servers with these addresses, separated by spaces or
/// commas, and makes it their current generation. Continues a push of the same source that was
/// killed. The user needs the privilege to create schemas in the databases.
///
/// # Errors
/// [`MemoryError::Remote`]; [`MemoryError::RemoteExists`] for an existing memory without `replace`;
/// [`MemoryError::Locked`] while another process writes to the memory; [`MemoryError::Corrupt`] for
/// a damaged source; [`MemoryError::InvalidOption`] for keys that are too wide, or cannot have
/// graphs; [`MemoryError::ChangeMade`] if the copy is complete, but could not be opened
pub fn push(
    source: &Arc<Generation>,
    urls: &str,
    connect: Connect,
    options: PushOptions<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Arc<PostgresSnapshot>, MemoryError> {
    let description = Snapshot::description(source.as_ref());
    check_width(description.width)?;
    if let Some(settings) = options.graph {
        check_graph(settings, description)?;
    }
    let servers = Arc::new(Servers::new(urls, Connect { partial: false, ..connect })?);
    let encoders = match description.encoders.is_empty() {
        true => options.encoders,
        false => &description.encoders,
    };
    let fingerprint = fingerprint(source, encoders)?;
    let mut push = Push { fingerprint, source, encoders, parts: Vec::new() };
    push.prepare(&servers, options.replace)?;
    push.copy(progress)?;
    progress(Progress::Indexes);
    push.build_indexes(options.graph)?;
    let mut parts: Vec<Change> = push.parts.into_iter().map(|(part, _)| part).collect();
    let number = commit_first(&mut parts)?;
    // The locks end with the connections.
    servers.hold_current(None).map_err(|error| servers.change_made(number, error))
}

/// Identifies the content of a source: a hash of its manifest, which has the checksums of all
/// files.
fn fingerprint(source: &Generation, encoders: &[EncoderRecord]) -> Result<String, MemoryError> {
    let manifest = serde_json::to_vec(&(source.manifest(), encoders))
        .map_err(|error| MemoryError::Rows(error.into()))?;
    Ok(Sha256::digest(manifest).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A push with the locks of the writer.
struct Push<'a> {
    source: &'a Generation,
    fingerprint: String,
    encoders: &'a [EncoderRecord],
    /// The part of each server, with the number of rows of the source that the server has.
    parts: Vec<(Change, usize)>,
}

impl Push<'_> {
    /// Takes the locks, and finds or creates the tables of the new generation.
    fn prepare(&mut self, servers: &Servers, replace: bool) -> Result<(), MemoryError> {
        let mut connections = servers.lock()?;
        let mut lead: Option<Stored> = None;
        for (index, (shared, connection)) in servers.all().iter().zip(&mut connections).enumerate()
        {
            let server = &shared.server;
            let found = check_extension(server, connection)
                .and_then(|()| create_schema(connection))
                .and_then(|()| newest(connection, server))
                .map_err(|failure| shared.failed(failure))?;
            let Some(found) = found else { continue };
            if found.record.share != servers.share(index) {
                let reason = format!("has a memory on {} servers", found.record.share.servers);
                let remedy = "give the addresses of all of them, in their first order";
                return Err(server.remote(reason, remedy));
            }
            let is_own = match &lead {
                _ if index == 0 => replace,
                Some(lead) => exists(connection, lead).map_err(|failure| shared.failed(failure))?,
                // A killed push may have committed here, but not on the first server.
                None => has_build(connection).map_err(|failure| shared.failed(failure))?,
            };
            if !is_own {
                return Err(match index {
                    0 => MemoryError::RemoteExists { location: server.address.to_string() },
                    _ => server.remote(
                        "another memory exists here already",
                        "give the addresses of one memory, or another name with memory=NAME",
                    ),
                });
            }
            if index == 0 {
                lead = Some(found);
            }
        }
        let parts = each(connections.into_iter(), |index, mut connection| {
            let shared = &servers.all()[index];
            let begun =
                self.begin(&mut connection, lead.as_ref(), servers.share(index), index == 0);
            let (record, done) = begun.map_err(|failure| shared.failed(failure))?;
            Ok((Change { server: Arc::clone(&shared.server), connection, record }, done))
        });
        self.parts = parts.into_iter().collect::<Result<_, MemoryError>>()?;
        Ok(())
    }

    /// Finds the state of an unfinished push of this source on a server, or begins a new one.
    /// Returns the new generation's record, and the number of the source's rows on the server.
    fn begin(
        &self,
        connection: &mut Connection,
        lead: Option<&Stored>,
        share: Share,
        is_lead: bool,
    ) -> Result<(GenerationRecord, usize), Failure> {
        let number = lead.map_or(0, |lead| lead.number) + 1;
        connection.begin()?;
        create_build(connection)?;
        let sql = "SELECT source_rows, record::text FROM build \
                   WHERE fingerprint = $1 AND number = $2";
        let unfinished = connection.query(sql, &[&self.fingerprint, &number.cast_signed()])?;
        let mut found = None;
        if let Some(row) = unfinished.first() {
            let record = GenerationRecord::parse(row.try_get(1)?, &connection.schema)?;
            let done: i64 = row.try_get(0)?;
            found = (record.share == share).then_some((record, done as usize));
        }
        if !is_lead {
            // Removes a generation that a killed writer committed here, but not on the first
            // server.
            match lead {
                Some(lead) if found.is_none() => undo_later(connection, lead)?,
                _ => {
                    let sql = "DELETE FROM generations WHERE number >= $1";
                    connection.execute(sql, &[&number.cast_signed()])?;
                }
            }
        }
        let found = match found {
            Some(found) => found,
            None => {
                drop_build(connection)?;
                create_build(connection)?;
                (self.begin_anew(connection, number, share)?, 0)
            }
        };
        connection.commit()?;
        Ok(found)
    }

    /// Creates the tables of rows, and the state of a new push.
    fn begin_anew(
        &self,
        connection: &mut Connection,
        number: u64,
        share: Share,
    ) -> Result<GenerationRecord, Failure> {
        let source = Snapshot::description(self.source);
        let shape = (source.width, source.normalised, source.values);
        let mut record = GenerationRecord::empty(number, shape, self.encoders.to_vec(), share);
        record.next_id = source.next_id;
        create_rows(connection, number, source.width)?;
        // The sources have the indices that they have in the source, because gates depend on them.
        record.create_sources(connection, &source.sources)?;
        let sql = "INSERT INTO build (fingerprint, number, source_rows, record) \
                   VALUES ($1, $2, 0, $3::text::json)";
        let text = record.to_json()?;
        connection.execute(sql, &[&self.fingerprint, &number.cast_signed(), &text])?;
        Ok(record)
    }

    /// Copies the rows that the servers do not have yet.
    fn copy(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), MemoryError> {
        let source = self.source;
        let rows: Vec<Row> = source.live_rows().collect();
        let values = source.manifest().values.map_or(0, |values| values.tokens * values.width);
        let (most, numbers) = MAX_PART;
        let at_once = (numbers / (source.manifest().width + values)).clamp(1, most);
        loop {
            let Some(start) = self.parts.iter().map(|(_, done)| *done).min() else { return Ok(()) };
            progress(Progress::Rows(start));
            if start >= rows.len() {
                return Ok(());
            }
            // Another server may have further rows.
            let further = self.parts.iter().map(|(_, done)| *done).filter(|done| *done > start);
            let end = further.chain([start + at_once, rows.len()]).min().unwrap_or(rows.len());
            let batch = batch(source, &rows[start..end])?;
            let behind = self.parts.iter_mut().filter(|(_, done)| *done == start);
            let mut behind: Vec<&mut (Change, usize)> = behind.collect();
            for (part, _) in &mut behind {
                part.attempt(|connection, _| connection.begin())?;
            }
            let Some(number) = behind.first().map(|(part, _)| part.record.base) else {
                return Ok(());
            };
            let changes = behind.iter_mut().map(|(part, _)| part).collect();
            let batches = std::iter::once(Ok(batch));
            write(changes, number, end - start, batches, |_, _| Ok(()))?;
            let committed = each(behind.into_iter(), |_, (part, done)| {
                *done = end;
                part.attempt(|connection, record| {
                    let sql = "UPDATE build SET source_rows = $1, record = $2::text::json";
                    connection.execute(sql, &[&(end as i64), &record.to_json()?])?;
                    connection.commit()
                })
            });
            committed.into_iter().collect::<Result<(), MemoryError>>()?;
        }
    }

    /// Begins the last transactions, and builds the indexes in them.
    fn build_indexes(&mut self, graph: Option<GraphSettings>) -> Result<(), MemoryError> {
        let built = each(self.parts.iter_mut(), |_, (part, _)| {
            part.attempt(|connection, record| {
                connection.begin()?;
                record.graph = graph;
                index(connection, record)
            })
        });
        built.into_iter().collect()
    }
}

/// Returns rows of the source with their entries, keys and values.
fn batch(source: &Generation, rows: &[Row]) -> Result<Batch, MemoryError> {
    let source: &dyn Snapshot = source;
    Ok(Batch {
        entries: source.entries(rows)?,
        keys: source.keys(rows)?,
        values: source.values(rows)?,
    })
}

/// Creates the schema and the table of generations, unless they exist.
fn create_schema(connection: &mut Connection) -> Result<(), Failure> {
    if has_table(connection, "generations")? {
        return Ok(());
    }
    connection.begin()?;
    let create = format!("CREATE SCHEMA IF NOT EXISTS {}", connection.schema);
    connection.batch_execute(&create)?;
    create_generations(connection)?;
    create_build(connection)?;
    connection.commit()
}

/// Commits the new generation, on the first server last. Then removes the marks of the build.
/// Returns the number of the generation.
fn commit_first(parts: &mut [Change]) -> Result<u64, MemoryError> {
    let number = parts[0].record.base;
    insert_on_all(parts, number)?;
    for index in (0..parts.len()).rev() {
        parts[index].attempt(|connection, _| connection.commit())?;
    }
    for part in parts {
        // The next writer removes a mark that stays.
        let _ = part.attempt(|connection, _| drop_build(connection));
    }
    Ok(number)
}

/// Returns an error if the database has no pgvector.
fn check_extension(server: &Server, connection: &mut Connection) -> Result<(), Failure> {
    let sql = "SELECT FROM pg_extension WHERE extname = 'vector'";
    if connection.query(sql, &[])?.is_empty() {
        let reason = "the database has no pgvector";
        let remedy = "let the owner of the database run `CREATE EXTENSION vector`";
        return Err(server.remote(reason, remedy).into());
    }
    Ok(())
}
