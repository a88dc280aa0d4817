//! Embedding tables in parts have the bytes of dense parameters, for any placement and any number of
//! ranks.

mod threads;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::gradients::{GradientSet, Gradients};
use engram_models::kernels::{embedding_sum, linear};
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_train::distributed::sharded_tables::placement::{Placement, Strategy, Table};
use engram_train::distributed::sharded_tables::{PartTensor, ShardedTables, TableGradientSum};
use engram_train::distributed::{Collective, MicroBatchSum, Ranks};
use engram_train::optimiser::settings::{AdamwSettings, RuleSettings};
use engram_train::optimiser::{Optimiser, RuleSet, StepSize};
use engram_train::{Result, TrainError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use threads::on_ranks;

const STEPS: usize = 4;
const MICRO_BATCHES: usize = 6;
/// The micro-batch that has no examples in step 2.
const EMPTY: usize = 3;
/// Words have more values than a block of the gradient norm. No micro-batch uses the last table.
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

/// The ids of a micro-batch for each table. Tags are used by some micro-batches, but not in step 1.
fn ids(step: usize, micro_batch: usize) -> Vec<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64((step * MICRO_BATCHES + micro_batch) as u64);
    if (step, micro_batch) == (2, EMPTY) {
        return vec![Vec::new(); TABLES.len()];
    }
    let mut draw = |table: usize, count: usize| -> Vec<u32> {
        let rows = TABLES[table].1 as u32;
        // Some ids occur several times, and in many micro-batches.
        let id = |i| if i % 4 == 0 { i as u32 % 3 } else { rng.random_range(0..rows) };
        (0..count).map(id).collect()
    };
    let words = draw(0, 20 + 10 * micro_batch);
    let tags = if step != 1 && micro_batch % 2 == 1 { draw(1, 9) } else { Vec::new() };
    let places = if micro_batch > 2 { draw(2, 6) } else { Vec::new() };
    vec![words, tags, places, Vec::new()]
}

/// The operations with which a model uses the rows of a table.
#[derive(Clone, Copy)]
enum Operations {
    /// The fused lookup, once for each table.
    Fused,
    /// candle's operations, twice for each table.
    Candle,
}

/// The loss of a micro-batch. For each table: a matrix of rows, and the row of each token.
fn loss(
    tables: &[(Tensor, Arc<[u32]>)],
    weight: &Tensor,
    operations: Operations,
) -> candle_core::Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F32, &Device::Cpu)?;
    for (table, (rows, tokens)) in tables.iter().enumerate() {
        if tokens.is_empty() {
            continue;
        }
        let x = match operations {
            Operations::Fused => embedding_sum(&[(rows, tokens.clone())])?,
            Operations::Candle => {
                let indices = Tensor::from_slice(tokens, tokens.len(), &Device::Cpu)?;
                let x = rows.index_select(&indices, 0)?;
                (x.tanh()? * rows.index_select(&indices.flip(&[0])?, 0)?)?
            }
        };
        let x = if TABLES[table].2 == 7 { linear(&x, weight, None)?.tanh()? } else { x };
        let factors: Vec<f32> = (0..x.elem_count()).map(|i| (1.3 * i as f32).cos()).collect();
        sum =
            (sum + (x.sqr()? * Tensor::from_vec(factors, x.shape(), &Device::Cpu)?)?.sum_all()?)?;
    }
    Ok(sum)
}

fn step_size(step: usize, norm: f64) -> StepSize {
    // Each step is clipped.
    StepSize { learning_rate: 0.1 / (step + 1) as f64, gradient_scale: 0.2 / norm }
}

