//! Tests of what every data set has in common.

use std::collections::BTreeSet;

use engram_data::knowledge::DATA_SETS;

use crate::for_each_damage;
use crate::targets::check_sample;

#[test]
fn every_data_set_reads_its_samples() {
    let names: BTreeSet<&str> = DATA_SETS.iter().map(|data_set| data_set.name).collect();
    assert_eq!(names.len(), DATA_SETS.len(), "a name is used twice");
    for data_set in DATA_SETS {
        assert!(!data_set.samples.is_empty(), "{} has no sample", data_set.name);
        for sample in data_set.samples {
            let contents: Vec<_> = sample.files.iter().map(|file| file.1.as_bytes()).collect();
            let entries = check_sample(data_set, sample, &contents);
            assert!(entries.is_some_and(|entries| !entries.is_empty()), "{sample:?}");
        }
    }
}

#[test]
fn damaged_samples_are_read_or_refused() {
    for data_set in DATA_SETS {
        for sample in data_set.samples {
            let whole: Vec<_> = sample.files.iter().map(|file| file.1.as_bytes()).collect();
            for (index, content) in whole.iter().enumerate() {
                for_each_damage(content, |damaged| {
                    let mut contents = whole.clone();
                    contents[index] = damaged;
                    check_sample(data_set, sample, &contents);
                });
            }
        }
    }
}
