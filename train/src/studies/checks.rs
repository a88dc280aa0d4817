//! Checks of a study's settings. Each returns the key of an invalid value, with the reason.

/// An invalid key with the reason; `None` if a check holds.
pub(crate) type Invalid = Option<(&'static str, String)>;

/// The first invalid key.
pub(crate) fn first<const N: usize>(checks: [Invalid; N]) -> Invalid {
    checks.into_iter().flatten().next()
}

/// The key and the reason, if the condition holds.
pub(crate) fn invalid_if(condition: bool, key: &'static str, reason: impl Into<String>) -> Invalid {
    condition.then(|| (key, reason.into()))
}

/// A share, such as a probability.
pub(crate) fn fraction(key: &'static str, value: f64) -> Invalid {
    let reason = format!("is {value}; must be from 0 to 1");
    invalid_if(!(0.0..=1.0).contains(&value), key, reason)
}

/// A share below 1.
pub(crate) fn below_one(key: &'static str, value: f64) -> Invalid {
    let reason = format!("is {value}; must be from 0 to below 1");
    invalid_if(!(0.0..1.0).contains(&value), key, reason)
}

/// A weight or another amount.
pub(crate) fn at_least_zero(key: &'static str, value: f64) -> Invalid {
    let reason = format!("is {value}; must be a finite number, 0 or above");
    invalid_if(!(value >= 0.0 && value.is_finite()), key, reason)
}

/// A scale or a duration.
pub(crate) fn positive(key: &'static str, value: f64) -> Invalid {
    let reason = format!("is {value}; must be a finite number above 0");
    invalid_if(!(value > 0.0 && value.is_finite()), key, reason)
}

/// A number of things, at least 1.
pub(crate) fn count(key: &'static str, value: usize, max: usize) -> Invalid {
    let reason = format!("is {value}; must be from 1 to {max}");
    invalid_if(!(1..=max).contains(&value), key, reason)
}

/// Manifests of training, validation and test clips are given together; without training clips,
/// the data are the embedded world.
pub(crate) fn manifests(train: &str, validation: &str, test: &str) -> Invalid {
    let reason = "is set, but `data.train` is empty; set all three, or none";
    match (train.is_empty(), validation.is_empty(), test.is_empty()) {
        (false, true, _) | (false, _, true) => {
            Some(("train", "also needs `validation` and `test`".into()))
        }
        (true, false, _) => Some(("validation", reason.into())),
        (true, _, false) => Some(("test", reason.into())),
        _ => None,
    }
}
