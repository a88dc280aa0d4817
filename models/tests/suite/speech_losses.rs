//! Compares the CTC and transducer losses with PyTorch, with the sum over all paths of small
//! lattices, with recursions in the log domain, and with finite differences.

use std::ops::Range;

use candle_core::{DType, Device, Tensor, Var};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder};
use engram_models::speech::AlignedTargets;
use engram_models::speech::ctc::{ctc_loss, is_feasible};
use engram_models::speech::transducer::transducer_loss;

use super::reference::{self, DTYPES, assert_same_for_any_threads, integers, lengths, tensors};

/// Irregular numbers between -`size` and `size`.
fn numbers(count: usize, size: f64) -> Vec<f64> {
    reference::numbers(count, 0).into_iter().map(|number| size * number).collect()
}

type Loss = fn(&Tensor, AlignedTargets) -> candle_core::Result<Tensor>;

fn aligned(lengths: &[usize], targets: &[&[u32]], blank: u32) -> AlignedTargets {
    let targets = targets.iter().map(|target| target.to_vec()).collect();
    AlignedTargets { lengths: lengths.to_vec(), targets, blank }
}

/// Returns the losses and the gradient of their weighted sum.
fn run(
    (logits, classes, dtype): (&[f64], usize, DType),
    weights: &[f64],
    loss: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let rows = logits.len() / classes;
    let x = Tensor::from_slice(logits, (rows, classes), &Device::Cpu)?.to_dtype(dtype)?;
    let x = Var::from_tensor(&x)?;
    let losses = loss(x.as_tensor())?;
    let weights = Tensor::from_slice(weights, weights.len(), &Device::Cpu)?.to_dtype(dtype)?;
    let gradients = (&losses * weights)?.sum_all()?.backward()?;
    let gradient = match gradients.get(x.as_tensor()) {
        Some(gradient) => gradient.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?,
        None => vec![0.0; logits.len()],
    };
    Ok((losses.to_dtype(DType::F64)?.to_vec1()?, gradient))
}

fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_near = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(is_near || found == expected, "{what}, number {i}: {found}, {expected}");
    }
}

/// `tests/reference/ctc.py` and `transducer.py` create the fixtures.
#[test]
fn the_losses_equal_torch_and_torchaudio() -> Result<()> {
    let check = |loss: Loss, name: &str, file: &str, cases: &[(DType, f64)]| -> Result<()> {
        let tensors = tensors(name, file)?;
        for (classes, (dtype, tolerance)) in
            [5, 40].into_iter().flat_map(|classes| cases.iter().map(move |case| (classes, *case)))
        {
            let tensor = |name: &str| &tensors[&format!("{classes}.{name}")];
            let list =
                |name: &str| tensor(name).to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
            let lengths = lengths(tensor("lengths"))?;
            let targets = reference::sequences(tensor("targets"), tensor("target_lengths"))?;
            let blank = integers(tensor("blank"))?[0];
            let options = AlignedTargets { lengths, targets, blank };
            let (logits, weights) = (list("logits")?, list("weights")?);
            let (losses, gradient) =
                run((&logits, classes, dtype), &weights, |x| loss(x, options))?;
            assert_near(&losses, &list("losses")?, tolerance, name);
            assert_near(&gradient, &list("gradient")?, tolerance, name);
        }
        Ok(())
    };
    check(ctc_loss, "ctc", "expected.safetensors", &[(DType::F32, 1e-5), (DType::F64, 1e-6)])?;
    // torchaudio computes in f32.
    let cases = [(DType::F32, 1e-4), (DType::F64, 1e-4)];
    check(transducer_loss, "transducer", "losses.safetensors", &cases)
}

/// Returns the log-softmax of each row.
fn log_softmax(logits: &[f64], classes: usize) -> Vec<f64> {
    let rows = logits.chunks(classes).flat_map(|row| {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = top + row.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
        // A fully masked row stays masked.
        row.iter().map(move |v| if top == f64::NEG_INFINITY { top } else { v - total })
    });
    rows.collect()
}

