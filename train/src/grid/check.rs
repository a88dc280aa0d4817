//! Validation of a grid's configurations and claims, before training starts.

use toml::Value;

use super::claim::ClaimSettings;
use super::settings::Configuration;
use super::study::{AblationStudy, Measures, MetricQuery};

/// Validates a configuration, alone and against the earlier ones.
pub(super) fn configuration(
    configuration: &Configuration,
    earlier: &[&Configuration],
    study: &dyn AblationStudy,
) -> Result<(), String> {
    let name = &configuration.name;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_allowed) || name.starts_with("shared-") {
        return Err(format!(
            "`{name}` is not a valid configuration name, because it becomes a folder name; use \
             letters, digits, - and _, and do not start with `shared-`"
        ));
    }
    if earlier.iter().any(|other| other.name == *name) {
        return Err(format!("`{name}` is the name of another configuration; use a unique name"));
    }
    let keys = study.measures().evaluation_keys;
    if let Some(key) = configuration.evaluation.keys().find(|key| !keys.contains(&key.as_str())) {
        let known_keys = [&["name", "description", "set", "run_of"], keys].concat();
        return Err(format!("unknown key `{key}`; the keys are {}", known_keys.join(", ")));
    }
    let Some(run_of) = &configuration.run_of else {
        return match configuration.evaluation.keys().next() {
            Some(key) => Err(format!(
                "`{key}` needs `run_of`; for a trained configuration, change the recipe with `set`"
            )),
            None => Ok(()),
        };
    };
    if keys.is_empty() {
        return Err("`run_of`: the study cannot evaluate a finished run again".to_owned());
    }
    match earlier.iter().find(|other| other.name == *run_of) {
        None => Err(format!(
            "`run_of` names `{run_of}`, which is not an earlier configuration; move that \
             configuration before this one, or correct the name"
        )),
        Some(Configuration { run_of: Some(trained), .. }) => Err(format!(
            "`run_of` names `{run_of}`, which is not trained; use `{trained}`, whose run it \
             evaluates"
        )),
        Some(_) if !configuration.set.is_empty() => {
            let keys = keys.join("`, `");
            Err(format!("a configuration with `run_of` is not trained: replace `set` by `{keys}`"))
        }
        Some(_) => Ok(()),
    }
}

/// Validates a claim, alone, against the earlier claims and against the configurations.
pub(super) fn claim(
    claim: &ClaimSettings,
    earlier: &[&ClaimSettings],
    configurations: &[&str],
    study: &dyn AblationStudy,
) -> Result<(), String> {
    let ClaimSettings { id, within, no_worse_by, above, at_most, .. } = claim;
    if earlier.iter().any(|other| other.id == *id) {
        return Err(format!("`{id}` is the id of another claim; use a unique id"));
    }
    if let Some(name) =
        claim.configurations().into_iter().find(|name| !configurations.contains(name))
    {
        return Err(format!(
            "there is no configuration `{name}`; the names are {}",
            configurations.join(", ")
        ));
    }
    for system in claim.systems() {
        claim.query(system, study)?;
    }
    for (key, margin) in [("within", within), ("no_worse_by", no_worse_by)] {
        if margin.is_some_and(|margin| !(margin > 0.0 && margin.is_finite())) {
            return Err(format!("`{key}` has to be a finite number above 0"));
        }
    }
    let limits = [above, at_most].into_iter().flatten().count();
    let margins = [within, no_worse_by].into_iter().flatten().count();
    match (&claim.worse, limits, margins) {
        (Some(_), 0, 0 | 1) | (None, 1, 0) => Ok(()),
        (Some(_), ..) => {
            Err("compares two systems: give at most one of `within` and `no_worse_by`".to_owned())
        }
        (None, ..) => {
            Err("is about one system: give `above` or `at_most`, or give `worse`".to_owned())
        }
    }
}

/// The metric of a claim, with the items that its filters select.
pub(super) fn query(
    claim: &ClaimSettings,
    study: &dyn AblationStudy,
) -> Result<MetricQuery, String> {
    let Measures { metrics, filters, .. } = study.measures();
    let names: Vec<&str> = metrics.iter().map(|metric| &*metric.name).collect();
    let metric = claim.metric.as_deref().unwrap_or(names[0]);
    one_of("`metric`", metric, &names)?;
    let metric = metrics.iter().find(|info| info.name == metric).unwrap_or(&metrics[0]);
    if let Some(key) =
        claim.filters.keys().find(|key| filters.iter().all(|filter| filter.key != **key))
    {
        let mut known_keys = ClaimSettings::KEYS.to_vec();
        known_keys.extend(filters.iter().map(|filter| filter.key));
        return Err(format!("unknown key `{key}`; the keys are {}", known_keys.join(", ")));
    }
    let mut query = MetricQuery::new(metric.clone());
    for filter in &filters {
        let value = match claim.filters.get(filter.key) {
            Some(Value::String(value)) => Some(value.as_str()),
            Some(value) => return Err(format!("`{}` is {value}; write a string", filter.key)),
            None => None,
        };
        if let Some(value) = value {
            one_of(&format!("`{}`", filter.key), value, &filter.values)?;
            query = query.with(filter.key, value);
        }
    }
    Ok(query)
}

/// Returns an error with the allowed values unless `value` is one of `known`.
pub(super) fn one_of(key: &str, value: &str, known: &[&str]) -> Result<(), String> {
    match known {
        _ if known.contains(&value) => Ok(()),
        [] => Err(format!("{key}: `{value}` is unknown; this study has no values for it")),
        _ => Err(format!("{key}: `{value}` is unknown; choose from {}", known.join(", "))),
    }
}
