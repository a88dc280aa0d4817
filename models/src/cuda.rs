//! CUDA kernels as operations of candle's graph. The sources are in `models/cuda`;
//! `tests/gpu/compile.sh` compiles them to PTX, which the driver translates for its GPU.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, InplaceOp1,
    Layout, Result, Shape, Storage, Tensor,
};

use crate::kernels::Dropout;

const PTX: &str = include_str!("../cuda/kernels.ptx");

/// The name of the module that the driver makes of [`PTX`].
const MODULE: &str = "engram";

/// The number of threads in a block.
const THREADS: usize = 256;

/// The rows of a block that sums the parameter gradients of a norm.
const NORM_ROWS: usize = 32;

/// Launches kernel `$name` with references to its arguments, in this order.
macro_rules! launch {
    ($device:expr, $name:expr, $config:expr, $($argument:expr),+ $(,)?) => {{
        let function = $device.get_or_load_custom_func($name, MODULE, PTX)?;
        let mut builder = function.builder();
        $(let argument = $argument; builder.arg(argument);)+
        // SAFETY: the arguments have the types of the kernel's parameters, and the slices have the
        // lengths that the kernel accesses.
        unsafe { builder.launch($config) }.w()?;
    }};
}

/// A grid with one thread for each element, up to a limit; kernels loop over the rest.
fn by_element(count: usize) -> LaunchConfig {
    let blocks = count.div_ceil(THREADS).clamp(1, 1 << 16) as u32;
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// A grid with one block for each row.
fn by_row(rows: usize, width: usize) -> LaunchConfig {
    let threads = width.next_multiple_of(32).clamp(32, THREADS) as u32;
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

fn range(layout: &Layout) -> Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => candle_core::bail!("a CUDA kernel needs contiguous tensors"),
    }
}

fn only_on_gpu<T>(name: &str) -> Result<T> {
    candle_core::bail!("{name}: this operation only runs on a GPU")
}

/// Runs `f` with the contiguous f32 values of a tensor on a GPU.
fn with_values<R>(
    tensor: &Tensor,
    f: impl FnOnce(&CudaSlice<f32>, std::ops::Range<usize>) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => f(storage.as_cuda_slice::<f32>()?, range(layout)?),
        _ => candle_core::bail!("a CUDA kernel needs tensors on the GPU"),
    }
}

fn wrap(values: CudaSlice<f32>, device: &CudaDevice) -> CudaStorage {
    CudaStorage { slice: CudaStorageSlice::F32(values), device: device.clone() }
}

/// The position of padded attention scores `[S, heads, L_q, L_k]` in a dropout mask.
#[derive(Debug, Clone)]
pub(crate) struct PaddedScores {
    /// For each segment: the index of its first score, its number of queries and of keys.
    pub segments: Vec<i64>,
    pub heads: usize,
    pub query_length: usize,
    pub key_length: usize,
}

/// Applies a dropout mask on a GPU: `x` of any shape → the same shape.
pub(crate) fn masked(x: &Tensor, mask: Dropout, scores: Option<PaddedScores>) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Masked { mask, scores })
}

#[derive(Clone)]
struct Masked {
    mask: Dropout,
    /// `None`: an element's index in the mask is its index in `x`.
    scores: Option<PaddedScores>,
}

impl CustomOp1 for Masked {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (device, range) = (x.device(), range(layout)?);
        let count = range.len();
        let none = PaddedScores { segments: vec![0], heads: 0, query_length: 1, key_length: 1 };
        let scores = self.scores.as_ref().unwrap_or(&none);
        let segments = device.clone_htod(&scores.segments)?;
        let ([low, high], threshold, scale) = self.mask.parameters();
        macro_rules! mask {
            ($x:expr, $name:literal, $variant:ident) => {{
                let y = unsafe { device.alloc(count)? };
                launch!(
                    device,
                    $name,
                    by_element(count),
                    &$x.slice(range),
                    &y,
                    &(count as u64),
                    &low,
                    &high,
                    &threshold,
                    &scale,
                    &segments,
                    &(scores.heads as u32),
                    &(scores.query_length as u32),
                    &(scores.key_length as u32)
                );
                CudaStorageSlice::$variant(y)
            }};
        }
        let slice = match &x.slice {
            CudaStorageSlice::F32(x) => mask!(x, "dropout_f32", F32),
            CudaStorageSlice::BF16(x) => mask!(x, "dropout_bf16", BF16),
            _ => candle_core::bail!("dropout: the dtype is neither f32 nor bf16"),
        };
        Ok((CudaStorage { slice, device: device.clone() }, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.contiguous()?.apply_op1(self.clone())?))
    }
}

