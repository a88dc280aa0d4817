//! A text encoder and an image encoder side by side.

use engram_models::compute::Compute;

use super::{Encoder, Item, Modalities, Prepared, PromptChoice, to_unit_length};
use crate::error::{InferError, Result};

/// One encoder, or a text encoder and an image encoder with concatenated vectors. With two
/// encoders, the part of a missing text or image is zero. The concatenated vector has unit length.
pub struct JointEncoder {
    parts: Vec<Encoder>,
}

/// An item, prepared for each encoder.
#[derive(Debug, Clone)]
pub struct PreparedParts(Vec<Prepared>);

impl JointEncoder {
    /// Opens `model` with the chosen prompt. `image_model` is a second encoder, for images only;
    /// `None` for one encoder.
    ///
    /// # Errors
    /// The errors of [`Encoder::with_prompt`]; [`InferError::Encoder`] for two encoders that cannot
    /// be combined.
    pub fn open(
        model: &str,
        image_model: Option<&str>,
        prompt: &PromptChoice,
        compute: &Compute,
    ) -> Result<Self> {
        let mut parts = vec![Encoder::with_prompt(model, prompt, compute)?];
        if let Some(location) = image_model {
            let images = Encoder::open(location, compute)?;
            if parts[0].modalities().images || images.modalities().text {
                let reason = "an image model needs a text-only first model, and has to be image-only \
                              itself; CLIP encodes both alone";
                return Err(InferError::Encoder { name: location.into(), reason: reason.into() });
            }
            parts.push(images);
        }
        Ok(Self { parts })
    }

    /// The encoders, in the order of their vectors.
    pub fn parts(&self) -> &[Encoder] {
        &self.parts
    }

    /// The dimension `D` of the vectors: the sum over the encoders.
    pub fn width(&self) -> usize {
        self.parts.iter().map(Encoder::width).sum()
    }

    /// The modalities that at least one of the encoders supports.
    pub fn modalities(&self) -> Modalities {
        let any = |supports: fn(Modalities) -> bool| {
            self.parts.iter().any(|part| supports(part.modalities()))
        };
        Modalities { text: any(|part| part.text), images: any(|part| part.images) }
    }

    /// Prepares an item for each encoder.
    ///
    /// # Errors
    /// The errors of [`Encoder::prepare`].
    pub fn prepare(&self, item: Item<'_>) -> Result<PreparedParts> {
        self.parts.iter().map(|part| part.prepare(item)).collect::<Result<_>>().map(PreparedParts)
    }

    /// Computes unit vectors of `N` items, `[N, D]` in row-major order.
    ///
    /// # Errors
    /// The errors of [`Encoder::encode`].
    pub fn encode(&self, items: &[PreparedParts]) -> Result<Vec<f32>> {
        let width = self.width();
        let mut vectors = vec![0.0; items.len() * width];
        let mut column = 0;
        for (i, part) in self.parts.iter().enumerate() {
            let part_items: Vec<&Prepared> = items.iter().map(|item| &item.0[i]).collect();
            let encoded = part.encode(&part_items)?;
            for (row, vector) in vectors.chunks_mut(width).zip(encoded.chunks(part.width())) {
                row[column..column + part.width()].copy_from_slice(vector);
            }
            column += part.width();
        }
        if self.parts.len() > 1 {
            vectors.chunks_mut(width).for_each(to_unit_length);
        }
        Ok(vectors)
    }
}
