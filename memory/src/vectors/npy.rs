//! Parses the header of a `.npy` file, and writes `.npy` files.

use std::io::{self, Read};

use super::{Layout, NumberType};
use crate::error::MemoryError;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The maximum header size. NumPy writes 128 bytes for plain arrays, and does not read more than
/// 10,000.
const MAX_HEADER_BYTES: usize = 10_000;
/// The numbers start at a multiple of this, as in NumPy's files.
const ALIGNMENT: usize = 64;

/// A number that can be written to a `.npy` file.
pub trait NpyNumber: Copy {
    /// NumPy's name of the type.
    const DESCR: &'static str;

    /// Appends the number in little-endian order.
    fn append_to(self, bytes: &mut Vec<u8>);
}

macro_rules! npy_number {
    ($type:ty, $descr:literal) => {
        impl NpyNumber for $type {
            const DESCR: &'static str = $descr;

            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    };
}

npy_number!(f32, "<f4");
npy_number!(f64, "<f8");
npy_number!(i64, "<i8");

/// Returns the bytes of a `.npy` file with a matrix, `[rows, columns]`.
///
/// # Errors
/// [`MemoryError::InvalidOption`] if the last row is not full.
pub fn npy_bytes<T: NpyNumber>(matrix: &[T], columns: usize) -> Result<Vec<u8>, MemoryError> {
    npy_bytes_of_rows(matrix, &[columns])
}

/// Returns the bytes of a `.npy` file in which each row is an array, such as values
/// `[rows, tokens, width]`.
///
/// # Errors
/// [`MemoryError::InvalidOption`] if the last row is not full.
pub fn npy_bytes_of_rows<T: NpyNumber>(
    numbers: &[T],
    row_shape: &[usize],
) -> Result<Vec<u8>, MemoryError> {
    let row_len = row_shape.iter().product::<usize>().max(1);
    if !numbers.len().is_multiple_of(row_len) {
        return Err(MemoryError::invalid(
            "the matrix",
            format!("{} numbers in rows of {row_len}", numbers.len()),
            "a matrix whose last row is full",
        ));
    }
    let mut bytes = npy_header::<T>(&[&[numbers.len() / row_len], row_shape].concat());
    bytes.reserve(size_of_val(numbers));
    for number in numbers {
        number.append_to(&mut bytes);
    }
    Ok(bytes)
}

/// Returns the bytes of a `.npy` file before its numbers, which follow in C order.
pub fn npy_header<T: NpyNumber>(shape: &[usize]) -> Vec<u8> {
    let sides: Vec<String> = shape.iter().map(usize::to_string).collect();
    let sides = sides.join(", ");
    let descr = T::DESCR;
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sides}), }}");
    // Magic, version and length take 10 bytes; a line break ends the header.
    let start = (10 + header.len() + 1).next_multiple_of(ALIGNMENT);
    header.extend(std::iter::repeat_n(' ', start - 10 - header.len() - 1));
    header.push('\n');
    [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat()
}

/// Reads the header. The numbers follow it in `file`.
pub(super) fn read_header(file: &mut impl Read) -> Result<Layout, String> {
    let unreadable =
        |error: io::Error| format!("is not a .npy file: cannot read its header ({error})");
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(unreadable)?;
    if !start.starts_with(MAGIC) {
        return Err("is not a .npy file: it does not start with \\x93NUMPY".to_owned());
    }
    let length = match start[6] {
        1 => {
            let mut length = [0; 2];
            file.read_exact(&mut length).map_err(unreadable)?;
            usize::from(u16::from_le_bytes(length))
        }
        2 | 3 => {
            let mut length = [0; 4];
            file.read_exact(&mut length).map_err(unreadable)?;
            u32::from_le_bytes(length) as usize
        }
        other => return Err(format!("has .npy version {other}; versions 1 to 3 are supported")),
    };
    if length > MAX_HEADER_BYTES {
        return Err(format!("has a header of {length} bytes, more than {MAX_HEADER_BYTES}"));
    }
    let mut header = vec![0; length];
    file.read_exact(&mut header).map_err(unreadable)?;
    let header = String::from_utf8(header).map_err(|_| "has a header that is not text")?;
    parse_header(&header)
}

