//! `tokenizer.json` files whose parts are wrong in meaning.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::program::Engram;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::Shared;

/// Parts of a tokenizer, each with a hostile value.
fn changes() -> Vec<(&'static str, Value)> {
    let big = 4_000_000_000_u64;
    let mut changes = Vec::new();
    for charsmap in ["", "AAAA", "////", "BAAAAP////8=", "!!!", "/////3h4eHh4", "CAAAAP//////////YQBi"] {
        changes.push(("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": charsmap})));
    }
    let deep = "(".repeat(5000);
    for pattern in ["(a+)+$", "(a|a)*b", "(?=a)*", "(", "a{1000000}", "(?:a{1000}){1000}", "\\1", "", &deep] {
        let pattern = json!({"Regex": pattern});
        changes.push(("normalizer", json!({"type": "Replace", "pattern": pattern, "content": "x"})));
        changes.push(("pre_tokenizer", json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})));
    }
    changes.push(("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})));
    changes.push(("normalizer", json!({"type": "Prepend", "prepend": "x".repeat(1_000_000)})));
    let nested = (0..100).fold(json!({"type": "Lowercase"}), |inner, _| json!({"type": "Sequence", "normalizers": [inner]}));
    changes.push(("normalizer", nested));
    for pre in [
        json!({"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}),
        json!({"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"}),
        json!({"type": "CharDelimiterSplit", "delimiter": ""}),
        json!({"type": "FixedLength", "length": 0}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
    ] {
        changes.push(("pre_tokenizer", pre));
    }
    let unigram = |vocabulary: Value, unknown: Value| json!({"type": "Unigram", "unk_id": unknown, "vocab": vocabulary});
    let bpe = |vocabulary: Value, merges: Value, dropout: Value| {
        json!({"type": "BPE", "vocab": vocabulary, "merges": merges, "dropout": dropout})
    };
    for model in [
        unigram(json!([["<unk>", 0.0], ["a", -1.0]]), json!(1_000_000)),
        unigram(json!([["<unk>", 0.0], ["a", -1.0]]), json!(null)),
        unigram(json!([]), json!(0)),
        unigram(json!([["", 0.0], ["a", 1e308], ["b", -1e308]]), json!(0)),
        unigram(json!([["a", 0.0], ["a", 0.0]]), json!(0)),
        bpe(json!({"a": 0}), json!(["z y"]), json!(null)),
        bpe(json!({"a": 0, "b": 1}), json!(["a b"]), json!(null)),
        bpe(json!({"a": 0}), json!(["a"]), json!(null)),
        bpe(json!({}), json!([]), json!(null)),
        bpe(json!({"a": 0}), json!([]), json!(2.0)),
        bpe(json!({"a": 0}), json!([]), json!(-1)),
        bpe(json!({"a": 0, "b": 4_294_967_295_u64}), json!([]), json!(null)),
        json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}),
        json!({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "none", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}),
        json!({"type": "WordPiece", "vocab": {"[UNK]": 100_000}, "unk_token": "[UNK]", "continuing_subword_prefix": "", "max_input_chars_per_word": 0}),
    ] {
        changes.push(("model", model));
    }
    let added = |id: u64, content: &str| {
        json!([{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}])
    };
    changes.push(("added_tokens", added(big, "method")));
    changes.push(("added_tokens", added(3, "")));
    for (length, stride, strategy) in [(0, 0, "LongestFirst"), (5, 5, "LongestFirst"), (5, 0, "OnlySecond"), (1, 9, "OnlyFirst")] {
        changes.push(("truncation", json!({"direction": "Left", "max_length": length, "strategy": strategy, "stride": stride})));
    }
    for (strategy, multiple, id) in [(json!({"Fixed": 1_000_000_000}), json!(null), 0), (json!("BatchLongest"), json!(0), big)] {
        changes.push(("padding", json!({"strategy": strategy, "direction": "Left", "pad_to_multiple_of": multiple, "pad_id": id, "pad_type_id": 5, "pad_token": "x"})));
    }
    let sequence = |name: &str, kind: u64| json!({"Sequence": {"id": name, "type_id": kind}});
    let pair = json!([sequence("A", 0), sequence("B", 1)]);
    changes.push(("post_processor", json!({"type": "TemplateProcessing", "single": [sequence("A", big)], "pair": pair, "special_tokens": {}})));
    let token = json!({"SpecialToken": {"id": "[CLS]", "type_id": 0}});
    changes.push(("post_processor", json!({"type": "TemplateProcessing", "single": [token], "pair": pair, "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [big], "tokens": ["[CLS]"]}}})));
    changes.push(("post_processor", json!({"type": "BertProcessing", "sep": ["x", big], "cls": ["y", big]})));
    for decoder in [json!({"type": "Sequence", "decoders": [5]}), json!("Fuse"), json!({"type": "CTC"})] {
        changes.push(("decoder", decoder));
    }
    for part in ["normalizer", "pre_tokenizer", "post_processor", "model", "added_tokens", "truncation", "padding", "version"] {
        for value in [json!(5), json!("x"), json!([]), json!({}), json!({"type": "nope"}), json!(true)] {
            changes.push((part, value));
        }
    }
    changes
}

/// Each command that opens a tokenizer, with each hostile one; in the short form the first command alone.
pub fn attack(report: &Report, scratch: &Scratch, shared: &Shared) -> Result<()> {
    let run = shared.folder.join("run");
    let good: Value = serde_json::from_slice(&fs::read(run.join("tokenizer.json"))?)?;
    let entries = shared.folder.join("long.jsonl");
    fs::write(&entries, format!("{{\"id\":0,\"text\":\"a method of joining {}\"}}\n", "a".repeat(300)))?;
    let mut lines = vec!["memory build --entries {s}/long.jsonl --model {} --out {o} --quiet"];
    if report.long {
        lines.push("predict --encoder {} --input {s}/phrases/test.csv --output {o} --quiet");
        lines.push("predict {} --input {s}/phrases/test.csv --output {o} --quiet");
    }
    let changes = changes();
    let cases: Vec<(usize, &str)> = lines.iter().flat_map(|line| (0..changes.len()).map(move |n| (n, *line))).collect();
    scratch::each(&cases, scratch, |(number, line), folder| {
        let (model, output) = (folder.join("model"), folder.join("output"));
        scratch::empty(&model)?;
        scratch::copy(&run, &model)?;
        scratch::remove(&output)?;
        let (part, value) = &changes[*number];
        let mut tokenizer = good.clone();
        tokenizer.as_object_mut().context("a tokenizer is an object")?.insert((*part).to_owned(), value.clone());
        fs::write(model.join("tokenizer.json"), tokenizer.to_string())?;
        let line = shared.fill(line).replace("{}", &model.to_string_lossy());
        let ended = Engram::line(&line.replace("{o}", &output.to_string_lossy())).seconds(20).run()?;
        report.case();
        let shown: String = value.to_string().chars().take(60).collect();
        let at = format!("tokenizer.json, {part} = {shown}");
        let named = ended.stderr.contains("tokenizer.json") || ended.stderr.contains(&*model.to_string_lossy());
        if report.sound(&ended, &at) && ended.code != Some(0) && !(ended.code == Some(2) && named) {
            report.loss("an error that names no file", format!("{at}: {ended}"));
        }
        Ok(())
    })
}
