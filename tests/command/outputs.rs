//! No output overwrites an input, another output, or a file of a run or a memory; `-` is standard
//! output.

use std::fs;
use std::os::unix::fs::symlink;

use crate::running::{
    Folder, engram, engram_reading, errors, printed, refusal, refused, succeeds, write_npy,
};

/// Commands with the input `IN` and the output `OUT`. Each is refused before it reads its input.
const COMMANDS: [&str; 32] = [
    "score IN --model v --out OUT",
    "score i --model IN --out OUT",
    "transcribe i --model r --boost IN --out OUT",
    "answer r --haystack IN --out OUT",
    "eval wer --ref IN --hyp h --items OUT",
    "eval wer --ref r --hyp IN --html OUT",
    "eval wer --pairs IN --html OUT",
    "eval wer --ref r --hyp h --table IN --items OUT",
    "eval wer --ref r --hyp h --rare-words IN --items OUT",
    "eval wer --ref r --hyp h --biasing IN --items OUT",
    "eval text --ref r --ref IN --hyp h --items OUT",
    "eval text --ref r --hyp IN --html OUT",
    "eval caption --ref IN --hyp r --items OUT",
    "eval caption --ref f --hyp r --df IN --items OUT",
    "eval vqa --ref a --hyp IN --html OUT",
    "eval aokvqa --ref IN --hyp p --items OUT",
    "eval retrieval --queries IN --html OUT",
    "eval edit --data zsre --ref IN --hyp p --items OUT",
    "eval forget --hyp r IN --items OUT",
    "eval kbvqa --data viquae --ref r --hyp p --passages IN --html OUT",
    "eval haystack --hyp IN --items OUT",
    "eval phrase --ref g --hyp IN --items OUT",
    "eval phrase --ref IN --hyp p --html OUT",
    "memory search m --queries IN --out OUT",
    "memory search m --queries q --gates IN --scores OUT",
    "memory search m --queries q --exclude IN --out OUT",
    "data entries wit IN --out OUT",
    "data entries wikidata e --labels IN --out OUT",
    "data entries vqa --questions q --annotations IN --out OUT",
    "data entries vqa --aokvqa IN --out OUT",
    "data entries kbvqa IN --out OUT",
    "data clips ego4d IN --out OUT",
];

