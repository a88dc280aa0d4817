//! Tests of a trained tokenizer: training is reproducible, and its training texts decode to
//! themselves.

use std::path::Path;

use engram_data::DataError;
use engram_data::text_to_text::T5Tokenizer;

fn texts() -> Vec<String> {
    let words = ["red", "apple", "flag", "of", "Åland", "Islands", "which", "town", "keeper"];
    (0..200)
        .map(|i| format!("{} {}, {}?", words[i % 9], words[i * 7 % 9], words[i * 5 % 9]))
        .collect()
}

#[test]
fn the_same_texts_give_the_same_tokenizer() -> Result<(), DataError> {
    let train = || T5Tokenizer::train(texts().into_iter(), 120)?.json();
    let first = train()?;
    for _ in 0..5 {
        assert!(train()? == first);
    }
    Ok(())
}

#[test]
fn texts_decode_to_their_lower_case() -> Result<(), DataError> {
    let tokenizer = T5Tokenizer::train(texts().into_iter(), 120)?;
    for text in ["Which town, keeper?", "flag of Åland Islands"] {
        let ids = tokenizer.encode(text)?;
        assert_eq!(tokenizer.decode(&ids)?, text.to_lowercase());
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary_size()));
    }
    let parsed = T5Tokenizer::parse(&tokenizer.json()?, Path::new("tokenizer.json"))?;
    assert_eq!(parsed.encode("red apple")?, tokenizer.encode("red apple")?);
    assert_eq!((parsed.begin, parsed.mask, parsed.end, parsed.pad), (4, 3, 1, 0));
    Ok(())
}

#[test]
fn a_tokenizer_without_the_special_tokens_is_refused() {
    let json = r#"{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;
    let path = Path::new("tokenizer.json");
    let error = T5Tokenizer::parse(json, path).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("tokenizer.json") && error.contains("<pad>")));
    let error = T5Tokenizer::parse("{", path).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("tokenizer.json")));
}
