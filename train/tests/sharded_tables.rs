//! Embedding tables in parts: gradients, restoring, and wrong use. `embedding_tables` compares them with
//! whole tables.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{Device, Tensor};
use engram_train::distributed::sharded_tables::placement::{Placement, Strategy, Table};
use engram_train::distributed::sharded_tables::{PartTensor, ShardedTables, TableGradientSum};
use engram_train::distributed::{Collective, Ranks};
use engram_train::optimiser::settings::RuleSettings;
use engram_train::optimiser::{RuleSet, StepSize};
use engram_train::{Result, TrainError};

use crate::threads::on_ranks;

const TABLES: [(&str, usize, usize, f64); 4] =
    [("words", 3001, 7, 1.0), ("tags", 11, 4, 0.5), ("places", 40, 7, 1.0), ("unused", 5, 3, 1.0)];

fn tables() -> Vec<Table> {
    let table = |(name, rows, width, rate): (&str, usize, usize, f64)| Table {
        name: name.to_owned(),
        rows,
        width,
        rate,
    };
    TABLES.map(table).to_vec()
}

fn initial(table: usize, rows: Range<usize>) -> Vec<f32> {
    let width = TABLES[table].2;
    let values = rows.start * width..rows.end * width;
    values.map(|i| (0.37 * i as f32 + table as f32).sin() * 0.5).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn rules(rule: &RuleSettings) -> RuleSet {
    RuleSet { default: rule.clone(), by_pattern: Vec::new() }
}

/// Whole tables in three orders, all by row, and the large ones by column.
fn placements() -> Vec<Placement> {
    let strategies = [Strategy::Basic, Strategy::MemoryBalanced, Strategy::MemoryOptimised];
    let mut placements: Vec<_> =
        strategies.map(|strategy| Placement { strategy, ..Placement::default() }).to_vec();
    placements.push(Placement { row_threshold: Some(0), ..Placement::default() });
    placements.push(Placement { column_threshold: Some(20), ..Placement::default() });
    placements.push(Placement {
        strategy: Strategy::MemoryOptimised,
        row_threshold: Some(1000),
        column_threshold: Some(20),
    });
    placements
}

#[test]
fn a_rank_keeps_only_its_parts() {
    // Values, two moments and a gradient, in four equal parts; and a table without a part.
    let table = |rows| Table { name: "t".into(), rows, width: 8, rate: 1.0 };
    let bytes = |row_threshold, column_threshold| {
        on_ranks(4, |rank| {
            let placement = Placement { row_threshold, column_threshold, ..Placement::default() };
            let tables = vec![table(100)];
            let rule = RuleSettings::default();
            let tables = ShardedTables::new(
                tables,
                &placement,
                &rules(&rule),
                &Ranks::new(rank),
                |_, rows| Ok(vec![0.0; rows.len() * 8]),
            );
            tables.and_then(|tables| tables.bytes()).expect("bytes")
        })
    };
    assert_eq!(bytes(Some(0), None), [4 * 4 * 200; 4]);
    assert_eq!(bytes(None, Some(200)), [4 * 4 * 200; 4]);
    assert_eq!(bytes(None, None), [4 * 4 * 800, 0, 0, 0]);
}

/// The loss for the rows of some tokens, `[T, D]`: products of neighbours.
fn neighbours(x: &Tensor) -> candle_core::Result<Tensor> {
    let count = x.dim(0)?;
    (x.narrow(0, 0, count - 1)?.tanh()? * x.narrow(0, 1, count - 1)?)?.sum_all()
}

/// One step of a single table with the losses of these micro-batches, which the ranks take in turn.
fn step_with(
    tables: &mut ShardedTables,
    ranks: &Ranks,
    ids: &[&[u32]],
    learning_rate: f64,
) -> Result<()> {
    let own = || ids.iter().enumerate().filter(|(i, _)| i % ranks.size() == ranks.rank());
    let all: Vec<u32> = own().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let looked_up = tables.lookup(&[&all])?;
    let mut sum = TableGradientSum::new(ids.len());
    for (micro_batch, ids) in own() {
        let rows = looked_up.select(&[ids])?;
        neighbours(&rows.of(0).embed()?).and_then(|loss| loss.backward()).expect("gradients");
        sum.add(micro_batch, &rows);
    }
    let gradients = tables.reduce(sum)?;
    tables.step(&gradients, StepSize { learning_rate, gradient_scale: 1.0 })
}

/// A table of nine rows and four columns.
fn small_table() -> (Vec<Table>, Vec<f32>) {
    let table = Table { name: "t".into(), rows: 9, width: 4, rate: 1.0 };
    (vec![table], (0..9 * 4).map(|i| (i as f32 * 0.7).sin()).collect())
}

/// The rows of values with four columns.
fn rows_of(values: &[f32], rows: Range<usize>) -> Vec<f32> {
    values[rows.start * 4..rows.end * 4].to_vec()
}

fn all_rows(tables: &ShardedTables) -> Result<Vec<f32>> {
    Ok(tables.lookup(&[&[0, 1, 2, 3, 4, 5, 6, 7, 8]])?.values(0).to_vec())
}

const SMALL: [&[u32]; 4] = [&[1, 5, 5, 2], &[8, 1, 0, 8, 8, 3], &[2, 2], &[7, 0, 7]];

/// A step of gradient descent changes each value by its gradient, which central differences in f64
/// confirm.
#[test]
fn gradients_equal_finite_differences() {
    let (table, values) = small_table();
    let total = |values: &[f64]| -> candle_core::Result<f64> {
        let table = Tensor::from_slice(values, (9, 4), &Device::Cpu)?;
        let mut sum = 0.0;
        for ids in SMALL {
            let ids = Tensor::from_slice(ids, ids.len(), &Device::Cpu)?;
            sum += neighbours(&table.index_select(&ids, 0)?)?.to_scalar::<f64>()?;
        }
        Ok(sum)
    };
    let difference = |i: usize| {
        let at = |change: f64| {
            let mut values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            values[i] += change;
            total(&values).expect("a loss")
        };
        (at(1e-5) - at(-1e-5)) / 2e-5
    };
    let expected: Vec<f64> = (0..values.len()).map(difference).collect();
    let rule = toml::from_str("kind = 'sgd'\nmomentum = 0.0\nweight_decay = 0.0").expect("a rule");
    for placement in placements() {
        let found = on_ranks(3, |collective| -> Result<Vec<f32>> {
            let ranks = Ranks::new(collective);
            let initial = |_, rows| Ok(rows_of(&values, rows));
            let mut tables =
                ShardedTables::new(table.clone(), &placement, &rules(&rule), &ranks, initial)?;
            step_with(&mut tables, &ranks, &SMALL, 1.0)?;
            all_rows(&tables)
        });
        for found in found {
            let found = found.expect("values");
            for (i, expected) in expected.iter().enumerate() {
                let gradient = f64::from(values[i] - found[i]);
                assert!((gradient - expected).abs() < 2e-6, "{i}: {gradient}, not {expected}");
            }
        }
    }
}

/// Tables are restored on another number of ranks with another placement.
#[test]
fn restored_tables_take_the_same_steps() {
    let (table, values) = small_table();
    let rule = RuleSettings::default();
    let [by_row, by_column] = [3, 4].map(|i| placements().swap_remove(i));
    let train = |ranks: &Ranks, placement: &Placement, steps: usize| {
        let initial = |_, rows| Ok(rows_of(&values, rows));
        let mut tables =
            ShardedTables::new(table.clone(), placement, &rules(&rule), ranks, initial)?;
        for step in 0..steps {
            step_with(&mut tables, ranks, &SMALL[step..], 0.1)?;
        }
        Ok::<_, TrainError>(tables)
    };
    let expected = train(&Ranks::default(), &by_row, 3).and_then(|tables| all_rows(&tables));
    let expected = expected.expect("values");
    let mut saved = BTreeMap::<&str, Vec<f32>>::new();
    for rank in on_ranks(2, |collective| train(&Ranks::new(collective), &by_row, 2)) {
        let tables = rank.expect("tables");
        assert_eq!(tables.steps(), 2);
        for PartTensor { name, part, values } in tables.state().expect("the state") {
            let all = saved.entry(name).or_insert_with(|| vec![f32::NAN; 9 * 4]);
            let mut values = values.iter();
            for row in part.rows {
                let target = all[row * 4..][part.columns.clone()].iter_mut();
                target.zip(&mut values).for_each(|(target, value)| *target = *value);
            }
        }
    }
    assert_eq!(saved.keys().collect::<Vec<_>>(), [&"first_moment", &"second_moment", &"values"]);
    for found in on_ranks(4, |collective| {
        let ranks = Ranks::new(collective);
        let mut tables = train(&ranks, &by_column, 0)?;
        tables.restore(2, |name, _, rows| Ok(rows_of(&saved[name], rows)))?;
        step_with(&mut tables, &ranks, &SMALL[2..], 0.1)?;
        all_rows(&tables)
    }) {
        assert_eq!(bits(&found.expect("values")), bits(&expected));
    }
}

#[test]
fn wrong_use_is_an_error_with_table_and_id() {
    let rule = RuleSettings::default();
    let new = |ranks: &Ranks, rule: &RuleSettings, missing: usize| {
        ShardedTables::new(tables(), &placements()[3], &rules(rule), ranks, |table, rows| {
            let mut values = initial(table, rows);
            values.truncate(values.len() - missing);
            Ok(values)
        })
    };
    let contains = |error: TrainError, parts: &[&str]| {
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let alone = Ranks::default();
    contains(new(&alone, &rule, 1).unwrap_err(), &["`words`", "21006"]);
    let adafactor = RuleSettings::of_kind("adafactor").expect("a rule");
    contains(new(&alone, &adafactor, 0).unwrap_err(), &["`words`", "whole tables"]);
    let tables = new(&alone, &rule, 0).expect("tables");
    contains(tables.lookup(&[&[], &[3, 11], &[], &[]]).unwrap_err(), &["`tags`", "id 11"]);
    contains(tables.lookup(&[&[]]).unwrap_err(), &["1 lists", "4"]);
    let rows = tables.lookup(&[&[7, 5], &[], &[], &[]]).expect("rows");
    contains(rows.select(&[&[5, 6], &[], &[], &[]]).unwrap_err(), &["`words`", "id 6"]);
    let mut sum = TableGradientSum::new(3);
    sum.add(0, &rows.select(&[&[5], &[], &[], &[]]).expect("rows"));
    contains(tables.reduce(sum).unwrap_err(), &["3 micro-batches"]);

    let errors = on_ranks(2, |collective| {
        let rank = collective.rank();
        let tables = new(&Ranks::new(collective), &rule, 0).expect("tables");
        let ids: &[u32] = if rank == 0 { &[5, 9000] } else { &[5] };
        tables.lookup(&[ids, &[], &[], &[]]).unwrap_err()
    });
    let [error, other] = <[TrainError; 2]>::try_from(errors).expect("two errors");
    contains(error, &["`words`", "id 9000"]);
    assert!(matches!(other, TrainError::Ranks { .. }));
    let errors = on_ranks(2, |collective| {
        let kind = ["adamw", "sgd"][collective.rank()];
        let rule = RuleSettings::of_kind(kind).expect("a rule");
        new(&Ranks::new(collective), &rule, 0).unwrap_err()
    });
    errors.into_iter().for_each(|error| contains(error, &["rank 1", "other embedding tables"]));
}
