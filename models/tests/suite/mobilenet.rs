//! Compares a small graph with candle's convolutions and the published MobileNetV2 with stored
//! embeddings, and checks that invalid graphs are rejected.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::mobilenet::{MobileNet, OPS_FILE, WEIGHTS_FILE};
use engram_models::weights;
use serde_json::{Value, json};

/// A graph for images of 5 x 4 pixels: a strided convolution, a depthwise convolution, a residual
/// sum, the pool, and a classifier of two classes.
fn graph() -> Value {
    json!({
        "input_tensor": 0,
        "input_shape": [1, 5, 4, 3],
        "ops": [
            {"op": "CONV_2D", "inputs": [0], "outputs": [1], "out_shape": [1, 3, 2, 2], "stride": 2,
             "padding": "SAME", "activation": "relu6", "tensor": "a", "weight_shape": [2, 3, 3, 3]},
            {"op": "DEPTHWISE_CONV_2D", "inputs": [1], "outputs": [2], "out_shape": [1, 3, 2, 2],
             "stride": 1, "padding": "SAME", "activation": "none", "tensor": "b",
             "weight_shape": [2, 1, 3, 3]},
            {"op": "ADD", "inputs": [2, 1], "outputs": [3], "out_shape": [1, 3, 2, 2]},
            {"op": "AVERAGE_POOL_2D", "inputs": [3], "outputs": [4], "out_shape": [1, 1, 1, 2]},
            {"op": "CONV_2D", "inputs": [4], "outputs": [5], "out_shape": [1, 1, 1, 2], "stride": 1,
             "padding": "SAME", "activation": "none", "tensor": "c", "weight_shape": [2, 2, 1, 1]},
            {"op": "SOFTMAX", "inputs": [5], "outputs": [6], "out_shape": [1, 2]}
        ]
    })
}

/// Returns a tensor of sine values.
fn wave(shape: &[usize], phase: f64) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (1.7 * i as f64 + phase).sin() as f32).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

fn parameters() -> Result<Vec<(&'static str, Tensor)>> {
    Ok(vec![
        ("a.weight", wave(&[2, 3, 3, 3], 0.1)?),
        ("a.bias", wave(&[2], 0.2)?),
        ("b.weight", wave(&[2, 1, 3, 3], 0.3)?),
        ("b.bias", wave(&[2], 0.4)?),
        ("c.weight", wave(&[2, 2, 1, 1], 0.5)?),
        ("c.bias", wave(&[2], 0.6)?),
    ])
}

fn read(folder: &Path, graph: &Value) -> Result<MobileNet> {
    let (ops, file) = (folder.join(OPS_FILE), folder.join(WEIGHTS_FILE));
    std::fs::write(&ops, graph.to_string()).expect("a file");
    weights::save(&file, parameters()?.iter().map(|(name, tensor)| (*name, tensor)))?;
    MobileNet::read(&ops, &file)
}

/// The small graph against candle's convolutions, with TensorFlow's zero padding.
#[test]
fn a_small_graph_equals_candle_convolutions() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let network = read(folder.path(), &graph())?;
    assert_eq!((network.image_size(), network.embedding_size()), ((5, 4), 2));
    let parameters = parameters()?;
    let parameter = |i: usize| parameters[i].1.clone();
    let images = wave(&[2, 3, 5, 4], 0.7)?;
    let bias = |i: usize| parameter(i).reshape((1, 2, 1, 1));
    // 5 rows with stride 2: one zero on both sides. 4 columns: one zero on the right.
    let padded = images.pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 0, 1)?;
    let a =
        padded.conv2d(&parameter(0), 0, 2, 1, 1)?.broadcast_add(&bias(1)?)?.clamp(0f32, 6f32)?;
    let b = a.conv2d(&parameter(2), 1, 1, 1, 2)?.broadcast_add(&bias(3)?)?;
    let expected = (a + b)?.mean((2, 3))?;
    let actual = network.embed(&images)?;
    let difference = (&actual - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-6, "{difference:e}");
    let logits =
        expected.matmul(&parameter(4).reshape((2, 2))?.t()?)?.broadcast_add(&parameter(5))?;
    let expected = candle_nn::ops::softmax(&logits, 1)?;
    let probabilities = network.class_probabilities(&actual)?.expect("a classifier");
    let difference = (probabilities - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-6, "{difference:e}");
    // An image alone, on any number of threads, gives the same bits.
    let alone = network.embed(&images.narrow(0, 1, 1)?)?.flatten_all()?.to_vec1::<f32>()?;
    assert_eq!(alone, actual.to_vec2::<f32>()?[1]);
    assert!(network.embed(&images.narrow(1, 0, 2)?).is_err());
    Ok(())
}

