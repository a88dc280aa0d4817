//! What a run writes down while it goes on.

mod metrics;
mod progress;
mod tensorboard;

pub use metrics::METRICS;
pub(crate) use metrics::{Metrics, Timing, Window};
pub(crate) use progress::{Progress, print};
pub(crate) use tensorboard::EventWriter;
