//! The logs of a run: metrics, timing, progress and TensorBoard events.

mod metrics;
mod progress;
mod tensorboard;

pub(crate) use engram_data::messages::message as print;
pub use metrics::METRICS;
pub(crate) use metrics::{LogPosition, Metrics, Timing, Window};
pub(crate) use progress::Progress;
pub(crate) use tensorboard::EventWriter;
