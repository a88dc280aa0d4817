//! Tests of values of all number types: rounding errors, limits, and that changes of other entries
//! never alter a stored value.

use std::fs;
use std::path::Path;

use crate::support::*;

/// Creates a memory of values of one token, one value per entry.
fn try_create(
    folder: &Path,
    dtype: ValueDtype,
    values: &[Vec<f32>],
) -> Result<Writer, MemoryError> {
    let format = ValueFormat { tokens: 1, width: values[0].len(), dtype };
    let format = MemoryFormat { width: 1, normalised: true, values: Some(format) };
    let entries = (0..values.len() as i64).map(Entry::bare).collect();
    let batch = Batch { entries, keys: vec![1.0; values.len()], values: values.concat() };
    Writer::create(folder, format, values.len(), [Ok(batch)].into_iter())
}

/// Returns the values that a memory of these values has.
fn restored(dtype: ValueDtype, values: &[Vec<f32>]) -> Vec<f32> {
    let folder = folder();
    let writer = try_create(folder.path(), dtype, values).unwrap();
    all_values(writer.generation())
}

fn all_values(generation: &Generation) -> Vec<f32> {
    generation.values(&generation.live_rows().collect::<Vec<_>>()).unwrap()
}

/// Returns the largest error of each component of a token.
fn error_bounds(dtype: ValueDtype, token: &[f32]) -> Vec<f32> {
    let group = match dtype {
        ValueDtype::F16 => {
            return token.iter().map(|component| component.abs() * 2f32.powi(-11)).collect();
        }
        ValueDtype::Int8 => token.len(),
        ValueDtype::Int4 => 32,
    };
    let steps = if dtype == ValueDtype::Int8 { 127.0 } else { 7.0 };
    let bound = |group: &[f32]| {
        let largest = group.iter().fold(0f32, |largest, component| largest.max(component.abs()));
        vec![0.500_001 * largest / steps; group.len()]
    };
    token.chunks(group).flat_map(bound).collect()
}

#[test]
fn values_of_every_width_are_restored_within_the_error_of_their_type() {
    for dtype in ValueDtype::ALL {
        for width in 1..=70 {
            let values = ValueFormat { tokens: 3, width, dtype };
            let format = MemoryFormat { width: 2, normalised: true, values: Some(values) };
            let mut rng = Rng::new(width as u64);
            let (first, second) = (batch(&mut rng, format, 0..2), batch(&mut rng, format, [2]));
            let expected = [first.values.clone(), second.values.clone()].concat();
            // The first segment has one file per column, the second is in a pack.
            let (_folder, mut writer) = temporary(format, first);
            add(&mut writer, second);
            let found = all_values(writer.generation());
            assert_eq!(found.len(), 9 * width);
            let bounds = expected.chunks(width).flat_map(|token| error_bounds(dtype, token));
            for ((found, expected), bound) in found.iter().zip(&expected).zip(bounds) {
                let error = (found - expected).abs();
                assert!(error <= bound, "{dtype}, width {width}: {found}, {expected}, {bound}");
            }
        }
    }
}

#[test]
fn an_int4_value_needs_18_bytes_per_32_components() {
    let bytes = |tokens, width, dtype| ValueFormat { tokens, width, dtype }.bytes();
    assert_eq!(bytes(16, 256, ValueDtype::F16), 8192);
    assert_eq!(bytes(16, 256, ValueDtype::Int8), 4160);
    assert_eq!(bytes(16, 256, ValueDtype::Int4), 16 * 8 * 18);
    // 17 bytes of numbers and two scales.
    assert_eq!(bytes(2, 33, ValueDtype::Int4), 2 * (17 + 4));
}

#[test]
fn values_that_are_not_finite_or_too_large_are_refused() {
    for dtype in ValueDtype::ALL {
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let values = [vec![0.5; 33], [vec![0.25; 32], vec![number]].concat()];
            assert_refused(try_create(folder().path(), dtype, &values), ["of row 1 contains NaN"]);
        }
    }
    let created = try_create(folder().path(), ValueDtype::F16, &[vec![65_520.0]]);
    assert_refused(created, ["beyond the f16 range"]);
}

