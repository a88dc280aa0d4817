//! Weights in several files; `model.safetensors.index.json` names the file of each tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::Shard;
use crate::error::{ModelError, Result};

/// The file name of the index of sharded weights.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Returns the files that an index lists, sorted by name.
///
/// # Errors
/// [`ModelError::BadConfig`] if the text is not an index, or lists a file outside of its folder.
/// `name` names the index in errors.
pub fn shards_of_index(text: &str, name: &str) -> Result<Vec<String>> {
    let files: BTreeSet<String> = parse(text, name)?.into_values().collect();
    Ok(files.into_iter().collect())
}

/// Returns the file of each tensor.
fn parse(text: &str, name: &str) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let bad_index = |reason: String| ModelError::BadConfig { what: name.to_owned(), reason };
    let Index { weight_map } = serde_json::from_str(text).map_err(|e| {
        bad_index(format!("not an index of weights files: {e}; download the file again"))
    })?;
    if weight_map.is_empty() {
        return Err(bad_index("lists no tensor; download the file again".to_owned()));
    }
    let is_in_folder =
        |file: &&String| file.ends_with(".safetensors") && !file.contains(['/', '\\']);
    match weight_map.values().find(|file| !is_in_folder(file)) {
        Some(file) => {
            Err(bad_index(format!("lists {file:?}; expected a safetensors file beside it")))
        }
        None => Ok(weight_map),
    }
}

/// Opens all files of an index, and checks that each file has the tensors that the index lists for
/// it.
pub(super) fn open(index: &Path) -> Result<Vec<Shard>> {
    let io = |source| ModelError::Io { path: index.to_path_buf(), source };
    let text = engram_durable::read_text(index).map_err(io)?;
    let weight_map = parse(&text, &index.display().to_string())?;
    let files: BTreeSet<&String> = weight_map.values().collect();
    let mut shards = Vec::with_capacity(files.len());
    for file in files {
        let shard = Shard::open(&index.with_file_name(file))?;
        let listed = weight_map
            .iter()
            .filter(|(_, tensor_file)| *tensor_file == file)
            .map(|(tensor, _)| tensor);
        for tensor in listed {
            if shard.header.info(tensor).is_none() {
                let reason =
                    format!("tensor `{tensor}` is missing; {INDEX_FILE} lists it in this file");
                return Err(super::damaged(&shard.path, &reason));
            }
        }
        shards.push(shard);
    }
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::weights::{Weights, save};

    #[test]
    fn each_tensor_is_read_from_its_file_and_invalid_indices_are_errors() -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let path_of = |name: &str| folder.path().join(name);
        let (one, two) = (
            Tensor::ones(3, DType::F32, &Device::Cpu)?,
            Tensor::zeros(2, DType::F32, &Device::Cpu)?,
        );
        save(&path_of("a.safetensors"), [("bert.one", &one)].into_iter())?;
        save(&path_of("b.safetensors"), [("bert.two", &two)].into_iter())?;
        let open_with_map = |map: &str| {
            std::fs::write(path_of(INDEX_FILE), format!(r#"{{"weight_map": {map}}}"#))
                .expect("a file");
            Weights::open_folder(folder.path())
        };
        let weights =
            open_with_map(r#"{"bert.one": "a.safetensors", "bert.two": "b.safetensors"}"#)?;
        let weights = weights.with_optional_prefix("bert.");
        weights.get("one", &[3], DType::F32, &Device::Cpu)?;
        weights.get("two", &[2], DType::F32, &Device::Cpu)?;
        let missing = weights.get("tw", &[2], DType::F32, &Device::Cpu).expect_err("none");
        assert!(missing.to_string().contains("`bert.two`"), "{missing}");
        for (invalid_map, expected) in [
            ("{}", "lists no tensor"),
            (r#"{"x": "../a.safetensors"}"#, "../a.safetensors"),
            (r#"{"x": "pytorch_model.bin"}"#, "pytorch_model.bin"),
            (r#"{"bert.two": "a.safetensors"}"#, "bert.two"),
            (r#"{"x": "c.safetensors"}"#, "c.safetensors"),
            ("3", INDEX_FILE),
        ] {
            let error = open_with_map(invalid_map).err().expect(invalid_map).to_string();
            assert!(error.contains(expected), "{error}");
        }
        Ok(())
    }
}
