//! The `engram` command.

use std::process::ExitCode;

use clap::Parser;

mod cli;

/// Tensors come and go with every step: an allocator that keeps their memory at hand pays.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    keep_freed_pages();
    match cli::run(cli::Cli::parse()) {
        Ok(cli::Outcome::Done) => ExitCode::SUCCESS,
        Ok(cli::Outcome::CheckFailed) => ExitCode::from(1),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", one_line(&error));
            ExitCode::from(2)
        }
    }
}

/// Tells the allocator to keep freed pages instead of handing them back after 10 ms: the next step
/// wants them again, and a fifth of a training step went into clearing new ones.
fn keep_freed_pages() {
    // `mi_option_purge_delay` of `mimalloc.h`; -1 is never.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: sets one number of the allocator that this program uses.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

/// The error and its causes on one line; a cause that the text before already tells is left out.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether whoever read our output has stopped reading, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
