//! Gradients in buffers, for several numbers of threads.

use std::sync::Arc;

use candle_core::Tensor;
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::gradients::Gradients;
use engram_models::kernels::*;
use engram_models::params::{Init, ParameterBuilder};

use super::input;
use crate::reference::{assert_same_for_any_threads, bits, values};

/// A network of several kernels. Returns its loss as a function.
fn network(builder: &ParameterBuilder) -> Result<impl Fn() -> Result<Tensor>> {
    let table = builder.get("table", &[30, 32], Init::Normal(1.0))?;
    let parameter = |name: &str, shape: &[usize]| builder.get(name, shape, Init::Normal(0.2));
    let (wq, wk, wv) =
        (parameter("q", &[32, 32])?, parameter("k", &[32, 32])?, parameter("v", &[32, 32])?);
    let (w1, b1, w2, b2) = (
        parameter("w1", &[64, 32])?,
        parameter("b1", &[64])?,
        parameter("w2", &[32, 64])?,
        parameter("b2", &[32])?,
    );
    let (norm_weight, norm_bias) = (parameter("scale", &[32])?, parameter("shift", &[32])?);
    let (conv_weight, conv_bias) =
        (parameter("windows", &[32, 3, 3, 32])?, parameter("shifts", &[32])?);
    Ok(move || {
        let ids: Arc<[u32]> = (0..300u32).map(|i| i * 7 % 30).collect();
        let x = embedding_sum(&[(&table, ids.clone())])?;
        let qkv = stacked_linear(
            &x,
            &[
                LinearParameters::new(&wq, None),
                LinearParameters::new(&wk, None),
                LinearParameters::new(&wv, None),
            ],
        )?;
        let segments = Segments::packed(&[100, 150, 50]);
        let dropout = Some(Dropout::new(0.1, 1));
        let options = Attention { num_heads: 4, scale: 0.3, causal: false, segments, dropout };
        let y = self_attention(&qkv, None, &options)?;
        let layer_norm = Norm { weight: &norm_weight, bias: Some(&norm_bias), epsilon: 1e-5 };
        let x = residual_norm(&y, &x, layer_norm, dropout)?;
        let y = feed_forward(&x, (&w1, &b1), (&w2, &b2), Activation::Gelu)?;
        let x = residual_norm(&y, &x, layer_norm, dropout)?;
        let grid = x.reshape((12, 5, 5, 32))?;
        let same_size = Convolution { stride: 1, padding: 1, relu: true };
        let y = convolution(&grid, &conv_weight, &conv_bias, same_size)?;
        let x = residual_norm(&y.reshape((300, 32))?, &x, layer_norm, dropout)?;
        let logits = linear(&x, &table, None)?;
        let options = CrossEntropy { targets: ids, ignore_index: None, label_smoothing: 0.0 };
        Ok(cross_entropy(&logits, options)?.mean_all()?)
    })
}

#[test]
fn buffers_accumulate_the_gradients_that_candle_computes() -> Result<()> {
    let builder = ParameterBuilder::on_cpu(5);
    let loss = network(&builder)?;
    let parameters = builder.finish()?;
    let candle_gradients = loss()?.backward()?;
    let mut gradients = Gradients::new(&parameters);
    // The second round adds to the first; the third comes after the gradients are cleared.
    for round in [1.0, 2.0, 1.0] {
        gradients.backward(&loss()?)?;
        for parameter in parameters.iter() {
            let name = parameter.name();
            let expected = values(candle_gradients.get(parameter.tensor()).expect("a gradient"))?;
            let actual = gradients.by_name(name).expect("a gradient");
            for (actual, expected) in actual.iter().zip(expected) {
                let expected = expected * round;
                assert!((actual - expected).abs() < 1e-5, "{name}: {actual} {expected}");
            }
        }
        if round == 2.0 {
            gradients.clear();
        }
    }
    assert_eq!(gradients.faults(), []);
    Ok(())
}

#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    assert_same_for_any_threads(|| {
        let builder = ParameterBuilder::on_cpu(5);
        let loss = network(&builder)?;
        let mut gradients = Gradients::new(&builder.finish()?);
        let loss = loss()?;
        gradients.backward(&loss)?;
        Ok((loss.to_scalar::<f32>()?, bits(&gradients), gradients.global_norm()))
    });
}

/// The checks detect layers that break the gradient: candle's own fused softmax and layer norm
/// (candle 0.11), which its examples use.
#[test]
fn a_broken_gradient_is_detected() -> Result<()> {
    let x = input(&[2, 7], 1);
    let result =
        check_gradients(std::slice::from_ref(&x), |t| Ok(candle_nn::ops::softmax_last_dim(&t[0])?));
    assert!(result.is_err(), "candle's softmax_last_dim has a gradient now: delete this check");
    let result = check_gradients(&[x, input(&[7], 2), input(&[7], 3)], |t| {
        Ok(candle_nn::ops::layer_norm(&t[0], &t[1], &t[2], 1e-5)?)
    });
    assert!(result.is_err(), "candle's layer_norm has a gradient now: delete this check");
    Ok(())
}
