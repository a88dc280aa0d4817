//! Extreme, masked and empty inputs: results are finite, and equal in all precisions.

use candle_core::{DType, Tensor};
use engram_models::Result;
use engram_models::kernels::*;

use super::{assert_near, numbers, run};

type Inputs = Vec<(Vec<f64>, Vec<usize>)>;

/// The precisions: the dtype, the largest value in the tests, and the tolerance.
const PRECISIONS: [(DType, f64, f64); 2] = [(DType::F32, 1e4, 2e-5), (DType::BF16, 1e4, 2e-2)];

/// Compares values and gradients in every precision with f64.
fn compare(
    name: &str,
    inputs: impl Fn(f64) -> Inputs,
    f: impl Fn(&[Tensor]) -> candle_core::Result<Tensor>,
) -> Result<()> {
    let f = |t: &[Tensor]| Ok(f(t)?);
    for (dtype, extreme, tolerance) in PRECISIONS {
        let inputs = inputs(extreme);
        let expected = run(&inputs, (dtype, DType::F64), &f)?;
        let found = run(&inputs, (dtype, dtype), &f)?;
        assert_near(&found, &expected, tolerance, &format!("{name} in {dtype:?}"));
    }
    Ok(())
}

/// Rows of `width` values: both extremes, one extreme, equal extremes, and moderate values.
fn extreme_rows(extreme: f64, width: usize) -> (Vec<f64>, Vec<usize>) {
    let mut values = numbers(4 * width, 1);
    (values[0], values[1]) = (extreme, -extreme);
    values[width + 2] = extreme;
    values[2 * width..3 * width].fill(-extreme);
    (values, vec![4, width])
}

#[test]
fn extreme_logits_give_finite_values_and_gradients() -> Result<()> {
    compare("softmax", |extreme| vec![extreme_rows(extreme, 6)], |t| softmax(&t[0]))?;
    for label_smoothing in [0.0, 0.1] {
        let options =
            CrossEntropy { targets: vec![1, 2, 3, 4].into(), ignore_index: None, label_smoothing };
        compare(
            "cross-entropy",
            |extreme| vec![extreme_rows(extreme, 6)],
            |t| cross_entropy(&t[0], options.clone()),
        )?;
    }
    Ok(())
}

#[test]
fn extreme_activations_give_finite_values_and_gradients() -> Result<()> {
    use Activation::*;
    for f in [Gelu, GeluTanh, QuickGelu, Relu, Silu, Tanh, Sigmoid] {
        compare(
            &format!("{f:?}"),
            |extreme| vec![extreme_rows(extreme, 6)],
            |t| activation(&t[0], f),
        )?;
        // The gate is extreme, the other half is moderate.
        let gates = |extreme| {
            let (mut values, shape) = extreme_rows(extreme, 6);
            for row in values.chunks_mut(6) {
                for (value, moderate) in row[3..].iter_mut().zip([0.5, -0.25, 1.0]) {
                    *value = moderate;
                }
            }
            vec![(values, shape)]
        };
        compare(&format!("gated {f:?}"), gates, |t| gated(&t[0], f))?;
    }
    compare(
        "norm",
        |extreme| vec![extreme_rows(extreme, 6), (vec![1.0; 6], vec![6])],
        |t| norm(&t[0], Norm { weight: &t[1], bias: None, epsilon: 1e-5 }),
    )
}

/// Extreme scores come from the bias.
#[test]
fn attention_with_extreme_scores_gives_finite_values_and_gradients() -> Result<()> {
    for dropout in [None, Some(Dropout::new(0.25, 3))] {
        let segments = Segments::packed(&[4]);
        let options = Attention { num_heads: 1, scale: 0.5, causal: false, segments, dropout };
        let inputs = |extreme| {
            let (mut values, _) = extreme_rows(extreme, 4);
            // The rounding of extreme scores would decide between equal biases.
            values[2 * 4 + 1] = 0.5;
            vec![(numbers(4 * 6, 2), vec![4, 6]), (values, vec![1, 4, 4])]
        };
        compare("attention", inputs, |t| {
            self_attention(&t[0], Some(AttentionBias::Shared(&t[1])), &options)
        })?;
    }
    Ok(())
}

#[test]
fn masked_keys_and_fully_masked_rows_give_finite_values_and_gradients() -> Result<()> {
    let masked = f64::NEG_INFINITY;
    for dropout in [None, Some(Dropout::new(0.25, 3))] {
        let options =
            |segments| Attention { num_heads: 1, scale: 0.5, causal: false, segments, dropout };
        let bias = vec![0.0, masked, 1.0, masked, masked, masked, masked, 0.5, masked];
        let inputs = |_| vec![(numbers(9 * 2, 2), vec![3, 6]), (bias.clone(), vec![1, 3, 3])];
        let packed = options(Segments::packed(&[3]));
        compare("masked attention", inputs, |t| {
            // The bias gets no gradient.
            let bias = t[1].detach();
            self_attention(&t[0], Some(AttentionBias::Shared(&bias)), &packed)
        })?;
    }
    let rows = vec![masked, 1.0, masked, masked, masked, masked];
    compare("masked softmax", |_| vec![(rows.clone(), vec![2, 3])], |t| softmax(&t[0]))
}

