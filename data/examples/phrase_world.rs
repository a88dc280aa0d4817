fn main() {
    let w = engram_data::world::phrases::phrase_world(7);
    w.write("/tmp/pw").unwrap();
    std::fs::write(
        "/tmp/pw/tokenizer.json",
        engram_data::world::phrases::phrase_tokenizer(),
    )
    .unwrap();
}
