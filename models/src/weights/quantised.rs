//! Published weights in codes, which are dequantised to f32: FP8, bitsandbytes, GPTQ and AWQ.
//!
//! References: `compressed_tensors` 0.20.1; `transformers` 5 (`integrations/finegrained_fp8.py`);
//! `bitsandbytes` 0.50.2 (`functional.py`); `auto_gptq` 0.7.1 (`qlinear/qlinear_cuda.py`); `autoawq`
//! 0.2.9 (`utils/packing_utils.py`).

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use serde::Deserialize;

use super::{Weights, load};
use crate::error::{ModelError, Result};

/// How the weight of a linear layer is stored in codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// FP8 codes with a scale for the weight, for each row, or for each block of 128 × 128.
    Fp8,
    /// Codes of 8 bits with the same scales, as in compressed-tensors.
    Int8,
    /// Codes of 8 bits; `SCB` has the largest absolute value of each row.
    BitsAndBytes8,
    /// Levels of 4 bits; `absmax` has the largest absolute value of each block, perhaps in codes.
    BitsAndBytes4,
    /// Codes of 2, 4 or 8 bits, packed along the inputs; `g_idx` has the group of each input.
    Gptq,
    /// Codes of 4 bits, packed along the outputs in another order.
    Awq,
}

/// The names of the scales of [`Method::Fp8`] and [`Method::Int8`].
const SCALES: [&str; 2] = ["weight_scale", "weight_scale_inv"];
/// The rows and columns of a block of FP8 codes with one scale.
const BLOCK: usize = 128;
/// The place in a word of AWQ of each of 8 outputs.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// 1 / 127 in f32, as bitsandbytes has it.
const INT8_SCALE: f32 = 7.874_016e-3;

impl Method {
    /// The name for users.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "FP8",
            Self::Int8 => "int8 (compressed-tensors)",
            Self::BitsAndBytes8 => "bitsandbytes int8",
            Self::BitsAndBytes4 => "bitsandbytes 4-bit",
            Self::Gptq => "GPTQ",
            Self::Awq => "AWQ",
        }
    }
}

/// The settings of a 4-bit weight of bitsandbytes.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    shape: Vec<usize>,
    #[serde(default)]
    nested_blocksize: usize,
    #[serde(default)]
    nested_offset: f32,
}

impl Weights {
    /// How the weight `name` is stored; `None` for a weight that is not in codes of a known method.
    pub(super) fn method(&self, name: &str) -> Option<Method> {
        let layer = name.strip_suffix(".weight")?;
        let has = |part: &str| self.view(&format!("{layer}.{part}")).is_some();
        // Bytes are the exponents of MXFP8.
        let has_scales = || {
            let mut scales = SCALES.iter().filter_map(|part| self.view(&format!("{layer}.{part}")));
            scales.any(|(view, _)| view.dtype() != Dtype::U8)
        };
        match self.view(name).map(|(view, _)| view.dtype()) {
            None if has("qweight") && has("qzeros") && has("scales") => {
                Some(if has("g_idx") { Method::Gptq } else { Method::Awq })
            }
            Some(Dtype::I8) if has("SCB") => Some(Method::BitsAndBytes8),
            Some(Dtype::U8) if has("weight.absmax") && has("weight.quant_map") => {
                Some(Method::BitsAndBytes4)
            }
            Some(Dtype::F8_E4M3) if has_scales() => Some(Method::Fp8),
            Some(Dtype::I8) if has_scales() && !has("weight_zero_point") => Some(Method::Int8),
            _ => None,
        }
    }

