//! Converts panics of third-party decoders to errors.
//!
//! A hostile file can make a third-party decoder panic. The caller then gets an error, and the
//! panic message is not printed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`; returns `None` if it panics. After a panic, drop the values that `call` used: their
/// state may be inconsistent.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                print(panic);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_none_and_a_value_is_returned() {
        let bytes: Vec<u8> = Vec::new();
        assert_eq!(guarded(|| bytes[7]), None);
        assert_eq!(guarded(|| guarded(|| bytes[7]).is_none()), Some(true));
        assert!(!GUARDED.get());
    }
}