#[test]
fn no_output_replaces_an_input() {
    let folder = &Folder::new();
    fs::write(folder.join("input"), "mine").unwrap();
    fs::hard_link(folder.join("input"), folder.join("hard")).unwrap();
    symlink("input", folder.join("soft")).unwrap();
    symlink(&**folder, folder.join("around")).unwrap();
    for command in COMMANDS {
        for output in ["input", "./input", "hard", "soft", "around/input"] {
            let arguments = command.replace("IN", "input").replace("OUT", output);
            refused(folder, &arguments, "would overwrite the input input");
            refused(folder, &format!("{arguments} --force"), "would overwrite the input input");
        }
        // The input is a symbolic link to the output.
        let arguments = command.replace("IN", "soft").replace("OUT", "input");
        refused(folder, &arguments, "would overwrite the input soft");
        // The output folder cannot be created.
        for (output, parent) in [("soft/o", "soft"), ("none/../o", "none/..")] {
            let arguments = command.replace("IN", "input").replace("OUT", output);
            let reason = format!("{parent}: is not a folder and cannot be created");
            refused(folder, &arguments, &*reason);
        }
        if !command.starts_with("transcribe") {
            let arguments = command.replace("IN", "input").replace("OUT", "around");
            refused(folder, &arguments, "around: is a folder; name a file for --");
        }
        assert_eq!(fs::read(folder.join("input")).unwrap(), b"mine", "{command}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 4, "nothing is written");
}

#[test]
fn no_output_changes_a_run_or_a_memory() {
    let folder = &Folder::new();
    fs::create_dir_all(folder.join("memory/gen-000001")).unwrap();
    fs::create_dir_all(folder.join("run/test")).unwrap();
    for file in ["memory/CURRENT", "memory/gen-000001/keys.f32", "run/recipe.toml", "run/.lock"] {
        fs::write(folder.join(file), "content").unwrap();
    }
    symlink("run/test", folder.join("link")).unwrap();
    let protected = [
        ("memory/CURRENT", "memory"),
        ("memory/new", "memory"),
        ("memory/gen-000001/keys.f32", "memory"),
        ("run/recipe.toml", "run"),
        ("run/test/new", "run"),
        ("link/new", "run"),
        ("link/none/new", "run"),
    ];
    for command in COMMANDS {
        for (output, kind) in protected {
            let arguments = command.replace("IN", "input").replace("OUT", output);
            refused(folder, &arguments, &format!("would write into the {kind} "));
        }
    }
    for command in [
        "man --out run",
        "data world --out run/world",
        "data phrases --out memory/new",
        "data speech --out run/new",
        "data audiovisual --out run/new",
        "memory build --keys k --out memory/new",
        "train speech --recipe r --run run/new",
        "grid g --out run/new",
        "reproduce --out memory/new",
    ] {
        refused(folder, command, "would write into the ");
    }
    let remaining: Vec<_> = fs::read_dir(folder.join("memory")).unwrap().collect();
    assert_eq!(remaining.len(), 2, "{remaining:?}");
    // A folder with the user's own recipe is not a run.
    fs::create_dir(folder.join("project")).unwrap();
    fs::write(folder.join("project/recipe.toml"), "").unwrap();
    fs::write(folder.join("p.jsonl"), "{\"id\": 1, \"ref\": \"a\", \"hyp\": \"b\"}\n").unwrap();
    succeeds(folder, "eval wer --pairs p.jsonl --items project/items.jsonl --json");
    // Missing folders are created with the output, and only then.
    refused(folder, "eval wer --pairs none.jsonl --items new/items.jsonl", "cannot be read");
    assert!(!folder.join("new").exists());
    succeeds(folder, "eval wer --pairs p.jsonl --items new/inner/items.jsonl --json");
    assert!(folder.join("new/inner/items.jsonl").is_file());
}

#[test]
fn two_outputs_need_different_paths() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("there")).unwrap();
    symlink("x", folder.join("link")).unwrap();
    let message = "both write there";
    for (output, other) in
        [("x", "x"), ("x", "there/../x"), ("x", "link"), ("-", "-"), ("-", "/dev/stdout")]
    {
        let search = format!("memory search m --queries q --out {output} --scores {other}");
        refused(folder, &search, message);
        refused(folder, &format!("eval wer --pairs p --items {output} --html {other}"), message);
    }
    refused(folder, "reproduce --out there/new --export-bundled there/new/bundled", message);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
}

#[test]
fn a_dash_is_standard_output() {
    let folder = &Folder::new();
    fs::write(folder.join("p.jsonl"), "{\"id\": 1, \"ref\": \"a\", \"hyp\": \"b\"}\n").unwrap();
    for command in
        ["eval wer --pairs p.jsonl --items -", "eval wer --pairs p.jsonl --items - --json"]
    {
        let output = engram(folder, command);
        let items = printed(&output, command);
        // Every line is an item; the report goes to standard error.
        let all_json =
            items.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
        assert!(items.lines().count() == 1 && all_json && items.contains("numerator"), "{items}");
        assert!(errors(&output).to_lowercase().contains("wer"));
    }
    let page = succeeds(folder, "eval wer --pairs p.jsonl --html -");
    assert!(page.starts_with("<!") && page.trim_end().ends_with("</html>"), "{page}");

    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    succeeds(folder, "memory build --keys keys.npy --out m --quiet");
    let output = engram(folder, "memory search m --queries keys.npy -k 1 --out -");
    succeeds(folder, "memory search m --queries keys.npy -k 1 --out ids.npy");
    assert_eq!(output.stdout, fs::read(folder.join("ids.npy")).unwrap());

    fs::write(folder.join("web.tsv"), "http://a/1.png\ta cat on a mat\n").unwrap();
    let entries = succeeds(folder, "data entries web web.tsv --out - --quiet");
    assert!(entries.starts_with('{') && entries.lines().count() == 1, "{entries}");
    fs::create_dir(folder.join("audio")).unwrap();
    fs::write(folder.join("audio/a.wav"), "").unwrap();
    let clips = succeeds(folder, "data clips manifest audio --out -");
    assert!(clips.starts_with("{\"id\":\"a\"") && clips.lines().count() == 1, "{clips}");

    // `-` is not a folder, and a file with the name `-` can still be given.
    for command in [
        "data world --out -",
        "data phrases --out -",
        "man --out -",
        "memory build --keys keys.npy --out -",
    ] {
        refused(folder, command, "-: means standard output");
    }
    succeeds(folder, "eval wer --pairs p.jsonl --items ./- --json");
    let names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
}

