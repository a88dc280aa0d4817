//! The families of text encoders: what they have, and how their files name it.

/// A family of text encoders. All have the same blocks; the differences are here.
#[derive(Debug)]
pub struct Family {
    /// The values of `model_type` in `config.json`.
    model_types: &'static [&'static str],
    /// What the names of all tensors start with in files of models with a task head.
    pub(super) weights_prefix: &'static str,
    /// Whether the input has token types (segment ids).
    pub(super) has_types: bool,
    /// Whether positions are counted from the one after the id of the padding token, not from 0.
    pub(super) positions_follow_padding: bool,
    /// Whether a learned bias for each relative position is added to attention scores.
    pub(super) has_relative_bias: bool,
    /// Whether attention may be disentangled, as in DeBERTa.
    pub(super) has_disentangled_attention: bool,
    /// Whether the blocks are those of ModernBERT.
    pub(super) is_modern: bool,
    /// The epsilon of the layer norms, if `config.json` has none.
    pub(super) default_epsilon: f64,
    pub(super) names: Names,
}

/// The names of the embeddings' and a block's layers in published files.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) word_embeddings: &'static str,
    pub(super) embedding_norm: &'static str,
    /// The list of all blocks.
    pub(super) blocks: &'static str,
    /// The query projection. ModernBERT's projects to queries, keys and values.
    pub(super) query: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    pub(super) attention_output: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) intermediate: &'static str,
    pub(super) output: &'static str,
    /// The norm after the feed-forward part, or before it in ModernBERT.
    pub(super) output_norm: &'static str,
}

const BERT_NAMES: Names = Names {
    word_embeddings: "word_embeddings",
    embedding_norm: "LayerNorm",
    blocks: "encoder.layer",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    intermediate: "intermediate.dense",
    output: "output.dense",
    output_norm: "output.LayerNorm",
};

const BERT: Family = Family {
    model_types: &["bert"],
    weights_prefix: "bert.",
    has_types: true,
    positions_follow_padding: false,
    has_relative_bias: false,
    has_disentangled_attention: false,
    is_modern: false,
    default_epsilon: 1e-12,
    names: BERT_NAMES,
};

static FAMILIES: [&Family; 6] = [
    &BERT,
    &Family {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        weights_prefix: "roberta.",
        positions_follow_padding: true,
        ..BERT
    },
    &Family {
        model_types: &["distilbert"],
        weights_prefix: "distilbert.",
        has_types: false,
        names: Names {
            blocks: "transformer.layer",
            query: "attention.q_lin",
            key: "attention.k_lin",
            value: "attention.v_lin",
            attention_output: "attention.out_lin",
            attention_norm: "sa_layer_norm",
            intermediate: "ffn.lin1",
            output: "ffn.lin2",
            output_norm: "output_layer_norm",
            ..BERT_NAMES
        },
        ..BERT
    },
    &Family {
        model_types: &["mpnet"],
        weights_prefix: "mpnet.",
        has_types: false,
        positions_follow_padding: true,
        has_relative_bias: true,
        names: Names {
            query: "attention.attn.q",
            key: "attention.attn.k",
            value: "attention.attn.v",
            attention_output: "attention.attn.o",
            attention_norm: "attention.LayerNorm",
            ..BERT_NAMES
        },
        ..BERT
    },
    &Family {
        model_types: &["deberta-v2"],
        weights_prefix: "deberta.",
        has_disentangled_attention: true,
        default_epsilon: 1e-7,
        names: Names {
            query: "attention.self.query_proj",
            key: "attention.self.key_proj",
            value: "attention.self.value_proj",
            ..BERT_NAMES
        },
        ..BERT
    },
    &Family {
        model_types: &["modernbert"],
        weights_prefix: "model.",
        has_types: false,
        is_modern: true,
        default_epsilon: 1e-5,
        names: Names {
            word_embeddings: "tok_embeddings",
            embedding_norm: "norm",
            blocks: "layers",
            query: "attn.Wqkv",
            attention_output: "attn.Wo",
            attention_norm: "attn_norm",
            intermediate: "mlp.Wi",
            output: "mlp.Wo",
            output_norm: "mlp_norm",
            ..BERT_NAMES
        },
        ..BERT
    },
];

impl Default for &'static Family {
    fn default() -> Self {
        &BERT
    }
}

impl Family {
    /// The family of a `model_type`.
    pub(super) fn of_model_type(model_type: &str) -> Option<&'static Self> {
        FAMILIES.into_iter().find(|family| family.model_types.contains(&model_type))
    }

    /// All values of `model_type`, separated by commas.
    pub fn model_types() -> String {
        FAMILIES.map(|family| family.model_types.join(", ")).join(", ")
    }
}