#[test]
fn invalid_graphs_are_errors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (pointer, value, reason) in [
        ("/ops/0/op", json!("MAX_POOL_2D"), "operation 0 (MAX_POOL_2D): is not supported"),
        ("/ops/0/out_shape", json!([1, 2, 2, 2]), "operation 0 (CONV_2D): gives"),
        ("/ops/0/stride", json!(0), "no `stride`"),
        ("/ops/0/padding", json!("FULL"), "padding"),
        ("/ops/0/activation", json!("tanh"), "unsupported activation `tanh`"),
        ("/ops/0/weight_shape", json!([2, 4, 3, 3]), "weights of shape"),
        ("/ops/1/inputs", json!([9]), "reads a tensor that no earlier operation computes"),
        ("/ops/2/inputs", json!([2, 0]), "adds"),
        ("/ops/2/inputs", json!([2]), "has too few inputs"),
        ("/ops/3/op", json!("ADD"), "too few inputs"),
        ("/ops/5/op", json!("ADD"), "not supported after the average pool"),
        ("/input_shape", json!([1, 5, 4]), "is not an image shape"),
        ("/input_shape", json!([1, 16384, 16384, 16384]), "is not an image shape"),
        ("/ops", json!([]), "no average pool"),
        ("/ops", json!(7), "not a graph"),
        ("/ops/1/tensor", json!("z"), "z.weight"),
    ] {
        let mut changed = graph();
        *changed.pointer_mut(pointer).expect(pointer) = value;
        let error = read(folder.path(), &changed).expect_err(pointer).to_string();
        assert!(error.contains(reason), "{pointer}: {error}");
    }
}

/// The published network, if `ENGRAM_DATA` names the folder that contains `vision-mobilenet`.
fn published() -> Option<(MobileNet, PathBuf)> {
    let folder = PathBuf::from(std::env::var_os("ENGRAM_DATA")?).join("vision-mobilenet");
    let network = MobileNet::read(&folder.join(OPS_FILE), &folder.join(WEIGHTS_FILE));
    Some((network.expect("the published network"), folder))
}

#[test]
fn the_check_images_give_the_reference_embeddings() -> Result<()> {
    let Some((network, folder)) = published() else {
        let text = b"SKIPPED: set ENGRAM_DATA to the real data to compare MobileNetV2\n";
        std::io::Write::write_all(&mut std::io::stderr(), text).expect("standard error");
        return Ok(());
    };
    let check = folder.join("check");
    let reference =
        candle_core::safetensors::load(check.join("reference.safetensors"), &Device::Cpu)?;
    for name in ["cat", "bird", "grace_hopper", "hot_dog"] {
        let image = image::open(check.join(format!("{name}_224.png"))).expect("an image");
        let pixels = Tensor::from_vec(image.into_rgb8().into_raw(), (224, 224, 3), &Device::Cpu)?;
        let scaled = ((pixels.to_dtype(DType::F32)? - 128.0)? / 128.0)?;
        let images = scaled.permute((2, 0, 1))?.unsqueeze(0)?;
        let embedding = network.embed(&images)?;
        let probabilities = network.class_probabilities(&embedding)?.expect("a classifier");
        for (what, actual) in [("embedding", embedding), ("probs", probabilities)] {
            let expected = &reference[&format!("{name}.{what}")];
            let scale = expected.abs()?.max_all()?.to_scalar::<f32>()?;
            let difference =
                (actual.squeeze(0)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
            println!("{name}: {what} is off by {:.1e} of its largest", difference / scale);
            assert!(difference < 1e-4 * scale, "{name}: {what} is off by {difference:e}");
        }
    }
    Ok(())
}