/// The bits of the tables and the weight after training, and of the norm in each step.
#[derive(PartialEq)]
struct Trained {
    tables: Vec<Vec<u32>>,
    weight: Vec<u32>,
    norms: Vec<u64>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn weight(builder: &ParameterBuilder) -> Tensor {
    builder.get("weight", &[5, 7], Init::Uniform(0.5)).expect("a weight")
}

fn rules(rule: &RuleSettings) -> RuleSet {
    RuleSet { default: rule.clone(), by_pattern: Vec::new() }
}

fn optimiser(rule: &RuleSettings, parameters: &Parameters) -> Optimiser {
    Optimiser::new(&rules(rule), parameters)
}

/// Trains with dense tables on one rank.
fn train_dense(rule: &RuleSettings, operations: Operations) -> Trained {
    let builder = ParameterBuilder::on_cpu(1);
    let mut tables = Vec::new();
    for (name, rows, width, _) in TABLES {
        tables.push(builder.get(name, &[rows, width], Init::Zeros).expect("a table"));
    }
    let weight = weight(&builder);
    let parameters = builder.finish().expect("parameters");
    for (table, parameter) in parameters.iter().take(TABLES.len()).enumerate() {
        let values = initial(table, 0..TABLES[table].1);
        parameter.update(&mut |target| target.copy_from_slice(&values)).expect("values");
    }
    let rates: Vec<f64> = TABLES.iter().map(|table| table.3).chain([1.0]).collect();
    let mut gradients = Gradients::new(&parameters);
    let (mut optimiser, mut spare) = (optimiser(rule, &parameters), Vec::new());
    let mut norms = Vec::new();
    for step in 0..STEPS {
        gradients.clear();
        let mut sum = MicroBatchSum::new(MICRO_BATCHES);
        for micro_batch in 0..MICRO_BATCHES {
            let ids = ids(step, micro_batch).into_iter().map(Arc::from);
            let used: Vec<(Tensor, Arc<[u32]>)> = tables.iter().cloned().zip(ids).collect();
            sum.make_room(&mut gradients, &mut spare);
            if !used[0].1.is_empty() {
                let loss = loss(&used, &weight, operations).expect("a loss");
                gradients.backward(&loss).expect("gradients");
            }
            sum.add(micro_batch, &mut gradients, &mut spare).expect("a sum");
        }
        let norm = gradients.global_norm();
        norms.push(norm.to_bits());
        let size = step_size(step, norm);
        optimiser.step(&parameters, &gradients, &rates, size).expect("a step");
    }
    let mut values = parameters.iter().map(|parameter| bits(&parameter.to_vec().expect("values")));
    let tables = values.by_ref().take(TABLES.len()).collect();
    Trained { tables, weight: values.next().expect("a weight"), norms }
}

/// Adds the gradients of the weight over all ranks.
fn reduce(
    ranks: &Ranks,
    collective: &dyn Collective,
    sum: MicroBatchSum,
    gradients: &mut Gradients,
    spare: &mut Vec<GradientSet>,
) {
    let written = serde_json::to_vec(&sum.written(gradients)).expect("JSON");
    let all = collective.gather(written).expect("all ranks").into_iter();
    let all: Vec<_> = all.map(|written| serde_json::from_slice(&written).expect("JSON")).collect();
    sum.reduce(ranks, &all, gradients, spare).expect("a sum over ranks");
}

/// Trains with tables in parts, and returns the result of each rank.
fn train_in_parts(
    size: usize,
    placement: &Placement,
    rule: &RuleSettings,
    operations: Operations,
) -> Vec<Trained> {
    on_ranks(size, |collective| {
        let ranks = Ranks::new(collective.clone());
        let builder = ParameterBuilder::on_cpu(1);
        let weight = weight(&builder);
        let parameters = builder.finish().expect("parameters");
        let mut gradients = Gradients::new(&parameters);
        let (mut optimiser, mut spare) = (optimiser(rule, &parameters), Vec::new());
        let mut tables =
            ShardedTables::new(tables(), placement, &rules(rule), &ranks, |table, rows| {
                Ok(initial(table, rows))
            })
            .expect("tables");
        let mut norms = Vec::new();
        // Ranks 0 and 1 of four compute two micro-batches.
        let own = (0..MICRO_BATCHES).filter(|micro_batch| match size {
            4 => [0, 0, 1, 1, 2, 3][*micro_batch] == ranks.rank(),
            size => micro_batch * size / MICRO_BATCHES == ranks.rank(),
        });
        let own: Vec<usize> = own.collect();
        for step in 0..STEPS {
            let of_micro_batches: Vec<_> = own.iter().map(|own| ids(step, *own)).collect();
            let all = (0..TABLES.len()).map(|table| {
                of_micro_batches.iter().flat_map(|ids| ids[table].iter().copied()).collect()
            });
            let all: Vec<Vec<u32>> = all.collect();
            let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
            let looked_up = tables.lookup(&all).expect("rows");
            gradients.clear();
            let mut sum = MicroBatchSum::new(MICRO_BATCHES);
            let mut table_sum = TableGradientSum::new(MICRO_BATCHES);
            for (micro_batch, ids) in own.iter().zip(&of_micro_batches) {
                let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
                let rows = looked_up.select(&ids).expect("rows");
                let used = (0..TABLES.len()).map(|table| rows.of(table));
                let used: Vec<_> =
                    used.map(|rows| (rows.rows().clone(), rows.positions())).collect();
                sum.make_room(&mut gradients, &mut spare);
                if !ids[0].is_empty() {
                    let loss = loss(&used, &weight, operations).expect("a loss");
                    gradients.backward(&loss).expect("gradients");
                }
                sum.add(*micro_batch, &mut gradients, &mut spare).expect("a sum");
                table_sum.add(*micro_batch, &rows);
            }
            reduce(&ranks, &*collective, sum, &mut gradients, &mut spare);
            let table_gradients = tables.reduce(table_sum).expect("a sum over ranks");
            let squares = tables.sums_of_squares(&table_gradients).expect("squares");
            let squares: Vec<(usize, f64)> = squares.into_iter().enumerate().collect();
            let norm = gradients.global_norm_with(&squares);
            norms.push(norm.to_bits());
            let size = step_size(step, norm);
            tables.step(&table_gradients, size).expect("a step");
            optimiser.step(&parameters, &gradients, &[1.0], size).expect("a step");
        }
        let all = TABLES.map(|(_, rows, ..)| (0..rows as u32).collect::<Vec<_>>());
        let values = tables.lookup(&all.each_ref().map(Vec::as_slice)).expect("all rows");
        Trained {
            tables: (0..TABLES.len()).map(|table| bits(values.values(table))).collect(),
            weight: bits(&parameters.iter().next().expect("a weight").to_vec().expect("values")),
            norms,
        }
    })
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

fn expect_equal(expected: &Trained, found: &[Trained], what: &str) {
    for (rank, found) in found.iter().enumerate() {
        for (table, (expected, found)) in expected.tables.iter().zip(&found.tables).enumerate() {
            let name = TABLES[table].0;
            assert!(expected == found, "{what}, rank {rank}: table {name} differs");
        }
        assert!(expected.norms == found.norms, "{what}, rank {rank}: a norm differs");
        assert!(expected == found, "{what}, rank {rank}: the weight differs");
    }
}

#[test]
fn tables_in_parts_have_the_bytes_of_dense_tables() {
    let adamw = AdamwSettings { weight_decay: 0.1, ..AdamwSettings::default() };
    let adamw = RuleSettings::Adamw(adamw);
    for operations in [Operations::Fused, Operations::Candle] {
        let expected = train_dense(&adamw, operations);
        assert_eq!(expected.tables[3], bits(&initial(3, 0..5)));
        assert_ne!(expected.tables[1], bits(&initial(1, 0..11)));
        for placement in placements() {
            for size in [1, 2, 4] {
                let found = train_in_parts(size, &placement, &adamw, operations);
                expect_equal(&expected, &found, &format!("{size} ranks, {placement:?}"));
            }
        }
    }
    for kind in ["lion", "rmsprop", "sgd"] {
        let rule = RuleSettings::of_kind(kind).expect("a rule");
        let expected = train_dense(&rule, Operations::Fused);
        let found = train_in_parts(2, &placements()[5], &rule, Operations::Fused);
        expect_equal(&expected, &found, kind);
    }
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
