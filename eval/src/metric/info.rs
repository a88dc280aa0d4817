//! Name, version, direction and unit of a metric.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Name, version, direction and unit of a metric, stored with every value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricInfo {
    /// Stable name, as in the JSON results.
    pub name: Cow<'static, str>,
    /// Version of the definition, raised whenever the value for the same input changes.
    pub version: u32,
    /// Whether higher is better; `None` for a descriptive value without a direction.
    pub higher_is_better: Option<bool>,
    /// Unit of the value.
    pub unit: Unit,
}

impl MetricInfo {
    /// Version 1 of a metric for which higher is better.
    pub const fn higher(name: &'static str, unit: Unit) -> Self {
        Self { name: Cow::Borrowed(name), version: 1, higher_is_better: Some(true), unit }
    }

    /// Version 1 of a metric for which lower is better.
    pub const fn lower(name: &'static str, unit: Unit) -> Self {
        Self { name: Cow::Borrowed(name), version: 1, higher_is_better: Some(false), unit }
    }

    /// Version 1 of a descriptive value without a direction.
    pub const fn descriptive(name: &'static str, unit: Unit) -> Self {
        Self { name: Cow::Borrowed(name), version: 1, higher_is_better: None, unit }
    }

    /// The same definition under another name, such as `recall@10` for `recall`.
    pub fn renamed(&self, name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), ..self.clone() }
    }
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A share, or a ratio of counts: 1 is 100 %.
    #[default]
    Fraction,
    /// A share in percent: 0 to 100.
    Percent,
    /// A correlation coefficient: -1 to 1.
    Coefficient,
    /// A score on the metric's own scale.
    Points,
    /// A count: 0, 1, 2, …
    Count,
}

impl Unit {
    /// The unit in a report; empty for fractions and coefficients.
    pub fn label(self) -> &'static str {
        match self {
            Self::Fraction | Self::Coefficient => "",
            Self::Percent => "per cent",
            Self::Points => "points",
            Self::Count => "count",
        }
    }
}
