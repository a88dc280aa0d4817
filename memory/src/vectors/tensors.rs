//! Parses the header of a safetensors file.

use std::io::{self, Read};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{Layout, NumberType};

/// The header limit of the safetensors crate, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the header and finds the tensor `name`, or the only tensor. `file_bytes` is the size of
/// the file; `None` if it is unknown.
pub(super) fn read_header(
    file: &mut impl Read,
    file_bytes: Option<u64>,
    name: &str,
) -> Result<Layout, String> {
    let unknown_format = |reason: String| format!("is neither .npy nor safetensors: {reason}");
    let unreadable = |error: io::Error| unknown_format(format!("cannot read its header ({error})"));
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(unreadable)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || file_bytes.is_some_and(|bytes| length > bytes) {
        return Err(unknown_format("it has no header".to_owned()));
    }
    let mut header = Vec::new();
    file.by_ref().take(length).read_to_end(&mut header).map_err(unreadable)?;
    if header.len() as u64 != length {
        return Err(unknown_format("it ends within its header".to_owned()));
    }
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| unknown_format(error.to_string()))?;
    let expected = (8 + length).checked_add(header.data_len() as u64);
    if file_bytes.is_some() && file_bytes != expected {
        return Err("has another length than its header says".to_owned());
    }
    let names = header.offset_keys();
    let tensor = match (header.info(name), names.as_slice()) {
        (Some(tensor), _) => tensor,
        (None, [only]) => header.info(only).ok_or("has no tensor")?,
        (None, []) => return Err("has no tensor".to_owned()),
        (None, _) => {
            let names: String = names.join(", ").chars().take(200).collect();
            return Err(format!("has no tensor `{name}`, but {}", names.escape_debug()));
        }
    };
    let number_type = match tensor.dtype {
        Dtype::F32 => NumberType::F32,
        Dtype::F16 => NumberType::F16,
        Dtype::BF16 => NumberType::BF16,
        Dtype::F64 => NumberType::F64,
        other => return Err(format!("has numbers of type {other:?}")),
    };
    let skipped_bytes = tensor.data_offsets.0 as u64;
    let shape = tensor.shape.clone();
    Ok(Layout { shape, number_type, fortran_order: false, skipped_bytes })
}
