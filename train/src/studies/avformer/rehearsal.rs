//! Clean speech that phases rehearse, so that adapters do not forget it. Clips come at several
//! speeds, alone and in pairs. Targets are the frozen ASR model's own texts and encoder states.

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
use super::transcription::{CLIPS_PER_PASS, Embedded, first_states};
use crate::study::StudyResult;

/// Seconds of silence between the clips of a pair.
const PAUSE: f64 = 0.5;

impl AvformerStudy {
    /// The rehearsal clips: each clip at each speed, alone and before another clip if the pair is
    /// short enough.
    ///
    /// # Errors
    /// Errors of the clips; an error if no clip is left.
    pub(super) fn rehearsal(&self) -> StudyResult<Vec<Embedded>> {
        let clips = self.corpus().rehearsal()?;
        let max_samples = seconds_to_samples(self.data().max_seconds);
        let lengths = self.asr_model().min_samples()..=max_samples;
        let mut all: Vec<ClipWithFrames> = Vec::new();
        for (i, speed) in self.data().rehearsal_speeds.iter().enumerate() {
            let resampled = clips.par_iter().map(|clip| {
                let samples = change_speed(&clip.samples, SAMPLE_RATE, *speed)?;
                Ok(ClipWithFrames { samples, ..clip.clone() })
            });
            let resampled = resampled.collect::<StudyResult<Vec<ClipWithFrames>>>()?;
            let other = |index: usize| &resampled[(index + i + 1) % resampled.len()];
            let pairs = resampled.iter().enumerate().map(|(index, clip)| pair(clip, other(index)));
            let has_valid_text =
                |pair: &ClipWithFrames| self.asr_model().text_error(&pair.text).is_none();
            let pairs: Vec<ClipWithFrames> = pairs.filter(has_valid_text).collect();
            let resampled = resampled.into_iter().chain(pairs);
            all.extend(resampled.filter(|clip| lengths.contains(&clip.samples.len())));
        }
        if all.is_empty() {
            let (speeds, max_seconds) = (&self.data().rehearsal_speeds, self.data().max_seconds);
            let reason = format!("leaves no clip up to data.max_seconds = {max_seconds}");
            return Err(format!("data.rehearsal_speeds = {speeds:?} {reason}").into());
        }
        let indices: Vec<usize> = (0..all.len()).collect();
        let mut embedded = self.embed_all(&all, &indices)?;
        if self.feeds().iter().any(uses_distillation) {
            let states = embedded.iter().filter_map(|clip| clip.states.as_ref());
            let counts = states.map(|states| states.dim(0)).collect::<Result<Vec<_>, _>>()?;
            let frozen = self.frozen_states(&all, &counts)?;
            embedded.iter_mut().zip(frozen).for_each(|(clip, states)| clip.frozen = Some(states));
        }
        Ok(embedded)
    }

    /// Distillation of rehearsal clips: the loss for the distance of their states from the frozen
    /// encoder's states, and the mean distance. `None` if the batch has no such clip.
    pub(super) fn distance_loss(
        &self,
        batch: &[&Embedded],
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

    /// The frozen encoder's first `counts` states of each clip, `[T, D]`. Each clip is followed by
    /// silence, as in the encoder's training.
    fn frozen_states(
        &self,
        clips: &[ClipWithFrames],
        counts: &[usize],
    ) -> StudyResult<Vec<Tensor>> {
        let asr_model = self.asr_model();
        let silence_of_clips = seconds_to_samples(self.data().silence_seconds);
        let silence = asr_model.trailing_silence_samples().max(silence_of_clips);
        let mut all = Vec::with_capacity(clips.len());
        for (clips, counts) in clips.chunks(CLIPS_PER_PASS).zip(counts.chunks(CLIPS_PER_PASS)) {
            let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
            let embedded = asr_model.embed(self.frozen_model(), &samples, silence)?;
            let frozen = self.frozen_model().encode_unadapted(embedded, &Mode::inference())?;
            all.extend(first_states(&frozen, counts)?);
        }
        Ok(all)
    }
}

/// Joins a clip, a pause and another clip, so that the model learns not to stop at a pause.
fn pair(first: &ClipWithFrames, second: &ClipWithFrames) -> ClipWithFrames {
    let pause = vec![0.0; seconds_to_samples(PAUSE)];
    ClipWithFrames {
        text: format!("{} {}", first.text.trim(), second.text.trim()),
        samples: [&first.samples[..], &pause, &second.samples].concat(),
        ..first.clone()
    }
}

/// Whether a phase keeps states near the frozen encoder's. Frames are meant to change the states.
fn uses_distillation(feed: &AvformerFeed) -> bool {
    feed.distillation > 0.0 && !feed.frames
}
