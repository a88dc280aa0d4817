//! Set-up that several tests share: files of `tests/reference`, numbers, and comparisons.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::compute::Compute;
use engram_models::gradients::Gradients;
use engram_models::kernels::{CrossEntropy, cross_entropy};
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::speech::log_mel::Frames;
use engram_models::weights::Weights;

/// The dtypes of comparisons with a reference: f32 runs the fused kernels, f64 the candle
/// operations that replace them.
pub const DTYPES: [DType; 2] = [DType::F32, DType::F64];

/// Returns the path of a file of a fixture.
pub fn fixture(name: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).join(file)
}

/// Returns the tensors of a fixture's file.
pub fn tensors(name: &str, file: &str) -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(fixture(name, file), &Device::Cpu)?)
}

/// Returns the inputs and outputs of the reference.
pub fn expected(name: &str) -> Result<HashMap<String, Tensor>> {
    tensors(name, "expected.safetensors")
}

/// Returns the weights of a fixture.
pub fn weights(name: &str) -> Result<Arc<Weights>> {
    Ok(Arc::new(Weights::open(&fixture(name, "model.safetensors"))?))
}

/// A builder of parameters on the CPU in this dtype.
pub fn builder(seed: u64, dtype: DType) -> ParameterBuilder {
    ParameterBuilder::new(seed, Vec::new(), &Compute { dtype, ..Compute::cpu() })
}

/// A builder of frozen parameters in f32.
pub fn frozen_builder() -> ParameterBuilder {
    ParameterBuilder::new(0, vec![ParameterGroup::all_frozen()], &Compute::cpu())
}

/// Returns the values of a tensor, row by row.
pub fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

/// Returns a tensor's values as token ids or lengths.
pub fn integers(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::U32)?.to_vec1()?)
}

/// Returns the `ids` of each sequence, given the tensors with all ids and with the lengths.
pub fn sequences(ids: &Tensor, lengths: &Tensor) -> Result<Vec<Vec<u32>>> {
    let (ids, mut start) = (integers(ids)?, 0);
    let next = |length: u32| {
        start += length as usize;
        ids[start - length as usize..start].to_vec()
    };
    Ok(integers(lengths)?.into_iter().map(next).collect())
}

/// Returns a tensor's values as lengths.
pub fn lengths(tensor: &Tensor) -> Result<Vec<usize>> {
    Ok(integers(tensor)?.into_iter().map(|length| length as usize).collect())
}

/// Irregular numbers between -1 and 1.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let wave = |i: usize| ((i as f64 + 1.0) * 12.9898 + seed as f64 * 78.233).sin() * 43758.5453;
    (0..count).map(|i| 2.0 * (wave(i) - wave(i).floor()) - 1.0).collect()
}

/// Irregular numbers of this shape, for `check_gradients`.
pub fn input(shape: &'static [usize], seed: u64) -> (Vec<f64>, &'static [usize]) {
    (numbers(shape.iter().product(), seed), shape)
}

/// Returns the bits of all gradients, in the order of the parameters.
pub fn bits(gradients: &Gradients) -> Vec<u32> {
    let values = (0..gradients.len()).filter_map(|i| gradients.get(i)).flatten();
    values.map(|value| value.to_bits()).collect()
}

/// Returns the number of values of a model's parameters, without allocating them.
pub fn value_count<M>(build: impl FnOnce(&ParameterBuilder) -> Result<M>) -> Result<usize> {
    let builder = ParameterBuilder::shapes_only();
    build(&builder)?;
    Ok(builder.finish()?.value_counts().0)
}

/// Returns the mean of `-log p` of the next tokens.
pub fn mean_loss(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    let options =
        CrossEntropy { targets: targets.into(), ignore_index: None, label_smoothing: 0.0 };
    Ok(cross_entropy(logits, options)?.mean_all()?)
}

/// The values `sin(step i)` as a tensor.
pub fn waves(shape: &[usize], step: f64, dtype: DType) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| (i as f64 * step).sin()).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

/// The scalar whose gradients are in the fixtures.
pub fn weighted_sum(hidden: &Tensor) -> Result<Tensor> {
    let weights: Vec<f64> =
        (0..hidden.elem_count()).map(|n| (1.7 * n as f64 + 0.3).sin()).collect();
    let weights = Tensor::from_vec(weights, hidden.shape(), &Device::Cpu)?;
    Ok((hidden * weights.to_dtype(hidden.dtype())?)?.sum_all()?)
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

/// Returns the largest absolute difference.
pub fn largest_difference(actual: &Tensor, expected: &Tensor) -> Result<f32> {
    let (actual, expected) = (values(actual)?, values(expected)?);
    assert_eq!(actual.len(), expected.len());
    Ok(largest(actual.iter().zip(expected).map(|(actual, expected)| actual - expected)))
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

/// Asserts that every third frame equals the expected rows up to `tolerance`.
pub fn assert_every_third_frame(frames: &Frames, expected: &Tensor, tolerance: f32) -> Result<()> {
    let expected = expected.to_vec2::<f32>()?;
    for (i, (row, expected)) in
        frames.values.chunks(frames.bands).step_by(3).zip(expected).enumerate()
    {
        for (found, expected) in row.iter().zip(expected) {
            let is_close = (found - expected).abs() < tolerance;
            assert!(is_close, "frame {}: {found}, {expected}", 3 * i);
        }
    }
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
    let dtype = loss.dtype();
    let actual_gradients: HashMap<String, Vec<f32>> = if dtype == DType::F32 {
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
        assert!(difference < tolerance, "{name} {dtype:?}: {parameter}: {difference:e}");
    }
    Ok(())
}

/// Asserts that reading a `config.json` with each of these texts fails with this reason, and that
/// the error names the file.
pub fn assert_config_errors<C: std::fmt::Debug>(
    read: impl Fn(&Path) -> Result<C>,
    cases: &[(&str, &str)],
) {
    for (text, reason) in cases {
        let error = read_config(&read, text).expect_err(text).to_string();
        assert!(error.contains(reason) && error.contains("config.json"), "{text}: {error}");
    }
}

/// Reads a `config.json` with this text.
pub fn read_config<C>(read: impl Fn(&Path) -> Result<C>, text: &str) -> Result<C> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.json");
    std::fs::write(&path, text).expect("a file");
    read(&path)
}

/// Runs `f` on pools of one, two and four threads, and asserts equal results.
pub fn assert_same_for_any_threads<T: PartialEq + Send>(f: impl Fn() -> Result<T> + Sync) {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| f().expect("a result"))
    };
    let single_thread = run(1);
    assert!(single_thread == run(2) && single_thread == run(4));
}
