//! Pools the hidden states of a text's tokens into one vector.

use serde::Deserialize;

use super::parse_json;
use crate::config::{bad_field, require};
use crate::error::Result;

/// The pooling of token states into one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingMode {
    /// The state of the first token.
    Cls,
    /// The maximum of each component.
    Max,
    /// The mean of the states.
    Mean,
    /// The sum of the states, divided by the square root of the number of tokens.
    MeanSqrtLen,
    /// The mean of the states, weighted by the token's position: 1, 2, 3, …
    WeightedMean,
    /// The state of the last token.
    LastToken,
}

/// The modes: name, flag in files of sentence-transformers before 5.4, and mode. The vectors of
/// several flags are concatenated in this order.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("cls", "pooling_mode_cls_token", PoolingMode::Cls),
    ("max", "pooling_mode_max_tokens", PoolingMode::Max),
    ("mean", "pooling_mode_mean_tokens", PoolingMode::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", PoolingMode::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", PoolingMode::LastToken),
];

/// The `config.json` of a Pooling module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolingConfig {
    /// The modes. Their vectors are concatenated in this order.
    pub modes: Vec<PoolingMode>,
    /// Whether the states of prompt tokens are pooled, too.
    pub include_prompt: bool,
}

impl Default for PoolingConfig {
    fn default() -> Self {
        Self { modes: vec![PoolingMode::Mean], include_prompt: true }
    }
}

impl PoolingConfig {
    /// Parses the file; `name` names it in errors.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for an unknown mode, an empty list
    /// of modes, or text that is not valid.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Names {
            One(String),
            Several(Vec<String>),
        }
        #[derive(Deserialize)]
        struct ConfigFile {
            pooling_mode: Option<Names>,
            include_prompt: Option<bool>,
            #[serde(flatten)]
            others: serde_json::Map<String, serde_json::Value>,
        }
        let file: ConfigFile = parse_json(text, name, "the configuration of a Pooling module")?;
        let mut flags = Vec::new();
        for (key, value) in &file.others {
            let mode_index = MODES.iter().position(|(_, flag, _)| flag == key);
            match (key.starts_with("pooling_mode_"), mode_index, value.as_bool()) {
                (false, ..) => {}
                (true, Some(index), Some(is_on)) => flags.extend(is_on.then_some(index)),
                (true, None, Some(false)) => {}
                (true, None, _) => return Err(unsupported_mode(name, key)),
                (true, Some(_), None) => {
                    return Err(bad_field(name, format!("`{key}` is {value}, not true or false")));
                }
            }
        }
        flags.sort_unstable();
        let modes = match file.pooling_mode {
            Some(Names::One(mode)) => vec![mode_of(&mode, name)?],
            Some(Names::Several(modes)) => {
                modes.iter().map(|mode| mode_of(mode, name)).collect::<Result<_>>()?
            }
            None if flags.is_empty() => vec![PoolingMode::Mean],
            None => flags.into_iter().map(|index| MODES[index].2).collect(),
        };
        let maximum = MODES.len();
        require((1..=maximum).contains(&modes.len()), name, || {
            format!("`pooling_mode` has {} modes, not 1 to {maximum}", modes.len())
        })?;
        Ok(Self { modes, include_prompt: file.include_prompt.unwrap_or(true) })
    }

    /// Pools the states `[L, D]` of one text into `[modes × D]`. The first `prompt_length` tokens
    /// are skipped unless the configuration includes the prompt.
    pub(crate) fn pool(&self, states: &[f32], width: usize, prompt_length: usize) -> Vec<f32> {
        let length = states.len() / width;
        // If the prompt fills the whole text, all tokens are pooled.
        let first = if self.include_prompt || prompt_length >= length { 0 } else { prompt_length };
        let mut pooled = Vec::with_capacity(self.modes.len() * width);
        for mode in &self.modes {
            // The index and the state of each row.
            let rows = (first..length).map(|row| (row, &states[row * width..][..width]));
            // The weighted sum of the states, divided by a function of the sum of the weights.
            let mean = |weight: fn(usize) -> f64, divisor: fn(f64) -> f64| {
                let (mut sums, mut total) = (vec![0.0; width], 0.0);
                for (row, state) in rows.clone() {
                    total += weight(row);
                    let values = sums.iter_mut().zip(state);
                    values.for_each(|(sum, x)| *sum += weight(row) * f64::from(*x));
                }
                sums.into_iter().map(|sum| (sum / divisor(total)) as f32).collect::<Vec<f32>>()
            };
            match mode {
                PoolingMode::Cls => pooled.extend(&states[first * width..][..width]),
                PoolingMode::LastToken => pooled.extend(&states[(length - 1) * width..][..width]),
                PoolingMode::Max => {
                    let mut largest = vec![f32::NEG_INFINITY; width];
                    for (_, state) in rows {
                        let values = largest.iter_mut().zip(state);
                        values.for_each(|(maximum, x)| *maximum = maximum.max(*x));
                    }
                    pooled.extend(largest);
                }
                PoolingMode::Mean => pooled.extend(mean(|_| 1.0, |count| count)),
                PoolingMode::MeanSqrtLen => pooled.extend(mean(|_| 1.0, f64::sqrt)),
                // Weights depend on the token's position in the whole text, with the prompt.
                PoolingMode::WeightedMean => {
                    pooled.extend(mean(|row| row as f64 + 1.0, |weights| weights));
                }
            }
        }
        pooled
    }
}

