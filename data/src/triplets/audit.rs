//! Databases and prompts in the layout of the audit of limited memory language models (arXiv
//! 2607.00605): `DATABASE/TOPOLOGY.json` and `DATABASE/prompts/TOPOLOGY/prompts_STYLE.jsonl`.

use std::path::{Path, PathBuf};

use engram_textfile::{TextError, json_lines, message, read_text};
use serde::Deserialize;

use super::Triplet;
use crate::error::DataError;

/// A database in one topology, with its prompts.
#[derive(Debug)]
pub struct Database {
    /// The name of the database's folder.
    pub name: String,
    /// The name of its file, such as `base` or `noise`.
    pub topology: String,
    /// The facts.
    pub facts: Vec<Triplet>,
    /// The files of prompts, by name.
    pub files: Vec<PromptFile>,
}

/// The prompts of one style.
#[derive(Debug)]
pub struct PromptFile {
    /// The name of the file without its ending, such as `prompts_cloze`.
    pub name: String,
    /// The prompts, in the order of the file.
    pub prompts: Vec<Prompt>,
}

/// A prompt that asks for the object of a fact.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    /// The index of the fact in the database.
    pub fact_id: usize,
    /// The subject of the fact.
    pub subject: String,
    /// Other names of the subject.
    #[serde(default)]
    pub subject_aliases: Vec<String>,
    /// The relation of the fact.
    pub relation: String,
    /// Other names of the relation.
    #[serde(default)]
    pub relation_aliases: Vec<String>,
    /// The object of the fact.
    pub gold_object: String,
    /// Other names of the object.
    #[serde(default)]
    pub object_aliases: Vec<String>,
    /// The text.
    pub prompt_text: String,
}

#[derive(Deserialize)]
struct DatabaseFile {
    triplets: Vec<[String; 3]>,
}

/// Reads all databases in a folder, or the database in it.
///
/// # Errors
/// There is no database, a file cannot be read, or a prompt is about a fact that its database does
/// not have; the error names file and line.
pub fn read(folder: &Path) -> Result<Vec<Database>, DataError> {
    let mut databases = Vec::new();
    let is_database = folder.join("prompts").is_dir();
    let folders = if is_database { vec![folder.to_path_buf()] } else { paths(folder)? };
    for folder in folders.iter().filter(|folder| folder.join("prompts").is_dir()) {
        for prompts in paths(&folder.join("prompts"))?.iter().filter(|path| path.is_dir()) {
            let topology = stem(prompts);
            databases.push(database(folder, &topology, prompts)?);
        }
    }
    if databases.is_empty() {
        let remedy = "give a folder with DATABASE/TOPOLOGY.json and \
                      DATABASE/prompts/TOPOLOGY/prompts_STYLE.jsonl";
        return Err(
            TextError::malformed(folder, None, "has no database with prompts", remedy).into()
        );
    }
    Ok(databases)
}

fn database(folder: &Path, topology: &str, prompts: &Path) -> Result<Database, DataError> {
    let file = folder.join(format!("{topology}.json"));
    let remedy = "give the published file: {\"triplets\": [[subject, relation, object], …]}";
    let database: DatabaseFile = serde_json::from_str(&read_text(&file)?)
        .map_err(|error| TextError::malformed(&file, None, message(&error), remedy))?;
    let facts: Vec<Triplet> = database
        .triplets
        .into_iter()
        .map(|[subject, relation, object]| Triplet { subject, relation, object })
        .collect();
    let mut files = Vec::new();
    for path in paths(prompts)?.iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
    {
        let prompts = read_prompts(path, &file, &facts)?;
        files.push(PromptFile { name: stem(path), prompts });
    }
    Ok(Database { name: stem(folder), topology: topology.to_owned(), facts, files })
}

fn read_prompts(path: &Path, database: &Path, facts: &[Triplet]) -> Result<Vec<Prompt>, DataError> {
    let text = read_text(path)?;
    let remedy = "write {\"fact_id\", \"subject\", \"relation\", \"gold_object\", \"prompt_text\"}";
    let parsed = json_lines(&path.to_string_lossy(), &text, remedy, |line, prompt| (line, prompt))?;
    let check = |(line, prompt): (u64, Prompt)| {
        let names = [&prompt.subject, &prompt.relation, &prompt.gold_object];
        let is_of = |fact: &Triplet| names == [&fact.subject, &fact.relation, &fact.object];
        if facts.get(prompt.fact_id).is_some_and(is_of) {
            return Ok(prompt);
        }
        let reason = format!(
            "fact {} of {} is not {}, {}, {}",
            prompt.fact_id,
            database.display(),
            prompt.subject,
            prompt.relation,
            prompt.gold_object
        );
        let remedy = "give the prompts that were written for this database";
        Err(TextError::malformed(path, line, reason, remedy).into())
    };
    parsed.into_iter().flatten().map(check).collect()
}

/// The paths in a folder, by name.
fn paths(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let error = |source| DataError::Io { path: folder.to_path_buf(), source };
    let paths =
        std::fs::read_dir(folder).map_err(error)?.map(|entry| Ok(entry.map_err(error)?.path()));
    let mut paths = paths.collect::<Result<Vec<_>, DataError>>()?;
    paths.sort();
    Ok(paths)
}

/// The name of a file without its ending, or of a folder.
fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Writes a database of one fact with one prompt, and reads it.
    fn read_with(database: &str, prompt: &str) -> Result<Vec<Database>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let prompts = folder.path().join("towns/prompts/base");
        fs::create_dir_all(&prompts).expect("made");
        fs::write(folder.path().join("towns/base.json"), database).expect("written");
        fs::write(prompts.join("prompts_cloze.jsonl"), prompt).expect("written");
        let of_parent = read(folder.path()).map_err(|error| error.to_string())?;
        assert_eq!(read(&folder.path().join("towns")).expect("read").len(), of_parent.len());
        Ok(of_parent)
    }

    #[test]
    fn databases_are_read_with_their_prompts() {
        let database = r#"{"triplets": [["Oslo", "River", "Aker"]], "entities": []}"#;
        let prompt =
            r#"{"fact_id": 0, "subject": "Oslo", "relation": "River", "gold_object": "Aker",
            "prompt_text": "Oslo lies on", "relation_aliases": ["Stream"]}"#
                .replace('\n', " ");
        let databases = read_with(database, &prompt).expect("read");
        let [towns] = &databases[..] else { panic!("{databases:?}") };
        assert_eq!(
            [&*towns.name, &*towns.topology, &*towns.files[0].name],
            ["towns", "base", "prompts_cloze"]
        );
        assert_eq!(towns.facts[0].text(), "Aker: River of Oslo");
        assert_eq!(towns.files[0].prompts[0].relation_aliases, ["Stream"]);

        let error = read_with(database, &prompt.replace("Aker", "Lys")).expect_err("refused");
        assert!(error.contains("prompts_cloze.jsonl:1: fact 0 of "), "{error}");
        assert!(error.contains("base.json is not Oslo, River, Lys"), "{error}");
        let error = read_with("{}", &prompt).expect_err("refused");
        assert!(error.contains("base.json: missing field `triplets`"), "{error}");
        let empty = tempfile::tempdir().expect("a folder");
        let error = read(empty.path()).expect_err("refused").to_string();
        assert!(error.contains("has no database with prompts"), "{error}");
    }
}
