//! `engram memory push` and `pull`: copy a memory between a folder and PostgreSQL servers, and
//! values to an object store.

use std::sync::Arc;

use clap::Args;
use engram_data::messages::counted;
#[cfg(feature = "postgres")]
use engram_infer::reveal::identity::Identity;
use engram_memory::search::graph::GraphSettings;
use engram_memory::{
    Batch, Description, Memory, MemoryError, MemoryFormat, Row, Snapshot, ValuesLocation, Writer,
};
use serde::Serialize;

use super::super::paths::{InputFolder, NewFolder};
use super::super::{Outcome, output};
use super::GraphKindName;
use super::location::{self, ServerOptions, addresses};

/// The number of key and value components that are read at a time.
const PULLED_NUMBERS: usize = 1 << 21;

/// Copy a memory from a folder to PostgreSQL, or its values to an object store.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs a program with the feature `postgres`, and a database with the extension pgvector. Readers see
the memory once all of it is there. A push that was stopped goes on where it ended. A memory with a
graph gets graphs on the servers, too. The password is in PGPASSWORD or ~/.pgpass. Connections over a
network are encrypted; sslrootcert=FILE in the address names the certificate of your own authority.

Entry `id` is on server `id % N` of N servers. Give their addresses always in the same order.

Object stores (s3, gs, az, or a folder with a slash in its path) get the values only, and need a
program with the feature `objects`. Without --move, the store gets a copy, and the folder keeps its
values: a later --move to the same address sends what is missing. With --move, the folder keeps the
keys and the address, and all commands read the values from there; `engram memory compact` writes them
to the folder again. Values of small changes stay in the folder. The first push gives the memory an
identity, and the address then belongs to this memory: other memories are refused there, unless
--replace is given, which removes nothing. The credentials are in the store's usual variables, such as
AWS_ACCESS_KEY_ID.

Examples:
  engram memory push memory s3://bucket/birds --move
  engram memory push memory file:///mnt/values/birds
  engram memory push memory 'postgres://ann@db.example/wiki?memory=birds'
  engram memory push memory 'postgres://ann@/wiki?host=/run/postgresql&memory=birds' --replace
  engram memory push memory 'postgres://ann@db1/wiki,postgres://ann@db2/wiki'
  engram memory search 'postgres://ann@db.example/wiki?memory=birds' --queries queries.npy")]
pub struct Push {
    /// Folder of the memory
    folder: InputFolder,
    /// Address on PostgreSQL (several are separated by commas or spaces), or of an object store:
    /// s3://…, gs://…, az://…, file://… or a folder
    #[arg(value_name = "URL")]
    urls: String,
    /// Replace the memory that exists at the address
    #[arg(long)]
    replace: bool,
    /// Remove the values from the folder, and read them from the object store
    #[arg(long = "move", hide = !cfg!(feature = "objects"))]
    moves: bool,
    /// Read the values that the object store has already, and send damaged ones again
    #[arg(long, hide = !cfg!(feature = "objects"))]
    recheck: bool,
    #[command(flatten)]
    server: ServerOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Copy a memory from PostgreSQL to a folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs a program with the feature `postgres`. A memory with graphs on the servers gets graphs in the
folder, too. A pull that was stopped starts anew in the same folder. If it was stopped while it built
the graphs, the memory is there, and `engram memory index` builds them.

Examples:
  engram memory pull 'postgres://ann@db.example/wiki?memory=birds' memory
  engram memory pull 'postgres://ann@db1/wiki,postgres://ann@db2/wiki' memory --graph hnsw")]
pub struct Pull {
    /// Address of the memory; addresses of several servers are separated by commas or spaces
    #[arg(value_name = "URL")]
    urls: String,
    /// Output folder
    #[arg(value_name = "FOLDER")]
    out: NewFolder,
    /// Build graphs of this kind. Default: vamana for a memory with graphs, and no graphs otherwise
    #[arg(long, value_enum, value_name = "KIND")]
    graph: Option<GraphKindName>,
    #[command(flatten)]
    server: ServerOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON output.
#[derive(Serialize)]
struct Report<'a> {
    location: &'a str,
    generation: u64,
    entries: usize,
    /// The number of entries that an earlier push had copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_at: Option<usize>,
}

impl Push {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        if addresses(self.urls.as_ref()).is_none() {
            anyhow::ensure!(
                self.urls.contains(['/', '\\']),
                "the second argument must be an address such as s3://bucket/name, /folder or \
                 postgres://user@host/database?memory=name"
            );
            return self.push_values();
        }
        for (option, is_given) in [("--move", self.moves), ("--recheck", self.recheck)] {
            anyhow::ensure!(!is_given, "{option} is for values in object stores; leave it out");
        }
        let memory = location::open_folder(&self.folder)?;
        self.push(&memory)
    }

