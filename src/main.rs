//! The `engram` command.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

use std::ffi::c_long;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use engram::cli;

/// An allocator that keeps freed memory. A training step allocates and frees many tensors.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Turns off huge pages before `main` and before the first allocation. With 2 MB pages, the first
/// allocation alone would take 4 MB that a small evaluation does not need. Also notes whether
/// standard output is closed, because Rust's runtime opens another file in its place.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: `.init_array` expects a function of this type. It makes one system call and does not use
// Rust's runtime.
#[unsafe(link_section = ".init_array.00200")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn prepare() {
        use_huge_pages(false);
        // SAFETY: the call only asks for the flags of a file, which may be closed.
        let is_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
        cli::output::STDOUT_IS_CLOSED.store(is_closed, Ordering::Relaxed);
    }
    prepare
};

fn main() -> ExitCode {
    run_small_operations_on_one_thread();
    #[cfg(target_os = "linux")]
    cli::truncated::explain_truncated_files();
    cli::log::clean_panics();
    let words = std::env::args_os().collect();
    ExitCode::from(cli::main(cli::Invocation::of_program(words), set_up_allocator))
}

/// Sets up the allocator for a command.
fn set_up_allocator(cli: &cli::Cli) {
    // An evaluation converts its input several times, and the explorer mostly waits. Both return
    // freed pages at once. With 2 MB pages most evaluations would use twice the memory.
    if cli.is_evaluation() || cli.is_explorer() {
        set_purge_delay(0);
    } else {
        keep_freed_pages();
    }
    use_huge_pages(cli.has_large_allocations());
}

/// Makes candle run element-wise operations on one thread. Its worker threads spin while they wait,
/// which costs more than the work: a training step of REVEAL's `laptop` recipe took 2.5 times as
/// long. Our own kernels do nearly all the work and still use all cores.
fn run_small_operations_on_one_thread() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}

/// Turns transparent huge pages (2 MB) on or off for this process. The system's default is on.
fn use_huge_pages(enabled: bool) {
    #[cfg(target_os = "linux")]
    // An error is ignored: the program then only uses more memory.
    let _ = rustix::thread::disable_transparent_huge_pages(!enabled);
    #[cfg(not(target_os = "linux"))]
    let _ = enabled;
}

/// Makes the allocator keep freed pages instead of returning them after 10 ms. The next step needs
/// them again, and clearing new pages took a fifth of a training step.
fn keep_freed_pages() {
    set_purge_delay(-1);
}

/// Sets the delay in milliseconds after which the allocator returns freed pages; -1 means never.
fn set_purge_delay(milliseconds: c_long) {
    // `mi_option_purge_delay` in `mimalloc.h`.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: the option exists in the linked mimalloc. The call stores a number before any other
    // thread starts.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, milliseconds) };
}
