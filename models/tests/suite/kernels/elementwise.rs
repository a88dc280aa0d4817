//! Activations, gated units, residual sums, norms, softmax, dropout, pooling and embeddings.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::*;

use super::{input, random};

#[test]
fn activations_have_correct_gradients() -> Result<()> {
    use Activation::*;
    for f in [Gelu, GeluTanh, QuickGelu, Relu, Silu, Tanh, Sigmoid] {
        let x = input(&[3, 5], 1);
        check_gradients(std::slice::from_ref(&x), |t| Ok(activation(&t[0], f)?))?;
        check_gradients(&[x, input(&[5], 2)], |t| Ok(bias_activation(&t[0], &t[1], f)?))?;
    }
    Ok(())
}

/// Kernel and composite have the derivative of PyTorch.
#[test]
fn the_gradient_of_relu_at_0_is_0() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let x = Tensor::new(&[-1f64, -0.0, 0.0, 2.0], &Device::Cpu)?.to_dtype(dtype)?;
        let x = candle_core::Var::from_tensor(&x)?;
        let y = activation(x.as_tensor(), Activation::Relu)?;
        let candle_gradients = y.sum_all()?.backward()?;
        let gradient =
            candle_gradients.get(x.as_tensor()).expect("a gradient").to_dtype(DType::F64)?;
        assert_eq!(gradient.to_vec1::<f64>()?, [0.0, 0.0, 0.0, 1.0], "{dtype:?}");
    }
    Ok(())
}

#[test]
fn gated_units_have_correct_gradients() -> Result<()> {
    for f in [Activation::GeluTanh, Activation::Silu] {
        check_gradients(&[input(&[2, 3, 8], 1)], |t| Ok(gated(&t[0], f)?))?;
    }
    check_gradients(&[input(&[2, 3, 8], 1)], |t| Ok(glu(&t[0])?))?;
    assert!(gated(&random(&[2, 3], 1)?, Activation::GeluTanh).is_err());
    Ok(())
}

#[test]
fn residual_sums_and_scaled_rows_have_correct_gradients() -> Result<()> {
    let (x, y) = (input(&[3, 5], 1), input(&[3, 5], 2));
    for mask in [None, Some(Dropout::new(0.4, 3))] {
        check_gradients(&[x.clone(), y.clone()], |t| Ok(residual(&t[0], &t[1], mask)?))?;
    }
    check_gradients(&[x, input(&[3, 1], 4)], |t| Ok(scaled_rows(&t[0], &t[1])?))?;
    assert!(residual(&random(&[3, 5], 1)?, &random(&[5], 1)?, None).is_err());
    assert!(scaled_rows(&random(&[3, 5], 1)?, &random(&[5, 1], 1)?).is_err());
    Ok(())
}

#[test]
fn norms_with_and_without_residual_have_correct_gradients() -> Result<()> {
    let (x, r, w, b) = (input(&[3, 20], 1), input(&[3, 20], 2), input(&[20], 3), input(&[20], 4));
    let epsilon = 1e-5;
    check_gradients(&[x.clone(), w.clone(), b.clone()], |t| {
        Ok(norm(&t[0], Norm { weight: &t[1], bias: Some(&t[2]), epsilon })?)
    })?;
    check_gradients(&[x.clone(), w.clone()], |t| {
        Ok(norm(&t[0], Norm { weight: &t[1], bias: None, epsilon })?)
    })?;
    for dropout in [None, Some(Dropout::new(0.4, 9))] {
        check_gradients(&[x.clone(), r.clone(), w.clone(), b.clone()], |t| {
            let norm = Norm { weight: &t[2], bias: Some(&t[3]), epsilon };
            Ok(residual_norm(&t[0], &t[1], norm, dropout)?)
        })?;
        check_gradients(&[x.clone(), r.clone(), w.clone()], |t| {
            let norm = Norm { weight: &t[2], bias: None, epsilon };
            Ok(residual_norm(&t[0], &t[1], norm, dropout)?)
        })?;
    }
    Ok(())
}

#[test]
fn softmax_dropout_and_pooling_have_correct_gradients() -> Result<()> {
    check_gradients(&[input(&[2, 3, 19], 1)], |t| Ok(softmax(&t[0])?))?;
    let mask = Some(Dropout::new(0.3, 5));
    check_gradients(&[input(&[4, 9], 1)], |t| Ok(dropout(&t[0], mask)?))?;
    let spans: Arc<[Span]> =
        [(0, 2), (1, 4), (6, 1)].map(|(start, length)| Span { start, length }).into();
    check_gradients(&[input(&[7, 3], 1)], |t| Ok(span_mean(&t[0], spans.clone())?))
}

/// The composite computes in f32: its sums and constants exceed the range of half precision.
#[test]
fn softmax_in_half_precision_equals_f32() -> Result<()> {
    let masked = f32::NEG_INFINITY;
    let many_classes = vec![0.5f32; 6000];
    for (dtype, extreme, tolerance) in [(DType::F16, 60_000.0, 1e-3), (DType::BF16, 3e38, 1e-2)] {
        let rows = [
            vec![masked; 3],
            vec![1.0, masked, 3.0],
            vec![-extreme, extreme, 0.0],
            many_classes.clone(),
        ];
        for row in rows {
            let x = Tensor::new(row.as_slice(), &Device::Cpu)?.reshape((1, row.len()))?;
            let half = x.to_dtype(dtype)?;
            let expected = softmax(&half.to_dtype(DType::F32)?)?.flatten_all()?.to_vec1::<f32>()?;
            let found = softmax(&half)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            for (found, expected) in found.iter().zip(&expected) {
                let differs = (found - expected).abs() > tolerance * expected.abs() + 1e-7;
                assert!(found.is_finite() && !differs, "{dtype:?} {found} {expected}");
            }
        }
    }
    Ok(())
}

#[test]
fn embedding_sums_have_correct_gradients() -> Result<()> {
    let ids = |ids: &[u32]| -> Arc<[u32]> { ids.into() };
    check_gradients(&[input(&[5, 3], 1), input(&[4, 3], 2)], |t| {
        let lookups = [(&t[0], ids(&[1, 4, 1, 0])), (&t[1], ids(&[0, 1, 2, 3]))];
        Ok(embedding_sum(&lookups)?)
    })
}

/// The kernel and the composite reject the same inputs.
#[test]
fn mismatched_shapes_are_errors_in_kernel_and_composite() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
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
        let (w1, w2, b) = (zeros(&[6, 4])?, zeros(&[4, 6])?, zeros(&[1])?);
        assert!(feed_forward(&x, (&w1, &b), (&w2, &b), Activation::Gelu).is_err());
    }
    Ok(())
}
