//! Phrase similarity: encoders that score pairs, and the losses they are trained with.

mod bi_encoder;
mod cross_encoder;
mod losses;
mod pooling;

pub use bi_encoder::{BiEncoder, normalise};
pub use cross_encoder::{CrossEncoder, CrossEncoderConfig, ScoredSpans};
pub use losses::{PairLoss, contrastive, cosent};
pub use pooling::{Pooling, SpanPooler};
