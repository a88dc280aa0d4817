//! Transcription of clips, and their input states of the first encoder block, computed once.

use std::collections::BTreeSet;
use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use engram_eval::metric::mean::mean;
use engram_infer::asr::sample_evenly;
use engram_models::avformer::{Avformer, VisualTokens};
use engram_models::kernels::Mode;
use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::seconds_to_samples;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::corpus::ClipWithFrames;
use super::settings::AvformerFeed;
use super::study::AvformerStudy;
use crate::Stop;
use crate::log::Progress;
use crate::study::StudyResult;

/// Clips per forward pass in evaluation.
pub(super) const CLIPS_PER_PASS: usize = 16;

/// A clip as input of the first encoder block.
pub(super) struct EmbeddedClip {
    /// The index among the corpus's training clips, or among the rehearsal clips.
    pub(super) index: usize,
    /// The input states of the first encoder block, `[T, D]`; `None` if they are computed in each
    /// step.
    pub(super) states: Option<Tensor>,
    /// The frozen encoder's output states, `[T, D]`; `None` if the loss does not need them.
    pub(super) frozen: Option<Tensor>,
    /// The token ids of the text.
    pub(super) tokens: Vec<u32>,
    /// The indices of the frames.
    pub(super) frames: Vec<usize>,
    /// The topic of the clip: clips with the same topic have frames of the same subject.
    pub(super) topic: String,
    /// Whether noise replaces the spoken name.
    pub(super) masked: bool,
}

/// The visual input of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VisualInput {
    /// The clip's own frames.
    Right,
    /// Frames of another clip.
    Wrong,
    /// Zero embeddings.
    Zero,
    /// No visual tokens.
    #[serde(rename = "none")]
    Nothing,
}

impl AvformerStudy {
    /// Transcribes clips once for each visual input. A clip's encoder inputs are computed once.
    pub(super) fn transcribe(
        &self,
        avformer: &Avformer,
        clips: &[ClipWithFrames],
        inputs: &[VisualInput],
        progress: &mut Progress,
        stop: &Stop,
    ) -> StudyResult<Vec<Vec<String>>> {
        let mut texts = vec![Vec::with_capacity(clips.len()); inputs.len()];
        for start in (0..clips.len()).step_by(CLIPS_PER_PASS) {
            stop.check()?;
            let indices = start..clips.len().min(start + CLIPS_PER_PASS);
            let batch = &clips[indices.clone()];
            let audio_inputs = self.encoder_inputs(batch)?;
            let samples: Vec<usize> = batch.iter().map(|clip| clip.samples.len()).collect();
            for (input, texts) in inputs.iter().zip(&mut texts) {
                let (embeddings, counts) = self.visual_input(clips, indices.clone(), *input)?;
                let visual = VisualTokens { embeddings: &embeddings, counts: &counts };
                let encoded =
                    avformer.encode(audio_inputs.clone(), Some(&visual), &Mode::inference())?;
                texts.extend(self.asr_model.texts_of(&encoded, &samples)?);
            }
            progress.count(indices.end as u64);
        }
        Ok(texts)
    }

    /// The share of the decoder's cross-attention that goes to the visual tokens of each clip's own
    /// frames: the mean over the tokens of its text. `None` for a decoder without cross-attention.
    pub(super) fn attention_to_frames(
        &self,
        avformer: &Avformer,
        clips: &[ClipWithFrames],
    ) -> StudyResult<Option<Vec<f64>>> {
        let mut means = Vec::with_capacity(clips.len());
        for start in (0..clips.len()).step_by(CLIPS_PER_PASS) {
            let indices = start..clips.len().min(start + CLIPS_PER_PASS);
            let batch = &clips[indices.clone()];
            let (embeddings, counts) = self.visual_input(clips, indices, VisualInput::Right)?;
            let visual = VisualTokens { embeddings: &embeddings, counts: &counts };
            let encoded =
                avformer.encode(self.encoder_inputs(batch)?, Some(&visual), &Mode::inference())?;
            let texts = batch.iter().map(|clip| self.asr_model.tokens_of(&clip.text));
            let texts = texts.collect::<Result<Vec<_>, _>>()?;
            let Some(shares) = avformer.attention_to_images(&encoded, &counts, &texts)? else {
                return Ok(None);
            };
            means.extend(shares.iter().map(|shares| mean(shares)));
        }
        Ok(Some(means))
    }

