//! The gradients of all trainable parameters, in buffers that are reused in every step.
//!
//! `Tensor::backward` allocates a zero gradient for every tensor and adds to it. To avoid this, the
//! fused kernels write the gradient of a parameter to its buffer, which they find by the tensor's
//! id. The first gradient of a step overwrites the buffer; later gradients (another use, another
//! micro-batch) are added, and so are gradients from ordinary candle operations. Kernels on a GPU
//! and in bf16 add gradients as tensors to the running pass. candle's graph then does not contain
//! the parameters, so only [`Gradients::backward`] computes their gradients. Gradients of
//! parameters on a GPU stay there, and are copied to the host when they are read.

mod fault;
mod set;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockWriteGuard};

use candle_core::backprop::GradStore;
use candle_core::{Device, Shape, Tensor, TensorId};
use rayon::prelude::*;

use crate::compute::to_host;
#[cfg(not(feature = "cuda"))]
use crate::error::ModelError;
use crate::error::Result;
use crate::params::Parameters;
pub use fault::GradientFault;
pub use set::GradientSet;

/// One gradient buffer for each trainable parameter, in the order of [`Parameters::trainable`].
pub struct Gradients {
    names: Vec<String>,
    /// The number of values of each gradient on the CPU, 0 for a gradient on a GPU.
    sizes: Vec<usize>,
    /// The shape and the device of each gradient on a GPU.
    places: Vec<Option<(Shape, Device)>>,
    pool: BufferPool,
}

/// The gradient of a parameter on a GPU.
#[derive(Default)]
struct GpuGradient {
    tensor: Option<Tensor>,
    /// The values, once they are read.
    copy: OnceCell<Vec<f32>>,
}

/// The gradient buffers of all trainable parameters.
#[derive(Default)]
struct BufferPool {
    /// The index of each parameter's buffer.
    index: HashMap<TensorId, usize>,
    /// The gradients of the current step.
    set: GradientSet,
    /// Whether each gradient is on a GPU.
    is_on_gpu: Vec<bool>,
}

/// For each parameter with a gradient buffer: the number of its [`Gradients`].
static PARAMETERS: LazyLock<RwLock<HashMap<TensorId, usize>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// The buffers of the backward pass that is running on this thread.
    static ACTIVE: RefCell<Option<BufferPool>> = const { RefCell::new(None) };
}

impl Gradients {
    /// Creates buffers for the trainable parameters.
    pub fn new(parameters: &Parameters) -> Self {
        Self::with(parameters, |device| !device.is_cpu())
    }

    /// Keeps the gradients of parameters on the CPU as tensors, too, like those on a GPU. It is
    /// slow. With it, tests run code for GPUs on the CPU.
    pub fn as_tensors(parameters: &Parameters) -> Self {
        Self::with(parameters, |_| true)
    }

    fn with(parameters: &Parameters, is_on_gpu: impl Fn(&Device) -> bool) -> Self {
        let mut gradients = Self {
            names: Vec::new(),
            sizes: Vec::new(),
            places: Vec::new(),
            pool: BufferPool::default(),
        };
        for (i, parameter) in parameters.trainable().enumerate() {
            let tensor = parameter.tensor();
            let is_on_gpu = is_on_gpu(tensor.device());
            let size = if is_on_gpu { 0 } else { tensor.elem_count() };
            let place = is_on_gpu.then(|| (tensor.shape().clone(), tensor.device().clone()));
            gradients.names.push(parameter.name().to_string());
            gradients.sizes.push(size);
            gradients.places.push(place);
            gradients.pool.index.insert(parameter.id(), i);
            gradients.pool.set.buffers.push(vec![0.0; size]);
            gradients.pool.set.written.push(false);
            gradients.pool.set.on_gpu.push(GpuGradient::default());
            gradients.pool.is_on_gpu.push(is_on_gpu);
            *parameters_with_gradients().entry(parameter.id()).or_insert(0) += 1;
        }
        gradients
    }

    /// Discards the last step's gradients. The buffers stay allocated.
    pub fn clear(&mut self) {
        self.pool.set.clear();
    }

