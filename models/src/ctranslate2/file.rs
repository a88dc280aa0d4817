//! `model.bin`, version 6.
//!
//! Little endian: u32 version; string name of the kind of model; u32 its revision; u32 number of
//! variables; each: string name, u8 rank, a u32 for each dimension, u8 type, u32 bytes, row-major
//! values; then u32 number of aliases, each two strings. A string is a u16 length, that many bytes,
//! the last of them zero.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use memmap2::Mmap;

use super::Device;
use crate::error::{ModelError, Result};

/// The version whose layout is known.
const VERSION: u32 = 6;

/// More variables or dimensions than this are damage.
const MOST_VARIABLES: usize = 1 << 16;
const MOST_DIMS: usize = 8;

/// An open `model.bin`.
pub(super) struct File {
    path: PathBuf,
    map: Mmap,
    spec: String,
    variables: HashMap<String, Variable>,
}

#[derive(Clone)]
struct Variable {
    dims: Vec<usize>,
    kind: Kind,
    bytes: Range<usize>,
}

/// The types, by CTranslate2's numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    F32,
    I8,
    I16,
    I32,
    F16,
    Bf16,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::F32, Self::I8, Self::I16, Self::I32, Self::F16, Self::Bf16]
            .get(number as usize)
            .copied()
    }

    fn size(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }
}

impl File {
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| ModelError::Io { path: path.to_path_buf(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        // SAFETY: as for every weights file, nobody is to change it while it is read; what is read is
        // checked against its length, and all values of the types are valid numbers.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let mut cursor = Cursor { bytes: &map, place: 0 };
        let (spec, variables) = cursor.variables().map_err(|reason| bad(path, reason))?;
        Ok(Self { path: path.to_path_buf(), map, spec, variables })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn spec(&self) -> &str {
        &self.spec
    }

    pub fn bad(&self, reason: String) -> ModelError {
        bad(&self.path, reason)
    }

    pub fn has(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// The size of a dimension.
    pub fn size(&self, name: &str, dim: usize) -> Result<usize> {
        let variable = self.variable(name)?;
        let missing = || self.bad(format!("variable `{name}` has only {:?}", variable.dims));
        variable.dims.get(dim).copied().ok_or_else(missing)
    }

    /// A flag or a number of heads; `None` if the file has no such variable.
    pub fn number(&self, name: &str) -> Result<Option<i64>> {
        let Some(variable) = self.variables.get(name) else { return Ok(None) };
        let bytes = &self.map[variable.bytes.clone()];
        match (variable.kind, bytes) {
            (Kind::I8, &[a]) => Ok(Some(i64::from(a as i8))),
            (Kind::I16, &[a, b]) => Ok(Some(i64::from(i16::from_le_bytes([a, b])))),
            (Kind::I32, &[a, b, c, d]) => Ok(Some(i64::from(i32::from_le_bytes([a, b, c, d])))),
            (kind, _) => Err(self.bad(format!("variable `{name}` is no number ({kind:?})"))),
        }
    }

    /// A tensor: as f16, bf16 or f32 if it is stored so, as f32 if it is quantised.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let variable = self.variable(name)?;
        let bytes = &self.map[variable.bytes.clone()];
        let raw = |dtype| Ok(Tensor::from_raw_buffer(bytes, dtype, &variable.dims, &Device::Cpu)?);
        let values: Vec<f32> = match variable.kind {
            Kind::F32 => return raw(DType::F32),
            Kind::F16 => return raw(DType::F16),
            Kind::Bf16 => return raw(DType::BF16),
            Kind::I8 => bytes.iter().map(|byte| f32::from(*byte as i8)).collect(),
            Kind::I16 => {
                let pairs = bytes.chunks_exact(2);
                pairs.map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]]))).collect()
            }
            Kind::I32 => return Err(self.bad(format!("variable `{name}` is packed in 32 bits"))),
        };
        // Quantised: a weight is its number by the scale of all, or of its row.
        let scale = self.tensor(&format!("{name}_scale"))?.to_dtype(DType::F32)?;
        let scale = match (scale.elem_count(), variable.dims.first()) {
            (1, _) => scale.reshape(vec![1; variable.dims.len()])?,
            (scales, Some(rows)) if scales == *rows => {
                let mut dims = vec![1; variable.dims.len()];
                dims[0] = scales;
                scale.reshape(dims)?
            }
            (scales, _) => {
                let reason = format!("`{name}` of {:?} has {scales} scales", variable.dims);
                return Err(self.bad(reason));
            }
        };
        let values = Tensor::from_vec(values, variable.dims.as_slice(), &Device::Cpu)?;
        Ok(values.broadcast_div(&scale)?)
    }

    fn variable(&self, name: &str) -> Result<&Variable> {
        let missing = || self.bad(format!("has no variable `{name}`"));
        self.variables.get(name).ok_or_else(missing)
    }
}

fn bad(path: &Path, reason: String) -> ModelError {
    ModelError::BadCtranslate2 { path: path.to_path_buf(), reason }
}

/// A place in the file; errors are reasons.
struct Cursor<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl<'a> Cursor<'a> {
    fn variables(&mut self) -> Result<(String, HashMap<String, Variable>), String> {
        let version = self.u32()?;
        if version != VERSION {
            return Err(format!(
                "version {version} of the format; version {VERSION} is known: convert the model anew \
                 with a CTranslate2 of version 4"
            ));
        }
        let spec = self.string()?;
        let _revision = self.u32()?;
        let count = self.u32()? as usize;
        if count > MOST_VARIABLES {
            return Err(format!("{count} variables"));
        }
        // A name, a rank, a type and a length take 10 bytes at least, so that the file bounds what it may claim.
        let most = (self.bytes.len() - self.place) / 10;
        let mut variables = HashMap::with_capacity(count.min(most));
        for _ in 0..count {
            let name = self.string()?;
            let rank = usize::from(self.u8()?);
            if rank > MOST_DIMS {
                return Err(format!("variable `{name}` of {rank} dimensions"));
            }
            let dims: Vec<usize> =
                (0..rank).map(|_| self.u32().map(|d| d as usize)).collect::<Result<_, _>>()?;
            let number = self.u8()?;
            let kind = Kind::of(number)
                .ok_or_else(|| format!("variable `{name}` of the unknown type {number}"))?;
            let length = self.u32()? as usize;
            let elements = dims.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
            if elements.and_then(|count| count.checked_mul(kind.size())) != Some(length) {
                let reason = format!("variable `{name}` of {dims:?} has {length} bytes");
                return Err(reason);
            }
            let start = self.place;
            self.take(length)?;
            let variable = Variable { dims, kind, bytes: start..start + length };
            if variables.insert(name.clone(), variable).is_some() {
                return Err(format!("variable `{name}` is there twice"));
            }
        }
        // Variables of equal values are there once, and called by the other names too.
        let aliases = self.u32()?;
        for _ in 0..aliases {
            let (alias, name) = (self.string()?, self.string()?);
            let Some(variable) = variables.get(&name).cloned() else {
                return Err(format!("`{alias}` stands for `{name}`, which is not there"));
            };
            variables.insert(alias, variable);
        }
        match self.bytes.len() - self.place {
            0 => Ok((spec, variables)),
            rest => Err(format!("{rest} bytes behind the end")),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.place.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(format!("is cut: it ends after {} bytes", self.bytes.len()));
        };
        let taken = &self.bytes[self.place..end];
        self.place = end;
        Ok(taken)
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
                Err(_) => Err("a name that is not UTF-8".to_string()),
            },
            _ => Err("a name that does not end".to_string()),
        }
    }
}
