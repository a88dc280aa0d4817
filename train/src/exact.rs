//! Numbers that keep their bits in JSON.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that JSON keeps bit by bit. JSON has no NaN and no infinity, so these are the digits of
/// their bits, as text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Exact(pub(crate) f64);

/// The two forms of an [`Exact`].
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrBits {
    Number(f64),
    Bits(String),
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match self.0.is_finite() {
            true => NumberOrBits::Number(self.0),
            false => NumberOrBits::Bits(format!("{:016x}", self.0.to_bits())),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrBits::deserialize(deserializer)? {
            NumberOrBits::Number(number) => Ok(Self(number)),
            NumberOrBits::Bits(bits) => {
                let bits = u64::from_str_radix(&bits, 16).map_err(D::Error::custom)?;
                Ok(Self(f64::from_bits(bits)))
            }
        }
    }
}
