//! Containers of Qt resources (`.rcc`), with big-endian numbers. The header is `qres`, the version,
//! and the offsets of the tree, the data and the names. A node of the tree has the offset of its
//! name, flags, and, for a folder, the number of children and the index of the first; for a file,
//! its language and the offset of its data.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use flate2::read::ZlibDecoder;

use crate::DataError;

const IS_COMPRESSED: u16 = 1;
const IS_FOLDER: u16 = 2;
const IS_ZSTD: u16 = 4;
/// Limits on the bytes of all files, the number of files and folders, and the length of a path.
const MAX_BYTES: usize = 1 << 28;
const MAX_NODES: usize = 100_000;
const MAX_PATH: usize = 1024;

/// Reads all files of a container, by their paths.
///
/// # Errors
/// `Io`; `Malformed` for a damaged container, for names that lead out of a folder, and for files of
/// more than 256 MiB together
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Vec<u8>>, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let bytes = engram_durable::read_file(path).map_err(io)?;
    let remedy = "unpack the package again; files of Qt 4 to 6 without zstd can be read";
    files(&bytes).map_err(|reason| DataError::of_file(path, reason, remedy))
}

/// The two, four or more bytes at `base + offset`.
fn at<const N: usize>(bytes: &[u8], base: u32, offset: usize) -> Result<[u8; N], String> {
    let start = (base as usize).checked_add(offset);
    let found = start.and_then(|start| bytes.get(start..)?.first_chunk());
    found.copied().ok_or_else(|| format!("is damaged: {N} bytes at {base} + {offset} are missing"))
}

fn files(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let number = |base, offset| at(bytes, base, offset).map(u32::from_be_bytes);
    let (version, tree, data, names) =
        (number(0, 4)?, number(0, 8)?, number(0, 12)?, number(0, 16)?);
    if !bytes.starts_with(b"qres") || !(1..=3).contains(&version) {
        return Err(format!("is not a Qt container of the versions 1 to 3 (version {version})"));
    }
    let node_size = if version == 1 { 14 } else { 22 };
    let (mut output, mut size, mut seen) = (BTreeMap::new(), 0, BTreeSet::new());
    let mut nodes = vec![(0u32, None::<Rc<str>>)];
    while let Some((index, folder)) = nodes.pop() {
        let node = index as usize * node_size;
        let flags = u16::from_be_bytes(at(bytes, tree, node + 4)?);
        if !seen.insert(index) {
            return Err(format!("is damaged: node {index} is in two folders"));
        }
        let path = match folder {
            None => String::new(),
            Some(folder) => folder.to_string() + &name(bytes, names, number(tree, node)? as usize)?,
        };
        if path.len() > MAX_PATH {
            return Err(format!("has a path of more than {MAX_PATH} bytes"));
        }
        if flags & IS_FOLDER != 0 {
            let (count, first) = (number(tree, node + 6)?, number(tree, node + 10)?);
            if seen.len() + nodes.len() + count as usize > MAX_NODES {
                return Err(format!("has more than {MAX_NODES} files"));
            }
            let folder: Rc<str> = if path.is_empty() { path } else { path + "/" }.into();
            let child = |index| (first.saturating_add(index), Some(folder.clone()));
            nodes.extend((0..count).rev().map(child));
            continue;
        }
        let offset = number(tree, node + 10)? as usize;
        let (start, length) = (data as usize + offset + 4, number(data, offset)? as usize);
        let stored = start.checked_add(length).and_then(|end| bytes.get(start..end));
        let stored = stored.ok_or_else(|| format!("is damaged: {path} is not complete"))?;
        let mut content = Vec::new();
        let limit = (MAX_BYTES - size) as u64 + 1;
        let unpacked = match stored.get(4..) {
            _ if flags & IS_ZSTD != 0 => return Err(format!("{path} is compressed by zstd")),
            Some(packed) if flags & IS_COMPRESSED != 0 => {
                ZlibDecoder::new(packed).take(limit).read_to_end(&mut content)
            }
            _ => stored.take(limit).read_to_end(&mut content),
        };
        unpacked.map_err(|error| format!("is damaged: {path} cannot be unpacked: {error}"))?;
        size += content.len();
        if size > MAX_BYTES {
            return Err(format!("has files of more than {} MiB", MAX_BYTES >> 20));
        }
        output.entry(path).or_insert(content);
    }
    Ok(output)
}

/// The name at an offset: its length in UTF-16 units, a checksum, and the units.
fn name(bytes: &[u8], names: u32, offset: usize) -> Result<String, String> {
    let length = usize::from(u16::from_be_bytes(at(bytes, names, offset)?));
    let units = (0..length).map(|unit| at(bytes, names, offset + 6 + 2 * unit));
    let units = units.map(|unit| unit.map(u16::from_be_bytes)).collect::<Result<Vec<_>, _>>()?;
    let name = String::from_utf16(&units).map_err(|error| format!("is damaged: {error}"))?;
    let is_unsafe = |c: char| "/\\:".contains(c) || c.is_control();
    if ["", ".", ".."].contains(&&*name) || name.contains(is_unsafe) {
        return Err(format!("has a file with the name {name:?}"));
    }
    Ok(name)
}
