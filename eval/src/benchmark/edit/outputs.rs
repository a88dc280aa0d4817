//! The outputs of a system for the prompts of one kind.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

/// The outputs of one part: a list, or a single output.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Outputs<'a> {
    /// One output for each prompt.
    Many(#[serde(borrow)] Vec<Output<'a>>),
    /// The output for the only prompt.
    One(#[serde(borrow)] Output<'a>),
}

/// The output for one prompt.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Output<'a> {
    /// A generated answer.
    Answer(#[serde(borrow)] Cow<'a, str>),
    /// Negative log-likelihoods of the new and of the true answer.
    Likelihoods { target_new: f64, target_true: f64 },
    /// The share of correct tokens.
    Share(f64),
    /// Outputs before and after the edit.
    Change { before: Value, after: Value },
    /// No answer.
    None(()),
    /// Whether the tokens are correct, or a list of this for each token.
    Tokens(Value),
}

impl<'a> Outputs<'a> {
    pub(super) fn as_slice(&self) -> &[Output<'a>] {
        match self {
            Self::Many(outputs) => outputs,
            Self::One(output) => std::slice::from_ref(output),
        }
    }

    /// The id, if the part is one text or integer.
    pub(super) fn as_id(&self) -> Option<String> {
        match self {
            Self::One(Output::Answer(id)) => Some(id.to_string()),
            Self::One(Output::Share(id)) if id.fract() == 0.0 => Some(id.to_string()),
            _ => None,
        }
    }
}

impl Output<'_> {
    /// How the output is scored.
    pub(super) fn form(&self) -> &'static str {
        match self {
            Self::Answer(_) | Self::None(()) => "answers",
            Self::Likelihoods { .. } => "likelihoods",
            Self::Share(_) | Self::Tokens(_) => "tokens",
            Self::Change { .. } => "agreement",
        }
    }

    /// The share of correct or of unchanged tokens; `None` for other outputs, for shares outside of
    /// 0 to 1, and for outputs of different lengths.
    pub(super) fn share(&self) -> Option<f64> {
        match self {
            Self::Share(share) => Some(*share).filter(|share| (0.0..=1.0).contains(share)),
            Self::Tokens(tokens) => correct_share(tokens),
            Self::Change { before, after } => agreement(before, after),
            _ => None,
        }
    }
}

fn mean(shares: impl ExactSizeIterator<Item = Option<f64>>) -> Option<f64> {
    let n = shares.len();
    (n > 0).then(|| Some(shares.sum::<Option<f64>>()? / n as f64))?
}

/// The mean of numbers and truth values.
fn correct_share(tokens: &Value) -> Option<f64> {
    match tokens {
        Value::Array(tokens) => mean(tokens.iter().map(correct_share)),
        Value::Bool(correct) => Some(f64::from(u8::from(*correct))),
        other => other.as_f64().filter(|share| (0.0..=1.0).contains(share)),
    }
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
