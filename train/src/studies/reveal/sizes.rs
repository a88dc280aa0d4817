//! The sizes of the model, from the recipe, a published size or published weights.

use engram_data::text_to_text::T5Tokenizer;
use engram_infer::reveal::corpus::Corpus;
use engram_models::mobilenet::{MAP_CHANNELS, MAP_SIZE};
use engram_models::reveal::RevealConfig;
use engram_models::t5::T5Config;
use engram_models::vit::ViTConfig;

use super::published::Published;
use super::settings::{RevealModel, Size};

/// The model's configuration, without the parts that depend on the data.
pub fn config_of(model: &RevealModel, published: &Published) -> RevealConfig {
    let mut config = match model.size {
        Size::Own => with_recipe_sizes(model),
        Size::Base => RevealConfig::base(1),
        Size::Large => RevealConfig::large(1),
    };
    if let Some(t5) = &published.t5 {
        config.t5 = t5.clone();
    }
    if let Some(vit) = &published.vit {
        config.image = vit.clone();
    }
    if published.mobilenet.is_some() {
        // Each cell of a map is a patch.
        config.image.image_size = MAP_SIZE;
        config.image.patch_size = 1;
        config.image.num_channels = MAP_CHANNELS;
        // With larger initial weights, the encoder learns the training pictures by heart.
        config.image.initializer_range = 0.01;
    }
    config.t5.dropout_rate = model.dropout;
    config.gate = model.gate;
    config.token_scale = model.token_scale;
    // Rounded down, as in the released code. The 0.01 makes 0.8333 of 24 layers 20, not 19.
    let count = |fraction: f64, layers: usize| (fraction * layers as f64 + 0.01).floor() as usize;
    config.frozen_image_layers = count(model.frozen_image_share, config.image.num_hidden_layers);
    config.frozen_text_layers = count(model.frozen_text_share, config.text_layers());
    config
}

/// The configuration with the sizes in the recipe.
fn with_recipe_sizes(model: &RevealModel) -> RevealConfig {
    RevealConfig {
        t5: T5Config {
            d_model: model.d_model,
            d_kv: model.d_kv,
            d_ff: model.d_ff,
            num_layers: model.text_layers + model.fusion_layers,
            num_decoder_layers: Some(model.decoder_layers),
            num_heads: model.num_heads,
            decoder_positions: model.positions,
            ..T5Config::small()
        },
        image: ViTConfig {
            hidden_size: model.image_width,
            num_hidden_layers: model.image_layers,
            num_attention_heads: model.image_heads,
            intermediate_size: model.image_ff,
            image_size: model.image_size,
            patch_size: model.patch_size,
            stem_channels: model.stem_channels.clone(),
            class_token: false,
            layer_norm_eps: 1e-6,
            initializer_range: (model.image_width as f64).powf(-0.5),
            ..ViTConfig::base_16()
        },
        fusion_layers: model.fusion_layers,
        head_layers: model.head_layers,
        value_tokens: model.value_tokens,
        value_positions: model.positions,
        key_dim: model.key_dim,
        score_ceiling: model.score_ceiling,
        no_entry: model.no_entry,
        ..RevealConfig::base(1)
    }
}

/// Fits the configuration to the data: the number of sources, and the tokenizer's ids. A published
/// size keeps its vocabulary, which is larger than its tokenizer's.
pub fn fit(
    config: &mut RevealConfig,
    model: &RevealModel,
    corpus: &Corpus,
    tokenizer: &T5Tokenizer,
) {
    let vocabulary_size = tokenizer.vocabulary_size();
    config.t5.vocab_size = if model.size == Size::Own && model.t5.is_empty() {
        vocabulary_size
    } else {
        config.t5.vocab_size.max(vocabulary_size)
    };
    config.t5.eos_token_id = tokenizer.end;
    config.t5.pad_token_id = tokenizer.pad;
    config.t5.decoder_start_token_id = tokenizer.begin;
    // The gate has a column even without a memory.
    config.sources = corpus.sources.len().max(1);
}
