//! Training of low-rank branches, `[[low_rank]]`, also on quantised weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use candle_core::Device;
use candle_core::safetensors::load;

use crate::running::{Folder, command, errors, refusal, send_signal, until_logged};

const BRANCHES: &str = "low_rank=[{match=\"**.self_attn.*_proj\", rank=2, alpha=4.0, dropout=0.1}]";

fn train(run: &Path, set: &[&str]) -> Command {
    let folder = run.parent().unwrap();
    let mut command = command(folder, "train speech --recipe speech/tiny --tiny --run");
    command.arg(run);
    for set in ["log.every_steps=1", "phase.best_rq.steps=0"].iter().chain(set) {
        command.args(["--set", set]);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Exit code 1 is a failed `[check]`: the training is shorter than the recipe's.
fn assert_trained(output: &Output) {
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", errors(output));
}

/// The values of all tensors, as bits.
fn weights(run: &Path) -> BTreeMap<String, Vec<u32>> {
    let tensors = load(run.join("model.safetensors"), &Device::Cpu).expect("weights");
    let bits = |tensor: &candle_core::Tensor| -> Vec<u32> {
        let values = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("f32");
        values.into_iter().map(f32::to_bits).collect()
    };
    tensors.iter().map(|(name, tensor)| (name.clone(), bits(tensor))).collect()
}

/// Only the layers with branches change. A stopped and resumed run gives the same bytes.
#[test]
fn branches_are_trained_on_frozen_weights_and_merged_at_the_end() {
    let folder = &Folder::new();
    let base = folder.join("base");
    assert_trained(&train(&base, &["phase.ctc.steps=5"]).output().unwrap());
    let start = format!("start={{run={:?}}}", base.display().to_string());
    let set = ["phase.ctc.steps=40", "evaluation.keep_best=false", BRANCHES, &start];

    let whole = folder.join("whole");
    assert_trained(&train(&whole, &set).output().unwrap());
    let (before, after) = (weights(&base), weights(&whole));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (name, values) in &after {
        let has_branch = name.contains(".self_attn.") && name.ends_with("_proj.weight");
        assert_eq!(*values != before[name], has_branch, "{name}");
    }

    let count: usize = after.values().map(Vec::len).sum();
    let card = fs::read_to_string(whole.join("README.md")).expect("a model card");
    assert!(card.contains(&format!("| parameters | {count}, of which ")), "{card}");

    let quantised = "quantised=[\"**.self_attn.*_proj\"]";
    let set_quantised = [&["phase.ctc.steps=3"], &set[1..], &[quantised]].concat();
    let run = folder.join("quantised");
    assert_trained(&train(&run, &set_quantised).output().unwrap());
    let after = weights(&run);
    for (name, values) in &before {
        let is_quantised = name.contains(".self_attn.") && name.ends_with("_proj.weight");
        assert_eq!(after[name] != *values, is_quantised, "{name}");
    }

    let stopped = folder.join("stopped");
    let child = train(&stopped, &set).spawn().expect("engram starts");
    until_logged(&stopped, 8);
    send_signal(child.id(), "-TERM");
    let output = child.wait_with_output().expect("an end");
    assert!(!stopped.join("model.safetensors").exists(), "the run ended before the signal");
    assert_eq!(output.status.code(), Some(143));
    assert_trained(&train(&stopped, &set).arg("--resume").output().unwrap());
    let bytes = |run: &Path| fs::read(run.join("model.safetensors")).expect("weights");
    assert!(bytes(&stopped) == bytes(&whole));
}

fn assert_refused(run: &Path, set: &[&str], expected: &str) {
    refusal(&train(run, set).output().unwrap(), &set.join(" "), expected);
}

#[test]
fn branches_that_do_not_fit_are_refused_with_their_line() {
    let folder = &Folder::new();
    let run = folder.join("run");
    for (branch, expected) in [
        ("match=\"**.q_porj\", rank=2, alpha=4.0", "matches no linear layer"),
        ("match=\"**.norm_conv\", rank=2, alpha=4.0", "is not one"),
        ("match=\"**.q_proj\", rank=9999, alpha=4.0", "exceeds a width of the layer"),
        ("match=\"**.q_proj\", rank=0, alpha=4.0", "`low_rank.0.rank` has to be at least 1"),
        ("match=\"**.q_proj\", rank=2, alpha=0.0", "low_rank.0.alpha"),
        ("match=\"**.q_proj\", rank=2, alpha=1e300", "low_rank.0.alpha"),
        ("match=\"**.q_proj\", rank=2, alpha=4.0, dropout=1.0", "low_rank.0.dropout"),
        ("match=\"**.q_proj\", rank=2, alpha=4.0, beta=1.0", "beta"),
        // The weights of the model are random.
        ("match=\"**.q_proj\", rank=2, alpha=4.0", "random initial values"),
    ] {
        assert_refused(&run, &[&format!("low_rank=[{{{branch}}}]")], expected);
    }
    assert_refused(&run, &["quantised=[\"**.q_porj\"]"], "matches no linear layer");
    assert_refused(&run, &["quantised=[\"**.q_proj\"]"], "random initial values");
    let trained = "group=[{match=\"**\", rate=1.0}]";
    assert_refused(&run, &["quantised=[\"**.q_proj\"]", trained], "cannot be trained");
}
