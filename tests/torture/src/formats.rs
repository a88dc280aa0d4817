//! Every format that the command reads: a good example and a command.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::corrupt::{Format, Promise};
use crate::inputs;
use crate::program::checkout;
use crate::report::Report;
use crate::scratch;
use crate::subjects::{PATENT, Shared};

const COCO: &str = r#"{"images":[{"id":1},{"id":2}],"annotations":[{"image_id":1,"id":1,"caption":"a cat on a mat"},{"image_id":2,"id":2,"caption":"a dog"}]}"#;
const CAPTIONS: &str = r#"[{"image_id":1,"caption":"a cat"},{"image_id":2,"caption":"a dog"}]"#;
const AOKVQA: &str = r#"[{"question_id":"a","choices":["x","y"],"correct_choice_idx":0,"direct_answers":["x","x"],"difficult_direct_answer":false}]"#;
const AOKVQA_ANSWERS: &str = r#"{"a":{"multiple_choice":"x","direct_answer":"x"}}"#;

/// All formats, with examples in the shared folder.
pub fn all(report: &Report, shared: &Shared) -> Result<Vec<Format>> {
    use Promise::{AnyOrRefused, Refused, SameOrRefused};
    let at = |name: &str| shared.folder.join("formats").join(name);
    let corpus = |path: &str| fs::read(checkout().join(path));
    let mut formats = Vec::new();
    let mut add = |name, example: &str, only, promise, seconds, line: &str| {
        let line = shared.fill(line);
        let in_place = ["memory, compacted", "checkpoint"].contains(&name);
        let example = shared.folder.join(example);
        formats.push(Format { name, example, only, line, promise, in_place, seconds });
    };

    add("memory, verified", "start/memory", &[], SameOrRefused, 0.02, "memory verify {}");
    add("memory, searched", "start/memory", &[], SameOrRefused, 0.02,
        "memory search {} --queries {s}/queries.npy -k 3 --output {o}/ids.npy --scores {o}/scores.npy");
    add("memory, by graph", "start/memory", &["safetensors", "bits", "json", "CURRENT"], SameOrRefused, 0.02,
        "memory search {} --index hnsw --queries {s}/queries.npy -k 3 --output {o}/ids.npy");
    add("memory, compacted", "start/memory", &["safetensors", "jsonl"], SameOrRefused, 0.04, "memory compact {} --quiet");

    head(&shared.folder.join("phrases/test.csv"), 4, &at("pairs/test.csv"))?;
    add("run", "run", &["model.safetensors", "tokenizer.json", "config.json", "calibration.json", "recipe.toml"],
        SameOrRefused, 0.08,
        &format!("predict {{}} --input {} --output {{o}}/out.csv --quiet", at("pairs/test.csv").display()));
    add("encoder", "run", &["model.safetensors", "tokenizer.json", "config.json"], AnyOrRefused, 0.08,
        "memory build --entries {s}/more.jsonl --model {} --out {o}/memory --quiet");
    // The newest checkpoint is read, or the one before it.
    add("checkpoint", "run", &["/manifest.json", "/state.json", "optimiser.safetensors", "parameters.safetensors", "LATEST"],
        SameOrRefused, 0.8, &format!("{PATENT} --run {{}} --resume"));

    for (name, rows) in [("npy/queries.npy", 5), ("npy-keys/keys.npy", 8)] {
        make(&at(name), b"")?;
        inputs::npy(&at(name), &[rows, 16], 9)?;
    }
    add("npy queries", "formats/npy", &[], AnyOrRefused, 0.02,
        "memory search {s}/start/memory --queries {}/queries.npy -k 3 --output {o}/ids.npy");
    add("npy keys", "formats/npy-keys", &[], AnyOrRefused, 0.02, "memory build --keys {}/keys.npy --out {o}/memory --quiet");
    make(&at("safetensors/keys.safetensors"), &inputs::safetensors(5, 16))?;
    add("safetensors", "formats/safetensors", &[], AnyOrRefused, 0.02,
        "memory build --keys {}/keys.safetensors --out {o}/memory --quiet");
    head(&shared.folder.join("entries.jsonl"), 8, &at("entries/entries.jsonl"))?;
    add("entries", "formats/entries", &[], AnyOrRefused, 0.02,
        &format!("memory build --keys {}/npy-keys/keys.npy --entries {{}}/entries.jsonl --out {{o}}/memory --quiet", at("").display()));
    add("CTranslate2", "ctranslate2", &[], AnyOrRefused, 0.03, "data convert ctranslate2 {} --out {o}/whisper");
    let recipe = fs::read(checkout().join("train/recipes/patent/world.toml"))?;
    make(&at("recipe/recipe.toml"), &recipe)?;
    add("recipe", "formats/recipe", &[], Refused("/nonexistent"), 0.02,
        "train patent --recipe {}/recipe.toml --tiny --quiet --run {o}/run --set data.dir=/nonexistent");
    add("phrases", "formats/pairs", &[], AnyOrRefused, 0.08, "predict {s}/run --input {}/test.csv --output {o}/out.csv --quiet");

    let seen = shared.folder.join("seen");
    let clip = fs::read_dir(&seen)?.filter_map(|entry| Some(entry.ok()?.path()));
    let clip = clip.filter(|path| path.extension().is_some_and(|end| end == "wav")).min();
    let image = fs::read_dir(seen.join("frames"))?.filter_map(|entry| Some(entry.ok()?.path())).min();
    let (clip, image) = (clip.unwrap_or_default(), image.unwrap_or_default());
    for (name, end) in [("WAV", "wav"), ("FLAC", "flac"), ("MP3", "mp3"), ("Ogg Vorbis", "ogg"), ("MP4 AAC", "m4a")] {
        if convert(report, &clip, &at(end).join("clip").with_extension(end))? {
            let line = format!("predict --recogniser {{r}}/train/kept/conformer --input {{}}/clip.{end} --output {{o}}/out.tsv --quiet");
            add(name, &format!("formats/{end}"), &[], AnyOrRefused, 0.1, &line);
        }
    }
    for (name, end) in [("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("WebP", "webp"), ("BMP", "bmp")] {
        if convert(report, &image, &at(end).join("image").with_extension(end))? {
            let entries = at("images").join(format!("{end}.jsonl"));
            make(&entries, format!("{{\"id\":1,\"image\":\"image.{end}\"}}\n").as_bytes())?;
            let line = format!(
                "memory build --model {{r}}/train/kept/clip --entries {} --images {{}} --out {{o}}/memory --quiet",
                entries.display()
            );
            add(name, &format!("formats/{end}"), &[], AnyOrRefused, 0.08, &line);
        }
    }
    scratch::copy(&seen, &at("manifest"))?;
    add("manifest of clips", "formats/manifest", &["jsonl"], AnyOrRefused, 0.1,
        "predict --recogniser {r}/train/kept/conformer --input {}/clips.jsonl --output {o}/out.tsv --quiet");

    fs::copy(shared.folder.join("hyp.tsv"), at("pairs").with_file_name("hyp.tsv"))?;
    make(&at("wer/ref.tsv"), &fs::read(shared.folder.join("ref.tsv"))?)?;
    add("TSV texts", "formats/wer", &[], AnyOrRefused, 0.02, "eval wer --ref {}/ref.tsv --hyp {s}/hyp.tsv --resamples 5");
    make(&at("trn/a.trn"), b"turn the light on (a)\nplay some jazz (b)\n")?;
    add("trn texts", "formats/trn", &[], AnyOrRefused, 0.02, "eval wer --ref {}/a.trn --hyp {}/a.trn --resamples 5");
    make(&at("caption/references.json"), COCO.as_bytes())?;
    make(&at("caption/results.json"), CAPTIONS.as_bytes())?;
    add("captions", "formats/caption", &[], AnyOrRefused, 0.02,
        "eval caption --references {}/references.json --results {}/results.json --resamples 5");
    make(&at("vqa/annotations.json"), &corpus("eval/fuzz/corpus/vqa/annotations")?)?;
    make(&at("vqa/results.json"), &corpus("eval/fuzz/corpus/vqa/results")?)?;
    add("VQA", "formats/vqa", &[], AnyOrRefused, 0.02,
        "eval vqa --annotations {}/annotations.json --results {}/results.json --resamples 5");
    make(&at("aokvqa/questions.json"), AOKVQA.as_bytes())?;
    make(&at("aokvqa/predictions.json"), AOKVQA_ANSWERS.as_bytes())?;
    add("A-OKVQA", "formats/aokvqa", &[], AnyOrRefused, 0.02,
        "eval aokvqa --questions {}/questions.json --predictions {}/predictions.json --resamples 5");
    make(&at("retrieval/queries.jsonl"), &corpus("eval/fuzz/corpus/retrieval/queries")?)?;
    add("rankings", "formats/retrieval", &[], AnyOrRefused, 0.02, "eval retrieval --queries {}/queries.jsonl -k 1,2 --resamples 5");
    make(&at("haystack/replies.jsonl"), &corpus("eval/fuzz/corpus/haystack/replies")?)?;
    add("haystack replies", "formats/haystack", &[], AnyOrRefused, 0.02, "eval haystack --replies {}/replies.jsonl");
    make(&at("items/items.jsonl"), &corpus("eval/fuzz/corpus/items/ratio")?)?;
    add("items", "formats/items", &[], AnyOrRefused, 0.02, "eval compare {}/items.jsonl {}/items.jsonl");
    for (name, corpus_name, line) in [
        ("COCO entries", "coco", "data entries coco {}/good --out {o}/out.jsonl --quiet"),
        ("WIT entries", "wit", "data entries wit {}/good --out {o}/out.jsonl --quiet"),
        ("web entries", "web", "data entries web {}/good --out {o}/out.jsonl --quiet"),
        ("Wikidata labels", "labels", "data entries wikidata --labels {}/good --descriptions --out {o}/out.jsonl --quiet"),
    ] {
        let example = at(&format!("data-{corpus_name}/good"));
        make(&example, &corpus(&format!("data/fuzz/corpus/{corpus_name}/good"))?)?;
        add(name, &format!("formats/data-{corpus_name}"), &[], AnyOrRefused, 0.02, line);
    }
    Ok(formats)
}

fn make(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    Ok(fs::write(path, bytes)?)
}

/// The first lines of a file.
fn head(from: &Path, lines: usize, to: &Path) -> Result<()> {
    let text = fs::read_to_string(from)?;
    let first: String = text.lines().take(lines).flat_map(|line| [line, "\n"]).collect();
    make(to, first.as_bytes())
}

/// Writes an audio or image file in the format of the new name, by ffmpeg; whether that was possible.
fn convert(report: &Report, from: &Path, to: &Path) -> Result<bool> {
    make(to, b"")?;
    if from.extension() == to.extension() {
        fs::copy(from, to)?;
        return Ok(true);
    }
    let ffmpeg = Command::new("ffmpeg")
        .args(["-v", "error", "-y", "-i"])
        .arg(from)
        .args(if from.extension().is_some_and(|end| end == "wav") { &["-t", "2", "-ac", "2"][..] } else { &[] })
        .arg(to)
        .status();
    let made = ffmpeg.is_ok_and(|status| status.success());
    if !made {
        report.skip(&format!("no ffmpeg to make {}", to.display()));
    }
    Ok(made)
}
