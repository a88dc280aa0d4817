//! Several kernels as one operation of candle's graph.
//!
//! Between two operations, candle allocates a zero gradient for every tensor and adds to it, on its
//! own thread pool. Inside a chain, kernels pass outputs and gradients to each other directly. If
//! two kernels use a value, its gradients are accumulated in place. candle sees one operation.

mod device;
mod steps;

use candle_core::{Result, Tensor};

use super::activation::{Activation, ActivationKernel};
use super::attention::{Attention, AttentionBias, AttentionKernel};
use super::depthwise::Depthwise;
use super::dropout::{Dropout, DropoutKernel};
use super::feed_forward::FeedForward;
use super::gated::{Gated, Half};
use super::linear::{LinearParameters, StackedLinear};
use super::norm::{Norm, NormKernel};
use super::operation::{Kernel, apply, run};
use super::residual::Residual;
use super::rotary::Rotary;
use super::scaled_rows::ScaledRows;
use super::windows::Windows;
use steps::{Source, Step, Steps};

/// A builder for a chain: register the inputs, add kernels, then call [`finish`](Chain::finish).
///
/// The result is the last kernel's output. Several kernels may use a value, but one kernel must not
/// use it twice.
#[derive(Default)]
pub struct Chain {
    inputs: Vec<Tensor>,
    steps: Steps,
}

/// A value within a chain: an input or a kernel's output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value(Source);

impl Chain {
    /// Creates an empty chain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the backward pass computes the outputs of cheap kernels again. They are then
    /// dropped after their last use in the forward pass.
    pub(super) fn selective(mut self, selective: bool) -> Self {
        self.steps.selective = selective;
        self
    }

    /// Registers a tensor as an input of the chain. The same tensor always gets the same value.
    pub fn input(&mut self, tensor: &Tensor) -> Value {
        let existing = self.inputs.iter().position(|input| input.id() == tensor.id());
        Value(Source::Input(existing.unwrap_or_else(|| {
            self.inputs.push(tensor.clone());
            self.inputs.len() - 1
        })))
    }

