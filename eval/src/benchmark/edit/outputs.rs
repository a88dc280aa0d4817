//! The outputs of a system for the prompts of one kind.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The output for one prompt, or a list: of outputs for several prompts, or of tokens.
#[derive(Debug)]
pub(super) enum Output<'a> {
    /// A generated answer.
    Answer(Cow<'a, str>),
    /// Negative log-likelihoods of the new and of the true answer.
    Likelihoods { target_new: f64, target_true: f64 },
    /// The share of correct tokens.
    Share(f64),
    /// Outputs before and after the edit.
    Change { before: Value, after: Value },
    /// No answer.
    None,
    /// Several outputs.
    List(Vec<Output<'a>>),
}

impl<'a> Output<'a> {
    /// The outputs for the prompts of a case.
    pub(super) fn as_slice(&self) -> &[Output<'a>] {
        match self {
            Self::List(outputs) => outputs,
            output => std::slice::from_ref(output),
        }
    }

    /// The id, if this is one text or integer.
    pub(super) fn as_id(&self) -> Option<String> {
        match self {
            Self::Answer(id) => Some(id.to_string()),
            Self::Share(id) if id.fract() == 0.0 => Some(id.to_string()),
            _ => None,
        }
    }

    /// How the output is scored.
    pub(super) fn form(&self) -> &'static str {
        match self {
            Self::Answer(_) | Self::None => "answers",
            Self::Likelihoods { .. } => "likelihoods",
            Self::Share(_) | Self::List(_) => "tokens",
            Self::Change { .. } => "agreement",
        }
    }

    /// The share of correct or of unchanged tokens; `None` for other outputs, for shares outside of
    /// 0 to 1, and for outputs of different lengths.
    pub(super) fn share(&self) -> Option<f64> {
        match self {
            Self::Share(share) => Some(*share).filter(|share| (0.0..=1.0).contains(share)),
            Self::List(tokens) => mean(tokens.iter().map(Self::share)),
            Self::Change { before, after } => agreement(before, after),
            _ => None,
        }
    }
}

fn mean(shares: impl ExactSizeIterator<Item = Option<f64>>) -> Option<f64> {
    let n = shares.len();
    (n > 0).then(|| Some(shares.sum::<Option<f64>>()? / n as f64))?
}

/// The share of equal leaves of two values of the same shape.
fn agreement(before: &Value, after: &Value) -> Option<f64> {
    match (before, after) {
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            mean(a.iter().zip(b).map(|(a, b)| agreement(a, b)))
        }
        (Value::Array(_), _) | (_, Value::Array(_)) => None,
        _ => Some(f64::from(u8::from(before == after))),
    }
}

/// The fields of an output that is an object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    target_new: Option<f64>,
    target_true: Option<f64>,
    before: Option<Value>,
    after: Option<Value>,
}

// A derived enum would copy each output before it knows its kind.
impl<'de: 'a, 'a> Deserialize<'de> for Output<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutputVisitor;

        impl<'de> Visitor<'de> for OutputVisitor {
            type Value = Output<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a text, a number, {\"target_new\", \"target_true\"} or {\"before\", \"after\"}",
                )
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Output<'de>, E> {
                Ok(Output::Answer(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Output<'de>, E> {
                Ok(Output::Answer(text.to_owned().into()))
            }

            fn visit_unit<E>(self) -> Result<Output<'de>, E> {
                Ok(Output::None)
            }

            fn visit_bool<E>(self, correct: bool) -> Result<Output<'de>, E> {
                Ok(Output::Share(f64::from(u8::from(correct))))
            }

            fn visit_f64<E>(self, share: f64) -> Result<Output<'de>, E> {
                Ok(Output::Share(share))
            }

            fn visit_u64<E>(self, share: u64) -> Result<Output<'de>, E> {
                Ok(Output::Share(share as f64))
            }

            fn visit_i64<E>(self, share: i64) -> Result<Output<'de>, E> {
                Ok(Output::Share(share as f64))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Output<'de>, A::Error> {
                let mut outputs = Vec::new();
                while let Some(output) = list.next_element()? {
                    outputs.push(output);
                }
                Ok(Output::List(outputs))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Output<'de>, A::Error> {
                match Fields::deserialize(MapAccessDeserializer::new(map))? {
                    Fields {
                        target_new: Some(target_new),
                        target_true: Some(target_true),
                        before: None,
                        after: None,
                    } => Ok(Output::Likelihoods { target_new, target_true }),
                    Fields { before: Some(before), after: Some(after), .. } => {
                        Ok(Output::Change { before, after })
                    }
                    // Neither is complete, so this output cannot be scored.
                    _ => Ok(Output::Share(f64::NAN)),
                }
            }
        }
        deserializer.deserialize_any(OutputVisitor)
    }
}
