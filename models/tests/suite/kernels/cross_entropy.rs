//! Cross-entropy, with ignored rows and masked classes.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::kernels::*;

use crate::reference::DTYPES;

/// Returns the losses and the gradient of the logits: from the kernel in f32, and from the
/// composite in other types.
fn loss_and_gradient(
    logits: &[f32],
    options: &CrossEntropy,
    dtype: DType,
) -> Result<[Vec<f64>; 2]> {
    let rows = options.targets.len();
    let logits = Tensor::new(logits, &Device::Cpu)?.reshape((rows, logits.len() / rows))?;
    let logits = candle_core::Var::from_tensor(&logits.to_dtype(dtype)?)?;
    let losses = cross_entropy(logits.as_tensor(), options.clone())?;
    let candle_gradients = losses.sum_all()?.backward()?;
    let gradient = candle_gradients.get(logits.as_tensor()).expect("a gradient").flatten_all()?;
    let numbers = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.to_vec1::<f64>();
    Ok([numbers(&losses)?, numbers(&gradient)?])
}

/// Neither a class masked by minus infinity nor an ignored row affects the loss.
#[test]
fn masked_classes_and_ignored_rows_do_not_affect_the_loss() -> Result<()> {
    let masked = f32::NEG_INFINITY;
    let logits = [1.0, masked, 2.0, 0.5, masked, masked, masked, masked, f32::NAN, 1.0, 2.0, 3.0];
    let options =
        CrossEntropy { targets: vec![2, 9, 9].into(), ignore_index: Some(9), label_smoothing: 0.0 };
    let kernel = loss_and_gradient(&logits, &options, DType::F32)?;
    for dtype in [DType::F64, DType::BF16] {
        let composite = loss_and_gradient(&logits, &options, dtype)?;
        for (found, expected) in composite.iter().flatten().zip(kernel.iter().flatten()) {
            assert!((found - expected).abs() < 0.01, "{dtype:?}: {composite:?}, {kernel:?}");
        }
    }
    // ln(1 + e^-1 + e^-1.5)
    assert!((kernel[0][0] - 0.464_368_8).abs() < 1e-5, "{kernel:?}");
    assert_eq!((kernel[0][1], kernel[0][2], kernel[1][1]), (0.0, 0.0, 0.0));
    // A masked target has infinite loss. With smoothing, so does any masked class.
    for (target, label_smoothing) in [(1, 0.0), (0, 0.1)] {
        let options =
            CrossEntropy { targets: vec![target].into(), ignore_index: None, label_smoothing };
        for dtype in DTYPES {
            let [losses, _] = loss_and_gradient(&logits[..4], &options, dtype)?;
            assert_eq!(losses, [f64::INFINITY], "{target} {dtype:?}");
        }
    }
    Ok(())
}
