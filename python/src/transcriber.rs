//! Speech recognition.

use std::path::PathBuf;

use engram::data::audio::{AudioReader, read_audio};
use engram::infer::InferError;
use engram::infer::asr::{
    AsrModel, Padding, Segment, TranscribeOptions, Transcript, words_of_segments,
};
use engram::models::speech::log_mel::SAMPLE_RATE;
use engram::models::whisper::Task;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::json;

use crate::encoder::compute;
use crate::errors::raised;
use crate::process::detached;

/// A speech recogniser.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Transcriber {
    model: AsrModel,
}

/// A recording: samples at 16 kHz, the bytes of a file, or a file.
#[derive(FromPyObject)]
pub(crate) enum Audio<'py> {
    Samples(PyReadonlyArray1<'py, f32>),
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// Options of a transcription.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    beams: usize,
    segments: bool,
    words: bool,
    language: Option<String>,
    translate: bool,
    padding: String,
    boost: Vec<String>,
    boost_weight: Option<f32>,
}

#[pymethods]
impl Transcriber {
    #[new]
    fn new(py: Python<'_>, model: String, device: &str) -> PyResult<Self> {
        crate::warn_in_python();
        let compute = compute(device)?;
        let model = detached(py, || AsrModel::open(&model, &compute)).map_err(raised)?;
        Ok(Self { model })
    }

    /// The longest clip that is transcribed at once, in seconds.
    #[getter]
    fn max_seconds(&self) -> f64 {
        self.model.max_seconds()
    }

    /// Transcribes recordings; returns a JSON list of transcripts. Short ones are transcribed in one
    /// batch. `progress` gets the number of transcribed recordings.
    fn transcribe(
        &self,
        py: Python<'_>,
        recordings: Vec<Audio<'_>>,
        options: Options,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let options = self.options(options)?;
        self.model.check(&options).map_err(raised)?;
        let samples: Vec<Vec<f32>> = recordings.iter().map(samples).collect::<PyResult<_>>()?;
        let longest = (self.model.max_seconds() * f64::from(SAMPLE_RATE)) as usize;
        let mut transcripts: Vec<Option<Transcript>> = vec![None; samples.len()];
        let is_short = |index: &usize| samples[*index].len() <= longest;
        let (short, long): (Vec<usize>, Vec<usize>) = (0..samples.len()).partition(is_short);
        let mut done = 0;
        let mut finish = |count: usize| -> PyResult<()> {
            done += count;
            py.check_signals()?;
            progress.as_ref().map_or(Ok(()), |progress| progress.call1((done,)).map(drop))
        };
        for batch in short.chunks(8) {
            let clips: Vec<&[f32]> = batch.iter().map(|index| samples[*index].as_slice()).collect();
            let found = detached(py, || self.model.transcribe(&clips, &[], &options));
            for (index, transcript) in batch.iter().zip(found.map_err(raised)?) {
                transcripts[*index] = Some(transcript);
            }
            finish(batch.len())?;
        }
        for index in long {
            let transcript = detached(py, || self.long(&samples[index], &options, |_, _| ()));
            transcripts[index] = Some(transcript?);
            finish(1)?;
        }
        serde_json::to_string(&transcripts).map_err(raised)
    }

    /// Whether the model is a Whisper model for several languages.
    #[getter]
    fn multilingual(&self) -> bool {
        let language = Some("de".to_owned());
        self.model.check(&TranscribeOptions { language, ..Default::default() }).is_ok()
    }

    /// Transcribes a recording window by window; returns as JSON the transcript and, for each
    /// segment, the start of its window in seconds and its number of words.
    fn transcribe_windows(
        &self,
        py: Python<'_>,
        recording: PyReadonlyArray1<'_, f32>,
        options: Options,
    ) -> PyResult<String> {
        let options = self.options(options)?;
        let samples = recording.as_array().to_vec();
        let (mut starts, mut start) = (Vec::new(), 0.0);
        let transcript = detached(py, || {
            self.long(&samples, &options, |segments, end| {
                starts.resize(starts.len() + segments.len(), start);
                start = end;
            })
        })?;
        let words = words_of_segments(&transcript.segments, &transcript.words);
        let words: Vec<usize> = words.iter().map(|words| words.len()).collect();
        Ok(json!({"transcript": transcript, "starts": starts, "words": words}).to_string())
    }
}

/// The samples of a recording, mono.
#[pyfunction]
pub(crate) fn decode_audio<'py>(
    py: Python<'py>,
    audio: Audio<'py>,
    rate: u32,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    Ok(PyArray1::from_vec(py, samples_at(&audio, rate)?))
}

impl Transcriber {
    /// Transcribes a recording of any length.
    fn long(
        &self,
        samples: &[f32],
        options: &TranscribeOptions,
        on_window: impl FnMut(&[Segment], f64),
    ) -> PyResult<Transcript> {
        let mut rest = Some(samples);
        let read = |out: &mut Vec<f32>| -> Result<bool, InferError> {
            let next = rest.take();
            Ok(next.map(|samples| out.extend_from_slice(samples)).is_some())
        };
        self.model.transcribe_long(options, read, on_window).map_err(raised)
    }

    fn options(&self, options: Options) -> PyResult<TranscribeOptions> {
        let padding = match &*options.padding {
            "zeros" => Padding::Zeros,
            "silence" => Padding::Silence,
            "short" => Padding::Short,
            other => {
                let text = format!("no padding {other:?}; give zeros, silence or short");
                return Err(PyValueError::new_err(text));
            }
        };
        let boost = match options.boost.is_empty() {
            true => None,
            false => {
                let builder = self.model.boost_builder(options.boost_weight).map_err(raised)?;
                Some(builder.tree(&options.boost).map_err(raised)?)
            }
        };
        Ok(TranscribeOptions {
            num_beams: options.beams,
            timestamps: options.segments,
            word_times: options.words,
            language: options.language,
            task: if options.translate { Task::Translate } else { Task::Transcribe },
            padding,
            boost,
        })
    }
}

/// The samples of a recording at 16 kHz.
fn samples(audio: &Audio<'_>) -> PyResult<Vec<f32>> {
    samples_at(audio, SAMPLE_RATE)
}

/// The samples of a recording; those of an array stay unchanged.
fn samples_at(audio: &Audio<'_>, rate: u32) -> PyResult<Vec<f32>> {
    match audio {
        Audio::Samples(samples) => Ok(samples.as_array().to_vec()),
        Audio::Bytes(bytes) => {
            let reader = AudioReader::from_bytes("recording", bytes.clone(), rate);
            reader.and_then(|mut reader| reader.read_all()).map_err(raised)
        }
        Audio::File(file) => read_audio(file, rate).map_err(raised),
    }
}
