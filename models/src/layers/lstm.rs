//! A long short-term memory network (LSTM) over packed sequences.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels;
use crate::params::{Init, ParameterBuilder};

/// Layers of an LSTM, as in `torch.nn.LSTM`: each layer reads the hidden states of the previous
/// layer. The parameters are `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on.
/// They get no low-rank branch and stay unquantised.
#[derive(Debug, Clone)]
pub struct Lstm {
    layers: Vec<Layer>,
    width: usize,
}

/// One layer of width `H` with inputs of width `D`.
#[derive(Debug, Clone)]
struct Layer {
    /// `[4 H, D]`.
    input: Tensor,
    /// `[4 H, H]`.
    recurrent: Tensor,
    /// `[4 H]` each.
    biases: [Tensor; 2],
}

/// The states of sequences between two steps: for each layer, the hidden and the cell states
/// `[N, H]`.
#[derive(Debug, Clone)]
pub struct LstmState(Vec<[Tensor; 2]>);

impl LstmState {
    /// Selects sequences by index.
    pub(crate) fn select(&self, sequences: &Tensor) -> Result<Self> {
        let select = |layer: &[Tensor; 2]| {
            let [hidden, cell] = layer;
            Ok([hidden.index_select(sequences, 0)?, cell.index_select(sequences, 0)?])
        };
        Ok(Self(self.0.iter().map(select).collect::<Result<_>>()?))
    }

    /// Concatenates the sequences of two states.
    pub(crate) fn join(&self, other: &Self) -> Result<Self> {
        let join = |([hidden, cell], [other_hidden, other_cell]): (&[Tensor; 2], &[Tensor; 2])| {
            Ok([Tensor::cat(&[hidden, other_hidden], 0)?, Tensor::cat(&[cell, other_cell], 0)?])
        };
        Ok(Self(self.0.iter().zip(&other.0).map(join).collect::<Result<_>>()?))
    }
}

impl Lstm {
    /// An LSTM of `layers` layers of width `H` with inputs of width `D`. Without published weights,
    /// all parameters are uniform up to `1 / sqrt(H)`, as in PyTorch.
    pub fn new(
        d_in: usize,
        width: usize,
        layers: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let init = Init::Uniform((width as f64).powf(-0.5));
        let layer = |i: usize| {
            let d_in = if i == 0 { d_in } else { width };
            let weight = |name: &str, columns: usize| {
                builder.get(&format!("weight_{name}_l{i}"), &[4 * width, columns], init)
            };
            let bias = |name: &str| builder.get(&format!("bias_{name}_l{i}"), &[4 * width], init);
            Ok(Layer {
                input: weight("ih", d_in)?,
                recurrent: weight("hh", width)?,
                biases: [bias("ih")?, bias("hh")?],
            })
        };
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_>>()?, width })
    }

    /// Returns the state of `sequences` sequences before the first step: zeros.
    pub(crate) fn start(&self, sequences: usize, like: &Tensor) -> Result<LstmState> {
        let zeros = || Tensor::zeros((sequences, self.width), like.dtype(), like.device());
        let layer = |_| Ok([zeros()?, zeros()?]);
        Ok(LstmState((0..self.layers.len()).map(layer).collect::<Result<_>>()?))
    }

    /// Runs packed sequences of these `lengths` from their first step: `[T, D]` → `[T, H]`.
    ///
    /// # Errors
    /// If a length is 0.
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let start = self.start(lengths.len(), x)?;
        let mut x = x.clone();
        for (layer, before) in self.layers.iter().zip(&start.0) {
            x = layer.forward(&x, before, lengths, self.width)?[0].clone();
        }
        Ok(x)
    }

    /// Runs one step of `N` sequences: `[N, D]` → `[N, H]`, and the state after the step.
    pub(crate) fn step(&self, x: &Tensor, before: &LstmState) -> Result<(Tensor, LstmState)> {
        let lengths = vec![1; x.dim(0)?];
        let (mut x, mut after) = (x.clone(), Vec::with_capacity(self.layers.len()));
        for (layer, before) in self.layers.iter().zip(&before.0) {
            let states = layer.forward(&x, before, &lengths, self.width)?;
            x = states[0].clone();
            after.push(states);
        }
        Ok((x, LstmState(after)))
    }
}

impl Layer {
    /// Returns the hidden and the cell states after each step, `[T, H]` each.
    fn forward(
        &self,
        x: &Tensor,
        [hidden, cell]: &[Tensor; 2],
        lengths: &[usize],
        width: usize,
    ) -> Result<[Tensor; 2]> {
        let bias = (&self.biases[0] + &self.biases[1])?;
        let gates = kernels::linear(x, &self.input, Some(&bias))?;
        let states = kernels::lstm(&gates, &self.recurrent, (hidden, cell), lengths)?;
        Ok([
            states.narrow(1, 0, width)?.contiguous()?,
            states.narrow(1, width, width)?.contiguous()?,
        ])
    }
}
