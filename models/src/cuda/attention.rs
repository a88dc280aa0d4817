//! Attention over packed segments.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
use candle_core::{DType, Result, Tensor};

use super::{Mask, address, device, empty, grid, launch};
use crate::kernels::{Dropout, Segments};

/// The threads of a block, and the elements of a head's row that one thread holds.
const THREADS: usize = 64;
const ELEMENTS: usize = 32;
/// The threads of a block that sums the gradients of a shared bias.
const BIAS_THREADS: usize = 256;
/// The numbers of a tile in `models/cuda/attention.cu`.
const TILE_NUMBERS: usize = 6;

/// The inputs of an attention layer: one dtype `T`, heads of at most 128 values.
pub(crate) struct Attention<'a> {
    /// Queries, keys and values `[T, D]`, or their concatenation `[T, 3 D]`, without the bias.
    pub inputs: &'a [Tensor],
    pub num_heads: usize,
    /// `D`.
    pub width: usize,
    pub scale: f32,
    pub causal: bool,
    pub mask: Option<Dropout>,
    pub bias: Option<BiasInput<'a>>,
}

/// A bias of the scores, of any float dtype.
pub(crate) struct BiasInput<'a> {
    pub values: &'a Tensor,
    /// `[L_q, L_k]` of a bias `[H, L_q, L_k]` that all segments share; `None` for one value per
    /// score.
    pub shared: Option<[usize; 2]>,
}

/// A bias in the layout of `models/cuda/attention.cu`. Addresses of 0 stand for no tensor.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Bias {
    values: u64,
    gradients: u64,
    queries: u32,
    keys: u32,
}

// SAFETY: the struct has the layout of the kernels' parameter, without padding.
unsafe impl DeviceRepr for Bias {}

/// The addresses and strides of queries, keys and values.
struct Parts {
    addresses: [u64; 3],
    query_stride: u32,
    key_stride: u32,
}

