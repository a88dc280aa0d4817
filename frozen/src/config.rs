//! The fields of a `config.json`, checked before a model of `candle-transformers` uses them.

use candle_nn::Activation;
use engram_models::{ModelError, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest accepted size; a larger one is a mistake.
const MAX_SIZE: usize = 1 << 20;
/// The largest accepted number of positions: their tables are computed when a model is built.
const MAX_POSITIONS: usize = 1 << 17;

/// A parsed `config.json`, or an object in it.
pub(crate) struct Config<'a> {
    name: &'a str,
    fields: Value,
}

impl<'a> Config<'a> {
    /// Parses the text of a `config.json`; messages name it `name`.
    pub(crate) fn parse(text: &str, name: &'a str) -> Result<Self> {
        let fields = serde_json::from_str(text);
        let bad = |error: serde_json::Error| Self { name, fields: Value::Null }.error(error);
        Ok(Self { name, fields: fields.map_err(bad)? })
    }

    /// The object with this name, with all its defaults if it is missing.
    pub(crate) fn object(&self, key: &str) -> Self {
        let fields = self.fields.get(key).filter(|fields| !fields.is_null());
        let fields = fields.cloned().unwrap_or_else(|| Value::Object(Default::default()));
        Self { name: self.name, fields }
    }

    /// The first of these fields that exists; null if there is none.
    pub(crate) fn field(&self, keys: &[&str]) -> &Value {
        keys.iter().map(|key| &self.fields[*key]).find(|it| !it.is_null()).unwrap_or(&Value::Null)
    }

    /// Reads a configuration of `candle-transformers`.
    pub(crate) fn read<C: DeserializeOwned>(&self) -> Result<C> {
        serde_json::from_value(self.fields.clone()).map_err(|error| self.error(error))
    }

    /// A size from 1: the first of these fields that exists, or else the default.
    pub(crate) fn size(&self, keys: &[&str], default: Option<usize>) -> Result<usize> {
        let max = if keys[0].contains("position") { MAX_POSITIONS } else { MAX_SIZE };
        let value = match self.field(keys) {
            Value::Null => default,
            value => value.as_u64().and_then(|size| size.try_into().ok()),
        };
        let fits = value.filter(|size| (1..=max).contains(size));
        fits.ok_or_else(|| self.error(format!("`{}` is not a size from 1 to {max}", keys[0])))
    }

    /// A positive number: the first of these fields that exists, or else the default.
    pub(crate) fn number(&self, keys: &[&str], default: f64) -> Result<f64> {
        let value = self.field(keys);
        let value = if value.is_null() { Some(default) } else { value.as_f64() };
        let fits = value.filter(|value| *value > 0.0 && value.is_finite());
        fits.ok_or_else(|| self.error(format!("`{}` is not a positive number", keys[0])))
    }

    /// Checks a width and its number of heads.
    pub(crate) fn check_heads(&self, width: usize, heads: usize) -> Result<()> {
        match heads > 0 && width > 0 && width.is_multiple_of(heads) {
            true => Ok(()),
            false => Err(self.error(format!("width {width} is not a multiple of {heads} heads"))),
        }
    }

    /// The activation of the feed-forward layers; GELU is the default.
    pub(crate) fn activation(&self) -> Result<Activation> {
        match &self.fields["hidden_act"] {
            Value::Null => Ok(Activation::Gelu),
            name => serde_json::from_value(name.clone())
                .map_err(|error| self.error(format!("hidden_act: {error}"))),
        }
    }

    /// Checks that each field is missing, null, or has the only value that is supported.
    pub(crate) fn require(&self, fields: &[(&str, Value)]) -> Result<()> {
        for (key, supported) in fields {
            let value = &self.fields[*key];
            if !value.is_null() && value != supported {
                let reason = format!("`{key}` is {value}; only {supported} is supported");
                return Err(self.error(reason));
            }
        }
        Ok(())
    }

    /// Refuses a model whose `auto_map` names code other than the published `classes`.
    pub(crate) fn refuse_code(&self, classes: &[&str]) -> Result<()> {
        match self.fields["auto_map"]["AutoModel"].as_str() {
            Some(class) if !classes.iter().any(|known| class.rsplit('.').next() == Some(known)) => {
                Err(self.error(format!(
                    "`auto_map` names the model's own code `{class}`, which is not run; use a \
                     published model of the family without such code"
                )))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn error(&self, reason: impl ToString) -> ModelError {
        ModelError::BadConfig { what: self.name.to_owned(), reason: reason.to_string() }
    }
}