#[test]
fn a_dash_is_standard_input() {
    let folder = &Folder::new();
    let arguments = "eval wer --pairs - --json --resamples 0";
    let pairs = "{\"id\": 1, \"ref\": \"a b\", \"hyp\": \"a c\"}\n";
    let output = engram_reading(folder, arguments, pairs);
    assert!(printed(&output, "eval wer").contains("0.5"));
    // Paths in a manifest start from the current folder.
    fs::write(folder.join("a.wav"), "audio").unwrap();
    let clips = "{\"audio\": \"a.wav\", \"text\": \"one\"}\n";
    let arguments = "data clips manifest - --out clips.jsonl";
    printed(&engram_reading(folder, arguments, clips), arguments);
    let written = fs::read_to_string(folder.join("clips.jsonl")).unwrap();
    assert!(written.contains("\"audio\":\"a.wav\""), "{written}");
    let table = "key,yt_id,start_time,end_time,annotation\na,v,0,1000000,one\n";
    let arguments = "data clips visspeech - --audio . --out table.jsonl";
    printed(&engram_reading(folder, arguments, table), arguments);
    let arguments = "transcribe clips.jsonl --model none --boost - --out o.jsonl";
    let output = engram_reading(folder, arguments, "a word\n<|a token|>\n");
    refusal(&output, "transcribe", &["line 2", "special token"]);
    refused(folder, "transcribe - --model none --boost - --out o", "both read standard input");
    refused(folder, "eval wer --ref - --hyp -", "both read standard input");
}

/// Files that an input file refers to are inputs too.
#[test]
fn files_in_a_manifest_are_inputs() {
    let folder = &Folder::new();
    fs::write(folder.join("a.jsonl"), "audio").unwrap();
    fs::write(folder.join("clips.jsonl"), "{\"audio\": \"a.jsonl\", \"frames\": [\"f.png\"]}\n")
        .unwrap();
    fs::write(folder.join("f.png"), "frame").unwrap();
    for output in ["a.jsonl", "f.png", "./a.jsonl"] {
        for command in
            ["transcribe clips.jsonl --model none --out", "data clips manifest clips.jsonl --out"]
        {
            refused(folder, &format!("{command} {output} --force"), "would overwrite the input");
        }
    }
    refused(folder, "data clips manifest clips.jsonl --out clips.jsonl", "would overwrite");
    assert_eq!(fs::read(folder.join("a.jsonl")).unwrap(), b"audio");
}

/// Nothing that exists is overwritten without `--force`. The check comes before any work.
#[test]
fn existing_files_need_force() {
    let folder = &Folder::new();
    fs::write(folder.join("mine"), "mine").unwrap();
    symlink("mine", folder.join("link")).unwrap();
    for command in COMMANDS {
        let command = command.replace("IN", "none");
        for output in ["mine", "link"] {
            let refusal = format!("{output}: already exists; give another name, or --force");
            refused(folder, &command.replace("OUT", output), &refusal);
        }
    }
    assert_eq!(fs::read(folder.join("mine")).unwrap(), b"mine");

    fs::write(folder.join("p.jsonl"), "{\"id\": 1, \"ref\": \"a\", \"hyp\": \"b\"}\n").unwrap();
    succeeds(folder, "eval wer --pairs p.jsonl --items link --force");
    assert!(fs::read_to_string(folder.join("mine")).unwrap().contains("numerator"));
    assert!(folder.join("link").is_symlink());
    succeeds(folder, "eval wer --pairs p.jsonl --items /dev/null");
    // Manual pages are files in a folder that may have others.
    succeeds(folder, "man --out .");
    refused(folder, "man --out .", "./engram.1: already exists");
    succeeds(folder, "man --out . --force");
}