/// Returns the labels of a path over frames: merges repeats, then removes blanks.
pub fn labels_of_path(path: &[u32], blank: u32) -> Vec<u32> {
    let mut path = path.to_vec();
    path.dedup();
    path.retain(|class| *class != blank);
    path
}

/// Every sequence of `length` classes.
pub fn sequences(length: usize, classes: usize) -> impl Iterator<Item = Vec<u32>> {
    (0..classes.pow(length as u32)).map(move |mut number| {
        let mut next = || {
            let class = number % classes;
            number /= classes;
            class as u32
        };
        (0..length).map(|_| next()).collect()
    })
}

fn ctc_of_all_paths(logits: &[f64], classes: usize, target: &[u32], blank: u32) -> f64 {
    let rows = log_softmax(logits, classes);
    let mut total = 0.0;
    for path in sequences(logits.len() / classes, classes) {
        if labels_of_path(&path, blank) == target {
            let steps = path.iter().enumerate().map(|(t, c)| rows[t * classes + *c as usize]);
            total += steps.sum::<f64>().exp();
        }
    }
    -total.ln()
}

fn transducer_of_all_paths(logits: &[f64], classes: usize, target: &[u32], blank: u32) -> f64 {
    let rows = log_softmax(logits, classes);
    let width = target.len() + 1;
    let frames = logits.len() / classes / width;
    let mut total = 0.0;
    // A path is a sequence of blanks (0) and labels (1) that ends with a blank.
    for path in sequences(frames + target.len(), 2) {
        if path.iter().filter(|step| **step == 1).count() != target.len() || path.last() == Some(&1)
        {
            continue;
        }
        let (mut t, mut u, mut log_probability) = (0, 0, 0.0);
        for step in path {
            let class = if step == 0 { blank } else { target[u] };
            log_probability += rows[(t * width + u) * classes + class as usize];
            if step == 0 { t += 1 } else { u += 1 }
        }
        total += log_probability.exp();
    }
    -total.ln()
}

