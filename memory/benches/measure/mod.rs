//! Random numbers and times for the benchmarks of search.

use std::error::Error;
use std::fs;

/// The number of queries.
pub const QUERIES: usize = 1000;
/// The number of centres of clustered keys.
pub const CENTRES: usize = 1000;
/// The number of rows that are written at once.
pub const BATCH_ROWS: usize = 1000;

/// Normally distributed numbers.
pub struct Normal(pub u64);

impl Normal {
    pub fn uniform(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / (1u64 << 31) as f64
    }

    pub fn next(&mut self) -> f32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
    }
}

/// The processor time of all threads in seconds.
pub fn processor_seconds() -> Result<f64, Box<dyn Error>> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().unwrap_or_default().parse::<f64>()?;
    }
    Ok(nanoseconds / 1e9)
}
