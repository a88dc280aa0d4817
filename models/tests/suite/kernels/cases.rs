//! One case or more for every operation that `engram_models::kernels` exports.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::*;

use super::{assert_near, numbers, run};

type Run = dyn Fn(&[Tensor]) -> Result<Tensor>;

/// An operation with small inputs.
pub struct Case {
    /// The name of the exported function.
    pub name: &'static str,
    /// The values and the shape of each input.
    pub inputs: Vec<(Vec<f64>, Vec<usize>)>,
    pub run: Box<Run>,
}

fn case(
    name: &'static str,
    shapes: &[&[usize]],
    run: impl Fn(&[Tensor]) -> candle_core::Result<Tensor> + 'static,
) -> Case {
    let input =
        |(shape, seed): (&&[usize], u64)| (numbers(shape.iter().product(), seed), shape.to_vec());
    let inputs = shapes.iter().zip(1..).map(input).collect();
    Case { name, inputs, run: Box::new(move |inputs| Ok(run(inputs)?)) }
}

const ACTIVATIONS: [Activation; 7] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
];

/// All cases. No hidden value is so close to 0 that half precision changes its sign.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for f in ACTIVATIONS {
        cases.push(case("activation", &[&[3, 5]], move |t| activation(&t[0], f)));
        cases.push(case("bias_activation", &[&[3, 5], &[5]], move |t| {
            bias_activation(&t[0], &t[1], f)
        }));
        cases.push(case("gated", &[&[3, 8]], move |t| gated(&t[0], f)));
        cases.push(case("feed_forward", &[&[3, 5], &[6, 5], &[6], &[4, 6], &[4]], move |t| {
            feed_forward(&t[0], (&t[1], &t[2]), (&t[3], &t[4]), f)
        }));
    }
    cases.push(case("glu", &[&[3, 8]], |t| glu(&t[0])));
    cases.push(case("linear", &[&[2, 3, 4], &[5, 4]], |t| linear(&t[0], &t[1], None)));
    cases.push(case("linear", &[&[3, 4], &[5, 4], &[5]], |t| linear(&t[0], &t[1], Some(&t[2]))));
    cases.push(case("stacked_linear", &[&[3, 4], &[5, 4], &[5], &[3, 4], &[2, 4], &[2]], |t| {
        let layers = [
            LinearParameters::new(&t[1], Some(&t[2])),
            LinearParameters::new(&t[3], None),
            LinearParameters::new(&t[4], Some(&t[5])),
        ];
        stacked_linear(&t[0], &layers)
    }));
    cases.push(case("softmax", &[&[2, 3, 19]], |t| softmax(&t[0])));
    cases.push(case("scaled_rows", &[&[3, 5], &[3, 1]], |t| scaled_rows(&t[0], &t[1])));
    cases.push(case("lstm", &[&[7, 12], &[12, 3], &[3, 3], &[3, 3]], |t| {
        lstm(&t[0], &t[1], (&t[2], &t[3]), &[2, 4, 1])
    }));
    for f in [Activation::Tanh, Activation::Relu, Activation::Silu] {
        cases.push(case("pairwise", &[&[5, 3], &[4, 3]], move |t| {
            pairwise(&t[0], &t[1], f, &[(3, 2), (2, 1), (0, 1)])
        }));
    }
    let spans: Arc<[Span]> =
        [(0, 2), (1, 4), (6, 1)].map(|(start, length)| Span { start, length }).into();
    cases.push(case("span_mean", &[&[7, 3]], move |t| span_mean(&t[0], spans.clone())));
    let ids: [Arc<[u32]>; 2] = [[1, 4, 1, 0].into(), [0, 1, 2, 3].into()];
    cases.push(case("embedding_sum", &[&[5, 3], &[4, 3]], move |t| {
        embedding_sum(&[(&t[0], ids[0].clone()), (&t[1], ids[1].clone())])
    }));
    for (ignore_index, label_smoothing) in [(None, 0.0), (Some(9), 0.0), (Some(0), 0.1)] {
        let targets = [3, 0, 9, 18].into();
        let options = CrossEntropy { targets, ignore_index, label_smoothing };
        cases.push(case("cross_entropy", &[&[4, 19]], move |t| {
            cross_entropy(&t[0], options.clone())
        }));
    }
    cases.push(case("rotary", &[&[5, 24]], |t| {
        let angles = (0..20).map(|i| (0.7 * i as f32).sin()).collect();
        rotary(&t[0], &Tensor::from_vec(angles, (5, 4), t[0].device())?)
    }));
    for mask in [None, Some(Dropout::new(0.3, 5))] {
        cases.push(case("dropout", &[&[3, 5]], move |t| dropout(&t[0], mask)));
        cases.push(case("residual", &[&[3, 5], &[3, 5]], move |t| residual(&t[0], &t[1], mask)));
        cases.extend(norms(mask));
        cases.extend(attentions(mask));
    }
    for (stride, padding, relu) in [(1, 1, true), (2, 0, false)] {
        let options = Convolution { stride, padding, relu };
        cases.push(case("convolution", &[&[2, 5, 4, 2], &[3, 3, 3, 2], &[3]], move |t| {
            convolution(&t[0], &t[1], &t[2], options)
        }));
    }
    let windows = Windows::square(3, 2, 1);
    cases.push(case("unfold", &[&[7, 4, 2]], move |t| unfold(&t[0], &[4, 3], windows)));
    cases.push(case("depthwise", &[&[7, 4, 2], &[2, 9], &[2]], move |t| {
        depthwise(&t[0], &t[1], &t[2], &[4, 3], windows)
    }));
    cases
}

