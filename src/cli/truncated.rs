//! What is said when a file becomes shorter while it is mapped: the system sends SIGBUS to who reads behind its end.

use std::ffi::c_int;
use std::ptr;

use engram_memory::format::mapping::{MAX_PATH_LENGTH, path_at};

/// From here on such a file ends the command with a message that names it, and exit code 2.
pub fn explain_truncated_files() {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = end;
    // SAFETY: `end` calls only what a signal handler may call. It runs on the stack that Rust's runtime sets aside for
    // signals.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

extern "C" fn end(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const REMEDY: &[u8] = b": became shorter while it was read, or its disk failed; \
        `engram memory verify` tells whether a memory is whole\n";
    let mut path = [0; MAX_PATH_LENGTH];
    // SAFETY: the system gives the address that was read. `write` and `_exit` may be called in a signal handler.
    unsafe {
        let named = match path_at((*info).si_addr() as usize, &mut path) {
            Some(length) => &path[..length],
            None => b"a file of weights or data".as_slice(),
        };
        for part in [b"error: ".as_slice(), named, REMEDY] {
            libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len());
        }
        libc::_exit(2);
    }
}
