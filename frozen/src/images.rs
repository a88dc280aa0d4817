//! SigLIP, DINOv2 and ViT.

use std::sync::Arc;

use candle_core::{IndexOp, Module, Result as CandleResult, Tensor};
use candle_nn::{Conv2dConfig, conv2d, layer_norm};
use candle_transformers::models::{siglip, vit};
use engram_models::Result;
use serde_json::json;

use crate::config::Config;
use crate::positions::resized;
use crate::source::{Lookup, Source};
use crate::{FrozenEncoder, Images, Texts};

/// SigLIP's encoders.
pub(crate) fn siglip(
    config: &Config,
    source: &Arc<Source>,
    image_size: Option<(usize, usize)>,
) -> Result<FrozenEncoder> {
    let (vision, text) = (config.object("vision_config"), config.object("text_config"));
    vision.require(&[("vision_use_head", json!(true)), ("num_channels", json!(3))])?;
    let sizes: siglip::VisionConfig = vision.read()?;
    vision.check_heads(sizes.hidden_size, sizes.num_attention_heads)?;
    vision.size(&["patch_size"], Some(sizes.patch_size))?;
    let side = vision.size(&["image_size"], Some(sizes.image_size))?;
    if let Some((height, width)) = image_size.filter(|size| *size != (side, side)) {
        return Err(config.error(format!(
            "takes images of {side} x {side} pixels, but preprocessor_config.json gives {height} x \
             {width}; use both files of the same model"
        )));
    }
    let builder = source.plain_builder();
    let model = siglip::VisionModel::new(&sizes, true, builder.pp("vision_model"))?;
    let forward = Box::new(move |pixels: &Tensor| model.forward(pixels));
    let images = Images { width: sizes.hidden_size, forward };

    let sizes: siglip::TextConfig = text.read()?;
    text.check_heads(sizes.hidden_size, sizes.num_attention_heads)?;
    let (d, vocab_size) = (sizes.hidden_size, sizes.vocab_size);
    let max_tokens = text.size(&["max_position_embeddings"], Some(64))?;
    let width = text.size(&["projection_size"], Some(d))?;
    if width != images.width {
        let reason = format!("texts get the width {width}, but images {}", images.width);
        return Err(config.error(reason));
    }
    // candle-transformers asks for a head from D to D, but computes with any head.
    let builder = source.builder(Box::new(move |source, shape, name| match name {
        "text_model.head.weight" => source.read(&[width, d], name),
        "text_model.head.bias" => source.read(&[width], name),
        _ => source.read(shape, name),
    }));
    let model = siglip::TextModel::new(&sizes, builder.pp("text_model"))?;
    let forward = Box::new(move |ids: &Tensor| model.forward(ids));
    let texts = Texts { width, vocab_size, max_tokens, forward };
    Ok(FrozenEncoder { texts: Some(texts), images: Some(images) })
}