/// Selects rows of an f32 table on a GPU: `[V, D]`, ids `[T]` → `[T, D]`. The gradient of a row is
/// summed in token order, so it is the same in every run.
pub(crate) fn select_rows(table: &Tensor, ids: Arc<[u32]>) -> Result<Tensor> {
    table.contiguous()?.apply_op1(SelectRows { ids })
}

struct SelectRows {
    ids: Arc<[u32]>,
}

impl CustomOp1 for SelectRows {
    fn name(&self) -> &'static str {
        "select-rows"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(&self, table: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (device, (_, width)) = (table.device(), layout.shape().dims2()?);
        let ids = device.clone_htod(&*self.ids)?;
        let y = unsafe { device.alloc::<f32>(self.ids.len() * width)? };
        launch!(
            device,
            "gather_rows",
            by_row(self.ids.len(), width),
            &table.as_cuda_slice::<f32>()?.slice(range(layout)?),
            &ids,
            &y,
            &(width as u32)
        );
        Ok((wrap(y, device), Shape::from((self.ids.len(), width))))
    }

    fn bwd(&self, table: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let sums = SumRows { ids: self.ids.clone(), rows: table.dim(0)? };
        Ok(Some(gradient.contiguous()?.apply_op1_no_bwd(&sums)?))
    }
}

/// Sums the rows of a gradient `[T, D]` by their ids → `[V, D]`.
struct SumRows {
    ids: Arc<[u32]>,
    /// The number of rows `V` of the sum.
    rows: usize,
}

impl CustomOp1 for SumRows {
    fn name(&self) -> &'static str {
        "sum-rows"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(&self, gradient: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (device, (_, width)) = (gradient.device(), layout.shape().dims2()?);
        // The tokens of each id that occurs, in token order.
        let mut tokens: Vec<u32> = (0..self.ids.len() as u32).collect();
        tokens.sort_by_key(|token| self.ids[*token as usize]);
        let (mut rows, mut starts) = (Vec::new(), Vec::new());
        for (position, token) in tokens.iter().enumerate() {
            let id = self.ids[*token as usize];
            if rows.last() != Some(&id) {
                rows.push(id);
                starts.push(position as u32);
            }
        }
        starts.push(tokens.len() as u32);
        let sums = device.alloc_zeros::<f32>(self.rows * width)?;
        launch!(
            device,
            "sum_rows",
            by_row(rows.len(), width),
            &gradient.as_cuda_slice::<f32>()?.slice(range(layout)?),
            &device.clone_htod(&rows)?,
            &device.clone_htod(&starts)?,
            &device.clone_htod(&tokens)?,
            &sums,
            &(width as u32)
        );
        Ok((wrap(sums, device), Shape::from((self.rows, width))))
    }
}

/// Computes the softmax of f32 values over the last dimension on a GPU: `[.., N]` → `[.., N]`.
pub(crate) fn softmax(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Softmax)
}

struct Softmax;

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (device, range) = (x.device(), range(layout)?);
        let width = layout.dims().last().copied().unwrap_or(1).max(1);
        let config = by_row(range.len() / width, width);
        let y = unsafe { device.alloc::<f32>(range.len())? };
        launch!(
            device,
            "softmax",
            config,
            &x.as_cuda_slice::<f32>()?.slice(range),
            &y,
            &(width as u32)
        );
        Ok((wrap(y, device), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(y.apply_op2_no_bwd(&gradient.contiguous()?, &SoftmaxBackward)?))
    }
}

struct SoftmaxBackward;

