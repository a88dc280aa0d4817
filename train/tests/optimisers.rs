//! Compares the update rules with PyTorch and optax (`reference/optimisers.py`), and their results
//! on different numbers of threads.

use candle_core::Tensor;
use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_train::optimiser::settings::{
    AdafactorSettings, AdamwSettings, LionSettings, MuonScale, MuonSettings, RuleSettings,
    SgdSettings,
};
use engram_train::optimiser::{Optimiser, RuleSet, StepSize};
use serde_json::Value;

const LEARNING_RATE: f64 = 0.01;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Deterministic values from −0.5 to 0.5. `salt` selects the sequence.
fn formula(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + salt * 104_729) % 1000) as f32 / 1000.0 - 0.5).collect()
}

/// The results of PyTorch and optax.
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

/// Fills in gradients from [`formula`]: the gradients of the sum of `parameter · gradient`.
fn fill(gradients: &mut Gradients, parameters: &Parameters, step: usize) -> TestResult {
    gradients.clear();
    for (i, parameter) in parameters.iter().enumerate() {
        let tensor = parameter.tensor();
        let gradient = formula(tensor.elem_count(), 17 * i + 100 * (step + 1));
        let gradient = Tensor::from_vec(gradient, tensor.dims(), tensor.device())?;
        gradients.backward(&(tensor * gradient)?.sum_all()?)?;
    }
    Ok(())
}

