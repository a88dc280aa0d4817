//! What is wrong with a grid's rows and claims, found before anything is trained.

use super::ablated::Ablated;
use super::settings::{ClaimSettings, RowSettings};

/// A row by itself and among those before it.
pub(super) fn row(row: &RowSettings, earlier: &[&RowSettings]) -> Result<(), String> {
    let name = &row.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with("shared-") {
        return Err(format!(
            "`{name}` is no name of a row: a folder is named after it; give letters, digits, - and \
             _, and no `shared-` before them"
        ));
    }
    if earlier.iter().any(|other| other.name == *name) {
        return Err(format!("`{name}` is the name of another row; give each its own"));
    }
    let asks_only = row.k.is_some() || !row.without_sources.is_empty();
    let Some(of) = &row.of else {
        let reason = "`k` and `without_sources` are for rows with `of`; say \
                      `set = [\"memory.k=…\"]` for one that is trained";
        return if asks_only { Err(reason.to_owned()) } else { Ok(()) };
    };
    match earlier.iter().find(|other| other.name == *of) {
        None => Err(format!("`of` names `{of}`, which is no row before this one")),
        Some(RowSettings { of: Some(trained), .. }) => Err(format!(
            "`of` names `{of}`, which trains nothing itself; name `{trained}`, whose run it asks"
        )),
        Some(_) if !row.set.is_empty() => {
            let reason = "a row that asks another one's run again trains nothing: give it `k` or \
                          `without_sources` instead of `set`";
            Err(reason.to_owned())
        }
        Some(_) => Ok(()),
    }
}

/// A claim by itself, among those before it, and about these rows.
pub(super) fn claim(
    claim: &ClaimSettings,
    earlier: &[&ClaimSettings],
    rows: &[&str],
    study: &dyn Ablated,
) -> Result<(), String> {
    let ClaimSettings { id, within, no_worse_by, .. } = claim;
    if earlier.iter().any(|other| other.id == *id) {
        return Err(format!("`{id}` is the id of another claim; give each its own"));
    }
    if let Some(name) = claim.rows().into_iter().find(|name| !rows.contains(name)) {
        return Err(format!("`{name}` is no row; known are {}", rows.join(", ")));
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
        return Err("has both `within` and `no_worse_by`; leave one out".to_owned());
    }
    Ok(())
}
