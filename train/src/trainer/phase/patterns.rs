//! Checks that every path pattern of a recipe matches a parameter. A pattern without a match is
//! usually a typo.

use std::fmt::Display;

use engram_infer::InferError;
use engram_models::ModelError;
use engram_models::compute::Compute;
use engram_models::params::{
    Parameter, ParameterBuilder, ParameterGroup, Parameters, path_matches, rate_of,
};

use super::study_error;
use crate::error::{Result, StudyError, TrainError};
use crate::recipe::{GroupSettings, Phase, Recipe};
use crate::study::StudyExtension;

/// Builds the phase's model. Every pattern of the recipe has to match a parameter. Patterns of
/// later phases are checked in the first phase, because all phases have the same model.
pub(super) fn build<S: StudyExtension>(
    recipe: &Recipe,
    study: &S,
    phase: &Phase,
) -> Result<(S::Model, Parameters)> {
    let compute = recipe.compute()?;
    check_support::<S>(recipe, &compute)?;
    let tables = recipe.embedding_tables.as_ref().map_or(&[][..], |tables| &tables.patterns);
    let build = |groups, tables: &[String]| {
        let builder = ParameterBuilder::new(recipe.seed, groups, &compute)
            .with_low_rank(recipe.low_rank())
            .with_quantised(recipe.quantised.to_vec())
            .with_external_tables(tables.to_vec());
        let model = study.build(&builder)?;
        Ok((model, builder.finish()?))
    };
    let built = build(recipe.groups(phase), tables);
    if built.as_ref().is_err_and(is_unused_pattern) {
        // Built without groups, to get the parameter names.
        let without = build(vec![ParameterGroup::all_frozen()], &[]);
        check(recipe, &without.map_err(study_error(study, "build"))?.1)?;
    }
    let (model, parameters) = built.map_err(|error| {
        layer_error(recipe, &error).unwrap_or_else(|| study_error(study, "build")(error))
    })?;
    check(recipe, &parameters)?;
    check_frozen(recipe, &parameters)?;
    check_tables(recipe, &parameters)?;
    check_awp(recipe, &parameters)?;
    Ok((model, parameters))
}

/// Returns the error of a pattern of layers that does not fit the model, with its position in the
/// recipe.
fn layer_error(recipe: &Recipe, error: &StudyError) -> Option<TrainError> {
    let low_rank = |pattern: &String, key: &str, reason: String| {
        let index = recipe.low_rank().iter().rposition(|branch| branch.pattern == *pattern)?;
        Some(recipe.error(&format!("low_rank.{index}.{key}"), reason))
    };
    let model_error = match error.downcast_ref::<InferError>() {
        Some(InferError::Model(error)) => error,
        _ => error.downcast_ref()?,
    };
    match model_error {
        ModelError::NoLinearLayer { setting: "quantised", .. } => {
            Some(recipe.error("quantised", format!("does not fit the model: {model_error}")))
        }
        ModelError::NoLinearLayer { pattern, .. } => {
            low_rank(pattern, "match", format!("does not fit the model: {model_error}"))
        }
        ModelError::BadLowRank { pattern, layer, value, reason } => {
            low_rank(pattern, value, format!("does not fit layer `{layer}`: {reason}"))
        }
        ModelError::NoEmbeddingTable { pattern, .. } => {
            Some(table_error(recipe, |other| other == pattern, model_error))
        }
        ModelError::FrozenTable { table } => {
            Some(table_error(recipe, |pattern| matches(pattern, table), model_error))
        }
        _ => None,
    }
}

/// Returns the error of the first pattern of `[embedding_tables]` that satisfies `is_at_fault`.
fn table_error(
    recipe: &Recipe,
    is_at_fault: impl Fn(&str) -> bool,
    reason: impl Display,
) -> TrainError {
    let patterns = recipe.embedding_tables.as_ref().map_or(&[][..], |tables| &tables.patterns);
    let index = patterns.iter().position(|pattern| is_at_fault(pattern)).unwrap_or_default();
    recipe.error(&format!("embedding_tables.match.{index}"), reason)
}

