//! Compares every model family in bf16 and in f64 with the same model in f32, on the CPU.
//! `tests/gpu` runs the same comparisons on a GPU. Also tests low-rank branches on every family.

mod low_rank;
#[path = "../../../tests/gpu/src/models.rs"]
pub mod models;

use candle_core::DType;
use engram_models::Result;
use engram_models::compute::Compute;
use engram_models::recompute::Recompute;

fn compare(dtype: DType, value_tolerance: f64, gradient_tolerance: f64) -> Result<()> {
    let compute = Compute { dtype, ..Compute::cpu() };
    for found in models::compare_models(&compute, Recompute::Block)? {
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

/// With dropout. The differences are exactly zero.
#[test]
fn recomputation_does_not_change_values_and_gradients_of_the_fused_kernels() -> Result<()> {
    for recompute in [Recompute::Selective, Recompute::Block] {
        for found in models::compare_models(&Compute::cpu(), recompute)? {
            let errors = (found.value_error, found.gradient_error);
            assert_eq!(errors, (0.0, 0.0), "{}, {recompute:?}", found.model);
        }
    }
    Ok(())
}

#[test]
fn texts_generated_with_a_cache_are_the_same_with_candle_operations() -> Result<()> {
    let expected = models::generated_tokens(&Compute::cpu())?;
    let double = Compute { dtype: DType::F64, ..Compute::cpu() };
    assert_eq!(models::generated_tokens(&double)?, expected);
    Ok(())
}
