//! TensorBoard event files with scalars.
//!
//! A file is a sequence of TFRecords (length, its checksum, data, its checksum). Each holds one
//! `Event` message of TensorFlow's `event.proto`. Only the needed fields are written.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use engram_durable as durable;

use crate::error::{Result, TrainError};

/// Writes one event file. A resumed run opens a new one.
pub(crate) struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates a file. It marks steps from `first_step` on in older files as invalid.
    pub(crate) fn create(run: &Path, first_step: u64) -> Result<Self> {
        let seconds = now().floor();
        let path = run.join(format!("events.out.tfevents.{seconds:010}.{}", std::process::id()));
        let file = durable::append_to(&path).map_err(TrainError::io(&path))?;
        let mut writer = Self { file, path };
        let mut version = Message::event(0);
        version.bytes_field(3, b"brain.Event:2");
        writer.write_record(&version.0)?;
        // A session log with status START.
        let mut session_log = Message::default();
        session_log.varint_field(1, 1);
        let mut event = Message::event(first_step);
        event.bytes_field(7, &session_log.0);
        writer.write_record(&event.0)?;
        Ok(writer)
    }

    /// Writes scalars at a step.
    pub(crate) fn scalars<'a>(
        &mut self,
        step: u64,
        scalars: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        let mut summary = Message::default();
        for (tag, value) in scalars {
            let mut scalar = Message::default();
            scalar.bytes_field(1, tag.as_bytes());
            scalar.fixed32_field(2, (value as f32).to_le_bytes());
            summary.bytes_field(1, &scalar.0);
        }
        let mut event = Message::event(step);
        event.bytes_field(5, &summary.0);
        self.write_record(&event.0)
    }

    /// Syncs all records to disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(TrainError::io(&self.path))
    }

    fn write_record(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(data.len() + 16);
        record.extend(length);
        record.extend(masked_crc32c(&length).to_le_bytes());
        record.extend(data);
        record.extend(masked_crc32c(data).to_le_bytes());
        self.file.write_all(&record).map_err(TrainError::io(&self.path))
    }
}

/// A protocol-buffer message under construction. Fields are given by their numbers in the protocol.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// An `Event` with the current wall time and a step.
    fn event(step: u64) -> Self {
        let mut event = Self::default();
        event.0.push(1 << 3 | 1);
        event.0.extend(now().to_le_bytes());
        event.varint_field(2, step);
        event
    }

    fn varint_field(&mut self, field: u8, value: u64) {
        self.0.push(field << 3);
        self.varint(value);
    }

    fn bytes_field(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn fixed32_field(&mut self, field: u8, bytes: [u8; 4]) {
        self.0.push(field << 3 | 5);
        self.0.extend(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The wall time in seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The checksum of TFRecords: CRC-32C (Castagnoli), rotated and shifted.
fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_equal_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn event_files_have_the_bytes_of_the_protocol() -> Result<()> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut writer = EventWriter::create(folder.path(), 300)?;
        writer.scalars(301, [("loss", 0.5)].into_iter())?;
        let bytes = std::fs::read(&writer.path).expect("the event file");
        let mut records = Vec::new();
        let mut remaining = bytes.as_slice();
        while let Some((length, tail)) = remaining.split_first_chunk::<8>() {
            let (crc, tail) = tail.split_first_chunk::<4>().expect("a checksum");
            assert_eq!(u32::from_le_bytes(*crc), masked_crc32c(length));
            let (data, tail) = tail.split_at(u64::from_le_bytes(*length) as usize);
            let (crc, tail) = tail.split_first_chunk::<4>().expect("a checksum");
            assert_eq!(u32::from_le_bytes(*crc), masked_crc32c(data));
            // The first field is the wall time: a tag and eight bytes.
            assert_eq!(data[0], 0x09);
            records.push(data[9..].to_vec());
            remaining = tail;
        }
        assert_eq!(records[0], b"\x10\x00\x1a\x0dbrain.Event:2");
        assert_eq!(records[1], b"\x10\xac\x02\x3a\x02\x08\x01");
        assert_eq!(records[2], b"\x10\xad\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f");
        assert_eq!(records.len(), 3);
        Ok(())
    }
}
