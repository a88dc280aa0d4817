//! Contrastive losses over all examples of a step, for any size of its micro-batches
//! (`batch.negatives = "step"`).
//!
//! First, the features of all micro-batches are computed without their graphs. Then each
//! micro-batch computes the loss of the whole step again, with the graph of its own features. The
//! sum of the gradients is the gradient of the loss. So the memory is that of one micro-batch, for
//! the time of a second forward pass.
//!
//! Source: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory
//! Limited Setup", 2021 (GradCache).

use candle_core::{DType, Device, Tensor};
use engram_models::compute::to_host;
use serde::{Deserialize, Serialize};

use crate::distributed::{self, Ranks, message};
use crate::error::{Result, TrainError};

/// The features of a micro-batch, such as its image embeddings.
#[derive(Debug, Clone)]
pub struct Features {
    /// The number of examples in the micro-batch.
    pub examples: usize,
    /// Tensors `[rows, …]`. All micro-batches of a step have the same number of tensors, and equal
    /// dimensions but for the number of rows.
    pub tensors: Vec<Tensor>,
}

/// The features of all micro-batches of a step, without their graphs.
#[derive(Debug)]
pub struct StepFeatures {
    micro_batches: Vec<Features>,
    /// The micro-batch whose loss is computed.
    current: usize,
}

/// The shapes of [`Features`].
#[derive(Serialize, Deserialize)]
struct Shapes {
    examples: usize,
    tensors: Vec<Vec<usize>>,
}

impl StepFeatures {
    /// Collects the features of all ranks. `own` has those of this rank's micro-batches. `None` if
    /// no micro-batch has features.
    pub(crate) fn gather(own: Vec<Features>, ranks: &Ranks) -> Result<Option<Self>> {
        let detached = own.into_iter().map(|Features { examples, tensors }| {
            let tensors = tensors.iter().map(|tensor| tensor.detach().to_dtype(DType::F32));
            Ok(Features { examples, tensors: tensors.collect::<candle_core::Result<_>>()? })
        });
        let own = detached.collect::<candle_core::Result<Vec<Features>>>().map_err(failed)?;
        let micro_batches = if ranks.size() > 1 { of_all_ranks(&own, ranks)? } else { own };
        Ok((!micro_batches.is_empty()).then_some(Self { micro_batches, current: 0 }))
    }

    /// Selects the micro-batch whose loss is computed.
    pub(crate) fn select(&mut self, micro_batch: usize) {
        self.current = micro_batch;
    }

    /// Returns the rows of a feature of all micro-batches, in order. `own` has those of this
    /// micro-batch, with their graph.
    ///
    /// # Errors
    /// If the micro-batches have different dimensions.
    pub fn join(&self, feature: usize, own: &Tensor) -> candle_core::Result<Tensor> {
        let own = own.to_dtype(DType::F32)?;
        let of = |(i, features): (usize, &Features)| match i == self.current {
            true => own.clone(),
            false => features.tensors[feature].clone(),
        };
        let all: Vec<Tensor> = self.micro_batches.iter().enumerate().map(of).collect();
        Tensor::cat(&all, 0)
    }

    /// Returns the rows of a feature of all micro-batches, in order, without graphs.
    ///
    /// # Errors
    /// as [`StepFeatures::join`]
    pub fn all(&self, feature: usize) -> candle_core::Result<Tensor> {
        self.join(feature, &self.micro_batches[self.current].tensors[feature])
    }

    /// Returns a parameter of the loss that is not a parameter of the features, such as the
    /// temperature. Its gradient is that of the first micro-batch: all micro-batches have the same
    /// one.
    #[must_use]
    pub fn parameter(&self, parameter: &Tensor) -> Tensor {
        if self.current == 0 { parameter.clone() } else { parameter.detach() }
    }

    /// Scales the gradient of the loss of the step, and keeps its value: the trainer averages the
    /// gradients of micro-batches by their numbers of examples, but these are added.
    ///
    /// # Errors
    /// If a device fails.
    pub fn loss(&self, loss: &Tensor) -> candle_core::Result<Tensor> {
        let examples: usize = self.micro_batches.iter().map(|features| features.examples).sum();
        let scale = examples as f64 / self.micro_batches[self.current].examples as f64;
        // The difference is 0.
        loss.detach() + ((loss - loss.detach())? * scale)?
    }
}

/// The features of the micro-batches of all ranks, in order.
fn of_all_ranks(own: &[Features], ranks: &Ranks) -> Result<Vec<Features>> {
    let (mut shapes, mut numbers) = (Vec::new(), Vec::new());
    // A rank without a micro-batch computes no loss.
    let tensor = own.iter().flat_map(|features| &features.tensors).next();
    let device = tensor.map_or(Device::Cpu, |tensor| tensor.device().clone());
    for Features { examples, tensors } in own {
        let dims = tensors.iter().map(|tensor| tensor.dims().to_vec()).collect();
        shapes.push(Shapes { examples: *examples, tensors: dims });
        for tensor in tensors {
            numbers.extend(to_host(tensor).map_err(failed)?);
        }
    }
    let bad_message = |reason: String| distributed::failed(reason.into());
    let bytes = message::pack(&shapes, &numbers).map_err(bad_message)?;
    let mut all = Vec::new();
    for bytes in ranks.gather_bytes(bytes)? {
        let (shapes, numbers): (Vec<Shapes>, _) = message::unpack(&bytes).map_err(bad_message)?;
        let mut rest = numbers.as_slice();
        for Shapes { examples, tensors } in shapes {
            let tensors = tensors.into_iter().map(|dims| {
                let numbers = rest.split_off(..dims.iter().product()).unwrap_or_default();
                Tensor::from_slice(numbers, dims, &device)
            });
            let tensors = tensors.collect::<candle_core::Result<_>>().map_err(failed)?;
            all.push(Features { examples, tensors });
        }
    }
    Ok(all)
}

fn failed(error: candle_core::Error) -> TrainError {
    TrainError::Model(error.into())
}
