//! REVEAL's own parts: gradients through the fusion to the retriever, and properties that follow
//! from its definitions.

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::finite_difference::check_gradients;
use engram_models::gradients::Gradients;
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::reveal::losses::{NoEntry, alignment, contrastive, decorrelation};
use engram_models::reveal::{BaseStates, Retrieved, Reveal, RevealConfig, RevealInput};
use engram_models::t5::{GenerateOptions, T5Config};
use engram_models::vit::ViTConfig;

use super::compute::models::{retrieve, reveal_input};
use super::reference::{builder, largest_difference, mean_loss, numbers};

const WIDTH: usize = 8;
const TOKENS: usize = 2;

/// A small model: two encoder layers, one of them in the fusion.
pub fn config() -> RevealConfig {
    RevealConfig {
        t5: T5Config {
            vocab_size: 20,
            d_model: WIDTH,
            d_kv: 4,
            d_ff: 12,
            num_layers: 2,
            decoder_positions: 3,
            num_decoder_layers: Some(1),
            num_heads: 2,
            dropout_rate: 0.0,
            ..T5Config::small()
        },
        image: ViTConfig {
            hidden_size: 8,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            intermediate_size: 12,
            image_size: 4,
            patch_size: 2,
            class_token: false,
            ..ViTConfig::base_16()
        },
        fusion_layers: 1,
        head_layers: 1,
        value_tokens: TOKENS,
        value_positions: 5,
        key_dim: 6,
        frozen_image_layers: 0,
        ..RevealConfig::base(2)
    }
}

fn model(dtype: DType) -> Result<(Reveal, Parameters)> {
    let builder = builder(3, dtype);
    Ok((Reveal::new(&config(), &builder)?, builder.finish()?))
}

/// Returns irregular numbers `[count, D]`.
fn rows(count: usize, seed: u64) -> Result<Tensor> {
    let numbers = numbers(count * WIDTH, seed);
    Ok(Tensor::from_vec(numbers, (count, WIDTH), &Device::Cpu)?.to_dtype(DType::F32)?)
}

/// Returns the generator's loss for two queries. Both entries are retrieved for each query.
fn generation_loss(model: &Reveal) -> Result<Tensor> {
    mean_loss(&retrieve(model, &Mode::evaluate())?.logits, &[5, 2, 6, 2])
}

#[test]
fn the_fusion_has_correct_gradients_for_queries_keys_values_and_scores() -> Result<()> {
    let inputs: [(Vec<f64>, &[usize]); 4] = [
        (numbers(5 * WIDTH, 1), &[5, WIDTH]),
        (numbers(12, 2), &[2, 6]),
        (numbers(18, 3), &[3, 6]),
        (numbers(3 * TOKENS * WIDTH, 4), &[3 * TOKENS, WIDTH]),
    ];
    check_gradients(&inputs, |t| {
        let (model, _) = model(t[0].dtype())?;
        let base = BaseStates { states: t[0].clone(), lengths: vec![2, 3] };
        // The first query has one entry, the second has two.
        let query_rows = Tensor::new(&[0u32, 1, 1], &Device::Cpu)?;
        let scores = (t[1].index_select(&query_rows, 0)? * &t[2])?.sum(1)?;
        let counts = [1, 2];
        let prior = model.prior(&scores, &counts)?;
        let retrieved = Retrieved { counts: &counts, prior: &prior, values: &t[3] };
        Ok(model.fuse(&base, Some(&retrieved), &Mode::evaluate())?.states)
    })
}

#[test]
fn the_losses_have_correct_gradients() -> Result<()> {
    let (values, states) = (numbers(24, 1), numbers(20, 2));
    check_gradients(&[(values.clone(), &[6, 4])], |t| decorrelation(&t[0], 3))?;
    check_gradients(&[(values, &[6, 4]), (states, &[5, 4])], |t| alignment(&t[0], &t[1]))?;
    check_gradients(&[(numbers(6, 3), &[2, 3]), (numbers(12, 4), &[4, 3])], |t| {
        contrastive(&t[0], &t[1], None, [3u32, 0].into(), 0.2)
    })?;
    let inputs = [(numbers(6, 3), &[2, 3][..]), (numbers(12, 4), &[4, 3]), (vec![0.3], &[1])];
    check_gradients(&inputs, |t| {
        let no_entry = NoEntry { score: &t[2], excluded: &[Some(1), None] };
        contrastive(&t[0], &t[1], Some(no_entry), [4u32, 0].into(), 0.2)
    })
}

