//! Embeddings before the decoder's prompt, in the place of the text of an earlier clip.

use candle_core::Tensor;

/// Embeddings that precede the prompt of each clip. Whisper was trained with the text of the
/// earlier clip there, so words in it become more likely.
#[derive(Debug, Clone)]
pub struct EarlierContext {
    /// The embeddings `[N, D]`, clip after clip.
    pub embeddings: Tensor,
    /// The number of embeddings of each clip; may be 0. Their sum is `N`.
    pub counts: Vec<usize>,
    /// `<|startofprev|>`, which comes before the embeddings.
    pub start: u32,
}

impl EarlierContext {
    /// The tokens before the text of each clip: the start token and the embeddings, if the clip has
    /// any, and `prompt`. The ids of the embeddings begin with `vocab_size`.
    pub(crate) fn prompts(&self, prompt: &[u32], vocab_size: usize) -> Vec<Vec<u32>> {
        let mut next = vocab_size as u32;
        let of_clip = |count: &usize| {
            let rows = next..next + *count as u32;
            next = rows.end;
            let start = (!rows.is_empty()).then_some(self.start);
            start.into_iter().chain(rows).chain(prompt.iter().copied()).collect()
        };
        self.counts.iter().map(of_clip).collect()
    }
}
