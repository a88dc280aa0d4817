//! Properties of element-wise operations that no gradient check shows, and invalid shapes.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::kernels::*;

use super::run;
use crate::reference::{DTYPES, values};

/// Kernel and composite have the derivative of PyTorch.
#[test]
fn the_gradient_of_relu_at_0_is_0() -> Result<()> {
    for dtype in DTYPES {
        let inputs = [(vec![-1.0, -0.0, 0.0, 2.0], vec![4])];
        let results = run(&inputs, (dtype, dtype), &|t| Ok(activation(&t[0], Activation::Relu)?))?;
        assert_eq!(results[1][..3], [0.0; 3], "{dtype:?}");
        assert_ne!(results[1][3], 0.0, "{dtype:?}");
    }
    Ok(())
}

/// The softmax computes in f32: its sums and constants exceed the range of bf16.
#[test]
fn softmax_in_bf16_equals_f32() -> Result<()> {
    let masked = f32::NEG_INFINITY;
    let rows =
        [vec![masked; 3], vec![1.0, masked, 3.0], vec![-3e38, 3e38, 0.0], vec![0.5f32; 6000]];
    for row in rows {
        let half = Tensor::new(row, &Device::Cpu)?.to_dtype(DType::BF16)?;
        let expected = softmax(&half.to_dtype(DType::F32)?)?;
        let (found, expected) = (values(&softmax(&half)?)?, values(&expected)?);
        for (found, expected) in found.iter().zip(&expected) {
            let differs = (found - expected).abs() > 1e-2 * expected.abs() + 1e-7;
            assert!(found.is_finite() && !differs, "{found} {expected}");
        }
    }
    Ok(())
}

/// The kernel and the composite reject the same inputs.
#[test]
fn mismatched_shapes_are_errors_in_kernel_and_composite() -> Result<()> {
    for dtype in DTYPES {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, dtype, &Device::Cpu);
        let options = |lengths: &[usize], num_heads| {
            let segments = Segments::packed(lengths);
            Attention { num_heads, scale: 1.0, causal: false, segments, dropout: None }
        };
        let attend = |qkv: &[usize], bias: Option<&[usize]>, options: &Attention| {
            let bias = bias.map(zeros).transpose()?;
            let bias = bias.as_ref().map(AttentionBias::Shared);
            self_attention(&zeros(qkv)?, bias, options)
        };
        assert!(attend(&[5, 12], Some(&[2, 3, 4]), &options(&[3, 2], 2)).is_ok());
        assert!(attend(&[5, 12], Some(&[1, 3, 3]), &options(&[3, 2], 2)).is_err(), "one head");
        assert!(attend(&[5, 12], Some(&[2, 3, 2]), &options(&[3, 2], 2)).is_err(), "few keys");
        assert!(attend(&[5, 12], None, &options(&[3, 3], 2)).is_err(), "segments beyond the rows");
        assert!(attend(&[5, 13], None, &options(&[3, 2], 2)).is_err(), "no three parts");
        assert!(attend(&[5, 12], None, &options(&[3, 2], 3)).is_err(), "heads");
        let mut branching = options(&[3, 2], 2);
        branching.segments = branching.segments.with_branches(vec![0, 1, 2].into());
        assert!(attend(&[5, 12], None, &branching).is_err(), "branches of other rows");
        let (q, k, v) = (zeros(&[5, 4])?, zeros(&[5, 4])?, zeros(&[6, 4])?);
        assert!(attention(&q, &k, &v, None, &options(&[5], 2)).is_err(), "k and v");

        let (x, row) = (zeros(&[3, 4])?, zeros(&[1, 4])?);
        assert!(
            residual_norm(&x, &row, Norm { weight: &row, bias: None, epsilon: 1.0 }, None).is_err()
        );
        assert!(bias_activation(&x, &zeros(&[3, 1])?, Activation::Gelu).is_err());
        assert!(gated(&zeros(&[2, 3])?, Activation::GeluTanh).is_err());
        assert!(residual(&x, &zeros(&[4])?, None).is_err());
        assert!(scaled_rows(&x, &zeros(&[4, 1])?).is_err());
        let (w1, w2, b) = (zeros(&[6, 4])?, zeros(&[4, 6])?, zeros(&[1])?);
        assert!(feed_forward(&x, (&w1, &b), (&w2, &b), Activation::Gelu).is_err());
    }
    Ok(())
}
