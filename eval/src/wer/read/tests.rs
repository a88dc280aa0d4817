//! Tests of the readers and of pairs.

use super::*;

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
fn texts_in_memory_are_numbered_pairs() {
    let hypotheses = ["a".to_owned(), "c".to_owned()];
    let pairs = Pairs::new(&["a b", "c"], &hypotheses).unwrap();
    assert_eq!(
        (pairs.ids, pairs.hypotheses),
        (vec!["1".into(), "2".into()], vec!["a".into(), "c".into()])
    );
    let error = Pairs::new(&["a"], &["a", "b"]).unwrap_err();
    assert!(matches!(error, EvalError::LengthMismatch { references: 1, hypotheses: 2 }));
}

#[test]
fn empty_lines_are_texts_too() {
    let utterances = texts("a b\r\n\nc\n\n", TextFormat::Lines);
    let texts: Vec<&str> = utterances.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["a b", "", "c", ""]);
    assert!(error_message("", TextFormat::Lines).starts_with("f: has no texts"));
}

#[test]
fn ids_are_read_from_every_format_with_ids() {
    let owned = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        rows.iter().map(|(id, text)| (id.to_string(), text.to_string())).collect()
    };
    assert_eq!(
        texts("hello (laughs) you (s1-2)\n(s1-3)\n", TextFormat::Trn),
        owned(&[("s1-2", "hello (laughs) you"), ("s1-3", "")])
    );
    assert_eq!(
        texts("s1-2 hello  you\n\ns1-3\ns1-4\ta\n", TextFormat::Kaldi),
        owned(&[("s1-2", "hello  you"), ("s1-3", ""), ("s1-4", "a")])
    );
    assert_eq!(texts(";; a comment\na (1)\n;; another\n", TextFormat::Trn), owned(&[("1", "a")]));
    assert_eq!(texts("1\ta b\t[\"x\"]\n2\t\n", TextFormat::Tsv), owned(&[("1", "a b"), ("2", "")]));
    assert_eq!(texts("id\twav\ttext\nu\tu.wav\ta b\n", TextFormat::Tsv), owned(&[("u", "a b")]));
    assert_eq!(
        texts("{\"id\":7,\"text\":\"a\\n\"}\n{\"id\":\"x\",\"text\":\"\"}", TextFormat::Jsonl),
        owned(&[("7", "a\n"), ("x", "")])
    );
}

