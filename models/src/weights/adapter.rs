//! LoRA and DoRA adapters of `peft`, merged into the weights of their base model.
//!
//! Reference: `peft` 0.21.2, `tuners/lora/{layer,dora}.py` and `utils/save_and_load.py`.
//! `fan_in_fan_out` has no effect: `peft` ignores it for the layers that our models have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Weights, weight_name};
use crate::error::{ModelError, Result};
use crate::layers::add_product;

/// The file with the settings of an adapter.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The file with the tensors of an adapter.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Settings that change more than the weights of layers, or change them in another way.
const UNSUPPORTED: [&str; 11] = [
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
];
/// The beginnings of the names of initialisations that change the weights of the base model.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];
/// What to do with an adapter that cannot be merged here.
const MERGE: &str = "merge it into its base model with peft (`merge_and_unload`), save that, and \
                     give the new folder";

/// The settings of an adapter.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    /// 8 if it is missing.
    lora_alpha: Option<f64>,
    #[serde(default)]
    use_rslora: bool,
    /// The first fitting pattern decides.
    alpha_pattern: Option<Map<String, Value>>,
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    init_lora_weights: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Config {
    fn read(path: &Path) -> Result<Self> {
        let text = engram_durable::read_text(path)
            .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        let invalid =
            |reason: String| ModelError::BadConfig { what: path.display().to_string(), reason };
        let config: Self = serde_json::from_str(&text).map_err(|e| {
            invalid(format!("is not the configuration of an adapter: {e}; download it again"))
        })?;
        match config.unsupported() {
            Some(setting) => Err(invalid(format!("{setting} is not supported; {MERGE}"))),
            None => Ok(config),
        }
    }

    /// A setting with which the adapter cannot be merged here.
    fn unsupported(&self) -> Option<String> {
        let is_set = |key: &&&str| match self.others.get(**key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(value) => *value != Value::Array(Vec::new()),
        };
        if self.peft_type != "LORA" {
            return Some(format!("an adapter of the type {}", self.peft_type));
        }
        if let Some(key) = UNSUPPORTED.iter().find(is_set) {
            return Some(format!("`{key}`"));
        }
        let start = self.init_lora_weights.as_str().unwrap_or_default().to_lowercase();
        if CHANGES_BASE.iter().any(|name| start.starts_with(name)) {
            return Some(format!("`init_lora_weights` {start}, which changes the base model,"));
        }
        let mut patterns = self.alpha_pattern.iter().flat_map(Map::keys);
        let pattern = patterns.find(|pattern| pattern.contains(META))?;
        Some(format!("`alpha_pattern` {pattern:?}, which is not the end of a name,"))
    }

    /// The factor on the product of a layer's matrices of rank `rank`.
    fn scale(&self, layer: &str, rank: usize) -> f64 {
        let mut patterns = self.alpha_pattern.iter().flatten();
        let own = patterns.find(|(pattern, _)| is_end(layer, pattern));
        let own = own.and_then(|(_, alpha)| alpha.as_f64());
        let alpha = own.or(self.lora_alpha).unwrap_or(8.0);
        let rank = rank as f64;
        alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// Characters that make a pattern of `peft` more than the end of a name.
const META: [char; 11] = ['*', '+', '?', '(', ')', '[', ']', '|', '^', '$', '\\'];

/// An adapter for the tensors of a base model.
pub(super) struct Adapter {
    /// By the name of the tensor in the files of the base model.
    changes: BTreeMap<String, Change>,
}

/// The change of one tensor: `m (W + s B A) / |W + s B A|`, with the norm of each row; without a
/// magnitude `m`, only `W + s B A`.
#[derive(Default)]
pub(super) struct Change {
    file: PathBuf,
    /// The name of the tensor.
    name: String,
    /// A new `W`.
    replacement: Option<Tensor>,
    /// `A`, `[R, D_in]`.
    down: Option<Tensor>,
    /// `B`, `[D_out, R]`.
    up: Option<Tensor>,
    /// `m`, with `D_out` values.
    magnitude: Option<Tensor>,
    scale: f64,
}

impl Adapter {
    /// Reads the adapter for `base` from its two files.
    pub(super) fn read(config: &Path, file: &Path, base: &Weights) -> Result<Self> {
        let config = Config::read(config)?;
        let names: Vec<String> = base.names().map(weight_name).collect();
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        for (full_name, tensor) in Weights::open(file)?.read_all()? {
            let invalid = |reason: &str| {
                let reason = format!("tensor `{full_name}` {reason}");
                ModelError::BadFile { path: file.to_path_buf(), reason }
            };
            let name = full_name.strip_prefix("base_model.model.").unwrap_or(&full_name);
            let name = name.replace(".base_layer.", ".");
            let (target, part) = match name.split_once(".lora_") {
                Some((layer, part)) => {
                    (format!("{layer}.weight"), part.trim_end_matches(".weight"))
                }
                None => (name.clone(), ""),
            };
            let Some(base_name) = base_name(&target, &names) else {
                let mut saved = config.modules_to_save.iter().flatten();
                // A task head, which the base model lacks.
                if part.is_empty() && saved.any(|module| target.split('.').any(|p| p == module)) {
                    continue;
                }
                let reason = format!(
                    "changes a weight that the base model lacks; give the model that the adapter \
                     was trained on; if this is that model, {MERGE}"
                );
                return Err(invalid(&reason));
            };
            let change = changes.entry(base_name.clone()).or_default();
            (change.file, change.name) = (file.to_path_buf(), full_name.clone());
            match part {
                "" => change.replacement = Some(tensor),
                "A" | "embedding_A" => {
                    let layer = target.trim_end_matches(".weight");
                    change.scale = config.scale(layer, tensor.dim(0)?);
                    match part {
                        "A" => change.down = Some(tensor),
                        _ => change.up = Some(tensor.t()?),
                    }
                }
                "B" => change.up = Some(tensor),
                "embedding_B" => change.down = Some(tensor.t()?),
                "magnitude_vector" => change.magnitude = Some(tensor),
                _ => return Err(invalid(&format!("is not supported; {MERGE}"))),
            }
        }
        Ok(Self { changes })
    }

    /// The change of the base model's tensor `name`, if there is one.
    pub(super) fn change(&self, name: &str) -> Option<&Change> {
        self.changes.get(name)
    }
}

impl Change {
    /// Returns the changed tensor, in f32.
    pub(super) fn apply(&self, stored: &Tensor) -> Result<Tensor> {
        let misfit = || {
            let reason = format!(
                "tensor `{}` does not fit the shape {:?} of the base model's weight, or one of its \
                 matrices is missing; give the model that the adapter was trained on; if this is \
                 that model, {MERGE}",
                self.name,
                stored.dims()
            );
            ModelError::BadFile { path: self.file.clone(), reason }
        };
        let weight = self.replacement.as_ref().unwrap_or(stored);
        let sum = match (&self.up, &self.down) {
            _ if weight.dims() != stored.dims() => return Err(misfit()),
            (None, None) if self.magnitude.is_none() => return Ok(weight.clone()),
            (Some(up), Some(down)) => {
                add_product(self.scale, up, down, weight)?.ok_or_else(misfit)?
            }
            _ => return Err(misfit()),
        };
        let Some(magnitude) = &self.magnitude else { return Ok(sum) };
        if magnitude.elem_count() != sum.dim(0)? {
            return Err(misfit());
        }
        let norm = sum.sqr()?.sum_keepdim(1)?.sqrt()?;
        Ok(sum.broadcast_mul(&(magnitude.reshape(norm.dims())? / norm)?)?)
    }
}

/// The only name among `names` that is `target`, or differs from it by a prefix such as `bert.`.
fn base_name<'a>(target: &str, names: &'a [String]) -> Option<&'a String> {
    if let Some(same) = names.iter().find(|name| *name == target) {
        return Some(same);
    }
    let fits = |name: &&String| is_end(name, target) || is_end(target, name);
    let mut fitting = names.iter().filter(fits);
    fitting.next().filter(|_| fitting.next().is_none())
}

/// Whether the parts of `end` are the last parts of `name`.
fn is_end(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fitting_pattern_gives_the_factor() {
        let text = r#"{"peft_type": "LORA", "alpha_pattern": {"query": 3, "a.query": 5}}"#;
        let config: Config = serde_json::from_str(text).expect("a configuration");
        assert_eq!(["b.a.query", "b.a.key"].map(|layer| config.scale(layer, 2)), [1.5, 4.0]);
    }
}