    /// The weight `name` in f32.
    ///
    /// # Errors
    /// [`ModelError::BadFile`] if its codes, scales and settings do not fit each other.
    pub(super) fn dequantise(&self, name: &str, method: Method) -> Result<Tensor> {
        let values = match method {
            Method::Fp8 | Method::Int8 => self.scaled(name, &SCALES),
            Method::BitsAndBytes8 => self.scaled(name, &["SCB"]),
            Method::BitsAndBytes4 => self.levels(name),
            Method::Gptq | Method::Awq => self.packed(name, method),
        };
        let (values, shape) = values?.ok_or_else(|| {
            let reason = format!(
                "tensor `{name}` is in codes of {}, whose shapes, scales or settings do not fit \
                 each other or are not supported; give the folder of the original model, or \
                 dequantise it and save it again",
                method.name()
            );
            ModelError::BadFile { path: self.path.clone(), reason }
        })?;
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    /// The values of a tensor in f32, and its shape; `None` if it does not exist.
    fn floats(&self, name: &str) -> Result<Option<Values>> {
        let Some((view, path)) = self.view(name) else { return Ok(None) };
        let shape = view.shape().to_vec();
        let values = match view.dtype() {
            Dtype::I8 => view.data().iter().map(|code| f32::from(*code as i8)).collect(),
            _ => load(&view, path, name, DType::F32, &Device::Cpu)?.flatten_all()?.to_vec1()?,
        };
        Ok(Some((values, shape)))
    }

    /// The words of a packed tensor, and its shape; `None` if it has another type.
    fn words(&self, name: &str) -> Option<(Vec<u32>, Vec<usize>)> {
        let (view, _) = self.view(name).filter(|(view, _)| view.dtype() == Dtype::I32)?;
        let (words, _) = view.data().as_chunks::<4>();
        Some((words.iter().map(|word| u32::from_le_bytes(*word)).collect(), view.shape().to_vec()))
    }

    /// Codes of 8 bits times their scales.
    fn scaled(&self, name: &str, scale_names: &[&str]) -> Result<Option<Values>> {
        let layer = name.trim_end_matches("weight");
        let find = |part: &&str| self.floats(&format!("{layer}{part}")).transpose();
        let scales = scale_names.iter().find_map(find).transpose()?;
        let (Some((mut values, shape)), Some((scales, scale_shape))) = (self.floats(name)?, scales)
        else {
            return Ok(None);
        };
        let format = self.view(&format!("{layer}weight_format"));
        let is_by_row = format.is_none_or(|(view, _)| view.data().iter().all(|byte| *byte == 0));
        let (&[rows, columns], true) = (&shape[..], is_by_row) else { return Ok(None) };
        let blocks = [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let (block_rows, block_columns) = match &scale_shape[..] {
            _ if scales.len() == 1 => (rows, columns),
            [n] | [n, 1] if *n == rows => (1, columns),
            _ if scale_shape == blocks => (BLOCK, BLOCK),
            _ => return Ok(None),
        };
        let factor = if scale_names == ["SCB"] { INT8_SCALE } else { 1.0 };
        let blocks_in_row = columns.div_ceil(block_columns.max(1));
        for (i, value) in values.iter_mut().enumerate() {
            let (row, column) = (i / columns, i % columns);
            *value *= scales[row / block_rows * blocks_in_row + column / block_columns] * factor;
        }
        Ok(Some((values, shape)))
    }

    /// Levels of 4 bits times the largest absolute value of their block.
    fn levels(&self, name: &str) -> Result<Option<Values>> {
        let state = ["nf4", "fp4"].iter().find_map(|kind| {
            let (view, _) = self.view(&format!("{name}.quant_state.bitsandbytes__{kind}"))?;
            serde_json::from_slice::<State>(view.data()).ok()
        });
        let part = |part: &str| self.floats(&format!("{name}.{part}"));
        let (Some(state), Some((levels, _)), Some((mut peaks, _)), Some((codes, _))) =
            (state, part("quant_map")?, part("absmax")?, self.view(name))
        else {
            return Ok(None);
        };
        if let (Some((map, _)), Some((scales, _))) =
            (part("nested_quant_map")?, part("nested_absmax")?)
        {
            let fits = peaks.len() <= scales.len().saturating_mul(state.nested_blocksize);
            if map.len() != 256 || !fits {
                return Ok(None);
            }
            for (i, peak) in peaks.iter_mut().enumerate() {
                let scale = scales[i / state.nested_blocksize];
                *peak = map[*peak as usize & 255] * scale + state.nested_offset;
            }
        }
        let (count, codes) = (2 * codes.data().len(), codes.data());
        let shape_count = state.shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let fits = shape_count.is_some_and(|n| n <= count && n + 1 >= count)
            && levels.len() == 16
            && count <= peaks.len().saturating_mul(state.blocksize);
        let value = |i: usize| {
            let code = if i.is_multiple_of(2) { codes[i / 2] >> 4 } else { codes[i / 2] & 15 };
            levels[usize::from(code)] * peaks[i / state.blocksize]
        };
        let count = shape_count.filter(|_| fits);
        Ok(count.map(|count| ((0..count).map(value).collect(), state.shape)))
    }

    /// Codes of groups of inputs, minus the group's zero point, times its scale.
    fn packed(&self, name: &str, method: Method) -> Result<Option<Values>> {
        let part = |part: &str| format!("{}{part}", name.trim_end_matches("weight"));
        let (Some((codes, shape)), Some((zeros, zeros_shape)), Some((scales, scales_shape))) = (
            self.words(&part("qweight")),
            self.words(&part("qzeros")),
            self.floats(&part("scales"))?,
        ) else {
            return Ok(None);
        };
        let (&[rows, width], &[groups, outputs]) = (&shape[..], &scales_shape[..]) else {
            return Ok(None);
        };
        let is_awq = method == Method::Awq;
        let group_of_input = match self.words(&part("g_idx")) {
            Some((group_of_input, _)) => group_of_input,
            None => (0..rows).map(|i| (i * groups / rows) as u32).collect(),
        };
        let inputs = group_of_input.len();
        let bits = if is_awq { 4 } else { 32 * rows / inputs.max(1) };
        let fits = [2, 4, 8].contains(&bits)
            && (rows, width)
                == if is_awq { (inputs, outputs / 8) } else { (inputs * bits / 32, outputs) }
            && (inputs * bits).is_multiple_of(32)
            && (outputs * bits).is_multiple_of(32)
            && zeros_shape == [groups, outputs * bits / 32]
            && group_of_input.iter().all(|group| (*group as usize) < groups);
        if !fits {
            return Ok(None);
        }
        // The first format of GPTQ subtracts 1 from each zero point.
        let is_second = |file: &&str| {
            let text = engram_durable::read_text(self.path.with_file_name(file));
            text.is_ok_and(|text| text.contains("gptq_v2"))
        };
        let is_exact = is_awq || ["config.json", "quantize_config.json"].iter().any(is_second);
        let (per_word, mask) = (32 / bits, (1u32 << bits) - 1);
        let along_outputs = |words: &[u32], row: usize, output: usize| {
            let place = output % per_word;
            let place = if is_awq { AWQ_PLACES[place] } else { place };
            words[(row * outputs + output) / per_word] >> (bits * place) & mask
        };
        let value = |output: usize, input: usize| {
            let group = group_of_input[input] as usize;
            let code = match is_awq {
                true => along_outputs(&codes, input, output),
                false => {
                    codes[input / per_word * outputs + output] >> (bits * (input % per_word)) & mask
                }
            };
            let zero = along_outputs(&zeros, group, output) + u32::from(!is_exact);
            scales[group * outputs + output] * (code as f32 - zero as f32)
        };
        let values = (0..outputs).flat_map(|output| (0..inputs).map(move |input| (output, input)));
        let values = values.map(|(output, input)| value(output, input)).collect();
        Ok(Some((values, vec![outputs, inputs])))
    }
}

/// The values of a tensor, in row-major order, and its shape.
type Values = (Vec<f32>, Vec<usize>);