    /// The image embeddings that some of the clips get, and the number of images of each.
    fn visual_input(
        &self,
        clips: &[ClipWithFrames],
        indices: Range<usize>,
        input: VisualInput,
    ) -> StudyResult<(Tensor, Vec<usize>)> {
        let (mut frames, mut counts) = (Vec::new(), Vec::with_capacity(indices.len()));
        for index in indices {
            let clip = match input {
                VisualInput::Right | VisualInput::Zero => Some(&clips[index]),
                VisualInput::Wrong => clip_with_other_topic(clips, index),
                VisualInput::Nothing => None,
            };
            let num_before = frames.len();
            let frames_of_clip = clip.map_or(&[][..], |clip| clip.frames.as_slice());
            frames.extend(sample_evenly(frames_of_clip, self.data.frames));
            counts.push(frames.len() - num_before);
        }
        let embeddings = self.frame_embeddings(&frames)?;
        Ok(match input {
            VisualInput::Zero => (embeddings.zeros_like()?, counts),
            _ => (embeddings, counts),
        })
    }

    /// The embeddings of frames, `[frames, E]`, where `E` is the embedding width; `[0, 1]` for a
    /// study without frames.
    pub(super) fn frame_embeddings(&self, frames: &[usize]) -> StudyResult<Tensor> {
        Ok(match &self.gallery {
            Some(gallery) => gallery.embeddings(frames)?,
            None => Tensor::zeros((0, 1), DType::F32, &Device::Cpu)?,
        })
    }

    /// Computes the input states of the first encoder block, for all clips in one pass.
    pub(super) fn encoder_inputs(&self, clips: &[ClipWithFrames]) -> StudyResult<AudioStates> {
        let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
        let silence = seconds_to_samples(self.data.silence_seconds);
        Ok(self.asr_model.embed(&self.frozen_model, &samples, silence)?)
    }

    /// Computes the input states of the first encoder block, `[T, D]` for each clip.
    fn states_of_each(&self, clips: &[ClipWithFrames]) -> StudyResult<Vec<Tensor>> {
        let mut states = Vec::with_capacity(clips.len());
        for clips in clips.chunks(CLIPS_PER_PASS) {
            let audio_inputs = self.encoder_inputs(clips)?;
            let lengths = audio_inputs.lengths.clone();
            states.extend(first_states(&audio_inputs, &lengths)?);
        }
        Ok(states)
    }

    /// Computes the input states of clips. `indices` are the indices for [`EmbeddedClip::index`].
    pub(super) fn embed_clips(
        &self,
        clips: &[ClipWithFrames],
        indices: &[usize],
    ) -> StudyResult<Vec<EmbeddedClip>> {
        let with_states = clips.iter().zip(indices).zip(self.states_of_each(clips)?);
        with_states
            .map(|((clip, index), states)| {
                let without_states = self.without_states(clip, *index)?;
                Ok(EmbeddedClip { states: Some(states), ..without_states })
            })
            .collect()
    }

    /// Prepares the clips of a phase. Clips are embedded in the first phase that uses them, and
    /// dropped after the last such phase.
    pub(super) fn prepare_phase(&mut self, phase: usize) -> StudyResult<()> {
        let feeds = &self.feeds;
        let first_with_same_audio = |phase: usize| {
            let is_same = |earlier: &usize| feeds[*earlier].has_same_audio(&feeds[phase]);
            (0..phase).find(is_same).unwrap_or(phase)
        };
        let needed: BTreeSet<usize> = (phase..feeds.len()).map(first_with_same_audio).collect();
        let first_phase = first_with_same_audio(phase);
        self.embedded_clips.retain(|first_phase, _| needed.contains(first_phase));
        self.phase = first_phase;
        if self.embedded_clips.contains_key(&self.phase) {
            return Ok(());
        }
        let feed = &self.feeds[phase];
        let num_clips = self.corpus.training_len();
        let mut indices: Vec<usize> = (0..num_clips).collect();
        // The same subset of clips in each epoch, phase and run.
        indices.shuffle(&mut ChaCha8Rng::seed_from_u64(self.data.world_seed));
        indices.truncate(((num_clips as f64 * feed.share).round() as usize).clamp(1, num_clips));
        indices.sort_unstable();
        let (mut embedded, mut bytes) = (Vec::with_capacity(indices.len()), 0.0);
        let mut progress = self.progress("clips", indices.len());
        for indices in indices.chunks(16 * CLIPS_PER_PASS) {
            if bytes >= self.data.state_cache_gb * 1e9 {
                let clips = indices
                    .par_iter()
                    .map(|index| self.corpus.training_without_audio(*index, feed));
                for (clip, index) in clips.collect::<Result<Vec<_>, _>>()?.iter().zip(indices) {
                    embedded.push(self.without_states(clip, *index)?);
                }
            } else {
                let clips = indices.par_iter().map(|index| self.corpus.training(*index, feed));
                let clips = clips.collect::<Result<Vec<_>, _>>()?;
                let num_before = embedded.len();
                embedded.extend(self.embed_clips(&clips, indices)?);
                let states = embedded[num_before..].iter().filter_map(|clip| clip.states.as_ref());
                bytes += states.map(|states| 4.0 * states.elem_count() as f64).sum::<f64>();
            }
            progress.count(embedded.len() as u64);
        }
        let uncached = embedded.iter().filter(|clip| clip.states.is_none()).count();
        if uncached > 0 {
            let (num_clips, limit) = (embedded.len(), self.data.state_cache_gb);
            progress.print_unless_quiet(&format!(
                "{uncached} of {num_clips} clips are embedded in each step: data.state_cache_gb = \
                 {limit} is full"
            ));
        }
        drop(progress);
        self.embedded_clips.insert(self.phase, embedded);
        Ok(())
    }

