//! Recipes: overrides, and errors with the location of the fault.

use std::path::Path;

use engram_train::optimiser::settings::RuleSettings;
use engram_train::{Recipe, RecipeOptions};
use serde::{Deserialize, Serialize};

const TEXT: &str = r#"study = "toy"

[data]
folder = "data"

[optimiser]
clip_norm = 0.5
learning_rate = 0.01

[[phase]]
name = "only"
epochs = 3

[check]
files = ["README.md"]

[tiny]
data.rows = 10
phase.only = { epochs = 1 }
"#;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Data {
    folder: String,
    rows: usize,
}

impl Default for Data {
    fn default() -> Self {
        Self { folder: String::new(), rows: 1000 }
    }
}

fn parse(text: &str, tiny: bool, set: &[&str]) -> Result<Recipe, String> {
    let set = set.iter().map(|s| s.to_string()).collect();
    let options = RecipeOptions { tiny, set };
    Recipe::parse(text, Path::new("recipe.toml"), &options).map_err(|e| e.to_string())
}

/// The error for the text with `from` replaced by `to`.
fn error(from: &str, to: &str) -> String {
    assert!(TEXT.contains(from));
    parse(&TEXT.replace(from, to), false, &[]).map(|_| ()).expect_err("the recipe is wrong")
}

#[test]
fn a_typo_or_a_wrong_value_is_named_with_its_line() {
    for (from, to, expected) in [
        (
            "learning_rate",
            "learning_rte",
            "8: unknown key `learning_rte` in [optimiser]; did you mean `learning_rate`?",
        ),
        (
            "[optimiser]",
            "[optimizer]",
            "6: unknown key `optimizer` at the top level; did you mean `optimiser`?",
        ),
        ("epochs = 3", "epoch = 3", "12: unknown key `epoch` in [phase]; did you mean `epochs`?"),
        ("epochs = 3", "epochs = 3\nzzzzzz = 1", "13: unknown key `zzzzzz`"),
        ("0.01", "\"fast\"", "8: `optimiser.learning_rate`"),
        ("0.01", "-0.01", "8: `optimiser.learning_rate` has to be above 0"),
        ("clip_norm = 0.5", "rule = { kind = \"adam\" }", "7:"),
        ("epochs = 3", "epochs = 3\nsteps = 3", "10: `phase.0` needs either"),
        ("clip_norm = 0.5", "clip_norm = \"0.5", "7:"),
    ] {
        let message = error(from, to);
        assert!(message.starts_with(&format!("recipe.toml:{expected}")), "{message}");
    }
    let message = error("epochs = 3", "epochs = 3\nzzzzzz = 1");
    assert!(message.contains("the known keys are"), "{message}");
    let message = error("clip_norm = 0.5", "rule = { kind = \"adam\" }");
    assert!(message.contains("adafactor"), "{message}");
}

#[test]
fn a_path_of_windows_in_double_quotes_is_refused_with_a_remedy() {
    let remedy = "write a path in single quotes, or with / instead";
    for path in [r"C:\Users\a", r"C:\data\new", r"C:\temp\new", r"\\host\back"] {
        let set = format!("data.folder=\"{path}\"");
        let by_option = parse(TEXT, false, &[&set]).map(|_| ()).expect_err("a wrong escape");
        for (message, start) in
            [(error("\"data\"", &format!("\"{path}\"")), "recipe.toml:4: "), (by_option, "--set ")]
        {
            assert!(message.starts_with(start) && message.ends_with(remedy), "{message}");
        }
        // The remedies work, and the shell's quotes alone need none.
        for value in [format!("'{path}'"), path.replace('\\', "/"), path.to_owned()] {
            assert!(parse(TEXT, false, &[&format!("data.folder={value}")]).is_ok(), "{value}");
        }
    }
    // A text with a line break is no path, and three quotes say so of any text.
    for value in [r#""C:\\temp""#, r#""Summarise:\n""#, r#""""Q:\tA""""#] {
        assert!(parse(TEXT, false, &[&format!("data.folder={value}")]).is_ok(), "{value}");
    }
}

