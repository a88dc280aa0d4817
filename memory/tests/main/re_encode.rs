//! A memory whose entries are encoded again by another model.

use crate::support::*;

fn encoder(name: &str, width: usize) -> Vec<EncoderRecord> {
    vec![EncoderRecord {
        name: name.to_owned(),
        sha256: name.repeat(64),
        inputs_sha256: None,
        reads: "text".to_owned(),
        width,
        prompt: None,
    }]
}

/// Returns the batch with keys of this width, whose angle to the first axis grows with the id.
fn encoded(batch: Batch, width: usize) -> Batch {
    let keys = batch.entries.iter().flat_map(|entry| {
        let angle = entry.id as f32 * 5e-4;
        let mut key = vec![0.0; width];
        (key[0], key[1]) = (angle.cos(), angle.sin());
        key
    });
    Batch { keys: keys.collect(), ..batch }
}

#[test]
fn keys_get_another_width_and_everything_else_stays() {
    for dtype in ValueDtype::ALL {
        let values = Some(ValueFormat { tokens: 2, width: 4, dtype });
        let format = MemoryFormat { width: 3, normalised: true, values };
        let rows = batch(&mut Rng::new(2), format, 10..2600);
        let (folder, mut writer) = temporary(format, rows);
        writer.delete(&[12, 2599]).unwrap();
        writer.re_encode(encoder("a", 3), 3, Ok).unwrap();
        let memory = Memory::open(folder.path()).unwrap();
        let before = memory.generation();
        let old_query = [1.0, 0.5, 0.25];
        let old_search = || exact(&before, &old_query, 20, &Filter::default());
        let old_hits = old_search();
        writer.re_encode(encoder("b", 7), 7, |batch| Ok(encoded(batch, 7))).unwrap();
        // The reader keeps its generation until it reloads.
        assert_eq!(old_search(), old_hits);
        assert!(memory.reload().unwrap());
        let after = memory.generation();
        assert_eq!((after.manifest().width, after.len(), after.deleted()), (7, 2588, 0));
        assert_eq!(after.manifest().encoders, encoder("b", 7));
        assert_eq!(after.manifest().next_id, before.manifest().next_id);
        assert_eq!(after.manifest().sources, before.manifest().sources);
        for id in [10, 11, 1500, 2598] {
            let (old, new) =
                (before.row_of(id).unwrap().unwrap(), after.row_of(id).unwrap().unwrap());
            assert_eq!(after.entry(new).unwrap(), before.entry(old).unwrap());
            assert_eq!(after.values(&[new]).unwrap(), before.values(&[old]).unwrap());
        }
        let nearest = exact(&after, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 2, &Filter::default());
        assert_eq!(nearest.hits[0][0].id, 10);
        let queries = Queries { keys: &old_query, k: 2 };
        assert_refused(
            after.search(Method::Exact, queries, &Filter::default()),
            ["of width 3, but the memory has width 7"],
        );
        assert!(after.verify().is_empty());
        // Later changes keep the new width.
        writer.compact(|_| {}).unwrap();
        assert_eq!(writer.generation().manifest().width, 7);
        assert_eq!(writer.generation().manifest().encoders, encoder("b", 7));
    }
}

#[test]
fn an_error_of_the_encoder_leaves_the_memory_unchanged() {
    let format = MemoryFormat { width: 3, normalised: true, values: None };
    let rows = batch(&mut Rng::new(2), format, 0..3000);
    let (folder, mut writer) = temporary(format, rows);
    let files = file_names(folder.path());
    let mut batches = 0;
    let failed = writer.re_encode(encoder("b", 5), 5, |batch| {
        batches += 1;
        match batches {
            1 => Ok(encoded(batch, 5)),
            _ => Err(MemoryError::Rows("the model cannot encode an image".into())),
        }
    });
    assert_eq!(failed.unwrap_err().to_string(), "the model cannot encode an image");
    assert_eq!(batches, 2);
    // Keys of another width than announced, zero keys, and a width of 0.
    assert_refused(
        writer.re_encode(encoder("b", 5), 5, |batch| Ok(encoded(batch, 4))),
        ["key components"],
    );
    let zero = |batch: Batch| Ok(Batch { keys: vec![0.0; 5 * batch.entries.len()], ..batch });
    assert_refused(writer.re_encode(encoder("b", 5), 5, zero), ["the key of row 0 is a zero"]);
    assert_refused(writer.re_encode(encoder("b", 0), 0, Ok), ["the width of a key is 0"]);
    let reopened = Memory::open(folder.path()).unwrap().generation();
    assert_eq!((reopened.manifest().width, reopened.manifest().generation), (3, 1));
    drop(reopened);
    assert_eq!(file_names(folder.path()), files);
    writer.delete(&[0]).unwrap();
    assert_eq!(writer.generation().len(), 2999);
}
