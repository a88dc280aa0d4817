//! NumPy's `.npy` files of every number type, byte order and array order give the same rows.

use std::path::{Path, PathBuf};

use engram_memory::vectors::{VectorFile, npy_bytes};

use crate::support::assert_refused;

/// A file of `memory/tests/fixtures/npy`, written by its `make.py`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/npy").join(name)
}

#[test]
fn every_byte_order_and_array_order_gives_the_same_rows() {
    let keys: Vec<f32> = (0..15).map(|i| (i as f32 - 7.0) / 4.0).collect();
    let values: Vec<f32> = (0..30).map(|i| i as f32 / 8.0).collect();
    let mut fortran_files = 0;
    for (name, shape, expected) in [("keys", &[5, 3][..], keys), ("values", &[5, 2, 3], values)] {
        for number_type in ["f2", "f4", "f8"] {
            for (endian, order) in [("little", "C"), ("little", "F"), ("big", "C"), ("big", "F")] {
                let path = fixture(&format!("{name}_{number_type}_{endian}_{order}.npy"));
                let header = std::fs::read(&path).unwrap();
                let is_fortran = String::from_utf8_lossy(&header).contains("'fortran_order': True");
                assert_eq!(is_fortran, order == "F", "{}", path.display());
                fortran_files += usize::from(is_fortran);
                // In one part, and in several.
                for parts in [&[5][..], &[1, 3, 1], &[2, 2, 1]] {
                    let mut file = VectorFile::open(&path, name).unwrap();
                    assert_eq!(file.shape(), shape);
                    let read = parts.iter().flat_map(|rows| file.read_rows(*rows).unwrap());
                    assert_eq!(read.collect::<Vec<f32>>(), expected, "{}", path.display());
                    assert!(file.read_rows(1).is_err());
                }
            }
        }
    }
    assert_eq!(fortran_files, 12);
}

/// A file in Fortran order with the rows of a C-order matrix.
fn fortran_bytes(matrix: &[f32], columns: usize) -> Vec<u8> {
    let rows = matrix.len() / columns;
    let transposed: Vec<f32> =
        (0..matrix.len()).map(|i| matrix[i % rows * columns + i / rows]).collect();
    let bytes = npy_bytes(&transposed, columns).unwrap();
    let position = bytes.windows(7).position(|window| window == b"False, ").unwrap();
    let mut fortran = bytes;
    fortran[position..position + 7].copy_from_slice(b"True , ");
    fortran
}

#[test]
fn a_long_file_in_fortran_order_is_read_in_parts_and_a_short_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.npy");
    // More rows than are converted at a time.
    let rows = 150_000;
    let matrix: Vec<f32> = (0..3 * rows).map(|i| i as f32).collect();
    let bytes = fortran_bytes(&matrix, 3);
    std::fs::write(&path, &bytes).unwrap();
    let mut file = VectorFile::open(&path, "keys").unwrap();
    let mut read = file.read_rows(10).unwrap();
    read.extend(file.read_rows(rows - 10).unwrap());
    assert!(read == matrix);

    let mut file = VectorFile::open(&path, "keys").unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 40]).unwrap();
    assert_refused(file.read_rows(rows), ["keys.npy: ends before its last row"]);
    let error = VectorFile::open(&path, "keys").err().unwrap().to_string();
    assert!(error.contains("keys.npy: ends before its last row"), "{error}");
}

#[test]
fn a_pipe_in_fortran_order_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe.npy");
    crate::damage::make_pipe(&path);
    let writer = std::thread::spawn({
        let path = path.clone();
        // The reader closes the pipe after the header.
        move || std::fs::write(path, fortran_bytes(&[1.0; 6], 3)).ok()
    });
    let error = VectorFile::open(&path, "keys").err().unwrap().to_string();
    writer.join().unwrap();
    for part in ["pipe.npy: is in Fortran order", "a pipe", "numpy.ascontiguousarray"] {
        assert!(error.contains(part), "{error}");
    }
}
