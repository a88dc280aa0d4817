//! Convolutions over images and over packed sequences.

use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::kernels::*;

use super::{input, numbers, random};

#[test]
fn convolutions_have_correct_gradients() -> Result<()> {
    let (w, b) = (input(&[3, 3, 3, 2], 2), input(&[3], 3));
    for (stride, padding, relu) in [(1, 0, false), (1, 1, true), (2, 1, false), (3, 2, true)] {
        let windows = Convolution { stride, padding, relu };
        check_gradients(&[input(&[2, 5, 4, 2], 1), w.clone(), b.clone()], |t| {
            Ok(convolution(&t[0], &t[1], &t[2], windows)?)
        })?;
    }
    // More images than are unfolded at a time. Below, a window larger than the image and an input
    // with other channels are errors.
    let windows = Convolution { stride: 2, padding: 0, relu: true };
    check_gradients(&[input(&[37, 3, 3, 2], 1), w, b], |t| {
        Ok(convolution(&t[0], &t[1], &t[2], windows)?)
    })?;
    let (weight, bias) = (random(&[3, 3, 3, 2], 2)?, random(&[3], 3)?);
    assert!(convolution(&random(&[1, 2, 5, 2], 1)?, &weight, &bias, windows).is_err());
    assert!(convolution(&random(&[1, 5, 5, 3], 1)?, &weight, &bias, windows).is_err());
    Ok(())
}

#[test]
fn windows_over_time_have_correct_gradients() -> Result<()> {
    for (size, stride, padding) in [(3, 1, 1), (3, 2, 1), (2, 3, 0), (5, 1, 2), (1, 1, 0)] {
        let windows = Windows::over_time(size, stride, padding);
        // The last sequence is shorter than some windows.
        for lengths in [&[9][..], &[4, 3, 2], &[1, 7, 1]] {
            check_gradients(&[input(&[9, 2], 1)], |t| Ok(unfold(&t[0], lengths, windows)?))?;
            let inputs = [input(&[9, 2], 1), (numbers(2 * size, 2), &[2, size]), input(&[2], 3)];
            check_gradients(&inputs, |t| Ok(depthwise(&t[0], &t[1], &t[2], lengths, windows)?))?;
        }
    }
    let windows = Windows::over_time(3, 1, 0);
    assert_eq!(unfold(&random(&[3, 2], 1)?, &[1, 2], windows)?.dims(), [0, 6]);
    assert!(unfold(&random(&[3, 2], 1)?, &[2, 2], windows).is_err());
    assert!(unfold(&random(&[3, 2], 1)?, &[3], Windows::over_time(3, 0, 0)).is_err());
    Ok(())
}

#[test]
fn windows_over_time_and_width_have_correct_gradients() -> Result<()> {
    let (weight, bias) = (input(&[2, 9], 2), input(&[2], 3));
    for (stride, padding) in [(1, 1), (2, 1), (2, 0), (3, 2)] {
        let windows = Windows::square(3, stride, padding);
        for lengths in [&[7][..], &[4, 3], &[1, 5, 1]] {
            let x = input(&[7, 4, 2], 1);
            check_gradients(std::slice::from_ref(&x), |t| Ok(unfold(&t[0], lengths, windows)?))?;
            check_gradients(&[x, weight.clone(), bias.clone()], |t| {
                Ok(depthwise(&t[0], &t[1], &t[2], lengths, windows)?)
            })?;
        }
    }
    let x = random(&[7, 4, 2], 1)?;
    let windows = Windows::square(3, 2, 1);
    let (weight, bias) = (random(&[2, 9], 2)?, random(&[2], 3)?);
    let output = depthwise(&x, &weight, &bias, &[4, 3], windows)?;
    assert_eq!(output.dims(), [4, 2, 2]);
    assert!(depthwise(&x, &bias, &bias, &[7], windows).is_err());
    assert!(depthwise(&x, &weight, &bias, &[7], Windows::over_time(3, 1, 1)).is_err());
    Ok(())
}
