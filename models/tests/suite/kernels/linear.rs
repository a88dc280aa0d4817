//! Linear layers and feed-forward blocks.

use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::*;

use super::input;

#[test]
fn single_and_stacked_linear_layers_have_correct_gradients() -> Result<()> {
    let (x, w, b) = (input(&[2, 3, 4], 1), input(&[5, 4], 2), input(&[5], 3));
    check_gradients(&[x.clone(), w.clone()], |t| Ok(linear(&t[0], &t[1], None)?))?;
    check_gradients(&[x.clone(), w.clone(), b.clone()], |t| {
        Ok(linear(&t[0], &t[1], Some(&t[2]))?)
    })?;
    check_gradients(&[x, w, b, input(&[3, 4], 4), input(&[2, 4], 5), input(&[2], 6)], |t| {
        let layers = [
            LinearParameters::new(&t[1], Some(&t[2])),
            LinearParameters::new(&t[3], None),
            LinearParameters::new(&t[4], Some(&t[5])),
        ];
        Ok(stacked_linear(&t[0], &layers)?)
    })
}

#[test]
fn feed_forward_blocks_have_correct_gradients() -> Result<()> {
    let inputs =
        [input(&[3, 4], 1), input(&[6, 4], 2), input(&[6], 3), input(&[5, 6], 4), input(&[5], 5)];
    for f in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        check_gradients(&inputs, |t| Ok(feed_forward(&t[0], (&t[1], &t[2]), (&t[3], &t[4]), f)?))?;
    }
    Ok(())
}