    /// The clips of the current phase.
    pub(super) fn clips(&self) -> &[EmbeddedClip] {
        self.embedded_clips.get(&self.phase).map_or(&[], Vec::as_slice)
    }

    /// A clip without input states, which are then computed in each step.
    pub(super) fn without_states(
        &self,
        clip: &ClipWithFrames,
        index: usize,
    ) -> StudyResult<EmbeddedClip> {
        Ok(EmbeddedClip {
            index,
            states: None,
            frozen: None,
            tokens: self.asr_model.tokens_of(&clip.text)?,
            frames: clip.frames.clone(),
            topic: clip.topic(),
            masked: clip.masked,
        })
    }

    /// The input states of each clip of a batch. States that are not cached are computed.
    pub(super) fn states(
        &self,
        batch: &[&EmbeddedClip],
        feed: &AvformerFeed,
    ) -> StudyResult<Vec<Tensor>> {
        let missing = batch.par_iter().filter(|clip| clip.states.is_none());
        let missing = missing.map(|clip| self.corpus.training(clip.index, feed));
        let missing: Vec<ClipWithFrames> = missing.collect::<Result<_, _>>()?;
        let mut computed = self.states_of_each(&missing)?.into_iter();
        let states = batch.iter().map(|clip| clip.states.clone().or_else(|| computed.next()));
        Ok(states.collect::<Option<Vec<Tensor>>>().ok_or("a clip without states")?)
    }
}

/// The first `counts` states of each clip, `[T, D]`.
pub(super) fn first_states(audio: &AudioStates, counts: &[usize]) -> StudyResult<Vec<Tensor>> {
    let clips = audio.clips()?.into_iter().zip(counts);
    // Copies, so that the batch can be freed.
    let first = clips
        .map(|(clip, count)| Ok(clip.states.narrow(0, 0, *count)?.detach().force_contiguous()?));
    first.collect()
}

/// The first clip after a pseudo-random start whose frames show another topic; `None` if all clips
/// have the same topic.
pub(super) fn clip_with_other_topic(
    clips: &[ClipWithFrames],
    index: usize,
) -> Option<&ClipWithFrames> {
    let (step, topic) = (1 + index * 7 % 31, clips[index].topic());
    let mut others = (0..clips.len()).map(|i| &clips[(index + step + i) % clips.len()]);
    others.find(|other| other.topic() != topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_clip_has_another_topic() {
        let clip = |name: usize| ClipWithFrames { name: Some(name), ..ClipWithFrames::default() };
        let clips: Vec<ClipWithFrames> = [0, 0, 0, 1, 0, 2].map(clip).into();
        for (index, clip) in clips.iter().enumerate() {
            assert_ne!(
                clip_with_other_topic(&clips, index).expect("another").name,
                clip.name,
                "{index}"
            );
        }
        assert!((0..3).all(|index| clip_with_other_topic(&clips[..3], index).is_none()));
        // Clips from files have the same topic if their texts are equal.
        let with_text =
            |text: &str| ClipWithFrames { text: text.into(), ..ClipWithFrames::default() };
        let clips = [with_text("an owl"), with_text("an owl"), with_text("a fox")];
        assert_eq!(clip_with_other_topic(&clips, 0).expect("another").text, "a fox");
    }
}
