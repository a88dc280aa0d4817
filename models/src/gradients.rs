//! The gradients of all trainable parameters, in buffers that are reused in every step.
//!
//! `Tensor::backward` allocates a zero gradient for every tensor and adds to it. Here, the fused
//! kernels look up a parameter's buffer by the tensor's id during the backward pass. The first
//! gradient overwrites the buffer; later gradients (another use, another micro-batch) are added.
//! Gradients returned by ordinary candle operations are added afterwards.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use candle_core::{Tensor, TensorId};
use rayon::prelude::*;

use crate::error::Result;
use crate::params::Parameters;

/// One gradient buffer for each trainable parameter, in the order of [`Parameters::trainable`].
pub struct Gradients {
    names: Vec<String>,
    ids: Vec<TensorId>,
    sizes: Vec<usize>,
    sink: Sink,
}

#[derive(Default)]
struct Sink {
    /// The index of each parameter's buffer.
    index: HashMap<TensorId, usize>,
    buffers: Vec<Vec<f32>>,
    /// Whether each buffer holds a gradient of the current step.
    written: Vec<bool>,
}

thread_local! {
    /// The buffers of the backward pass that is running on this thread.
    static ACTIVE: RefCell<Option<Sink>> = const { RefCell::new(None) };
}

impl Gradients {
    /// Creates buffers for the trainable parameters.
    pub fn new(parameters: &Parameters) -> Self {
        let mut gradients =
            Self { names: Vec::new(), ids: Vec::new(), sizes: Vec::new(), sink: Sink::default() };
        for (i, parameter) in parameters.trainable().enumerate() {
            gradients.names.push(parameter.name().to_string());
            gradients.ids.push(parameter.id());
            gradients.sizes.push(parameter.tensor().elem_count());
            gradients.sink.index.insert(parameter.id(), i);
            gradients.sink.buffers.push(vec![0.0; parameter.tensor().elem_count()]);
            gradients.sink.written.push(false);
        }
        gradients
    }

    /// Discards the last step's gradients. The buffers stay allocated.
    pub fn clear(&mut self) {
        self.sink.written.fill(false);
    }

    /// Adds the gradient of `loss` with respect to every trainable parameter.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        let sink = std::mem::take(&mut self.sink);
        // A thread that waits inside a kernel may run another backward pass in between.
        let outer = ACTIVE.replace(Some(sink));
        let store = loss.backward();
        self.sink = ACTIVE.replace(outer).unwrap_or_default();
        let store = match store {
            Ok(store) => store,
            Err(error) => {
                self.restore();
                return Err(error.into());
            }
        };
        for (i, id) in self.ids.iter().enumerate() {
            if let Some(gradient) = store.get_id(*id) {
                let values = gradient.flatten_all()?.to_vec1::<f32>()?;
                let buffer = &mut self.sink.buffers[i];
                if std::mem::replace(&mut self.sink.written[i], true) {
                    add_into(buffer, &values);
                } else {
                    buffer.copy_from_slice(&values);
                }
            }
        }
        Ok(())
    }

    /// Restores the buffers after a failed pass, and discards all gradients.
    fn restore(&mut self) {
        for (buffer, size) in self.sink.buffers.iter_mut().zip(&self.sizes) {
            buffer.resize(*size, 0.0);
        }
        self.clear();
    }

    /// Returns the gradient of the `index`-th trainable parameter; `None` if it received no
    /// gradient.
    pub fn get(&self, index: usize) -> Option<&[f32]> {
        self.sink.written[index].then(|| self.sink.buffers[index].as_slice())
    }

    /// Returns the gradient of the parameter with this name.
    pub fn by_name(&self, name: &str) -> Option<&[f32]> {
        self.names.iter().position(|n| n == name).and_then(|i| self.get(i))
    }

    /// Returns the number of trainable parameters.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are no trainable parameters.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the Euclidean norm of all gradients, in f64. It is the same for any number of
    /// threads.
    pub fn global_norm(&self) -> f64 {
        let squares = (0..self.len()).filter_map(|i| self.get(i)).map(|gradient| {
            let blocks: Vec<f64> = gradient
                .par_chunks(1 << 14)
                .map(|block| block.iter().map(|g| f64::from(*g) * f64::from(*g)).sum())
                .collect();
            blocks.iter().sum::<f64>()
        });
        squares.sum::<f64>().sqrt()
    }

    /// Returns the names of trainable parameters without a gradient, or with a gradient that is all
    /// zero or not finite.
    pub fn missing_or_invalid(&self) -> Vec<(String, GradientFault)> {
        let fault = |i| match self.get(i) {
            None => Some(GradientFault::Missing),
            Some(g) if g.iter().any(|v| !v.is_finite()) => Some(GradientFault::NotFinite),
            Some(g) if g.iter().all(|v| *v == 0.0) => Some(GradientFault::Zero),
            Some(_) => None,
        };
        let names = self.names.iter().enumerate();
        names.filter_map(|(i, name)| Some((name.clone(), fault(i)?))).collect()
    }
}

/// A fault of a parameter's gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientFault {
    /// The loss does not depend on the parameter.
    Missing,
    /// The gradient contains NaN or infinity.
    NotFinite,
    /// The gradient is zero everywhere.
    Zero,
}

impl fmt::Display for GradientFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "no gradient reaches it",
            Self::NotFinite => "its gradient is not finite",
            Self::Zero => "its gradient is all zero",
        })
    }
}

/// Takes the buffer of tensor `id` out of the running backward pass. The flag is true if the buffer
/// already holds a gradient to add to. Returns `None` if there is no such buffer, or if it is
/// already taken.
pub(crate) fn take_buffer(id: TensorId) -> Option<(Vec<f32>, bool)> {
    ACTIVE.with_borrow_mut(|active| {
        let sink = active.as_mut()?;
        let index = *sink.index.get(&id)?;
        let buffer = std::mem::take(&mut sink.buffers[index]);
        (!buffer.is_empty()).then(|| (buffer, sink.written[index]))
    })
}

/// Puts back a buffer that now holds a gradient.
pub(crate) fn return_buffer(id: TensorId, buffer: Vec<f32>) {
    ACTIVE.with_borrow_mut(|active| {
        if let Some(sink) = active.as_mut()
            && let Some(&index) = sink.index.get(&id)
        {
            sink.buffers[index] = buffer;
            sink.written[index] = true;
        }
    });
}

fn add_into(sum: &mut [f32], values: &[f32]) {
    sum.par_chunks_mut(1 << 14).zip(values.par_chunks(1 << 14)).for_each(|(sum, values)| {
        for (s, v) in sum.iter_mut().zip(values) {
            *s += v;
        }
    });
}
