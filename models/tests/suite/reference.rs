//! Compares a model with its reference, from the files that `tests/reference` creates.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::gradients::Gradients;
use engram_models::params::Parameters;

/// Returns the path of a file of a fixture.
pub fn fixture(name: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).join(file)
}

/// Returns the inputs and outputs of the reference.
pub fn expected(name: &str) -> Result<HashMap<String, Tensor>> {
    let path = fixture(name, "expected.safetensors");
    Ok(candle_core::safetensors::load(path, &Device::Cpu)?)
}

/// Returns the values of a tensor, row by row.
pub fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

/// Returns the largest absolute difference, divided by the largest absolute expected value.
pub fn relative_difference(actual: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(actual.len(), reference.len());
    let scale = largest(reference.iter().copied());
    // A key bias shifts all scores of a row equally, so its gradient is rounding error: the
    // difference stays absolute.
    let scale = if scale < 1e-12 { 1.0 } else { scale };
    largest(actual.iter().zip(reference).map(|(actual, reference)| actual - reference)) / scale
}

/// Returns the largest absolute value; NaN counts as larger than any number.
pub fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.map(f32::abs).max_by(f32::total_cmp).unwrap_or(0.0)
}

/// Asserts that an output has the shape of the expected tensor `what` and a relative difference
/// below `tolerance`.
pub fn assert_output(
    (name, what): (&str, &str),
    actual: &Tensor,
    tensors: &HashMap<String, Tensor>,
    tolerance: f32,
) -> Result<()> {
    assert_eq!(actual.dims(), tensors[what].dims(), "{name}: {what}");
    let difference = relative_difference(&values(actual)?, &values(&tensors[what])?);
    println!("{name} {:?}: {what} is off by {difference:.1e}", actual.dtype());
    assert!(difference < tolerance, "{name} {:?}: {what} is off by {difference:e}", actual.dtype());
    Ok(())
}

/// Asserts a relative difference below `tolerance` for the gradient of `loss` with respect to every
/// parameter, and that the model has exactly the reference's parameters.
pub fn assert_gradients(
    name: &str,
    loss: &Tensor,
    parameters: &Parameters,
    tensors: &HashMap<String, Tensor>,
    tolerance: f32,
) -> Result<()> {
    let actual_gradients: HashMap<String, Vec<f32>> = if loss.dtype() == DType::F32 {
        let mut gradients = Gradients::new(parameters);
        gradients.backward(loss)?;
        let gradient_of = |name: &str| gradients.by_name(name).expect("a gradient").to_vec();
        parameters.trainable().map(|p| (p.name().to_owned(), gradient_of(p.name()))).collect()
    } else {
        let candle_gradients = loss.backward()?;
        let gradient_of =
            |tensor: &Tensor| values(candle_gradients.get(tensor).expect("a gradient"));
        let pairs =
            parameters.trainable().map(|p| Ok((p.name().to_owned(), gradient_of(p.tensor())?)));
        pairs.collect::<Result<_>>()?
    };
    let mut expected_names: Vec<&str> =
        tensors.keys().filter_map(|name| name.strip_prefix("gradient.")).collect();
    let mut actual_names: Vec<&str> = actual_gradients.keys().map(String::as_str).collect();
    expected_names.sort_unstable();
    actual_names.sort_unstable();
    assert_eq!(actual_names, expected_names, "{name}: parameters");
    for parameter in expected_names {
        let reference = values(&tensors[&format!("gradient.{parameter}")])?;
        let difference = relative_difference(&actual_gradients[parameter], &reference);
        let dtype = loss.dtype();
        assert!(difference < tolerance, "{name} {dtype:?}: {parameter}: {difference:e}");
    }
    Ok(())
}
