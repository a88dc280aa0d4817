//! The conformance suite on memories on a server.

use std::sync::Mutex;

use crate::server::{TestServer, create_on, open_on};
use crate::suite::Subject;
use crate::support::*;
use engram_memory_postgres::{GraphSettings, PostgresStore};
use postgres::Client;

/// On two cores, 200 sequences take about half a minute.
const SEQUENCES: u64 = 200;
/// On three servers.
const SHORT_SEQUENCES: u64 = 50;

struct Memories {
    servers: Vec<TestServer>,
    admins: Vec<Mutex<Client>>,
}

impl Memories {
    fn new(servers: Vec<TestServer>) -> Self {
        let admins = servers.iter().map(|server| Mutex::new(server.admin("memories"))).collect();
        Self { servers, admins }
    }
}

/// A memory, and a second reader of it.
struct Instance {
    name: String,
    memory: Box<dyn Store>,
    store: PostgresStore,
    normalised: bool,
}

impl AsRef<dyn Store> for Instance {
    fn as_ref(&self) -> &(dyn Store + 'static) {
        self.memory.as_ref()
    }
}

impl Subject for Memories {
    type Instance = Instance;

    fn create(&self, name: &str, format: MemoryFormat, first: &Batch) -> Instance {
        let memory = Box::new(create_on(&self.servers, name, format, first));
        let store = open_on(&self.servers, name);
        Instance { name: name.to_owned(), memory, store, normalised: format.normalised }
    }

    fn maintain(&self, instance: &mut Instance) {
        if instance.normalised {
            instance.store.index(GraphSettings::default()).unwrap();
        } else {
            instance.store.begin().unwrap().commit().unwrap();
        }
    }

    fn check(&self, instance: &Instance, ids: &[i64]) {
        instance.store.reload().unwrap();
        let snapshot = instance.store.snapshot();
        for id in ids {
            let row = snapshot.find(&[*id]).unwrap()[0].unwrap();
            assert_eq!(snapshot.entry(row).unwrap().id, *id);
        }
        // With as many candidates as entries, a graph search is exact, too.
        let queries = Queries { keys: &[1.0, 0.5, -2.0], k: 5 };
        let graph = Method::Graph { candidates: 1000 };
        let [exact, graph] = [Method::Exact, graph]
            .map(|method| snapshot.search(method, queries, &Filter::default()).unwrap());
        assert_eq!(exact, graph);
    }

    fn finish(&self, instance: Instance) {
        // Nobody holds an older generation, so only the rows of the current one stay.
        instance.store.reload().unwrap();
        instance.memory.reload().unwrap();
        let snapshot = instance.store.begin().unwrap().commit().unwrap();
        let description = snapshot.description();
        assert_eq!(description.deleted, 0, "{}", instance.name);
        let schema = format!("engram_{}", instance.name);
        for admin in &self.admins {
            let mut admin = admin.lock().unwrap();
            let tables = "SELECT count(*) FROM pg_class WHERE relname ~ '^(rows_[0-9]+|build)$' \
                          AND relnamespace = $1::text::regnamespace AND relkind IN ('p', 'r')";
            assert_eq!(admin.query_one(tables, &[&schema]).unwrap().get::<_, i64>(0), 1);
            admin.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).unwrap();
        }
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn random_sequences_agree_with_a_plain_list() {
    let server = TestServer::start();
    crate::suite::run_sequences(&Memories::new(vec![server]), SEQUENCES);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn random_sequences_on_three_servers_agree_with_a_plain_list() {
    let servers = TestServer::start_three();
    crate::suite::run_sequences(&Memories::new(servers.into()), SHORT_SEQUENCES);
}