/// Output that is lost is an error. A reader that has enough, such as `head`, is none.
#[cfg(target_os = "linux")]
#[test]
fn lost_output_is_an_error() {
    let folder = &Folder::with(&[("p.jsonl", "{\"id\": 1, \"ref\": \"a\", \"hyp\": \"b\"}\n")]);
    let shell = |line: &str| {
        let mut bash = std::process::Command::new("bash");
        let line = format!("set -o pipefail; {} {line}", env!("CARGO_BIN_EXE_engram"));
        bash.current_dir(folder).args(["-c", &line]).output().unwrap()
    };
    let wer = "eval wer --pairs p.jsonl";
    for command in ["--version", wer, &format!("{wer} --items -"), "man --markdown"] {
        for target in ["> /dev/full", ">&-"] {
            refusal(&shell(&format!("{command} {target}")), command, "standard output");
        }
        assert!(shell(&format!("{command} | head -c 1")).status.success(), "{command}");
    }
    // A change whose report cannot be printed is made.
    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    succeeds(folder, "memory build --keys keys.npy --out m -q");
    let delete = "memory delete m --ids 0 > /dev/full";
    refusal(&shell(delete), delete, &["m: the change is made: generation 2", "No space"]);
    assert!(succeeds(folder, "memory info m").contains("generation 2"));
}

/// An incomplete output is not left on disk.
#[test]
fn data_sets_are_written_completely_or_not_at_all() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("filled")).unwrap();
    fs::write(folder.join("filled/notes.txt"), "mine").unwrap();
    for command in [
        "data phrases --out filled",
        "data speech --out filled",
        "data world --out filled",
        "data audiovisual --out filled",
    ] {
        refused(folder, command, "filled: already contains files; give a new folder");
    }
    succeeds(folder, "data phrases --out new/phrases");
    assert_eq!(fs::read_dir(folder.join("new/phrases")).unwrap().count(), 4);
    assert_eq!(fs::read_dir(folder.join("new")).unwrap().count(), 1, "nothing is left beside");
    assert_eq!(fs::read(folder.join("filled/notes.txt")).unwrap(), b"mine");
    succeeds(folder, &["data", "speech", "--out", "spaced name", "--count", "1"]);
    assert!(folder.join("spaced name/clips.jsonl").is_file());
}

#[test]
fn an_address_is_not_a_path() {
    let folder = &Folder::new();
    let password = "://user:secret@host/bucket";
    for scheme in ["postgres", "s3", "gs", "file", "hf", "https"] {
        for arguments in [
            format!("data world --out {scheme}{password}"),
            format!("train patent --recipe patent/world --run {scheme}{password}"),
            format!("eval wer --ref {scheme}{password} --hyp none.tsv"),
        ] {
            let output = engram(folder, &arguments);
            let message = errors(&output);
            assert_eq!(output.status.code(), Some(2), "{message}");
            assert!(message.contains(&format!("not an address ({scheme}://…)")), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }
    // An address with other characters before it, and settings.
    for name in [
        " postgres://ann:secret@h/w",
        "host=h password=secret",
        "dbname=w user=ann host=h",
        "user:secret@host",
        "memory.values=s3://key:secret@b",
        "AccountKey=secret",
    ] {
        for arguments in [["data", "world", "--out", name], ["memory", "info", name, "-v"]] {
            let output = engram(folder, &arguments[..]);
            refusal(&output, name, "this looks like an address or a setting");
            assert!(!errors(&output).contains("secret"), "{}", errors(&output));
        }
    }
    assert!(fs::read_dir(&**folder).unwrap().next().is_none());
    succeeds(folder, "data phrases --out ./a:b@c");
}