/// Checks values and gradients against the sum over all paths, differentiated numerically in f64.
fn assert_equals_sum_over_paths(
    (logits, classes): (&[f64], usize),
    what: &str,
    loss: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
    all_paths: impl Fn(&[f64]) -> f64,
) -> Result<()> {
    let expected = all_paths(logits);
    assert!(expected.is_finite());
    let mut differences = Vec::new();
    for i in 0..logits.len() {
        let loss_at = |step: f64| {
            let mut shifted = logits.to_vec();
            shifted[i] += step;
            all_paths(&shifted)
        };
        differences.push(0.7 * (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5);
    }
    for (dtype, loss_tolerance, gradient_tolerance) in
        [(DType::F32, 2e-6, 2e-6), (DType::F64, 1e-13, 1e-8)]
    {
        let (losses, gradient) = run((logits, classes, dtype), &[0.7], &loss)?;
        assert_near(&losses, &[expected], loss_tolerance, what);
        assert_near(&gradient, &differences, gradient_tolerance, what);
    }
    Ok(())
}

#[test]
fn both_losses_are_sums_over_all_paths() -> Result<()> {
    let targets: [&[u32]; 9] =
        [&[], &[0], &[2], &[2, 2], &[0, 2], &[2, 0, 2], &[0, 0, 2], &[0, 3, 2], &[3, 3, 3]];
    for (frames, target) in (1..=5).flat_map(|frames| targets.map(|target| (frames, target))) {
        let what = format!("{frames} frames, {target:?}");
        if is_feasible(frames, target) {
            let logits = numbers(frames * 4, 2.0);
            assert_equals_sum_over_paths(
                (&logits, 4),
                &format!("CTC, {what}"),
                |x| ctc_loss(x, aligned(&[frames], &[target], 1)),
                |x| ctc_of_all_paths(x, 4, target, 1),
            )?;
        }
        let logits = numbers(frames * (target.len() + 1) * 4, 2.0);
        assert_equals_sum_over_paths(
            (&logits, 4),
            &format!("transducer, {what}"),
            |x| transducer_loss(x, aligned(&[frames], &[target], 1)),
            |x| transducer_of_all_paths(x, 4, target, 1),
        )?;
    }
    Ok(())
}

/// Every CTC path belongs to exactly one target.
#[test]
fn the_probabilities_of_all_targets_sum_to_1() -> Result<()> {
    for dtype in DTYPES {
        for frames in 1..=5 {
            let targets: Vec<Vec<u32>> = (0..=frames).flat_map(|n| sequences(n, 3)).collect();
            let targets: Vec<_> =
                targets.into_iter().filter(|target| !target.contains(&2)).collect();
            let logits = numbers(frames * 3, 3.0).repeat(targets.len());
            let options =
                AlignedTargets { lengths: vec![frames; targets.len()], targets, blank: 2 };
            let count = options.targets.len();
            let infeasible = options.targets.iter().filter(|it| !is_feasible(frames, it)).count();
            let loss = |x: &Tensor| ctc_loss(x, options.clone());
            let (losses, _) = run((&logits, 3, dtype), &vec![1.0; count], loss)?;
            assert_eq!(losses.iter().filter(|loss| loss.is_infinite()).count(), infeasible);
            let total: f64 = losses.iter().map(|loss| (-loss).exp()).sum();
            assert!((total - 1.0).abs() < 1e-6, "{frames} frames: {total}");
        }
    }
    Ok(())
}

#[test]
fn gradients_equal_finite_differences() -> Result<()> {
    let targets: [&[u32]; 4] = [&[1, 1, 3], &[], &[0, 3], &[3]];
    let input: (Vec<f64>, &[usize]) = (numbers(14 * 4, 2.0), &[14, 4]);
    check_gradients(&[input], |t| Ok(ctc_loss(&t[0], aligned(&[6, 2, 5, 1], &targets, 2))?))?;
    // A clip has frames * (labels + 1) rows: 2 * 4 + 2 * 1 + 3 * 3 + 1 * 2.
    let input: (Vec<f64>, &[usize]) = (numbers(21 * 4, 2.0), &[21, 4]);
    let options = aligned(&[2, 2, 3, 1], &targets, 2);
    check_gradients(&[input], |t| Ok(transducer_loss(&t[0], options.clone())?))
}

/// `log(e^a + e^b)`
fn log_add(a: f64, b: f64) -> f64 {
    let top = a.max(b);
    if top == f64::NEG_INFINITY { top } else { top + (-(a - b).abs()).exp().ln_1p() }
}

/// The textbook recursion in the log domain.
fn ctc_in_log_domain(logits: &[f64], classes: usize, target: &[u32], blank: u32) -> f64 {
    let rows = log_softmax(logits, classes);
    let states: Vec<u32> =
        std::iter::once(blank).chain(target.iter().flat_map(|label| [*label, blank])).collect();
    let mut alpha = vec![f64::NEG_INFINITY; states.len()];
    alpha[0] = 0.0;
    for (t, row) in rows.chunks(classes).enumerate() {
        let last = alpha.clone();
        for s in 0..states.len() {
            let mut sum = last[s];
            if s > 0 && !(t == 0 && s > 1) {
                sum = log_add(sum, last[s - 1]);
            }
            if s > 1 && states[s] != blank && states[s] != states[s - 2] {
                sum = log_add(sum, last[s - 2]);
            }
            alpha[s] = sum + row[states[s] as usize];
        }
    }
    let end = alpha.len() - 1;
    -if end == 0 { alpha[0] } else { log_add(alpha[end], alpha[end - 1]) }
}

fn transducer_in_log_domain(logits: &[f64], classes: usize, target: &[u32], blank: u32) -> f64 {
    let rows = log_softmax(logits, classes);
    let width = target.len() + 1;
    let nodes = rows.len() / classes;
    let mut alpha = vec![f64::NEG_INFINITY; nodes];
    alpha[0] = 0.0;
    for i in 0..nodes {
        if i >= width {
            let from = i - width;
            alpha[i] = log_add(alpha[i], alpha[from] + rows[from * classes + blank as usize]);
        }
        if i % width > 0 {
            let label = target[i % width - 1] as usize;
            alpha[i] = log_add(alpha[i], alpha[i - 1] + rows[(i - 1) * classes + label]);
        }
    }
    -(alpha[nodes - 1] + rows[(nodes - 1) * classes + blank as usize])
}

/// Checks 2000 frames, with flat logits and with peaked logits whose path probabilities underflow
/// in f64.
#[test]
fn the_losses_of_long_clips_are_accurate() -> Result<()> {
    let classes = 24;
    let target: Vec<u32> = (0..300).map(|i| (i * i % 23 + 1) as u32).collect();
    assert!(target.windows(2).any(|pair| pair[0] == pair[1]));
    let short: Vec<u32> = target[..20].to_vec();
    for size in [0.5, 5.0, 100.0, 3000.0] {
        let logits = numbers(2000 * classes, size);
        // Rounded to f32, so that only the arithmetic differs.
        let logits: Vec<f64> = logits.into_iter().map(|v| f64::from(v as f32)).collect();
        let run_ctc = |dtype| {
            let options = aligned(&[2000], &[&target], 0);
            run((&logits, classes, dtype), &[1.0], |x| ctc_loss(x, options.clone()))
        };
        let rows = &logits[..90 * 21 * classes];
        let run_transducer = |dtype| {
            let options = aligned(&[90], &[&short], 0);
            run((rows, classes, dtype), &[1.0], |x| transducer_loss(x, options.clone()))
        };
        let ctc = ctc_in_log_domain(&logits, classes, &target, 0);
        let transducer = transducer_in_log_domain(rows, classes, &short, 0);
        for (expected, exact, fused) in [
            (ctc, run_ctc(DType::F64)?, run_ctc(DType::F32)?),
            (transducer, run_transducer(DType::F64)?, run_transducer(DType::F32)?),
        ] {
            assert_near(&exact.0, &[expected], 1e-12, "the loss in f64");
            assert_near(&fused.0, &[expected], 2e-7, "the loss in f32");
            assert_near(&fused.1, &exact.1, 1e-5, "the gradient");
            let rows = fused.1.chunks(classes).map(|row| row.iter().sum::<f64>().abs());
            assert!(rows.fold(0.0, f64::max) < 1e-5, "a row's gradient sums to 0");
        }
    }
    Ok(())
}

#[test]
fn feasible_targets_have_enough_frames() {
    for (lowest, target) in
        [(1, &[][..]), (1, &[3]), (2, &[3, 4]), (3, &[3, 3]), (8, &[1, 1, 1, 2, 2])]
    {
        assert!(is_feasible(lowest, target) && !is_feasible(lowest - 1, target), "{target:?}");
    }
}

/// Asserts that only clip `own`, whose logits are in `range`, has a path and a gradient, and that
/// they are the same as without the other clips.
fn assert_one_path(
    loss: Loss,
    (logits, dtype): (&[f64], DType),
    clips: &AlignedTargets,
    (own, range): (usize, Range<usize>),
) -> Result<()> {
    let alone = aligned(&[clips.lengths[own]], &[&clips.targets[own]], clips.blank);
    for upstream in [1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let mut weights = vec![upstream; clips.lengths.len()];
        weights[own] = 0.3;
        let (losses, gradient) = run((logits, 3, dtype), &weights, |x| loss(x, clips.clone()))?;
        let own_logits = (&logits[range.clone()], 3, dtype);
        let (own_loss, own_gradient) = run(own_logits, &[0.3], |x| loss(x, alone.clone()))?;
        let mut expected = vec![f64::INFINITY; losses.len()];
        expected[own] = own_loss[0];
        assert_eq!(losses, expected);
        assert_eq!(gradient[range.clone()], own_gradient);
        let mut others = gradient[..range.start].iter().chain(&gradient[range.end..]);
        assert!(others.all(|partial| *partial == 0.0));
        assert!(own_gradient.iter().any(|partial| *partial != 0.0));
    }
    Ok(())
}

/// A clip without a path has infinite loss and zero gradient for any upstream gradient. It does not
/// affect other clips.
#[test]
fn clips_without_a_path_have_infinite_loss_and_zero_gradient() -> Result<()> {
    let infinity = f64::INFINITY;
    let mut logits = numbers(10 * 3, 2.0);
    // The label of the last clip is masked in all of its frames.
    for row in 7..10 {
        logits[row * 3 + 2] = -infinity;
    }
    for dtype in DTYPES {
        let targets: [&[u32]; 5] = [&[1, 1], &[], &[2], &[1, 2, 1, 2], &[2]];
        let clips = aligned(&[2, 0, 2, 3, 3], &targets, 0);
        assert_one_path(ctc_loss, (&logits, dtype), &clips, (2, 6..12))?;
        // The clips have 0 * 3, 2 * 2 and 3 * 2 rows. The label of the last clip is masked.
        let mut logits = logits.clone();
        (4..10).for_each(|row| logits[row * 3 + 2] = -infinity);
        let clips = aligned(&[0, 2, 3], &[&[1, 2], &[1], &[2]], 0);
        assert_one_path(transducer_loss, (&logits, dtype), &clips, (1, 0..12))?;
        // All clips are without frames, so there are no logits and no paths.
        let nothing = |x: &Tensor| ctc_loss(x, aligned(&[0, 0], &[&[], &[1]], 0));
        let empty = Tensor::zeros((0, 3), dtype, &Device::Cpu)?;
        assert!(nothing(&empty)?.to_dtype(DType::F64)?.to_vec1::<f64>()? == [infinity; 2]);
        assert_eq!(ctc_loss(&empty, aligned(&[], &[], 0))?.dims(), [0]);
        let (losses, gradient) =
            run((&logits[..6], 3, dtype), &[1.0], |x| ctc_loss(x, aligned(&[2], &[&[1, 1]], 0)))?;
        assert!(losses == [infinity] && gradient == [0.0; 6]);
    }
    Ok(())
}

/// Loss and gradient are the same with masked classes (minus infinity) and without these classes.
#[test]
fn masked_classes_do_not_change_losses_and_gradients() -> Result<()> {
    let (rows, masked) = (12, -f64::INFINITY);
    let unmasked_logits = numbers(rows * 3, 2.0);
    let masked_logits: Vec<f64> =
        unmasked_logits.chunks(3).flat_map(|row| [row[0], row[1], masked, row[2]]).collect();
    let losses: [(Loss, [usize; 2]); 2] = [(ctc_loss, [8, 4]), (transducer_loss, [2, 2])];
    for (loss, dtype) in losses.into_iter().flat_map(|loss| DTYPES.map(|dtype| (loss, dtype))) {
        let loss = |x: &Tensor, target| loss.0(x, aligned(&loss.1, &[target, &[1]], 0));
        // The transducer's clips have 2 * 4 and 2 * 2 rows.
        let expected = run((&unmasked_logits, 3, dtype), &[1.0, 2.0], |x| loss(x, &[2, 1, 1]))?;
        let found = run((&masked_logits, 4, dtype), &[1.0, 2.0], |x| loss(x, &[3, 1, 1]))?;
        assert_near(&found.0, &expected.0, 1e-6, "losses");
        let unmasked: Vec<f64> =
            found.1.chunks(4).flat_map(|row| [row[0], row[1], row[3]]).collect();
        assert_near(&unmasked, &expected.1, 1e-6, "gradient");
        assert!(found.1.chunks(4).all(|row| row[2] == 0.0), "{dtype:?}: a masked class");
        // A finite mask value, in place of the first clip's label.
        let lowest: Vec<f64> = masked_logits.iter().map(|v| v.max(f64::from(f32::MIN))).collect();
        let found = run((&lowest, 4, dtype), &[1.0, 2.0], |x| loss(x, &[2, 1, 1]))?;
        assert_eq!(found.0[0], f64::INFINITY);
        assert_near(&found.0[1..], &expected.0[1..], 1e-6, "the other clip");
        assert!(found.1[..32].iter().all(|partial| *partial == 0.0));
    }
    // A fully masked row: no CTC path, but the transducer has paths around it.
    let mut rows = numbers(6 * 3, 2.0);
    rows[3..6].fill(masked);
    for dtype in DTYPES {
        let ctc_of = |x: &Tensor| ctc_loss(x, aligned(&[6], &[&[1]], 0));
        let (losses, gradient) = run((&rows, 3, dtype), &[1.0], ctc_of)?;
        assert!(losses == [f64::INFINITY] && gradient == [0.0; 18]);
        let transducer_of = |x: &Tensor| transducer_loss(x, aligned(&[3], &[&[1]], 0));
        let (losses, gradient) = run((&rows, 3, dtype), &[1.0], transducer_of)?;
        // The masked row 1 is frame 0 after the label, so the label is emitted in a later frame.
        assert_near(&losses, &[transducer_of_all_paths(&rows, 3, &[1], 0)], 1e-6, "the loss");
        assert!(gradient.iter().all(|partial| partial.is_finite()));
        assert!(gradient[6..].iter().all(|partial| *partial != 0.0));
        assert_eq!(gradient[3..6], [0.0; 3]);
    }
    Ok(())
}

/// NaN or infinite logits give NaN loss in their own clip and do not affect other clips.
#[test]
fn nan_logits_affect_only_their_own_clip() -> Result<()> {
    for invalid in [f64::NAN, f64::INFINITY] {
        for dtype in DTYPES {
            let mut logits = numbers(6 * 3, 2.0);
            logits[4] = invalid;
            let loss = |x: &Tensor| ctc_loss(x, aligned(&[3, 3], &[&[1], &[2]], 0));
            let (losses, gradient) = run((&logits, 3, dtype), &[1.0, 1.0], loss)?;
            assert!(losses[0].is_nan() && losses[1].is_finite(), "{losses:?}");
            assert!(gradient[..9].iter().all(|partial| *partial == 0.0));
            assert!(gradient[9..].iter().all(|partial| *partial != 0.0));
        }
    }
    Ok(())
}

/// Buffers hold values of an earlier step. Clips without a path must clear them.
#[test]
fn buffers_are_overwritten_and_added_to() -> Result<()> {
    let builder = ParameterBuilder::on_cpu(5);
    let logits = builder.get("logits", &[18, 4], Init::Normal(2.0))?;
    let parameters = builder.finish()?;
    let mut gradients = Gradients::new(&parameters);
    let loss_of = |feasible: bool| -> Result<Tensor> {
        let target: &[u32] = if feasible { &[1] } else { &[1, 2, 3, 1] };
        let ctc = ctc_loss(&logits, aligned(&[3, 15], &[target, &[3, 3]], 0))?;
        let transducer = transducer_loss(&logits, aligned(&[6], &[&[1, 2]], 0))?;
        let finite = ctc.narrow(0, usize::from(!feasible), if feasible { 2 } else { 1 })?;
        Ok(((finite.sum_all()? * 0.5)? + transducer.sum_all()?)?)
    };
    let mut accumulated = |loss: &Tensor| -> Result<Vec<f32>> {
        gradients.backward(loss)?;
        Ok(gradients.by_name("logits").expect("a gradient").to_vec())
    };
    let once = accumulated(&loss_of(true)?)?;
    let twice = accumulated(&loss_of(true)?)?;
    assert!(once.iter().zip(&twice).all(|(once, twice)| (2.0 * once - twice).abs() < 1e-6));
    let with_others = accumulated(&loss_of(false)?)?;
    gradients.clear();
    gradients.backward(&loss_of(false)?)?;
    let alone = gradients.by_name("logits").expect("a gradient").to_vec();
    let mut sums = twice.iter().zip(&alone).zip(&with_others);
    assert!(sums.all(|((twice, alone), sum)| (twice + alone - sum).abs() < 1e-6));
    gradients.clear();
    gradients
        .backward(&ctc_loss(&logits, aligned(&[3, 15], &[&[1, 2, 3, 1], &[3]], 0))?.sum_all()?)?;
    let only = gradients.by_name("logits").expect("a gradient");
    assert!(only[..12].iter().all(|partial| *partial == 0.0));
    assert!(only[12..].iter().all(|partial| *partial != 0.0));
    Ok(())
}

#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let logits = numbers(1300 * 70, 4.0);
    let target: Vec<u32> = (0..40).map(|i| i * 7 % 69 + 1).collect();
    assert_same_for_any_threads(|| {
        let clips = aligned(&[700, 1, 299, 300], &[&target, &[5], &target, &[]], 0);
        let weights = [1.0, -2.0, 0.3, 5.0];
        let ctc = run((&logits, 70, DType::F32), &weights, |x| ctc_loss(x, clips))?;
        // The clips have 19 * 41 and 521 * 1 rows.
        let clips = aligned(&[19, 521], &[&target, &[]], 0);
        let run_transducer = |x: &Tensor| transducer_loss(x, clips);
        Ok((ctc, run((&logits, 70, DType::F32), &[0.3, 5.0], run_transducer)?))
    });
}

