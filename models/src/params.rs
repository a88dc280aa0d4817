//! Ordered, named, seeded parameters, and their learning-rate factors.
//!
//! candle's own `VarMap` is unordered and cannot be seeded on the CPU. Here parameters keep the
//! order in which the model requested them. Their initial values depend only on the seed and their
//! names, so an additional layer does not change the initial values of other layers. A *frozen*
//! parameter is a plain tensor: it gets no gradient, but gradients still flow to earlier layers.

mod builder;
mod embedding_table;
mod group;
mod init;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Storage, Tensor, TensorId};
use sha2::{Digest, Sha256};

use crate::compute::to_host;
use crate::error::{ModelError, Result};
use crate::kernels::QuantisedMatrix;
use crate::layers::is_branch;
use crate::weights::Weights;
pub use builder::ParameterBuilder;
pub use embedding_table::{EmbeddingTable, ExternalTable, Lookup, Rows, sum_of_rows};
pub use group::{ParameterGroup, path_matches, rate_of};
pub use init::Init;

/// One named parameter.
#[derive(Debug, Clone)]
pub struct Parameter {
    name: String,
    tensor: Tensor,
    rate: f64,
    is_random: bool,
    quantised: Option<QuantisedMatrix>,
}

/// A function that writes the values of a parameter.
type UpdateValues<'a> = &'a mut dyn FnMut(&mut [f32]);

/// All parameters of a model, in the order in which the model requested them.
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    list: Vec<Parameter>,
    external: Vec<Arc<ExternalTable>>,
}

impl Parameter {
    /// The name: the path of the parameter in the model, as published.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value. For a trainable parameter, this is the variable whose gradient is computed. For a
    /// quantised weight, it has only the shape.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// candle's id of the tensor; [`crate::gradients::Gradients`] finds buffers by it.
    pub fn id(&self) -> TensorId {
        self.tensor.id()
    }

    /// The factor on the learning rate; 0 if the parameter is frozen.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Whether the values are random initial values, neither loaded nor constant. It does not
    /// change when the values change.
    pub fn is_random(&self) -> bool {
        self.is_random
    }

    /// Whether the parameter is a quantised weight.
    pub fn is_quantised(&self) -> bool {
        self.quantised.is_some()
    }

    /// Whether training updates the parameter.
    pub fn is_trainable(&self) -> bool {
        self.rate > 0.0
    }

    /// Returns a copy of the values in row-major order, as f32.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        match &self.quantised {
            Some(matrix) => Ok(matrix.dequantise()),
            None => Ok(to_host(&self.tensor)?),
        }
    }

    /// Replaces the values by a quantised matrix of the same shape.
    fn quantise(&mut self, matrix: QuantisedMatrix) -> Result<()> {
        let shape = self.tensor.shape().clone();
        let zero = Tensor::zeros((), self.tensor.dtype(), self.tensor.device())?;
        self.tensor = zero.broadcast_as(shape)?;
        self.quantised = Some(matrix);
        Ok(())
    }

    /// Calls `change`, which may write the values. Every model that shares this parameter sees the
    /// change. On the CPU in f32, `change` writes in place. Otherwise it writes to a copy, which
    /// then replaces the values.
    ///
    /// # Errors
    /// [`ModelError::Candle`] if the tensor is not contiguous, or the device fails.
    pub fn update(&self, change: UpdateValues<'_>) -> Result<()> {
        if self.is_host_f32() {
            self.tensor.inplace_op1(&Update(Mutex::new(change)))?;
            return Ok(());
        }
        let mut values = self.to_vec()?;
        change(&mut values);
        if let Some(matrix) = &self.quantised {
            matrix.set(&values);
            return Ok(());
        }
        self.set(&Tensor::from_vec(values, self.tensor.shape(), self.tensor.device())?)
    }

    /// Replaces the values by a tensor of the same shape on the same device. Every model that
    /// shares this parameter sees the change.
    ///
    /// # Errors
    /// [`ModelError::Candle`] for another shape or device, or if the device fails.
    pub fn set(&self, values: &Tensor) -> Result<()> {
        let values = values.to_dtype(self.tensor.dtype())?.flatten_all()?;
        self.tensor.flatten_all()?.slice_set(&values, 0, 0)?;
        Ok(())
    }

    /// Calls `read` with the values: without a copy on the CPU in f32, else with a copy.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if the tensor is not contiguous, [`ModelError::Candle`] if the
    /// device fails.
    pub fn read<R>(&self, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
        if !self.is_host_f32() {
            return Ok(read(&self.to_vec()?));
        }
        let (storage, layout) = self.tensor.storage_and_layout();
        match (&*storage, layout.contiguous_offsets()) {
            (Storage::Cpu(CpuStorage::F32(data)), Some((start, end))) => {
                Ok(read(&data[start..end]))
            }
            _ => Err(ModelError::BadInput(format!("parameter `{}` is not contiguous", self.name))),
        }
    }

    fn is_host_f32(&self) -> bool {
        self.quantised.is_none()
            && self.tensor.device().is_cpu()
            && self.tensor.dtype() == DType::F32
    }
}