/// Parses the text of a header, a Python dictionary, such as
/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse_header(header: &str) -> Result<Layout, String> {
    let value = |key: &str| -> Result<&str, String> {
        let start = [format!("'{key}':"), format!("\"{key}\":")]
            .iter()
            .find_map(|key| header.find(key.as_str()).map(|position| position + key.len()));
        start
            .map(|start| header[start..].trim_start())
            .ok_or_else(|| format!("is not a .npy file: its header has no `{key}`"))
    };
    let number_type = parse_number_type(value("descr")?)?;
    let fortran_order = match value("fortran_order")? {
        order if order.starts_with("False") => false,
        order if order.starts_with("True") => true,
        _ => return Err("has a `fortran_order` that is neither True nor False".to_owned()),
    };
    let shape = value("shape")?;
    let tuple = shape.strip_prefix('(').and_then(|shape| shape.split_once(')'));
    let (items, _) = tuple.ok_or("has a `shape` that is not a tuple of integers")?;
    // A tuple of one item ends with a comma.
    let items = items.trim();
    let items = items.strip_suffix(',').unwrap_or(items);
    let sizes = items.split(',').filter(|_| !items.is_empty());
    let shape: Result<Vec<usize>, _> = sizes.map(|size| size.trim().parse()).collect();
    let shape = shape.map_err(|_| "has a `shape` that is not a tuple of integers")?;
    Ok(Layout { shape, number_type, fortran_order, skipped_bytes: 0 })
}

/// Parses a number type such as `'<f4'`.
///
/// # Errors
/// A text that names the unsupported type.
fn parse_number_type(descr: &str) -> Result<NumberType, String> {
    let quote = descr.chars().next().filter(|quote| ['\'', '"'].contains(quote));
    let name = quote.and_then(|quote| descr[1..].split(quote).next());
    match name {
        Some("<f2") => Ok(NumberType::F16),
        Some("<f4") => Ok(NumberType::F32),
        Some("<f8") => Ok(NumberType::F64),
        Some(">f2") => Ok(NumberType::BigEndianF16),
        Some(">f4") => Ok(NumberType::BigEndianF32),
        Some(">f8") => Ok(NumberType::BigEndianF64),
        Some(other) => Err(format!("has numbers of type '{}'", excerpt(other))),
        None => Err("has numbers of several types (a structured array)".to_owned()),
    }
}

/// Returns the start of a text from a file, on one line.
fn excerpt(text: &str) -> String {
    text.chars().take(20).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numpy_headers_are_parsed_and_other_headers_give_a_one_line_error() {
        let parse = |header: &str| {
            let layout = parse_header(header)?;
            Ok::<_, String>((layout.shape, layout.number_type, layout.fortran_order))
        };
        let matrix = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }          \n";
        assert_eq!(parse(matrix), Ok((vec![3, 4], NumberType::F32, false)));
        let vector = r#"{"shape": (7,), "descr": ">f8", "fortran_order": True}"#;
        assert_eq!(parse(vector), Ok((vec![7], NumberType::BigEndianF64, true)));
        let scalar = "{'descr': '<f2', 'fortran_order': False, 'shape': ()}";
        assert_eq!(parse(scalar), Ok((vec![], NumberType::F16, false)));
        for (header, part) in [
            ("", "no `descr`"),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", "type '<i8'"),
            ("{'descr': '\n\u{7}', 'fortran_order': False, 'shape': (1,)}", "type '\\n\\u{7}'"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "structured"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "neither True nor False"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1", "tuple"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}", "tuple"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "tuple"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ((1, 2),)}", "tuple"),
            ("{'descr': ", "structured"),
        ] {
            let error = parse(header).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{header}: {error}");
        }
    }

    #[test]
    fn written_files_have_numpys_bytes() {
        // As `np.save` writes np.array([[1, 2, 3], [4, 5, 6]]): one entry per key, padded to 128.
        let bytes = npy_bytes(&[1i64, 2, 3, 4, 5, 6], 3).unwrap();
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }";
        let expected = [MAGIC, b"\x01\0v\0", format!("{header:117}\n").as_bytes()].concat();
        assert_eq!(bytes[..128], expected);
        assert_eq!(bytes[128..136], 1i64.to_le_bytes());
        assert_eq!(bytes.len(), 128 + 6 * 8);
        let layout = read_header(&mut &npy_bytes_of_rows(&[0f32; 12], &[2, 3]).unwrap()[..]);
        assert_eq!(layout.unwrap().shape, [2, 2, 3]);
        let error = npy_bytes(&[0f32; 5], 3).unwrap_err().to_string();
        assert!(error.contains("5 numbers in rows of 3"), "{error}");
    }

    #[test]
    fn header_sizes_are_not_trusted() {
        let error_of = |version: u8, after_version: &[u8]| {
            let bytes = [MAGIC, &[version, 0], after_version].concat();
            read_header(&mut &bytes[..]).err().unwrap_or_default()
        };
        assert!(error_of(2, &u32::MAX.to_le_bytes()).contains("4294967295 bytes"));
        assert!(error_of(1, &100u16.to_le_bytes()).contains("cannot read"));
        assert!(error_of(9, b"").contains("version 9"));
        assert!(error_of(1, b"\x02\0\xff\xfe").contains("not text"));
    }
}