#[test]
fn an_invalid_number_is_refused() {
    for path in [
        "evaluation.margin",
        "optimiser.rule.epsilon",
        "optimiser.rule.weight_decay",
        "awp.learning_rate",
        "awp.epsilon",
        "check.tolerance",
    ] {
        for value in ["nan", "-0.5", "inf"] {
            let set = format!("{path}={value}");
            let message = parse(TEXT, false, &[&set]).map(|_| ()).expect_err("a wrong number");
            let start = format!("--set {set}: `{path}` has to be");
            assert!(message.starts_with(&start), "{message}");
        }
    }
    for path in ["check.metric_value", "check.loss_at_most"] {
        let set = format!("{path}=nan");
        let message = parse(TEXT, false, &[&set]).map(|_| ()).expect_err("no number");
        assert_eq!(message, format!("--set {set}: `{path}` has to be a number"));
    }
    let rule = "rule = { kind = \"adafactor\", decay_exponent = -1 }";
    let message = error("clip_norm = 0.5", rule);
    assert_eq!(message, "recipe.toml:7: `optimiser.rule.decay_exponent` has to be 0 or above");
    assert!(parse(TEXT, false, &["check.metric_value=-1"]).is_ok());
    assert!(parse(TEXT, false, &["awp.match=[]"]).is_err_and(|e| e.contains("remove [awp]")));
}

#[test]
fn a_setting_of_another_update_rule_is_refused() -> Result<(), String> {
    let rule = |rule: &str| error("clip_norm = 0.5", rule);
    let message = rule("rule = { kind = \"adamw\", momentum = 0.9 }");
    let expected = "recipe.toml:7: unknown key `momentum` in [optimiser.rule]; the known keys are \
                    betas, epsilon, weight_decay";
    assert_eq!(message, expected);
    let table = "[optimiser.rule]\nkind = \"sgd\"\nnesterv = true\n\n[[phase]]";
    let message = error("[[phase]]", table);
    let expected = "recipe.toml:12: unknown key `nesterv` in [optimiser.rule]; did you mean `nest";
    assert!(message.starts_with(expected), "{message}");
    let message = rule("rule = { kind = \"sgd\", momentum = \"high\" }");
    assert!(message.starts_with("recipe.toml:7: `optimiser.rule.momentum`: invalid"), "{message}");
    let message = rule("rule = { kind = \"sgd\", momentum = 0, nesterov = true }");
    assert_eq!(message, "recipe.toml:7: `optimiser.rule.nesterov` needs a momentum above 0");
    let message = rule("rule = { kind = \"muon\", adamw = { betas = [0.9, 1.5] } }");
    assert_eq!(message, "recipe.toml:7: `optimiser.rule.adamw.betas` has to lie in [0, 1)");
    let message = rule("rule = \"sgd\"");
    assert!(message.starts_with("recipe.toml:7: `optimiser.rule`: invalid type"), "{message}");
    let set = ["optimiser.rule.kind=adafactor", "optimiser.rule.betas=[0.8, 0.9]"];
    let message = parse(TEXT, false, &set).map(|_| ()).expect_err("betas are AdamW's");
    let expected = "--set optimiser.rule.betas=[0.8, 0.9]: unknown key `betas` in";
    assert!(message.starts_with(expected), "{message}");
    // Without a kind, the rule is AdamW.
    let recipe = parse(&TEXT.replace("clip_norm = 0.5", "rule.weight_decay = 0.5"), false, &[])?;
    assert!(
        matches!(&recipe.optimiser.rule, RuleSettings::Adamw(rule) if rule.weight_decay == 0.5)
    );
    // The resolved recipe has all settings and parses to the same recipe.
    for kind in RuleSettings::KINDS {
        let recipe = parse(TEXT, false, &[&format!("optimiser.rule.kind={kind}")])?;
        let resolved = recipe.resolved().map_err(|e| e.to_string())?;
        assert_eq!(parse(&resolved, false, &[])?.optimiser, recipe.optimiser);
        assert_eq!(Some(&recipe.optimiser.rule), RuleSettings::of_kind(kind).as_ref());
    }
    Ok(())
}