/// Returns an error if the recipe has `[embedding_tables]`, and the study or the device does not
/// support it.
fn check_support<S: StudyExtension>(recipe: &Recipe, compute: &Compute) -> Result<()> {
    let reason = match recipe.embedding_tables.as_ref() {
        None => return Ok(()),
        Some(_) if !S::SUPPORTS_EMBEDDING_TABLES => {
            "is not supported by this study; remove the section"
        }
        Some(_) if !compute.device.is_cpu() => {
            "keeps tables on the CPU; set `compute.device = \"cpu\"`, or remove the section"
        }
        Some(_) => return Ok(()),
    };
    Err(recipe.error("embedding_tables", reason))
}

/// Returns an error if a phase freezes a table in parts, if a phase's update rule needs the whole
/// table, or if `awp.match` selects it. It is found before the first phase is trained.
fn check_tables(recipe: &Recipe, parameters: &Parameters) -> Result<()> {
    for table in parameters.external_tables() {
        let name = table.name();
        let awp = recipe.awp.as_ref().map_or(&[][..], |awp| &awp.patterns);
        if let Some(index) = awp.iter().position(|pattern| matches(pattern, name)) {
            let reason = format!(
                "selects `{name}`, which is kept in parts and cannot be perturbed; select other \
                 tensors, or remove the table from `embedding_tables.match`"
            );
            return Err(recipe.error(&format!("awp.match.{index}"), reason));
        }
        let rate = if recipe.low_rank().is_empty() { 1.0 } else { 0.0 };
        for phase in &recipe.phases {
            let (reason, remedy) = if rate_of(&recipe.groups(phase), name).unwrap_or(rate) == 0.0 {
                ("is frozen, and only trained tables can be kept in parts", "a rate above 0")
            } else if recipe.rules(phase).rule_of(name).needs_whole_tensors() {
                ("has an update rule that needs the whole table", "another rule")
            } else {
                continue;
            };
            let reason = format!(
                "matches `{name}`, which {reason} (phase `{}`); give it {remedy}, or remove it here",
                phase.name
            );
            return Err(table_error(recipe, |pattern| matches(pattern, name), reason));
        }
    }
    Ok(())
}

/// With low-rank branches, a parameter is frozen unless a group matches it. Returns an error if
/// such a parameter, or a quantised weight, has random values: it is most often a head, which has
/// to be trained.
fn check_frozen(recipe: &Recipe, parameters: &Parameters) -> Result<()> {
    let groups: Vec<ParameterGroup> =
        recipe.phases.iter().flat_map(|phase| recipe.groups(phase)).collect();
    let has_group = |name: &str| groups.iter().any(|group| matches(&group.pattern, name));
    let is_random = |parameter: &&Parameter| {
        let loads =
            |name: &str| recipe.start.as_ref().is_some_and(|start| start.loads_parameter(name));
        parameter.is_random() && !loads(parameter.name())
    };
    if let Some(parameter) = parameters.iter().filter(is_random).find(|p| p.is_quantised()) {
        let reason = format!(
            "matches `{}`, which has random initial values and could not be trained; load weights, \
             or choose other layers",
            parameter.name()
        );
        return Err(recipe.error("quantised", reason));
    }
    if recipe.low_rank().is_empty() {
        return Ok(());
    }
    let faults: Vec<&Parameter> = parameters
        .iter()
        .filter(is_random)
        .filter(|parameter| !parameter.is_trainable() && !has_group(parameter.name()))
        .collect();
    match faults.first() {
        None => Ok(()),
        Some(parameter) => Err(recipe.error(
            "low_rank",
            format!(
                "freezes all other parameters, but {} of them have random initial values, such as \
                 `{}`; load weights, or add a [[group]] that matches them, with rate 1 to train \
                 them or 0 to freeze them",
                faults.len(),
                parameter.name()
            ),
        )),
    }
}