/// Returns the mode with this name. `name` names the file in errors.
fn mode_of(mode: &str, name: &str) -> Result<PoolingMode> {
    let entry = MODES.iter().find(|(mode_name, ..)| *mode_name == mode);
    entry.map(|(.., mode)| *mode).ok_or_else(|| unsupported_mode(name, mode))
}

/// Returns the error for a mode or flag that is not in [`MODES`].
fn unsupported_mode(name: &str, mode: &str) -> crate::error::ModelError {
    let supported = MODES.map(|(mode_name, ..)| mode_name).join(", ");
    bad_field(name, format!("the pooling mode `{mode}` is not supported; use one of {supported}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_old_files_and_names_of_new_files_select_modes() {
        let read = |text: &str| PoolingConfig::parse(text, "config.json").expect(text).modes;
        assert_eq!(read("{}"), [PoolingMode::Mean]);
        assert_eq!(read(r#"{"pooling_mode": "cls"}"#), [PoolingMode::Cls]);
        let names_and_flag =
            r#"{"pooling_mode": ["mean", "cls"], "pooling_mode_max_tokens": true}"#;
        assert_eq!(read(names_and_flag), [PoolingMode::Mean, PoolingMode::Cls]);
        let flags = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}"#;
        assert_eq!(read(flags), [PoolingMode::Cls, PoolingMode::Mean]);
        assert_eq!(read(r#"{"pooling_mode_cls_token": false}"#), [PoolingMode::Mean]);
        for invalid in [
            r#"{"pooling_mode": "attention"}"#,
            r#"{"pooling_mode": []}"#,
            r#"{"pooling_mode": 3}"#,
            r#"{"pooling_mode_middle_token": true}"#,
            r#"{"pooling_mode_cls_token": "yes"}"#,
            "[]",
        ] {
            let error =
                PoolingConfig::parse(invalid, "p/config.json").expect_err(invalid).to_string();
            assert!(error.starts_with("p/config.json: "), "{error}");
        }
    }

    #[test]
    fn each_mode_pools_as_defined() {
        let states = [1.0, 2.0, 3.0, -2.0, 5.0, 6.0];
        let pool = |mode, prompt| {
            PoolingConfig { modes: vec![mode], include_prompt: prompt == 0 }
                .pool(&states, 2, prompt)
        };
        assert_eq!(pool(PoolingMode::Cls, 0), [1.0, 2.0]);
        assert_eq!(pool(PoolingMode::LastToken, 0), [5.0, 6.0]);
        assert_eq!(pool(PoolingMode::Max, 0), [5.0, 6.0]);
        assert_eq!(pool(PoolingMode::Mean, 0), [3.0, 2.0]);
        let root = 3f64.sqrt();
        assert_eq!(pool(PoolingMode::MeanSqrtLen, 0), [(9.0 / root) as f32, (6.0 / root) as f32]);
        assert_eq!(pool(PoolingMode::WeightedMean, 0), [22.0 / 6.0, 16.0 / 6.0]);
        // The first token is the prompt and is skipped.
        assert_eq!(pool(PoolingMode::Cls, 1), [3.0, -2.0]);
        assert_eq!(pool(PoolingMode::Mean, 1), [4.0, 2.0]);
        assert_eq!(pool(PoolingMode::WeightedMean, 1), [21.0 / 5.0, 14.0 / 5.0]);
        assert_eq!(pool(PoolingMode::Mean, 3), [3.0, 2.0]);
    }
}