    /// Adds the gradient of `loss` with respect to every trainable parameter to the buffers. If the
    /// backward pass fails, all gradients are discarded.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        let mut pass = Pass::begin(self);
        add(&loss.backward()?)?;
        pass.succeeded = true;
        Ok(())
    }

    /// Restores the buffers that a failed pass has not returned, and discards all gradients.
    fn restore(&mut self) {
        for (buffer, size) in self.pool.set.buffers.iter_mut().zip(&self.sizes) {
            buffer.resize(*size, 0.0);
        }
        self.clear();
    }

    /// Returns the gradient of the `index`-th trainable parameter; `None` if it has received no
    /// gradient since [`Gradients::clear`].
    pub fn get(&self, index: usize) -> Option<&[f32]> {
        let on_gpu = &self.pool.set.on_gpu[index];
        if let Some(tensor) = &on_gpu.tensor {
            // A GPU that fails gives NaN, which stops the training with an error.
            let nan = |_| vec![f32::NAN; tensor.elem_count()];
            return Some(on_gpu.copy.get_or_init(|| to_host(tensor).unwrap_or_else(nan)));
        }
        self.pool.set.written[index].then(|| self.pool.set.buffers[index].as_slice())
    }

    /// Returns the gradient of the `index`-th trainable parameter if it is on a GPU.
    pub fn on_gpu(&self, index: usize) -> Option<&Tensor> {
        self.pool.set.on_gpu[index].tensor.as_ref()
    }

    /// Returns the gradient of the parameter with this name; `None` if there is no such trainable
    /// parameter or it received no gradient.
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
    /// threads. NaN if a GPU fails.
    pub fn global_norm(&self) -> f64 {
        self.global_norm_with(&[])
    }

    /// Returns the Euclidean norm of all gradients, including those of external tables. `tables`
    /// has the [index](crate::params::ExternalTable::index) and the sum of squares of each table,
    /// in ascending order. The result has the same bits as if the tables were parameters.
    pub fn global_norm_with(&self, tables: &[(usize, f64)]) -> f64 {
        let on_gpu = self.squares_on_gpu().unwrap_or(f64::NAN);
        let mut squares: Vec<Option<f64>> = (0..self.len()).map(|i| self.squares(i)).collect();
        tables.iter().for_each(|(index, sum)| squares.insert(*index, Some(*sum)));
        (on_gpu + squares.into_iter().flatten().sum::<f64>()).sqrt()
    }

    /// The sum of squares of a parameter's gradient, in f64; `None` if it is on a GPU, or there is
    /// none. It is the same for any number of threads.
    fn squares(&self, index: usize) -> Option<f64> {
        let gradient = self.get(index).filter(|_| self.pool.set.on_gpu[index].tensor.is_none())?;
        let squares = |block: &[f32]| block.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
        let blocks: Vec<f64> = gradient.par_chunks(1 << 14).map(squares).collect();
        Some(blocks.iter().sum::<f64>())
    }

    /// Returns the sum of squares of the gradients on a GPU, with one transfer.
    fn squares_on_gpu(&self) -> Result<f64> {
        let tensors: Vec<&Tensor> =
            self.pool.set.on_gpu.iter().filter_map(|gradient| gradient.tensor.as_ref()).collect();
        match tensors.is_empty() {
            true => Ok(0.0),
            #[cfg(feature = "cuda")]
            false => Ok(crate::cuda::sum_of_squares(&tensors)?),
            #[cfg(not(feature = "cuda"))]
            false => Err(ModelError::BadInput("gradients on a GPU need the feature `cuda`".into())),
        }
    }

    /// Returns the name and the fault of each trainable parameter whose gradient is missing, all
    /// zero or not finite.
    pub fn faults(&self) -> Vec<(String, GradientFault)> {
        let fault_of = |i| match self.get(i) {
            None => Some(GradientFault::Missing),
            Some(g) if g.iter().any(|v| !v.is_finite()) => Some(GradientFault::NotFinite),
            Some(g) if g.iter().all(|v| *v == 0.0) => Some(GradientFault::Zero),
            Some(_) => None,
        };
        let names = self.names.iter().enumerate();
        names.filter_map(|(i, name)| Some((name.clone(), fault_of(i)?))).collect()
    }
}

