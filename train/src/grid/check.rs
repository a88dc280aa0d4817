//! Validation of a grid's configurations and claims, before training starts.

use super::settings::{ClaimSettings, Configuration};
use super::study::AblationStudy;

/// Validates a configuration, alone and against the earlier ones.
pub(super) fn configuration(
    configuration: &Configuration,
    earlier: &[&Configuration],
) -> Result<(), String> {
    let name = &configuration.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with("shared-") {
        return Err(format!(
            "`{name}` is not a valid configuration name, because it becomes a folder name; use \
             letters, digits, - and _, and do not start with `shared-`"
        ));
    }
    if earlier.iter().any(|other| other.name == *name) {
        return Err(format!("`{name}` is the name of another configuration; use a unique name"));
    }
    let is_evaluation = configuration.k.is_some() || !configuration.without_sources.is_empty();
    let Some(run_of) = &configuration.run_of else {
        let reason = "`k` and `without_sources` need `run_of`; for a trained configuration, write \
                      `set = [\"memory.k=…\"]`";
        return if is_evaluation { Err(reason.to_owned()) } else { Ok(()) };
    };
    match earlier.iter().find(|other| other.name == *run_of) {
        None => Err(format!("`run_of` names `{run_of}`, which is not an earlier configuration")),
        Some(Configuration { run_of: Some(trained), .. }) => Err(format!(
            "`run_of` names `{run_of}`, which is not trained; use `{trained}`, whose run it \
             evaluates"
        )),
        Some(_) if !configuration.set.is_empty() => {
            let reason = "a configuration with `run_of` is not trained: use `k` or \
                          `without_sources` instead of `set`";
            Err(reason.to_owned())
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
    let ClaimSettings { id, within, no_worse_by, .. } = claim;
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
    for query in claim.queries(study) {
        study.check_query(&query)?;
    }
    for (key, margin) in [("within", within), ("no_worse_by", no_worse_by)] {
        if margin.is_some_and(|margin| !(margin > 0.0 && margin.is_finite())) {
            return Err(format!("`{key}` has to be above 0"));
        }
    }
    if within.is_some() && no_worse_by.is_some() {
        return Err("has both `within` and `no_worse_by`; remove one".to_owned());
    }
    Ok(())
}
