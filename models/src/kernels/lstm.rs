//! The recurrence of a long short-term memory (LSTM) layer over packed sequences.
//!
//! The gates of a step are `W_ih x + W_hh h + b` in the order input, forget, cell, output, as in
//! PyTorch. The caller computes `W_ih x + b` for all steps at once; this kernel adds `W_hh h` step
//! by step, with one matrix product for all sequences that have not ended.

use std::sync::Arc;

use candle_core::{Result, Shape, Tensor};

use super::activation::{Activation, activation, sigmoid};
use super::composite::{rows_product, select_rows};
use super::math::tanh;
use super::matmul::{Matrix, matmul};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::add;
use super::segments::packed_spans;
use crate::compute::full_precision;

/// Runs an LSTM layer: input gates `[T, 4 H]`, recurrent weight `W_hh` `[4 H, H]`, and the hidden
/// and cell states before the first step, `[N, H]` each → `[T, 2 H]`. Each output row holds the
/// hidden state, then the cell state. Sequence `i` has `lengths[i]` steps, at least one.
///
/// # Errors
/// If the shapes do not match, or a length is 0.
pub fn lstm(
    gates: &Tensor,
    recurrent: &Tensor,
    (hidden, cell): (&Tensor, &Tensor),
    lengths: &[usize],
) -> Result<Tensor> {
    apply(LstmKernel { steps: Steps::new(lengths) }, &[gates, recurrent, hidden, cell])
}

/// The rows of each step, longest sequence first.
struct Steps {
    /// The sequences by descending length.
    order: Vec<usize>,
    /// For each step, the row of each sequence that has this step, in `order`.
    rows: Vec<Vec<usize>>,
    num_rows: usize,
}

/// Saves the gates of each row after their activation, `[T, 4 H]`.
struct LstmKernel {
    steps: Steps,
}

impl Steps {
    fn new(lengths: &[usize]) -> Self {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(lengths[*i]));
        let spans = packed_spans(lengths);
        let running = |step: usize| order.iter().take_while(move |i| lengths[**i] > step);
        let rows = (0..lengths.iter().copied().max().unwrap_or(0))
            .map(|step| running(step).map(|i| spans[*i].start + step).collect())
            .collect();
        Self { rows, num_rows: lengths.iter().sum(), order }
    }

    /// The number of sequences with this step.
    fn running(&self, step: usize) -> usize {
        self.rows.get(step).map_or(0, Vec::len)
    }

    /// Checks the inputs' dimensions, and returns the width `H`.
    fn width(&self, dims: &[&[usize]]) -> Result<usize> {
        let width = dims[1].last().copied().unwrap_or(0);
        let sequences = self.order.len();
        let expected: [&[usize]; 4] = [
            &[self.num_rows, 4 * width],
            &[4 * width, width],
            &[sequences, width],
            &[sequences, width],
        ];
        if width == 0 || dims != expected {
            candle_core::bail!("lstm: inputs of shapes {dims:?}, expected {expected:?}");
        }
        if self.running(0) != sequences {
            candle_core::bail!("lstm: a sequence has no steps");
        }
        Ok(width)
    }

    /// The rows of `[N, H]` values in the order of the steps.
    fn sorted(&self, values: &[f32], width: usize) -> Vec<f32> {
        self.order.iter().flat_map(|i| &values[i * width..][..width]).copied().collect()
    }
}

