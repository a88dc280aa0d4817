//! The error of a GPU whose memory is too small for a step.

use crate::error::TrainError;
use crate::recipe::BatchSettings;

/// The errors of failed allocations, by the driver and by cuBLAS.
const ERRORS: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];

/// Replaces the error of a failed allocation on a GPU by one that names the study, the batch and the
/// remedies. Returns other errors unchanged.
pub(super) fn explain(error: TrainError, study: &str, batch: &BatchSettings) -> TrainError {
    let text = error.to_string();
    if !ERRORS.iter().any(|code| text.contains(code)) {
        return error;
    }
    let (examples, tokens) = (batch.examples, batch.tokens);
    TrainError::GpuMemory { study: study.to_string(), examples, tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_allocation_names_the_batch_and_the_remedies() {
        let explained = |text: &str| {
            let source = text.to_string().into();
            let error = TrainError::Study { study: "clip".into(), part: "loss", source };
            explain(error, "clip", &BatchSettings { examples: 48, ..BatchSettings::default() })
        };
        let error =
            explained("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")").to_string();
        for part in ["`clip`", "48 examples;", "compute.recompute", "batch.accumulate"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(explained("another error").to_string().contains("another error"));
    }
}
