//! The documents: all paths in the map and the lists of checks exist. `docs/build.py` checks links.

use std::path::Path;

fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn all_named_paths_exist() {
    let folders: Vec<String> = std::fs::read_dir(repository_root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| format!("{}/", entry.file_name().to_string_lossy()))
        .collect();
    let (mut checked, mut missing) = (0, Vec::new());
    for page in ["docs/map.md", "docs/guarantees.md", "docs/evaluation.md"] {
        let text = std::fs::read_to_string(repository_root().join(page)).unwrap();
        let words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        for word in words.filter(|word| folders.iter().any(|folder| word.starts_with(folder))) {
            for path in expanded(word) {
                checked += 1;
                if !repository_root().join(&path).exists() {
                    missing.push(format!("{page}: {path}"));
                }
            }
        }
    }
    assert!(checked > 80, "{checked}");
    assert!(missing.is_empty(), "missing paths:\n{}", missing.join("\n"));
}

/// Expands `a/{b,c}.rs` to `a/b.rs` and `a/c.rs`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (choices, after) = rest.split_once('}').unwrap();
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}
