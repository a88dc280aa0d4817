//! Tests of COCO captions.

use engram_data::knowledge::coco::CocoOptions;
use engram_data::knowledge::{Input, Reason, coco};

use super::reading::{assert_refused, input, read, skip_counts};
use crate::real_data;

const COCO: &str = r#"{"info": {"deep": [[1]]}, "annotations": [
        {"image_id": 7, "id": 1, "caption": "a dog "}, {"image_id": 5, "id": 2, "caption": "a cat"},
        {"image_id": 7, "id": 3, "caption": "two dogs"}, {"image_id": 8, "id": 4, "caption": "lost"}],
    "images": [{"id": 5, "file_name": "5.jpg", "height": 1}, {"id": 7, "file_name": "7.jpg"},
        {"id": 9, "file_name": "9.jpg"}]}"#;

#[test]
fn captions_become_images_with_texts() {
    let mut options = CocoOptions { folder: Some("val2017".to_owned()), ..CocoOptions::default() };
    let (lines, counts) =
        read(false, |collector| coco::read(input(COCO), &options, collector)).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"coco","document":"5","image":"val2017/5.jpg","text":"a cat"}"#,
            r#"{"source":"coco","document":"7","image":"val2017/7.jpg","text":"a dog"}"#,
            r#"{"source":"coco","document":"7","image":"val2017/7.jpg","text":"two dogs"}"#,
        ]
    );
    assert_eq!(counts.records, 4);
    assert_eq!(counts.skipped, skip_counts([(Reason::NoText, 1), (Reason::NoImage, 1)]));
    options.join = true;
    let (lines, _) = read(false, |collector| coco::read(input(COCO), &options, collector)).unwrap();
    assert!(lines[1].ends_with(r#""text":"a dog <extra_id_99> two dogs"}"#), "{lines:?}");
    options.splits = vec!["val".to_owned()];
    assert_refused(
        read(false, |collector| coco::read(input(COCO), &options, collector)),
        "data.file: has no splits",
    );
}

#[test]
fn a_table_has_images_captions_and_splits() {
    let file = "Caption,image,split\na dog,1.jpg,train\n\"a cat, asleep\",2.jpg,test\n\
                two dogs,1.jpg,train\n";
    let table = |text, options: &CocoOptions| {
        let input = Input::new("c.csv", str::as_bytes(text)).unwrap();
        read(false, |collector| coco::read(input, options, collector))
    };
    let mut options = CocoOptions { folder: Some("images".to_owned()), ..CocoOptions::default() };
    let (lines, counts) = table(file, &options).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"coco","document":"1.jpg","image":"images/1.jpg","text":"a dog"}"#,
            r#"{"source":"coco","document":"1.jpg","image":"images/1.jpg","text":"two dogs"}"#,
            r#"{"source":"coco","document":"2.jpg","image":"images/2.jpg","text":"a cat, asleep"}"#,
        ]
    );
    assert_eq!((counts.records, counts.skipped), (3, skip_counts([])));
    options.splits = vec!["test".to_owned()];
    let (lines, counts) = table(file, &options).unwrap();
    assert_eq!((lines.len(), counts.skipped), (1, skip_counts([(Reason::OtherSplit, 2)])));
    assert_refused(table("image,caption\n1.jpg,a\n", &options), "c.csv:1: has no splits");
    options.splits.clear();
    assert_refused(
        table("image,text\n1.jpg,a\n", &options),
        "c.csv:1: column `caption` is missing",
    );
    assert_refused(table("image,caption\n1.jpg,a\n,b\n", &options), "c.csv:3: has no image");
    assert_refused(table("image,caption\n1.jpg, \n", &options), "c.csv:2: has no caption");
    assert_refused(
        table("image,caption\n1.jpg\n", &options),
        "c.csv:2: 1 fields where the header has 2",
    );
}

#[test]
fn karpathys_file_has_splits() {
    let file = r#"{"dataset": "coco", "images": [
        {"filepath": "val2014", "filename": "a.jpg", "imgid": 0, "cocoid": 522418, "split": "restval",
         "sentences": [{"raw": "A woman.", "tokens": ["a"]}, {"raw": " "}]},
        {"filename": "b.jpg", "imgid": 1, "split": "test", "sentences": [{"raw": "A man."}]}]}"#;
    let coco = |splits: &[&str]| {
        let splits = splits.iter().map(ToString::to_string).collect();
        let options = CocoOptions { splits, ..CocoOptions::default() };
        read(false, |collector| coco::read(input(file), &options, collector)).unwrap()
    };
    let (lines, counts) = coco(&["train", "restval"]);
    assert_eq!(
        lines,
        [r#"{"source":"coco","document":"522418","image":"val2014/a.jpg","text":"A woman."}"#]
    );
    assert_eq!(counts.skipped, skip_counts([(Reason::OtherSplit, 1), (Reason::NoText, 1)]));
    let (lines, _) = coco(&[]);
    assert_eq!(lines[1], r#"{"source":"coco","document":"1","image":"b.jpg","text":"A man."}"#);
}

#[test]
fn bad_caption_files_are_reported() {
    let coco = |file: &str| {
        read(false, |collector| coco::read(input(file), &CocoOptions::default(), collector))
    };
    assert_refused(coco(r#"{"images": []}"#), "data.file: has no list `annotations`");
    assert_refused(coco(r#"{"annotations": []}"#), "data.file: has no list `images`");
    assert_refused(coco(r#"{"images": [], "images": []}"#), "`images` appears twice");
    assert_refused(
        coco(&COCO.replace("\"id\": 7", "\"id\": 5")),
        "item 2 of `images`: image 5 is already in item 1",
    );
    assert_refused(coco(&COCO.replace("\"a cat\"", "3")), "item 2 of `annotations`: invalid type");
    assert_refused(coco("[]"), ":1: invalid type: sequence, expected an object");
}

#[test]
#[ignore = "needs ENGRAM_DATA: coco-captions"]
fn real_captions_are_read() {
    let folder = real_data("coco-captions");
    let coco = |name: &str, join| {
        let options = CocoOptions { join, ..CocoOptions::default() };
        read(false, |collector| coco::read(Input::open(folder.join(name))?, &options, collector))
            .unwrap()
    };
    let (lines, counts) = coco("captions_val2017.json", false);
    assert_eq!((lines.len(), counts.records, counts.skipped.len()), (25_014, 25_014, 0));
    assert_eq!(coco("captions_val2017.json", true).0.len(), 5_000);
    assert_eq!(coco("captions_train2017_mini.json", false).0.len(), 400);
}
