//! A memory on a PostgreSQL server with pgvector, or on several.
//!
//! [`PostgresStore`] is a [`Store`](engram_memory::Store) like a memory in a local folder: the same
//! searches give the same entries in the same order with the same scores.
//!
//! | module | responsibility |
//! |---|---|
//! | [`store`], `remove` | a memory: open, reload, build graphs, remove |
//! | [`mod@push`] | copies a local memory; continues a copy that was killed |
//! | `memory_server` | an address at which a memory need not exist yet, for example for a training run |
//! | `address`, `password_file` | the address of a memory, and the login |
//! | `client`, `connection`, `tls` | a connection with time limits, its settings and its encryption |
//! | `server` | a pool of connections, and retries |
//! | `servers`, `fan_out` | all servers of a memory, at the same time |
//! | `failure` | errors of a server, and their remedies |
//! | `tables`, `record` | the tables; the record of a generation |
//! | `snapshot`, `part` | one state: rows, entries, keys, values, statistics; its part on a server |
//! | `holder` | holds generations, so that their rows stay |
//! | `search`, `graph` | exact search and graph search |
//! | `text` | search in texts |
//! | `transaction`, `change` | a change of a memory; its part on a server |
//! | `rows`, `copy` | new rows, and their format |
//! | `sweep`, `undo` | remove generations that nobody holds, or that were not made on all servers |
//! | `vector` | pgvector's binary format |
//!
//! # Address
//!
//! `postgres://user@/database?host=/run/postgresql&memory=name`, or
//! `postgres://user@host:port/database?memory=name`. The memory is the schema `engram_name` of the
//! database. The password comes from `PGPASSWORD` or `~/.pgpass`. A connection over a network is
//! encrypted, and the server's certificate must be from an authority of Mozilla's list or of the
//! PEM file `sslrootcert=FILE`. Only [`Connect::insecure`] allows a connection without encryption,
//! for example through a tunnel. The database needs the extension `vector`. No superuser is needed.
//!
//! Each connection and each statement has a time limit ([`Connect`]). If a connection breaks, its
//! reads are repeated on a new one. A connection pooler must give each client its own session
//! (pgbouncer: `pool_mode = session`), because advisory locks belong to a session.
//!
//! # Several servers
//!
//! Entry `id` is on server `id % N` of `N`. Each server has the schema of a memory, with its share
//! of the entries, and is searched by its own connections. The hits are merged by their scores in
//! double precision. The first server names the current generation, so a change commits there last.
//! If the writer is killed before that, no reader sees the change, and the next writer removes it.
//! An unreachable server is an error, or its entries are left out ([`Connect::partial`]).
//!
//! # Generations
//!
//! A row has the number of the generation that added it, and of the generation that removed it. So
//! a generation `g` has the rows with `added <= g < removed`. A change inserts its new rows, marks
//! the rows that it removes, and inserts the record of the next generation, all in one transaction
//! of the server. The generation with the largest number is the current one. So
//!
//! - a small change needs little time, however large the memory is;
//! - a change is made as a whole, or not at all, also if the server or the client is killed;
//! - a held generation stays as it is, however many changes follow.
//!
//! If a change encodes all entries again, their rows go into new tables, because a graph over old
//! and new keys would be slow and inexact. New tables are written without locks on the old ones,
//! and are indexed before they are used. They are not partitions of one table, so old tables are
//! removed without waiting for readers of newer ones. The partitions of a table are its sources,
//! because a search in a small source would be slow with one index for all.
//!
//! A snapshot holds its generation by a shared advisory lock. The next writer removes generations
//! without a holder, and rows that every other generation has removed. If a reader loses its lock
//! because its connection breaks, the generation may be removed. Then its reads return
//! [`MissingGeneration`](engram_memory::MemoryError::MissingGeneration), and never a part of it.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod address;
mod change;
mod client;
mod connection;
mod copy;
mod failure;
mod fan_out;
mod graph;
mod holder;
mod memory_server;
mod part;
mod password_file;
pub mod push;
mod record;
mod remove;
mod rows;
mod search;
mod server;
mod servers;
mod snapshot;
pub mod store;
mod sweep;
mod tables;
mod text;
mod tls;
mod transaction;
mod undo;
mod vector;

pub use address::Connect;
pub use memory_server::PostgresServer;
pub use push::{Progress, PushOptions, push};
pub use record::GraphSettings;
pub use remove::remove;
pub use snapshot::PostgresSnapshot;
pub use store::PostgresStore;
