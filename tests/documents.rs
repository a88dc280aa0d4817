//! The documents: all links have targets, and all paths in README's tables exist.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The documents and their texts without code blocks.
fn documents() -> Vec<(PathBuf, String)> {
    let in_folder = |folder: &str| {
        let entries = std::fs::read_dir(repository_root().join(folder)).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| {
            file.extension().is_some_and(|extension| extension == "md" || extension == "ipynb")
        });
        files.sort();
        files
    };
    let files = [".", "docs", "notebooks", "train/bundled"].into_iter().flat_map(in_folder);
    files
        .map(|file| (file.clone(), without_code(&std::fs::read_to_string(file).unwrap())))
        .collect()
}

fn without_code(text: &str) -> String {
    let outside = text.split("\n```").enumerate().filter(|(index, _)| index % 2 == 0);
    outside.map(|(_, part)| part).collect::<Vec<_>>().join("\n")
}

/// All parts of a text between two marks.
fn texts_between<'t>(text: &'t str, open: &str, close: &str) -> Vec<&'t str> {
    text.split(open).skip(1).filter_map(|after| after.split(close).next()).collect()
}

/// The anchor of a heading on GitHub.
fn heading_anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let letters = text.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
    letters.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn all_links_have_targets() {
    let documents = documents();
    assert!(documents.len() > 15, "{}", documents.len());
    let anchors: HashMap<PathBuf, Vec<String>> = documents
        .iter()
        .map(|(file, text)| {
            let headings = text.lines().filter(|line| line.starts_with('#')).map(heading_anchor);
            (file.canonicalize().unwrap(), headings.collect())
        })
        .collect();
    let mut broken = Vec::new();
    for (file, text) in &documents {
        let links = texts_between(text, "](", ")").into_iter().filter(|link| !link.contains("://"));
        for link in links {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().unwrap().join(path),
            };
            let exists = target.canonicalize().is_ok_and(|target| {
                heading.is_empty()
                    || anchors
                        .get(&target)
                        .is_some_and(|headings| headings.iter().any(|anchor| anchor == heading))
            });
            if !exists {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn all_paths_in_the_readme_tables_exist() {
    let readme = std::fs::read_to_string(repository_root().join("README.md")).unwrap();
    let folders: Vec<String> = std::fs::read_dir(repository_root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| format!("{}/", entry.file_name().to_string_lossy()))
        .collect();
    let (mut checked, mut missing) = (0, Vec::new());
    for row in readme.lines().filter(|line| line.starts_with('|')) {
        let words: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        // The paths in a row of the table may be relative to the row's first path.
        let base = repository_root().join(words.first().copied().unwrap_or_default());
        for word in
            words.iter().filter(|word| folders.iter().any(|folder| word.starts_with(folder)))
        {
            for path in expanded(word) {
                checked += 1;
                if !repository_root().join(&path).exists() && !base.join(&path).exists() {
                    missing.push(path);
                }
            }
        }
    }
    assert!(checked > 80, "{checked}");
    assert!(missing.is_empty(), "README names missing paths: {}", missing.join(", "));
}

/// Expands `a/{b,c}.rs` to `a/b.rs` and `a/c.rs`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (choices, after) = rest.split_once('}').unwrap();
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}