/// Returns the losses of rows of logits and the gradient of the logits, in f64.
fn cross_entropies(
    logits: &[f64],
    (targets, label_smoothing): (&[u32], f32),
    dtype: DType,
) -> Result<[Vec<f64>; 2]> {
    let options = CrossEntropy { targets: targets.into(), ignore_index: Some(9), label_smoothing };
    let inputs = [(logits.to_vec(), vec![targets.len(), logits.len() / targets.len()])];
    let results = run(&inputs, (dtype, dtype), &|t| Ok(cross_entropy(&t[0], options.clone())?))?;
    Ok(results.try_into().expect("losses and a gradient"))
}

/// Neither a class masked by minus infinity nor an ignored row affects the loss.
#[test]
fn masked_classes_and_ignored_rows_do_not_affect_the_loss() -> Result<()> {
    let masked = f64::NEG_INFINITY;
    let logits = [1.0, masked, 2.0, 0.5, masked, masked, masked, masked, f64::NAN, 1.0, 2.0, 3.0];
    let expected = cross_entropies(&logits, (&[2, 9, 9], 0.0), DType::F64)?;
    // ln(1 + e^-1 + e^-1.5)
    assert!((expected[0][0] - 0.464_368_8).abs() < 1e-5, "{expected:?}");
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let found = cross_entropies(&logits, (&[2, 9, 9], 0.0), dtype)?;
        assert_near(&found, &expected, 0.01, &format!("{dtype:?}"));
        assert_eq!((found[0][1], found[0][2], found[1][1]), (0.0, 0.0, 0.0), "{dtype:?}");
        // A masked target has infinite loss. With smoothing, so does any masked class.
        for target in [(&[1u32], 0.0), (&[0], 0.1)] {
            let [losses, _] = cross_entropies(&logits[..4], (target.0, target.1), dtype)?;
            assert_eq!(losses, [f64::INFINITY], "{target:?} {dtype:?}");
        }
    }
    Ok(())
}

/// A row whose classes are all masked has infinite loss and no gradient.
#[test]
fn a_row_of_masked_classes_does_not_affect_other_rows() -> Result<()> {
    let logits = [1.0, 0.5, f64::NEG_INFINITY, f64::NEG_INFINITY];
    for label_smoothing in [0.0, 0.1] {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let [losses, gradient] = cross_entropies(&logits, (&[1, 0], label_smoothing), dtype)?;
            assert!(losses[0].is_finite() && losses[1] == f64::INFINITY, "{dtype:?}: {losses:?}");
            assert!(gradient[..2].iter().all(|g| g.is_finite() && *g != 0.0), "{dtype:?}");
            assert_eq!(gradient[2..], [0.0, 0.0], "{dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn empty_sequences_give_the_results_of_the_composite() -> Result<()> {
    let input = |shape: &[usize], seed| (numbers(shape.iter().product(), seed), shape.to_vec());
    for causal in [false, true] {
        let options =
            |segments| Attention { num_heads: 2, scale: 0.7, causal, segments, dropout: None };
        let packed = options(Segments::packed(&[0, 3, 0, 2, 0]));
        compare("packed", |_| vec![input(&[5, 12], 1)], |t| self_attention(&t[0], None, &packed))?;
        // The first queries have no keys, the second keys have no queries.
        let cross = options(Segments::cross(&[2, 0, 3], &[0, 3, 2]));
        let inputs = |_| vec![input(&[5, 4], 1), input(&[5, 4], 2), input(&[5, 4], 3)];
        compare("cross", inputs, |t| attention(&t[0], &t[1], &t[2], None, &cross))?;
    }
    let positions = Disentangled {
        num_heads: 2,
        scale: 0.7,
        segments: Segments::packed(&[0, 3, 0, 2, 0]),
        rows: [0, 0, 1, 2, 2].into(),
    };
    let inputs = |_| vec![input(&[5, 12], 1), input(&[3, 4], 2), input(&[3, 4], 3)];
    compare("disentangled", inputs, |t| {
        disentangled_bias(&t[0], Some(&t[1]), Some(&t[2]), &positions)
    })?;
    let (lengths, windows) = ([0, 3, 0, 2, 0], Windows::over_time(3, 1, 1));
    compare("unfold", |_| vec![input(&[5, 2], 1)], |t| unfold(&t[0], &lengths, windows))?;
    let inputs = |_| vec![input(&[5, 2], 1), input(&[2, 3], 2), input(&[2], 3)];
    compare("depthwise", inputs, |t| depthwise(&t[0], &t[1], &t[2], &lengths, windows))
}
