//! Adversarial weight perturbation (Wu et al., 2020), as the winner of the patent-phrase
//! competition used it.
//!
//! After the first backward pass, each selected tensor `w` takes a step along its gradient `g`:
//! `w + η · g/(‖g‖ + 1e-6) · (‖w‖ + 1e-6)`, clipped element by element to `w ± ε·|w|`. `η` and
//! `ε` are `learning_rate` and `epsilon` of the recipe's `[awp]`. A second pass computes the
//! gradient at the perturbed weights. This gradient replaces the first one. Then the original
//! weights are restored exactly.

use candle_core::Tensor;
use engram_models::ModelError;
use engram_models::gradients::Gradients;
use engram_models::params::{Parameters, path_matches};

use crate::error::Result;
use crate::optimiser::StateValues;
use crate::recipe::AwpSettings;

/// Added to norms, so that no division is by 0.
const TINY: f64 = 1e-6;

/// The weights before the perturbation, by index among the trainable parameters.
pub(crate) struct Perturbation {
    saved: Vec<(usize, StateValues)>,
}

impl Perturbation {
    /// Perturbs the weights that match `settings.patterns` along their gradients, multiplied by
    /// `gradient_scale`. Weights with a zero gradient stay unchanged.
    pub(crate) fn apply(
        settings: &AwpSettings,
        parameters: &Parameters,
        gradients: &Gradients,
        gradient_scale: f64,
    ) -> Result<Self> {
        let mut saved = Vec::new();
        for (i, parameter) in parameters.trainable().enumerate() {
            let name = parameter.name().as_bytes();
            let is_selected = settings.patterns.iter().any(|p| path_matches(p.as_bytes(), name));
            if !is_selected {
                continue;
            }
            if let Some(gradient) = gradients.on_gpu(i) {
                let values = parameter.tensor().detach();
                let original = values.copy().map_err(ModelError::from)?;
                let perturbed = perturbed(settings, &original, gradient, gradient_scale);
                if let Some(perturbed) = perturbed.map_err(ModelError::from)? {
                    parameter.set(&perturbed)?;
                    saved.push((i, StateValues::OnGpu(original)));
                }
                continue;
            }
            let Some(gradient) = gradients.get(i) else { continue };
            let gradient_norm = norm(gradient) * gradient_scale;
            if gradient_norm == 0.0 {
                continue;
            }
            saved.push((i, StateValues::Host(parameter.read(<[f32]>::to_vec)?)));
            let epsilon = settings.epsilon as f32;
            parameter.update(&mut |values| {
                let step_length = settings.learning_rate * (norm(values) + TINY);
                let step = (step_length / (gradient_norm + TINY) * gradient_scale) as f32;
                for (value, gradient) in values.iter_mut().zip(gradient) {
                    let max_change = epsilon * value.abs();
                    let perturbed = *value + step * gradient;
                    *value = perturbed.max(*value - max_change).min(*value + max_change);
                }
            })?;
        }
        Ok(Self { saved })
    }

    /// Restores the weights.
    pub(crate) fn restore(self, parameters: &Parameters) -> Result<()> {
        let mut saved = self.saved.into_iter().peekable();
        for (i, parameter) in parameters.trainable().enumerate() {
            if let Some((_, original)) = saved.next_if(|(index, _)| *index == i) {
                match original {
                    StateValues::Host(original) => {
                        parameter.update(&mut |values| values.copy_from_slice(&original))?;
                    }
                    StateValues::OnGpu(original) => parameter.set(&original)?,
                }
            }
        }
        Ok(())
    }
}

/// The perturbed weights, on the device of `weights`. `None` for a zero gradient.
fn perturbed(
    settings: &AwpSettings,
    weights: &Tensor,
    gradient: &Tensor,
    gradient_scale: f64,
) -> candle_core::Result<Option<Tensor>> {
    let norm = |x: &Tensor| -> candle_core::Result<f64> {
        Ok(f64::from(x.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt())
    };
    let gradient_norm = norm(gradient)? * gradient_scale;
    if gradient_norm == 0.0 {
        return Ok(None);
    }
    let step_length = settings.learning_rate * (norm(weights)? + TINY);
    let step = step_length / (gradient_norm + TINY) * gradient_scale;
    let max_change = (weights.abs()? * settings.epsilon)?;
    let perturbed = (weights + (gradient * step)?)?;
    let perturbed = perturbed.maximum(&(weights - &max_change)?)?;
    Ok(Some(perturbed.minimum(&(weights + max_change)?)?))
}

/// The Euclidean norm.
fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use engram_models::compute::to_host;
    use engram_models::params::{Init, ParameterBuilder};

    #[test]
    fn perturbed_weights_stay_within_epsilon_and_are_restored_exactly() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(3);
        let weight = builder.get("dense.weight", &[4, 3], Init::Normal(1.0))?;
        let bias = builder.get("dense.bias", &[3], Init::Normal(1.0))?;
        let parameters = builder.finish()?;
        let mut gradients = Gradients::new(&parameters);
        let loss = weight.sqr().and_then(|w| w.broadcast_mul(&bias)?.sum_all());
        gradients.backward(&loss.map_err(ModelError::from)?)?;
        let values =
            || -> Result<Vec<Vec<f32>>> { parameters.iter().map(|p| Ok(p.to_vec()?)).collect() };
        let before = values()?;
        let gradient = gradients.get(0).unwrap_or_default().to_vec();

        // A short step is not clipped: its length relative to the weights' norm is the learning
        // rate.
        let settings = AwpSettings { learning_rate: 1e-3, epsilon: 1e9, ..AwpSettings::default() };
        let perturbation = Perturbation::apply(&settings, &parameters, &gradients, 0.5)?;
        let after = values()?;
        let on_device = |settings: &AwpSettings, scale| -> Result<Vec<f32>> {
            let gradient = Tensor::from_slice(&gradient, (4, 3), &Device::Cpu);
            let original = Tensor::from_slice(&before[0], (4, 3), &Device::Cpu);
            let [gradient, original] = [gradient, original].map(|x| x.expect("a tensor"));
            let perturbed = perturbed(settings, &original, &gradient, scale);
            let perturbed = perturbed.map_err(ModelError::from)?.expect("a gradient");
            Ok(to_host(&perturbed).map_err(ModelError::from)?)
        };
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(&on_device(&settings, 0.5)?, &after[0]));
        let scale = 1e-3 * norm(&before[0]) / norm(&gradient);
        for ((before, after), gradient) in before[0].iter().zip(&after[0]).zip(&gradient) {
            let expected = f64::from(*before) + scale * f64::from(*gradient);
            assert!((f64::from(*after) - expected).abs() < 1e-6, "{after} for {expected}");
        }
        assert_eq!(before[1], after[1]);
        perturbation.restore(&parameters)?;
        assert_eq!(before, values()?);

        // A long step is clipped to epsilon times the weight.
        let settings = AwpSettings { learning_rate: 1e6, epsilon: 0.01, ..AwpSettings::default() };
        let perturbation = Perturbation::apply(&settings, &parameters, &gradients, 1.0)?;
        assert!(close(&on_device(&settings, 1.0)?, &values()?[0]));
        for (before, after) in before[0].iter().zip(&values()?[0]) {
            assert!(((after - before).abs() - 0.01 * before.abs()).abs() < 1e-6);
        }
        perturbation.restore(&parameters)?;
        assert_eq!(before, values()?);
        Ok(())
    }
}
