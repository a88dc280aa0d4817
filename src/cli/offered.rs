//! Shell completions of arguments that accept more values than the completions offer.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};

/// A parser that accepts all values of the inner parser. Completions offer some of them.
#[derive(Clone)]
pub struct Offered<P> {
    parser: P,
    values: Vec<&'static str>,
}

impl<P> Offered<P> {
    /// A parser that offers `values`.
    pub fn new(parser: P, values: impl IntoIterator<Item = &'static str>) -> Self {
        Self { parser, values: values.into_iter().collect() }
    }
}

impl<P: TypedValueParser> TypedValueParser for Offered<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, Error> {
        self.parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().map(PossibleValue::new)))
    }
}
