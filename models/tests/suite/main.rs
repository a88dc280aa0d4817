//! Tests of this crate. `fuzz_corpus.rs` has its own allocator, and is its own program.

mod avformer;
mod boosting;
mod clip;
mod compute;
mod conformer;
mod conformer_attention;
mod ctc_beam;
mod ctranslate2;
mod cuda_sources;
mod kernels;
mod mobilenet;
mod parity;
mod published_weights;
mod recompute;
mod reference;
mod reveal;
mod reveal_published;
mod speech_losses;
mod t5;
mod transducer;
mod vit;
mod whisper;
mod whisper_alignment;

use std::process::Command;

/// With `ENGRAM_FUSED=0`, the CPU runs the passes of a GPU, which operations over windows lack.
#[test]
fn the_passes_of_a_gpu_satisfy_the_checks_of_kernels_and_models() {
    if std::env::var_os("ENGRAM_FUSED").is_some() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let output = command.args(["kernels::", "compute::", "--skip", "windows_"]);
    let output = output.env("ENGRAM_FUSED", "0").output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