#[test]
fn the_losses_equal_their_definitions() -> Result<()> {
    let scalar = |loss: Tensor| -> Result<f32> { Ok(loss.to_scalar()?) };
    // Already centred: the cosines are 0, -1/√2 and -1/√2, so the squares below the diagonal sum to
    // 1.
    let values = Tensor::new(&[[1f32, 0.0], [0.0, 1.0], [-1.0, -1.0]], &Device::Cpu)?;
    assert!((scalar(decorrelation(&values, 3)?)? - 1.0 / 9.0).abs() < 1e-6);
    // The mean norms are 4 and 2: |1 - 4/2| = 1.
    let values = Tensor::new(&[[3f32, 0.0], [3.0, 4.0]], &Device::Cpu)?;
    let query = Tensor::new(&[[0f32, 2.0]], &Device::Cpu)?;
    assert!((scalar(alignment(&values, &query)?)? - 1.0).abs() < 1e-6);
    let queries = Tensor::new(&[[1f32, 0.0]], &Device::Cpu)?;
    let keys = Tensor::new(&[[1f32, 0.0], [0.0, 1.0]], &Device::Cpu)?;
    // ln(1 + exp(-1 / 0.5))
    let loss = scalar(contrastive(&queries, &keys, None, [0u32].into(), 0.5)?)?;
    assert!((loss - 0.126_928).abs() < 1e-6, "{loss}");
    // ln(1 + exp((0 - 0.5) / 0.5)): the first key is excluded.
    let score = Tensor::new(&[0.5f32], &Device::Cpu)?;
    let no_entry = NoEntry { score: &score, excluded: &[Some(0)] };
    let loss = scalar(contrastive(&queries, &keys, Some(no_entry), [2u32].into(), 0.5)?)?;
    assert!((loss - 0.313_262).abs() < 1e-6, "{loss}");
    Ok(())
}

#[test]
fn the_generators_loss_reaches_every_parameter_of_the_retriever() -> Result<()> {
    let (model, parameters) = model(DType::F32)?;
    let mut gradients = Gradients::new(&parameters);
    gradients.clear();
    gradients.backward(&generation_loss(&model)?)?;
    assert_eq!(gradients.faults(), []);
    // A small step along the gradient of a single part changes the loss by the predicted amount.
    for part in ["query_head.", "key_head.", "head_out", "dataset_gate", "att_transform", "value_"]
    {
        let selected: Vec<(usize, &engram_models::params::Parameter)> = parameters
            .trainable()
            .enumerate()
            .filter(|(_, parameter)| parameter.name().starts_with(part))
            .collect();
        let squares = selected.iter().flat_map(|(i, _)| gradients.get(*i).unwrap_or(&[]));
        let norm = squares.map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        println!("{part}: {norm:e}");
        assert!(norm > 2e-4, "{part}: {norm}");
        let loss_at = |step: f64| -> Result<f64> {
            let shift = |factor: f64| -> Result<()> {
                for (i, parameter) in &selected {
                    let gradient = gradients.get(*i).unwrap_or(&[]).to_vec();
                    parameter.update(&mut |data| {
                        for (x, g) in data.iter_mut().zip(&gradient) {
                            *x += (factor * f64::from(*g)) as f32;
                        }
                    })?;
                }
                Ok(())
            };
            shift(step / norm)?;
            let loss = f64::from(generation_loss(&model)?.to_scalar::<f32>()?);
            shift(-step / norm)?;
            Ok(loss)
        };
        let step = 1e-2;
        let difference = (loss_at(step)? - loss_at(-step)?) / (2.0 * step);
        assert!(
            (difference - norm).abs() <= 0.05 * norm + 2e-5,
            "{part}: gradient {norm}, difference {difference}"
        );
    }
    Ok(())
}

