//! The format of `model.bin`, version 6.
//!
//! All numbers are little endian. The file holds, in this order:
//! - u32 version, string model kind, u32 revision,
//! - u32 number of variables, the variables,
//! - u32 number of aliases, two strings per alias.
//!
//! A variable is a string name, u8 rank, one u32 per dimension, u8 type, u32 number of bytes, and
//! row-major values. A string is a u16 length and that many bytes; the last byte is zero.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use memmap2::Mmap;

use super::Device;
use crate::error::{ModelError, Result};

/// The supported version.
const VERSION: u32 = 6;

/// The largest accepted number of variables in a file.
const MAX_VARIABLES: usize = 1 << 16;
/// The largest accepted number of dimensions of a variable.
const MAX_DIMS: usize = 8;

/// An open `model.bin`.
pub(super) struct File {
    pub path: PathBuf,
    map: Mmap,
    /// The model kind, such as `WhisperSpec`.
    pub spec: String,
    variables: HashMap<String, Variable>,
}

/// A stored tensor: its shape, its type, and the range of its bytes in the file.
#[derive(Clone)]
struct Variable {
    dims: Vec<usize>,
    data_type: DataType,
    bytes: Range<usize>,
}

/// The data types, in the order of CTranslate2's ids.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DataType {
    F32,
    I8,
    I16,
    I32,
    F16,
    Bf16,
}

impl DataType {
    /// Returns the type with CTranslate2's id; `None` for an unknown id.
    fn from_id(id: u8) -> Option<Self> {
        [Self::F32, Self::I8, Self::I16, Self::I32, Self::F16, Self::Bf16].get(id as usize).copied()
    }

    /// Returns the number of bytes of one value.
    fn num_bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }
}

impl File {
    /// Maps the file and reads the list of its variables.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadFile`].
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| ModelError::Io { path: path.to_path_buf(), source };
        let file = engram_durable::open_file(path).map_err(io)?;
        // SAFETY: as with every weights file, nobody may change the file while it is read. Reads
        // are checked against its length, and every bit pattern is valid for the types.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let mut cursor = Cursor { bytes: &map, position: 0 };
        let (spec, variables) = cursor.variables().map_err(|reason| file_error(path, reason))?;
        Ok(Self { path: path.to_path_buf(), map, spec, variables })
    }

    /// Returns an error for this file.
    pub fn error(&self, reason: String) -> ModelError {
        file_error(&self.path, reason)
    }

    /// Whether the file has a variable with this name.
    pub fn has(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// Returns the size of dimension `dim` of a variable.
    pub fn size(&self, name: &str, dim: usize) -> Result<usize> {
        let variable = self.variable(name)?;
        let missing =
            || self.error(format!("variable `{name}` has only the dimensions {:?}", variable.dims));
        variable.dims.get(dim).copied().ok_or_else(missing)
    }

    /// Returns an integer, such as a number of heads; `None` if the file has no such variable.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        let Some(variable) = self.variables.get(name) else { return Ok(None) };
        let bytes = &self.map[variable.bytes.clone()];
        match (variable.data_type, bytes) {
            (DataType::I8, &[a]) => Ok(Some(i64::from(a as i8))),
            (DataType::I16, &[a, b]) => Ok(Some(i64::from(i16::from_le_bytes([a, b])))),
            (DataType::I32, &[a, b, c, d]) => Ok(Some(i64::from(i32::from_le_bytes([a, b, c, d])))),
            (data_type, _) => {
                Err(self.error(format!("variable `{name}` is not an integer ({data_type:?})")))
            }
        }
    }

    /// Returns a tensor: f16, bf16 or f32 as stored; quantised values as f32.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let variable = self.variable(name)?;
        let bytes = &self.map[variable.bytes.clone()];
        let raw = |dtype| Ok(Tensor::from_raw_buffer(bytes, dtype, &variable.dims, &Device::Cpu)?);
        let values: Vec<f32> = match variable.data_type {
            DataType::F32 => return raw(DType::F32),
            DataType::F16 => return raw(DType::F16),
            DataType::Bf16 => return raw(DType::BF16),
            DataType::I8 => bytes.iter().map(|byte| f32::from(*byte as i8)).collect(),
            DataType::I16 => {
                let pairs = bytes.chunks_exact(2);
                pairs.map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]]))).collect()
            }
            DataType::I32 => {
                return Err(
                    self.error(format!("variable `{name}`: 32-bit weights are not supported"))
                );
            }
        };
        // A quantised weight is an integer, to be divided by the scale of the tensor or of its row.
        let scale = self.tensor(&format!("{name}_scale"))?.to_dtype(DType::F32)?;
        let scale = match (scale.elem_count(), variable.dims.first()) {
            (1, _) => scale.reshape(vec![1; variable.dims.len()])?,
            (scales, Some(rows)) if scales == *rows => {
                let mut dims = vec![1; variable.dims.len()];
                dims[0] = scales;
                scale.reshape(dims)?
            }
            (scales, _) => {
                let reason = format!("`{name}` of shape {:?} has {scales} scales", variable.dims);
                return Err(self.error(reason));
            }
        };
        let values = Tensor::from_vec(values, variable.dims.as_slice(), &Device::Cpu)?;
        Ok(values.broadcast_div(&scale)?)
    }

    fn variable(&self, name: &str) -> Result<&Variable> {
        let missing = || self.error(format!("has no variable `{name}`"));
        self.variables.get(name).ok_or_else(missing)
    }
}

