//! What is wrong with a grid's rows and claims, found before anything is trained.

use std::collections::HashMap;

use engram_data::world::attributes::Source;
use engram_data::world::haystack::WorldName;

use super::settings::{ClaimSettings, Grid, Phases, RowSettings};
use crate::error::Result;
use crate::studies::reveal::run::settings;

/// What a row reads from.
struct Reads {
    k: usize,
    sources: Vec<&'static str>,
    world: Option<WorldName>,
}

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
) -> Result<(), String> {
    let ClaimSettings { id, better, worse, source, within, .. } = claim;
    if earlier.iter().any(|other| other.id == *id) {
        return Err(format!("`{id}` is the id of another claim; give each its own"));
    }
    if let Some(name) = [better, worse].into_iter().find(|name| !rows.contains(&name.as_str())) {
        return Err(format!("`{name}` is no row; known are {}", rows.join(", ")));
    }
    let sources = Source::ALL.map(Source::name);
    if let Some(name) = source.as_ref().filter(|name| !sources.contains(&name.as_str())) {
        return Err(format!("`{name}` is no source; known are {}", sources.join(", ")));
    }
    if within.is_some_and(|within| !(within > 0.0 && within.is_finite())) {
        return Err("`within` has to be above 0".to_owned());
    }
    Ok(())
}

/// The recipes of all rows, what rows that ask leave out, and whether claims can be measured.
///
/// # Errors
/// [`crate::TrainError::Recipe`] with the line of a row or a claim.
pub(super) fn grid(grid: &Grid) -> Result<()> {
    let mut read: HashMap<&str, Reads> = HashMap::new();
    for row in grid.rows() {
        let reads = match row.of.as_ref().and_then(|of| read.get(of.as_str())) {
            Some(trained) => {
                trained.asked_again(row).map_err(|reason| grid.of_row(row, &reason))?
            }
            None => trained(grid, row)?,
        };
        // The main row is the first one whose questions the others are compared by.
        let world = read.get(grid.main()).map_or(reads.world, |main| main.world);
        if let (Some(own), Some(main)) = (reads.world, world)
            && own != main
        {
            let reason = format!(
                "is about the world of {own}, the main row about that of {main}; their answers \
                 cannot be compared"
            );
            return Err(grid.of_row(row, &reason));
        }
        read.insert(&row.name, reads);
    }
    for claim in grid.claims() {
        let wanted = claim.figure.entries();
        for name in [&claim.better, &claim.worse] {
            let k = read.get(name.as_str()).map_or(0, |reads| reads.k);
            if k < wanted {
                let reason = format!(
                    "row `{name}` reads {k} entries, which is too few for a recall among {wanted}; \
                     compare another figure, or rows that read as many"
                );
                return Err(grid.of_claim(claim, &reason));
            }
        }
    }
    Ok(())
}

/// What a row that is trained reads from.
fn trained(grid: &Grid, row: &RowSettings) -> Result<Reads> {
    let mut recipe = grid.recipe(row, 1, Phases::Whole)?;
    if recipe.study() != "reveal" {
        let error = recipe.error("study", "is not `reveal`, whose ablations a grid is of");
        return Err(grid.of_row(row, &error));
    }
    let (data, _, memory, _) = settings(&mut recipe).map_err(|error| grid.of_row(row, &error))?;
    if !data.is_world() {
        let reason = "names files; a grid compares answers about the embedded world: leave out \
                      what names files";
        return Err(grid.of_row(row, &recipe.error("data", reason)));
    }
    let mut sources = Source::ALL.map(Source::name).to_vec();
    sources.retain(|name| data.without_sources.iter().all(|out| out != name));
    Ok(Reads { k: memory.k, sources, world: data.world() })
}

impl Reads {
    /// What a row reads from that asks this one's run again.
    fn asked_again(&self, row: &RowSettings) -> Result<Self, String> {
        let left_out = &row.without_sources;
        if let Some(name) = left_out.iter().find(|name| !self.sources.contains(&name.as_str())) {
            let known = self.sources.join(", ");
            return Err(format!("`without_sources` names `{name}`; the run's memory has {known}"));
        }
        let mut sources = self.sources.clone();
        sources.retain(|name| left_out.iter().all(|out| out != name));
        if sources.is_empty() {
            return Err("`without_sources` leaves nothing to read; say `k = 0`".to_owned());
        }
        Ok(Self { k: row.k.unwrap_or(self.k), sources, world: self.world })
    }
}
