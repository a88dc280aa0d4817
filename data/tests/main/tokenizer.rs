//! Tests of the segment tokenizer: segments without special tokens, checks against a model, and
//! truncation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engram_data::tokenizer::{SegmentTokenizer, SpecialTokens, TextForm, longest_first};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// A WordPiece tokenizer whose file requests truncation and padding, as in all-MiniLM-L6-v2.
const WORD_PIECE: &str = r###"{
  "version": "1.0",
  "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
  "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
              "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
  "added_tokens": [],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                 "strip_accents": null, "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
  "decoder": null,
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4,
                      "metal": 5, "fasten": 6, "##er": 7, "-": 8}}
}"###;

fn word_piece() -> SegmentTokenizer {
    SegmentTokenizer::from_bytes("tokenizer.json", WORD_PIECE.as_bytes()).unwrap()
}

#[test]
fn a_text_is_truncated_at_the_configured_side() {
    let tokenizer = word_piece();
    let special = tokenizer.special();
    let tokens = tokenizer.encode_segment("metal fastener").unwrap();
    let form = |max_length, truncate_left| TextForm {
        max_length,
        truncate_left,
        use_post_processor: false,
    };
    let ids = |form: TextForm| tokenizer.encode_text("metal fastener", &form).unwrap();
    let with_special_tokens = |ids: &[u32]| [&[special.cls], ids, &[special.sep]].concat();
    assert_eq!(ids(form(99, false)), with_special_tokens(&tokens));
    assert_eq!(ids(form(4, false)), with_special_tokens(&tokens[..2]));
    assert_eq!(ids(form(4, true)), with_special_tokens(&tokens[tokens.len() - 2..]));
    assert_eq!(tokenizer.encode_text("", &form(4, true)).unwrap(), with_special_tokens(&[]));
    // The file's post-processor adds the same tokens.
    for form in [form(4, false), form(4, true), form(99, true), form(1, true)] {
        let processed = TextForm { use_post_processor: true, ..form };
        assert_eq!(ids(processed), ids(form), "{form:?}");
    }
    assert_eq!(tokenizer.truncated_texts(), 8);
}

#[test]
fn segments_have_no_special_tokens_padding_or_truncation() {
    let tokenizer = word_piece();
    let expected = [5, 8, 6, 7, 6, 1];
    for _ in 0..2 {
        let ids = tokenizer.encode_segment("Metal-fastener fasten x").unwrap();
        assert_eq!(*ids, expected);
    }
    let long = "metal ".repeat(3000);
    assert_eq!(tokenizer.encode_segment(&long).unwrap().len(), 3000);
    assert!(tokenizer.encode_segment("").unwrap().is_empty());
}

#[test]
fn special_tokens_of_bert_roberta_and_clip_are_found() {
    let bert = SpecialTokens { cls: 2, sep: 3, pad: 0, mask: Some(4) };
    assert_eq!(word_piece().special(), bert);
    let roberta = WORD_PIECE
        .replace("[CLS]", "<s>")
        .replace("[SEP]", "</s>")
        .replace("[PAD]", "<pad>")
        .replace("\"[MASK]\": 4", "\"mask\": 4");
    let roberta = SegmentTokenizer::from_bytes("t", roberta.as_bytes()).unwrap();
    assert_eq!(roberta.special(), SpecialTokens { mask: None, ..bert });

    // MPNet's vocabulary has the names of BERT's tokens, too.
    let mpnet = WORD_PIECE
        .replace(
            "\"sep\": [\"[SEP]\", 3], \"cls\": [\"[CLS]\", 2]",
            "\"sep\": [\"</s>\", 11], \"cls\": [\"<s>\", 9]",
        )
        .replace("\"-\": 8", "\"-\": 8, \"<s>\": 9, \"<pad>\": 10, \"</s>\": 11, \"<mask>\": 12");
    let mpnet = SegmentTokenizer::from_bytes("t", mpnet.as_bytes()).unwrap();
    let expected = SpecialTokens { cls: 9, sep: 11, pad: 10, mask: Some(12) };
    assert_eq!(mpnet.special(), expected);

    let clip = WORD_PIECE.replace("[CLS]", "<|startoftext|>").replace("[SEP]", "<|endoftext|>");
    let clip =
        SegmentTokenizer::from_bytes("t", clip.replace("[PAD]", "unused").as_bytes()).unwrap();
    assert_eq!(clip.special(), SpecialTokens { pad: 3, ..bert });

    let without_sep = WORD_PIECE.replace("[SEP]", "[END]");
    let error =
        SegmentTokenizer::from_bytes("some/tokenizer.json", without_sep.as_bytes()).err().unwrap();
    let message = error.to_string();
    assert!(message.contains("some/tokenizer.json"), "{message}");
    let expected = "no sep token (looked for [SEP] or </s> or <|endoftext|>)";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let tokenizer = word_piece();
    assert_eq!(tokenizer.vocabulary_size(), 9);
    assert!(tokenizer.check_fits(9, Some(0)).is_ok());
    assert!(tokenizer.check_fits(10, None).is_ok());
    for size in [8, 11, 30_522] {
        let message = tokenizer.check_fits(size, None).unwrap_err().to_string();
        assert!(message.contains("9 entries"), "{message}");
        assert!(message.contains(&format!("{size} embeddings; use")), "{message}");
    }
    let message = tokenizer.check_fits(9, Some(1)).unwrap_err().to_string();
    assert!(message.contains("pads with id 0, the model with id 1"), "{message}");
}

