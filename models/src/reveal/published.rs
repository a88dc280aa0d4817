//! Loads published weights into a REVEAL model: T5 v1.1 for the text parts, ViT for the image
//! encoder.
//!
//! | REVEAL parameter | file | published parameter |
//! |---|---|---|
//! | `shared`, `encoder`, `decoder`, `lm_head` | T5 | the same name; the base encoder has the lower blocks of `encoder`, and the fusion has the upper blocks |
//! | `fusion.relative_attention_bias` | T5 | the biases of the encoder's first block, shared by all its blocks |
//! | `image_encoder` | ViT | the same name, with or without `vit.`; the class token and its position are not loaded |
//!
//! All other parameters keep their random initial values: the heads, the Perceiver, the gate, the
//! score transform and the image head.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::params::Parameters;
use crate::weights::{Weights, WeightsFiles};

/// Files of published weights. `None` leaves the initial values of the part of the model that the
/// file would fill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedWeights {
    /// The `model.safetensors` of a T5 v1.1.
    pub t5: Option<WeightsFiles>,
    /// The `model.safetensors` of a ViT.
    pub vit: Option<WeightsFiles>,
}

/// The relative biases of the fusion, by their name in REVEAL.
const FUSION_BIAS: &str = "fusion.relative_attention_bias.weight";
/// The relative biases of the T5 encoder, by their published name.
const ENCODER_BIAS: &str = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
/// The position embeddings of the ViT.
const POSITIONS: &str = "embeddings.position_embeddings";

impl PublishedWeights {
    /// Sets the parameters of a [`Reveal`](super::Reveal) that the given files fill (see the table
    /// of the module). Returns their names.
    ///
    /// # Errors
    /// The errors of [`Weights::open`] and [`Weights::get`]. Parameters that were set before the
    /// error keep their new values, so discard the model after an error.
    pub fn load_into(&self, parameters: &Parameters) -> Result<Vec<String>> {
        let open = |files: &Option<WeightsFiles>| files.as_ref().map(open_weights).transpose();
        let (t5, vit) = (open(&self.t5)?, open(&self.vit)?);
        let mut loaded_names = Vec::new();
        for parameter in parameters.iter() {
            let (name, shape) = (parameter.name(), parameter.tensor().dims());
            let value = match (t5_name(name), name.strip_prefix("image_encoder."), &t5, &vit) {
                (Some(published_name), _, Some(t5), _) => read_tensor(t5, published_name, shape)?,
                (_, Some(POSITIONS), _, Some(vit)) => patch_positions(vit, shape)?,
                (_, Some(published_name), _, Some(vit)) => read_tensor(vit, published_name, shape)?,
                _ => continue,
            };
            let value = value.flatten_all()?.to_vec1::<f32>()?;
            parameter.update(&mut |data| data.copy_from_slice(&value))?;
            loaded_names.push(name.to_owned());
        }
        Ok(loaded_names)
    }
}

fn open_weights(files: &WeightsFiles) -> Result<Weights> {
    Ok(files.open()?.with_optional_prefix("vit."))
}

/// Returns T5's name of a parameter; `None` if it is not a T5 parameter.
fn t5_name(name: &str) -> Option<&str> {
    let parts = ["shared.", "encoder.", "decoder.", "lm_head."];
    match name {
        FUSION_BIAS => Some(ENCODER_BIAS),
        name => parts.iter().any(|part| name.starts_with(part)).then_some(name),
    }
}

fn read_tensor(weights: &Weights, name: &str, shape: &[usize]) -> Result<Tensor> {
    weights.get(name, shape, DType::F32, &Device::Cpu)
}

/// Returns the positions of the patches, without the position of the class token.
fn patch_positions(vit: &Weights, shape: &[usize]) -> Result<Tensor> {
    let &[one, patches, width] = shape else { return read_tensor(vit, POSITIONS, shape) };
    let all_positions = read_tensor(vit, POSITIONS, &[one, patches + 1, width])?;
    Ok(all_positions.narrow(1, 1, patches)?.contiguous()?)
}