#[test]
fn fusion_with_equal_scores_equals_fusion_without_weights() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let mode = Mode::evaluate();
    let (query, values) = (rows(3, 1)?, rows(4 * TOKENS, 2)?);
    let counts = [4];
    let prior = model.prior(&Tensor::full(0.7f32, 4, &Device::Cpu)?, &counts)?;
    assert_eq!(prior.to_vec1::<f32>()?, [1.0; 4]);
    let base = BaseStates { states: query.clone(), lengths: vec![3] };
    let retrieved = Retrieved { counts: &counts, prior: &prior, values: &values };
    let weighted = model.fuse(&base, Some(&retrieved), &mode)?;
    let joined =
        BaseStates { states: Tensor::cat(&[&query, &values], 0)?, lengths: vec![3 + 4 * TOKENS] };
    let plain = model.fuse(&joined, None, &mode)?;
    assert_eq!(weighted.lengths, plain.lengths);
    assert_eq!(weighted.states.to_vec2::<f32>()?, plain.states.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn an_entry_with_prior_0_has_no_effect() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let base = BaseStates { states: rows(3, 1)?, lengths: vec![3] };
    let fused = |prior: [f32; 2], first| -> Result<Vec<Vec<f32>>> {
        let values = Tensor::cat(&[rows(TOKENS, first)?, rows(TOKENS, 3)?], 0)?;
        let prior = Tensor::new(&prior, &Device::Cpu)?;
        let retrieved = Retrieved { counts: &[2], prior: &prior, values: &values };
        Ok(model.fuse(&base, Some(&retrieved), &Mode::evaluate())?.states.to_vec2()?)
    };
    // A prior of 0 makes the entry's states 0, also in the output.
    let (with_entry, with_other_entry) = (fused([0.0, 2.0], 2)?, fused([0.0, 2.0], 5)?);
    assert_eq!(with_entry[..3], with_other_entry[..3]);
    assert!(with_entry[3..3 + TOKENS].iter().flatten().all(|x| *x == 0.0));
    assert_ne!(fused([1.0, 1.0], 2)?[..3], fused([1.0, 1.0], 5)?[..3]);
    assert_ne!(fused([0.5, 1.5], 2)?[..3], fused([1.5, 0.5], 2)?[..3]);
    Ok(())
}

#[test]
fn queries_are_fused_only_with_their_own_entries() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let (states, values) = (rows(7, 1)?, rows(3 * TOKENS, 2)?);
    let prior = Tensor::new(&[1f32, 0.4, 1.6], &Device::Cpu)?;
    let (lengths, counts) = ([2, 3, 2], [1, 2, 0]);
    let fuse = |base: BaseStates, counts: &[usize], prior: &Tensor, values: &Tensor| {
        let retrieved = Retrieved { counts, prior, values };
        model.fuse(&base, Some(&retrieved), &Mode::evaluate())
    };
    let base = BaseStates { states: states.clone(), lengths: lengths.to_vec() };
    let together = fuse(base, &counts, &prior, &values)?;
    let (mut row, mut entry, mut output_row) = (0, 0, 0);
    for (length, count) in lengths.into_iter().zip(counts) {
        let base = BaseStates { states: states.narrow(0, row, length)?, lengths: vec![length] };
        let (prior, values) =
            (prior.narrow(0, entry, count)?, values.narrow(0, entry * TOKENS, count * TOKENS)?);
        let alone = fuse(base, &[count], &prior, &values)?;
        let found = together.states.narrow(0, output_row, length + count * TOKENS)?;
        let difference = largest_difference(&found, &alone.states)?;
        assert!(difference < 1e-5, "{difference}");
        (row, entry, output_row) =
            (row + length, entry + count, output_row + length + count * TOKENS);
    }
    assert_eq!(output_row, together.states.dim(0)?);
    Ok(())
}

