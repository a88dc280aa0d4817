//! `modules.json`: the modules of a sentence encoder, in order.

use serde::Deserialize;

use super::parse_json;
use crate::config::{bad_field, require};
use crate::error::Result;

/// The kind of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// A published encoder that computes token states.
    Transformer,
    /// The class `CLIPModel` of sentence-transformers before 5.4.
    Clip,
    /// Pooling of the token states into one vector.
    Pooling,
    /// A linear layer with an activation.
    Dense,
    /// Division by the norm.
    Normalize,
    /// Layer normalisation.
    LayerNorm,
    /// Dropout, which has no effect outside of training.
    Dropout,
}

/// A module and its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The kind of the module.
    pub kind: ModuleKind,
    /// The folder inside the model's folder. Empty for the model's folder itself.
    pub path: String,
}

impl Module {
    /// Returns the path of a module's file inside the model's folder.
    pub fn file(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}/{name}"),
        }
    }
}

/// Returns the modules of a folder without `modules.json`: a Transformer. Mean pooling follows it,
/// but is not in the list.
pub fn default_modules() -> Vec<Module> {
    vec![Module { kind: ModuleKind::Transformer, path: String::new() }]
}

/// Parses `modules.json`; `name` names the file in errors.
///
/// # Errors
/// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the text is not valid, a module is
/// not supported, or a path leads out of the folder. The first module, and no other, must be a
/// Transformer or a CLIP model.
pub fn parse(text: &str, name: &str) -> Result<Vec<Module>> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        path: String,
        r#type: String,
    }
    let entries: Vec<Entry> = parse_json(text, name, "a list of modules with `path` and `type`")?;
    let module = |Entry { path, r#type: class }: Entry| {
        let unsupported = || {
            let reason = format!(
                "the module `{class}` is not supported; use a model of Transformer, Pooling, \
                 Dense, Normalize, LayerNorm and Dropout"
            );
            bad_field(name, reason)
        };
        let kind = kind_of(&class).ok_or_else(unsupported)?;
        Ok(Module { kind, path: plain_path(&path, name)? })
    };
    let modules = entries.into_iter().map(module).collect::<Result<Vec<_>>>()?;
    let is_encoder =
        |module: &Module| matches!(module.kind, ModuleKind::Transformer | ModuleKind::Clip);
    let encoders = modules.iter().filter(|module| is_encoder(module)).count();
    require(encoders == 1 && modules.first().is_some_and(is_encoder), name, || {
        format!("has {encoders} Transformer modules; it needs exactly one, and as the first module")
    })?;
    Ok(modules)
}

/// Returns the module kind of a Python class, under all its paths since version 2.0.
fn kind_of(class: &str) -> Option<ModuleKind> {
    let inner = class.strip_prefix("sentence_transformers.")?;
    Some(match inner.rsplit('.').next()? {
        "Transformer" => ModuleKind::Transformer,
        "CLIPModel" => ModuleKind::Clip,
        "Pooling" => ModuleKind::Pooling,
        "Dense" => ModuleKind::Dense,
        "Normalize" => ModuleKind::Normalize,
        "LayerNorm" => ModuleKind::LayerNorm,
        "Dropout" => ModuleKind::Dropout,
        _ => return None,
    })
}

/// Normalises a path below the folder: its parts are separated by `/`, with no `/` at the ends.
fn plain_path(path: &str, name: &str) -> Result<String> {
    let parts: Vec<&str> =
        path.split(['/', '\\']).filter(|part| !matches!(*part, "" | ".")).collect();
    let leads_out =
        path.starts_with('/') || parts.iter().any(|part| *part == ".." || part.contains(':'));
    require(!leads_out, name, || format!("the path {path:?} leads out of the model's folder"))?;
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<Vec<Module>> {
        let entry = |(class, path): &(&str, &str)| serde_json::json!({"type": class, "path": path});
        let text = serde_json::Value::from_iter(entries.iter().map(entry)).to_string();
        parse(&text, "modules.json")
    }

    #[test]
    fn class_paths_of_all_versions_are_read() {
        for (class, kind) in [
            ("sentence_transformers.models.Pooling", ModuleKind::Pooling),
            ("sentence_transformers.models.Pooling.Pooling", ModuleKind::Pooling),
            (
                "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
                ModuleKind::Pooling,
            ),
            ("sentence_transformers.base.modules.dense.Dense", ModuleKind::Dense),
            ("sentence_transformers.models.Normalize", ModuleKind::Normalize),
            ("sentence_transformers.base.modules.normalize.Normalize", ModuleKind::Normalize),
        ] {
            let first = ("sentence_transformers.models.Transformer", "0_Transformer");
            let modules = read(&[first, (class, "1_X/")]).expect(class);
            assert_eq!(modules[1], Module { kind, path: "1_X".into() });
            assert_eq!(modules[0].file("config.json"), "0_Transformer/config.json");
        }
    }

    #[test]
    fn unsupported_modules_orders_and_paths_are_errors() {
        let first = ("sentence_transformers.models.Transformer", "");
        for other in [
            "sentence_transformers.models.WordWeights",
            "sentence_transformers.models.Router",
            "sentence_transformers.models.WeightedLayerPooling",
            "my_code.Pooling",
        ] {
            let error = read(&[first, (other, "1")]).expect_err(other).to_string();
            assert!(error.contains(other) && error.starts_with("modules.json: "), "{error}");
        }
        let pooling = ("sentence_transformers.models.Pooling", "1_Pooling");
        for entries in [&[][..], &[pooling], &[pooling, first], &[first, first]] {
            assert!(read(entries).is_err(), "{entries:?}");
        }
        for path in ["../x", "/x", "a/../../b", "C:\\x"] {
            assert!(read(&[(first.0, path)]).is_err(), "{path}");
        }
    }
}