#[test]
fn a_group_has_its_own_update_rule() -> Result<(), String> {
    let groups = "[[group]]\nmatch = \"embeddings.**\"\nrate = 1\nrule = { kind = \"sgd\" }\n\n\
                  [[group]]\nmatch = \"head.**\"\nrate = 2\n\n[[group]]\nmatch = \"**.bias\"\n\
                  rate = 1\nrule = { kind = \"lion\" }\n\n[check]";
    let text = TEXT.replace("[check]", groups);
    let recipe = parse(&text, false, &[])?;
    let rules = recipe.rules(&recipe.phases[0]);
    assert_eq!(rules.by_pattern.len(), 2);
    let rule_of = |path: &str| rules.rule_of(path);
    assert!(matches!(rule_of("embeddings.weight"), RuleSettings::Sgd(_)));
    assert!(matches!(rule_of("head.weight"), RuleSettings::Adamw(_)));
    // The last matching pattern counts.
    assert!(matches!(rule_of("embeddings.bias"), RuleSettings::Lion(_)));
    let wrong = text.replace("kind = \"sgd\"", "kind = \"sgd\", weight_decay = -1");
    let message = parse(&wrong, false, &[]).map(|_| ()).expect_err("a negative decay");
    assert_eq!(message, "recipe.toml:17: `group.0.rule.weight_decay` has to be 0 or above");
    Ok(())
}

#[test]
fn a_recipe_without_a_check_is_refused() {
    let message = error("[check]\nfiles = [\"README.md\"]", "");
    assert!(message.contains("`check` is missing"), "{message}");
    let message = error("files = [\"README.md\"]", "tolerance = 0.1");
    assert!(message.contains("`check` is empty"), "{message}");
}

#[test]
fn a_section_of_the_study_gets_defaults_and_is_checked() -> Result<(), String> {
    let mut recipe = parse(TEXT, false, &[])?;
    let data: Data = recipe.data().map_err(|e| e.to_string())?;
    assert_eq!(data, Data { folder: "data".to_string(), rows: 1000 });
    assert!(recipe.resolved().map_err(|e| e.to_string())?.contains("rows = 1000"));
    let mut recipe = parse(&TEXT.replace("folder =", "foldr ="), false, &[])?;
    let message = recipe.data::<Data>().map_err(|e| e.to_string());
    assert_eq!(
        message.expect_err("a typo"),
        "recipe.toml:4: unknown key `foldr` in [data]; did you mean `folder`?"
    );
    Ok(())
}

#[test]
fn assignments_override_tiny_and_tiny_overrides_the_recipe() -> Result<(), String> {
    let full = parse(TEXT, false, &[])?;
    assert_eq!(full.phases[0].epochs, Some(3));
    let mut tiny = parse(TEXT, true, &[])?;
    assert_eq!(tiny.phases[0].epochs, Some(1));
    assert_eq!(tiny.data::<Data>().map_err(|e| e.to_string())?.rows, 10);
    let set = [
        "phase.only.epochs=7",
        "phase.0.name=renamed",
        "data.rows=5",
        "data.folder=/some where",
        "optimiser.rule.betas=[0.8, 0.9]",
        "ema.decay=0.99",
    ];
    let mut set = parse(TEXT, true, &set)?;
    assert_eq!(set.phases[0].epochs, Some(7));
    assert_eq!(set.phases[0].name, "renamed");
    let data: Data = set.data().map_err(|e| e.to_string())?;
    assert_eq!(data, Data { folder: "/some where".to_string(), rows: 5 });
    let RuleSettings::Adamw(rule) = &set.optimiser.rule else { panic!("another rule") };
    assert_eq!(rule.betas, [0.8, 0.9]);
    assert_eq!(set.ema.as_ref().map(|ema| ema.decay), Some(0.99));
    Ok(())
}

