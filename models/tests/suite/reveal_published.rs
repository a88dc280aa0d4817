//! REVEAL with published weights: loaded parameters equal the files bit for bit, and all other
//! parameters keep their random initial values.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::reveal::Reveal;
use engram_models::reveal::published::PublishedWeights;
use engram_models::t5::T5;
use engram_models::vit::{ViT, ViTConfig};
use engram_models::weights::{Weights, WeightsFiles, save};

use super::reveal::config;

/// Writes the files of a T5 and of a ViT with a class token, whose names start with `vit.`.
fn files(folder: &Path) -> PublishedWeights {
    let config = config();
    let path = |name: &str| folder.join(name);
    let builder = ParameterBuilder::on_cpu(11);
    T5::new(&config.t5, &builder).unwrap();
    write(&path("t5.safetensors"), &builder.finish().unwrap(), "", None);
    let builder = ParameterBuilder::on_cpu(12);
    ViT::new(&ViTConfig { class_token: true, ..config.image }, &builder).unwrap();
    write(&path("vit.safetensors"), &builder.finish().unwrap(), "vit.", None);
    let file = |name: &str| Some(path(name).as_path().into());
    PublishedWeights { t5: file("t5.safetensors"), vit: file("vit.safetensors") }
}

fn write(path: &Path, parameters: &Parameters, prefix: &str, changed: Option<(&str, Tensor)>) {
    let named: Vec<(String, Tensor)> = parameters
        .iter()
        .map(|parameter| match &changed {
            Some((name, tensor)) if *name == parameter.name() => (name.to_string(), tensor.clone()),
            _ => (format!("{prefix}{}", parameter.name()), parameter.tensor().clone()),
        })
        .collect();
    save(path, named.iter().map(|(name, tensor)| (name.as_str(), tensor))).unwrap();
}

fn initial_parameters() -> Result<Parameters> {
    let builder = ParameterBuilder::on_cpu(3);
    Reveal::new(&config(), &builder)?;
    builder.finish()
}

#[test]
fn parameters_in_the_files_are_loaded_and_the_others_keep_their_initial_values() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let published = files(folder.path());
    let open = |files: &Option<WeightsFiles>| files.as_ref().unwrap().open();
    let (t5, vit) = (open(&published.t5)?, open(&published.vit)?);
    let (before, after) = (initial_parameters()?, initial_parameters()?);
    let loaded_names = published.load_into(&after)?;
    let (mut num_loaded, mut initial_parts) = (0, Vec::new());
    for (before, after) in before.iter().zip(after.iter()) {
        let (name, shape) = (after.name(), after.tensor().dims());
        let read = |weights: &Weights, published_name: &str, shape: &[usize]| {
            weights.get(published_name, shape, DType::F32, &Device::Cpu)
        };
        let expected = match name {
            "fusion.relative_attention_bias.weight" => {
                let published_name =
                    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
                read(&t5, published_name, shape)?
            }
            "image_encoder.embeddings.position_embeddings" => {
                // The file has five positions; the first belongs to the class token.
                let all = read(&vit, "vit.embeddings.position_embeddings", &[1, 5, 8])?;
                all.narrow(1, 1, 4)?
            }
            _ if name.starts_with("image_encoder.") => {
                read(&vit, &name.replace("image_encoder.", "vit."), shape)?
            }
            _ if ["shared.", "encoder.", "decoder.", "lm_head."]
                .iter()
                .any(|part| name.starts_with(part)) =>
            {
                read(&t5, name, shape)?
            }
            _ => {
                assert_eq!(before.to_vec()?, after.to_vec()?, "{name}");
                assert!(!loaded_names.contains(&name.to_owned()), "{name}");
                initial_parts.push(name.split('.').next().unwrap_or_default().to_owned());
                continue;
            }
        };
        assert_eq!(after.to_vec()?, expected.flatten_all()?.to_vec1::<f32>()?, "{name}");
        assert!(loaded_names.contains(&name.to_owned()), "{name}");
        num_loaded += 1;
    }
    assert_eq!((num_loaded, loaded_names.len()), (loaded_names.len(), num_loaded));
    initial_parts.dedup();
    let expected_parts = [
        "image_head",
        "query_head",
        "key_head",
        "head_out",
        "value_perceiver",
        "dataset_gate",
        "att_transform",
    ];
    assert_eq!(initial_parts, expected_parts);
    // The upper layers belong to the fusion, the lower layers to the base encoder.
    for layer in ["encoder.block.0.", "encoder.block.1."] {
        assert!(loaded_names.iter().any(|name| name.starts_with(layer)), "{layer}");
    }
    // Without files, no parameter is set. With one file, only the parameters of its model are.
    assert!(PublishedWeights::default().load_into(&after)?.is_empty());
    let vit_only = PublishedWeights { t5: None, ..published };
    assert!(vit_only.load_into(&after)?.iter().all(|name| name.starts_with("image_encoder.")));
    Ok(())
}

#[test]
fn errors_name_a_missing_or_misshapen_tensor_and_its_file() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let published = files(folder.path());
    let builder = ParameterBuilder::on_cpu(11);
    T5::new(&config().t5, &builder)?;
    let parameters = builder.finish()?;
    let path = published.t5.clone().unwrap().path;
    let last = "decoder.block.0.layer.2.DenseReluDense.wo.weight";
    assert!(parameters.get(last).is_some());
    // A tensor of another shape.
    let other = Tensor::zeros((8, 13), DType::F32, &Device::Cpu)?;
    write(&path, &parameters, "", Some((last, other)));
    let error = published.load_into(&initial_parameters()?).unwrap_err().to_string();
    for part in ["t5.safetensors", last, "[8, 12]", "[8, 13]"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // A missing tensor.
    let named = parameters.iter().filter(|parameter| parameter.name() != last);
    save(&path, named.map(|parameter| (parameter.name(), parameter.tensor())))?;
    let error = published.load_into(&initial_parameters()?).unwrap_err().to_string();
    assert!(error.contains("t5.safetensors") && error.contains(last), "{error}");
    // A ViT for images of another size.
    let builder = ParameterBuilder::on_cpu(12);
    ViT::new(&ViTConfig { class_token: true, image_size: 8, ..config().image }, &builder)?;
    write(&published.vit.as_ref().unwrap().path, &builder.finish()?, "", None);
    let vit_only = PublishedWeights { t5: None, ..published };
    let error = vit_only.load_into(&initial_parameters()?).unwrap_err().to_string();
    assert!(error.contains("vit.safetensors") && error.contains("position_embeddings"), "{error}");
    Ok(())
}