#[test]
fn errors_name_the_line() {
    assert!(error_message("a (1)\nb\n", TextFormat::Trn).starts_with("f:2: has no id at its end"));
    assert!(error_message("1 a\n", TextFormat::Tsv).starts_with("f:1: has no tab"));
    let header = error_message("id\twav\n", TextFormat::Tsv);
    assert!(header.starts_with("f:1: has no column of references; it has: id, wav"), "{header}");
    let duplicatedted = error_message("id\ttext\ttext\n", TextFormat::Tsv);
    assert!(duplicatedted.starts_with("f:1: column `text` occurs twice"), "{duplicatedted}");
    let tab = error_message("id\ttext\nu\ta\tb\n", TextFormat::Tsv);
    assert!(tab.starts_with("f:2: 3 fields where the header has 2"), "{tab}");
    assert!(error_message("a\rb", TextFormat::Lines).starts_with("f:1: ends its lines with"));
    assert!(error_message("1 a\n1 b\n", TextFormat::Kaldi).starts_with("f:2: id `1` was already"));
    let list = error_message("[\"1\", \"a\"]\n", TextFormat::Jsonl);
    assert!(list.contains("invalid type: sequence, expected an object"), "{list}");
    assert!(
        error_message("1\ta\n\n1\tb\n", TextFormat::Tsv).starts_with("f:3: id `1` was already")
    );
    assert!(
        error_message("{\"id\":1}\n", TextFormat::Jsonl)
            .contains("f:1: has no column of references")
    );
    let json = |text| parse_pairs("f", text, TextFormat::Jsonl, &Columns::default());
    let duplicatedted =
        json("{\"id\":1,\"ref\":\"\",\"hyp\":\"\"}\n{\"id\":\"1\",\"ref\":\"\",\"hyp\":\"\"}");
    assert!(
        duplicatedted.unwrap_err().to_string().starts_with("f:2: id `1` was already given at f:1")
    );
    let long = format!("a\n{}\n", "b ".repeat(MAX_TEXT_BYTES / 2 + 1));
    let long = error_message(&long, TextFormat::Lines);
    assert!(long.starts_with("f:2: has a text of 4194306 bytes, more than 4194304; "), "{long}");
    let float = json("{\"id\":1.5,\"ref\":\"\",\"hyp\":\"\"}").unwrap_err().to_string();
    assert!(float.contains("f:1: `id` is not a string or an integer"), "{float}");
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
    let common_voice = "client_id\tpath\tsentence\nc\ta.mp3\tx\nc\tb.mp3\ty\n";
    let csv = "Utterance_ID,Transcript\nu1,\"a, b\"\nu2,\n";
    for (text, format, side, expected) in [
        (nemo, TextFormat::Jsonl, Side::Reference, "a.wav=x"),
        (nemo, TextFormat::Jsonl, Side::Hypothesis, "a.wav=y"),
        (common_voice, TextFormat::Tsv, Side::Hypothesis, "a.mp3=x b.mp3=y"),
        (csv, TextFormat::Csv, Side::Reference, "u1=a, b u2="),
        ("id,reference,hypothesis\n1,a,b\n", TextFormat::Csv, Side::Hypothesis, "1=b"),
    ] {
        assert_eq!(
            joined_texts(text, format, side, &usual_names).as_deref(),
            Ok(expected),
            "{text}"
        );
    }
    let given_names =
        Columns { id: Some("Nr".into()), reference: Some("Satz".into()), ..Columns::default() };
    let text = "Nr,Satz,text\n1,a,b\n";
    assert_eq!(
        joined_texts(text, TextFormat::Csv, Side::Reference, &given_names).as_deref(),
        Ok("1=a")
    );
    assert_eq!(
        joined_texts("{\"Nr\":1,\"Satz\":\"a\"}", TextFormat::Jsonl, Side::Reference, &given_names)
            .as_deref(),
        Ok("1=a")
    );
    let without_prediction = format!("{nemo}{{\"audio_filepath\": \"b.wav\", \"text\": \"x\"}}\n");
    for (text, format, side, columns, expected) in [
        (
            &*without_prediction,
            TextFormat::Jsonl,
            Side::Hypothesis,
            &usual_names,
            "f:2: `pred_text` is missing; ",
        ),
        (
            "id,wav\n1,a\n",
            TextFormat::Csv,
            Side::Hypothesis,
            &usual_names,
            "f:1: has no column of hypotheses; it has: id, wav; name it",
        ),
        ("u1,a b\n", TextFormat::Csv, Side::Reference, &usual_names, "f:1: has no column of refe"),
        (
            "a,text\n1,x\n",
            TextFormat::Csv,
            Side::Reference,
            &usual_names,
            "f:2: has no column of ids; name it",
        ),
        (
            "id,text\n1,x\n",
            TextFormat::Csv,
            Side::Reference,
            &given_names,
            "f:1: has no `Nr`; it has",
        ),
    ] {
        let error = joined_texts(text, format, side, columns).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn one_file_can_have_both_sides() {
    let pairs = |text, format| parse_pairs("f", text, format, &Columns::default());
    let nemo = "{\"audio_filepath\": \"a\", \"text\": \"x\", \"pred_text\": \"y\"}\n";
    let pair = pairs(nemo, TextFormat::Jsonl).unwrap();
    assert_eq!((&*pair.ids[0], &*pair.references[0], &*pair.hypotheses[0]), ("a", "x", "y"));
    let pair = pairs("reference,hypothesis\na b,a\n", TextFormat::Csv).unwrap();
    assert_eq!((&*pair.ids[0], &*pair.hypotheses[0]), ("2", "a"));
    let error = pairs("id,text,transcript\n1,a,b\n", TextFormat::Csv).unwrap_err().to_string();
    assert!(error.starts_with("f:1: has no column of hypotheses"), "{error}");
    let error = pairs("a (1)\n", TextFormat::Trn).unwrap_err().to_string();
    assert!(error.starts_with("option `format` is trn; expected csv, tsv or jsonl"), "{error}");
}

#[test]
fn texts_are_joined_by_id_or_by_line() {
    let parse = |text, format| parse_texts("f", text, format).unwrap();
    let joined = |a, b, format| {
        join("r", parse(a, format), "h", parse(b, format)).map_err(|e| e.to_string())
    };
    let pairs = joined("1\ta\n2\tb\n", "2\tx\n1\ty\n", TextFormat::Tsv).unwrap();
    assert_eq!(
        (&pairs.references[..], &pairs.hypotheses[..]),
        (&["a".into(), "b".into()][..], &["y".into(), "x".into()][..])
    );
    let missing = joined("1\ta\n2\tb\n", "2\tx\n", TextFormat::Tsv).unwrap_err();
    assert!(missing.starts_with("h: no prediction for id `1` (r:1)"), "{missing}");
    let extra = joined("1\ta\n", "1\tx\n3\t\n", TextFormat::Tsv).unwrap_err();
    assert!(extra.starts_with("h:2: id `3` is not in r"), "{extra}");
    let lines = joined("a\n\n", "a\n", TextFormat::Lines).unwrap_err();
    assert!(lines.starts_with("h: has 1 lines, but r has 2"), "{lines}");
    let mixed = join("r", parse("a", TextFormat::Lines), "h", parse("a (1)", TextFormat::Trn));
    assert!(mixed.unwrap_err().to_string().starts_with("r: has no ids, but h has"));
}
