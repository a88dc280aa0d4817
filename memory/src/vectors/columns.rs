//! Reads the rows of a file in Fortran order: the first index changes fastest, so the file holds
//! one component of all rows, then the next component of all rows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::{MAX_CONVERTED, NumberType};

/// The columns of a file in Fortran order. A column is one component of all rows.
pub(super) struct Columns {
    /// The complete shape, rows first.
    shape: Vec<usize>,
    /// The position of the first component in the file, in bytes.
    start: u64,
    /// The number of rows read.
    rows_read: usize,
}

impl Columns {
    pub(super) fn new(shape: &[usize], start: u64) -> Self {
        Self { shape: shape.to_vec(), start, rows_read: 0 }
    }

    /// Returns the components of the next `rows` rows in C order, `[rows, row_len]`. The file must
    /// have these rows.
    ///
    /// Reads the part of each column that belongs to these rows, so memory is needed for these rows
    /// only.
    pub(super) fn read_rows(
        &mut self,
        file: &mut File,
        rows: usize,
        number_type: NumberType,
    ) -> io::Result<Vec<f32>> {
        let row_len = self.shape[1..].iter().product();
        let mut numbers = vec![0f32; rows * row_len];
        let (mut bytes, mut part) = (Vec::new(), Vec::new());
        for component in 0..row_len {
            let first = self.column_of(component) * self.shape[0] + self.rows_read;
            file.seek(SeekFrom::Start(self.start + (first * number_type.bytes()) as u64))?;
            for first_row in (0..rows).step_by(MAX_CONVERTED) {
                let count = MAX_CONVERTED.min(rows - first_row);
                bytes.resize(count * number_type.bytes(), 0);
                file.read_exact(&mut bytes)?;
                part.clear();
                number_type.convert(&bytes, &mut part);
                for (row, number) in (first_row..).zip(&part) {
                    numbers[row * row_len + component] = *number;
                }
            }
        }
        self.rows_read += rows;
        Ok(numbers)
    }

    /// The column of a component, which is numbered in C order within its row.
    fn column_of(&self, component: usize) -> usize {
        let (mut column, mut rest) = (0, component);
        // In C order the last index changes fastest, in Fortran order the first.
        let mut columns_before: usize = self.shape[1..].iter().product();
        for size in self.shape[1..].iter().rev() {
            columns_before /= size;
            column += rest % size * columns_before;
            rest /= size;
        }
        column
    }
}
