//! Every family against the published implementation: `tests/reference/frozen.py` made the fixtures.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use engram_frozen::{Family, FrozenEncoder};
use engram_models::Result;
use engram_models::weights::WeightsFiles;
use serde_json::{Value, json};

/// Values of random weights, normed in the last step, differ from the reference in f64 by less.
const TOLERANCE: f32 = 1e-4;

fn fixture(name: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).join(file)
}

fn json_of(name: &str, file: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(name, file)).unwrap()).unwrap()
}

fn config(name: &str) -> Value {
    json_of(name, "config.json")
}

fn expected(name: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(fixture(name, "expected.safetensors"), &Device::Cpu).unwrap()
}

/// Opens the weights of the fixture `name` with this configuration.
fn open(name: &str, config: &Value, size: Option<usize>) -> Result<FrozenEncoder> {
    let text = config.to_string();
    let family = Family::of(&text).expect("a family");
    let weights = fixture(name, "model.safetensors");
    family.open(&text, "config.json", &WeightsFiles::from(&*weights), size.map(|size| (size, size)))
}

fn assert_close(case: &str, actual: &Tensor, expected: &Tensor) {
    assert_eq!(actual.dims(), expected.dims(), "{case}");
    let difference = (actual - expected).unwrap().abs().unwrap().flatten_all().unwrap();
    let largest = difference.max(0).unwrap().to_scalar::<f32>().unwrap();
    assert!(largest < TOLERANCE, "{case}: differs by {largest}");
}

#[test]
fn states_of_texts_equal_the_reference() {
    for (name, file) in [
        ("jina_bert", "config.json"),
        ("nomic_bert", "config.json"),
        ("nomic_bert", "published.json"),
        ("gte", "config.json"),
        ("gte_ntk", "config.json"),
    ] {
        let texts = open(name, &json_of(name, file), None).unwrap().texts.unwrap();
        let tensors = expected(name);
        let list = |name: &str| -> Vec<u32> {
            tensors[name].to_dtype(DType::U32).unwrap().to_vec1().unwrap()
        };
        let (ids, mut start) = (list("ids"), 0);
        let mut states = Vec::new();
        for length in list("lengths") {
            states.push(texts.encode(&ids[start..start + length as usize]).unwrap());
            start += length as usize;
        }
        assert_eq!((texts.width, texts.max_tokens), (24, 16), "{name}");
        assert_close(name, &Tensor::cat(&states, 0).unwrap(), &tensors["states"]);
    }
}

#[test]
fn vectors_of_images_equal_the_reference_at_every_size() {
    for (name, sizes) in
        [("siglip", &[12][..]), ("dinov2", &[20, 12]), ("dinov2_with_registers", &[20, 12, 24])]
    {
        for size in sizes {
            let images = open(name, &config(name), Some(*size)).unwrap().images.unwrap();
            let tensors = expected(name);
            let vectors = images.encode(&tensors[&format!("pixels.{size}")]).unwrap();
            assert_close(name, &vectors, &tensors[&format!("vectors.{size}")]);
        }
    }
}

#[test]
fn siglip_encodes_padded_texts() {
    let tensors = expected("siglip");
    let config = config("siglip");
    let texts = open("siglip", &config, Some(12)).unwrap().texts.unwrap();
    let ids = tensors["ids"].to_dtype(DType::U32).unwrap().to_vec2::<u32>().unwrap();
    let vectors: Vec<_> = ids.iter().map(|ids| texts.encode(ids).unwrap()).collect();
    assert_close("texts", &Tensor::cat(&vectors, 0).unwrap(), &tensors["texts"]);
}

/// ViT's fixture of the models crate has the last hidden state of all tokens.
#[test]
fn vit_gives_the_state_of_the_class_token() {
    let name = "../../../models/tests/fixtures/vit";
    let images = open(name, &config(name), None).unwrap().images.unwrap();
    let tensors = expected(name);
    let first = tensors["hidden"].narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    assert_close("vit", &images.encode(&tensors["pixels"]).unwrap(), &first);
}

#[test]
fn variants_that_differ_from_the_published_implementation_are_refused_by_name() {
    let code = json!({"AutoModel": "jinaai/jina-bert-v3--modeling.JinaModel"});
    for (name, field, value, expected) in [
        ("jina_bert", "auto_map", code.clone(), "own code `jinaai/jina-bert-v3"),
        ("dinov2", "auto_map", code, "which is not run"),
        ("jina_bert", "feed_forward_type", json!("original"), "only \"geglu\" is supported"),
        ("jina_bert", "num_attention_heads", json!(0), "0 heads"),
        ("jina_bert", "num_hidden_layers", json!(1), "`encoder.layer.1."),
        ("jina_bert", "num_hidden_layers", json!(3), "encoder.layer.2."),
        ("jina_bert", "max_position_embeddings", json!(1_u64 << 40), "from 1 to 131072"),
        ("nomic_bert", "prenorm", json!(true), "`prenorm` is true"),
        ("nomic_bert", "rotary_scaling_factor", json!(2), "only null"),
        ("nomic_bert", "hidden_size", json!(48), "do config.json and the weights belong"),
        ("gte_ntk", "rope_scaling", json!({"type": "dynamic"}), "only \"ntk\""),
        ("gte_ntk", "rope_scaling", json!({"type": "ntk", "factor": 65.0}), "above 64"),
        ("gte_ntk", "layer_norm_type", json!("rms_norm"), "`layer_norm_type`"),
        ("dinov2", "use_swiglu_ffn", json!(true), "`use_swiglu_ffn` is true"),
        ("dinov2", "model_type", json!("dinov2_with_registers"), "register_tokens"),
        ("dinov2_with_registers", "model_type", json!("dinov2"), "`embeddings.register_tokens`"),
        ("dinov2", "patch_size", json!(0), "`patch_size` is not a size"),
        ("dinov2", "hidden_act", json!("tanhexp"), "hidden_act"),
        ("siglip", "text_config", json!({"max_position_embeddings": 0}), "position"),
        ("siglip", "text_config", json!({"projection_size": 8}), "the width 8, but images 16"),
    ] {
        let mut config = config(name);
        config[field] = value.clone();
        let error = open(name, &config, None).err().expect(field).to_string();
        assert!(error.contains(expected), "{field} = {value}: {error}");
    }
    let error = open("dinov2", &config("dinov2"), Some(21)).err().unwrap().to_string();
    assert!(error.contains("do not fit images of 21 x 21"), "{error}");
    let error = open("siglip", &config("siglip"), Some(16)).err().unwrap().to_string();
    assert!(error.contains("takes images of 12 x 12 pixels"), "{error}");
    for model_type in ["siglip2", "bert", "eva"] {
        assert_eq!(Family::of(&json!({"model_type": model_type}).to_string()), None);
    }
}