fn file_error(path: &Path, reason: String) -> ModelError {
    let reason = format!(
        "cannot read this CTranslate2 model.bin ({reason}); download it again, or convert the model \
         again"
    );
    ModelError::BadFile { path: path.to_path_buf(), reason }
}

/// A read position in the file. An error holds the reason for [`file_error`].
struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    /// Reads the whole file. Returns the model kind and the variables by name.
    fn variables(&mut self) -> Result<(String, HashMap<String, Variable>), String> {
        let version = self.u32()?;
        if version != VERSION {
            return Err(format!(
                "version {version} of the format is not supported, only version {VERSION}: convert \
                 the model again with CTranslate2 4"
            ));
        }
        let spec = self.string()?;
        let _revision = self.u32()?;
        let count = self.u32()? as usize;
        if count > MAX_VARIABLES {
            return Err(format!("{count} variables are more than {MAX_VARIABLES}"));
        }
        // A name, a rank, a type and a length take at least 10 bytes. This bounds the number of
        // variables by the file size.
        let max_count = (self.bytes.len() - self.position) / 10;
        let mut variables = HashMap::with_capacity(count.min(max_count));
        for _ in 0..count {
            let name = self.string()?;
            let rank = usize::from(self.u8()?);
            if rank > MAX_DIMS {
                return Err(format!(
                    "variable `{name}` has {rank} dimensions, more than {MAX_DIMS}"
                ));
            }
            let dims: Vec<usize> =
                (0..rank).map(|_| self.u32().map(|d| d as usize)).collect::<Result<_, _>>()?;
            let id = self.u8()?;
            let data_type = DataType::from_id(id)
                .ok_or_else(|| format!("variable `{name}` has the unknown type {id}"))?;
            let length = self.u32()? as usize;
            let elements = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
            if elements.and_then(|count| count.checked_mul(data_type.num_bytes())) != Some(length) {
                let reason = format!("variable `{name}` of shape {dims:?} has {length} bytes");
                return Err(reason);
            }
            let start = self.position;
            self.take(length)?;
            let variable = Variable { dims, data_type, bytes: start..start + length };
            if variables.insert(name.clone(), variable).is_some() {
                return Err(format!("variable `{name}` appears twice"));
            }
        }
        // Variables with equal values are stored once. The other names are aliases.
        let aliases = self.u32()?;
        for _ in 0..aliases {
            let (alias, name) = (self.string()?, self.string()?);
            let Some(variable) = variables.get(&name).cloned() else {
                return Err(format!("`{alias}` is an alias of `{name}`, which is missing"));
            };
            variables.insert(alias, variable);
        }
        match self.bytes.len() - self.position {
            0 => Ok((spec, variables)),
            count => Err(format!("{count} bytes after the end")),
        }
    }

    /// Returns the next `count` bytes and moves past them.
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.position.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(format!("is truncated: it ends after {} bytes", self.bytes.len()));
        };
        let bytes = &self.bytes[self.position..end];
        self.position = end;
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, String> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, String> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn string(&mut self) -> Result<String, String> {
        let length = usize::from(self.u16()?);
        match self.take(length)? {
            [text @ .., 0] => match std::str::from_utf8(text) {
                Ok(text) => Ok(text.to_string()),
                Err(_) => Err("a name is not UTF-8".to_string()),
            },
            _ => Err("a name is not terminated by a zero byte".to_string()),
        }
    }
}
