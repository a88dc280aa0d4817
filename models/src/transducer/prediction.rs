//! The prediction network: reads the labels of a text, of whole texts at once or label by label.

use candle_core::Tensor;

use super::config::{Prediction, TransducerConfig};
use crate::compute::Compute;
use crate::error::{Result, bail};
use crate::kernels::{Activation, Mode, Windows, activation, dropout, embedding_sum};
use crate::layers::{Convolution, Linear, Lstm, LstmState};
use crate::params::{Init, ParameterBuilder};

/// The prediction network, with the projection to the joint network.
#[derive(Debug, Clone)]
pub struct PredictionNetwork {
    /// `[V, D]`.
    embedding: Tensor,
    network: Network,
    projector: Linear,
    compute: Compute,
    blank: u32,
    dropout: f64,
}

#[derive(Debug, Clone)]
enum Network {
    Lstm(Lstm),
    /// The convolution over the last labels, and their number.
    Stateless(Convolution, usize),
}

/// The state of `N` texts between two labels.
#[derive(Debug, Clone)]
pub struct PredictionState {
    network: NetworkState,
    /// The joint network's input, `[N, J]`.
    pub output: Tensor,
}

#[derive(Debug, Clone)]
enum NetworkState {
    Lstm(LstmState),
    /// The last labels of each text; blanks before the first label.
    Stateless(Vec<Vec<u32>>),
}

impl PredictionState {
    /// Selects texts by index.
    pub(super) fn select(&self, texts: &[usize]) -> Result<Self> {
        let indices: Vec<u32> = texts.iter().map(|i| *i as u32).collect();
        let indices = Tensor::from_vec(indices, texts.len(), self.output.device())?;
        let network = match &self.network {
            NetworkState::Lstm(state) => NetworkState::Lstm(state.select(&indices)?),
            NetworkState::Stateless(contexts) => {
                NetworkState::Stateless(texts.iter().map(|i| contexts[*i].clone()).collect())
            }
        };
        Ok(Self { network, output: self.output.index_select(&indices, 0)? })
    }

    /// Concatenates the texts of two states.
    pub(super) fn join(&self, other: &Self) -> Result<Self> {
        let network = match (&self.network, &other.network) {
            (NetworkState::Lstm(first), NetworkState::Lstm(second)) => {
                NetworkState::Lstm(first.join(second)?)
            }
            (NetworkState::Stateless(first), NetworkState::Stateless(second)) => {
                NetworkState::Stateless([first.as_slice(), second].concat())
            }
            // The states of one decoder have one kind.
            (first, _) => first.clone(),
        };
        Ok(Self { network, output: Tensor::cat(&[&self.output, &other.output], 0)? })
    }
}

impl PredictionNetwork {
    pub(super) fn new(
        config: &TransducerConfig,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let (width, context) = (config.decoder_hidden_size, config.context_size);
        let network = match config.prediction {
            Prediction::Lstm => {
                let layers = config.num_decoder_layers;
                Network::Lstm(Lstm::new(width, width, layers, &builder.pp("lstm"))?)
            }
            Prediction::Stateless => {
                let std = ((width * context) as f64).powf(-0.5);
                let windows = Windows::over_time(context, 1, 0);
                let conv = builder.pp("conv");
                let convolution = Convolution::over_time([width; 2], windows, std, &conv)?;
                Network::Stateless(convolution, context)
            }
        };
        let table = builder.pp("embedding");
        let projector = builder.pp("decoder_projector");
        Ok(Self {
            embedding: table.get("weight", &[config.vocab_size, width], Init::Normal(1.0))?,
            network,
            projector: Linear::new(width, config.joint_width(), std, &projector)?,
            compute: builder.compute(),
            blank: config.blank,
            dropout: config.decoder_dropout,
        })
    }

    /// Returns the joint network's input after 0, 1, … `U_b` labels of each text:
    /// `[Σ (U_b + 1), J]`.
    ///
    /// # Errors
    /// If a label is not in the vocabulary.
    pub fn forward(&self, texts: &[Vec<u32>], mode: &Mode) -> Result<Tensor> {
        let context = match &self.network {
            Network::Lstm(_) => 1,
            Network::Stateless(_, context) => *context,
        };
        let inputs = texts.iter().map(|text| {
            let mut labels = vec![self.blank; context];
            labels.extend(text);
            labels
        });
        let inputs: Vec<Vec<u32>> = inputs.collect();
        let lengths: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let x = self.embed(inputs.concat())?;
        let x = match &self.network {
            Network::Lstm(lstm) => lstm.forward(&x, &lengths)?,
            Network::Stateless(convolution, _) => {
                activation(&convolution.forward(&x, &lengths)?.0, Activation::Relu)?
            }
        };
        let x = dropout(&x, mode.dropout(self.dropout))?;
        self.projector.forward(&x, mode)
    }

    fn embed(&self, labels: Vec<u32>) -> Result<Tensor> {
        self.compute.activations(&embedding_sum(&[(&self.embedding, labels.into())])?)
    }

    /// Returns the state of `texts` empty texts.
    pub fn start(&self, texts: usize) -> Result<PredictionState> {
        let blanks = vec![self.blank; texts];
        let before = match &self.network {
            Network::Lstm(lstm) => NetworkState::Lstm(lstm.start(texts, &self.embed(vec![])?)?),
            Network::Stateless(_, context) => {
                NetworkState::Stateless(vec![vec![self.blank; *context]; texts])
            }
        };
        self.step(&before, &blanks)
    }

    /// Returns the state after one more label of each text.
    ///
    /// # Errors
    /// If the numbers of labels and texts differ, or a label is not in the vocabulary.
    pub fn advance(&self, state: &PredictionState, labels: &[u32]) -> Result<PredictionState> {
        self.step(&state.network, labels)
    }

    fn step(&self, before: &NetworkState, labels: &[u32]) -> Result<PredictionState> {
        let (x, network) = match (&self.network, before) {
            (Network::Lstm(lstm), NetworkState::Lstm(state)) => {
                let (x, after) = lstm.step(&self.embed(labels.to_vec())?, state)?;
                (x, NetworkState::Lstm(after))
            }
            (Network::Stateless(convolution, context), NetworkState::Stateless(contexts)) => {
                let shift = |(context, label): (&Vec<u32>, &u32)| -> Vec<u32> {
                    context[1..].iter().copied().chain([*label]).collect()
                };
                let contexts: Vec<Vec<u32>> = contexts.iter().zip(labels).map(shift).collect();
                let lengths = vec![*context; contexts.len()];
                let x = convolution.forward(&self.embed(contexts.concat())?, &lengths)?.0;
                (activation(&x, Activation::Relu)?, NetworkState::Stateless(contexts))
            }
            _ => {
                bail!("the state belongs to another prediction network");
            }
        };
        let output = self.projector.forward(&x, &Mode::inference())?.detach();
        Ok(PredictionState { network, output })
    }
}