#[test]
fn files_that_are_not_tokenizers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for content in ["", "{}", "{\"model\": 1}", &WORD_PIECE[..WORD_PIECE.len() / 2]] {
        std::fs::write(&path, content).unwrap();
        let message = SegmentTokenizer::from_file(&path).err().unwrap().to_string();
        assert!(message.contains("tokenizer.json: not a usable tokenizer"), "{message}");
    }
    let missing = folder.path().join("none.json");
    let message = SegmentTokenizer::from_file(missing).err().unwrap().to_string();
    assert!(message.contains("none.json"), "{message}");
}

/// Reads the tokenizer with another value of one of its parts.
fn read_with(pointer: &str, value: Value) -> Result<(), String> {
    let mut tokenizer: Value = serde_json::from_str(WORD_PIECE).unwrap();
    *tokenizer.pointer_mut(pointer).unwrap() = value;
    let json = tokenizer.to_string();
    let tokenizer = SegmentTokenizer::from_bytes("tokenizer.json", json.as_bytes());
    tokenizer.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn steps_that_together_make_texts_too_long_are_refused() {
    let replace = |kind: &str, pattern: &str, content: &str| json!({"type": "Replace", "pattern": {kind: pattern}, "content": content});
    let read = |part: &str, steps: &[Value]| {
        let list = format!("{}s", part.replace('_', ""));
        read_with(&format!("/{part}"), json!({"type": "Sequence", list: steps}))
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let step = |kind: &str| json!({"type": kind});
    let bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": true, "lowercase": true});
    let ctc = json!({"type": "CTC", "pad_token": "p", "word_delimiter_token": "", "cleanup": true});
    let table = STANDARD.encode([vec![0; 4], vec![b'x'; 2000]].concat());
    let table = json!({"type": "Precompiled", "precompiled_charsmap": table});
    for (part, steps) in [
        ("normalizer", vec![replace("String", "a", "aaaaaaaa"); 6]),
        ("normalizer", vec![replace("Regex", "[a-z]", "aaaaaaaa"); 6]),
        ("normalizer", vec![replace("Regex", "(?=a)", "a"); 12]),
        ("normalizer", ["a", "b"].map(|c| replace("String", c, &"b".repeat(99))).to_vec()),
        ("normalizer", vec![prepend.clone(); 12]),
        ("pre_tokenizer", vec![bytes.clone(); 12]),
        ("decoder", vec![replace("String", "a", "aaaaaaaa"); 6]),
        ("normalizer", vec![[replace("String", "a", "AAAAAAAA"), step("Lowercase")]; 6].concat()),
        ("normalizer", vec![[replace("String", "a", "ａａａ"), step("NFKD")]; 6].concat()),
        ("normalizer", vec![[replace("String", "a", "áááá"), bert.clone()]; 6].concat()),
        ("normalizer", vec![table]),
        // The library also accepts steps without a type, with another one, and without names.
        ("normalizer", vec![json!({"pattern": {"String": "a"}, "content": "aaaaaaaa"}); 6]),
        ("normalizer", vec![json!({"type": "x", "prepend": "▁"}); 12]),
        ("normalizer", vec![json!([{"String": "a"}, "aaaaaaaa"]); 6]),
        ("decoder", vec![json!({"type": "BPEDecoder", "suffix": ""}); 12]),
        ("decoder", vec![ctc; 12]),
    ] {
        let error = read(part, &steps).unwrap_err();
        assert!(error.contains("tokenizer.json: not") && error.contains("1000 bytes"), "{error}");
    }
    // Letters of another script, and the steps of usual tokenizers.
    let letters = ('а'..='я').map(|letter| replace("String", &letter.to_string(), "shch"));
    let quotes = vec![replace("Regex", "[“”]|„", "'"); 12];
    let space = [replace("Regex", r"\s+", " "), replace("String", " ", "▁"), prepend];
    let albert = [replace("String", "``", "\""), step("NFKD"), step("StripAccents"), bert];
    assert_eq!(read("normalizer", &albert), Ok(()));
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
    assert_eq!(read("normalizer", &letters.chain(quotes).chain(space).collect::<Vec<_>>()), Ok(()));
    assert_eq!(read("pre_tokenizer", &[metaspace, bytes]), Ok(()));
}

#[test]
fn a_text_gets_a_limited_number_of_tokens_in_a_limited_time() {
    let template = |texts: usize, ids: usize| {
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let [cls, sep] =
            ["[CLS]", "[SEP]"].map(|id| json!({"SpecialToken": {"id": id, "type_id": 0}}));
        let single = [vec![cls], vec![text; texts], vec![sep]].concat();
        let other = vec![json!({"Sequence": {"id": "B", "type_id": 1}})];
        let pair = [single.clone(), other].concat();
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {
            "[CLS]": {"id": "[CLS]", "ids": vec![2; ids], "tokens": vec!["[CLS]"; ids]},
            "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
        }})
    };
    let processors = json!({"type": "Sequence", "processors": vec![template(1, 200); 3]});
    for (pointer, value, reason) in [
        ("/model/max_input_chars_per_word", json!(1_000_000), "`max_input_chars_per_word` is"),
        ("/model/continuing_subword_prefix", json!("#".repeat(2000)), "more than 1000 bytes"),
        ("/post_processor", template(2, 1), "writes a text several times"),
        ("/post_processor", template(1, 3000), "more than 1000 special tokens"),
        ("/post_processor", processors, "more than 1000 special tokens"),
    ] {
        let error = read_with(pointer, value).unwrap_err();
        assert!(error.contains("tokenizer.json: not") && error.contains(reason), "{error}");
    }
    assert_eq!(read_with("/post_processor", template(1, 1)), Ok(()));
    let twice = WORD_PIECE.replace("\"normalizer\":", "\"normalizer\": null, \"normalizer\":");
    let error = SegmentTokenizer::from_bytes("t", twice.as_bytes()).err().unwrap().to_string();
    assert!(error.contains("duplicate field `normalizer`"), "{error}");
}

#[test]
fn the_longest_segments_are_truncated_first() {
    assert_eq!(longest_first(&[3, 4], 7), [3, 4]);
    assert_eq!(longest_first(&[2, 3000, 5], 20), [2, 13, 5]);
    assert_eq!(longest_first(&[10, 10, 10], 8), [3, 3, 2]);
    assert_eq!(longest_first(&[4, 1, 4], 0), [0, 0, 0]);
    assert_eq!(longest_first(&[], 5), [0; 0]);
}

#[test]
fn longest_first_equals_removing_one_token_at_a_time() {
    for seed in 0..500 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let segments = rng.random_range(1..6);
        let lengths: Vec<usize> = (0..segments).map(|_| rng.random_range(0..20)).collect();
        let budget = rng.random_range(0..60);
        let mut expected = lengths.clone();
        while expected.iter().sum::<usize>() > budget {
            let longest = *expected.iter().max().unwrap();
            let last = expected.iter().rposition(|&length| length == longest).unwrap();
            expected[last] -= 1;
        }
        assert_eq!(longest_first(&lengths, budget), expected, "seed {seed}: {lengths:?}, {budget}");
    }
}
