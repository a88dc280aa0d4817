//! The outputs of a system for the prompts of one kind.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// How an output is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Answers,
    Likelihoods,
    Tokens,
    Agreement,
}

impl Form {
    /// The name for [`Evaluation::normaliser`](crate::result::Evaluation::normaliser).
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Likelihoods => "likelihoods",
            Self::Tokens => "tokens",
            Self::Agreement => "agreement",
        }
    }
}

/// The output for one prompt.
#[derive(Debug)]
pub(super) enum Output<'a> {
    /// A text; `None` if the system gave no answer.
    Answer(Option<Cow<'a, str>>),
    /// Negative log-likelihoods of the new and of the true answer.
    Likelihoods { new: f64, true_: f64 },
    /// The share of correct tokens.
    Share(f64),
    /// The share of tokens that are equal before and after the edit.
    Agreement(f64),
}

impl Output<'_> {
    pub(super) fn form(&self) -> Form {
        match self {
            Self::Answer(_) => Form::Answers,
            Self::Likelihoods { .. } => Form::Likelihoods,
            Self::Share(_) => Form::Tokens,
            Self::Agreement(_) => Form::Agreement,
        }
    }
}

/// The outputs of one part: a list, or a single output.
#[derive(Debug)]
pub(super) struct Outputs<'a>(pub(super) Vec<Output<'a>>);

impl Outputs<'_> {
    /// The id, if the part is one text or integer.
    pub(super) fn as_id(&self) -> Option<String> {
        match &self.0[..] {
            [Output::Answer(Some(id))] => Some(id.to_string()),
            [Output::Share(id)] if id.fract() == 0.0 => Some(id.to_string()),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(alias = "new")]
    target_new: Option<f64>,
    #[serde(alias = "true")]
    target_true: Option<f64>,
    before: Option<Value>,
    after: Option<Value>,
}

/// The share of equal leaves of two values of the same shape; `None` if the shapes differ, or for
/// empty lists.
fn agreement(before: &Value, after: &Value) -> Option<f64> {
    match (before, after) {
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() && !a.is_empty() => {
            let shares = a.iter().zip(b).map(|(a, b)| agreement(a, b));
            Some(shares.sum::<Option<f64>>()? / a.len() as f64)
        }
        (Value::Array(_), _) | (_, Value::Array(_)) => None,
        _ => Some(f64::from(u8::from(before == after))),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Outputs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutputsVisitor;

        impl<'de> Visitor<'de> for OutputsVisitor {
            type Value = Outputs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "texts, numbers, {\"target_new\", \"target_true\"} or {\"before\", \"after\"}",
                )
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Answer(Some(text.into()))]))
            }

            fn visit_str<E>(self, text: &str) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Answer(Some(text.to_owned().into()))]))
            }

            fn visit_unit<E>(self) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Answer(None)]))
            }

            fn visit_bool<E>(self, correct: bool) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Share(f64::from(u8::from(correct)))]))
            }

            fn visit_f64<E>(self, share: f64) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Share(share)]))
            }

            fn visit_u64<E>(self, share: u64) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Share(share as f64)]))
            }

            fn visit_i64<E>(self, share: i64) -> Result<Outputs<'de>, E> {
                Ok(Outputs(vec![Output::Share(share as f64)]))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Outputs<'de>, A::Error> {
                let Fields { target_new, target_true, before, after } =
                    Fields::deserialize(MapAccessDeserializer::new(map))?;
                let output = match (target_new, target_true, before, after) {
                    (Some(new), Some(true_), None, None) => Output::Likelihoods { new, true_ },
                    (None, None, Some(before), Some(after)) => {
                        let share = agreement(&before, &after).ok_or_else(|| {
                            A::Error::custom("`before` and `after` differ in length, or are empty")
                        });
                        Output::Agreement(share?)
                    }
                    _ => {
                        let wanted = "give `target_new` and `target_true`, or `before` and `after`";
                        return Err(A::Error::custom(wanted));
                    }
                };
                Ok(Outputs(vec![output]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Outputs<'de>, A::Error> {
                let mut outputs = Vec::new();
                while let Some(Outputs(mut inner)) = list.next_element()? {
                    // A list of tokens inside the list is one output.
                    match (inner.pop(), &inner[..]) {
                        (Some(only), []) => outputs.push(only),
                        (Some(Output::Share(last)), others) => {
                            let shares = others.iter().map(|output| match output {
                                Output::Share(share) => Some(*share),
                                _ => None,
                            });
                            let sum: Option<f64> = shares.sum();
                            let sum = sum.ok_or_else(|| A::Error::custom("mixes outputs"))?;
                            outputs.push(Output::Share((sum + last) / (others.len() + 1) as f64));
                        }
                        _ => return Err(A::Error::custom("a list in a list must have numbers")),
                    }
                }
                Ok(Outputs(outputs))
            }
        }
        deserializer.deserialize_any(OutputsVisitor)
    }
}
