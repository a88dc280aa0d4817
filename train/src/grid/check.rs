//! Validation of a grid's configurations and claims, before training starts.

use super::ablated::Ablated;
use super::settings::{ClaimSettings, RowSettings};

/// Validates a configuration, alone and against the earlier ones.
pub(super) fn row(row: &RowSettings, earlier: &[&RowSettings]) -> Result<(), String> {
    let name = &row.name;
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
    let asks_only = row.k.is_some() || !row.without_sources.is_empty();
    let Some(of) = &row.of else {
        let reason = "`k` and `without_sources` need `of`; for a configuration that is trained, \
                      write `set = [\"memory.k=…\"]`";
        return if asks_only { Err(reason.to_owned()) } else { Ok(()) };
    };
    match earlier.iter().find(|other| other.name == *of) {
        None => Err(format!("`of` names `{of}`, which is not an earlier configuration")),
        Some(RowSettings { of: Some(trained), .. }) => Err(format!(
            "`of` names `{of}`, which is not trained; use `{trained}`, whose run it evaluates"
        )),
        Some(_) if !row.set.is_empty() => {
            let reason = "a configuration with `of` is not trained: use `k` or `without_sources` \
                          instead of `set`";
            Err(reason.to_owned())
        }
        Some(_) => Ok(()),
    }
}

/// Validates a claim, alone, against the earlier claims and against the configurations.
pub(super) fn claim(
    claim: &ClaimSettings,
    earlier: &[&ClaimSettings],
    rows: &[&str],
    study: &dyn Ablated,
) -> Result<(), String> {
    let ClaimSettings { id, within, no_worse_by, .. } = claim;
    if earlier.iter().any(|other| other.id == *id) {
        return Err(format!("`{id}` is the id of another claim; use a unique id"));
    }
    if let Some(name) = claim.rows().into_iter().find(|name| !rows.contains(name)) {
        return Err(format!(
            "there is no configuration `{name}`; the names are {}",
            rows.join(", ")
        ));
    }
    for asked in claim.asked(study) {
        study.check_asked(&asked)?;
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
