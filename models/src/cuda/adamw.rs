//! AdamW and the norm of gradients, for all parameters in one launch.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{DType, Result, Tensor};

use super::{address, device, empty, grid, launch};
use crate::compute::to_host;

/// The values of a block.
const CHUNK: usize = 1 << 14;
/// The threads of a block.
const THREADS: usize = 256;

/// One AdamW step of one parameter on a GPU. All tensors are f32 and of one size.
#[derive(Debug, Clone)]
pub struct AdamwUpdate {
    /// The parameter.
    pub values: Tensor,
    /// The first and the second moment.
    pub moments: [Tensor; 2],
    /// The gradient.
    pub gradient: Tensor,
    /// The gradient's scale, the factor on the parameter, `1 − beta1`, `beta2`, `1 − beta2`, the
    /// step, the correction and epsilon, as in `AdamwTensor` of `models/cuda/adamw.cu`.
    pub factors: [f32; 8],
}

/// Takes AdamW steps, in place.
pub fn adamw(updates: &[AdamwUpdate]) -> Result<()> {
    let Some(first) = updates.first() else { return Ok(()) };
    let mut table = Table::default();
    for update in updates {
        let tensors = [&update.values, &update.moments[0], &update.moments[1], &update.gradient];
        if tensors.iter().any(|x| x.elem_count() != update.values.elem_count()) {
            candle_core::bail!("adamw: tensors of different sizes");
        }
        let mut numbers = tensors.map(address_of_f32).into_iter().collect::<Result<Vec<_>>>()?;
        numbers.push(update.values.elem_count() as u64);
        let [a, b, c, d, e, f, g, h] = update.factors;
        numbers.extend(
            [(a, b), (c, d), (e, f), (g, h)].map(|(low, high)| {
                u64::from(f32::to_bits(low)) | u64::from(f32::to_bits(high)) << 32
            }),
        );
        table.push(&numbers, update.values.elem_count());
    }
    let device = device(&first.values)?;
    let uploaded = table.upload(&first.values)?;
    launch!(
        device,
        "adamw",
        grid(table.chunks.len(), THREADS),
        address(&uploaded)?,
        address(&uploaded)? + 8 * table.numbers.len() as u64,
        CHUNK as u32
    );
    Ok(())
}

/// Returns the sum of squares of f32 tensors on one GPU. The order of the sum is fixed.
pub(crate) fn sum_of_squares(tensors: &[&Tensor]) -> Result<f64> {
    let tensors: Vec<&Tensor> =
        tensors.iter().copied().filter(|tensor| tensor.elem_count() > 0).collect();
    let Some(first) = tensors.first() else { return Ok(0.0) };
    let mut table = Table::default();
    for tensor in &tensors {
        let count = tensor.elem_count();
        table.push(&[address_of_f32(tensor)?, count as u64], count);
    }
    let device = device(first)?;
    let uploaded = table.upload(first)?;
    let sums = empty(device, table.chunks.len(), DType::F32)?;
    launch!(
        device,
        "squares",
        grid(table.chunks.len(), THREADS),
        address(&uploaded)?,
        address(&uploaded)? + 8 * table.numbers.len() as u64,
        CHUNK as u32,
        address(&sums)?
    );
    Ok(to_host(&sums)?.into_iter().map(f64::from).sum())
}

fn address_of_f32(x: &Tensor) -> Result<u64> {
    if x.dtype() != DType::F32 {
        candle_core::bail!("a parameter or gradient on the GPU is {:?}, not f32", x.dtype());
    }
    address(x)
}

/// The tensors of a launch, and their chunks. A thread block handles one chunk.
#[derive(Default)]
struct Table {
    numbers: Vec<u64>,
    /// The tensor's index, and the chunk's index shifted by 32 bits.
    chunks: Vec<u64>,
    count: u64,
}

impl Table {
    fn push(&mut self, numbers: &[u64], values: usize) {
        self.numbers.extend(numbers);
        let chunks = 0..values.div_ceil(CHUNK) as u64;
        self.chunks.extend(chunks.map(|chunk| self.count | chunk << 32));
        self.count += 1;
    }

    fn upload(&self, like: &Tensor) -> Result<Tensor> {
        let numbers = self.numbers.iter().chain(&self.chunks).map(|number| *number as i64);
        let numbers: Vec<i64> = numbers.collect();
        let count = numbers.len();
        Tensor::from_vec(numbers, count, like.device())
    }
}
