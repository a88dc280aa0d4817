//! Small inputs: arrays, entries, audio, images.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::json;

use crate::program::checkout;
use crate::random::Random;

/// Writes rows of seeded numbers in [-1, 1) as `.npy`, 32 bits each.
pub fn npy(path: &Path, shape: &[usize], seed: u64) -> Result<()> {
    let mut random = Random::new(seed, 0);
    let mut bytes = npy_header(&format!("{shape:?}").replace('[', "(").replace(']', ")"));
    for _ in 0..shape.iter().product() {
        bytes.extend(((random.unit() * 2.0 - 1.0) as f32).to_le_bytes());
    }
    Ok(fs::write(path, bytes)?)
}

/// The header of a `.npy` file of 32-bit floats; `shape` is a Python tuple.
pub fn npy_header(shape: &str) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    while !(text.len() + 11).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Writes `count` entries with ids from `first`.
pub fn entries(path: &Path, first: usize, count: usize, source: &str) -> Result<()> {
    let mut file = Vec::new();
    for id in first..first + count {
        let document = id / 4;
        writeln!(
            file,
            r#"{{"id":{id},"source":"{source}","document":"d{document}","text":"entry {id} of a method"}}"#
        )?;
    }
    Ok(fs::write(path, file)?)
}

/// A mono WAV file of noise, 16 bits at 16 kHz.
pub fn wav(samples: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed, 0);
    let size = (samples * 2) as u32;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + size).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(16_000u32.to_le_bytes());
    bytes.extend(32_000u32.to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend(size.to_le_bytes());
    for _ in 0..samples {
        bytes.extend((((random.unit() - 0.5) * 8000.0) as i16).to_le_bytes());
    }
    bytes
}

/// A black grayscale PNG; it contains only the first `rows` pixel rows.
pub fn png(width: u32, height: u32, rows: u32) -> Result<Vec<u8>> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, 0, 0, 0, 0]);
    append_chunk(&mut bytes, b"IHDR", &header);
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
    let row = vec![0; width as usize + 1];
    for _ in 0..rows {
        pixels.write_all(&row)?;
    }
    append_chunk(&mut bytes, b"IDAT", &pixels.finish()?);
    append_chunk(&mut bytes, b"IEND", &[]);
    Ok(bytes)
}

/// Appends a PNG chunk.
fn append_chunk(png: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    let mut crc = flate2::Crc::new();
    crc.update(name);
    crc.update(data);
    png.extend((data.len() as u32).to_be_bytes());
    png.extend(name);
    png.extend(data);
    png.extend(crc.sum().to_be_bytes());
}

/// A safetensors file with one tensor `keys` of seeded numbers.
pub fn safetensors(rows: usize, width: usize) -> Vec<u8> {
    let size = rows * width * 4;
    let header = format!(
        r#"{{"keys":{{"dtype":"F32","shape":[{rows},{width}],"data_offsets":[0,{size}]}}}}"#
    );
    let header = format!("{header:64}");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let mut random = Random::new(7, 0);
    for _ in 0..rows * width {
        bytes.extend(((random.unit() - 0.5) as f32).to_le_bytes());
    }
    bytes
}

/// A small Whisper model in CTranslate2 format: weights from the fixtures, with a configuration.
pub fn ctranslate2(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    let weights = checkout().join("models/tests/fixtures/whisper/model_int8.bin");
    fs::copy(weights, folder.join("model.bin"))?;
    let config = json!({"suppress_ids": [5], "suppress_ids_begin": [6], "lang_ids": []});
    fs::write(folder.join("config.json"), config.to_string())?;
    let tokens = json!({"added_tokens": [
        {"id": 2, "content": "<|startoftranscript|>"},
        {"id": 1, "content": "<|endoftext|>"},
    ]});
    Ok(fs::write(folder.join("tokenizer.json"), tokens.to_string())?)
}
