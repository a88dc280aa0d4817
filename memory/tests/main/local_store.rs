//! The conformance suite on memories in local folders. Also reads all found values through a cache
//! that keeps values of earlier generations.

use std::path::PathBuf;

use crate::conformance::Subject;
use crate::support::*;
use engram_memory::cache::ValueCache;
use tempfile::TempDir;

const SEQUENCES: u64 = 10_000;

/// Memories in the subfolders of a folder.
struct LocalFolders(TempDir);

/// A memory, and a second reader of the same folder with a cache.
struct LocalMemory {
    folder: PathBuf,
    memory: Box<dyn Store>,
    reader: Memory,
    cache: ValueCache,
}

impl AsRef<dyn Store> for LocalMemory {
    fn as_ref(&self) -> &(dyn Store + 'static) {
        self.memory.as_ref()
    }
}

impl Subject for LocalFolders {
    type Instance = LocalMemory;

    fn create(&self, name: &str, format: MemoryFormat, first: &Batch) -> LocalMemory {
        let folder = self.0.path().join(name);
        let batches = [Ok(first.clone())].into_iter();
        Writer::create(&folder, format, first.entries.len(), batches).unwrap();
        let memory = Box::new(Memory::open(&folder).unwrap());
        let reader = Memory::open(&folder).unwrap();
        LocalMemory { folder, memory, reader, cache: ValueCache::new(1 << 20) }
    }

    fn maintain(&self, instance: &mut LocalMemory) {
        Writer::open(&instance.folder).unwrap().compact(|_| ()).unwrap();
    }

    fn check(&self, instance: &LocalMemory, ids: &[i64]) {
        instance.reader.reload().unwrap();
        let generation = instance.reader.generation();
        for id in ids {
            let row = generation.row_of(*id).unwrap().unwrap();
            let keys = generation.value_keys(&[row]).unwrap();
            let expected = generation.values(&[row]).unwrap();
            let mut cached = vec![0.0; expected.len()];
            instance.cache.read(&generation, &keys).unwrap()[0].read(&mut cached);
            assert_eq!(cached, expected);
        }
    }

    fn finish(&self, instance: LocalMemory) {
        instance.reader.reload().unwrap();
        assert!(instance.reader.generation().verify().is_empty());
        std::fs::remove_dir_all(&instance.folder).unwrap();
    }
}

#[test]
fn random_sequences_agree_with_a_plain_list() {
    crate::conformance::run_sequences(&LocalFolders(folder()), SEQUENCES);
}
