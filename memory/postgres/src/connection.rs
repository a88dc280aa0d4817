//! The settings of a connection, its transactions, and its graph searches.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub(crate) use crate::client::Connection;
use crate::failure::Failure;

/// Plans for the actual parameters find the partitions.
const PLANS: &str = "force_custom_plan";

impl Connection {
    /// Changes the settings of a new connection. Statements get this time limit.
    pub(crate) fn set_up(&mut self, limit: Duration) -> Result<(), Failure> {
        // With iterative scans, a graph search with a filter returns as many rows as requested.
        self.batch_execute(&format!(
            "SET plan_cache_mode = {PLANS}; SET hnsw.iterative_scan = relaxed_order; \
             SET client_min_messages = warning; SET jit = off",
        ))?;
        // The server takes at most this number of milliseconds.
        let limit = limit.as_millis().min(i32::MAX as u128);
        // With this search path, tables need no schema in their names, and pgvector may be in any
        // schema. With the keepalives, a server soon ends the session of a client that lost power,
        // which releases its locks. No limit ends an idle transaction, because a training run keeps
        // one open for hours. Settings that an older server lacks are skipped.
        self.query(
            "SELECT set_config(s.name, v.value, false) FROM (VALUES
                 ('search_path', concat_ws(', ', $1::text, (SELECT quote_ident(nspname)
                     FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace
                     WHERE extname = 'vector'))),
                 ('statement_timeout', $2::text), ('lock_timeout', $2),
                 ('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'),
                 ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'),
                 ('tcp_keepalives_count', '3'), ('client_connection_check_interval', '10s')
             ) v (name, value) JOIN pg_settings s USING (name)",
            &[&self.schema.clone(), &limit.to_string()],
        )?;
        Ok(())
    }

    /// Begins a transaction. Its statements, such as the build of a graph, may take any time, as
    /// long as the server accepts connections.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        self.batch_execute("BEGIN; SET LOCAL statement_timeout = 0")?;
        self.is_patient = true;
        Ok(())
    }

    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        self.is_patient = false;
        self.batch_execute("COMMIT")
    }

    pub(crate) fn roll_back(&mut self) -> Result<(), Failure> {
        self.is_patient = false;
        self.batch_execute("ROLLBACK")
    }

    /// Runs graph searches: each has the number of candidates to collect at a time, a statement and
    /// its parameters. All are sent at once, so that the server never waits for the client.
    pub(crate) fn search_graphs(
        &mut self,
        searches: &[(usize, &str, Vec<&(dyn ToSql + Sync)>)],
    ) -> Result<Vec<Vec<Row>>, Failure> {
        if searches.is_empty() {
            return Ok(Vec::new());
        }
        // The generic plan is reused, because planning takes as long as a search of a small graph.
        // Without sorting, the plan must use the graph.
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
        let results = self.query_all(&statements)?;
        Ok(results.into_iter().skip(2).step_by(2).collect())
    }
}
