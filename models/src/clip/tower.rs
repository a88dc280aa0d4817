//! The stack of blocks that both encoders of CLIP have: `x + attention(norm(x))`, then
//! `x + feed_forward(norm(x))`.

use candle_core::Tensor;

use super::config::TowerConfig;
use crate::error::Result;
use crate::kernels::{Attention, Mode, Segments, feed_forward, self_attention, stacked_linear};
use crate::layers::{LayerNorm, Linear};
use crate::params::ParameterBuilder;

#[derive(Debug, Clone)]
pub(super) struct Tower {
    config: TowerConfig,
    layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
struct Layer {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Tower {
    /// Parameters under `layers` of the builder's path; fresh ones start as published.
    pub(super) fn new(config: TowerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::new(&config, &builder.pp("layers").pp(i)))
            .collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// `[T, D]` → `[T, D]`; rows attend within their segment, and to no later row if `causal`.
    pub(super) fn forward(
        &self,
        x: Tensor,
        segments: &Segments,
        causal: bool,
        mode: &Mode,
    ) -> Result<Tensor> {
        let TowerConfig { hidden_size, num_attention_heads: num_heads, .. } = self.config;
        let scale = 1.0 / ((hidden_size / num_heads) as f32).sqrt();
        let mut state = mode.cut(x);
        for layer in &self.layers {
            let options = Attention {
                num_heads,
                scale,
                causal,
                segments: segments.clone(),
                dropout: mode.dropout(self.config.attention_dropout),
            };
            state = mode.cut(layer.forward(&state, &options, &self.config)?);
        }
        Ok(state)
    }
}

impl Layer {
    fn new(config: &TowerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, m, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let width_std = (d as f64).powf(-0.5);
        let residual_std = width_std * (2.0 * config.num_hidden_layers as f64).powf(-0.5);
        let own = builder.pp("self_attn");
        let projection = |name: &str, std: f64| Linear::new(d, d, std, &own.pp(name));
        let up_std = (2.0 * d as f64).powf(-0.5);
        Ok(Self {
            attention_norm: LayerNorm::new(d, eps, &builder.pp("layer_norm1"))?,
            query: projection("q_proj", residual_std)?,
            key: projection("k_proj", residual_std)?,
            value: projection("v_proj", residual_std)?,
            output: projection("out_proj", width_std)?,
            feed_forward_norm: LayerNorm::new(d, eps, &builder.pp("layer_norm2"))?,
            up: Linear::new(d, m, up_std, &builder.pp("mlp.fc1"))?,
            down: Linear::new(m, d, residual_std, &builder.pp("mlp.fc2"))?,
        })
    }

    fn forward(&self, x: &Tensor, options: &Attention, config: &TowerConfig) -> Result<Tensor> {
        let parts = [self.query.as_part(), self.key.as_part(), self.value.as_part()];
        let qkv = stacked_linear(&self.attention_norm.forward(x)?, &parts)?;
        let context = self_attention(&qkv, None, options)?;
        let x = (x + self.output.forward(&context)?)?;
        let (up, down) = (self.up.with_bias()?, self.down.with_bias()?);
        let normed = self.feed_forward_norm.forward(&x)?;
        Ok((&x + feed_forward(&normed, up, down, config.hidden_act)?)?)
    }
}