/// The parameters after the steps of the reference. `clip_norm` is 0 without clipping.
fn run(rule: &RuleSettings, clip_norm: f64) -> Result<Parameters, Box<dyn std::error::Error>> {
    let expected = expected();
    let parameters = parameters(&shapes(&expected))?;
    let rate_factors: Vec<f64> = serde_json::from_value(expected["rates"].clone())?;
    let mut gradients = Gradients::new(&parameters);
    let mut optimiser = Optimiser::new(&rules(rule), &parameters);
    for step in 0..expected["steps"].as_u64().expect("a count") as usize {
        fill(&mut gradients, &parameters, step)?;
        let norm = gradients.global_norm();
        let gradient_scale =
            if clip_norm > 0.0 { (clip_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let size = StepSize { learning_rate: LEARNING_RATE, gradient_scale };
        optimiser.step(&parameters, &gradients, &rate_factors, size)?;
    }
    Ok(parameters)
}

/// The largest difference from the stored elements and the stored means.
fn difference(parameters: &Parameters, expected: &Value) -> f64 {
    let mut worst: f64 = 0.0;
    for (parameter, expected) in parameters.iter().zip(expected.as_array().expect("a list")) {
        let values = parameter.to_vec().expect("values");
        let indices = expected["indices"].as_array().expect("indices");
        for (index, expected) in indices.iter().zip(expected["values"].as_array().expect("values"))
        {
            let value = f64::from(values[index.as_u64().expect("an index") as usize]);
            worst = worst.max((value - expected.as_f64().expect("a number")).abs());
        }
        let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
        let mean_error = (sum - expected["sum"].as_f64().expect("a sum")) / values.len() as f64;
        worst = worst.max(mean_error.abs());
    }
    worst
}

fn rules(rule: &RuleSettings) -> RuleSet {
    RuleSet { default: rule.clone(), by_pattern: Vec::new() }
}

fn adamw_settings() -> AdamwSettings {
    AdamwSettings { betas: [0.9, 0.98], epsilon: 1e-6, weight_decay: 0.1 }
}

fn adamw() -> RuleSettings {
    RuleSettings::Adamw(adamw_settings())
}

fn adafactor(weight_decay: f64, momentum: f64) -> RuleSettings {
    let default = AdafactorSettings::default();
    RuleSettings::Adafactor(AdafactorSettings { weight_decay, momentum, ..default })
}

fn sgd(momentum: f64, nesterov: bool) -> RuleSettings {
    RuleSettings::Sgd(SgdSettings { momentum, nesterov, weight_decay: 0.1 })
}

fn lion() -> RuleSettings {
    RuleSettings::Lion(LionSettings { betas: [0.8, 0.95], weight_decay: 0.1 })
}

fn muon(scale: MuonScale, nesterov: bool) -> RuleSettings {
    RuleSettings::Muon(MuonSettings {
        momentum: 0.9,
        nesterov,
        scale,
        weight_decay: 0.1,
        adamw: adamw_settings(),
        ..MuonSettings::default()
    })
}

#[test]
fn each_rule_equals_its_reference() -> TestResult {
    for (name, rule, clip_norm) in [
        ("adamw", adamw(), 0.0),
        ("adamw_clipped", adamw(), 1.5),
        ("adafactor", adafactor(0.002, 0.0), 0.0),
        ("adafactor_momentum", adafactor(0.0, 0.9), 0.0),
        ("sgd", sgd(0.0, false), 0.0),
        ("sgd_momentum", sgd(0.9, false), 0.0),
        ("sgd_nesterov", sgd(0.9, true), 0.0),
        ("lion", lion(), 0.0),
        ("muon", muon(MuonScale::MatchAdamw, true), 0.0),
        ("muon_original", muon(MuonScale::Original, false), 0.0),
    ] {
        let worst = difference(&run(&rule, clip_norm)?, &expected()[name]);
        assert!(worst < 1e-6, "{name} differs by {worst:e}");
    }
    let without_decay =
        RuleSettings::Adamw(AdamwSettings { weight_decay: 0.0, ..adamw_settings() });
    assert!(difference(&run(&without_decay, 0.0)?, &expected()["adamw"]) > 1e-5);
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_thread_count() -> TestResult {
    let with_momentum = [adafactor(0.002, 0.9), sgd(0.9, true)];
    let defaults = RuleSettings::KINDS.iter().filter_map(|kind| RuleSettings::of_kind(kind));
    for rule in defaults.chain(with_momentum) {
        let bits_with = |threads| -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let parameters = pool.install(|| run(&rule, 1.0).map_err(|e| e.to_string()))?;
            let bits = |p: &engram_models::params::Parameter| {
                p.to_vec().map(|values| values.into_iter().map(f32::to_bits).collect())
            };
            Ok(parameters.iter().map(bits).collect::<Result<_, _>>()?)
        };
        assert_eq!(bits_with(1)?, bits_with(2)?);
        assert_eq!(bits_with(1)?, bits_with(3)?);
    }
    Ok(())
}

/// In f32, `1 − 0.999` differs by 1.3e-5 from its value in f64, which the references use.
#[test]
fn running_means_of_a_thousand_steps_equal_those_of_the_references() -> TestResult {
    const DECAY: f64 = 0.999;
    let adamw = AdamwSettings { betas: [DECAY, DECAY], ..AdamwSettings::default() };
    let lion = LionSettings { betas: [0.9, DECAY], ..LionSettings::default() };
    let muon = MuonSettings { momentum: DECAY, ..MuonSettings::default() };
    for (name, rule) in [
        ("adamw", RuleSettings::Adamw(adamw)),
        ("lion", RuleSettings::Lion(lion)),
        ("muon", RuleSettings::Muon(muon)),
    ] {
        let parameters = parameters(&[vec![64, 64]])?;
        let parameter = parameters.iter().next().expect("the parameter").tensor().clone();
        let mut gradients = Gradients::new(&parameters);
        let mut optimiser = Optimiser::new(&rules(&rule), &parameters);
        for step in 0..1000 {
            let gradient: Vec<f32> =
                formula(64 * 64, 100 * (step + 1)).into_iter().map(|g| g + 1.0).collect();
            let gradient = Tensor::from_vec(gradient, (64, 64), parameter.device())?;
            gradients.clear();
            gradients.backward(&(&parameter * gradient)?.sum_all()?)?;
            let size = StepSize { learning_rate: 1e-4, gradient_scale: 1.0 };
            optimiser.step(&parameters, &gradients, &[1.0], size)?;
        }
        let expected: Vec<f64> = serde_json::from_value(expected()["running_means"][name].clone())?;
        let state = optimiser.state()?;
        assert_eq!(state.len(), expected.len(), "{name}");
        for ((state_name, mean), expected) in state.iter().zip(expected) {
            // The sum of many elements averages the rounding errors of single steps.
            let ratio = mean.iter().map(|m| f64::from(*m)).sum::<f64>() / expected;
            assert!((ratio - 1.0).abs() < 2e-6, "{name}: {state_name}: {ratio}");
        }
    }
    Ok(())
}

#[test]
fn a_parameter_without_a_gradient_is_unchanged() -> TestResult {
    let builder = ParameterBuilder::on_cpu(0);
    builder.get("used", &[2], Init::Ones)?;
    builder.get("unused", &[2], Init::Ones)?;
    let parameters = builder.finish()?;
    let mut gradients = Gradients::new(&parameters);
    let used = parameters.get("used").expect("a requested parameter").tensor();
    gradients.backward(&used.sum_all()?)?;
    let mut optimiser = Optimiser::new(&rules(&adamw()), &parameters);
    let size = StepSize { learning_rate: 0.1, gradient_scale: 1.0 };
    optimiser.step(&parameters, &gradients, &[1.0, 1.0], size)?;
    let values: Vec<Vec<f32>> = parameters.iter().map(|p| p.to_vec()).collect::<Result<_, _>>()?;
    assert!(values[0][0] < 1.0);
    assert_eq!(values[1], [1.0, 1.0]);
    Ok(())
}

#[test]
fn a_restored_optimiser_of_each_rule_continues_with_the_same_values() -> TestResult {
    for kind in RuleSettings::KINDS {
        let rule = RuleSettings::of_kind(kind).expect("a known kind");
        let shapes = [vec![5], vec![7, 300], vec![130, 140]];
        let run = |resume: bool| -> Result<Vec<Vec<f32>>, Box<dyn std::error::Error>> {
            let parameters = parameters(&shapes)?;
            let mut gradients = Gradients::new(&parameters);
            let mut optimiser = Optimiser::new(&rules(&rule), &parameters);
            for step in 0..4 {
                if resume {
                    let mut restored = Optimiser::new(&rules(&rule), &parameters);
                    let state = optimiser.state()?;
                    restored.restore(optimiser.steps, |name, length| {
                        let tensor = state.iter().find(|(other, _)| other == name);
                        let values = tensor.expect("a state tensor").1.to_vec();
                        assert_eq!(values.len(), length, "{name}");
                        Ok(values)
                    })?;
                    optimiser = restored;
                }
                fill(&mut gradients, &parameters, step)?;
                let size = StepSize { learning_rate: LEARNING_RATE, gradient_scale: 1.0 };
                optimiser.step(&parameters, &gradients, &[1.0; 3], size)?;
            }
            Ok(parameters.iter().map(|p| p.to_vec()).collect::<Result<_, _>>()?)
        };
        assert_eq!(run(true)?, run(false)?, "{kind}");
    }
    Ok(())
}
