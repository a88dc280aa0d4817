//! Tests of the readers and of pairs.

use super::*;
use Side::{Hypothesis, Reference};
use TextFormat::{Csv, Jsonl, Kaldi, Lines, Trn, Tsv};

fn texts(text: &str, format: TextFormat) -> Vec<(String, String)> {
    let utterances = parse_texts("f", text, format).unwrap();
    let id_and_text =
        |u: Utterance<'_>| (u.id.unwrap_or_default().into_owned(), u.text.into_owned());
    utterances.into_iter().map(id_and_text).collect()
}

fn error_message(text: &str, format: TextFormat) -> String {
    parse_texts("f", text, format).unwrap_err().to_string()
}

#[test]
fn empty_lines_are_texts_too() {
    let utterances = texts("a b\r\n\nc\n\n", Lines);
    let texts: Vec<&str> = utterances.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["a b", "", "c", ""]);
    assert!(error_message("", Lines).starts_with("f: has no texts"));
}

#[test]
fn ids_are_read_from_every_format_with_ids() {
    let owned = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        rows.iter().map(|(id, text)| (id.to_string(), text.to_string())).collect()
    };
    assert_eq!(
        texts("hello (laughs) you (s1-2)\n(s1-3)\n", Trn),
        owned(&[("s1-2", "hello (laughs) you"), ("s1-3", "")])
    );
    assert_eq!(
        texts("s1-2 hello  you\n\ns1-3\ns1-4\ta\n", Kaldi),
        owned(&[("s1-2", "hello  you"), ("s1-3", ""), ("s1-4", "a")])
    );
    assert_eq!(texts(";; a comment\na (1)\n;; another\n", Trn), owned(&[("1", "a")]));
    assert_eq!(texts("1\ta b\t[\"x\"]\n2\t\n", Tsv), owned(&[("1", "a b"), ("2", "")]));
    assert_eq!(texts("id\twav\ttext\nu\tu.wav\ta b\n", Tsv), owned(&[("u", "a b")]));
    assert_eq!(
        texts("{\"id\":7,\"text\":\"a\\n\"}\n{\"id\":\"x\",\"text\":\"\"}", Jsonl),
        owned(&[("7", "a\n"), ("x", "")])
    );
}

