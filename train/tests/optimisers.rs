//! Compares the optimisers with PyTorch and optax (`reference/optimisers.py`), and their results on
//! different numbers of threads.

use candle_core::Tensor;
use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_train::optimiser::{Optimiser, StepSize};
use engram_train::recipe::{OptimiserKind, OptimiserSettings};
use serde_json::Value;

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn formula(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + salt * 104_729) % 1000) as f32 / 1000.0 - 0.5).collect()
}

fn expected() -> Value {
    serde_json::from_str(include_str!("reference/optimisers.json")).expect("the stored numbers")
}

fn shapes(expected: &Value) -> Vec<Vec<usize>> {
    serde_json::from_value(expected["shapes"].clone()).expect("shapes")
}

fn parameters(shapes: &[Vec<usize>]) -> Result<Parameters, Box<dyn std::error::Error>> {
    let builder = ParameterBuilder::on_cpu(0);
    for (i, shape) in shapes.iter().enumerate() {
        builder.get(&format!("p{i}"), shape, Init::Zeros)?;
    }
    let parameters = builder.finish()?;
    for (i, parameter) in parameters.iter().enumerate() {
        let start = formula(parameter.tensor().elem_count(), 17 * i + 1);
        parameter.update(&mut |values| values.copy_from_slice(&start))?;
    }
    Ok(parameters)
}

/// Gradients by formula: the gradients of the sum of `parameter · gradient`.
fn fill(gradients: &mut Gradients, parameters: &Parameters, step: usize) -> TestResult {
    gradients.clear();
    for (i, parameter) in parameters.iter().enumerate() {
        let tensor = parameter.tensor();
        let wanted = formula(tensor.elem_count(), 17 * i + 100 * (step + 1));
        let wanted = Tensor::from_vec(wanted, tensor.dims(), tensor.device())?;
        gradients.backward(&(tensor * wanted)?.sum_all()?)?;
    }
    Ok(())
}

fn run(settings: &OptimiserSettings, clip: f64) -> Result<Parameters, Box<dyn std::error::Error>> {
    let expected = expected();
    let parameters = parameters(&shapes(&expected))?;
    let rates: Vec<f64> = serde_json::from_value(expected["rates"].clone())?;
    let mut gradients = Gradients::new(&parameters);
    let mut optimiser = engram_train::optimiser::new(settings, &parameters);
    for step in 0..expected["steps"].as_u64().expect("a count") as usize {
        fill(&mut gradients, &parameters, step)?;
        let norm = gradients.global_norm();
        let gradient_scale = if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let learning_rate = settings.learning_rate;
        let size = StepSize { learning_rate, gradient_scale };
        optimiser.step(&parameters, &gradients, &rates, size)?;
    }
    Ok(parameters)
}

/// The largest difference from the stored elements.
fn difference(parameters: &Parameters, expected: &Value) -> f64 {
    let mut worst: f64 = 0.0;
    for (parameter, expected) in parameters.iter().zip(expected.as_array().expect("a list")) {
        let values = parameter.to_vec().expect("values");
        let indices = expected["indices"].as_array().expect("indices");
        for (index, value) in indices.iter().zip(expected["values"].as_array().expect("values")) {
            let found = f64::from(values[index.as_u64().expect("an index") as usize]);
            worst = worst.max((found - value.as_f64().expect("a number")).abs());
        }
        let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
        let mean_error = (sum - expected["sum"].as_f64().expect("a sum")) / values.len() as f64;
        worst = worst.max(mean_error.abs());
    }
    worst
}

fn adamw() -> OptimiserSettings {
    OptimiserSettings {
        learning_rate: 0.01,
        betas: [0.9, 0.98],
        epsilon: Some(1e-6),
        weight_decay: 0.1,
        ..OptimiserSettings::default()
    }
}

fn adafactor(weight_decay: f64, momentum: f64) -> OptimiserSettings {
    OptimiserSettings {
        kind: OptimiserKind::Adafactor,
        learning_rate: 0.01,
        weight_decay,
        momentum,
        ..OptimiserSettings::default()
    }
}

#[test]
fn adamw_equals_pytorch() -> TestResult {
    let worst = difference(&run(&adamw(), 0.0)?, &expected()["adamw"]);
    assert!(worst < 5e-7, "differs by {worst:e}");
    let worst = difference(&run(&adamw(), 1.5)?, &expected()["adamw_clipped"]);
    assert!(worst < 5e-7, "clipped, differs by {worst:e}");
    let wrong = OptimiserSettings { weight_decay: 0.0, ..adamw() };
    assert!(difference(&run(&wrong, 0.0)?, &expected()["adamw"]) > 1e-5);
    Ok(())
}

#[test]
fn adafactor_equals_optax() -> TestResult {
    let worst = difference(&run(&adafactor(0.002, 0.0), 0.0)?, &expected()["adafactor"]);
    assert!(worst < 5e-7, "differs by {worst:e}");
    let found = run(&adafactor(0.0, 0.9), 0.0)?;
    let worst = difference(&found, &expected()["adafactor_momentum"]);
    assert!(worst < 5e-7, "with momentum, differs by {worst:e}");
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_thread_count() -> TestResult {
    for settings in [adamw(), adafactor(0.002, 0.9)] {
        let with = |threads| -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let found = pool.install(|| run(&settings, 1.0).map_err(|e| e.to_string()))?;
            let bits = |p: &engram_models::params::Parameter| {
                p.to_vec().map(|values| values.into_iter().map(f32::to_bits).collect())
            };
            Ok(found.iter().map(bits).collect::<Result<_, _>>()?)
        };
        assert_eq!(with(1)?, with(2)?);
        assert_eq!(with(1)?, with(3)?);
    }
    Ok(())
}

#[test]
fn a_parameter_without_a_gradient_stays() -> TestResult {
    let builder = ParameterBuilder::on_cpu(0);
    builder.get("used", &[2], Init::Ones)?;
    builder.get("unused", &[2], Init::Ones)?;
    let parameters = builder.finish()?;
    let mut gradients = Gradients::new(&parameters);
    let used = parameters.get("used").expect("a requested parameter").tensor();
    gradients.backward(&used.sum_all()?)?;
    let mut optimiser: Box<dyn Optimiser> = engram_train::optimiser::new(&adamw(), &parameters);
    let size = StepSize { learning_rate: 0.1, gradient_scale: 1.0 };
    optimiser.step(&parameters, &gradients, &[1.0, 1.0], size)?;
    let values: Vec<Vec<f32>> = parameters.iter().map(|p| p.to_vec()).collect::<Result<_, _>>()?;
    assert!(values[0][0] < 1.0);
    assert_eq!(values[1], [1.0, 1.0]);
    Ok(())
}
