//! Sample rate conversion, block by block.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _, WindowFunction};

/// The minimum number of samples to convert at a time.
const BLOCK: usize = 1024;

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Converts mono samples from one sample rate to another. The output has the duration of the input,
/// to the nearest sample, and no delay.
pub(super) struct Resampler {
    inner: Fft<f32>,
    /// The target sample rate divided by the input sample rate.
    ratio: f64,
    /// Input samples that are not converted yet.
    waiting: Vec<f32>,
    /// The output of one block.
    converted: Vec<f32>,
    /// The number of output samples that are still to be dropped: they precede the first input
    /// sample.
    delay: usize,
    /// The number of input samples so far.
    read: u64,
    /// The number of output samples so far, without the delay.
    written: u64,
}

impl Resampler {
    /// Creates a resampler from `from` Hz to `to` Hz.
    pub fn new(from: u32, to: u32) -> Result<Self, String> {
        let (window, fixed) = (WindowFunction::BlackmanHarris2, FixedSync::Input);
        // The delay is half a block, which must be a whole number of samples at both rates.
        let unit = 2 * (from / greatest_common_divisor(from, to)) as usize;
        let block = BLOCK.next_multiple_of(unit);
        let inner = Fft::new_custom(from as usize, to as usize, block, 1, 1, window, fixed)
            .map_err(|error| format!("cannot resample from {from} Hz to {to} Hz ({error})"))?;
        let converted = vec![0.0; inner.output_frames_max()];
        let delay = inner.output_delay();
        let ratio = f64::from(to) / f64::from(from);
        Ok(Self { inner, ratio, waiting: Vec::new(), converted, delay, read: 0, written: 0 })
    }

    /// Takes samples and appends the converted samples to `out`.
    pub fn push(
        &mut self,
        samples: impl Iterator<Item = f32>,
        out: &mut Vec<f32>,
    ) -> Result<(), String> {
        let old_length = self.waiting.len();
        self.waiting.extend(samples);
        self.read += (self.waiting.len() - old_length) as u64;
        let mut used = 0;
        while self.waiting.len() - used >= self.inner.input_frames_next() {
            used += self.convert(used, None, out)?;
        }
        self.waiting.drain(..used);
        Ok(())
    }

    /// Appends the remaining samples to `out`.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<(), String> {
        let expected = (self.read as f64 * self.ratio).round() as u64;
        while self.written < expected {
            let old_state = (self.written, self.delay);
            self.convert(0, Some(self.waiting.len()), out)?;
            self.waiting.clear();
            if old_state == (self.written, self.delay) {
                return Err("its sample rate cannot be converted".to_string());
            }
        }
        out.truncate(out.len() - (self.written - expected) as usize);
        Ok(())
    }

    /// Converts a block of the waiting samples, from index `start`. `partial` is the number of
    /// samples in the last, incomplete block; `None` for a full block. Returns the number of
    /// samples that were converted.
    fn convert(
        &mut self,
        start: usize,
        partial: Option<usize>,
        out: &mut Vec<f32>,
    ) -> Result<usize, String> {
        let message = |error: &dyn std::fmt::Display| error.to_string();
        let (waiting, capacity) = (&self.waiting[start..], self.converted.len());
        // A partial block still needs the memory of a full block.
        let mut padded;
        let waiting = if partial.is_some() {
            padded = waiting.to_vec();
            padded.resize(self.inner.input_frames_next(), 0.0);
            &padded
        } else {
            waiting
        };
        let input = InterleavedSlice::new(waiting, 1, waiting.len()).map_err(|e| message(&e))?;
        let mut output =
            InterleavedSlice::new_mut(&mut self.converted, 1, capacity).map_err(|e| message(&e))?;
        let mut indexing = Indexing::new();
        indexing.partial_len = partial;
        let (used, converted) = self
            .inner
            .process_into_buffer(&input, &mut output, Some(&indexing))
            .map_err(|e| message(&e))?;
        let delayed = self.delay.min(converted);
        self.delay -= delayed;
        self.written += (converted - delayed) as u64;
        out.extend_from_slice(&self.converted[delayed..converted]);
        Ok(used)
    }
}