    /// Copies or moves values to an object store.
    fn push_values(&self) -> anyhow::Result<Outcome> {
        anyhow::ensure!(
            !self.server.insecure,
            "--insecure is for memories on PostgreSQL; leave it out"
        );
        let storage = location::value_storage(&self.urls, self.recheck, self.replace)?;
        let address = storage.target().unwrap_or(&self.urls);
        let mut writer = Writer::open_with(&*self.folder, Some(Arc::clone(&storage)))?;
        let entries = writer.generation().len();
        let has_moved =
            writer.generation().external_values().keys().any(|at| at.address == address);
        let folder = self.folder.display();
        anyhow::ensure!(
            !(self.recheck && has_moved),
            "--recheck needs the values in {folder}, but they were moved to {address}; restore a \
             copy of the damaged object"
        );
        anyhow::ensure!(
            self.moves || !has_moved,
            "{folder} reads its values from {address}; add --move to move the new values there, too"
        );
        let ValuesLocation { address, generation } = match self.moves {
            true => writer.move_values(storage.as_ref(), address)?,
            false => {
                writer.identify(None)?;
                storage.store(address, writer.generation())?
            }
        };
        let sent = match self.moves {
            true => writer.generation().external_values().into_values().sum(),
            false => entries,
        };
        let report = Report { location: &address, generation, entries: sent, resumed_at: None };
        output::print_report(self.json, &report, || {
            let sent = counted(sent, "entry");
            format!("{address}: generation {generation}, values of {sent}")
        })?;
        if sent < entries {
            output::note(&format!(
                "the values of {} stay in {folder}, in small segments; to move them, run `engram \
                 memory compact`, then push again",
                counted(entries - sent, "entry")
            ));
        }
        Ok(Outcome::Done)
    }

    #[cfg(not(feature = "postgres"))]
    fn push(&self, _: &Memory) -> anyhow::Result<Outcome> {
        // Otherwise, nothing reads these options without the feature.
        let _ = (self.replace, self.server.insecure);
        Err(location::without_feature())
    }

    #[cfg(feature = "postgres")]
    fn push(&self, memory: &Memory) -> anyhow::Result<Outcome> {
        use engram_memory_postgres::{GraphSettings, Progress, PushOptions, push};
        let source = memory.generation();
        let has_graph = Snapshot::description(source.as_ref()).has_graph;
        let graph = has_graph.then(GraphSettings::default);
        // A memory on servers has no identity file.
        let identity = Identity::read(&self.folder)?;
        let record = |identity: Identity| identity.record("a REVEAL run", source.manifest().width);
        let encoders: Vec<_> = identity.map(record).into_iter().collect();
        let options = PushOptions { replace: self.replace, graph, encoders: &encoders };
        let bar = output::progress_bar(source.len(), "entries");
        let mut resumed_at = None;
        let connect = location::connect(self.server, false);
        let pushed = push(&source, &self.urls, connect, options, &mut |progress| match progress {
            Progress::Rows(rows) => {
                if resumed_at.is_none() {
                    // Rows of an earlier push must not count in the estimate of the remaining time.
                    bar.set_position(rows as u64);
                    bar.reset_eta();
                }
                resumed_at.get_or_insert(rows);
                bar.set_position(rows as u64);
            }
            Progress::Indexes => {
                bar.set_message("building the indexes");
                bar.enable_steady_tick(std::time::Duration::from_secs(1));
            }
        });
        bar.finish_and_clear();
        let pushed = pushed?;
        report(self.json, pushed.description(), resumed_at.filter(|rows| *rows > 0))
    }
}

impl Pull {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let store = location::open(self.urls.as_ref(), self.server, false)?;
        let snapshot = store.snapshot();
        let Description { width, normalised, values, .. } = *snapshot.description();
        let format = MemoryFormat { width, normalised, values };
        let encoders = snapshot.description().encoders.clone();
        let mut rows = snapshot.rows()?;
        rows.sort_unstable();
        let value_len = values.map_or(0, |values| values.tokens * values.width);
        let at_once = (PULLED_NUMBERS / (width + value_len)).clamp(1, 4096);
        let bar = output::progress_bar(rows.len(), "entries");
        let batches = rows.chunks(at_once).map(|rows: &[Row]| -> Result<Batch, MemoryError> {
            let batch = Batch {
                entries: snapshot.entries(rows)?,
                keys: snapshot.keys(rows)?,
                values: snapshot.values(rows)?,
            };
            bar.inc(rows.len() as u64);
            Ok(batch)
        });
        let writer = Writer::create_encoded(&*self.out, format, encoders, rows.len(), batches);
        bar.finish_and_clear();
        let mut writer = writer?;
        let has_graph = snapshot.description().has_graph;
        let kind = self.graph.or(has_graph.then_some(GraphKindName::Vamana));
        if let Some(kind) = kind {
            let bar = output::progress_bar(rows.len(), "keys");
            writer.index(GraphSettings::of(kind.into()), || bar.inc(1))?;
            bar.finish_and_clear();
        }
        report(self.json, Snapshot::description(writer.generation().as_ref()), None)
    }
}

fn report(json: bool, memory: &Description, resumed_at: Option<usize>) -> anyhow::Result<Outcome> {
    let Description { location, generation, entries, .. } = memory;
    let report = Report { location, generation: *generation, entries: *entries, resumed_at };
    output::print_report(json, &report, || {
        let resumed = match resumed_at {
            Some(rows) => format!(" ({rows} of them from an earlier push)"),
            None => String::new(),
        };
        format!("{location}: generation {generation}, {}{resumed}", counted(*entries, "entry"))
    })?;
    Ok(Outcome::Done)
}
