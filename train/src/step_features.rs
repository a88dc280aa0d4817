//! Contrastive losses over all examples of a step, for any size of its micro-batches
//! (`batch.negatives = "step"`).
//!
//! 1. Compute the features of all micro-batches, detached from their graphs.
//! 2. For each micro-batch, compute its features again with their graph, and the loss of the whole
//!    step.
//!
//! The gradients sum to the gradient of the loss. This needs only the memory of one micro-batch,
//! but a second forward pass.
//!
//! Source: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory
//! Limited Setup", 2021 (GradCache).

use candle_core::{DType, Device, Tensor};
use engram_models::compute::to_host;
use serde::{Deserialize, Serialize};

use crate::distributed::{self, Ranks, message};
use crate::error::{Result, TrainError};
use crate::study::StudyResult;

/// The features of a micro-batch, such as its image embeddings.
#[derive(Debug, Clone)]
pub struct Features {
    /// The number of examples in the micro-batch.
    pub examples: usize,
    /// Tensors `[rows, …]`. They agree between all micro-batches of a step in number and in all
    /// dimensions except the number of rows.
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
    /// Collects the features of all ranks. `own` are the features of this rank's micro-batches.
    /// Returns `None` if no micro-batch of any rank has features.
    pub(crate) fn gather(own: Vec<Option<Features>>, ranks: &Ranks) -> Result<Option<Self>> {
        let none = || Features { examples: 0, tensors: Vec::new() };
        let own = own.into_iter().map(|features| features.unwrap_or_else(none));
        let detached = own.map(|Features { examples, tensors }| {
            let tensors = tensors.iter().map(|tensor| tensor.detach().to_dtype(DType::F32));
            Ok(Features { examples, tensors: tensors.collect::<candle_core::Result<_>>()? })
        });
        let own = detached.collect::<candle_core::Result<Vec<Features>>>().map_err(failed)?;
        let micro_batches = if ranks.size() > 1 { of_all_ranks(&own, ranks)? } else { own };
        let has_features = micro_batches.iter().any(|features| !features.tensors.is_empty());
        Ok(has_features.then_some(Self { micro_batches, current: 0 }))
    }

    /// Checks that all micro-batches have the same number of tensors.
    pub(crate) fn check(&self) -> StudyResult<()> {
        let count = |features: &Features| features.tensors.len();
        let first = count(&self.micro_batches[0]);
        match self.micro_batches.iter().position(|features| count(features) != first) {
            None => Ok(()),
            Some(other) => Err(format!(
                "micro-batch {other} has {} feature tensors, and micro-batch 0 has {first}; \
                 `StudyExtension::features` must return the same number for all micro-batches of a step",
                count(&self.micro_batches[other])
            )
            .into()),
        }
    }

    /// Selects the micro-batch whose loss is computed.
    pub(crate) fn select(&mut self, micro_batch: usize) {
        self.current = micro_batch;
    }

    /// Returns the rows of a feature of all micro-batches, in order. `own` has the rows of this
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

    /// Returns a parameter of the loss itself, such as the temperature. It is detached in all
    /// micro-batches but the first, because its gradient is the same in all and must count once.
    #[must_use]
    pub fn parameter(&self, parameter: &Tensor) -> Tensor {
        if self.current == 0 { parameter.clone() } else { parameter.detach() }
    }

    /// Scales the gradient of the loss and keeps its value. The trainer averages gradients,
    /// weighted by examples; here they must be summed.
    ///
    /// # Errors
    /// If a device fails.
    pub fn loss(&self, loss: &Tensor) -> candle_core::Result<Tensor> {
        let examples: usize = self.micro_batches.iter().map(|features| features.examples).sum();
        let own = self.micro_batches[self.current].examples.max(1);
        let scale = examples as f64 / own as f64;
        // The difference is 0.
        loss.detach() + ((loss - loss.detach())? * scale)?
    }
}

/// The features of the micro-batches of all ranks, in order.
fn of_all_ranks(own: &[Features], ranks: &Ranks) -> Result<Vec<Features>> {
    let (mut shapes, mut floats) = (Vec::new(), Vec::new());
    // A rank without a micro-batch computes no loss.
    let tensor = own.iter().flat_map(|features| &features.tensors).next();
    let device = tensor.map_or(Device::Cpu, |tensor| tensor.device().clone());
    for Features { examples, tensors } in own {
        let dims = tensors.iter().map(|tensor| tensor.dims().to_vec()).collect();
        shapes.push(Shapes { examples: *examples, tensors: dims });
        for tensor in tensors {
            floats.extend(to_host(tensor).map_err(failed)?);
        }
    }
    let bad_message = |reason: String| distributed::failed(reason.into());
    let bytes = message::pack(&shapes, &floats).map_err(bad_message)?;
    let mut all = Vec::new();
    for bytes in ranks.gather_bytes(bytes)? {
        let (shapes, floats): (Vec<Shapes>, _) = message::unpack(&bytes).map_err(bad_message)?;
        let mut rest = floats.as_slice();
        for Shapes { examples, tensors } in shapes {
            let tensors = tensors.into_iter().map(|dims| {
                let floats = rest.split_off(..dims.iter().product()).unwrap_or_default();
                Tensor::from_slice(floats, dims, &device)
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