impl Kernel for LstmKernel {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = self.steps.width(&dims_of(inputs))?;
        let recurrent = Matrix::new(inputs[1].data, 4 * width, width).t();
        let mut hidden = self.steps.sorted(inputs[2].data, width);
        let mut cells = self.steps.sorted(inputs[3].data, width);
        let mut gates = inputs[0].data.to_vec();
        let mut output = vec![0.0; self.steps.num_rows * 2 * width];
        let mut products = vec![0.0; self.steps.order.len() * 4 * width];
        for rows in &self.steps.rows {
            let products = &mut products[..rows.len() * 4 * width];
            let previous = Matrix::new(&hidden, rows.len(), width);
            matmul(1.0, previous, recurrent, 0.0, products, 4 * width);
            let states = hidden.chunks_exact_mut(width).zip(cells.chunks_exact_mut(width));
            let states = states.zip(products.chunks_exact(4 * width)).zip(rows);
            for (((hidden, cell), product), row) in states {
                let gates = &mut gates[row * 4 * width..][..4 * width];
                step(gates, product, cell, hidden);
                let (h, c) = output[row * 2 * width..][..2 * width].split_at_mut(width);
                h.copy_from_slice(hidden);
                c.copy_from_slice(cell);
            }
        }
        Ok((output, Shape::from((self.steps.num_rows, 2 * width)), Box::new(gates)))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, output, gradient) = (pass.inputs, pass.output, pass.gradient);
        let gates = pass.saved::<Vec<f32>>()?;
        let (steps, width) = (&self.steps, inputs[1].dims[1]);
        let recurrent = Matrix::new(inputs[1].data, 4 * width, width);
        let sequences = steps.order.len();
        let (start_hidden, start_cells) =
            (steps.sorted(inputs[2].data, width), steps.sorted(inputs[3].data, width));
        // The gradients of the states after a step, from the later steps.
        let mut d_hidden = vec![0.0; sequences * width];
        let mut d_cells = vec![0.0; sequences * width];
        // The gradients of the gates before their activation, by row and by step.
        let mut d_gates = vec![0.0; gates.len()];
        let mut d_step = vec![0.0; sequences * 4 * width];
        // The hidden state before each row.
        let mut before = vec![0.0; steps.num_rows * width];
        for (index, rows) in steps.rows.iter().enumerate().rev() {
            let sequences_at_step = rows.iter().enumerate().zip(d_step.chunks_exact_mut(4 * width));
            for ((i, row), d_step) in sequences_at_step {
                let state = |row: usize| output[row * 2 * width..][..2 * width].split_at(width);
                let (h_before, c_before) = match index {
                    0 => (&start_hidden[i * width..][..width], &start_cells[i * width..][..width]),
                    _ => state(row - 1),
                };
                before[row * width..][..width].copy_from_slice(h_before);
                let (dy_hidden, dy_cell) = gradient[row * 2 * width..][..2 * width].split_at(width);
                let (d_hidden, d_cell) =
                    (&mut d_hidden[i * width..][..width], &mut d_cells[i * width..][..width]);
                add(dy_hidden, d_hidden);
                add(dy_cell, d_cell);
                let cells = (c_before, state(*row).1);
                step_gradient(
                    &gates[row * 4 * width..][..4 * width],
                    cells,
                    d_hidden,
                    d_cell,
                    d_step,
                );
                d_gates[row * 4 * width..][..4 * width].copy_from_slice(d_step);
            }
            let d_step = Matrix::new(&d_step, rows.len(), 4 * width);
            matmul(1.0, d_step, recurrent, 0.0, &mut d_hidden, width);
        }
        for (input, sorted) in [(2, d_hidden), (3, d_cells)] {
            if let Some(buffer) = &mut input_gradients[input] {
                let sums = buffer.as_sum();
                for (values, i) in sorted.chunks_exact(width).zip(&steps.order) {
                    add(values, &mut sums[i * width..][..width]);
                }
            }
        }
        if let Some(buffer) = &mut input_gradients[1] {
            let (beta, rows) = (buffer.beta(), steps.num_rows);
            let d_gates = Matrix::new(&d_gates, rows, 4 * width).t();
            let before = Matrix::new(&before, rows, width);
            matmul(1.0, d_gates, before, beta, &mut buffer.data, width);
        }
        if let Some(buffer) = &mut input_gradients[0] {
            add(&d_gates, buffer.as_sum());
        }
        Ok(())
    }

    fn is_full_precision(&self) -> bool {
        true
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let dtype = inputs[0].dtype();
        let inputs = inputs.iter().map(full_precision).collect::<Result<Vec<_>>>()?;
        let (steps, width) = (&self.steps, self.steps.width(&tensor_dims(&inputs))?);
        let order: Arc<[u32]> = steps.order.iter().map(|i| *i as u32).collect();
        let (mut hidden, mut cells) =
            (select_rows(&inputs[2], &order)?, select_rows(&inputs[3], &order)?);
        let mut outputs = Vec::with_capacity(steps.rows.len());
        for rows in &steps.rows {
            let rows: Arc<[u32]> = rows.iter().map(|row| *row as u32).collect();
            let products = rows_product(&hidden.narrow(0, 0, rows.len())?, &inputs[1])?;
            let gates = (select_rows(&inputs[0], &rows)? + products)?;
            let gate = |i: usize, f: Activation| activation(&gates.narrow(1, i * width, width)?, f);
            let kept = (gate(1, Activation::Sigmoid)? * cells.narrow(0, 0, rows.len())?)?;
            let added = (gate(0, Activation::Sigmoid)? * gate(2, Activation::Tanh)?)?;
            cells = (kept + added)?;
            hidden = (gate(3, Activation::Sigmoid)? * activation(&cells, Activation::Tanh)?)?;
            outputs.push(Tensor::cat(&[&hidden, &cells], 1)?);
        }
        if outputs.is_empty() {
            return Tensor::zeros((0, 2 * width), dtype, inputs[0].device());
        }
        // The index of each row in the concatenated steps.
        let mut indices = vec![0; steps.num_rows];
        for (index, row) in (0..).zip(steps.rows.iter().flatten()) {
            indices[*row] = index;
        }
        select_rows(&Tensor::cat(&outputs, 0)?, &indices.into())?.to_dtype(dtype)
    }
}

