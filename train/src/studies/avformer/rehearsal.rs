//! Rehearsal: training on clean speech, so that adapters do not worsen its transcripts. The clips
//! of `data.rehearsal` are used at several speeds, alone and in pairs. The targets are the texts of
//! the manifest and, with distillation, the output states of the frozen ASR model's encoder.

use candle_core::Tensor;
use engram_data::audio::change_speed;
use engram_data::world::speech::SAMPLE_RATE;
use engram_models::avformer::state_distance;
use engram_models::kernels::Mode;
use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::seconds_to_samples;
use rayon::prelude::*;

use super::corpus::ClipWithFrames;
use super::settings::AvformerFeed;
use super::study::AvformerStudy;
use super::transcription::{CLIPS_PER_PASS, EmbeddedClip, first_states};
use crate::study::StudyResult;

/// The silence between the clips of a pair.
const PAUSE_SECONDS: f64 = 0.5;

impl AvformerStudy {
    /// The rehearsal clips: each clip at each speed, alone and joined with another clip. Excludes
    /// clips and pairs that are too short or too long, and pairs whose joint text is invalid.
    ///
    /// # Errors
    /// Errors of the clips; an error if no clip remains.
    pub(super) fn rehearsal(&self) -> StudyResult<Vec<EmbeddedClip>> {
        let clips = self.corpus.rehearsal()?;
        let max_samples = seconds_to_samples(self.data.max_seconds);
        let lengths = self.asr_model.min_samples()..=max_samples;
        let mut rehearsal_clips: Vec<ClipWithFrames> = Vec::new();
        for (i, speed) in self.data.rehearsal_speeds.iter().enumerate() {
            let resampled = clips.par_iter().map(|clip| {
                let samples = change_speed(&clip.samples, SAMPLE_RATE, *speed)?;
                Ok(ClipWithFrames { samples, ..clip.clone() })
            });
            let resampled = resampled.collect::<StudyResult<Vec<ClipWithFrames>>>()?;
            let other = |index: usize| &resampled[(index + i + 1) % resampled.len()];
            let pairs = resampled
                .iter()
                .enumerate()
                .map(|(index, clip)| join_with_pause(clip, other(index)));
            let has_valid_text =
                |pair: &ClipWithFrames| self.asr_model.text_error(&pair.text).is_none();
            let pairs: Vec<ClipWithFrames> = pairs.filter(has_valid_text).collect();
            let resampled = resampled.into_iter().chain(pairs);
            rehearsal_clips.extend(resampled.filter(|clip| lengths.contains(&clip.samples.len())));
        }
        if rehearsal_clips.is_empty() {
            let (speeds, max_seconds) = (&self.data.rehearsal_speeds, self.data.max_seconds);
            let reason = format!("leaves no clip up to data.max_seconds = {max_seconds}");
            return Err(format!("data.rehearsal_speeds = {speeds:?} {reason}").into());
        }
        let indices: Vec<usize> = (0..rehearsal_clips.len()).collect();
        let mut embedded = self.embed_clips(&rehearsal_clips, &indices)?;
        if self.feeds.iter().any(uses_distillation) {
            let states = embedded.iter().filter_map(|clip| clip.states.as_ref());
            let counts = states.map(|states| states.dim(0)).collect::<Result<Vec<_>, _>>()?;
            let frozen = self.frozen_states(&rehearsal_clips, &counts)?;
            embedded.iter_mut().zip(frozen).for_each(|(clip, states)| clip.frozen = Some(states));
        }
        Ok(embedded)
    }

    /// The distillation loss of the rehearsal clips in a batch, and the mean distance between the
    /// output states of the adapted and the frozen encoder. `None` if the batch has no rehearsal
    /// clip or the phase has no distillation.
    pub(super) fn distance_loss(
        &self,
        batch: &[&EmbeddedClip],
        audio: &AudioStates,
        feed: &AvformerFeed,
    ) -> StudyResult<Option<(Tensor, f64)>> {
        let targets = batch.iter().enumerate();
        let targets: Vec<(usize, &Tensor)> =
            targets.filter_map(|(i, clip)| Some((i, clip.frozen.as_ref()?))).collect();
        if targets.is_empty() || !uses_distillation(feed) {
            return Ok(None);
        }
        let distance = state_distance(audio, &targets)?.sum_all()?;
        let mean = f64::from(distance.to_scalar::<f32>()?) / targets.len() as f64;
        Ok(Some(((distance * (feed.distillation / batch.len() as f64))?, mean)))
    }

    /// The first `counts` output states of the frozen encoder for each clip, `[T, D]`. Each clip is
    /// followed by silence, as in the encoder's training.
    fn frozen_states(
        &self,
        clips: &[ClipWithFrames],
        counts: &[usize],
    ) -> StudyResult<Vec<Tensor>> {
        let asr_model = &self.asr_model;
        let silence_of_clips = seconds_to_samples(self.data.silence_seconds);
        let silence = asr_model.trailing_silence_samples().max(silence_of_clips);
        let mut states = Vec::with_capacity(clips.len());
        for (clips, counts) in clips.chunks(CLIPS_PER_PASS).zip(counts.chunks(CLIPS_PER_PASS)) {
            let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
            let audio_inputs = asr_model.embed(&self.frozen_model, &samples, silence)?;
            let frozen = self.frozen_model.encode_unadapted(audio_inputs, &Mode::inference())?;
            states.extend(first_states(&frozen, counts)?);
        }
        Ok(states)
    }
}

/// Joins a clip, a pause and another clip. Such pairs teach the model not to stop at a pause.
fn join_with_pause(first: &ClipWithFrames, second: &ClipWithFrames) -> ClipWithFrames {
    let pause = vec![0.0; seconds_to_samples(PAUSE_SECONDS)];
    ClipWithFrames {
        text: format!("{} {}", first.text.trim(), second.text.trim()),
        samples: [&first.samples[..], &pause, &second.samples].concat(),
        ..first.clone()
    }
}

/// Whether a phase keeps the encoder's output states near those of the frozen encoder. Phases with
/// frames do not, because frames are meant to change the states.
fn uses_distillation(feed: &AvformerFeed) -> bool {
    feed.distillation > 0.0 && !feed.frames
}
