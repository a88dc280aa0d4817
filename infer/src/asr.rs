//! Automatic speech recognition (ASR) with Whisper or a Conformer: batches of clips, long
//! recordings, streaming, word boosting and AVFormer adapters.

mod adapted;
mod asr_model;
mod boost;
mod conformer;
mod frozen;
mod speech_detection;
mod streaming;
mod transcript;
mod whisper;

use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_models::generation::boosting::BoostTree;
use engram_models::speech::log_mel::Frames;
use engram_models::whisper::Task;

use crate::error::Result;

pub use adapted::{
    AdaptedAsrModel, AdaptedClip, AvformerRunConfig, MAX_FRAMES, MAX_SILENCE_SECONDS,
    embedding_scale, open_avformer, sample_evenly, select_frames,
};
pub use asr_model::AsrModel;
pub use boost::BoostTreeBuilder;
use conformer::ConformerAsr;
pub use streaming::{Distribution, FinalWord, StreamOptions, StreamResult, StreamUpdate};
pub use transcript::{Segment, Transcript, Word, words_of_segments};
use whisper::WhisperAsr;

/// Concatenates the log-mel frames of clips, `[F, M]`. Also returns the number of frames of each.
fn packed(frames: Vec<Frames>) -> Result<(Tensor, Vec<usize>)> {
    let lengths = frames.iter().map(Frames::len).collect();
    let bands = frames.first().map_or(1, |frames| frames.bands);
    let values: Vec<f32> = frames.into_iter().flat_map(|frames| frames.values).collect();
    let shape = (values.len() / bands, bands);
    Ok((Tensor::from_vec(values, shape, &Device::Cpu)?, lengths))
}

/// Options for transcribing clips.
#[derive(Debug, Clone)]
pub struct TranscribeOptions {
    /// The number of beams; 1 is greedy decoding.
    pub num_beams: usize,
    /// Whether [`AsrModel::transcribe`] returns segments. Whisper then decodes timestamps.
    /// Transcripts of long recordings and of streams always have segments.
    pub timestamps: bool,
    /// Whether to return the times of each word.
    pub word_times: bool,
    /// The spoken language, such as `en`. Multilingual Whisper models need it. English-only Whisper
    /// models accept `en` and `None`, a Conformer only `None`.
    pub language: Option<String>,
    /// Transcription, or translation to English by a multilingual Whisper model.
    pub task: Task,
    /// The padding of clips for Whisper.
    pub padding: Padding,
    /// Words to boost in all clips, from [`BoostTreeBuilder::tree`]; `None` for no boosting.
    pub boost: Option<Arc<BoostTree>>,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        Self {
            num_beams: 1,
            timestamps: false,
            word_times: false,
            language: None,
            task: Task::Transcribe,
            padding: Padding::default(),
            boost: None,
        }
    }
}

/// The padding at the end of a clip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Padding {
    /// Log-mel frames of zeros up to 30 seconds, like faster-whisper.
    #[default]
    Zeros,
    /// Silence up to 30 seconds, like openai-whisper.
    Silence,
    /// Five seconds of silence, which is faster for short clips. The clip is decoded again with
    /// [`Padding::Silence`] if the text repeats itself, has a low probability or was truncated.
    /// Clips with timestamps and long recordings get [`Padding::Silence`] instead.
    Short,
}