fn norms(mask: Option<Dropout>) -> [Case; 4] {
    [
        case("norm", &[&[3, 20], &[20]], |t| {
            norm(&t[0], Norm { weight: &t[1], bias: None, epsilon: 1e-5 })
        }),
        case("norm", &[&[3, 20], &[20], &[20]], |t| {
            norm(&t[0], Norm { weight: &t[1], bias: Some(&t[2]), epsilon: 1e-5 })
        }),
        case("residual_norm", &[&[3, 20], &[3, 20], &[20], &[20]], move |t| {
            let norm = Norm { weight: &t[2], bias: Some(&t[3]), epsilon: 1e-5 };
            residual_norm(&t[0], &t[1], norm, mask)
        }),
        case("residual_norm", &[&[3, 20], &[3, 20], &[20]], move |t| {
            let norm = Norm { weight: &t[2], bias: None, epsilon: 1e-5 };
            residual_norm(&t[0], &t[1], norm, mask)
        }),
    ]
}

fn attentions(dropout: Option<Dropout>) -> [Case; 4] {
    let options =
        |segments| Attention { num_heads: 2, scale: 0.7, causal: false, segments, dropout };
    let packed = options(Segments::packed(&[4, 1, 3]));
    let window = options(Segments::packed(&[4, 1, 3]).with_window(1));
    let cross = Attention { causal: true, ..options(Segments::cross(&[3, 2], &[4, 5])) };
    let segments = Segments::packed(&[4, 1, 3]);
    let rows = [0, 0, 1, 2, 3, 4, 4, 4, 5].into();
    let positions = Disentangled { num_heads: 2, scale: 0.7, segments, rows };
    [
        case("self_attention", &[&[8, 12], &[2, 4, 5]], move |t| {
            self_attention(&t[0], Some(AttentionBias::Shared(&t[1])), &packed)
        }),
        case("self_attention", &[&[8, 12]], move |t| self_attention(&t[0], None, &window)),
        case("attention", &[&[5, 6], &[9, 6], &[9, 6]], move |t| {
            attention(&t[0], &t[1], &t[2], None, &cross)
        }),
        case("disentangled_bias", &[&[8, 12], &[7, 4], &[7, 4]], move |t| {
            disentangled_bias(&t[0], Some(&t[1]), Some(&t[2]), &positions)
        }),
    ]
}

#[test]
fn every_exported_operation_has_a_case() {
    let source = include_str!("../../../src/kernels/mod.rs");
    let exports = source.split(';').filter_map(|item| item.trim().strip_prefix("pub use "));
    let names = exports.filter_map(|export| export.split_once("::")).flat_map(|(_, names)| {
        names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
    });
    let is_operation =
        |name: &&str| !name.starts_with(char::is_uppercase) && !name.ends_with("_profile");
    let operations: Vec<&str> = names.filter(is_operation).collect();
    assert!(operations.len() > 20, "{operations:?}");
    let cases = all();
    for name in operations {
        assert!(cases.iter().any(|case| case.name == name), "{name} has no case");
    }
}

/// `check_gradients` also compares the fused kernel with its device path or composite in f32.
#[test]
fn every_operation_has_correct_gradients() -> Result<()> {
    for Case { inputs, run, name } in all() {
        let inputs: Vec<(Vec<f64>, &[usize])> =
            inputs.iter().map(|(values, shape)| (values.clone(), shape.as_slice())).collect();
        if let Err(error) = check_gradients(&inputs, &run) {
            panic!("{name}: {error}");
        }
    }
    Ok(())
}

/// Without the fused kernels, values and gradients in bf16 differ from f32 by a few roundings, on
/// inputs that bf16 represents exactly.
#[test]
fn operations_in_bf16_are_close_to_the_fused_kernels() -> Result<()> {
    let tolerance = 8.0 * 2f64.powi(-9);
    for Case { name, inputs, run: operation } in all() {
        let expected = run(&inputs, (DType::BF16, DType::F32), &operation)?;
        let found = run(&inputs, (DType::BF16, DType::BF16), &operation)?;
        assert_near(&found, &expected, tolerance, name);
    }
    Ok(())
}
