//! Catches panics of third-party decoders and of the `tokenizers` library: a damaged file can make
//! them panic. The panic message is returned instead of printed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`; returns the panic message if it panics. After a panic, drop the values that `call`
/// used: their state may be inconsistent.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static INSTALL_HOOK: Once = Once::new();
    INSTALL_HOOK.call_once(|| {
        let previous_hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                previous_hook(panic);
            }
        }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(was_guarded);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message_and_nested_calls_return_values() {
        assert_eq!(guarded(|| -> u8 { panic!("slice {}", 7) }), Err("slice 7".to_owned()));
        assert_eq!(guarded(|| guarded(|| -> u8 { panic!("no") }).is_err()), Ok(true));
        assert!(!IS_GUARDED.get());
    }
}
