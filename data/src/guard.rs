//! Catches panics of third-party decoders: a hostile file can make them panic. The panic message
//! is not printed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`; returns `None` if it panics. After a panic, drop the values that `call` used: their
/// state may be inconsistent.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    static INSTALL_HOOK: Once = Once::new();
    INSTALL_HOOK.call_once(|| {
        let previous_hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                previous_hook(panic);
            }
        }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(was_guarded);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_none_and_nested_calls_return_values() {
        let bytes: Vec<u8> = Vec::new();
        assert_eq!(guarded(|| bytes[7]), None);
        assert_eq!(guarded(|| guarded(|| bytes[7]).is_none()), Some(true));
        assert!(!IS_GUARDED.get());
    }
}
