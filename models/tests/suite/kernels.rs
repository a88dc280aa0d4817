//! Checks every fused operation: against finite differences, and against its composite in f64, f32
//! and half precision; with extreme, masked and empty inputs; and inside a chain.

mod attention;
mod buffers;
mod cases;
mod chain;
mod convolution;
mod elementwise;
mod extremes;

use candle_core::{DType, Device, Tensor, Var};
use engram_models::Result;
use engram_models::params::{Init, ParameterBuilder};

use super::reference::{input, numbers};

/// A tensor of normal values.
fn random(shape: &[usize], seed: u64) -> Result<Tensor> {
    let builder = ParameterBuilder::on_cpu(seed);
    builder.get("x", shape, Init::Normal(1.0))
}

/// Returns the values of the output of `f` and the gradients of the inputs, in f64. The inputs are
/// converted to `dtype`, and to `computed` afterwards.
fn run(
    inputs: &[(Vec<f64>, Vec<usize>)],
    (dtype, computed): (DType, DType),
    f: &dyn Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Vec<f64>>> {
    let variable = |(values, shape): &(Vec<f64>, Vec<usize>)| {
        let x = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu)?;
        Var::from_tensor(&x.to_dtype(dtype)?.to_dtype(computed)?)
    };
    let variables = inputs.iter().map(variable).collect::<candle_core::Result<Vec<Var>>>()?;
    let tensors: Vec<Tensor> = variables.iter().map(|x| x.as_tensor().clone()).collect();
    let output = f(&tensors)?.to_dtype(DType::F64)?.flatten_all()?;
    let weights = Tensor::new(numbers(output.elem_count(), 99), &Device::Cpu)?;
    let gradients = (&output * weights)?.sum_all()?.backward()?;
    let mut results = vec![output.to_vec1()?];
    for tensor in &tensors {
        results.push(match gradients.get(tensor) {
            Some(gradient) => gradient.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?,
            None => vec![0.0; tensor.elem_count()],
        });
    }
    Ok(results)
}

/// Checks that all results are finite, and equal up to `tolerance` times the largest expected value
/// (at least 1).
fn assert_near(found: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let scale = expected.iter().fold(1.0f64, |scale, value| scale.max(value.abs()));
        assert_eq!(found.len(), expected.len(), "{what}, result {i}");
        for (j, (found, expected)) in found.iter().zip(expected).enumerate() {
            let is_near = (found - expected).abs() <= tolerance * scale;
            assert!(is_near, "{what}, result {i}, element {j}: {found}, expected {expected}");
        }
    }
}