#[test]
fn no_gradient_reaches_below_the_frozen_layers() -> Result<()> {
    let have_gradients = |frozen: usize| -> Result<Vec<bool>> {
        let sizes = RevealConfig {
            t5: T5Config { num_layers: 3, ..config().t5 },
            frozen_text_layers: frozen,
            ..config()
        };
        let builder = builder(3, DType::F32);
        let model = Reveal::new(&sizes, &builder)?;
        let parameters = builder.finish()?;
        let states = model.encode(&reveal_input(&model, 4)?, &Mode::evaluate())?.states;
        let mut gradients = Gradients::new(&parameters);
        gradients.backward(&states.sqr()?.sum_all()?)?;
        let below = ["shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight"];
        let above = ["encoder.block.1.layer.0.SelfAttention.q.weight", "image_head.weight"];
        let has = |name: &&str| gradients.by_name(name).is_some();
        Ok(below.iter().chain(&above).map(has).collect())
    };
    assert_eq!(have_gradients(0)?, [true; 4]);
    assert_eq!(have_gradients(1)?, [false, false, true, true]);
    assert_eq!(have_gradients(2)?, [false, false, false, true]);
    Ok(())
}

#[test]
fn a_prior_is_1_on_average_and_orders_entries_by_their_scores() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let scores = Tensor::new(&[0.9f32, 0.1, -0.3, 0.5, 0.5], &Device::Cpu)?;
    let prior = model.prior(&scores, &[3, 2])?.to_vec1::<f32>()?;
    assert!((prior[..3].iter().sum::<f32>() - 3.0).abs() < 1e-5, "{prior:?}");
    assert_eq!(prior[3..], [1.0, 1.0]);
    // 3.655293 is 5 σ(1), the initial factor in the released code.
    assert!((prior[0].ln() - prior[1].ln() - 0.8 * 3.655_293).abs() < 1e-4, "{prior:?}");
    assert!(model.prior(&scores, &[3, 3]).is_err());
    Ok(())
}

#[test]
fn low_scores_lose_their_weight_to_finding_no_entry() -> Result<()> {
    let sizes = RevealConfig { no_entry: true, ..config() };
    let model = |dtype| Reveal::new(&sizes, &builder(3, dtype));
    let scores = Tensor::new(&[0.9f32, 0.1, -0.3, 0.5, 0.5, -0.5], &Device::Cpu)?;
    let prior = model(DType::F32)?.prior(&scores, &[3, 2, 1])?.to_vec1::<f32>()?;
    // The initial score of finding no entry is 0.5.
    let factor = 3.655_293f32;
    let softmax = |scores: &[f32]| -> Vec<f32> {
        let exp = scores.iter().map(|score| (score * factor).exp());
        let total = exp.clone().sum::<f32>() + (0.5 * factor).exp();
        exp.map(|x| x / total * scores.len() as f32).collect()
    };
    let expected = [&[0.9, 0.1, -0.3][..], &[0.5, 0.5], &[-0.5]].map(softmax).concat();
    for (found, expected) in prior.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{prior:?}");
    }
    check_gradients(&[(numbers(4, 2), &[4])], |t| model(t[0].dtype())?.prior(&t[0], &[2, 2]))?;
    let parameters = builder(3, DType::F32);
    let model = Reveal::new(&sizes, &parameters)?;
    let mut gradients = Gradients::new(&parameters.finish()?);
    gradients.backward(&model.prior(&scores, &[3, 2, 1])?.sum_all()?)?;
    assert!(gradients.by_name("att_transform.no_entry").is_some());
    Ok(())
}

