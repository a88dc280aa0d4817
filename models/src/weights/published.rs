//! Checks published weights: tensors that a model would ignore or take for weights are refused.

use safetensors::Dtype;

use super::{Weights, weight_name};
use crate::config::UNQUANTISED;
use crate::error::{ModelError, Result};

/// The beginnings of parts of names that PEFT and similar tools give to the tensors that they add
/// to a layer.
const ADDED: [&str; 8] = ["lora", "lokr", "hada", "ia3", "oft", "boft", "vera", "base_layer"];
/// Parts of names that only modules of adapters and prompts have.
const MODULES: [&str; 6] = [
    "invertible_adapters",
    "modules_to_save",
    "original_module",
    "prefix_tuning",
    "prefix_tunings",
    "prompt_encoder",
];
/// Parts of names that modules of adapters have within a module.
const INNER_MODULES: [&str; 2] = ["adapter", "adapters"];

impl Weights {
    /// Refuses published weights with codes of an unknown method, and with an adapter. A model would
    /// take codes for weights, and ignore the tensors of an adapter.
    ///
    /// # Errors
    /// [`ModelError::BadFile`] with the first such tensor
    pub fn check_published(&self) -> Result<()> {
        for (name, view, path) in self.views() {
            let problem = if self.is_of_adapter(&name) {
                "an adapter, such as LoRA; merge it into its base model, save that, and give the \
                 new folder"
            } else if self.is_of_codes(&name, view.dtype()) {
                UNQUANTISED
            } else {
                continue;
            };
            let reason = format!("tensor `{name}` belongs to {problem}");
            return Err(ModelError::BadFile { path: path.to_path_buf(), reason });
        }
        Ok(())
    }

    /// A note for users about weights in codes, which are dequantised; `None` if there are none.
    pub fn note(&self) -> Option<String> {
        let method = self.names().find_map(|name| self.method(&weight_name(name)))?;
        let path = self.path.display();
        Some(format!(
            "{path}: is quantised with {}; its weights are dequantised on loading, and the model \
             computes in f32 from then on",
            method.name()
        ))
    }

    /// Whether a tensor is part of an adapter: of its modules, or beside the weight of a layer.
    fn is_of_adapter(&self, name: &str) -> bool {
        let parts: Vec<&str> = name.split('.').collect();
        parts.iter().enumerate().any(|(i, part)| {
            let is_added = ADDED.iter().filter_map(|start| part.strip_prefix(start));
            let is_added = || is_added.clone().any(|rest| rest.is_empty() || rest.starts_with('_'));
            let layer = || parts[..i].join(".");
            MODULES.contains(part)
                || i > 0 && INNER_MODULES.contains(part)
                || i > 0 && is_added() && self.has_weight(&layer())
        })
    }

    fn has_weight(&self, layer: &str) -> bool {
        let names = ["weight", "qweight", "base_layer.weight"];
        names.iter().any(|name| self.view(&format!("{layer}.{name}")).is_some())
    }

    /// Whether a tensor belongs to a weight in codes of an unknown method.
    fn is_of_codes(&self, name: &str, dtype: Dtype) -> bool {
        let is_float = matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64);
        let (layer, last) = name.rsplit_once('.').unwrap_or(("", name));
        let weight = format!("{layer}.weight");
        match last {
            "weight" => !is_float && self.method(name).is_none(),
            "qweight" | "weight_packed" => self.method(&weight).is_none(),
            "weight_scale" | "weight_scale_inv" | "SCB" => {
                self.view(&weight).is_some() && self.method(&weight).is_none()
            }
            // quanto
            "_data" => layer.ends_with(".weight"),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::weights::WEIGHTS_FILE;

    #[test]
    fn tensors_of_adapters_and_unknown_codes_are_refused_beside_weights_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(WEIGHTS_FILE);
        let open = |tensors: &[(&str, Dtype)]| {
            let view = |dtype: Dtype| {
                TensorView::new(dtype, vec![4], &[0; 32][..dtype.bitsize() / 2]).unwrap()
            };
            let tensors = tensors.iter().map(|(name, dtype)| (*name, view(*dtype)));
            std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
            Weights::open_folder(folder.path()).map(|_| ()).map_err(|error| error.to_string())
        };
        let query = ("query.weight", Dtype::F32);
        for name in [
            "query.lora_A.default.weight",
            "query.base_layer.weight",
            "query.lora_B",
            "query.hada_w1_a",
            "query.ia3_l.default",
            "layer.adapter.down.weight",
            "layer.output.adapters.task.adapter_down.0.weight",
            "prefix_tuning.prefix_tunings.task.wte.weight",
            "prompt_encoder.default.embedding.weight",
            "pooler.modules_to_save.default.weight",
            "pooler.original_module.weight",
        ] {
            let error = open(&[query, (name, Dtype::F32)]).expect_err(name);
            assert!(error.contains(name) && error.contains("merge it"), "{error}");
        }
        for (name, dtype) in [
            ("key.weight", Dtype::F8_E4M3),
            ("key.weight", Dtype::I8),
            ("key.weight", Dtype::U32),
            ("key.weight_packed", Dtype::I32),
            ("key.qweight", Dtype::I32),
            ("key.weight._data", Dtype::I8),
            ("query.weight_scale", Dtype::F32),
            ("query.SCB", Dtype::F32),
        ] {
            let error = open(&[query, (name, dtype)]).expect_err(name);
            assert!(error.contains(name) && error.contains("dequantise"), "{error}");
        }
        for (name, dtype) in [
            ("lorado.weight", Dtype::BF16),
            ("position_ids", Dtype::I64),
            ("mask", Dtype::U8),
            ("ia3", Dtype::F32),
            ("vera", Dtype::F32),
            ("oft_mask", Dtype::F32),
            ("lora_gate.weight", Dtype::F32),
            ("adapter.weight", Dtype::F32),
            ("loss.weight_scale", Dtype::F32),
            ("sample_weight", Dtype::I64),
        ] {
            assert_eq!(open(&[query, (name, dtype)]), Ok(()), "{name}");
        }
    }
}