impl CustomOp2 for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax-backward"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(
        &self,
        y: &CudaStorage,
        layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (device, y_range) = (y.device(), range(layout)?);
        let width = layout.dims().last().copied().unwrap_or(1).max(1);
        let config = by_row(y_range.len() / width, width);
        let dx = unsafe { device.alloc::<f32>(y_range.len())? };
        launch!(
            device,
            "softmax_backward",
            config,
            &y.as_cuda_slice::<f32>()?.slice(y_range),
            &gradient.as_cuda_slice::<f32>()?.slice(range(gradient_layout)?),
            &dx,
            &(width as u32)
        );
        Ok((wrap(dx, device), layout.shape().clone()))
    }
}

/// Normalises f32 rows on a GPU: layer norm with a bias, RMS norm without. `x` `[.., D]`, `weight`
/// and `bias` `[D]` → `[.., D]`.
pub(crate) fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let norm = Norm { epsilon, statistics: Arc::default() };
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, norm),
        None => x.apply_op2(&weight, norm),
    }
}

struct Norm {
    epsilon: f32,
    /// The mean and the inverse root of each row, from the forward pass.
    statistics: Arc<Mutex<Option<CudaSlice<f32>>>>,
}

impl Norm {
    fn forward(
        &self,
        (x, layout): (&CudaStorage, &Layout),
        (weight, weight_layout): (&CudaStorage, &Layout),
        bias: Option<(&CudaStorage, &Layout)>,
    ) -> Result<(CudaStorage, Shape)> {
        let (device, x_range) = (x.device(), range(layout)?);
        let width = weight_layout.shape().elem_count().max(1);
        let rows = x_range.len() / width;
        let y = unsafe { device.alloc::<f32>(x_range.len())? };
        let statistics = unsafe { device.alloc::<f32>(2 * rows)? };
        let x = x.as_cuda_slice::<f32>()?.slice(x_range);
        let weight = weight.as_cuda_slice::<f32>()?.slice(range(weight_layout)?);
        let config = by_row(rows, width);
        match bias {
            Some((bias, bias_layout)) => launch!(
                device,
                "norm_forward",
                config,
                &x,
                &weight,
                &bias.as_cuda_slice::<f32>()?.slice(range(bias_layout)?),
                &y,
                &statistics,
                &(width as u32),
                &self.epsilon
            ),
            None => launch!(
                device,
                "norm_forward",
                config,
                &x,
                &weight,
                &0u64,
                &y,
                &statistics,
                &(width as u32),
                &self.epsilon
            ),
        }
        *self.statistics.lock().unwrap_or_else(PoisonError::into_inner) = Some(statistics);
        Ok((wrap(y, device), layout.shape().clone()))
    }

    /// Returns the gradients of `x`, of the weight, and of the bias.
    fn gradients(
        &self,
        (x, weight): (&Tensor, &Tensor),
        gradient: &Tensor,
        centred: bool,
    ) -> Result<[Tensor; 3]> {
        let gradient = gradient.contiguous()?;
        let pass = |output| NormBackward {
            weight: weight.clone(),
            statistics: self.statistics.clone(),
            centred,
            output,
        };
        let dx = x.apply_op2_no_bwd(&gradient, &pass(NormOutput::Input))?;
        let parameters = x.apply_op2_no_bwd(&gradient, &pass(NormOutput::Parameters))?;
        Ok([dx, parameters.get(0)?, parameters.get(1)?])
    }
}

impl CustomOp2 for Norm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        only_on_gpu("rms-norm")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward((x, layout), (weight, weight_layout), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, _] = self.gradients((x, weight), gradient, false)?;
        Ok((Some(dx), Some(dweight)))
    }
}

impl CustomOp3 for Norm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        only_on_gpu("layer-norm")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward((x, layout), (weight, weight_layout), Some((bias, bias_layout)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, dbias] = self.gradients((x, weight), gradient, true)?;
        Ok((Some(dx), Some(dweight), Some(dbias)))
    }
}

/// The gradients that a backward pass of a norm returns.
#[derive(Clone, Copy, PartialEq)]
enum NormOutput {
    Input,
    /// The gradients of weight and bias, `[2, D]`.
    Parameters,
}

struct NormBackward {
    weight: Tensor,
    statistics: Arc<Mutex<Option<CudaSlice<f32>>>>,
    centred: bool,
    output: NormOutput,
}

