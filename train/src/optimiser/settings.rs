//! The settings of update rules: a recipe's `[optimiser.rule]`, and `rule` of a `[[group]]`.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::UpdateRule;
pub use super::adafactor::AdafactorSettings;
pub use super::adamw::AdamwSettings;
pub use super::lion::LionSettings;
pub use super::muon::{MuonScale, MuonSettings};
pub use super::sgd::SgdSettings;

/// An invalid key, with the reason.
pub type InvalidKey = (&'static str, &'static str);

/// The settings of one update rule.
pub(super) trait Settings {
    /// The first invalid key, with the reason; `None` if all keys are valid.
    fn first_invalid_key(&self) -> Option<InvalidKey>;

    /// The rule for a parameter of this shape, with initial state.
    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule>;

    /// Whether the update of a value depends on other values of its parameter.
    fn needs_whole_tensors(&self) -> bool {
        false
    }
}

/// Declares [`RuleSettings`]: for each rule, the value of `kind` and its settings.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident $kind:literal $settings:ident,)*) => {
        /// An update rule with its settings. If `kind` is given, it has to be the first key that
        /// the deserializer returns. In a recipe it may have any position.
        #[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
        #[serde(tag = "kind")]
        pub enum RuleSettings {
            $($(#[$doc])* #[serde(rename = $kind)] $name($settings),)*
        }

        impl RuleSettings {
            /// The values of `kind`.
            pub const KINDS: &[&str] = &[$($kind),*];

            /// The default settings of the rule with this `kind`; `None` for an unknown kind.
            pub fn of_kind(kind: &str) -> Option<Self> {
                match kind {
                    $($kind => Some(Self::$name(<$settings>::default())),)*
                    _ => None,
                }
            }

            fn settings(&self) -> &dyn Settings {
                match self {
                    $(Self::$name(settings) => settings,)*
                }
            }
        }

        /// Reads the settings of the rule with this `kind`.
        fn read_settings<'de, D: Deserializer<'de>>(
            kind: &str,
            keys: D,
        ) -> Result<RuleSettings, D::Error> {
            match kind {
                $($kind => <$settings>::deserialize(keys).map(RuleSettings::$name),)*
                other => Err(de::Error::unknown_variant(other, RuleSettings::KINDS)),
            }
        }
    };
}

rules! {
    /// Adafactor with factored second moments, as in REVEAL.
    Adafactor "adafactor" AdafactorSettings,
    /// Adam with decoupled weight decay.
    Adamw "adamw" AdamwSettings,
    /// Lion: the sign of a momentum.
    Lion "lion" LionSettings,
    /// Muon: an orthogonalised momentum for matrices, AdamW for other parameters.
    Muon "muon" MuonSettings,
    /// Stochastic gradient descent with momentum.
    Sgd "sgd" SgdSettings,
}

impl RuleSettings {
    /// The first invalid key, with the reason; `None` if all keys are valid.
    pub fn first_invalid_key(&self) -> Option<InvalidKey> {
        self.settings().first_invalid_key()
    }

    /// The rule for a parameter of this shape, with initial state.
    pub fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        self.settings().build(shape)
    }

    /// Whether the update of a value depends on other values of its parameter. Then a parameter
    /// cannot be updated in parts.
    pub fn needs_whole_tensors(&self) -> bool {
        self.settings().needs_whole_tensors()
    }
}

impl Default for RuleSettings {
    fn default() -> Self {
        Self::Adamw(AdamwSettings::default())
    }
}

/// Reads `kind` first, so that an error in another key has that key's path. A derived
/// implementation would read all keys into a buffer and lose their paths.
impl<'de> Deserialize<'de> for RuleSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RuleVisitor;

        impl<'de> Visitor<'de> for RuleVisitor {
            type Value = RuleSettings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with the settings of an update rule")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RuleSettings, A::Error> {
                let first = map.next_key::<String>()?;
                if first.as_deref() == Some("kind") {
                    let kind: String = map.next_value()?;
                    return read_settings(&kind, MapAccessDeserializer::new(map));
                }
                read_settings("adamw", MapAccessDeserializer::new(AfterFirstKey { first, map }))
            }
        }

        deserializer.deserialize_map(RuleVisitor)
    }
}

/// A map whose first key was already read.
struct AfterFirstKey<A> {
    first: Option<String>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for AfterFirstKey<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(first) => seed.deserialize(first.into_deserializer()).map(Some),
            None => self.map.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// The key and the reason, unless the value lies in `[0, 1)`.
pub(super) fn below_one(key: &'static str, value: f64) -> Option<InvalidKey> {
    (!(0.0..1.0).contains(&value)).then_some((key, "has to lie in [0, 1)"))
}

/// The key and the reason, unless the value is positive and finite as f32, the type in which rules
/// compute.
pub(super) fn positive(key: &'static str, value: f64) -> Option<InvalidKey> {
    let value = value as f32;
    (!(value > 0.0 && value.is_finite()))
        .then_some((key, "has to be above 0 and finite as a 32-bit float"))
}

/// The key and the reason, unless the value is finite and at least 0.
pub(super) fn at_least_zero(key: &'static str, value: f64) -> Option<InvalidKey> {
    (!(value >= 0.0 && value.is_finite())).then_some((key, "has to be 0 or above"))
}
