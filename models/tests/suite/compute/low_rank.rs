//! Low-rank branches and quantised weights of the linear layers of every model family, by pattern.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::compute::{Compute, to_host};
use engram_models::finite_difference::check_gradients;
use engram_models::gradients::{GradientFault, Gradients};
use engram_models::kernels::{
    Activation, Chain, Dropout, LinearParameters, LowRankParameters, stacked_linear,
};
use engram_models::layers::{LowRank, LowRankPattern, merge, up_projection};
use engram_models::params::{Init, ParameterBuilder, ParameterGroup, Parameters};
use engram_models::weights::{Weights, save};
use engram_models::{ModelError, Result};

use super::models::{MODELS, Run, loss, numbers, relative_error};

/// For each model family, in the order of [`MODELS`]: a pattern, and the number of linear layers
/// that it matches.
const PATTERNS: [(&str, usize); 15] = [
    ("**.self.*", 6),
    ("**.Wqkv", 2),
    ("**.attention.**", 8),
    ("**.intermediate.dense", 2),
    ("**.SelfAttention.*", 16),
    ("patches.encoder.layer.*.attention.**", 8),
    ("vision_model.**.self_attn.*", 8),
    ("**.self_attn.*", 10),
    ("**_projector", 2),
    ("decoder.**", 20),
    ("**.linear1", 4),
    ("**.fc*", 8),
    ("**.self_attn.q_proj", 2),
    ("**.encoder.**.v_proj", 2),
    ("**.DenseReluDense.*", 21),
];

/// Named values of parameters.
type Values = BTreeMap<String, Tensor>;

fn patterns(pattern: &str) -> Vec<LowRankPattern> {
    let settings = LowRank { rank: 2, alpha: 3.0, dropout: 0.0 };
    vec![LowRankPattern { pattern: pattern.into(), settings }]
}

/// A model with random weights and new branches: its outputs and parameters.
fn with_new_branches(run: Run, pattern: &str) -> Result<(Vec<Tensor>, Parameters)> {
    let builder = ParameterBuilder::on_cpu(11).with_low_rank(patterns(pattern));
    Ok((run(&builder)?, builder.finish()?))
}

/// A model with these values: its outputs and parameters.
fn with_values(
    run: Run,
    patterns: Vec<LowRankPattern>,
    values: &Values,
    dtype: DType,
) -> Result<(Vec<Tensor>, Parameters)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.safetensors");
    save(&path, values.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let compute = Compute { dtype, ..Compute::cpu() };
    let builder = ParameterBuilder::new(11, Vec::new(), &compute).with_low_rank(patterns);
    let outputs = run(&builder.with_weights(Arc::new(Weights::open(&path)?)))?;
    Ok((outputs, builder.finish()?))
}

/// The values of the parameters in f64, with the up-projections of all branches set to irregular
/// numbers.
fn trained_values(parameters: &Parameters) -> Result<Values> {
    let mut values = Values::new();
    for parameter in parameters.iter() {
        let (name, tensor) = (parameter.name(), parameter.tensor());
        let is_up = parameter.is_trainable() && up_projection(name).is_none();
        let tensor = if is_up {
            let numbers =
                Tensor::from_vec(numbers(tensor.elem_count(), 0.9), tensor.shape(), &Device::Cpu)?;
            (numbers * 0.2)?
        } else {
            tensor.detach()
        };
        values.insert(name.to_string(), tensor.to_dtype(DType::F64)?);
    }
    Ok(values)
}

/// The gradients of the branches, by name.
fn gradients(outputs: &[Tensor], parameters: &Parameters) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut gradients = Gradients::new(parameters);
    gradients.backward(&loss(outputs)?)?;
    assert_eq!(gradients.faults(), []);
    let of = |name: &str| Some((name.to_string(), gradients.by_name(name)?.to_vec()));
    Ok(parameters.trainable().filter_map(|parameter| of(parameter.name())).collect())
}

fn all(outputs: &[Tensor]) -> Result<Vec<f32>> {
    Ok(outputs.iter().map(to_host).collect::<candle_core::Result<Vec<_>>>()?.concat())
}

fn for_each_family(check: impl Fn(&str, Run, &str, usize) -> Result<()>) -> Result<()> {
    for ((model, run), (pattern, layers)) in MODELS.into_iter().zip(PATTERNS) {
        check(model, run, pattern, layers)
            .map_err(|error| ModelError::BadInput(format!("{model}: {error}")))?;
    }
    Ok(())
}

