//! Chains of kernels.

use candle_core::Tensor;
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::gradients::Gradients;
use engram_models::kernels::*;
use engram_models::params::{Init, ParameterBuilder};
use engram_models::recompute::Recompute;

use super::{input, random};
use crate::reference::bits;

/// The shapes of the parameters of [`block`].
const SHAPES: [&[usize]; 18] = [
    &[5, 4],
    &[4],
    &[4],
    &[12, 4],
    &[12],
    &[4, 4],
    &[8, 4],
    &[8],
    &[4, 3],
    &[4],
    &[5, 1],
    &[4, 4],
    &[6, 4],
    &[6],
    &[4, 6],
    &[4],
    &[3, 4],
    &[8, 4],
];

/// A block of all chainable kernels: attention, convolution, gated and feed-forward modules. Most
/// values are used by two kernels.
fn block(chain: &mut Chain, t: &[Tensor], mask: Option<Dropout>) {
    let lengths = [3, 2];
    let options =
        |segments| Attention { num_heads: 2, scale: 0.7, causal: false, segments, dropout: mask };
    let norm = Norm { weight: &t[1], bias: Some(&t[2]), epsilon: 1e-5 };
    let x = chain.input(&t[0]);
    let qkv = chain.stacked_linear(x, &[LinearParameters::new(&t[3], Some(&t[4]))]);
    let angles = (0..10).map(|i| (0.7 * i as f32).sin()).collect();
    let angles = Tensor::from_vec(angles, (5, 2), t[0].device()).expect("angles");
    let qkv = chain.rotary(qkv, &angles);
    let y = chain.self_attention(qkv, None, &options(Segments::packed(&lengths)));
    let x = chain.residual_norm(y, x, norm, mask);

    let memory = chain.input(&t[16]);
    let query = chain.stacked_linear(x, &[LinearParameters::new(&t[5], None)]);
    let keys = chain.norm(memory, Norm { bias: None, ..norm });
    let y =
        chain.attention(query, keys, memory, None, &options(Segments::cross(&lengths, &[1, 2])));
    let x = chain.residual(x, y, mask);

    let y = chain.stacked_linear(x, &[LinearParameters::new(&t[6], Some(&t[7]))]);
    let y = chain.glu(y);
    let y = chain.depthwise(y, &t[8], &t[9], &lengths, Windows::over_time(3, 1, 1));
    let y = chain.activation(y, Activation::Silu);
    let weights = chain.input(&t[10]);
    let y = chain.scaled_rows(y, weights);
    let x = chain.scaled_residual(x, 0.5, y, mask);

    let y = chain.stacked_linear(x, &[LinearParameters::new(&t[17], None)]);
    let y = chain.gated(y, Activation::GeluTanh);
    let y = chain.dropout(y, mask);
    let y = chain.stacked_linear(y, &[LinearParameters::new(&t[11], None)]);
    let x = chain.residual(x, y, None);

    let layer = |w: usize, b: usize| LinearParameters::new(&t[w], Some(&t[b]));
    let y = chain.feed_forward(x, layer(12, 13), layer(14, 15), Activation::Gelu);
    chain.residual_norm(y, x, norm, mask);
}

#[test]
fn a_block_of_all_chainable_kernels_has_correct_gradients() -> Result<()> {
    let inputs: Vec<_> = SHAPES.iter().zip(1..).map(|(shape, seed)| input(shape, seed)).collect();
    for mask in [None, Some(Dropout::new(0.3, 8))] {
        check_gradients(&inputs, |t| {
            let mut chain = Chain::new();
            block(&mut chain, t, mask);
            Ok(chain.finish()?)
        })?;
    }
    Ok(())
}

#[test]
fn the_block_has_every_chainable_kernel() {
    let source = include_str!("../../../src/kernels/chain.rs");
    let methods = source.split("    pub fn ").skip(1).filter_map(|text| text.split_once('('));
    let kernels = methods.filter(|(name, rest)| {
        *name != "input"
            && rest.split("->").next().is_some_and(|inputs| inputs.contains("&mut self"))
    });
    let kernels: Vec<&str> = kernels.map(|(name, _)| name).collect();
    assert!(kernels.len() > 10, "{kernels:?}");
    for name in kernels {
        assert!(
            include_str!("chain.rs").contains(&format!(".{name}(")),
            "{name} is not in the block"
        );
    }
}

/// Without a graph, a chain runs its kernels one by one.
#[test]
fn a_chain_without_a_graph_has_the_same_output() -> Result<()> {
    let parameters: Vec<Tensor> =
        SHAPES.iter().zip(1..).map(|(shape, seed)| random(shape, seed)).collect::<Result<_>>()?;
    let output = |t: &[Tensor]| -> Result<Vec<Vec<f32>>> {
        let mut chain = Chain::new();
        block(&mut chain, t, Some(Dropout::new(0.3, 8)));
        Ok(chain.finish()?.to_vec2()?)
    };
    let detached: Vec<Tensor> = parameters.iter().map(Tensor::detach).collect();
    assert!(parameters[0].track_op());
    assert_eq!(output(&parameters)?, output(&detached)?);
    Ok(())
}

/// The values that the backward pass computes again are the same.
#[test]
fn a_chain_that_computes_cheap_values_again_has_the_same_gradients() -> Result<()> {
    let builder = ParameterBuilder::on_cpu(3);
    let parameters: Vec<Tensor> = SHAPES
        .iter()
        .enumerate()
        .map(|(i, shape)| builder.get(&i.to_string(), shape, Init::Normal(1.0)))
        .collect::<Result<_>>()?;
    let mut gradients = Gradients::new(&builder.finish()?);
    let mut run = |recompute: Recompute| -> Result<Vec<u32>> {
        let mut chain = Mode::evaluate().recompute(recompute).chain();
        block(&mut chain, &parameters, Some(Dropout::new(0.3, 8)));
        gradients.clear();
        gradients.backward(&chain.finish()?.sqr()?.sum_all()?)?;
        assert_eq!(gradients.faults(), []);
        Ok(bits(&gradients))
    };
    assert_eq!(run(Recompute::None)?, run(Recompute::Selective)?);
    Ok(())
}
