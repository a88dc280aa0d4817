//! Recomputation: blocks whose backward pass runs them again give the same gradients.
//! `compute.rs` checks all model families.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Shape, Tensor};
use engram_models::finite_difference::check_gradients;
use engram_models::gradients::Gradients;
use engram_models::kernels::{Activation, Mode, activation, linear, residual, softmax};
use engram_models::packed::PackedTokens;
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_models::recompute::{Recompute, recompute};
use engram_models::text_encoder::TextEncoderConfig;
use engram_models::{ModelError, Result};

use super::reference::{self, bits, waves};

/// Two layers. The second layer and the bias of the first use ordinary candle operations.
#[derive(Clone)]
struct Block {
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
}

impl Block {
    fn new(builder: &ParameterBuilder) -> Result<Self> {
        let parameter = |name: &str, shape: &[usize]| builder.get(name, shape, Init::Normal(0.5));
        Ok(Self {
            weight: parameter("weight", &[6, 6])?,
            bias: parameter("bias", &[6])?,
            scale: parameter("scale", &[6])?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = linear(x, &self.weight, None)?.broadcast_add(&self.bias)?;
        let hidden = activation(&hidden, Activation::Gelu)?.broadcast_mul(&self.scale)?;
        Ok(residual(x, &linear(&hidden, &self.weight, Some(&self.bias))?, None)?)
    }
}

fn input(rows: usize) -> Result<Tensor> {
    waves(&[rows, 6], 0.7, DType::F32)
}

/// A stack of `blocks` blocks below a trainable table, and its loss with or without recomputation.
fn stack(
    blocks: usize,
    trainable_input: bool,
) -> Result<(Parameters, impl Fn(bool) -> Result<Tensor>)> {
    let builder = ParameterBuilder::on_cpu(3);
    let layers = (0..blocks).map(|i| Block::new(&builder.pp(i)));
    let layers = layers.collect::<Result<Vec<Block>>>()?;
    let x = match trainable_input {
        true => builder.get("input", &[5, 6], Init::Normal(1.0))?,
        false => input(5)?,
    };
    let loss = move |recomputed: bool| {
        let mut x = x.clone();
        for layer in &layers {
            let layer = layer.clone();
            x = match recomputed {
                true => recompute(&[&x], move |inputs| layer.forward(&inputs[0]))?,
                false => layer.forward(&x)?,
            };
        }
        Ok(softmax(&x)?.sqr()?.sum_all()?)
    };
    Ok((builder.finish()?, loss))
}

#[test]
fn recomputed_blocks_give_the_same_gradients() -> Result<()> {
    // Without a trainable input, only parameters inside the blocks get gradients.
    for trainable_input in [false, true] {
        let (parameters, loss) = stack(3, trainable_input)?;
        let [mut expected, mut found] = [Gradients::new(&parameters), Gradients::new(&parameters)];
        // The second round adds to the gradients of the first, as micro-batches do.
        for _ in 0..2 {
            expected.backward(&loss(false)?)?;
            found.backward(&loss(true)?)?;
            assert_eq!(found.faults(), []);
            assert_eq!(bits(&found), bits(&expected), "trainable input: {trainable_input}");
        }
    }
    Ok(())
}

/// Four inputs: a frozen one, two that need gradients, and one that the block does not use.
#[test]
fn gradients_of_many_inputs_equal_finite_differences() -> Result<()> {
    let shapes: [&[usize]; 4] = [&[2, 3], &[4, 3], &[4], &[2]];
    let inputs = shapes.map(|shape| reference::input(shape, shape.len() as u64));
    check_gradients(&inputs[..3], |t| {
        recompute(&[&t[0], &t[1], &t[2]], |t| Ok(linear(&t[0], &t[1], Some(&t[2]))?))
    })?;
    check_gradients(&inputs, |t| {
        let x = (&t[0] * 2.0)?;
        let unused = (&t[3] * 3.0)?;
        let frozen = t[0].detach();
        let y = recompute(&[&frozen, &x, &t[1], &unused, &t[2]], |t| {
            Ok(linear(&t[1], &t[2], Some(&t[4]))?)
        })?;
        // The unused input has another use.
        let ones = Tensor::ones((2, 4), y.dtype(), y.device())?;
        Ok((y + ones.broadcast_mul(&t[3].reshape((2, 1))?)?)?)
    })
}

#[test]
fn a_block_runs_once_without_gradients_and_twice_with_gradients() -> Result<()> {
    let runs = Arc::new(AtomicUsize::new(0));
    let block = {
        let runs = runs.clone();
        move |t: &[Tensor]| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(activation(&t[0], Activation::Tanh)?)
        }
    };
    let x = input(2)?;
    assert!(!recompute(&[&x], block.clone())?.track_op());
    assert_eq!(runs.swap(0, Ordering::Relaxed), 1);
    let x = candle_core::Var::from_tensor(&x)?;
    let gradients = recompute(&[x.as_tensor()], block)?.sum_all()?.backward()?;
    assert!(gradients.get(x.as_tensor()).is_some());
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    Ok(())
}

/// candle's own backward pass cannot return them.
#[test]
fn gradients_of_parameters_inside_a_block_need_buffers() -> Result<()> {
    let (_, loss) = stack(1, false)?;
    let error = loss(true)?.backward().unwrap_err().to_string();
    assert!(error.contains("`Gradients::backward`"), "{error}");
    Ok(())
}

/// The identity. Its backward pass fails, or panics.
struct Broken {
    panics: bool,
}

impl CustomOp1 for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        assert!(!self.panics, "the backward pass panics");
        candle_core::bail!("the backward pass fails")
    }
}