/// Only branches are trained, the outputs do not change, and the gradients of the down-projections
/// are zero.
#[test]
fn new_branches_keep_the_outputs_of_every_family() -> Result<()> {
    for_each_family(|model, run, pattern, layers| {
        let (outputs, parameters) = with_new_branches(run, pattern)?;
        let names: Vec<&str> = parameters.trainable().map(|parameter| parameter.name()).collect();
        assert_eq!(names.len(), 2 * layers, "{model}: {names:?}");
        assert!(names.iter().all(|name| name.contains(".lora_")), "{model}: {names:?}");
        let plain = run(&ParameterBuilder::on_cpu(11))?;
        assert!(relative_error(&all(&outputs)?, &all(&plain)?) < 1e-6, "{model}");
        let mut gradients = Gradients::new(&parameters);
        gradients.backward(&loss(&outputs)?)?;
        let faults = gradients.faults();
        assert_eq!(faults.len(), layers, "{model}: {faults:?}");
        let zero = |(name, fault): &(String, GradientFault)| {
            up_projection(name).is_some() && *fault == GradientFault::Zero
        };
        assert!(faults.iter().all(zero), "{model}: {faults:?}");
        Ok(())
    })
}

/// Compares the gradient in f64 with a central difference along the gradient, and the gradient of
/// the fused kernels with the gradient in f64.
#[test]
fn branches_of_every_family_have_correct_gradients() -> Result<()> {
    const STEP: f64 = 1e-4;
    for_each_family(|model, run, pattern, _| {
        let values = trained_values(&with_new_branches(run, pattern)?.1)?;
        let at = |values: &Values, dtype| with_values(run, patterns(pattern), values, dtype);
        let (outputs, parameters) = at(&values, DType::F64)?;
        let exact = gradients(&outputs, &parameters)?;
        let norm = exact.values().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let loss_at = |step: f64| -> Result<f64> {
            let mut moved = values.clone();
            for (name, gradient) in &exact {
                let value = &values[name];
                let direction = Tensor::from_slice(gradient, value.shape(), &Device::Cpu)?;
                let change = (direction.to_dtype(DType::F64)? * (step / norm))?;
                moved.insert(name.clone(), (value + change)?);
            }
            Ok(loss(&at(&moved, DType::F64)?.0)?.to_scalar()?)
        };
        let slope = (loss_at(STEP)? - loss_at(-STEP)?) / (2.0 * STEP);
        assert!((slope - norm).abs() < 1e-4 * norm, "{model}: slope {slope}, norm {norm}");
        let (outputs, parameters) = at(&values, DType::F32)?;
        let fused: Vec<f32> = gradients(&outputs, &parameters)?.into_values().flatten().collect();
        let exact: Vec<f32> = exact.into_values().flatten().collect();
        let error = relative_error(&fused, &exact);
        assert!(error < 1e-4, "{model}: {error:e}");
        Ok(())
    })
}

#[test]
fn merged_branches_give_the_same_outputs() -> Result<()> {
    for_each_family(|model, run, pattern, layers| {
        let values = trained_values(&with_new_branches(run, pattern)?.1)?;
        let (outputs, _) = with_values(run, patterns(pattern), &values, DType::F32)?;
        let merged = merge(values.clone(), &patterns(pattern))?;
        assert_eq!(merged.len(), values.len() - 2 * layers, "{model}");
        let (merged, _) = with_values(run, Vec::new(), &merged, DType::F32)?;
        let error = relative_error(&all(&outputs)?, &all(&merged)?);
        assert!(error < 1e-5, "{model}: {error:e}");
        let (plain, _) = with_new_branches(run, pattern)?;
        assert!(relative_error(&all(&plain)?, &all(&merged)?) > 1e-3, "{model}: no effect");
        Ok(())
    })
}

/// Branches on quantised weights: the outputs and gradients of a model with the dequantised
/// weights.
#[test]
fn quantised_weights_of_every_family_equal_their_dequantised_values() -> Result<()> {
    for_each_family(|model, run, pattern, layers| {
        let build = |quantised: &[&str], values: Option<&Values>| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let quantised = quantised.iter().map(ToString::to_string).collect();
            let mut builder = ParameterBuilder::on_cpu(11)
                .with_low_rank(patterns(pattern))
                .with_quantised(quantised);
            if let Some(values) = values {
                let path = folder.path().join("model.safetensors");
                save(&path, values.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
                builder = builder.with_weights(Arc::new(Weights::open(&path)?));
            }
            Ok::<_, ModelError>((run(&builder)?, builder.finish()?))
        };
        let values = trained_values(&build(&[], None)?.1)?;
        let (outputs, parameters) = build(&[pattern], Some(&values))?;
        let mut dequantised = values.clone();
        for parameter in parameters.iter() {
            let (name, shape) = (parameter.name(), parameter.tensor().shape());
            let tensor = Tensor::from_vec(parameter.to_vec()?, shape, &Device::Cpu)?;
            dequantised.insert(name.to_string(), tensor);
        }
        let changed = values.iter().filter(|(name, value)| {
            let difference = |a: &Tensor, b: &Tensor| -> Result<f32> {
                Ok(relative_error(&to_host(a)?, &to_host(b)?) as f32)
            };
            difference(&dequantised[*name], value).is_ok_and(|error| error > 1e-3)
        });
        assert_eq!(changed.count(), layers, "{model}");
        let (expected, dense) = build(&[], Some(&dequantised))?;
        assert!(relative_error(&all(&outputs)?, &all(&expected)?) < 1e-6, "{model}");
        let flat = |gradients: BTreeMap<String, Vec<f32>>| -> Vec<f32> {
            gradients.into_values().flatten().collect()
        };
        let found = flat(gradients(&outputs, &parameters)?);
        let expected = flat(gradients(&expected, &dense)?);
        assert!(relative_error(&found, &expected) < 1e-5, "{model}");
        Ok(())
    })
}

