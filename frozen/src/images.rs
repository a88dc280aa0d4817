//! SigLIP, DINOv2 and ViT.

use std::sync::Arc;

use candle_core::{IndexOp, Module, Result as CandleResult, Tensor};
use candle_nn::{Conv2dConfig, VarBuilder, conv2d, layer_norm};
use candle_transformers::models::{siglip, vit};
use engram_models::Result;
use serde_json::json;

use crate::config::Config;
use crate::positions::resized;
use crate::source::{Lookup, Source};
use crate::{FrozenEncoder, Images, Texts};

/// SigLIP's encoders; only the image encoder for a configuration of it alone.
pub(crate) fn siglip(
    config: &Config,
    source: &Arc<Source>,
    image_size: Option<(usize, usize)>,
) -> Result<FrozenEncoder> {
    let is_alone = config.field("model_type") == "siglip_vision_model";
    let vision = config.object(if is_alone { "" } else { "vision_config" });
    let vision = if is_alone { config } else { &vision };
    vision.require(&[("vision_use_head", json!(true)), ("num_channels", json!(3))])?;
    let sizes: siglip::VisionConfig = vision.read()?;
    vision.check_heads(sizes.hidden_size, sizes.num_attention_heads)?;
    vision.check_patches(sizes.image_size, sizes.patch_size)?;
    check_image_size(vision, (sizes.image_size, sizes.image_size), image_size)?;
    let builder = source.plain_builder();
    let model = siglip::VisionModel::new(&sizes, true, builder.pp("vision_model"))?;
    let forward = Box::new(move |pixels: &Tensor| model.forward(pixels));
    let images = Some(Images { width: sizes.hidden_size, forward });
    if is_alone {
        return Ok(FrozenEncoder { texts: None, images });
    }

    let text = config.object("text_config");
    let sizes: siglip::TextConfig = text.read()?;
    text.check_heads(sizes.hidden_size, sizes.num_attention_heads)?;
    let max_tokens = text.size(&["max_position_embeddings"], Some(64))?;
    let (d, width) = (sizes.hidden_size, text.size(&["projection_size"], Some(sizes.hidden_size))?);
    // candle-transformers asks for a head from D to D, but computes with any head.
    let builder = source.builder(Box::new(move |source, shape, name| match name {
        "text_model.head.weight" => source.read(&[width, d], name),
        "text_model.head.bias" => source.read(&[width], name),
        _ => source.read(shape, name),
    }));
    let model = siglip::TextModel::new(&sizes, builder.pp("text_model"))?;
    let forward = Box::new(move |ids: &Tensor| model.forward(ids));
    let vocab_size = sizes.vocab_size;
    Ok(FrozenEncoder { texts: Some(Texts { width, vocab_size, max_tokens, forward }), images })
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
    let is_vit = config.field("model_type") == "vit";
    config.require(&[("use_swiglu_ffn", json!(false)), ("num_channels", json!(3))])?;
    let d = config.size(&["hidden_size"], Some(768))?;
    let (side, patch) =
        (config.size(&["image_size"], Some(224))?, config.size(&["patch_size"], None)?);
    config.check_patches(side, patch)?;
    let intermediate_size = match is_vit {
        true => config.size(&["intermediate_size"], Some(3072))?,
        false => d * config.size(&["mlp_ratio"], Some(4))?,
    };
    let sizes = vit::Config {
        hidden_size: d,
        num_hidden_layers: config.size(&["num_hidden_layers"], Some(12))?,
        num_attention_heads: config.size(&["num_attention_heads"], Some(12))?,
        intermediate_size,
        hidden_act: config.activation()?,
        layer_norm_eps: config.number(&["layer_norm_eps"], if is_vit { 1e-12 } else { 1e-6 })?,
        image_size: side,
        patch_size: patch,
        num_channels: 3,
        qkv_bias: config.field("qkv_bias").as_bool().unwrap_or(true),
    };
    config.check_heads(d, sizes.num_attention_heads)?;
    let (height, width) = image_size.unwrap_or((side, side));
    if height % patch != 0 || width % patch != 0 || height == 0 || width == 0 {
        let reason = format!("patches of {patch} pixels do not fit images of {height} x {width}");
        return Err(config.error(reason));
    }
    if is_vit {
        check_image_size(config, (side, side), image_size)?;
    }

    let lookup: Lookup = match is_vit {
        true => Box::new(|source, shape, name| source.read(shape, name)),
        false => Box::new(dinov2_tensor),
    };
    let builder = source.builder(lookup);
    let embeddings = builder.pp("embeddings");
    let grid = side / patch;
    let positions = embeddings.get((1, 1 + grid * grid, d), "position_embeddings")?.squeeze(0)?;
    let first =
        (embeddings.get((1, 1, d), "cls_token")? + positions.i((..1, ..))?.unsqueeze(0)?)?;
    let has_registers = config.field("model_type") == "dinov2_with_registers";
    let first = match has_registers {
        true => {
            let count = config.size(&["num_register_tokens"], Some(4))?;
            Tensor::cat(&[&first, &embeddings.get((1, count, d), "register_tokens")?], 1)?
        }
        false => first,
    };
    let patches = (height / patch, width / patch);
    let positions = resized(&positions.i((1.., ..))?.contiguous()?, patches, has_registers)?;
    let forward = forward(&sizes, &builder, first, positions)?;
    Ok(FrozenEncoder { texts: None, images: Some(Images { width: d, forward }) })
}

