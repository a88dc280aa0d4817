//! CUDA kernels as functions of tensors, outside candle's graph. The sources are in `models/cuda`;
//! `tests/gpu/compile.sh` compiles them to PTX, which the driver translates for its GPU.
//!
//! Inputs are contiguous. `T` is f32 or bf16.

mod activation;
mod adamw;
mod attention;
mod dropout;
mod memory;
mod norm;
mod rows;
mod softmax;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, LaunchConfig};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Layout, Result, Shape, Storage, Tensor};

use crate::kernels::Dropout;

pub(crate) use activation::{activation_backward, bias_activation, column_sums};
pub(crate) use adamw::sum_of_squares;
pub use adamw::{AdamwUpdate, adamw};
pub(crate) use attention::{Attention, BiasInput};
pub(crate) use dropout::{PaddedScores, masked};
pub(crate) use memory::keep_freed_memory;
pub use memory::{peak_memory, reset_peak_memory};
pub(crate) use norm::{Sums, norm, norm_backward, norm_parameters_backward};
pub(crate) use rows::{span_means, span_means_backward, sum_rows};
pub(crate) use softmax::{softmax, softmax_backward};

const PTX: &str = include_str!("../../cuda/kernels.ptx");

/// The name of the module that the driver makes of [`PTX`].
const MODULE: &str = "engram";

/// The number of threads in a block.
const THREADS: usize = 256;

/// Launches kernel `$name` with these arguments, in this order: addresses as `u64`, or values. An
/// empty grid launches nothing.
macro_rules! launch {
    ($device:expr, $name:expr, $config:expr, $($argument:expr),+ $(,)?) => {{
        let config = $config;
        if config.grid_dim.0 > 0 {
            let (module, ptx) = ($crate::cuda::MODULE, $crate::cuda::PTX);
            let function = $device.get_or_load_custom_func($name, module, ptx)?;
            let mut builder = function.builder();
            $(let argument = $argument; builder.arg(&argument);)+
            // SAFETY: the arguments have the types of the kernel's parameters, and the tensors have
            // the lengths that the kernel accesses.
            unsafe { builder.launch(config) }.w()?;
        }
    }};
}
use launch;

/// Returns the name of a kernel for this dtype.
fn named(name: &str, dtype: DType) -> Result<String> {
    match dtype {
        DType::F32 => Ok(format!("{name}_f32")),
        DType::BF16 => Ok(format!("{name}_bf16")),
        dtype => candle_core::bail!("{name}: {dtype:?} is neither f32 nor bf16"),
    }
}

/// A mask in the layout of `models/cuda/mask.h`. Without dropout, all factors are 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct Mask {
    key: [u32; 2],
    threshold: u32,
    scale: f32,
}

// SAFETY: the struct has the layout of the kernels' parameter, without padding.
unsafe impl DeviceRepr for Mask {}

impl From<Option<Dropout>> for Mask {
    fn from(dropout: Option<Dropout>) -> Self {
        let none = ([0; 2], 0, 1.0);
        let (key, threshold, scale) = dropout.map_or(none, |dropout| dropout.parameters());
        Self { key, threshold, scale }
    }
}

/// A grid with one thread for each element, up to a limit; kernels loop over the rest.
fn by_element(count: usize) -> LaunchConfig {
    grid(count.div_ceil(THREADS).clamp(1, 1 << 16), THREADS)
}

/// A grid with one block for each row.
fn by_row(rows: usize, width: usize) -> LaunchConfig {
    grid(rows, width.next_multiple_of(32).clamp(32, THREADS))
}

fn grid(blocks: usize, threads: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (threads as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}

fn device(x: &Tensor) -> Result<&CudaDevice> {
    match x.device() {
        Device::Cuda(device) => Ok(device),
        _ => candle_core::bail!("a CUDA kernel needs tensors on the GPU"),
    }
}

fn range(layout: &Layout) -> Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => candle_core::bail!("a CUDA kernel needs contiguous tensors"),
    }
}

/// The address of a contiguous tensor's first value. Kernels on the tensor's stream may use it
/// while the tensor exists.
///
/// # Errors
/// If the tensor is not on a GPU, not contiguous, or of another dtype than f32, bf16, u32 or i64.
pub fn address(x: &Tensor) -> Result<u64> {
    fn of<T>(slice: &CudaSlice<T>, start: usize) -> u64 {
        let (address, _guard) = slice.device_ptr(slice.stream());
        address + (start * size_of::<T>()) as u64
    }
    let (storage, layout) = x.storage_and_layout();
    let start = range(layout)?.start;
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("a CUDA kernel needs tensors on the GPU")
    };
    match &storage.slice {
        CudaStorageSlice::F32(slice) => Ok(of(slice, start)),
        CudaStorageSlice::BF16(slice) => Ok(of(slice, start)),
        CudaStorageSlice::U32(slice) => Ok(of(slice, start)),
        CudaStorageSlice::I64(slice) => Ok(of(slice, start)),
        _ => candle_core::bail!("a CUDA kernel got a tensor of {:?}", x.dtype()),
    }
}

/// The address of a tensor, or null.
fn address_or_null(x: Option<&Tensor>) -> Result<u64> {
    x.map_or(Ok(0), address)
}

/// Creates a tensor of this shape and dtype with undefined values, which a kernel must write.
fn empty(device: &CudaDevice, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    let count = shape.elem_count().max(1);
    // SAFETY: the caller launches a kernel that writes all values before any other kernel reads
    // them.
    let slice = unsafe {
        match dtype {
            DType::F32 => CudaStorageSlice::F32(device.alloc(count)?),
            DType::BF16 => CudaStorageSlice::BF16(device.alloc(count)?),
            dtype => candle_core::bail!("no CUDA kernel writes {dtype:?}"),
        }
    };
    let storage = CudaStorage { slice, device: device.clone() };
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

/// Takes the values out of a storage.
pub(crate) fn take(storage: &mut CudaStorage) -> Result<CudaStorage> {
    let device = storage.device.clone();
    // SAFETY: nothing reads the value.
    let placeholder = CudaStorageSlice::F32(unsafe { device.alloc(1)? });
    let slice = std::mem::replace(&mut storage.slice, placeholder);
    Ok(CudaStorage { slice, device })
}
