//! Phrase similarity: encoders that score pairs of phrases, their training losses, and published
//! sentence encoders.

mod bi_encoder;
mod cross_encoder;
mod losses;
mod pooling;
pub mod sentence_transformer;

pub use bi_encoder::{BiEncoder, normalise};
pub use cross_encoder::{CrossEncoder, CrossEncoderConfig, ScoredSpans};
pub use losses::{PairLoss, contrastive, cosent};
pub use pooling::{Pooling, SpanPooler};