/// The forward pass of a ViT with the `first` tokens `[1, K, D]` and the position embeddings of the
/// patches `[P, D]`. Its output is the state of the first token.
fn forward(
    sizes: &vit::Config,
    builder: &VarBuilder<'static>,
    first: Tensor,
    positions: Tensor,
) -> CandleResult<crate::Forward> {
    let (d, stride) = (sizes.hidden_size, sizes.patch_size);
    let strided = Conv2dConfig { stride, ..Conv2dConfig::default() };
    let patches = builder.pp("embeddings.patch_embeddings.projection");
    let projection = conv2d(sizes.num_channels, d, stride, strided, patches)?;
    let blocks = vit::Encoder::new(sizes, builder.pp("encoder"))?;
    let norm = layer_norm(d, sizes.layer_norm_eps, builder.pp("layernorm"))?;
    Ok(Box::new(move |pixels| {
        let patches = projection.forward(pixels)?.flatten_from(2)?.transpose(1, 2)?;
        let patches = patches.broadcast_add(&positions)?;
        let (batch, count) = (pixels.dim(0)?, first.dim(1)?);
        let tokens = Tensor::cat(&[&first.broadcast_as((batch, count, d))?, &patches], 1)?;
        norm.forward(&blocks.forward(&tokens)?.i((.., 0, ..))?.contiguous()?)
    }))
}

/// Reads ViT's tensor `name` from a file of DINOv2.
fn dinov2_tensor(source: &Source, shape: &[usize], name: &str) -> CandleResult<Tensor> {
    let scale = match name {
        name if name.contains(".attention.output.dense.") => Some("layer_scale1"),
        name if name.contains(".output.dense.") => Some("layer_scale2"),
        _ => None,
    };
    let stored = match scale {
        Some("layer_scale2") => name.replace("output.dense", "mlp.fc2"),
        _ => name
            .replace("intermediate.dense", "mlp.fc1")
            .replace("layernorm_before", "norm1")
            .replace("layernorm_after", "norm2"),
    };
    let tensor = source.read(shape, &stored)?;
    let Some(scale) = scale else { return Ok(tensor) };
    let block = name.split(".attention.output").next().unwrap_or(name);
    let block = block.split(".output.").next().unwrap_or(block);
    let scale = source.read(&shape[..1], &format!("{block}.{scale}.lambda1"))?;
    match shape.len() {
        1 => tensor.mul(&scale),
        _ => tensor.broadcast_mul(&scale.unsqueeze(1)?),
    }
}

/// Checks that the image processor gives images of the size that the model takes.
fn check_image_size(
    config: &Config,
    (height, width): (usize, usize),
    image_size: Option<(usize, usize)>,
) -> Result<()> {
    match image_size {
        Some(size) if size != (height, width) => Err(config.error(format!(
            "takes images of {height} x {width} pixels, but preprocessor_config.json gives \
             {} x {}; use both files of the same model",
            size.0, size.1
        ))),
        _ => Ok(()),
    }
}
