//! The base encoder: the lower layers of T5 encode texts, a ViT encodes images. Patches follow the
//! text tokens.

use std::sync::Arc;

use candle_core::Tensor;

use super::config::RevealConfig;
use crate::error::{Result, bail};
use crate::kernels::{Mode, Segments, dropout, embedding_sum, packed_spans};
use crate::layers::Linear;
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;
use crate::t5::TokenTable;
use crate::t5::blocks::{BlockInputs, PreNormBlock, RelativeBias, encoder_block};
use crate::vit::ViT;

/// Queries or entries: texts, each with at most one image.
#[derive(Debug, Clone)]
pub struct RevealInput {
    /// The texts. The state of each text's first token becomes the query or key.
    pub tokens: PackedTokens,
    /// `I` images `[I, 3, S, S]` in `[-1, 1]`; texts may share an image. `None` if no text has an
    /// image.
    pub pixels: Option<Tensor>,
    /// For each text, the index of its image in `pixels`; `None` for a text without an image.
    pub image_of: Vec<Option<u32>>,
}

/// Hidden states of packed sequences, from the base encoder or from the fusion.
#[derive(Debug, Clone)]
pub struct BaseStates {
    /// `[T, D]`.
    pub states: Tensor,
    /// Number of rows of each sequence: text tokens, then patches. After the fusion, value tokens
    /// follow.
    pub lengths: Vec<usize>,
}

impl BaseStates {
    /// Returns one segment per sequence: rows attend within their sequence.
    pub fn segments(&self) -> Segments {
        Segments::packed(&self.lengths)
    }

    /// Returns the states of the sequences with these indices, in this order. An index may be
    /// repeated.
    pub fn select(&self, sequences: &[usize]) -> Result<Self> {
        let spans = packed_spans(&self.lengths);
        let rows = sequences.iter().flat_map(|&i| spans[i].start..spans[i].start + spans[i].length);
        let rows: Arc<[u32]> = rows.map(|row| row as u32).collect();
        let lengths = sequences.iter().map(|&i| self.lengths[i]).collect();
        Ok(Self { states: embedding_sum(&[(&self.states, rows)])?, lengths })
    }
}

/// The encoder of texts and images.
#[derive(Debug, Clone)]
pub(super) struct BaseEncoder {
    config: RevealConfig,
    pub(super) token_table: TokenTable,
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    image: ViT,
    /// The projection from the image encoder's width to `D`.
    image_head: Linear,
}

impl BaseEncoder {
    /// The parameters are `shared`, `encoder.block.N` (the lower blocks, with published names),
    /// `image_encoder` and `image_head`.
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        let blocks = builder.pp("encoder.block");
        let path = "0.layer.0.SelfAttention.relative_attention_bias";
        let layers = 0..config.text_layers();
        let width = config.image.hidden_size;
        let std = (width as f64).powf(-0.5);
        Ok(Self {
            token_table: TokenTable::new(&config.t5, &builder.pp("shared"))?,
            bias: RelativeBias::new(&config.t5, true, &blocks.pp(path))?,
            layers: layers
                .map(|i| encoder_block(&config.t5, &blocks.pp(i)))
                .collect::<Result<_>>()?,
            image: ViT::new(&config.image, &builder.pp("image_encoder"))?,
            image_head: Linear::new(width, config.t5.d_model, std, &builder.pp("image_head"))?,
            config: config.clone(),
        })
    }

    /// Returns the token embeddings `[T, D]`.
    pub(super) fn embed(&self, ids: &Arc<[u32]>) -> Result<Tensor> {
        self.token_table.forward(ids)
    }

    /// Returns the states of each text and its image.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if `image_of` does not match the texts and images.
    pub(super) fn forward(&self, input: &RevealInput, mode: &Mode) -> Result<BaseStates> {
        let spans = input.tokens.sequences();
        if input.image_of.len() != spans.len() {
            bail!("{} texts, but `image_of` has {} items", spans.len(), input.image_of.len());
        }
        if input.pixels.is_none() && input.image_of.iter().any(Option::is_some) {
            bail!("texts have images, but `pixels` is missing");
        }
        let texts = self.texts(&input.tokens, mode)?;
        let Some(pixels) = &input.pixels else {
            let lengths = spans.iter().map(|span| span.length).collect();
            return Ok(BaseStates { states: texts, lengths });
        };
        let patches = self.patches(pixels, mode)?;
        let (images, count, width) = patches.dims3()?;
        let first_patch = texts.dim(0)?;
        let states = Tensor::cat(&[&texts, &patches.reshape((images * count, width))?], 0)?;
        let (mut rows, mut lengths) = (Vec::new(), Vec::with_capacity(spans.len()));
        for (span, image) in spans.iter().zip(&input.image_of) {
            let first_row = rows.len();
            rows.extend((span.start..span.start + span.length).map(|row| row as u32));
            if let Some(image) = image {
                let start = first_patch + *image as usize * count;
                rows.extend((start..start + count).map(|row| row as u32));
            }
            lengths.push(rows.len() - first_row);
        }
        Ok(BaseStates { states: embedding_sum(&[(&states, rows.into())])?, lengths })
    }

    /// Returns the states of the texts after the lower T5 layers, `[T, D]`.
    fn texts(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        let bias = self.bias.within(&tokens.segments)?;
        let dropout_mask = mode.dropout(self.config.t5.dropout_rate);
        let mut x = dropout(&mode.detach(self.token_table.forward(&tokens.ids)?), dropout_mask)?;
        let inputs = BlockInputs { bias: Some(&bias), ..BlockInputs::new(&tokens.segments) };
        for (i, layer) in self.layers.iter().enumerate() {
            x = mode.detach(layer.forward(&x, inputs, mode)?);
            if i + 1 == self.config.frozen_text_layers {
                x = x.detach();
            }
        }
        Ok(x)
    }

    /// Returns the patches of the images, projected to `D` and scaled: `[I, P, D]`.
    fn patches(&self, pixels: &Tensor, mode: &Mode) -> Result<Tensor> {
        let frozen = self.config.frozen_image_layers;
        let stop_gradient_after = (frozen > 0).then_some(frozen);
        let patches = self.image.forward(pixels, stop_gradient_after, mode)?.patch_tokens;
        Ok((self.image_head.forward(&patches, mode)? * self.config.token_scale)?)
    }
}