/// Stacked layers and a feed-forward block with branches, some with a bias and dropout.
#[test]
fn kernels_with_branches_have_correct_gradients() -> Result<()> {
    let input = |shape: &'static [usize], step: f32| {
        let count = shape.iter().product();
        (numbers(count, step).into_iter().map(f64::from).collect::<Vec<_>>(), shape)
    };
    let shapes: [&'static [usize]; 10] =
        [&[5, 4], &[6, 4], &[6], &[2, 4], &[6, 2], &[4, 6], &[3, 6], &[4, 3], &[4, 4], &[1, 4]];
    let inputs: Vec<_> =
        shapes.iter().zip(1..).map(|(shape, i)| input(shape, 0.7 + 0.31 * i as f32)).collect();
    for dropout in [None, Some(Dropout::new(0.4, 3))] {
        check_gradients(&inputs, |t| {
            let branch = |down, up| {
                Some(LowRankParameters { down: &t[down], up: &t[up], scale: 0.7, dropout })
            };
            let first = LinearParameters {
                low_rank: branch(3, 4),
                ..LinearParameters::new(&t[1], Some(&t[2]))
            };
            let second =
                LinearParameters { low_rank: branch(6, 7), ..LinearParameters::new(&t[5], None) };
            let plain = LinearParameters::new(&t[8], None);
            let y = stacked_linear(&t[0], &[plain, first])?;
            let mut chain = Chain::new();
            let x = chain.input(&t[0]);
            let z = chain.feed_forward(x, first, second, Activation::Tanh);
            let weights = chain.stacked_linear(z, &[LinearParameters::new(&t[9], None)]);
            chain.scaled_rows(z, weights);
            Ok(Tensor::cat(&[y, chain.finish()?], 1)?)
        })?;
    }
    Ok(())
}

#[test]
fn patterns_and_values_that_do_not_fit_are_refused() {
    let error = |pattern: &str, settings: LowRank| {
        let pattern = LowRankPattern { pattern: pattern.into(), settings };
        let builder = ParameterBuilder::on_cpu(1).with_low_rank(vec![pattern]);
        let outputs = MODELS[0].1(&builder).and_then(|_| builder.finish());
        outputs.map(|_| ()).unwrap_err().to_string()
    };
    let valid = LowRank { rank: 2, alpha: 3.0, dropout: 0.0 };
    let unmatched = error("**.qeury", valid);
    assert!(unmatched.contains("pattern `**.qeury` matches no linear layer"), "{unmatched}");
    assert!(unmatched.contains("attention.self.query`"), "{unmatched}");
    let norm = error("**.LayerNorm", valid);
    assert!(norm.contains("LayerNorm` is not one"), "{norm}");
    let rank = error("**.query", LowRank { rank: 1000, ..valid });
    assert!(rank.contains("rank 1000 exceeds a width of the layer"), "{rank}");
    assert!(error("**.query", LowRank { rank: 0, ..valid }).contains("rank has to be"));
    assert!(error("**.query", LowRank { alpha: f64::NAN, ..valid }).contains("alpha"));
    assert!(error("**.query", LowRank { dropout: 1.0, ..valid }).contains("dropout"));
}

/// The last pattern that matches a layer applies, and a group can train other parameters.
#[test]
fn the_last_pattern_applies_and_groups_override_the_default() -> Result<()> {
    let bias = ParameterGroup { pattern: "**.bias".into(), rate: 0.5 };
    let compute = Compute::cpu();
    let settings = LowRank { rank: 1, alpha: 1.0, dropout: 0.1 };
    let query = LowRankPattern { pattern: "**.query".into(), settings };
    let builder = ParameterBuilder::new(1, vec![bias], &compute)
        .with_low_rank([patterns("**.self.*"), vec![query]].concat());
    builder.get("other", &[2], Init::Zeros)?;
    MODELS[0].1(&builder)?;
    let parameters = builder.finish()?;
    for parameter in parameters.iter() {
        let name = parameter.name();
        let rate = if name.ends_with(".bias") {
            0.5
        } else {
            f64::from(u8::from(name.contains(".lora_")))
        };
        assert_eq!(parameter.rate(), rate, "{name}");
        if up_projection(name).is_some() {
            let rank = if name.contains(".query.") { 1 } else { 2 };
            assert_eq!(parameter.tensor().dim(0)?, rank, "{name}");
        }
    }
    Ok(())
}
