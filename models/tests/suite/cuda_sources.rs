//! `models/cuda/kernels.ptx` is compiled from the sources beside it.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn the_ptx_file_names_the_hash_of_its_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let mut hash = Sha256::new();
    for ending in ["cu", "h"] {
        let files = fs::read_dir(&folder).expect("models/cuda").map(|file| file.expect("a file"));
        let mut paths: Vec<_> = files.map(|file| file.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == ending));
        paths.sort();
        assert!(!paths.is_empty());
        for path in paths {
            hash.update(fs::read(path).expect("a source"));
        }
    }
    let ptx = fs::read_to_string(folder.join("kernels.ptx")).expect("kernels.ptx");
    let expected = format!("// sources: {:x}", hash.finalize());
    assert_eq!(ptx.lines().next(), Some(&*expected), "run tests/gpu/compile.sh");
}