#[test]
fn a_wrong_assignment_is_named() {
    for (set, expected) in [
        (
            "optimiser.learning_rte=1",
            "--set optimiser.learning_rte=1: unknown key `learning_rte` in [optimiser]; did you \
             mean `learning_rate`?",
        ),
        ("optimiser.learning_rate=fast", "--set optimiser.learning_rate=fast:"),
        ("seed", "section.key=value"),
        ("gruop.0.rate=1", "the recipe has no list `gruop`"),
        ("study.name=1", "`study` is not a table of the recipe"),
        ("phase.only=1", "`phase.0` is not a table of the recipe, or the path"),
        (
            "phase.onyl.epochs=1",
            "--set phase.onyl.epochs=1: there is no `phase.onyl`; the names are only; did you mean \
             `only`?",
        ),
        ("phase.third.epochs=1", "no `phase.third`; the names are only"),
        ("phase.9.epochs=1", "no `phase.9`: `phase` has 1 entry, counted from 0"),
    ] {
        let message = parse(TEXT, false, &[set]).map(|_| ()).expect_err("a wrong assignment");
        assert!(message.contains(expected), "{message}");
    }
    let groups = TEXT.replace("[check]", "[[group]]\nmatch = \"**\"\nrate = 1\n\n[check]");
    let message = parse(&groups, false, &["group.head.rate=1"]).map(|_| ()).expect_err("no name");
    assert!(message.ends_with("have no names: write `group.0` for the first"), "{message}");
    // The entries of a list that an option sets belong to the option, not to the file.
    let set = "group=[{match=\"**\", rate=-1}]";
    let message = parse(&groups, false, &[set]).map(|_| ()).expect_err("a wrong rate");
    assert_eq!(message, format!("--set {set}: `group.0.rate` has to be 0 or above"));
    let without_tiny = TEXT.split("[tiny]").next().expect("the text before it");
    assert!(parse(without_tiny, true, &[]).is_err_and(|e| e.contains("[tiny]")));
}

#[test]
fn the_resolved_recipe_parses_to_the_same_recipe() -> Result<(), String> {
    let mut recipe = parse(TEXT, true, &["awp.epsilon=0.5", "phase.only.feed.visual=true"])?;
    recipe.data::<Data>().map_err(|e| e.to_string())?;
    let resolved = recipe.resolved().map_err(|e| e.to_string())?;
    let again = parse(&resolved, false, &[])?;
    assert_eq!(again.resolved().map_err(|e| e.to_string())?, resolved);
    assert_eq!(again.hash().map_err(|e| e.to_string())?, recipe.hash().map_err(|e| e.to_string())?);
    let other = parse(TEXT, true, &["seed=1"])?;
    assert_ne!(other.hash().map_err(|e| e.to_string())?, recipe.hash().map_err(|e| e.to_string())?);
    Ok(())
}

const VARIANTS: &str = r#"
[[variant]]
name = "plain"

[[variant]]
name = "long"
weight = 0.5
data = { rows = 50 }
phase.only = { epochs = 9, learning_rate = 0.5 }
"#;

#[test]
fn variants_override_the_recipe_and_the_command_line_overrides_both() -> Result<(), String> {
    let text = format!("{TEXT}{VARIANTS}");
    // The second variant's name, weight, epochs, learning rate of the phase, and rows.
    let second = |tiny: bool, set: &[&str]| -> Result<_, String> {
        let recipe = parse(&text, tiny, set)?;
        let resolved = recipe.resolved().map_err(|e| e.to_string())?;
        let again = parse(&resolved, false, &[])?;
        let mut read_back = Vec::new();
        for recipe in [recipe, again] {
            let variants = recipe.variants().map_err(|e| e.to_string())?;
            assert_eq!(variants.len(), 2);
            let mut variant = variants.into_iter().nth(1).expect("two variants");
            assert!(!variant.recipe.has_variants());
            let data: Data = variant.recipe.data().map_err(|e| e.to_string())?;
            let phase = &variant.recipe.phases[0];
            assert_eq!((variant.name.as_deref(), variant.weight), (Some("long"), 0.5));
            read_back.push((phase.epochs, phase.learning_rate, data.rows));
        }
        assert_eq!(read_back[0], read_back[1], "the resolved recipe is the same");
        Ok(read_back[0])
    };
    assert_eq!(second(false, &[])?, (Some(9), Some(0.5), 50));
    assert_eq!(second(true, &[])?, (Some(1), Some(0.5), 10));
    assert_eq!(second(false, &["phase.0.epochs=2"])?, (Some(2), Some(0.5), 50));
    assert_eq!(second(false, &["variant.long.phase.only.epochs=4"])?, (Some(4), Some(0.5), 50));
    assert_eq!(second(false, &["data={rows=7}"])?, (Some(9), Some(0.5), 7));
    let without_variants =
        parse(&text, false, &["variant=[]"])?.variants().map_err(|e| e.to_string())?;
    assert_eq!((without_variants.len(), without_variants[0].name.as_deref()), (1, None));
    Ok(())
}