#[test]
fn mismatched_inputs_are_errors() -> Result<()> {
    for dtype in DTYPES {
        let x = Tensor::zeros((6, 4), dtype, &Device::Cpu)?;
        let ctc = |options| ctc_loss(&x, options).map(|_| ()).map_err(|e| e.to_string());
        let transducer =
            |options| transducer_loss(&x, options).map(|_| ()).map_err(|e| e.to_string());
        assert!(ctc(aligned(&[4, 2], &[&[1], &[2]], 0)).is_ok());
        assert!(transducer(aligned(&[2, 2], &[&[1], &[]], 0)).is_ok());
        for (result, name, expected) in [
            (ctc(aligned(&[4, 3], &[&[1], &[2]], 0)), "CTC", "6 rows"),
            (ctc(aligned(&[4, usize::MAX], &[&[1], &[2]], 0)), "CTC", "6 rows"),
            (ctc(aligned(&[6], &[&[1], &[2]], 0)), "CTC", "1 clips but 2 targets"),
            (ctc(aligned(&[4, 2], &[&[1], &[4]], 0)), "CTC", "label 4"),
            (ctc(aligned(&[4, 2], &[&[1], &[2, 0]], 0)), "CTC", "label 0"),
            (ctc(aligned(&[4, 2], &[&[1], &[2]], 4)), "CTC", "blank 4"),
            (ctc(aligned(&[], &[], 0)), "CTC", "6 rows"),
            (transducer(aligned(&[2, 3], &[&[1], &[]], 0)), "transducer", "6 rows"),
            (transducer(aligned(&[usize::MAX, 2], &[&[1], &[2]], 0)), "transducer", "6 rows"),
        ] {
            let error = result.unwrap_err();
            assert!(error.contains(expected) && error.contains(name), "{error}");
        }
        let flat = Tensor::zeros(6, dtype, &Device::Cpu)?;
        assert!(ctc_loss(&flat, aligned(&[6], &[&[1]], 0)).is_err());
        assert!(transducer_loss(&flat, aligned(&[3], &[&[1]], 0)).is_err());
        // Constant logits: no graph is built.
        let losses = ctc_loss(&x, aligned(&[4, 2], &[&[1], &[2]], 0))?;
        assert!(losses.to_dtype(DType::F64)?.to_vec1::<f64>()?.iter().all(|loss| loss.is_finite()));
    }
    Ok(())
}
