//! Attention and the biases of disentangled attention.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::*;

use super::{input, random};

/// Attention with every combination of options, in tiles larger and smaller than the sequences.
#[test]
fn self_and_cross_attention_have_correct_gradients() -> Result<()> {
    for causal in [false, true] {
        for dropout in [None, Some(Dropout::new(0.25, 3))] {
            let options =
                |segments| Attention { num_heads: 2, scale: 0.7, causal, segments, dropout };
            let packed = options(Segments::packed(&[4, 1, 3]));
            let qkv = input(&[8, 12], 1);
            check_gradients(std::slice::from_ref(&qkv), |t| {
                Ok(self_attention(&t[0], None, &packed)?)
            })?;
            check_gradients(&[qkv.clone(), input(&[2, 4, 5], 2)], |t| {
                Ok(self_attention(&t[0], Some(AttentionBias::Shared(&t[1])), &packed)?)
            })?;
            check_gradients(&[qkv.clone(), input(&[2 * (16 + 1 + 9)], 2)], |t| {
                Ok(self_attention(&t[0], Some(AttentionBias::PerSegment(&t[1])), &packed)?)
            })?;
            let branches = vec![0, 1, 1, 2, 0, 0, 0, 3];
            let branching = options(Segments::packed(&[4, 1, 3]).with_branches(branches.into()));
            check_gradients(std::slice::from_ref(&qkv), |t| {
                Ok(self_attention(&t[0], None, &branching)?)
            })?;
            let padded = options(Segments::padded(4, &[2, 4]));
            if !causal {
                check_gradients(&[qkv], |t| Ok(self_attention(&t[0], None, &padded)?))?;
            }
            let cross = options(Segments::cross(&[3, 2], &[4, 5]));
            let inputs = [input(&[5, 6], 3), input(&[9, 6], 4), input(&[9, 6], 5)];
            check_gradients(&inputs, |t| Ok(attention(&t[0], &t[1], &t[2], None, &cross)?))?;
            let bias = input(&[2, 3, 5], 6);
            let [q, k, v] = inputs;
            check_gradients(&[q, k, v, bias], |t| {
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
    let options = |segments| Disentangled {
        num_heads: 2,
        scale: 0.7,
        segments,
        rows: [0, 0, 1, 2, 3, 4, 4, 4, 5].into(),
    };
    let (qkv, key, query) = (input(&[8, 12], 1), input(&[7, 4], 2), input(&[7, 4], 3));
    for segments in [Segments::packed(&[4, 1, 3]), Segments::padded(4, &[2, 4])] {
        let options = options(segments.clone());
        check_gradients(&[qkv.clone(), key.clone()], |t| {
            Ok(disentangled_bias(&t[0], Some(&t[1]), None, &options)?)
        })?;
        check_gradients(&[qkv.clone(), query.clone()], |t| {
            Ok(disentangled_bias(&t[0], None, Some(&t[1]), &options)?)
        })?;
        check_gradients(&[qkv.clone(), key.clone(), query.clone()], |t| {
            let bias = disentangled_bias(&t[0], Some(&t[1]), Some(&t[2]), &options)?;
            let segments = segments.clone();
            let options =
                Attention { num_heads: 2, scale: 0.7, causal: false, segments, dropout: None };
            Ok(self_attention(&t[0], Some(AttentionBias::PerSegment(&bias)), &options)?)
        })?;
    }
    Ok(())
}

/// For sequences longer than a tile, the kernel and the composite have equal values and gradients.
#[test]
fn attention_over_many_tiles_equals_its_composite() -> Result<()> {
    for causal in [false, true] {
        let options = Attention {
            num_heads: 2,
            scale: 0.3,
            causal,
            segments: Segments::packed(&[300, 65, 530]),
            dropout: Some(Dropout::new(0.1, 4)),
        };
        let qkv = random(&[895, 3 * 16], 1)?;
        let weights = random(&[895, 16], 2)?;
        let run = |dtype: DType| -> Result<(Vec<f64>, Vec<f64>)> {
            let x = candle_core::Var::from_tensor(&qkv.to_dtype(dtype)?)?;
            let y = self_attention(x.as_tensor(), None, &options)?;
            let candle_gradients = (&y * weights.to_dtype(dtype)?)?.sum_all()?.backward()?;
            let flat = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
            Ok((
                flat(&y)?,
                candle_gradients.get(x.as_tensor()).map(flat).transpose()?.unwrap_or_default(),
            ))
        };
        let ((value, gradient), (expected_value, expected_gradient)) =
            (run(DType::F32)?, run(DType::F64)?);
        for (actual, expected) in
            value.iter().zip(&expected_value).chain(gradient.iter().zip(&expected_gradient))
        {
            assert!((actual - expected).abs() < 2e-5, "causal {causal}: {actual} {expected}");
        }
    }
    Ok(())
}

/// A fully masked row gives zeros and zero gradients, not NaN.
#[test]
fn a_fully_masked_row_gives_zeros() -> Result<()> {
    let qkv = random(&[2, 6], 1)?;
    let bias = Tensor::new(&[[[0f32, 0.0], [f32::NEG_INFINITY, f32::NEG_INFINITY]]], &Device::Cpu)?;
    let segments = Segments::packed(&[2]);
    let options = Attention { num_heads: 1, scale: 1.0, causal: false, segments, dropout: None };
    let y = self_attention(&qkv, Some(AttentionBias::Shared(&bias)), &options)?;
    assert_eq!(y.to_vec2::<f32>()?[1], [0.0, 0.0]);
    let candle_gradients = y.sum_all()?.backward()?;
    let gradient =
        candle_gradients.get(&qkv).expect("a gradient").flatten_all()?.to_vec1::<f32>()?;
    assert!(gradient.iter().all(|v| v.is_finite()));
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
    let difference =
        |a: &Tensor, b: &Tensor| -> Result<f32> { Ok((a - b)?.abs()?.max_all()?.to_scalar()?) };
    assert!(difference(&together.narrow(0, 0, 70)?, &alone)? < 1e-5);
    let mut start = 70;
    for length in &lengths[1..] {
        let sequence = Tensor::cat(&[&prefix, &qkv.narrow(0, start, *length)?], 0)?;
        let alone = self_attention(&sequence, None, &options(Segments::packed(&[70 + length])))?;
        let (found, expected) =
            (together.narrow(0, start, *length)?, alone.narrow(0, 70, *length)?);
        assert!(difference(&found, &expected)? < 1e-5, "a branch of {length}");
        start += length;
    }
    Ok(())
}
