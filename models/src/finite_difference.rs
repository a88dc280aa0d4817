//! Gradient checks: central differences in f64, and the fused f32 kernels against the f64
//! gradients.
//!
//! candle silently drops or corrupts some gradients. Therefore [`check_gradients`] tests every
//! operation and layer that is trained here. Use it for your own operations too.

use candle_core::{DType, Device, Tensor, Var};

use crate::error::{ModelError, Result, bail};
use crate::kernels::without_fused_kernels;

/// The step size of the central differences in f64.
const STEP: f64 = 1e-5;

/// Checks every gradient of `f` at `inputs`, given as `(values, shape)`.
///
/// `f` may return a tensor of any shape. Its elements are summed with fixed irregular weights, so
/// that errors do not cancel. The checks are:
///
/// - The backward pass in f64 against central differences, for every element.
/// - The value and the backward pass in f32, where fused kernels run, against f64.
/// - The value and the backward pass of the fused f32 kernels against the same computation in
///   candle operations.
/// - The backward pass in f32 against a central difference in f32 along the gradient.
///
/// # Errors
/// [`ModelError::BadInput`] with the input, the element and both numbers, or if every gradient is
/// zero.
pub fn check_gradients(
    inputs: &[(Vec<f64>, &[usize])],
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let (value, exact) = value_and_gradients(inputs, DType::F64, &f)?;
    for (i, (_, shape)) in inputs.iter().enumerate() {
        for (j, exact) in exact[i].iter().enumerate() {
            let value_at = |step: f64| -> Result<f64> {
                let mut shifted = inputs.to_vec();
                shifted[i].0[j] += step;
                Ok(value_and_gradients(&shifted, DType::F64, &f)?.0)
            };
            let difference = (value_at(STEP)? - value_at(-STEP)?) / (2.0 * STEP);
            let location = || format!("input {i} {shape:?}, element {j}, f64");
            compare(location, *exact, difference, 1e-6, 1.0)?;
        }
    }
    let (fused_value, fused) = value_and_gradients(inputs, DType::F32, &f)?;
    compare(|| "value, f32".into(), fused_value, value, 2e-5, value.abs())?;
    compare_gradients("f32", &fused, &exact)?;
    let (composite_value, composite) =
        without_fused_kernels(|| value_and_gradients(inputs, DType::F32, &f))?;
    let location = || "value, composite in f32".into();
    compare(location, composite_value, fused_value, 2e-5, value.abs())?;
    compare_gradients("composite in f32", &composite, &fused)?;
    check_along_gradient(inputs, &fused, &f)
}

/// Compares the gradients of all inputs.
fn compare_gradients(kind: &str, actual: &[Vec<f64>], expected: &[Vec<f64>]) -> Result<()> {
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let scale = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        for (j, (actual, expected)) in actual.iter().zip(expected).enumerate() {
            let location = || format!("input {i}, element {j}, {kind}");
            compare(location, *actual, *expected, 5e-5, scale)?;
        }
    }
    Ok(())
}

/// Checks the f32 gradient by the change of the value over one f32 step along the gradient.
fn check_along_gradient(
    inputs: &[(Vec<f64>, &[usize])],
    gradients: &[Vec<f64>],
    f: &impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let norm = gradients.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
    if norm == 0.0 {
        bail!("every gradient is zero");
    }
    let value_at = |step: f64| -> Result<f64> {
        let mut shifted = inputs.to_vec();
        for ((values, _), gradient) in shifted.iter_mut().zip(gradients) {
            for (value, g) in values.iter_mut().zip(gradient) {
                *value += step * g / norm;
            }
        }
        Ok(value_and_gradients(&shifted, DType::F32, f)?.0)
    };
    let step = 4e-3;
    let difference = (value_at(step)? - value_at(-step)?) / (2.0 * step);
    compare(|| "step along the gradient, f32".into(), norm, difference, 2e-2, norm)
}

/// Returns the weighted sum of the output of `f` in `dtype`, and its gradient for each input.
fn value_and_gradients(
    inputs: &[(Vec<f64>, &[usize])],
    dtype: DType,
    f: &impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<(f64, Vec<Vec<f64>>)> {
    let mut variables = Vec::with_capacity(inputs.len());
    for (values, shape) in inputs {
        let tensor = Tensor::from_slice(values, *shape, &Device::Cpu)?.to_dtype(dtype)?;
        variables.push(Var::from_tensor(&tensor)?);
    }
    let tensors: Vec<Tensor> = variables.iter().map(|v| v.as_tensor().clone()).collect();
    let output = f(&tensors)?.flatten_all()?;
    let weights: Vec<f64> =
        (0..output.elem_count()).map(|i| (i as f64 * 1.7 + 0.3).sin()).collect();
    let weights = Tensor::from_vec(weights, output.shape(), &Device::Cpu)?.to_dtype(dtype)?;
    let loss = (output * weights)?.sum_all()?;
    let gradient_store = loss.backward()?;
    let mut gradients = Vec::with_capacity(tensors.len());
    for tensor in &tensors {
        gradients.push(match gradient_store.get(tensor) {
            Some(g) => g.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?,
            None => vec![0.0; tensor.elem_count()],
        });
    }
    Ok((loss.to_dtype(DType::F64)?.to_scalar()?, gradients))
}

/// Returns an error unless the two values differ by at most
/// `tolerance * max(scale, |expected|, 0.001)`.
fn compare(
    location: impl Fn() -> String,
    actual: f64,
    expected: f64,
    tolerance: f64,
    scale: f64,
) -> Result<()> {
    let allowed = tolerance * scale.max(expected.abs()).max(1e-3);
    if (actual - expected).abs() <= allowed {
        return Ok(());
    }
    let location = location();
    let reason = format!("gradient check, {location}: found {actual:e}, expected {expected:e}");
    Err(ModelError::BadInput(reason))
}