#[test]
fn a_wrong_variant_is_named_with_its_line() {
    let error = |from: &str, to: &str| {
        assert!(VARIANTS.contains(from));
        let text = format!("{TEXT}{}", VARIANTS.replace(from, to));
        parse(&text, false, &[]).map(|_| ()).expect_err("a wrong variant")
    };
    let typo = error("epochs = 9", "epoch = 9");
    assert!(typo.starts_with("recipe.toml:28: unknown key `epoch`"), "{typo}");
    assert!(typo.ends_with("did you mean `epochs`?"), "{typo}");
    let same = error("\"long\"", "\"plain\"");
    assert_eq!(same, "recipe.toml:25: `variant.1.name` is used by another variant");
    let weight = error("0.5\n", "-1\n");
    assert_eq!(weight, "recipe.toml:26: `variant.1.weight` has to be a positive number");
    assert!(error("\"long\"", "\"a/b\"").contains("it becomes a folder name"));
    assert!(error("name = \"long\"\n", "").contains("`variant.1` has no `name`"));
    assert!(
        error("data = { rows = 50 }", "variant = [{ name = \"inner\" }]")
            .contains("variants of its own")
    );
}

#[test]
fn a_phase_of_0_steps_is_skipped() {
    let before = "[[phase]]\nname = \"before\"\nsteps = 5\n\n[[phase]]\nname = \"only\"";
    let two_phases = TEXT.replace("[[phase]]\nname = \"only\"", before);
    let recipe = parse(&two_phases, false, &["phase.before.steps=0"]).unwrap();
    assert_eq!(recipe.phases.len(), 1);
    assert_eq!((recipe.phases[0].name.as_str(), recipe.phases[0].index), ("only", 0));
    assert!(!recipe.resolved().unwrap().contains("before"));
    // Errors in the other phase still have their line.
    let wrong = two_phases.replace("epochs = 3", "epochs = 3\nlearning_rate = -1.0");
    let error = parse(&wrong, false, &["phase.before.steps=0"]).unwrap_err();
    assert_eq!(error, "recipe.toml:17: `phase.0.learning_rate` has to be above 0");
    let error = parse(TEXT, false, &["phase.only.steps=0"]).unwrap_err();
    assert!(error.contains("`phase` is missing"), "{error}");
}

/// Without steps, a recipe evaluates the run that it starts from.
#[test]
fn without_steps_the_first_phase_evaluates_the_start() {
    let with_start =
        |set: &[&str]| parse(&format!("{TEXT}\n[start]\nrun = \"runs/a\"\n"), false, set);
    let recipe = with_start(&["phase.only.steps=0"]).unwrap();
    let phases: Vec<_> = recipe.phases.iter().map(|phase| (&*phase.name, phase.steps)).collect();
    assert_eq!(phases, [("only", Some(0))]);
    assert_eq!(recipe.start.as_ref().unwrap().run, Path::new("runs/a"));
}

/// A run can be resumed on another device, but not in another precision.
#[test]
fn the_device_is_not_part_of_a_recipes_identity_but_the_precision_is() -> engram_train::Result<()> {
    let hash = |set: &[&str]| {
        let set = set.iter().map(|set| set.to_string()).collect();
        Recipe::built_in("patent/world", &RecipeOptions { tiny: false, set })?.hash()
    };
    let original = hash(&[])?;
    assert_eq!(hash(&["compute.device=\"cuda:1\""])?, original);
    assert_eq!(hash(&["compute.recompute=\"block\""])?, original);
    assert_ne!(hash(&["compute.precision=\"bf16\""])?, original);
    let both = ["compute.precision=\"bf16\"", "compute.device=\"cuda\""];
    assert_eq!(hash(&both)?, hash(&both[..1])?);
    Ok(())
}