impl Attention<'_> {
    /// Returns the output `[T, D]`, and the tensors for the backward pass.
    pub fn forward(&self, segments: &Segments) -> Result<(Tensor, Vec<Tensor>)> {
        let x = &self.inputs[0];
        let (device, rows) = (device(x)?, x.dim(0)?);
        let (tiles, counts) = self.tiles(segments)?;
        let log_sums = empty(device, (rows, self.num_heads), DType::F32)?;
        // Rows outside every segment are 0.
        let covered: usize = segments.queries.iter().map(|span| span.length).sum();
        let shape = (rows, self.width);
        let y = match covered == rows {
            true => empty(device, shape, x.dtype())?,
            false => Tensor::zeros(shape, x.dtype(), x.device())?,
        };
        let parts = self.parts(self.inputs)?;
        let bias_values = self.bias_values()?;
        let bias = self.bias(bias_values.as_ref(), None)?;
        if counts[0] > 0 {
            launch!(
                device,
                &self.kernel("attention_forward")?,
                grid(counts[0] * self.num_heads, THREADS),
                parts.addresses[0],
                parts.addresses[1],
                parts.addresses[2],
                parts.query_stride,
                parts.key_stride,
                self.num_heads as u32,
                self.size() as u32,
                self.scale,
                u32::from(self.causal),
                Mask::from(self.mask),
                bias,
                address(&tiles)?,
                address(&y)?,
                address(&log_sums)?
            );
        }
        let counts =
            Tensor::from_slice(&counts.map(|count| count as i64), 2, &candle_core::Device::Cpu)?;
        Ok((y, vec![log_sums, tiles, counts]))
    }

    /// Returns the gradients of the inputs, and the gradient of the bias if `wants_bias`.
    pub fn backward(
        &self,
        segments: &Segments,
        y: &Tensor,
        dy: &Tensor,
        saved: &[Tensor],
        wants_bias: bool,
    ) -> Result<(Vec<Tensor>, Option<Tensor>)> {
        let [log_sums, tiles, counts] = saved else {
            candle_core::bail!("attention: no saved values");
        };
        let counts = counts.to_vec1::<i64>()?;
        let x = &self.inputs[0];
        let device = device(x)?;
        let products = empty(device, log_sums.shape(), DType::F32)?;
        // Rows outside every segment have no gradient.
        let gradients: Vec<Tensor> =
            self.inputs.iter().map(Tensor::zeros_like).collect::<Result<_>>()?;
        let (parts, outputs) = (self.parts(self.inputs)?, self.parts(&gradients)?);
        let bias_values = self.bias_values()?;
        let score_gradients = match wants_bias {
            // Scores of keys that a causal query does not see have no gradient.
            true => Some(Tensor::zeros(self.num_scores(segments).max(1), DType::F32, x.device())?),
            false => None,
        };
        let bias = self.bias(bias_values.as_ref(), score_gradients.as_ref())?;
        if counts[0] > 0 {
            launch!(
                device,
                &self.kernel("attention_backward_queries")?,
                grid(counts[0] as usize * self.num_heads, THREADS),
                parts.addresses[0],
                parts.addresses[1],
                parts.addresses[2],
                parts.query_stride,
                parts.key_stride,
                self.num_heads as u32,
                self.size() as u32,
                self.scale,
                u32::from(self.causal),
                Mask::from(self.mask),
                bias,
                address(tiles)?,
                address(y)?,
                address(dy)?,
                address(log_sums)?,
                address(&products)?,
                outputs.addresses[0]
            );
        }
        if counts[1] > 0 {
            let key_tiles = address(tiles)? + 8 * TILE_NUMBERS as u64 * counts[0] as u64;
            launch!(
                device,
                &self.kernel("attention_backward_keys")?,
                grid(counts[1] as usize * self.num_heads, THREADS),
                parts.addresses[0],
                parts.addresses[1],
                parts.addresses[2],
                parts.query_stride,
                parts.key_stride,
                self.num_heads as u32,
                self.size() as u32,
                self.scale,
                u32::from(self.causal),
                Mask::from(self.mask),
                bias,
                key_tiles,
                address(dy)?,
                address(log_sums)?,
                address(&products)?,
                outputs.addresses[1],
                outputs.addresses[2]
            );
        }
        let of_bias = |scores: &Tensor| self.bias_gradient(segments, scores);
        Ok((gradients, score_gradients.as_ref().map(of_bias).transpose()?))
    }

    /// The number of scores of all segments and heads.
    fn num_scores(&self, segments: &Segments) -> usize {
        let spans = segments.queries.iter().zip(&*segments.keys);
        spans.map(|(query, key)| self.num_heads * query.length * key.length).sum()
    }

    /// The bias in f32.
    fn bias_values(&self) -> Result<Option<Tensor>> {
        self.bias.as_ref().map(|bias| bias.values.to_dtype(DType::F32)?.contiguous()).transpose()
    }

    /// The kernels' parameter for a bias, and for the gradients of the scores.
    fn bias(&self, values: Option<&Tensor>, gradients: Option<&Tensor>) -> Result<Bias> {
        let [queries, keys] = self.bias.as_ref().and_then(|bias| bias.shared).unwrap_or_default();
        Ok(Bias {
            values: values.map_or(Ok(0), address)?,
            gradients: gradients.map_or(Ok(0), address)?,
            queries: queries as u32,
            keys: keys as u32,
        })
    }

    /// The gradient of the bias, from the gradients of all scores.
    fn bias_gradient(&self, segments: &Segments, scores: &Tensor) -> Result<Tensor> {
        let Some(bias) = &self.bias else { candle_core::bail!("attention: no bias") };
        let Some([queries, keys]) = bias.shared else {
            let scores = scores.narrow(0, 0, bias.values.elem_count())?;
            return scores.reshape(bias.values.shape())?.to_dtype(bias.values.dtype());
        };
        let mut numbers = vec![0i64];
        for (query, key) in segments.queries.iter().zip(&*segments.keys) {
            let first = numbers.pop().unwrap_or_default();
            let count = self.num_heads * query.length * key.length;
            numbers.extend([first, query.length as i64, key.length as i64, first + count as i64]);
        }
        let count = numbers.len() / 3;
        let length = numbers.len();
        let numbers = Tensor::from_vec(numbers, length, scores.device())?;
        let device = device(scores)?;
        let gradient = empty(device, bias.values.shape(), DType::F32)?;
        launch!(
            device,
            "attention_shared_bias",
            grid(bias.values.elem_count().div_ceil(BIAS_THREADS), BIAS_THREADS),
            address(scores)?,
            address(&numbers)?,
            count as u32,
            self.num_heads as u32,
            queries as u32,
            keys as u32,
            address(&gradient)?
        );
        gradient.to_dtype(bias.values.dtype())
    }

    /// The size of a head.
    fn size(&self) -> usize {
        self.width / self.num_heads
    }

    /// The number of threads that share a row.
    fn split(&self) -> usize {
        self.size().div_ceil(ELEMENTS).next_power_of_two()
    }

    fn kernel(&self, name: &str) -> Result<String> {
        Ok(format!("{}_{}", super::named(name, self.inputs[0].dtype())?, self.split()))
    }

    fn parts(&self, tensors: &[Tensor]) -> Result<Parts> {
        let columns = tensors[0].dim(1)? as u32;
        let addresses = match tensors {
            [q, k, v] => [address(q)?, address(k)?, address(v)?],
            _ => {
                let bytes = (self.width * tensors[0].dtype().size_in_bytes()) as u64;
                let first = address(&tensors[0])?;
                [first, first + bytes, first + 2 * bytes]
            }
        };
        Ok(Parts { addresses, query_stride: columns, key_stride: columns })
    }

    /// Returns the tiles of queries, then the tiles of keys, and the number of each.
    fn tiles(&self, segments: &Segments) -> Result<(Tensor, [usize; 2])> {
        let rows = THREADS / self.split();
        let mut tiles = [Vec::new(), Vec::new()];
        let mut first_score = 0;
        for (query, key) in segments.queries.iter().zip(&*segments.keys) {
            for (tiles, length) in tiles.iter_mut().zip([query.length, key.length]) {
                for first_row in (0..length).step_by(rows) {
                    let numbers =
                        [query.start, query.length, key.start, key.length, first_score, first_row];
                    tiles.extend(numbers.map(|number| number as i64));
                }
            }
            first_score += self.num_heads * query.length * key.length;
        }
        let counts = [tiles[0].len() / TILE_NUMBERS, tiles[1].len() / TILE_NUMBERS];
        let mut tiles = tiles.concat();
        if tiles.is_empty() {
            tiles.push(0);
        }
        let count = tiles.len();
        Ok((Tensor::from_vec(tiles, count, self.inputs[0].device())?, counts))
    }
}
