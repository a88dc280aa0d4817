//! The error message for a file that is truncated while it is memory-mapped. The system then sends
//! SIGBUS to a process that reads past the file's end.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use engram_memory::format::mapping::{MAX_PATH_LENGTH, path_at};

/// Installs a SIGBUS handler: a truncated file ends the command with a message that names the file,
/// and exit code 2.
pub fn explain_truncated_files() {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle_sigbus;
    // SAFETY: all zeros is a valid `sigaction`, and `action` outlives the calls. `handle_sigbus`
    // has the signature that `SA_SIGINFO` needs, and calls only async-signal-safe functions. It
    // runs on the signal stack of Rust's runtime.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

/// Whether a thread is already writing the message. Several threads may read the same file.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn handle_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const REMEDY: &[u8] = b": the file was truncated while it was read, or its disk failed; \
        check a memory with `engram memory verify`\n";
    let mut path = [0; MAX_PATH_LENGTH];
    // SAFETY: with `SA_SIGINFO` the system passes a valid `info`, and for SIGBUS its `si_addr` is
    // the address of the failed read. The pointers of `write` point to live slices of the given
    // lengths. `pause`, `write` and `_exit` are async-signal-safe.
    unsafe {
        while ENDING.swap(true, Ordering::AcqRel) {
            libc::pause();
        }
        let file_name = match path_at((*info).si_addr() as usize, &mut path) {
            Some(length) => {
                let name = &mut path[..length];
                name.iter_mut()
                    .filter(|byte| byte.is_ascii_control())
                    .for_each(|byte| *byte = b'?');
                name
            }
            None => b"a weights or data file".as_slice(),
        };
        for part in [b"error: ".as_slice(), file_name, REMEDY] {
            libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len());
        }
        libc::_exit(2);
    }
}
