//! The binary format of COPY: a header, for each row the number of its fields, for each field its
//! number of bytes and the bytes, and a trailer, all big endian.
//!
//! Source: <https://www.postgresql.org/docs/current/sql-copy.html>, "Binary Format".

use bytes::{BufMut, Bytes, BytesMut};
use engram_memory::stored_rows::EncodedRow;

use crate::tables::NEVER;

const HEADER: &[u8] = b"PGCOPY\n\xFF\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: i16 = -1;
/// The number of bytes that are sent at a time, approximately.
const PART_BYTES: usize = 1 << 20;

/// Encodes rows with the columns of [`COLUMNS`](crate::tables::COLUMNS). Each row has its number,
/// and `generation` adds all of them.
pub(crate) fn encode<'a>(
    rows: impl Iterator<Item = (i64, &'a EncodedRow<'a>)>,
    generation: i64,
    has_values: bool,
) -> impl Iterator<Item = Bytes> {
    let mut rows = rows.peekable();
    let (mut is_first, mut is_done) = (true, false);
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let mut part = BytesMut::with_capacity(PART_BYTES + PART_BYTES / 16);
        if std::mem::take(&mut is_first) {
            part.put_slice(HEADER);
        }
        while part.len() < PART_BYTES
            && let Some((number, row)) = rows.next()
        {
            put_row(&mut part, number, row, generation, has_values);
        }
        if rows.peek().is_none() {
            part.put_i16(TRAILER);
            is_done = true;
        }
        Some(part.freeze())
    })
}

fn put_row(
    part: &mut BytesMut,
    number: i64,
    row: &EncodedRow<'_>,
    generation: i64,
    has_values: bool,
) {
    part.put_i16(9);
    put_bigint(part, number);
    put_bigint(part, row.id);
    part.put_i32(4);
    part.put_u32(row.source);
    part.put_i32(8);
    part.put_u64(row.document);
    put_bigint(part, generation);
    put_bigint(part, NEVER);
    // A vector of pgvector: the number of components, and a reserved number.
    part.put_i32(4 + 4 * row.key.len() as i32);
    part.put_u16(row.key.len() as u16);
    part.put_u16(0);
    row.key.iter().for_each(|component| part.put_f32(*component));
    if has_values {
        let mut value = Vec::new();
        row.value.append_to(&mut value);
        part.put_i32(value.len() as i32);
        part.put_slice(&value);
    } else {
        // The length of NULL.
        part.put_i32(-1);
    }
    let entry = row.line.trim_ascii_end();
    part.put_i32(entry.len() as i32);
    part.put_slice(entry);
}

fn put_bigint(part: &mut BytesMut, number: i64) {
    part.put_i32(8);
    part.put_i64(number);
}
