//! The memory pool of a GPU.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result;
use candle_core::cuda_backend::cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use candle_core::{CudaDevice, Device, Result};

/// Keeps freed memory in the pool. By default, each synchronisation returns it to the driver, and
/// the next step allocates it again.
pub(crate) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    set(device, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
    // SAFETY: candle uses one stream. Events only order several streams.
    unsafe { device.disable_event_tracking() };
    Ok(())
}

/// Returns the largest number of bytes that tensors used since the last
/// [`reset_peak_memory`]; `None` on a CPU. Memory of cuBLAS and of the kernels is not included.
///
/// # Errors
/// If the driver fails.
pub fn peak_memory(device: &Device) -> Result<Option<u64>> {
    let Device::Cuda(device) = device else { return Ok(None) };
    let mut bytes = 0u64;
    let value = (&raw mut bytes).cast();
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    // SAFETY: the value of this attribute is a 64-bit integer.
    unsafe { result::mem_pool::get_attribute(pool(device)?, attribute, value) }.w()?;
    Ok(Some(bytes))
}

/// Begins a new measurement for [`peak_memory`].
///
/// # Errors
/// If the driver fails.
pub fn reset_peak_memory(device: &Device) -> Result<()> {
    match device {
        Device::Cuda(device) => set(device, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0),
        _ => Ok(()),
    }
}

fn set(device: &CudaDevice, attribute: CUmemPool_attribute, mut value: u64) -> Result<()> {
    let value = (&raw mut value).cast();
    // SAFETY: the value of these attributes is a 64-bit integer.
    unsafe { result::mem_pool::set_attribute(pool(device)?, attribute, value) }.w()
}

fn pool(device: &CudaDevice) -> Result<CUmemoryPool> {
    let stream = device.cuda_stream();
    // SAFETY: the device belongs to an existing context.
    unsafe { result::device::get_default_mem_pool(stream.context().cu_device()) }.w()
}
