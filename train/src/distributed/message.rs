//! Messages between ranks: a header and floats (f32).

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A header with its floats.
pub(crate) type WithFloats<T> = (T, Vec<f32>);

/// Joins the length of the header, the header as JSON, and the floats.
pub(crate) fn pack(header: &impl Serialize, floats: &[f32]) -> Result<Vec<u8>, String> {
    let header = serde_json::to_vec(header).map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(8 + header.len() + 4 * floats.len());
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&header);
    bytes.extend(floats.iter().flat_map(|number| number.to_le_bytes()));
    Ok(bytes)
}

/// Reads the bytes of [`pack`].
pub(crate) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<WithFloats<T>, String> {
    let damaged = || "sent a damaged message".to_owned();
    let (length, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
    let (header, floats) = rest.split_at_checked(length).ok_or_else(damaged)?;
    let (floats, []) = floats.as_chunks::<4>() else { return Err(damaged()) };
    let header = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    Ok((header, floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_numbers_and_damaged_ones_are_errors() {
        let floats = [0.1, f32::NAN, -0.0, f32::MIN_POSITIVE];
        let bytes = pack(&[3, i64::MAX], &floats).expect("bytes");
        let (header, read): (Vec<i64>, _) = unpack(&bytes).expect("a message");
        assert_eq!(header, [3, i64::MAX]);
        let bits = |floats: &[f32]| floats.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read), bits(&floats));
        for end in 0..bytes.len() {
            let shorter = unpack::<Vec<i64>>(&bytes[..end]);
            // A message that ends between two floats has fewer of them.
            assert!(shorter.is_err() || shorter.is_ok_and(|(_, read)| read.len() < 4), "{end}");
        }
    }
}