#[test]
fn queries_and_keys_have_unit_length_and_gates_sum_to_1() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let mode = Mode::evaluate();
    let states = model.encode(&reveal_input(&model, 4)?, &mode)?;
    assert_eq!(states.lengths, [3 + 4, 4]);
    for vectors in [model.query(&states, &mode)?, model.key(&states, &mode)?] {
        for row in vectors.to_vec2::<f32>()? {
            assert!((row.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }
    let gates = model.gates(&model.query(&states, &mode)?)?.to_vec2::<f32>()?;
    assert!(gates.iter().all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
    assert_eq!(model.value(&states, &mode)?.dims(), [2 * TOKENS, WIDTH]);
    Ok(())
}

#[test]
fn generated_tokens_are_those_that_the_decoder_finds_most_likely() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let mode = Mode::evaluate();
    let states = model.encode(&reveal_input(&model, 4)?, &mode)?;
    let options = GenerateOptions { max_new_tokens: 6, ..GenerateOptions::greedy(0, 1) };
    let generated = model.generate(&states, &options)?;
    let inputs: Vec<Vec<u32>> = generated
        .iter()
        .map(|text| [&[0], &text.tokens[..text.tokens.len() - 1]].concat())
        .collect();
    let tokens = PackedTokens::new(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let best = model.decode(&tokens, &states, &mode)?.argmax(1)?.to_vec1::<u32>()?;
    assert_eq!(best, generated.iter().flat_map(|text| text.tokens.clone()).collect::<Vec<u32>>());
    assert!(best.len() > 4, "{best:?}");
    Ok(())
}

#[test]
fn the_values_have_correct_gradients_for_long_and_short_entries() -> Result<()> {
    check_gradients(&[(numbers(4 * WIDTH, 1), &[4, WIDTH])], |t| {
        let (model, _) = model(t[0].dtype())?;
        let states = BaseStates { states: t[0].clone(), lengths: vec![1, 3] };
        model.value(&states, &Mode::evaluate())
    })
}

#[test]
fn mismatched_inputs_and_invalid_configurations_are_errors() -> Result<()> {
    let (model, _) = model(DType::F32)?;
    let mode = Mode::evaluate();
    let mut missing_image = reveal_input(&model, 4)?;
    missing_image.image_of.pop();
    assert!(model.encode(&missing_image, &mode).is_err());
    let without_pixels = RevealInput { pixels: None, ..reveal_input(&model, 4)? };
    assert!(model.encode(&without_pixels, &mode).is_err());
    let base = model.encode(&reveal_input(&model, 4)?, &mode)?;
    let (prior, values) =
        (Tensor::ones(2, DType::F32, &Device::Cpu)?, base.states.narrow(0, 0, 3)?);
    let retrieved = Retrieved { counts: &[1, 1], prior: &prior, values: &values };
    assert!(model.fuse(&base, Some(&retrieved), &mode).is_err());
    for invalid in [
        RevealConfig { fusion_layers: 0, ..config() },
        RevealConfig { fusion_layers: 3, ..config() },
        RevealConfig { value_tokens: 0, ..config() },
        RevealConfig { score_ceiling: f64::NAN, ..config() },
        RevealConfig { frozen_text_layers: 2, ..config() },
        RevealConfig { frozen_image_layers: 2, ..config() },
        RevealConfig { head_layers: 0, ..config() },
    ] {
        assert!(Reveal::new(&invalid, &ParameterBuilder::on_cpu(1)).is_err(), "{invalid:?}");
    }
    Ok(())
}

#[test]
fn published_sizes_are_counted_without_allocating_parameters() -> Result<()> {
    // The paper reports 0.4 and 1.4 billion parameters.
    for (config, millions, frozen) in
        [(RevealConfig::base(4), 475, 6), (RevealConfig::large(4), 1429, 20)]
    {
        let builder = ParameterBuilder::shapes_only();
        Reveal::new(&config, &builder)?;
        let parameters = builder.finish()?;
        let (all, trainable) = parameters.value_counts();
        assert_eq!((all / 1_000_000, all), (millions, trainable));
        assert_eq!(config.frozen_image_layers, frozen);
        let shape =
            |name: &str| parameters.get(name).map(|parameter| parameter.tensor().dims().to_vec());
        let (d, t5) = (config.t5.d_model, &config.t5);
        let last = t5.num_layers - 1;
        let query = format!("encoder.block.{last}.layer.0.SelfAttention.q.weight");
        assert_eq!(shape(&query), Some(vec![t5.num_heads * 64, d]));
        assert_eq!(shape("lm_head.weight"), Some(vec![32128, d]));
        assert_eq!(shape("value_perceiver.latents"), Some(vec![config.value_tokens, d]));
        assert_eq!(shape("head_out.weight"), Some(vec![512, d]));
        assert_eq!(shape("image_head.weight"), Some(vec![d, config.image.hidden_size]));
        let positions = shape("image_encoder.embeddings.position_embeddings");
        assert_eq!(positions, Some(vec![1, config.image.num_patches(), config.image.hidden_size]));
    }
    Ok(())
}