/// Returns an error if all parameters that `awp.match` selects are frozen in every phase: only
/// trained parameters are perturbed.
fn check_awp(recipe: &Recipe, parameters: &Parameters) -> Result<()> {
    let Some(awp) = recipe.awp.as_ref() else { return Ok(()) };
    let groups: Vec<_> = recipe.phases.iter().map(|phase| recipe.groups(phase)).collect();
    let is_trained = |parameter: &&Parameter| {
        let mut rates = groups.iter().map(|groups| rate_of(groups, parameter.name()));
        rates.any(|rate| rate.map_or(parameter.is_trainable(), |rate| rate > 0.0))
    };
    let is_selected =
        |parameter: &&Parameter| awp.patterns.iter().any(|p| matches(p, parameter.name()));
    if parameters.iter().filter(is_selected).any(|parameter| is_trained(&parameter)) {
        return Ok(());
    }
    let example = parameters.iter().find(is_selected).map_or("none", |parameter| parameter.name());
    let reason = format!(
        "selects only frozen parameters, such as `{example}`; select trained parameters, or remove \
         [awp]"
    );
    Err(recipe.error("awp.match", reason))
}

/// Whether a parameter's path matches a pattern.
fn matches(pattern: &str, name: &str) -> bool {
    path_matches(pattern.as_bytes(), name.as_bytes())
}

fn is_unused_pattern(error: &StudyError) -> bool {
    matches!(error.downcast_ref(), Some(ModelError::UnmatchedPattern { .. }))
}

fn check(recipe: &Recipe, parameters: &Parameters) -> Result<()> {
    let group_patterns = |section: &str, groups: &[GroupSettings]| -> Vec<(String, String)> {
        let path = |i: usize| format!("{section}.{i}.match");
        groups.iter().enumerate().map(|(i, group)| (path(i), group.pattern.clone())).collect()
    };
    let list_patterns = |section: &str, patterns: &[String]| -> Vec<(String, String)> {
        let path = |i: usize| format!("{section}.{i}");
        patterns.iter().enumerate().map(|(i, pattern)| (path(i), pattern.clone())).collect()
    };
    let mut patterns = group_patterns("group", &recipe.group);
    for phase in &recipe.phases {
        patterns.extend(group_patterns(&format!("phase.{}.group", phase.index), &phase.group));
    }
    patterns.extend(list_patterns("gradient_check.allow", &recipe.gradient_check.allow));
    patterns.extend(list_patterns(
        "start.parameters",
        recipe.start.as_ref().map_or(&[], |start| &start.parameters),
    ));
    patterns
        .extend(list_patterns("awp.match", recipe.awp.as_ref().map_or(&[], |awp| &awp.patterns)));
    for (path, pattern) in patterns {
        if parameters.names().any(|name| matches(&pattern, name)) {
            continue;
        }
        let similar_name = nearest(&pattern, parameters).unwrap_or("none");
        let reason = format!(
            "is `{pattern}`, which matches none of the {} parameters; the most similar name is \
             `{similar_name}` (`*` matches within one level, `**` across levels)",
            parameters.names().count(),
        );
        return Err(recipe.error(&path, reason));
    }
    Ok(())
}

/// The parameter name that shares the most letter pairs with the pattern; on a tie, the first such
/// name. `None` if there are no parameters.
fn nearest<'a>(pattern: &str, parameters: &'a Parameters) -> Option<&'a str> {
    let letters = pattern.replace('*', "");
    let similarity = |name: &str| strsim::sorensen_dice(&letters, name);
    let names = parameters.names().rev();
    names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engram_models::params::{Init, ParameterBuilder};

    #[test]
    fn a_part_of_a_name_finds_the_nearest_name() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(0);
        for layer in 0..3 {
            for name in ["attention.self.query.weight", "attention.self.query.bias", "norm.weight"]
            {
                builder.get(&format!("encoder.layer.{layer}.{name}"), &[1], Init::Zeros)?;
            }
        }
        builder.get("head.dense.weight", &[1], Init::Zeros)?;
        let parameters = builder.finish()?;
        let found = |pattern| nearest(pattern, &parameters).unwrap_or_default();
        assert_eq!(found("hed.**"), "head.dense.weight");
        assert_eq!(found("**.self.qeury.bias"), "encoder.layer.0.attention.self.query.bias");
        assert_eq!(found("encoder.layer.2.nrom.*"), "encoder.layer.2.norm.weight");
        Ok(())
    }
}
