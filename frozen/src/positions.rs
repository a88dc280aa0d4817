//! Position embeddings of images, resized to another grid of patches.

use candle_core::{Device, Result, Tensor};

/// Resizes the position embeddings `[side², D]` of a square grid to `height` x `width` patches:
/// `[height * width, D]`. Equals bicubic `torch.nn.functional.interpolate`; with `antialias`, the
/// filter becomes wider if the grid becomes smaller.
pub(crate) fn resized(
    positions: &Tensor,
    (height, width): (usize, usize),
    antialias: bool,
) -> Result<Tensor> {
    let (count, d) = positions.dims2()?;
    let side = count.isqrt();
    if (height, width) == (side, side) {
        return Ok(positions.clone());
    }
    let filter =
        |length| Tensor::from_vec(filter(side, length, antialias), (length, side), &Device::Cpu);
    let rows = filter(height)?.matmul(&positions.reshape((side, side * d))?)?;
    let columns = rows.reshape((height, side, d))?.transpose(0, 1)?.reshape((side, height * d))?;
    let resized = filter(width)?.matmul(&columns)?.reshape((width, height, d))?;
    resized.transpose(0, 1)?.reshape((height * width, d))
}

/// The weights with which `from` values give each of `to` values: `[to, from]` in row-major order.
fn filter(from: usize, to: usize, antialias: bool) -> Vec<f32> {
    let scale = from as f64 / to as f64;
    // torch uses another cubic with antialiasing, which is Pillow's.
    let (a, widening) = if antialias { (-0.5, scale.max(1.0)) } else { (-0.75, 1.0) };
    let mut weights = vec![0.0; to * from];
    for (i, row) in weights.chunks_mut(from).enumerate() {
        let centre = (i as f64 + 0.5) * scale - 0.5;
        let (first, last) = (centre - 2.0 * widening, centre + 2.0 * widening);
        let mut sum = 0.0;
        for j in first.ceil() as i64..=last.floor() as i64 {
            let inside = j.clamp(0, from as i64 - 1);
            // At the edge, the last value is repeated; with antialiasing, it is not.
            if !antialias || inside == j {
                let weight = cubic((j as f64 - centre) / widening, a);
                row[inside as usize] += weight as f32;
                sum += weight;
            }
        }
        row.iter_mut().for_each(|weight| *weight /= sum as f32);
    }
    weights
}

/// The cubic convolution kernel.
fn cubic(x: f64, a: f64) -> f64 {
    match x.abs() {
        x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
        _ => 0.0,
    }
}
