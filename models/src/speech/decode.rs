//! Texts out of the logits of a head for CTC.

use candle_core::Tensor;

use crate::error::Result;

/// The tokens of the likeliest path of each packed clip, repeats and blanks taken out: `logits`
/// `[T, V]`.
///
/// # Errors
/// Those of candle.
pub fn best_path(logits: &Tensor, lengths: &[usize], blank: u32) -> Result<Vec<Vec<u32>>> {
    let best = logits.argmax(candle_core::D::Minus1)?.to_vec1::<u32>()?;
    let mut rest = best.as_slice();
    let mut texts = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (own, behind) = rest.split_at((*length).min(rest.len()));
        rest = behind;
        let mut path = own.to_vec();
        path.dedup();
        path.retain(|token| *token != blank);
        texts.push(path);
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_one_token_unless_a_blank_is_between() -> Result<()> {
        let path = [0u32, 0, 2, 0, 1, 1, 2, 2, 1];
        let rows: Vec<f32> =
            path.iter().flat_map(|best| (0..3).map(move |v| f32::from(v == *best as u8))).collect();
        let logits = Tensor::from_vec(rows, (9, 3), &candle_core::Device::Cpu)?;
        assert_eq!(best_path(&logits, &[4, 0, 5], 2)?, [vec![0, 0], vec![], vec![1, 1]]);
        Ok(())
    }
}
