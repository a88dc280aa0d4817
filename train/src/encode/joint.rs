//! Two encoders side by side: one for texts, one for pictures.

use super::{Encoder, Item, Prepared, PromptChoice, Reads, to_unit_length};
use crate::error::{Result, TrainError};

/// One encoder, or one of texts and one of pictures, whose vectors stand one after the other. With two, an item that
/// has a text alone has zeros in place of its picture's vector, and the other way round; the whole has unit length.
pub struct JointEncoder {
    parts: Vec<Encoder>,
}

/// An item as each of the encoders takes it.
#[derive(Debug, Clone)]
pub struct PreparedParts(Vec<Prepared>);

impl JointEncoder {
    /// Opens `model`, with the chosen prompt before texts, and, where it is given, `image_model` beside it.
    ///
    /// # Errors
    /// As [`Encoder::with_prompt`]; [`TrainError::Encoder`] for two that do not go together.
    pub fn open(model: &str, image_model: Option<&str>, prompt: &PromptChoice) -> Result<Self> {
        let mut parts = vec![Encoder::with_prompt(model, prompt)?];
        if let Some(location) = image_model {
            let pictures = Encoder::open(location)?;
            if parts[0].reads().pictures || pictures.reads().text {
                let reason = "it stands beside a model of texts alone, and encodes pictures alone; \
                              a CLIP folder does both, as `--model`";
                return Err(TrainError::Encoder { name: location.into(), reason: reason.into() });
            }
            parts.push(pictures);
        }
        Ok(Self { parts })
    }

    /// The encoders, in the order in which their vectors stand.
    pub fn parts(&self) -> &[Encoder] {
        &self.parts
    }

    /// The width of its vectors.
    pub fn width(&self) -> usize {
        self.parts.iter().map(Encoder::width).sum()
    }

    /// What it takes of an item.
    pub fn reads(&self) -> Reads {
        let any = |reads: fn(Reads) -> bool| self.parts.iter().any(|part| reads(part.reads()));
        Reads { text: any(|reads| reads.text), pictures: any(|reads| reads.pictures) }
    }

    /// As [`Encoder::prepare`].
    pub fn prepare(&self, item: Item<'_>) -> Result<PreparedParts> {
        self.parts.iter().map(|part| part.prepare(item)).collect::<Result<_>>().map(PreparedParts)
    }

    /// As [`Encoder::encode`].
    pub fn encode(&self, items: &[PreparedParts]) -> Result<Vec<f32>> {
        let width = self.width();
        let mut vectors = vec![0.0; items.len() * width];
        let mut column = 0;
        for (i, part) in self.parts.iter().enumerate() {
            let own: Vec<&Prepared> = items.iter().map(|item| &item.0[i]).collect();
            let made = part.encode(&own)?;
            for (row, made) in vectors.chunks_mut(width).zip(made.chunks(part.width())) {
                row[column..column + part.width()].copy_from_slice(made);
            }
            column += part.width();
        }
        if self.parts.len() > 1 {
            vectors.chunks_mut(width).for_each(to_unit_length);
        }
        Ok(vectors)
    }
}
