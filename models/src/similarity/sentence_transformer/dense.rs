//! The Dense module: a linear layer with an activation, before or after pooling.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use serde::Deserialize;

use super::parse_json;
use crate::compute::Compute;
use crate::config::{bad_field, check_sizes};
use crate::error::Result;
use crate::kernels::Mode;
use crate::layers::Linear;
use crate::params::{ParameterBuilder, ParameterGroup};
use crate::weights::Weights;

/// An activation, of any shape.
type Activation = fn(&Tensor) -> candle_core::Result<Tensor>;

/// The supported activations by their class names in `torch.nn`, all with their default parameters.
const ACTIVATIONS: [(&str, Activation); 9] = [
    ("Identity", |x| Ok(x.clone())),
    ("Tanh", Tensor::tanh),
    ("ReLU", Tensor::relu),
    ("GELU", Tensor::gelu_erf),
    ("Sigmoid", candle_nn::ops::sigmoid),
    ("SiLU", Tensor::silu),
    ("LeakyReLU", |x| candle_nn::ops::leaky_relu(x, 0.01)),
    ("ELU", |x| x.elu(1.0)),
    ("ReLU6", |x| x.clamp(0f32, 6f32)),
];

/// The feature that a module transforms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    /// The states of all tokens.
    Tokens,
    /// The vector of a text.
    Sentence,
}

impl Feature {
    /// Returns the feature of a module, given the names of its input and output in the file.
    pub(crate) fn of(input: Option<&str>, output: Option<&str>, name: &str) -> Result<Self> {
        let input = input.unwrap_or("sentence_embedding");
        match (input, output.unwrap_or(input)) {
            ("sentence_embedding", "sentence_embedding") => Ok(Self::Sentence),
            ("token_embeddings", "token_embeddings") => Ok(Self::Tokens),
            (input, output) => {
                let reason = format!(
                    "a module from `{input}` to `{output}` is not supported; both must be \
                     sentence_embedding, or both token_embeddings"
                );
                Err(bad_field(name, reason))
            }
        }
    }
}

/// The `config.json` of a Dense module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseConfig {
    /// The input width.
    pub in_features: usize,
    /// The output width.
    pub out_features: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
    /// The class of the activation after the linear layer; Tanh if the file names none.
    pub activation: &'static str,
    /// Whether the input is added to the output. If their widths differ, a linear layer projects
    /// the input.
    pub use_residual: bool,
    pub(crate) feature: Feature,
}

impl DenseConfig {
    /// Parses the file; `name` names it in errors.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for an unsupported activation or
    /// feature, a width of 0, or text that is not valid.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct ConfigFile {
            in_features: usize,
            out_features: usize,
            bias: Option<bool>,
            activation_function: Option<String>,
            use_residual: Option<bool>,
            module_input_name: Option<String>,
            module_output_name: Option<String>,
        }
        let file: ConfigFile = parse_json(text, name, "the configuration of a Dense module")?;
        let sizes = [("in_features", file.in_features), ("out_features", file.out_features)];
        check_sizes(&sizes).map_err(|error| bad_field(name, error.to_string()))?;
        let activation = match file.activation_function.as_deref() {
            None => "Tanh",
            Some(class) => activation_of(class).ok_or_else(|| {
                let supported = ACTIVATIONS.map(|(name, _)| name).join(", ");
                let reason = format!(
                    "the activation `{class}` is not supported; use one of torch.nn: {supported}"
                );
                bad_field(name, reason)
            })?,
        };
        let (input, output) = (file.module_input_name, file.module_output_name);
        Ok(Self {
            in_features: file.in_features,
            out_features: file.out_features,
            bias: file.bias.unwrap_or(true),
            activation,
            use_residual: file.use_residual.unwrap_or(false),
            feature: Feature::of(input.as_deref(), output.as_deref(), name)?,
        })
    }
}

/// Returns the activation of a Python class path; `None` if it is not supported.
fn activation_of(class: &str) -> Option<&'static str> {
    let name = class.strip_prefix("torch.nn.")?.rsplit('.').next()?;
    ACTIVATIONS.iter().map(|(class, _)| *class).find(|class| *class == name)
}

/// A Dense module with its weights.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    pub(crate) config: DenseConfig,
    linear: Linear,
    /// The projection of the input; `None` without a residual or if the widths are equal.
    residual: Option<Linear>,
}

impl Dense {
    /// Opens the weights of a Dense module.
    pub(crate) fn open(config: DenseConfig, weights: &Path) -> Result<Self> {
        let builder = frozen_builder(weights)?;
        let (d_in, d_out) = (config.in_features, config.out_features);
        let new_linear = if config.bias { Linear::new } else { Linear::without_bias };
        let linear = new_linear(d_in, d_out, 0.0, &builder.pp("linear"))?;
        let residual = if config.use_residual && d_in != d_out {
            Some(Linear::without_bias(d_in, d_out, 0.0, &builder.pp("residual"))?)
        } else {
            None
        };
        Ok(Self { config, linear, residual })
    }

    /// Applies the module: `[N, D_in]` → `[N, D_out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut activated = self.linear.forward(x, &Mode::inference())?;
        if let Some((_, f)) = ACTIVATIONS.iter().find(|(class, _)| *class == self.config.activation)
        {
            activated = f(&activated)?;
        }
        Ok(match (self.config.use_residual, &self.residual) {
            (false, _) => activated,
            (true, None) => (activated + x)?,
            (true, Some(residual)) => (activated + residual.forward(x, &Mode::inference())?)?,
        })
    }
}

/// Returns a builder of frozen parameters with a module's weights file.
pub(crate) fn frozen_builder(weights: &Path) -> Result<ParameterBuilder> {
    let frozen = vec![ParameterGroup::all_frozen()];
    let builder = ParameterBuilder::new(0, frozen, &Compute::cpu());
    Ok(builder.with_weights(Arc::new(Weights::open(weights)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_unsupported_setting() -> Result<()> {
        let read = |other_fields: &str| {
            let text = format!(r#"{{"in_features": 3, "out_features": 2{other_fields}}}"#);
            DenseConfig::parse(&text, "2_Dense/config.json")
        };
        assert_eq!(read("")?.activation, "Tanh");
        let with_activation = |class: &str| read(&format!(r#", "activation_function": "{class}""#));
        for name in ["linear.Identity", "activation.GELU"] {
            let class = format!("torch.nn.modules.{name}");
            assert!(name.ends_with(with_activation(&class)?.activation), "{name}");
        }
        for other in ["torch.nn.modules.activation.PReLU", "my.Tanh", "torch.tanh"] {
            let error = with_activation(other).expect_err(other).to_string();
            assert!(error.contains(other) && error.starts_with("2_Dense/"), "{error}");
        }
        assert_eq!(read(r#", "module_input_name": "token_embeddings""#)?.feature, Feature::Tokens);
        let error = read(r#", "module_output_name": "x""#).expect_err("x").to_string();
        assert!(error.contains("`x`"), "{error}");
        assert!(DenseConfig::parse(r#"{"in_features": 0, "out_features": 2}"#, "d").is_err());
        Ok(())
    }
}
