//! Calls into the `tokenizers` library; its panics become errors.
//!
//! A broken `tokenizer.json` makes the library panic while it parses or encodes. Each such call
//! goes through [`guarded`], which catches the panic and does not print its message.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether this thread is in a guarded call; its panics then print nothing.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Wraps the panic hook once. Panics outside of a guarded call are still printed as before.
static INSTALL_HOOK: Once = Once::new();

/// Runs a call into the library; an error or a panic becomes an error message.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, tokenizers::Error>) -> Result<T, String> {
    INSTALL_HOOK.call_once(|| {
        let previous_hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                previous_hook(panic);
            }
        }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    // Safe after a panic: a call changes only the tokenizer's cache, which may lose entries.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(was_guarded);
    match outcome {
        Ok(result) => result.map_err(|error| shortened(&error.to_string())),
        Err(panic) => {
            Err(format!("the tokenizers library panicked: {}", shortened(message(&*panic))))
        }
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Shortens a message of the library, which may quote a whole file, to one line of 200 characters.
fn shortened(message: &str) -> String {
    let replace_control = |c: char| if c.is_control() { ' ' } else { c };
    message.chars().take(200).map(replace_control).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = guarded(|| -> Result<(), tokenizers::Error> { panic!("slice {}", 7) });
        assert_eq!(error.unwrap_err(), "the tokenizers library panicked: slice 7");
        assert!(!IS_GUARDED.get());
        assert_eq!(guarded(|| Ok(3)).unwrap(), 3);
    }
}
