//! Data-parallel training: several processes, the *ranks*, share the micro-batches of each step.
//!
//! `batch.accumulate` is the number of micro-batches in a step over all ranks. Each rank computes
//! consecutive micro-batches. The ranks then add all gradients in an order that does not depend on
//! the number of ranks. Every rank updates its own copy of the model with the same sum,
//! so the result has the same bytes for any number of ranks, and a run can be resumed on another
//! number of ranks.
//!
//! Rank 0 alone evaluates, decides about stops and writes the run folder. The other ranks need a
//! run folder of their own for temporary data, such as a memory. They read the same recipe, data
//! and weights as rank 0. Rank 0 sends them the checkpoint at which a run is resumed.
//!
//! Gradients on GPUs are added there. With NCCL, each rank needs its own GPU; without it, ranks can
//! share one.
//!
//! A memory can be kept in [shards](sharded_memory): each rank encodes, keeps and searches its
//! share of the entries. Embedding tables can be kept in parts, too.

mod agreement;
pub(crate) mod local_rank;
pub(crate) mod message;
mod reduction;
pub(crate) mod rounds;
pub mod sharded_memory;
pub(crate) mod sharded_tables;
mod sparse;
mod tensors;
pub(crate) mod tree;

use std::fmt;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_models::compute::to_host;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, StudyError, TrainError};
use crate::recipe::Recipe;
pub use reduction::{BUCKET, MicroBatchSum};
use rounds::Rounds;

/// Communication between ranks. All ranks call the same functions in the same order.
///
/// If a rank fails or ends, the functions of the other ranks return an error, or the program ends.
pub trait Collective: Send + Sync {
    /// The number of this rank, counted from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Returns the bytes of rank 0. The bytes of other ranks are ignored.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, StudyError>;

    /// Returns the bytes of every rank, in rank order.
    fn gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, StudyError> {
        self.all_to_all(vec![bytes; self.size()])
    }

    /// Sends the slices `send[r]` to each rank `r`, and receives the slices `receive[r]` from it.
    /// The slices that two ranks exchange have equal numbers and lengths on both sides. The slices
    /// of the own rank are ignored.
    fn exchange(
        &self,
        send: &[Vec<&[f32]>],
        receive: &mut [Vec<&mut [f32]>],
    ) -> Result<(), StudyError>;

    /// Sends the bytes `send[r]` to each rank `r`, and returns the bytes from every rank, in rank
    /// order.
    fn all_to_all(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StudyError>;

    /// Prepares [`Collective::exchange_tensors`] between the GPUs of the ranks. `device` is the GPU
    /// of this rank.
    ///
    /// # Errors
    /// If these GPUs cannot communicate.
    fn connect_gpus(&self, device: &Device) -> Result<(), StudyError> {
        let _ = device;
        Ok(())
    }

    /// Sends the tensor `send[r]` to each rank `r`, and returns the tensors from every rank, in
    /// rank order: `lengths[r]` values from rank `r`. A tensor without values is `None`. Tensors
    /// are vectors in f32 on `device`, which is the device of this rank. If there is a tensor for
    /// the own rank, `lengths` has its length.
    ///
    /// Without another implementation, the values go through [`Collective::exchange`] and the
    /// memory of the host.
    ///
    /// # Errors
    /// If a rank has ended, or a GPU fails.
    fn exchange_tensors(
        &self,
        send: &[Option<Tensor>],
        lengths: &[usize],
        device: &Device,
    ) -> Result<Vec<Option<Tensor>>, StudyError> {
        through_host(self, send, lengths, device)
    }
}

/// Does the work of [`Collective::exchange_tensors`] with [`Collective::exchange`].
///
/// # Errors
/// See [`Collective::exchange_tensors`].
pub fn through_host<C: Collective + ?Sized>(
    collective: &C,
    send: &[Option<Tensor>],
    lengths: &[usize],
    device: &Device,
) -> Result<Vec<Option<Tensor>>, StudyError> {
    let own = collective.rank();
    let values = send.iter().enumerate().map(|(rank, tensor)| match tensor {
        Some(tensor) if rank != own => to_host(tensor).map(|values| vec![values]),
        _ => Ok(Vec::new()),
    });
    let values: Vec<Vec<Vec<f32>>> = values.collect::<Result<_, _>>()?;
    let slices = values.iter().map(|values| values.iter().map(Vec::as_slice).collect());
    let mut received: Vec<Vec<f32>> = lengths.iter().map(|length| vec![0.0; *length]).collect();
    let buffers = received.iter_mut().enumerate().map(|(rank, values)| {
        if rank == own || values.is_empty() { Vec::new() } else { vec![values.as_mut_slice()] }
    });
    collective.exchange(&slices.collect::<Vec<_>>(), &mut buffers.collect::<Vec<_>>())?;
    let tensors = received.into_iter().enumerate().map(|(rank, values)| match values.len() {
        _ if rank == own => Ok(send[own].clone()),
        0 => Ok(None),
        length => Tensor::from_vec(values, length, device).map(Some),
    });
    Ok(tensors.collect::<Result<_, _>>()?)
}

/// A single rank.
struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, StudyError> {
        Ok(bytes)
    }