vectorised! {
    /// Runs a step of one sequence: adds the recurrent product to the gates and activates them, and
    /// updates both states.
    fn step(gates: &mut [f32], product: &[f32], cell: &mut [f32], hidden: &mut [f32]) {
        let width = cell.len();
        for (gate, product) in gates.iter_mut().zip(product) {
            *gate += product;
        }
        let (input_forget, cell_output) = gates.split_at_mut(2 * width);
        let (input, forget) = input_forget.split_at_mut(width);
        let (new, output) = cell_output.split_at_mut(width);
        let states = cell.iter_mut().zip(hidden.iter_mut());
        let gates = input.iter_mut().zip(forget).zip(new).zip(output);
        for ((c, h), (((i, f), g), o)) in states.zip(gates) {
            (*i, *f, *g, *o) = (sigmoid(*i), sigmoid(*f), tanh(*g), sigmoid(*o));
            *c = *f * *c + *i * *g;
            *h = *o * tanh(*c);
        }
    }

    /// Computes the gradient of a step's gates before their activation, given the gradients of both
    /// states, and updates `d_cell` to the gradient of the cell state before the step.
    fn step_gradient(
        gates: &[f32],
        (cell_before, cell): (&[f32], &[f32]),
        d_hidden: &[f32],
        d_cell: &mut [f32],
        d_gates: &mut [f32],
    ) {
        let width = cell.len();
        let (input_forget, cell_output) = gates.split_at(2 * width);
        let (input, forget) = input_forget.split_at(width);
        let (new, output) = cell_output.split_at(width);
        let (d_input_forget, d_cell_output) = d_gates.split_at_mut(2 * width);
        let (d_input, d_forget) = d_input_forget.split_at_mut(width);
        let (d_new, d_output) = d_cell_output.split_at_mut(width);
        for j in 0..width {
            let (i, f, g, o) = (input[j], forget[j], new[j], output[j]);
            let t = tanh(cell[j]);
            let dc = d_cell[j] + d_hidden[j] * o * (1.0 - t * t);
            d_input[j] = dc * g * i * (1.0 - i);
            d_forget[j] = dc * cell_before[j] * f * (1.0 - f);
            d_new[j] = dc * i * (1.0 - g * g);
            d_output[j] = d_hidden[j] * t * o * (1.0 - o);
            d_cell[j] = dc * f;
        }
    }
}