#[test]
fn after_a_failure_in_a_block_gradients_are_discarded_and_buffers_work() -> Result<()> {
    let (parameters, loss) = stack(2, true)?;
    let mut gradients = Gradients::new(&parameters);
    gradients.backward(&loss(true)?)?;
    let expected = bits(&gradients);
    let weight = parameters.get("0.weight").ok_or(ModelError::BadInput("no weight".into()))?;
    for panics in [false, true] {
        let weight = weight.tensor().clone();
        let failing = recompute(&[&input(5)?], move |t| {
            let y = linear(&t[0], &weight, None)?.apply_op1(Broken { panics })?;
            Ok(linear(&y, &weight, None)?)
        })?;
        let failing = (failing.sum_all()? + loss(true)?)?;
        let result = catch_unwind(AssertUnwindSafe(|| gradients.backward(&failing)));
        assert!(!matches!(result, Ok(Ok(()))), "panics: {panics}");
        assert!(bits(&gradients).is_empty());
        gradients.backward(&loss(true)?)?;
        assert_eq!(bits(&gradients), expected, "panics: {panics}");
    }
    Ok(())
}

/// In half precision and f64, blocks run as candle operations.
#[test]
fn recomputed_composites_give_the_same_gradients() -> Result<()> {
    for dtype in [DType::F64, DType::BF16] {
        let builder = ParameterBuilder::on_cpu(3);
        let weight = builder.get("weight", &[6, 6], Init::Normal(0.5))?;
        let parameters = builder.finish()?;
        let mut found = Vec::new();
        for recomputed in [false, true] {
            let (x, weight) = (input(4)?.to_dtype(dtype)?, weight.clone());
            let block = move |t: &[Tensor]| {
                Ok(activation(&linear(&t[0], &weight.to_dtype(dtype)?, None)?, Activation::Gelu)?)
            };
            let y = if recomputed { recompute(&[&x], block)? } else { block(&[x])? };
            let mut gradients = Gradients::new(&parameters);
            gradients.backward(&y.to_dtype(DType::F32)?.sqr()?.sum_all()?)?;
            found.push(bits(&gradients));
        }
        assert_eq!(found[0], found[1], "{dtype:?}");
    }
    Ok(())
}

/// Without dropout, all blocks of DeBERTa use the same embeddings of relative positions, twice.
#[test]
fn blocks_that_share_inputs_add_their_gradients_in_the_same_order() -> Result<()> {
    let config = r#"{"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 24,
        "hidden_act": "gelu", "initializer_range": 0.15, "model_type": "deberta-v2",
        "type_vocab_size": 0, "relative_attention": true, "position_buckets": 8,
        "max_relative_positions": -1, "pos_att_type": "p2c|c2p", "share_att_key": true,
        "norm_rel_ebd": "layer_norm", "position_biased_input": false}"#;
    let builder = ParameterBuilder::on_cpu(1);
    let encoder = TextEncoderConfig::parse(config, "config")?.build(&builder)?;
    let tokens = PackedTokens::new(&[vec![1, 5, 7, 2, 9, 8, 2], vec![1, 9, 2]]);
    let mut gradients = Gradients::new(&builder.finish()?);
    let mut gradient_bits = |recompute| -> Result<Vec<u32>> {
        let states = encoder.encode(&tokens, &Mode::evaluate().recompute(recompute))?;
        gradients.clear();
        gradients.backward(&states.sqr()?.sum_all()?)?;
        Ok(bits(&gradients))
    };
    assert_eq!(gradient_bits(Recompute::None)?, gradient_bits(Recompute::Block)?);
    Ok(())
}