    fn exchange(&self, _: &[Vec<&[f32]>], _: &mut [Vec<&mut [f32]>]) -> Result<(), StudyError> {
        Ok(())
    }

    fn all_to_all(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StudyError> {
        Ok(send)
    }
}

/// The ranks of a training run, as one of them sees them. The default is a single rank.
#[derive(Clone)]
pub struct Ranks {
    collective: Arc<dyn Collective>,
    rounds: Arc<Rounds>,
}

impl Default for Ranks {
    fn default() -> Self {
        Self::new(Arc::new(Alone))
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Ranks {
    /// Ranks that communicate in this way.
    pub fn new(collective: Arc<dyn Collective>) -> Self {
        Self { collective, rounds: Arc::default() }
    }

    /// The number of this rank, counted from 0.
    pub fn rank(&self) -> usize {
        self.collective.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.collective.size()
    }

    /// Whether this rank writes the run folder.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Returns an error unless each rank has a micro-batch in each step, and their GPUs can
    /// communicate.
    pub(crate) fn check(&self, recipe: &Recipe) -> Result<()> {
        let (size, accumulate) = (self.size(), recipe.batch.accumulate);
        if size > accumulate {
            let reason = format!(
                "is {accumulate}, but {size} ranks share the micro-batches of a step; start at most \
                 {accumulate}, or set a larger `batch.accumulate` with a smaller `batch.examples`"
            );
            return Err(recipe.error("batch.accumulate", reason));
        }
        let device = recipe.compute()?.device;
        if size > 1 {
            let kind = if device.is_cpu() { "the CPU" } else { "a GPU" };
            let kinds = self.gather(kind.to_owned())?;
            self.expect_equal(&kinds, |rank| {
                format!(
                    "rank {rank} trains on {}, but rank 0 on {}; give all ranks the same \
                     `compute.device`",
                    kinds[rank], kinds[0]
                )
            })?;
        }
        if size > 1 && !device.is_cpu() {
            let connected = self.collective.connect_gpus(&device);
            connected.map_err(|error| {
                recipe.error("compute.device", format!("does not work on these ranks: {error}"))
            })?;
        }
        Ok(())
    }

    /// The error with which a rank other than 0 ends after training.
    pub(crate) fn end(&self) -> Result<()> {
        if self.is_first() { Ok(()) } else { Err(TrainError::OtherRank { rank: self.rank() }) }
    }

    /// Returns rank 0's value.
    pub(crate) fn broadcast<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<T> {
        if self.size() == 1 {
            return Ok(value);
        }
        let bytes = if self.is_first() { to_bytes(&value)? } else { Vec::new() };
        from_bytes(&self.broadcast_bytes(bytes)?)
    }

    /// Returns rank 0's bytes.
    pub(crate) fn broadcast_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.meet()?;
        self.collective.broadcast(bytes).map_err(failed)
    }

    /// Returns the bytes of all ranks, in rank order.
    pub(crate) fn gather_bytes(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.meet()?;
        self.collective.gather(bytes).map_err(failed)
    }

    /// Returns the values of all ranks, in rank order.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<Vec<T>> {
        if self.size() == 1 {
            return Ok(vec![value]);
        }
        let gathered = self.gather_bytes(to_bytes(&value)?)?;
        gathered.iter().map(|bytes| from_bytes(bytes)).collect()
    }

    /// See [`Collective::exchange_tensors`].
    fn exchange_tensors(
        &self,
        send: &[Option<Tensor>],
        lengths: &[usize],
        device: &Device,
    ) -> Result<Vec<Option<Tensor>>> {
        self.meet()?;
        self.collective.exchange_tensors(send, lengths, device).map_err(failed)
    }

    /// See [`Collective::exchange`].
    fn exchange(&self, send: &[Vec<&[f32]>], receive: &mut [Vec<&mut [f32]>]) -> Result<()> {
        self.meet()?;
        self.collective.exchange(send, receive).map_err(failed)
    }

    /// See [`Collective::all_to_all`].
    fn all_to_all(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        self.meet()?;
        self.collective.all_to_all(send).map_err(failed)
    }
}

pub(crate) fn failed(source: StudyError) -> TrainError {
    TrainError::Ranks { source }
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| failed(error.into()))
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| failed(error.into()))
}
