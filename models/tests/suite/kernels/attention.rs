//! Attention and the biases of disentangled attention.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::*;

use super::{assert_near, input, numbers, random, run};
use crate::reference::largest_difference;

/// Attention with every combination of options, in tiles larger and smaller than the sequences.
#[test]
fn self_and_cross_attention_have_correct_gradients() -> Result<()> {
    for causal in [false, true] {
        for dropout in [None, Some(Dropout::new(0.25, 3))] {
            let options =
                |segments| Attention { num_heads: 2, scale: 0.7, causal, segments, dropout };
            let packed = Segments::packed(&[4, 1, 3]);
            let branching = packed.clone().with_branches(vec![0, 1, 1, 2, 0, 0, 0, 3].into());
            let qkv = input(&[8, 12], 1);
            for segments in [packed.clone(), branching] {
                let options = options(segments);
                check_gradients(std::slice::from_ref(&qkv), |t| {
                    Ok(self_attention(&t[0], None, &options)?)
                })?;
            }
            let packed = options(packed);
            check_gradients(&[qkv.clone(), input(&[2, 4, 5], 2)], |t| {
                Ok(self_attention(&t[0], Some(AttentionBias::Shared(&t[1])), &packed)?)
            })?;
            check_gradients(&[qkv, input(&[2 * (16 + 1 + 9)], 2)], |t| {
                Ok(self_attention(&t[0], Some(AttentionBias::PerSegment(&t[1])), &packed)?)
            })?;
            let cross = options(Segments::cross(&[3, 2], &[4, 5]));
            let [q, k, v] = [input(&[5, 6], 3), input(&[9, 6], 4), input(&[9, 6], 5)];
            let inputs = [q, k, v, input(&[2, 3, 5], 6)];
            check_gradients(&inputs[..3], |t| Ok(attention(&t[0], &t[1], &t[2], None, &cross)?))?;
            check_gradients(&inputs, |t| {
                let bias = Some(AttentionBias::Shared(&t[3]));
                Ok(attention(&t[0], &t[1], &t[2], bias, &cross)?)
            })?;
        }
    }
    Ok(())
}

/// Checks both terms, alone and together, with segments of several lengths and rows shared by
/// several distances. Also checks attention with this bias.
#[test]
fn disentangled_biases_have_correct_gradients() -> Result<()> {
    let segments = Segments::packed(&[4, 1, 3]);
    let rows = [0, 0, 1, 2, 3, 4, 4, 4, 5].into();
    let options = Disentangled { num_heads: 2, scale: 0.7, segments: segments.clone(), rows };
    let attention = Attention { num_heads: 2, scale: 0.7, causal: false, segments, dropout: None };
    let (qkv, key, query) = (input(&[8, 12], 1), input(&[7, 4], 2), input(&[7, 4], 3));
    check_gradients(&[qkv.clone(), key.clone()], |t| {
        Ok(disentangled_bias(&t[0], Some(&t[1]), None, &options)?)
    })?;
    check_gradients(&[qkv.clone(), query.clone()], |t| {
        Ok(disentangled_bias(&t[0], None, Some(&t[1]), &options)?)
    })?;
    check_gradients(&[qkv, key, query], |t| {
        let bias = disentangled_bias(&t[0], Some(&t[1]), Some(&t[2]), &options)?;
        Ok(self_attention(&t[0], Some(AttentionBias::PerSegment(&bias)), &attention)?)
    })
}

/// For sequences longer than a tile, the kernel and the composite have equal values and gradients.
#[test]
fn attention_over_many_tiles_equals_its_composite() -> Result<()> {
    let packed = || Segments::packed(&[300, 65, 530]);
    for (causal, segments) in [
        (false, packed()),
        (true, packed()),
        (false, packed().with_window(0)),
        (false, packed().with_window(70)),
        (false, packed().with_window(299)),
    ] {
        let options = Attention {
            num_heads: 2,
            scale: 0.3,
            causal,
            segments,
            dropout: Some(Dropout::new(0.1, 4)),
        };
        let inputs = [(numbers(895 * 48, 1), vec![895, 48])];
        let f = |t: &[Tensor]| Ok(self_attention(&t[0], None, &options)?);
        let expected = run(&inputs, (DType::F32, DType::F64), &f)?;
        let found = run(&inputs, (DType::F32, DType::F32), &f)?;
        assert_near(&found, &expected, 2e-5, &format!("{options:?}"));
    }
    Ok(())
}

/// A fully masked row gives zeros, not NaN.
#[test]
fn a_fully_masked_row_gives_zeros() -> Result<()> {
    let bias = Tensor::new(&[[[0f32, 0.0], [f32::NEG_INFINITY; 2]]], &Device::Cpu)?;
    let segments = Segments::packed(&[2]);
    let options = Attention { num_heads: 1, scale: 1.0, causal: false, segments, dropout: None };
    let y = self_attention(&random(&[2, 6], 1)?, Some(AttentionBias::Shared(&bias)), &options)?;
    assert_eq!(y.to_vec2::<f32>()?[1], [0.0, 0.0]);
    Ok(())
}

/// A branch gives the same result with and without other branches.
#[test]
fn branches_see_the_prefix_and_not_each_other() -> Result<()> {
    let options =
        |segments| Attention { num_heads: 2, scale: 0.7, causal: false, segments, dropout: None };
    // Long enough for several tiles: a shared prefix of 70 rows, branches of 1, 300 and 40.
    let lengths = [70, 1, 300, 40];
    let branches: Vec<u32> =
        (0..4u32).zip(lengths).flat_map(|(branch, length)| vec![branch; length]).collect();
    let rows: usize = lengths.iter().sum();
    let qkv = random(&[rows, 3 * 8], 4)?;
    let segments = Segments::packed(&[rows]).with_branches(branches.into());
    let together = self_attention(&qkv, None, &options(segments))?;
    let prefix = qkv.narrow(0, 0, 70)?;
    let alone = self_attention(&prefix, None, &options(Segments::packed(&[70])))?;

    assert!(largest_difference(&together.narrow(0, 0, 70)?, &alone)? < 1e-5);
    let mut start = 70;
    for length in &lengths[1..] {
        let sequence = Tensor::cat(&[&prefix, &qkv.narrow(0, start, *length)?], 0)?;
        let alone = self_attention(&sequence, None, &options(Segments::packed(&[70 + length])))?;
        let (found, expected) =
            (together.narrow(0, start, *length)?, alone.narrow(0, 70, *length)?);
        assert!(largest_difference(&found, &expected)? < 1e-5, "a branch of {length}");
        start += length;
    }
    Ok(())
}
