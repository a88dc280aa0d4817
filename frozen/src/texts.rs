//! jina-embeddings-v2, Nomic's BERT, GTE and Stella.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Module, Tensor};
use candle_transformers::models::{jina_bert, nomic_bert as nomic, stella_en_v5 as stella};
use engram_models::Result;
use serde_json::{Value, json};

use crate::config::Config;
use crate::source::Source;
use crate::{Forward, FrozenEncoder, Texts};

/// The length of texts for which the table of Jina's position biases is made at first. It has
/// `heads * length²` values, so it only grows when a longer text comes.
const FIRST_LENGTH: usize = 512;

/// The largest accepted factor of GTE's positions: their table grows with it.
const MAX_FACTOR: f64 = 64.0;

const POSITIONS: &str = "max_position_embeddings";

/// jina-embeddings-v2 in English and in two languages. The model for code has other layers.
pub(crate) fn jina_bert(config: &Config, source: &Arc<Source>) -> Result<FrozenEncoder> {
    config.require(&[("feed_forward_type", json!("geglu")), ("emb_pooler", json!("mean"))])?;
    let sizes: jina_bert::Config = config.read()?;
    config.check_heads(sizes.hidden_size, sizes.num_attention_heads)?;
    let max_tokens = config.size(&[POSITIONS], None)?;
    let builder = source.plain_builder();
    let (width, vocab_size) = (sizes.hidden_size, sizes.vocab_size);
    let build = move |length: usize| {
        let max_position_embeddings = length.min(max_tokens);
        let sizes = jina_bert::Config { max_position_embeddings, ..sizes.clone() };
        candle_core::Result::Ok((length, jina_bert::BertModel::new(builder.clone(), &sizes)?))
    };
    let built = Mutex::new(build(FIRST_LENGTH)?);
    let forward = Box::new(move |ids: &Tensor| {
        let needed = ids.dim(1)?.next_power_of_two();
        let model = {
            let mut built = built.lock().unwrap_or_else(PoisonError::into_inner);
            if built.0 < needed {
                *built = build(needed)?;
            }
            built.1.clone()
        };
        model.forward(ids)
    });
    Ok(of_texts(width, vocab_size, max_tokens, forward))
}

/// nomic-embed-text. The configuration has its published names, or those of `transformers` 5.
pub(crate) fn nomic_bert(config: &Config, source: &Arc<Source>) -> Result<FrozenEncoder> {
    config.require(&[
        ("activation_function", json!("swiglu")),
        ("hidden_act", json!("silu")),
        ("rotary_emb_fraction", json!(1.0)),
        ("rotary_emb_interleaved", json!(false)),
        ("rotary_emb_scale_base", Value::Null),
        ("rotary_scaling_factor", Value::Null),
        ("prenorm", json!(false)),
        ("parallel_block", json!(false)),
        ("use_rms_norm", json!(false)),
        ("causal", json!(false)),
    ])?;
    let rope = config.object("rope_parameters");
    rope.require(&[("rope_type", json!("default"))])?;
    let has_bias = |key| config.field(&[key]).as_bool().unwrap_or(false);
    let base = rope.number(&["rope_theta"], 1000.0)?;
    let sizes = nomic::Config {
        vocab_size: config.size(&["vocab_size"], None)?,
        n_embd: config.size(&["n_embd", "hidden_size"], None)?,
        n_head: config.size(&["n_head", "num_attention_heads"], None)?,
        n_layer: config.size(&["n_layer", "num_hidden_layers"], None)?,
        n_inner: config.size(&["n_inner", "intermediate_size"], None)?,
        n_positions: config.size(&["n_positions", POSITIONS], None)?,
        type_vocab_size: config.size(&["type_vocab_size"], Some(2))?,
        layer_norm_epsilon: config.number(&["layer_norm_epsilon", "layer_norm_eps"], 1e-12)?,
        rotary_emb_base: config.number(&["rotary_emb_base"], base)?,
        qkv_proj_bias: has_bias("qkv_proj_bias"),
        mlp_fc1_bias: has_bias("mlp_fc1_bias"),
        mlp_fc2_bias: has_bias("mlp_fc2_bias"),
        model_type: None,
        ..nomic::Config::default()
    };
    config.check_heads(sizes.n_embd, sizes.n_head)?;
    let model = nomic::NomicBertModel::load(source.plain_builder(), &sizes)?;
    let forward = Box::new(move |ids: &Tensor| model.forward(ids, None, None));
    Ok(of_texts(sizes.n_embd, sizes.vocab_size, sizes.n_positions, forward))
}

/// GTE, and Stella with 400 million parameters.
pub(crate) fn gte(config: &Config, source: &Arc<Source>) -> Result<FrozenEncoder> {
    config.require(&[
        ("position_embedding_type", json!("rope")),
        ("layer_norm_type", json!("layer_norm")),
        ("logn_attention_scale", json!(false)),
        ("pack_qkv", json!(true)),
    ])?;
    let (scaling, rope) = (config.object("rope_scaling"), config.object("rope_parameters"));
    scaling.require(&[("type", json!("ntk")), ("mixed_b", Value::Null)])?;
    rope.require(&[("rope_type", json!("default"))])?;
    let scaling_factor = match scaling.field(&["type"]) {
        Value::Null => 0.0,
        _ => scaling.number(&["factor"], 1.0)?,
    };
    if scaling_factor > MAX_FACTOR {
        return Err(config.error(format!("`factor` of `rope_scaling` is above {MAX_FACTOR}")));
    }
    let base = rope.number(&["rope_theta"], 160_000.0)?;
    let types = config.field(&["type_vocab_size"]).as_u64().unwrap_or(1);
    let width = config.size(&["hidden_size"], None)?;
    let max_tokens = config.size(&[POSITIONS], None)?;
    let sizes = stella::Config {
        variant: stella::ModelVariant::Small,
        vocab_size: config.size(&["vocab_size"], None)?,
        hidden_size: width,
        intermediate_size: config.size(&["intermediate_size"], None)?,
        num_hidden_layers: config.size(&["num_hidden_layers"], None)?,
        num_attention_heads: config.size(&["num_attention_heads"], None)?,
        max_position_embeddings: max_tokens,
        rope_theta: config.number(&["rope_theta"], base)?,
        norm_eps: config.number(&["layer_norm_eps"], 1e-12)?,
        activation_fn: config.activation()?,
        type_vocab_size: (types as usize).clamp(1, 1024),
        scaling_factor,
        ..stella::Config::default()
    };
    config.check_heads(width, sizes.num_attention_heads)?;
    // candle-transformers needs an embedding of token types, which GTE in English does not have.
    let builder = source.builder(Box::new(move |source, shape, name| {
        let name = name.strip_prefix("new.").unwrap_or(name);
        match types == 0 && name == "embeddings.token_type_embeddings.weight" {
            true => Tensor::zeros(shape, candle_core::DType::F32, &candle_core::Device::Cpu),
            false => source.read(shape, name),
        }
    }));
    let model = stella::Model::new(&sizes, builder)?;
    let forward = Box::new(move |ids: &Tensor| model.clone().forward(ids, &ids.ones_like()?));
    Ok(of_texts(width, sizes.vocab_size, max_tokens, forward))
}

fn of_texts(width: usize, vocab_size: usize, max_tokens: usize, forward: Forward) -> FrozenEncoder {
    FrozenEncoder { texts: Some(Texts { width, vocab_size, max_tokens, forward }), images: None }
}
