//! Compares every model family with f32 on the CPU in bf16, and with the operations that a GPU runs.
//! `tests/gpu` runs the same comparisons on a GPU.

#[path = "../../tests/gpu/src/models.rs"]
mod models;

use std::process::Command;

use candle_core::DType;
use engram_models::Result;
use engram_models::compute::Compute;

fn compare(dtype: DType, value_tolerance: f64, gradient_tolerance: f64) -> Result<()> {
    for found in models::compare_models(&Compute { dtype, ..Compute::cpu() })? {
        let (values, gradients) = (found.value_error, found.gradient_error);
        println!("{dtype:?} {}: values {values:.1e}, gradients {gradients:.1e}", found.model);
        assert!(values < value_tolerance, "{}: {values:e}", found.model);
        assert!(gradients < gradient_tolerance, "{}: {gradients:e}", found.model);
    }
    Ok(())
}

/// In f64, every kernel runs as its composite of candle operations. With `ENGRAM_FUSED=0`, f32 has
/// the passes of a GPU.
#[test]
fn candle_operations_give_the_values_and_gradients_of_the_fused_kernels() -> Result<()> {
    compare(DType::F64, 1e-5, 1e-4)
}

#[test]
fn values_and_gradients_in_bf16_are_close_to_those_in_f32() -> Result<()> {
    compare(DType::BF16, 2e-2, 5e-2)
}

#[test]
fn texts_generated_with_a_cache_are_the_same_with_candle_operations() -> Result<()> {
    let expected = models::generated_tokens(&Compute::cpu())?;
    let double = Compute { dtype: DType::F64, ..Compute::cpu() };
    assert_eq!(models::generated_tokens(&double)?, expected);
    Ok(())
}

#[test]
fn the_passes_of_a_gpu_satisfy_the_same_checks() {
    if std::env::var_os("ENGRAM_FUSED").is_some() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let output = command.env("ENGRAM_FUSED", "0").output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
