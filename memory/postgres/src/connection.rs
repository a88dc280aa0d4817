//! A connection with its prepared statements and its settings.

use std::collections::HashMap;

use bytes::Bytes;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use crate::client::{Client, Endpoint};
use crate::failure::Failure;

/// The maximum number of prepared statements of a connection. Statements name the tables of a
/// generation, so that old ones become useless.
const MAX_STATEMENTS: usize = 128;

/// Plans for the actual parameters find the partitions.
const PLANS: &str = "force_custom_plan";

/// A connection with its prepared statements.
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// The schema of the memory.
    pub(crate) schema: String,
    statements: HashMap<String, Statement>,
}

impl Connection {
    /// Opens a connection for the memory in this schema.
    pub(crate) fn open(endpoint: &Endpoint, schema: &str) -> Result<Self, Failure> {
        let mut client = endpoint.connect()?;
        // With iterative scans, a graph search with a filter returns as many rows as it is asked for.
        client.batch_execute(&format!(
            "SET plan_cache_mode = {PLANS}; SET hnsw.iterative_scan = relaxed_order; \
             SET client_min_messages = warning; SET jit = off",
        ))?;
        let mut connection = Self { client, schema: schema.to_owned(), statements: HashMap::new() };
        // The server takes at most this number of milliseconds.
        let limit = endpoint.limit.as_millis().min(i32::MAX as u128);
        // Names of tables need no schema. pgvector may be in any schema. A server ends a session, and
        // so releases its locks, soon after its client lost power. A training run keeps a transaction
        // open for hours. Older servers do not have all of the settings.
        connection.query(
            "SELECT set_config(s.name, v.value, false) FROM (VALUES
                 ('search_path', concat_ws(', ', $1::text, (SELECT quote_ident(nspname)
                     FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace
                     WHERE extname = 'vector'))),
                 ('statement_timeout', $2::text), ('lock_timeout', $2),
                 ('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'),
                 ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'),
                 ('tcp_keepalives_count', '3'), ('client_connection_check_interval', '10s')
             ) v (name, value) JOIN pg_settings s USING (name)",
            &[&schema, &limit.to_string()],
        )?;
        Ok(connection)
    }

    /// Runs a statement, which stays prepared for the next time.
    pub(crate) fn query(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let statement = self.prepare(sql)?;
        self.client.query(&statement, parameters)
    }

    /// Runs a statement, and returns the number of its rows.
    pub(crate) fn execute(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        let statement = self.prepare(sql)?;
        self.client.execute(&statement, parameters)
    }

    /// Runs statements without parameters and without results.
    pub(crate) fn batch_execute(&mut self, sql: &str) -> Result<(), Failure> {
        self.client.batch_execute(sql)
    }

    /// Runs a statement, and calls `each` with one row after the other.
    pub(crate) fn for_each(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
        each: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let statement = self.prepare(sql)?;
        self.client.for_each(&statement, parameters, each)
    }

    /// Sends the data of a statement `COPY … FROM STDIN`.
    pub(crate) fn copy_in(
        &mut self,
        sql: &str,
        parts: impl Iterator<Item = Bytes>,
    ) -> Result<(), Failure> {
        self.client.copy_in(sql, parts)
    }

    fn prepare(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql)?;
        if self.statements.len() >= MAX_STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Begins a transaction. Its statements may need any time, such as the build of a graph, as long
    /// as the server is there.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        self.client.batch_execute("BEGIN; SET LOCAL statement_timeout = 0")?;
        self.client.is_patient = true;
        Ok(())
    }

    /// Commits the transaction.
    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        self.client.is_patient = false;
        self.client.batch_execute("COMMIT")
    }

    /// Ends the transaction without its changes.
    pub(crate) fn roll_back(&mut self) -> Result<(), Failure> {
        self.client.is_patient = false;
        self.client.batch_execute("ROLLBACK")
    }

    /// Runs graph searches: each has the number of candidates that it collects at a time, a statement,
    /// and its parameters. All are sent at once, so that the server never waits for the client.
    pub(crate) fn search_graphs(
        &mut self,
        searches: &[(usize, &str, Vec<&(dyn ToSql + Sync)>)],
    ) -> Result<Vec<Vec<Row>>, Failure> {
        if searches.is_empty() {
            return Ok(Vec::new());
        }
        // Their plans stay: planning takes as long as a search of a small graph. A plan without the
        // graph would have to sort.
        let plans = "SELECT set_config('plan_cache_mode', $1, false), \
                     set_config('enable_sort', $2, false)";
        let (plans, set) =
            (self.prepare(plans)?, self.prepare("SELECT set_config('hnsw.ef_search', $1, false)")?);
        let candidates: Vec<String> =
            searches.iter().map(|(candidates, ..)| candidates.to_string()).collect();
        let parameters = |texts: &'static [&'static str; 2]| -> Vec<&(dyn ToSql + Sync)> {
            texts.iter().map(|text| text as &(dyn ToSql + Sync)).collect()
        };
        let mut statements = Vec::with_capacity(2 * searches.len() + 2);
        statements.push((plans.clone(), parameters(&["force_generic_plan", "off"])));
        for ((_, sql, parameters), candidates) in searches.iter().zip(&candidates) {
            statements.push((set.clone(), vec![candidates as &(dyn ToSql + Sync)]));
            statements.push((self.prepare(sql)?, parameters.clone()));
        }
        statements.push((plans, parameters(&[PLANS, "on"])));
        let results = self.client.query_all(&statements)?;
        Ok(results.into_iter().skip(2).step_by(2).collect())
    }
}
