//! A store in main memory whose requests take [`REQUEST`].

use std::sync::Arc;
use std::time::Duration;

use engram_memory_objects::object_store::memory::InMemory;
use engram_memory_objects::object_store::path::Path;
use engram_memory_objects::object_store::throttle::{ThrottleConfig, ThrottledStore};
use engram_memory_objects::{Connect, ObjectStorage};

/// The time of a request.
pub const REQUEST: Duration = Duration::from_millis(20);

/// A new store with this address.
pub fn storage(address: &str) -> ObjectStorage {
    let delays = ThrottleConfig {
        wait_put_per_call: REQUEST,
        wait_get_per_call: REQUEST,
        wait_list_per_call: REQUEST,
        wait_delete_per_call: REQUEST,
        ..ThrottleConfig::default()
    };
    let store = Arc::new(ThrottledStore::new(InMemory::new(), delays));
    let path = Path::from("values");
    ObjectStorage::of_store(store, path, address, Connect::default()).unwrap()
}