#[test]
fn very_large_very_small_and_zero_values_are_restored() {
    for dtype in [ValueDtype::Int8, ValueDtype::Int4] {
        for largest in [f32::MAX, 70_000.0, 1e-20, f32::MIN_POSITIVE] {
            let value: Vec<f32> = (0..40).map(|i| largest * (i as f32 / 20.0 - 0.975)).collect();
            let bounds = error_bounds(dtype, &value);
            let found = restored(dtype, std::slice::from_ref(&value));
            for ((found, expected), bound) in found.iter().zip(&value).zip(bounds) {
                assert!((found - expected).abs() <= bound, "{dtype}: {found}, {expected}");
            }
            let found = restored(dtype, &[vec![-largest; 3]]);
            assert!(found.iter().all(|number| number.is_finite()), "{dtype}: {found:?}");
        }
    }
    for dtype in ValueDtype::ALL {
        // A group of zeros beside a group of other numbers, and a value of zeros.
        let value = [vec![0.0; 32], vec![3.0; 8]].concat();
        let found = restored(dtype, &[value.clone(), vec![0.0; 40]]);
        assert_eq!(found[..32], value[..32], "{dtype}");
        assert!(found[32..40].iter().all(|number| (number - 3.0).abs() < 0.02), "{dtype}");
        assert!(found[40..].iter().all(|number| number.to_bits() == 0), "{dtype}");
        // The smallest number is rounded to zero, or restored.
        let smallest = f32::from_bits(1);
        assert!(restored(dtype, &[vec![smallest; 5]]).iter().all(|n| (0.0..=smallest).contains(n)));
    }
}

#[test]
fn changes_of_other_entries_leave_values_unchanged() {
    for dtype in ValueDtype::ALL {
        let values = ValueFormat { tokens: 2, width: 37, dtype };
        let format = MemoryFormat { width: 3, normalised: true, values: Some(values) };
        let mut rng = Rng::new(5);
        let ids: Vec<i64> = (0..100).collect();
        let (folder, mut writer) = temporary(format, batch(&mut rng, format, &ids));
        let values_of = |writer: &Writer, ids: &[i64]| {
            let generation = writer.generation();
            let rows: Vec<_> =
                ids.iter().map(|id| generation.row_of(*id).unwrap().unwrap()).collect();
            let values = generation.values(&rows).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let first = values_of(&writer, &ids[..40]);
        writer.update(1, [Ok(batch(&mut rng, format, [40]))].into_iter()).unwrap();
        writer.delete(&[50, 51]).unwrap();
        // Small segments are merged.
        let mut added = Vec::new();
        for id in 100..300 {
            add(&mut writer, batch(&mut rng, format, [id]));
            added.extend(values_of(&writer, &[id]));
        }
        assert!(writer.generation().manifest().segments.len() < 60);
        let added_ids: Vec<i64> = (100..300).collect();
        let check = |writer: &Writer| {
            assert_eq!(values_of(writer, &ids[..40]), first, "{dtype}");
            assert_eq!(values_of(writer, &added_ids), added, "{dtype}");
            assert!(Memory::verify(folder.path()).unwrap().is_empty());
        };
        check(&writer);
        writer.compact(|_| ()).unwrap();
        check(&writer);
        writer.re_encode(Vec::new(), 3, Ok).unwrap();
        check(&writer);
    }
}

#[test]
fn a_changed_number_or_scale_is_detected() {
    let (_temporary, path) = new_path();
    let value: Vec<f32> = (0..50).map(|i| i as f32 / 3.0).collect();
    drop(try_create(&path, ValueDtype::Int4, &[value]).unwrap());
    for name in ["values.safetensors", "scales.safetensors"] {
        let file = path.join("gen-000001").join(name);
        let original = fs::read(&file).unwrap();
        for bit in 0..8 {
            let mut bytes = original.clone();
            *bytes.last_mut().unwrap() ^= 1 << bit;
            fs::write(&file, bytes).unwrap();
            assert_refused(Memory::open(&path), [&format!("{name}: was changed")]);
        }
        fs::write(&file, original).unwrap();
    }
    assert_eq!(Memory::open(&path).unwrap().generation().len(), 1);
}

#[test]
fn a_value_type_has_a_name() {
    for dtype in ValueDtype::ALL {
        assert_eq!(dtype.name().parse::<ValueDtype>().unwrap(), dtype);
    }
    let error = "int2".parse::<ValueDtype>().unwrap_err().to_string();
    assert_eq!(error, "a value type is int2, but must be f16, int8 or int4");
}
