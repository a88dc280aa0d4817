//! The composites in half precision, on inputs that half precision represents exactly.

use candle_core::DType;
use engram_models::Result;

use super::{assert_near, cases, run};

/// Values and gradients differ from f32 by a few roundings.
#[test]
fn composites_in_half_precision_are_close_to_the_fused_kernels() -> Result<()> {
    for (dtype, rounding) in [(DType::BF16, 2f64.powi(-9)), (DType::F16, 2f64.powi(-12))] {
        for cases::Case { name, inputs, run: operation } in cases::all() {
            let expected = run(&inputs, (dtype, DType::F32), &operation)?;
            let found = run(&inputs, (dtype, dtype), &operation)?;
            assert_near(&found, &expected, 8.0 * rounding, &format!("{name} in {dtype:?}"));
        }
    }
    Ok(())
}