#[test]
fn errors_name_the_line() {
    let long = format!("a\n{}\n", "b ".repeat(MAX_TEXT_BYTES / 2 + 1));
    for (text, format, expected) in [
        ("a (1)\nb\n", Trn, "f:2: has no id at its end"),
        ("1 a\n", Tsv, "f:1: has no tab"),
        ("id\twav\n", Tsv, "f:1: has no column of references; it has: id, wav"),
        ("id\ttext\nu\ta\tb\n", Tsv, "f:2: 3 fields where the header has 2"),
        ("a\rb", Lines, "f:1: ends its lines with"),
        ("1 a\n1 b\n", Kaldi, "f:2: id `1` was already"),
        ("[\"1\", \"a\"]\n", Jsonl, "f:1: is not as expected: invalid type: sequence"),
        ("1\ta\n\n1\tb\n", Tsv, "f:3: id `1` was already"),
        ("{\"id\":1}\n", Jsonl, "f:1: has no column of references"),
        (&*long, Lines, "f:2: has a text of 4194306 bytes, more than 4194304; "),
    ] {
        let error = error_message(text, format);
        assert!(error.starts_with(expected), "{error}");
    }
    let duplicate =
        "{\"id\":1,\"ref\":\"\",\"hyp\":\"\"}\n{\"id\":\"1\",\"ref\":\"\",\"hyp\":\"\"}";
    let float = "{\"id\":1.5,\"ref\":\"\",\"hyp\":\"\"}";
    for (text, expected) in [
        (duplicate, "f:2: id `1` was already given at f:1"),
        (float, "f:1: `id` is not a string or an integer"),
    ] {
        let error = parse_pairs("f", text, Jsonl, &Columns::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn columns_have_usual_names_or_names_given_by_the_user() {
    let joined_texts = |text, format, side, columns: &Columns| {
        let utterances = parse_side("f", text, format, side, columns).map_err(|e| e.to_string())?;
        let id_and_text = |u: Utterance<'_>| format!("{}={}", u.id.unwrap_or_default(), u.text);
        Ok::<_, String>(utterances.into_iter().map(id_and_text).collect::<Vec<_>>().join(" "))
    };
    let usual_names = Columns::default();
    let nemo = "{\"audio_filepath\": \"a.wav\", \"duration\": 1.5, \"text\": \"x\", \
                \"pred_text\": \"y\"}\n";
    let with_offset = nemo.replace("duration", "offset");
    let common_voice = "client_id\tpath\tsentence\nc\ta.mp3\tx\nc\tb.mp3\ty\n";
    let csv = "Utterance_ID,Transcript\nu1,\"a, b\"\nu2,\n";
    let clips = "Audio,Start,text\na.wav,0,x\na.wav, 2.50,y\nb.wav,,z\n";
    for (text, format, side, expected) in [
        (nemo, Jsonl, Reference, "a.wav=x"),
        (nemo, Jsonl, Hypothesis, "a.wav=y"),
        (&with_offset, Jsonl, Reference, "a.wav-1.5=x"),
        ("id\ttext\n1\t\"say \"\"a\"\"\"\n", Tsv, Reference, "1=say \"a\""),
        ("1\t\"say \"\"a\"\"\"\n", Tsv, Reference, "1=say \"a\""),
        ("1\t\"a\" b\n", Tsv, Reference, "1=\"a\" b"),
        (common_voice, Tsv, Hypothesis, "a.mp3=x b.mp3=y"),
        (csv, Csv, Reference, "u1=a, b u2="),
        (clips, Csv, Reference, "a.wav=x a.wav-2.5=y b.wav=z"),
        ("id,reference,hypothesis\n1,a,b\n", Csv, Hypothesis, "1=b"),
    ] {
        assert_eq!(
            joined_texts(text, format, side, &usual_names).as_deref(),
            Ok(expected),
            "{text}"
        );
    }
    for (text, format, sides, expected) in [
        (
            nemo,
            Jsonl,
            &[Reference, Hypothesis][..],
            "id from `audio_filepath`, reference from \
             `text`, hypothesis from `pred_text`",
        ),
        (common_voice, Tsv, &[Reference], "id from `path`, text from `sentence`"),
        ("id,text\n1,a\n", Csv, &[Hypothesis], ""),
        ("1\ta\n", Tsv, &[Hypothesis], ""),
    ] {
        let names = other_names(("f", text), format, sides, &usual_names).unwrap();
        assert_eq!(names.unwrap_or_default(), expected);
    }
    let given_names =
        Columns { id: Some("Nr".into()), reference: Some("Satz".into()), ..Columns::default() };
    let text = "Nr,Satz,text\n1,a,b\n";
    assert_eq!(joined_texts(text, Csv, Reference, &given_names).as_deref(), Ok("1=a"));
    assert_eq!(
        joined_texts("{\"Nr\":1,\"Satz\":\"a\"}", Jsonl, Reference, &given_names).as_deref(),
        Ok("1=a")
    );
    let without_prediction = format!("{nemo}{{\"audio_filepath\": \"b.wav\", \"text\": \"x\"}}\n");
    for (text, format, side, columns, expected) in [
        (&*without_prediction, Jsonl, Hypothesis, &usual_names, "f:2: `pred_text` is missing; "),
        (
            "id,wav\n1,a\n",
            Csv,
            Hypothesis,
            &usual_names,
            "f:1: has no column of hypotheses; it has: id, wav; name it",
        ),
        ("u1,a b\n", Csv, Reference, &usual_names, "f:1: has no column of refe"),
        ("a,text\n1,x\n", Csv, Reference, &usual_names, "f:2: has no column of ids; name it"),
        ("id,text\n1,x\n", Csv, Reference, &given_names, "f:1: has no `Nr`; it has"),
    ] {
        let error = joined_texts(text, format, side, columns).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn one_file_can_have_both_sides() {
    let pairs = |text, format| parse_pairs("f", text, format, &Columns::default());
    let nemo = "{\"audio_filepath\": \"a\", \"text\": \"x\", \"pred_text\": \"y\"}\n";
    let pair = pairs(nemo, Jsonl).unwrap();
    assert_eq!((&*pair.ids[0], &*pair.references[0], &*pair.hypotheses[0]), ("a", "x", "y"));
    let pair = pairs("reference,hypothesis\na b,a\n", Csv).unwrap();
    assert_eq!((&*pair.ids[0], &*pair.hypotheses[0]), ("2", "a"));
    let error = pairs("id,text,transcript\n1,a,b\n", Csv).unwrap_err().to_string();
    assert!(error.starts_with("f:1: has no column of hypotheses"), "{error}");
    let error = pairs("a (1)\n", Trn).unwrap_err().to_string();
    assert!(error.starts_with("option `format` is trn; expected csv, tsv or jsonl"), "{error}");
}

#[test]
fn texts_are_joined_by_id_or_by_line() {
    let parse = |text, format| parse_texts("f", text, format).unwrap();
    let joined = |a, b, format| {
        join("r", parse(a, format), "h", parse(b, format)).map_err(|e| e.to_string())
    };
    let pairs = joined("1\ta\n2\tb\n", "2\tx\n1\ty\n", Tsv).unwrap();
    assert_eq!(
        (&pairs.references[..], &pairs.hypotheses[..]),
        (&["a".into(), "b".into()][..], &["y".into(), "x".into()][..])
    );
    let missing = joined("1\ta\n2\tb\n", "2\tx\n", Tsv).unwrap_err();
    assert!(missing.starts_with("h: no prediction for id `1` (r:1)"), "{missing}");
    let extra = joined("1\ta\n", "1\tx\n3\t\n", Tsv).unwrap_err();
    assert!(extra.starts_with("h:2: id `3` is not in r"), "{extra}");
    let lines = joined("a\n\n", "a\n", Lines).unwrap_err();
    assert!(lines.starts_with("h: has 1 lines, but r has 2"), "{lines}");
    let error = Pairs::new(&["a"], &["a", "b"]).unwrap_err();
    assert!(matches!(error, EvalError::LengthMismatch { references: 1, hypotheses: 2 }));
    let mixed = join("r", parse("a", Lines), "h", parse("a (1)", Trn));
    assert!(mixed.unwrap_err().to_string().starts_with("r: has no ids, but h has"));
}
