//! Published weights that are changed when they are read: codes of quantised models, and adapters.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::kernels::Mode;
use engram_models::weights::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Weights, WeightsFiles};
use serde_json::json;

use super::parity::{config, example};
use super::reference::{
    assert_output, expected, fixture, frozen_builder, largest_difference, tensors,
};

/// A weight of a file in the shape and with the values of the reference.
fn check(weights: &Weights, name: &str, reference: &Tensor) -> Result<()> {
    let found = weights.get(name, reference.dims(), DType::F32, &Device::Cpu)?;
    let difference = largest_difference(&found, reference)?;
    assert!(difference < 2e-6, "{name}: {difference}");
    Ok(())
}

/// The tools of `tests/reference/quantised.py`.
#[test]
fn weights_in_codes_equal_those_of_the_published_tools() -> Result<()> {
    let weights = Weights::open(&fixture("quantised", "model.safetensors"))?;
    weights.check_published()?;
    assert!(weights.note().is_some_and(|note| note.contains("is quantised with")));
    let reference = expected("quantised")?;
    assert_eq!(reference.len(), 11);
    for (name, weight) in &reference {
        check(&weights, name, weight)?;
    }
    let error = weights.get("awq.weight", &[64, 32], DType::F32, &Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("[32, 64]"), "{error}");
    Ok(())
}

/// The files of a base model with an adapter.
fn with_adapter(base: &str, adapter: &str) -> WeightsFiles {
    let adapter_file = |file| fixture("adapters", adapter).join(file);
    let adapter = Some([ADAPTER_CONFIG, ADAPTER_WEIGHTS].map(adapter_file));
    WeightsFiles { path: fixture(base, "model.safetensors"), adapter }
}

/// `merge_and_unload` of `peft` (`tests/reference/adapters.py`).
#[test]
fn merged_adapters_equal_peft() -> Result<()> {
    for (adapter, base) in [("lora", "bert"), ("dora", "bert"), ("whisper", "whisper")] {
        let files = with_adapter(base, adapter);
        let reference = expected(&format!("adapters/{adapter}"))?;
        let weights = files.open()?;
        for (name, tensor) in reference.iter().filter(|(name, _)| *name != "hidden") {
            check(&weights, name, tensor)?;
        }
        let unchanged = "encoder.layer.0.attention.self.key.weight";
        if base == "bert" {
            check(&weights, unchanged, &tensors("bert", "model.safetensors")?[unchanged])?;
            let config = config(base, json!({}))?;
            let builder = frozen_builder().with_weights(config.open_weights(&files)?);
            let hidden =
                config.build(&builder)?.encode(&example(base)?.tokens, &Mode::inference())?;
            assert_output((adapter, "hidden"), &hidden, &reference, 1e-5)?;
        }
    }
    Ok(())
}

/// Adapters of another kind or model.
#[test]
fn adapters_that_cannot_be_merged_are_errors_that_say_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let config: PathBuf = folder.path().join(ADAPTER_CONFIG);
    let error = |base: &str, text: &str| {
        std::fs::write(&config, text).expect("a file");
        let mut files = with_adapter(base, "dora");
        files.adapter.as_mut().expect("an adapter")[0] = config.clone();
        files.open().err().expect(text).to_string()
    };
    for (text, part) in [
        ("[", "is not the configuration"),
        (r#"{"peft_type": "IA3"}"#, "type IA3"),
        (r#"{"peft_type": "LORA", "lora_alpha": 1, "lora_bias": true}"#, "`lora_bias`"),
        (r#"{"peft_type": "LORA", "init_lora_weights": "pissa_niter_4"}"#, "pissa_niter_4"),
        (r#"{"peft_type": "LORA", "alpha_pattern": {"layer.*": 2}}"#, "`alpha_pattern`"),
    ] {
        let error = error("bert", text);
        assert!(error.contains(ADAPTER_CONFIG) && error.contains(part), "{error}");
    }
    let error = error("whisper", r#"{"peft_type": "LORA", "lora_alpha": 3}"#);
    assert!(error.contains("lacks") && error.contains(ADAPTER_WEIGHTS), "{error}");
}