impl Drop for Gradients {
    fn drop(&mut self) {
        let mut parameters = parameters_with_gradients();
        for id in self.pool.index.keys() {
            if let Entry::Occupied(mut count) = parameters.entry(*id) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }
}

fn parameters_with_gradients() -> RwLockWriteGuard<'static, HashMap<TensorId, usize>> {
    PARAMETERS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the tensor is a parameter of any [`Gradients`].
pub(crate) fn has_gradients(id: TensorId) -> bool {
    PARAMETERS.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
}

/// Whether the running backward pass collects the gradient of tensor `id`.
pub(crate) fn expects_gradient(id: TensorId) -> bool {
    ACTIVE.with_borrow(|active| active.as_ref().is_some_and(|pool| pool.index.contains_key(&id)))
}

/// A backward pass that is running on this thread. Its end returns the buffers, also if a kernel
/// fails or panics.
struct Pass<'a> {
    gradients: &'a mut Gradients,
    /// The buffers of an outer pass on this thread, if any: a thread that waits inside a kernel may
    /// run another backward pass.
    outer: Option<BufferPool>,
    succeeded: bool,
}

impl<'a> Pass<'a> {
    /// Makes the buffers available to the kernels on this thread.
    fn begin(gradients: &'a mut Gradients) -> Self {
        let outer = ACTIVE.replace(Some(std::mem::take(&mut gradients.pool)));
        Self { gradients, outer, succeeded: false }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gradients.pool = ACTIVE.replace(self.outer.take()).unwrap_or_default();
        if !self.succeeded {
            self.gradients.restore();
        }
    }
}

/// Takes the buffer of tensor `id` out of the running backward pass. The flag is true if the buffer
/// already holds a gradient to add to. Returns `None` if the tensor has no buffer, or if the buffer
/// is already taken.
pub(crate) fn take_buffer(id: TensorId) -> Option<(Vec<f32>, bool)> {
    ACTIVE.with_borrow_mut(|active| {
        let pool = active.as_mut()?;
        let index = *pool.index.get(&id)?;
        let buffer = std::mem::take(&mut pool.set.buffers[index]);
        (!buffer.is_empty()).then(|| (buffer, pool.set.written[index]))
    })
}

/// Puts the buffer of tensor `id` back. It now holds a gradient.
pub(crate) fn return_buffer(id: TensorId, buffer: Vec<f32>) {
    ACTIVE.with_borrow_mut(|active| {
        if let Some(pool) = active.as_mut()
            && let Some(&index) = pool.index.get(&id)
        {
            pool.set.buffers[index] = buffer;
            pool.set.written[index] = true;
        }
    });
}

/// Whether a backward pass of [`Gradients`] is running on this thread.
pub(crate) fn is_running() -> bool {
    ACTIVE.with_borrow(Option::is_some)
}

/// Adds the gradients of parameters that candle has computed to the running backward pass.
pub(crate) fn add(store: &GradStore) -> Result<()> {
    for id in store.get_ids() {
        if let Some(gradient) = store.get_id(*id) {
            add_gradient(*id, gradient)?;
        }
    }
    Ok(())
}

/// Adds a gradient, of any dtype, to the running backward pass, if it is the gradient of a
/// parameter.
pub(crate) fn add_gradient(id: TensorId, gradient: &Tensor) -> candle_core::Result<()> {
    if add_on_gpu(id, gradient)? {
        return Ok(());
    }
    if let Some((mut buffer, accumulate)) = take_buffer(id) {
        let values = to_host(gradient)?;
        if accumulate {
            add_values(&mut buffer, &values);
        } else {
            buffer.copy_from_slice(&values);
        }
        return_buffer(id, buffer);
    }
    Ok(())
}

/// Does the same for a gradient on a GPU. Returns whether it is one.
fn add_on_gpu(id: TensorId, gradient: &Tensor) -> candle_core::Result<bool> {
    ACTIVE.with_borrow_mut(|active| {
        let Some(pool) = active.as_mut() else { return Ok(false) };
        let Some(&index) = pool.index.get(&id) else { return Ok(false) };
        if !pool.is_on_gpu[index] {
            return Ok(false);
        }
        let sum = match pool.set.on_gpu[index].tensor.take() {
            Some(sum) => (sum + gradient)?,
            None => gradient.clone(),
        };
        pool.set.on_gpu[index] = GpuGradient { tensor: Some(sum), copy: OnceCell::new() };
        Ok(true)
    })
}

fn add_values(sum: &mut [f32], values: &[f32]) {
    sum.par_chunks_mut(1 << 14).zip(values.par_chunks(1 << 14)).for_each(|(sum, values)| {
        for (s, v) in sum.iter_mut().zip(values) {
            *s += v;
        }
    });
}