    /// Adds [`super::stacked_linear`]: `[.., D_in]` → `[.., ΣD_i]`.
    pub fn stacked_linear(&mut self, x: Value, layers: &[LinearParameters<'_>]) -> Value {
        let mut sources = vec![x];
        for layer in layers {
            sources.extend(layer.tensors().map(|tensor| self.input(tensor)));
        }
        self.push(StackedLinear::new(layers), sources)
    }

    /// Adds [`super::self_attention`]: `[T, 3 D]` → `[T, D]`.
    pub fn self_attention(
        &mut self,
        qkv: Value,
        bias: Option<AttentionBias<'_>>,
        options: &Attention,
    ) -> Value {
        self.add_attention(&[qkv], bias, options)
    }

    /// Adds [`super::attention`] of queries `[T_q, D]` to keys and values `[T_k, D]` → `[T_q, D]`.
    pub fn attention(
        &mut self,
        q: Value,
        k: Value,
        v: Value,
        bias: Option<AttentionBias<'_>>,
        options: &Attention,
    ) -> Value {
        self.add_attention(&[q, k, v], bias, options)
    }

    /// Adds attention of the values `q`, `k` and `v`, or of their concatenation.
    fn add_attention(
        &mut self,
        qkv: &[Value],
        bias: Option<AttentionBias<'_>>,
        options: &Attention,
    ) -> Value {
        let mut sources = qkv.to_vec();
        sources.extend(bias.map(|bias| self.input(bias.tensor())));
        self.push(AttentionKernel::new(options, qkv.len() == 3, bias), sources)
    }

    /// Adds [`super::rotary`]: `[T, 3 D]` → `[T, 3 D]`.
    pub fn rotary(&mut self, qkv: Value, angles: &Tensor) -> Value {
        let sources = vec![qkv, self.input(angles)];
        self.push(Rotary, sources)
    }

    /// Adds [`super::norm`]: `[.., D]` → `[.., D]`.
    pub fn norm(&mut self, x: Value, norm: Norm<'_>) -> Value {
        let mut sources = vec![x, self.input(norm.weight)];
        sources.extend(norm.bias.map(|bias| self.input(bias)));
        self.push(NormKernel::new(&norm, false, None), sources)
    }

    /// Adds [`super::gated`]: `[.., 2 M]` → `[.., M]`.
    pub fn gated(&mut self, x: Value, f: Activation) -> Value {
        self.push(Gated { f, gate: Half::First }, vec![x])
    }

    /// Adds [`super::glu`]: `[.., 2 M]` → `[.., M]`.
    pub fn glu(&mut self, x: Value) -> Value {
        self.push(Gated::GLU, vec![x])
    }

    /// Adds [`super::activation`], for a value of any shape.
    pub fn activation(&mut self, x: Value, f: Activation) -> Value {
        self.push(ActivationKernel(f), vec![x])
    }

    /// Adds [`super::depthwise`]: `[T, C]` → `[T', C]`.
    pub fn depthwise(
        &mut self,
        x: Value,
        weight: &Tensor,
        bias: &Tensor,
        lengths: &[usize],
        windows: Windows,
    ) -> Value {
        let sources = vec![x, self.input(weight), self.input(bias)];
        self.push(Depthwise { windows, lengths: lengths.to_vec() }, sources)
    }

    /// Adds [`super::dropout`], for a value of any shape. With `mask` `None`, returns `x`.
    pub fn dropout(&mut self, x: Value, mask: Option<Dropout>) -> Value {
        match mask {
            Some(mask) => self.push(DropoutKernel(mask), vec![x]),
            None => x,
        }
    }

    /// Adds [`super::residual`] of two values of the same shape.
    pub fn residual(&mut self, x: Value, y: Value, dropout: Option<Dropout>) -> Value {
        self.scaled_residual(x, 1.0, y, dropout)
    }

    /// Adds `x + scale dropout(y)` of two values of the same shape.
    pub fn scaled_residual(
        &mut self,
        x: Value,
        scale: f32,
        y: Value,
        dropout: Option<Dropout>,
    ) -> Value {
        self.push(Residual { scale, dropout }, vec![x, y])
    }

    /// Adds [`super::scaled_rows`]: `[T, D]` and `[T, 1]` → `[T, D]`.
    pub fn scaled_rows(&mut self, x: Value, weights: Value) -> Value {
        self.push(ScaledRows, vec![x, weights])
    }

    /// Adds two linear layers with an activation between them, `[.., D]` → `[.., D_out]`: as
    /// [`super::feed_forward`] if both layers have only a dense weight and a bias.
    pub fn feed_forward(
        &mut self,
        x: Value,
        up: LinearParameters<'_>,
        down: LinearParameters<'_>,
        f: Activation,
    ) -> Value {
        if let (Some((w1, b1)), Some((w2, b2))) = (up.weight_and_bias(), down.weight_and_bias()) {
            let sources = [w1, b1, w2, b2].map(|parameter| self.input(parameter));
            return self.push(FeedForward::new(f), [&[x], &sources[..]].concat());
        }
        let hidden = self.stacked_linear(x, &[up]);
        let hidden = self.activation(hidden, f);
        self.stacked_linear(hidden, &[down])
    }

    /// Adds [`super::residual_norm`]: both `[.., D]` → `[.., D]`.
    pub fn residual_norm(
        &mut self,
        x: Value,
        residual: Value,
        norm: Norm<'_>,
        dropout: Option<Dropout>,
    ) -> Value {
        let mut sources = vec![x, residual, self.input(norm.weight)];
        sources.extend(norm.bias.map(|bias| self.input(bias)));
        self.push(NormKernel::new(&norm, true, dropout), sources)
    }

    /// Runs the chain as one differentiable operation and returns the last kernel's output.
    ///
    /// # Errors
    /// The errors of the kernels. Also if there are no kernels, if the output of a kernel before
    /// the last is not used, or if a kernel uses one value twice.
    pub fn finish(self) -> Result<Tensor> {
        let is_used =
            |i| self.steps.list.iter().any(|step| step.sources.contains(&Source::Step(i)));
        if let Some(unused) = (0..self.steps.list.len().saturating_sub(1)).find(|i| !is_used(*i)) {
            candle_core::bail!("chain: the output of kernel {unused} is not used");
        }
        for step in &self.steps.list {
            if (1..step.sources.len()).any(|i| step.sources[..i].contains(&step.sources[i])) {
                candle_core::bail!("chain: {} uses one value twice", step.kernel.name());
            }
        }
        if self.inputs.iter().all(|input| !input.track_op()) {
            return self.run_without_graph();
        }
        let inputs: Vec<&Tensor> = self.inputs.iter().collect();
        apply(self.steps, &inputs)
    }

    /// Runs the kernels without gradients. No state is saved, and each output is dropped after its
    /// last use.
    fn run_without_graph(self) -> Result<Tensor> {
        let list = &self.steps.list;
        let last_use = |source: Source| {
            list.iter().rposition(|step| step.sources.contains(&source)).unwrap_or(0)
        };
        let last_uses: Vec<usize> = (0..list.len()).map(|j| last_use(Source::Step(j))).collect();
        let mut outputs: Vec<Option<Tensor>> = Vec::with_capacity(list.len());
        for (i, step) in list.iter().enumerate() {
            let find = |source: &Source| match *source {
                Source::Input(k) => Some(self.inputs[k].clone()),
                Source::Step(j) if last_uses[j] == i => outputs[j].take(),
                Source::Step(j) => outputs[j].clone(),
            };
            let Some(inputs) = step.sources.iter().map(find).collect::<Option<Vec<Tensor>>>()
            else {
                candle_core::bail!("chain: {} uses a dropped value", step.kernel.name());
            };
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            outputs.push(Some(run(&*step.kernel, &inputs)?));
        }
        match outputs.pop().flatten() {
            Some(output) => Ok(output),
            None => candle_core::bail!("chain: no kernels were added"),
        }
    }

    /// Adds a kernel with these inputs, and returns its output.
    fn push(&mut self, kernel: impl Kernel, sources: Vec<Value>) -> Value {
        let sources = sources.into_iter().map(|value| value.0).collect();
        self.steps.list.push(Step { kernel: Box::new(kernel), sources });
        Value(Source::Step(self.steps.list.len() - 1))
    }
}
