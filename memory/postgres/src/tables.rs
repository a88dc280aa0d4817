//! The tables of a memory, all in its schema.
//!
//! | table | content |
//! |---|---|
//! | `generations` | a row per generation that may be in use: its number and its [record](crate::record) |
//! | `rows_B` | the rows that generation `B` wrote as a whole, and all changes since, partitioned by source |
//! | `build` | exists while a pushed generation is not yet current on all servers: [`push`](crate::push) |
//! | `rows_B_S` | the partition of the source with the index `S` |

use crate::connection::Connection;
use crate::failure::Failure;
use crate::record::GraphSettings;

/// The value of the column `removed` for a row that was not removed.
pub(crate) const NEVER: i64 = i64::MAX;

/// The columns of a row, in the order of
/// [`COPY`](https://www.postgresql.org/docs/current/sql-copy.html).
pub(crate) const COLUMNS: &str = "row, id, source, document, added, removed, key, value, entry";

/// The condition that a row of `rows_B` belongs to the generation `$1` with the stamp `$2`, and
/// that this generation was not removed.
///
/// The server evaluates the second part once for each statement, and in the same state as the rest
/// of the statement. So no statement reads a part of a generation that is removed meanwhile.
pub(crate) const VISIBLE: &str = "added <= $1 AND removed > $1 AND EXISTS \
     (SELECT FROM generations WHERE number = $1 AND stamp::text = $2)";

/// The name of the table of rows that this generation wrote.
pub(crate) fn rows_table(base: u64) -> String {
    format!("rows_{base}")
}

/// Creates the table of generations.
pub(crate) fn create_generations(connection: &mut Connection) -> Result<(), Failure> {
    // A stamp distinguishes a memory from a later one with the same name.
    connection.batch_execute(
        "CREATE TABLE generations (
             number bigint PRIMARY KEY,
             stamp uuid NOT NULL DEFAULT gen_random_uuid(),
             record json NOT NULL
         )",
    )
}

/// Creates the table that marks an unfinished build, and holds its state.
pub(crate) fn create_build(connection: &mut Connection) -> Result<(), Failure> {
    connection.batch_execute(
        "CREATE TABLE IF NOT EXISTS build (
             fingerprint text NOT NULL,
             number bigint NOT NULL,
             source_rows bigint NOT NULL,
             record json NOT NULL
         )",
    )
}

/// Drops the mark of an unfinished build, if there is one, with its rows.
pub(crate) fn drop_build(connection: &mut Connection) -> Result<(), Failure> {
    if has_build(connection)? {
        for row in connection.query("SELECT number FROM build", &[])? {
            let number: i64 = row.try_get(0)?;
            // The rows of a finished build stay: a generation has them.
            let sql = "SELECT FROM generations WHERE record ->> 'base' = $1";
            if connection.query(sql, &[&number.to_string()])?.is_empty() {
                let table = rows_table(number.cast_unsigned());
                connection.batch_execute(&format!("DROP TABLE IF EXISTS {table}"))?;
            }
        }
        connection.batch_execute("DROP TABLE build")?;
    }
    Ok(())
}

/// Whether the schema of the memory has the mark of an unfinished build.
pub(crate) fn has_build(connection: &mut Connection) -> Result<bool, Failure> {
    has_table(connection, "build")
}

/// Whether the schema of the memory has this table. The schema may be missing, too.
pub(crate) fn has_table(connection: &mut Connection, name: &str) -> Result<bool, Failure> {
    let table = format!("{}.{name}", connection.schema);
    Ok(connection.query("SELECT to_regclass($1) IS NOT NULL", &[&table])?[0].try_get(0)?)
}

/// The largest width of keys for which two rows fit into a page of 8 KB. Longer keys are stored
/// apart from their rows, which makes a search slower and the tables smaller.
const MAX_INLINE_WIDTH: usize = 960;

/// Creates a table of rows without partitions and indexes. Values are not compressed, because they
/// hardly become smaller.
pub(crate) fn create_rows(
    connection: &mut Connection,
    base: u64,
    width: usize,
) -> Result<(), Failure> {
    let table = rows_table(base);
    let storage = if width <= MAX_INLINE_WIDTH { "PLAIN" } else { "EXTERNAL" };
    connection.batch_execute(&format!(
        "CREATE TABLE {table} (
             row bigint NOT NULL,
             id bigint NOT NULL,
             source integer NOT NULL,
             document bigint NOT NULL,
             added bigint NOT NULL,
             removed bigint NOT NULL,
             key vector({width}) NOT NULL,
             value bytea,
             entry json NOT NULL
         ) PARTITION BY LIST (source);
         ALTER TABLE {table} ALTER COLUMN value SET STORAGE EXTERNAL,
             ALTER COLUMN key SET STORAGE {storage}"
    ))
}

/// Creates the partition of a source. It gets the indexes of the table.
///
/// `ATTACH PARTITION` does not block readers, unlike `CREATE TABLE … PARTITION OF`.
pub(crate) fn create_partition(
    connection: &mut Connection,
    base: u64,
    source: u32,
) -> Result<(), Failure> {
    let table = rows_table(base);
    connection.batch_execute(&format!(
        "CREATE TABLE {table}_{source} (LIKE {table} INCLUDING STORAGE);
         ALTER TABLE {table} ATTACH PARTITION {table}_{source} FOR VALUES IN ({source})"
    ))
}

/// Indexes a table of rows. This is faster after its rows are written. The planner gets statistics,
/// by which it chooses between indexes and a scan.
pub(crate) fn create_indexes(connection: &mut Connection, base: u64) -> Result<(), Failure> {
    let table = rows_table(base);
    connection.batch_execute(&format!(
        "CREATE INDEX ON {table} (row); CREATE INDEX ON {table} (id);
         CREATE INDEX ON {table} (removed) WHERE removed < {NEVER};
         ANALYZE {table}"
    ))
}

/// Builds graphs of half-precision keys, one per partition, which replace existing graphs.
pub(crate) fn create_graphs(
    connection: &mut Connection,
    (base, width): (u64, usize),
    settings: GraphSettings,
) -> Result<(), Failure> {
    let table = rows_table(base);
    let GraphSettings { connections, ef_construction } = settings;
    connection.batch_execute(&format!(
        "DROP INDEX IF EXISTS graph_{base};
         CREATE INDEX graph_{base} ON {table} USING hnsw ((key::halfvec({width})) halfvec_ip_ops)
         WITH (m = {connections}, ef_construction = {ef_construction})"
    ))
}
