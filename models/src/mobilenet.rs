//! MobileNetV2 (arXiv 1801.04381) as a frozen image feature extractor.
//!
//! The model is a JSON graph of operations, with a file of weights: the published network of
//! TensorFlow Lite, with folded batch norms. The README in the model's folder describes the fields.
//! The operations run in the order of the graph up to the average pool, whose output is the
//! embedding. The layer after the pool is the classifier. Activations have the layout `[H, W, C]`,
//! so a 1 x 1 convolution is a matrix product. No gradient is computed.

mod convolution;
mod graph;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use crate::error::{ModelError, Result};
use crate::kernels::{linear, softmax};
use crate::weights::Weights;
use convolution::{Convolution, Depthwise};
use graph::{Shape, Step};

/// The file with the graph, in a model's folder.
pub const OPS_FILE: &str = "mobilenet_v2_ops.json";
/// The file with the weights.
pub const WEIGHTS_FILE: &str = "mobilenet_v2_1.0_224.safetensors";

/// The network, frozen.
#[derive(Debug, Clone)]
pub struct MobileNet {
    input: Shape,
    steps: Vec<PlannedStep>,
    /// The index of the value that is the embedding, and the width of the embedding.
    embedding: (usize, usize),
    /// Weight `[classes, width]` and bias; `None` if the graph has no classifier.
    classifier: Option<(Tensor, Tensor)>,
}

/// A step, the indices of its inputs, and the indices of those inputs that no later step needs,
/// which are freed after the step.
#[derive(Debug, Clone)]
struct PlannedStep {
    layer: Layer,
    inputs: Vec<usize>,
    last_uses: Vec<usize>,
}

#[derive(Debug, Clone)]
enum Layer {
    Convolution(Convolution),
    Depthwise(Depthwise),
    Add,
    AveragePool { channels: usize },
}

impl MobileNet {
    /// Reads the graph and its weights.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadConfig`] for a graph with an unsupported operation or
    /// inconsistent shapes. [`ModelError::BadWeights`], [`ModelError::MissingTensor`] and
    /// [`ModelError::ShapeMismatch`] for weights that do not match the graph.
    pub fn read(graph_path: &Path, weights: &Path) -> Result<Self> {
        let graph = graph::read(graph_path)?;
        let weights = Weights::open(weights)?;
        let mut steps = Vec::with_capacity(graph.steps.len());
        for (i, step) in graph.steps.iter().enumerate() {
            let (layer, inputs) = match step {
                Step::Convolution { input, window, tensor } => {
                    (Layer::Convolution(Convolution::load(window, tensor, &weights)?), vec![*input])
                }
                Step::Depthwise { input, window, tensor } => {
                    (Layer::Depthwise(Depthwise::load(window, tensor, &weights)?), vec![*input])
                }
                Step::Add { left, right } => (Layer::Add, vec![*left, *right]),
                Step::AveragePool { input, channels } => {
                    (Layer::AveragePool { channels: *channels }, vec![*input])
                }
            };
            let later = &graph.steps[i + 1..];
            let is_needed_later =
                |value: &usize| later.iter().any(|step| step.inputs().contains(value));
            let mut last_uses: Vec<usize> =
                inputs.iter().copied().filter(|value| !is_needed_later(value)).collect();
            last_uses.dedup();
            steps.push(PlannedStep { layer, inputs, last_uses });
        }
        let width = graph.embedding_width;
        let classifier = match graph.classifier {
            None => None,
            Some((tensor, classes)) => {
                let get = |part: &str, shape: &[usize]| {
                    let name = format!("{tensor}.{part}");
                    weights.get(&name, shape, DType::F32, &Device::Cpu)
                };
                let weight = get("weight", &[classes, width, 1, 1])?.reshape((classes, width))?;
                Some((weight, get("bias", &[classes])?))
            }
        };
        Ok(Self { input: graph.input, embedding: (steps.len(), width), steps, classifier })
    }

    /// Returns the height and width of input images, in pixels.
    pub fn image_size(&self) -> (usize, usize) {
        (self.input.height, self.input.width)
    }

    /// The width `D` of an embedding.
    pub fn embedding_size(&self) -> usize {
        self.embedding.1
    }

    /// Returns the embeddings of images with values from -1 to 1: `[B, 3, H, W]` → `[B, D]`. The
    /// embedding of an image is bit-identical in every batch.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for images of another shape.
    pub fn embed(&self, images: &Tensor) -> Result<Tensor> {
        let Shape { height, width, channels } = self.input;
        let batch = match *images.dims() {
            [batch, c, h, w] if [c, h, w] == [channels, height, width] => batch,
            ref other => {
                return Err(ModelError::BadInput(format!(
                    "images of shape {other:?}; this model takes [B, {channels}, {height}, {width}]"
                )));
            }
        };
        let values = images.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<f32>()?;
        let size = height * width * channels;
        let embeddings: Vec<f32> =
            values.par_chunks(size).flat_map_iter(|image| self.embed_one(image)).collect();
        Ok(Tensor::from_vec(embeddings, (batch, self.embedding.1), &Device::Cpu)?)
    }

    /// Returns the class probabilities: embeddings `[B, D]` → `[B, classes]`. `None` without a
    /// classifier.
    ///
    /// # Errors
    /// [`ModelError::Candle`] for embeddings of another width.
    pub fn class_probabilities(&self, embeddings: &Tensor) -> Result<Option<Tensor>> {
        let Some((weight, bias)) = &self.classifier else { return Ok(None) };
        Ok(Some(softmax(&linear(embeddings, weight, Some(bias))?)?))
    }

    /// Computes the embedding of one image: `[H, W, C]` → `[D]`.
    fn embed_one(&self, image: &[f32]) -> Vec<f32> {
        let mut values: Vec<Vec<f32>> = vec![image.to_vec()];
        for PlannedStep { layer, inputs, last_uses } in &self.steps {
            let output = match layer {
                Layer::Convolution(convolution) => convolution.run(&values[inputs[0]]),
                Layer::Depthwise(convolution) => convolution.run(&values[inputs[0]]),
                Layer::Add => {
                    let pairs = values[inputs[0]].iter().zip(&values[inputs[1]]);
                    pairs.map(|(left, right)| left + right).collect()
                }
                Layer::AveragePool { channels } => mean_of_rows(&values[inputs[0]], *channels),
            };
            for value in last_uses {
                values[*value] = Vec::new();
            }
            values.push(output);
        }
        values.swap_remove(self.embedding.0)
    }
}

/// Returns the mean of the rows: `[rows, width]` → `[width]`.
fn mean_of_rows(values: &[f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0; width];
    for row in values.chunks(width) {
        mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value);
    }
    let scale = 1.0 / (values.len() / width) as f32;
    mean.iter_mut().for_each(|mean| *mean *= scale);
    mean
}