/// The in-place update of f32 values on the CPU.
struct Update<'a>(Mutex<UpdateValues<'a>>);

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "update-parameter"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(data), Some((start, end))) => {
                let mut change = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                (*change)(&mut data[start..end]);
                Ok(())
            }
            _ => candle_core::bail!("only contiguous f32 parameters can be updated in place"),
        }
    }
}

impl Parameters {
    /// All parameters, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Parameter> {
        self.list.iter()
    }

    /// The trainable parameters, in order.
    pub fn trainable(&self) -> impl Iterator<Item = &Parameter> {
        self.list.iter().filter(|p| p.is_trainable())
    }

    /// The embedding tables that are not among the parameters, in order.
    pub fn external_tables(&self) -> &[Arc<ExternalTable>] {
        &self.external
    }

    /// The names of all parameters, then of all external tables.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        let tables = self.external.iter().map(|table| table.name());
        self.list.iter().map(|parameter| parameter.name()).chain(tables)
    }

    /// Returns the parameter with this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.list.iter().find(|p| p.name == name)
    }

    /// The number of parameters (tensors, not values).
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of values in all parameters without low-rank branches, which are merged
    /// into the saved weights, and the number of values in the trainable parameters with branches.
    /// External tables count as trainable parameters.
    pub fn value_counts(&self) -> (usize, usize) {
        let saved = self.list.iter().filter(|p| !is_branch(&p.name));
        let total: usize = saved.map(|p| p.tensor.elem_count()).sum();
        let trainable: usize = self.trainable().map(|p| p.tensor.elem_count()).sum();
        let external: usize =
            self.external.iter().map(|table| table.dims().iter().product::<usize>()).sum();
        (total + external, trainable + external)
    }

    /// Returns the SHA-256 of the names, shapes and values of the parameters that satisfy
    /// `is_included`. Equal fingerprints before and after a run prove that these parameters did
    /// not change.
    pub fn fingerprint(&self, is_included: impl Fn(&Parameter) -> bool) -> Result<String> {
        let mut hash = Sha256::new();
        for parameter in self.list.iter().filter(|p| is_included(p)) {
            hash.update(parameter.name.as_bytes());
            hash.update(format!("{:?}", parameter.tensor.dims()));
            let mut bytes = Vec::new();
            for block in parameter.to_vec()?.chunks(1 << 14) {
                bytes.clear();
                bytes.extend(block.iter().flat_map(|value| value.to_le_bytes()));
                hash.update(&bytes);
            }
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// Sets every parameter to its value in a safetensors file.
    ///
    /// # Errors
    /// The errors of [`Weights::open`] and [`Weights::get`]; no parameter is changed then.
    pub fn load(&self, path: &Path) -> Result<()> {
        self.load_selected(path, |_| true)
    }

    /// Loads only the parameters whose names satisfy `is_selected`.
    ///
    /// # Errors
    /// See [`Parameters::load`].
    pub fn load_selected(&self, path: &Path, is_selected: impl Fn(&str) -> bool) -> Result<()> {
        let source = Weights::open(path)?;
        let selected = self.list.iter().filter(|parameter| is_selected(&parameter.name));
        let selected: Vec<&Parameter> = selected.collect();
        let mut values = Vec::with_capacity(selected.len());
        for parameter in &selected {
            let tensor =
                source.get(&parameter.name, parameter.tensor.dims(), DType::F32, &Device::Cpu)?;
            values.push(to_host(&tensor)?);
        }
        for (parameter, value) in selected.into_iter().zip(values) {
            parameter.update(&mut |data| data.copy_from_slice(&value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_that_shares_a_parameter_sees_an_update() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(0);
        let tensor = builder.get("weight", &[3], Init::Ones)?;
        let parameters = builder.finish()?;
        parameters.list[0].update(&mut |data| data[1] = 5.0)?;
        assert_eq!(tensor.to_vec1::<f32>()?, [1.0, 5.0, 1.0]);
        Ok(())
    }
}