/// DINOv2, with or without register tokens, and ViT.
///
/// DINOv2's blocks are ViT's blocks with a factor for each component of their outputs; here, these
/// factors are multiplied into the weights. candle-transformers' own DINOv2 has another epsilon,
/// resizes position embeddings otherwise, and has registers for one image size only.
pub(crate) fn vision_transformer(
    config: &Config,
    source: &Arc<Source>,
    image_size: Option<(usize, usize)>,
) -> Result<FrozenEncoder> {
    let kind = config.field(&["model_type"]).as_str();
    let (is_vit, has_registers) = (kind == Some("vit"), kind == Some("dinov2_with_registers"));
    config.require(&[("use_swiglu_ffn", json!(false)), ("num_channels", json!(3))])?;
    let d = config.size(&["hidden_size"], Some(768))?;
    let patch_size = config.size(&["patch_size"], Some(if is_vit { 16 } else { 14 }))?;
    let sizes = vit::Config {
        hidden_size: d,
        num_hidden_layers: config.size(&["num_hidden_layers"], Some(12))?,
        num_attention_heads: config.size(&["num_attention_heads"], Some(12))?,
        intermediate_size: match is_vit {
            true => config.size(&["intermediate_size"], Some(3072))?,
            false => d * config.size(&["mlp_ratio"], Some(4))?,
        },
        hidden_act: config.activation()?,
        layer_norm_eps: config.number(&["layer_norm_eps"], if is_vit { 1e-12 } else { 1e-6 })?,
        image_size: config.size(&["image_size"], Some(224))?,
        patch_size,
        num_channels: 3,
        qkv_bias: config.field(&["qkv_bias"]).as_bool().unwrap_or(true),
    };
    config.check_heads(d, sizes.num_attention_heads)?;
    let (height, width) = image_size.unwrap_or((sizes.image_size, sizes.image_size));
    let patches = (height / patch_size, width / patch_size);
    if (patches.0 * patch_size, patches.1 * patch_size) != (height, width) || height * width == 0 {
        return Err(config.error(format!(
            "patches of {patch_size} pixels do not fit images of {height} x {width}"
        )));
    }

    let lookup: Lookup = Box::new(if is_vit { Source::read } else { dinov2_tensor });
    let builder = source.builder(lookup);
    let embeddings = builder.pp("embeddings");
    let count = (sizes.image_size / patch_size).pow(2);
    let positions = embeddings.get((1, 1 + count, d), "position_embeddings")?.squeeze(0)?;
    let class =
        (embeddings.get((1, 1, d), "cls_token")? + positions.i((..1, ..))?.unsqueeze(0)?)?;
    let first = if has_registers {
        let count = config.size(&["num_register_tokens"], Some(4))?;
        Tensor::cat(&[&class, &embeddings.get((1, count, d), "register_tokens")?], 1)?
    } else {
        class
    };
    let positions = resized(&positions.i((1.., ..))?.contiguous()?, patches, has_registers)?;
    let strided = Conv2dConfig { stride: patch_size, ..Conv2dConfig::default() };
    let projection = embeddings.pp("patch_embeddings.projection");
    let projection = conv2d(sizes.num_channels, d, patch_size, strided, projection)?;
    let blocks = vit::Encoder::new(&sizes, builder.pp("encoder"))?;
    let norm = layer_norm(d, sizes.layer_norm_eps, builder.pp("layernorm"))?;
    let forward = Box::new(move |pixels: &Tensor| {
        let patches = projection.forward(pixels)?.flatten_from(2)?.transpose(1, 2)?;
        let patches = patches.broadcast_add(&positions)?;
        let first = first.broadcast_as((pixels.dim(0)?, first.dim(1)?, d))?;
        let states = blocks.forward(&Tensor::cat(&[&first, &patches], 1)?)?;
        norm.forward(&states.i((.., 0, ..))?.contiguous()?)
    });
    Ok(FrozenEncoder { texts: None, images: Some(Images { width: d, forward }) })
}

/// Reads ViT's tensor `name` from a file of DINOv2.
fn dinov2_tensor(source: &Source, shape: &[usize], name: &str) -> CandleResult<Tensor> {
    let (block, stored, scale) = match name.split_once(".attention.output.dense") {
        Some((block, _)) => (block, name.to_owned(), "layer_scale1"),
        None => match name.split_once(".output.dense") {
            Some((block, end)) => (block, format!("{block}.mlp.fc2{end}"), "layer_scale2"),
            None => {
                let stored = name
                    .replace("intermediate.dense", "mlp.fc1")
                    .replace("layernorm_before", "norm1")
                    .replace("layernorm_after", "norm2");
                return source.read(shape, &stored);
            }
        },
    };
    let scale = source.read(&shape[..1], &format!("{block}.{scale}.lambda1"))?;
    let scale = if shape.len() == 1 { scale } else { scale.unsqueeze(1)? };
    source.read(shape, &stored)?.broadcast_mul(&scale)
}