impl CustomOp2 for NormBackward {
    fn name(&self) -> &'static str {
        "norm-backward"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (device, x_range) = (x.device(), range(layout)?);
        let width = self.weight.elem_count().max(1);
        let (count, rows) = (x_range.len(), x_range.len() / width);
        let statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(statistics) = statistics.as_ref() else {
            candle_core::bail!("norm: the backward pass ran before the forward pass")
        };
        let x = x.as_cuda_slice::<f32>()?.slice(x_range);
        let gradient = gradient.as_cuda_slice::<f32>()?.slice(range(gradient_layout)?);
        if self.output == NormOutput::Input {
            let dx = unsafe { device.alloc::<f32>(count)? };
            with_values(&self.weight, |weight, weight_range| {
                launch!(
                    device,
                    "norm_backward",
                    by_row(rows, width),
                    &x,
                    &weight.slice(weight_range),
                    &gradient,
                    statistics,
                    &dx,
                    &(width as u32),
                    &i32::from(self.centred)
                );
                Ok(())
            })?;
            return Ok((wrap(dx, device), layout.shape().clone()));
        }
        let blocks = rows.div_ceil(NORM_ROWS).max(1);
        let partial = unsafe { device.alloc::<f32>(blocks * 2 * width)? };
        launch!(
            device,
            "norm_parameters_backward",
            by_row(blocks, width),
            &x,
            &gradient,
            statistics,
            &partial,
            &(rows as u32),
            &(width as u32),
            &(NORM_ROWS as u32)
        );
        let sums = unsafe { device.alloc::<f32>(2 * width)? };
        launch!(
            device,
            "sum_partials",
            by_element(2 * width),
            &partial,
            &sums,
            &(blocks as u32),
            &(2 * width as u32)
        );
        Ok((wrap(sums, device), Shape::from((2, width))))
    }
}

/// The factors of one AdamW step for one tensor.
#[derive(Debug, Clone, Copy)]
pub struct AdamwFactors {
    /// The factor on the gradient.
    pub gradient_scale: f32,
    /// The factor on the parameter: `1 − learning_rate · weight_decay`.
    pub decay_factor: f32,
    /// The decay rates of the first and the second moment.
    pub betas: [f32; 2],
    /// The factor on the first moment over the second moment's root: `−learning_rate / (1 − beta1^t)`.
    pub step: f32,
    /// `√(1 − beta2^t)`: the bias correction of the second moment's square root.
    pub correction: f32,
    /// Added to the corrected root.
    pub epsilon: f32,
}

/// Takes one AdamW step on a GPU: updates f32 `values` and both `moments`, of the same number of
/// elements as the `gradient`, in place.
pub fn adamw(
    values: &Tensor,
    moments: &[Tensor; 2],
    gradient: &Tensor,
    factors: AdamwFactors,
) -> Result<()> {
    let gradient = gradient.contiguous()?;
    values.inplace_op1(&Adamw { moments, gradient: &gradient, factors })
}

struct Adamw<'a> {
    moments: &'a [Tensor; 2],
    gradient: &'a Tensor,
    factors: AdamwFactors,
}

impl InplaceOp1 for Adamw<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        only_on_gpu(self.name())
    }

    fn cuda_fwd(&self, values: &mut CudaStorage, layout: &Layout) -> Result<()> {
        if values.dtype() != DType::F32 {
            candle_core::bail!("adamw: the parameter is not f32");
        }
        let (device, values_range) = (values.device().clone(), range(layout)?);
        let (count, f) = (values_range.len(), self.factors);
        let values = values.as_cuda_slice::<f32>()?.slice(values_range);
        with_values(&self.moments[0], |first, first_range| {
            with_values(&self.moments[1], |second, second_range| {
                with_values(self.gradient, |gradient, gradient_range| {
                    launch!(
                        device,
                        "adamw",
                        by_element(count),
                        &values,
                        &first.slice(first_range),
                        &second.slice(second_range),
                        &gradient.slice(gradient_range),
                        &(count as u64),
                        &f.gradient_scale,
                        &f.decay_factor,
                        &f.betas[0],
                        &f.betas[1],
                        &f.step,
                        &f.correction,
                        &f.epsilon
                    );
                    Ok(())
                })
            })
        })
    }
}
