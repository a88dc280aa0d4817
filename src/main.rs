//! The `engram` command.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

use std::ffi::c_long;
use std::process::ExitCode;

mod cli;

/// Tensors come and go with every step: an allocator that keeps their memory at hand pays.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs before `main`, and before the allocator takes its first memory: in pages of 2 MB that alone would be 4 MB more
/// than a small evaluation needs.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the linker takes a function of this type here; it calls the system once, and nothing of Rust's runtime.
#[unsafe(link_section = ".init_array.00200")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn without_huge_pages() {
        use_huge_pages(false);
    }
    without_huge_pages
};

fn main() -> ExitCode {
    leave_small_operations_to_one_thread();
    #[cfg(target_os = "linux")]
    cli::truncated::explain_truncated_files();
    match cli::parse().and_then(run) {
        Ok(cli::Outcome::Done) => ExitCode::SUCCESS,
        Ok(cli::Outcome::CheckFailed) => ExitCode::from(1),
        Ok(cli::Outcome::Stopped(code)) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", cli::output::with_causes(&error));
            ExitCode::from(2)
        }
    }
}

/// Sets up the allocator for a command and runs it.
fn run(cli: cli::Cli) -> anyhow::Result<cli::Outcome> {
    // An evaluation goes from one form of its input to the next: it hands freed pages back at once, and in pages
    // of 2 MB most would take twice the memory. So does the explorer, which mostly waits.
    if cli.is_evaluation() || cli.is_explorer() {
        set_purge_delay(0);
    } else {
        keep_freed_pages();
    }
    use_huge_pages(cli.has_large_parts());
    cli::run(cli)
}

/// candle shares additions and the like with threads that wait for each other by spinning, which takes
/// longer than the work: a training step of REVEAL's `laptop` recipe took 2.5 times as long. Our own
/// kernels, which do nearly all the work, use all cores either way.
fn leave_small_operations_to_one_thread() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}

/// Lets the system give memory in pages of 2 MB, as it does unless told otherwise, or not.
fn use_huge_pages(wanted: bool) {
    #[cfg(target_os = "linux")]
    // Where the kernel refuses, it is only the memory that is more.
    let _ = rustix::thread::disable_transparent_huge_pages(!wanted);
    #[cfg(not(target_os = "linux"))]
    let _ = wanted;
}

/// Tells the allocator to keep freed pages instead of handing them back after 10 ms: the next step
/// wants them again, and a fifth of a training step went into clearing new ones.
fn keep_freed_pages() {
    set_purge_delay(-1);
}

/// Sets after how many milliseconds the allocator hands freed pages back; -1 is never.
fn set_purge_delay(milliseconds: c_long) {
    // `mi_option_purge_delay` of `mimalloc.h`.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: sets one number of the allocator that this program uses.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, milliseconds) };
}

/// Whether whoever read our output has stopped reading, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
