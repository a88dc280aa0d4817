//! Every fuzz target: the name of the program selects the function.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::run(env!("CARGO_BIN_NAME"), bytes));
