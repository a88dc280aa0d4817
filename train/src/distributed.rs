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
//! A memory can be kept in [shards](sharded_memory): each rank encodes, keeps and searches its share
//! of the entries. Tables of embeddings can be kept in [parts](sharded_tables).

mod agreement;
pub(crate) mod message;
mod reduction;
mod rounds;
pub mod sharded_memory;
pub mod sharded_tables;
mod sparse;
pub(crate) mod tree;

use std::fmt;
use std::sync::Arc;

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
    ///
    /// # Errors
    /// If a rank has ended.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, StudyError>;

    /// Returns the bytes of every rank, in rank order.
    ///
    /// # Errors
    /// If a rank has ended.
    fn gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, StudyError>;

    /// Sends the slices `send[r]` to each rank `r`, and receives the slices `receive[r]` from it.
    /// The slices that two ranks exchange have equal numbers and lengths on both sides. The slices
    /// of the own rank are ignored.
    ///
    /// # Errors
    /// If a rank has ended.
    fn exchange(
        &self,
        send: &[Vec<&[f32]>],
        receive: &mut [Vec<&mut [f32]>],
    ) -> Result<(), StudyError>;

    /// Sends the bytes `send[r]` to each rank `r`, and returns the bytes from every rank, in rank
    /// order.
    ///
    /// # Errors
    /// If a rank has ended.
    fn all_to_all(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StudyError>;
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

    fn gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, StudyError> {
        Ok(vec![bytes])
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

    /// Returns an error unless each rank has a micro-batch in each step, on the CPU.
    pub(crate) fn check(&self, recipe: &Recipe) -> Result<()> {
        let (size, accumulate) = (self.size(), recipe.batch().accumulate);
        if size > accumulate {
            let reason = format!(
                "is {accumulate}, but {size} ranks share the micro-batches of a step; start at most \
                 {accumulate}, or set a larger `batch.accumulate` with a smaller `batch.examples`"
            );
            return Err(recipe.error("batch.accumulate", reason));
        }
        if size > 1 && !recipe.compute()?.device.is_cpu() {
            let reason = "is a GPU, but several ranks train on CPUs only; set it to \"cpu\", or start \
                          a single rank";
            return Err(recipe.error("compute.device", reason));
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
