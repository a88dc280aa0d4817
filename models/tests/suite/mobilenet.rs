//! Compares the published MobileNetV2 with stored embeddings.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::mobilenet::{MobileNet, WEIGHTS_FILE};

use super::reference::{relative_difference, values};

#[test]
#[ignore = "needs ENGRAM_DATA: the folder with vision-mobilenet"]
fn the_check_images_give_the_reference_embeddings() -> Result<()> {
    let data = std::env::var_os("ENGRAM_DATA").expect("ENGRAM_DATA");
    let folder = PathBuf::from(data).join("vision-mobilenet");
    let (network, check) = (MobileNet::read(&folder.join(WEIGHTS_FILE))?, folder.join("check"));
    let reference =
        candle_core::safetensors::load(check.join("reference.safetensors"), &Device::Cpu)?;
    let names = ["cat", "bird", "grace_hopper", "hot_dog"];
    let image = |name: &str| -> Result<Tensor> {
        let image = image::open(check.join(format!("{name}_224.png"))).expect("an image");
        let pixels = Tensor::from_vec(image.into_rgb8().into_raw(), (224, 224, 3), &Device::Cpu)?;
        let scaled = ((pixels.to_dtype(DType::F32)? - 128.0)? / 128.0)?;
        Ok(scaled.permute((2, 0, 1))?.unsqueeze(0)?)
    };
    let images = names.iter().map(|name| image(name)).collect::<Result<Vec<_>>>()?;
    let together = network.embed(&Tensor::cat(&images, 0)?)?.to_vec2::<f32>()?;
    for ((name, image), found) in names.iter().zip(&images).zip(together) {
        let expected = values(&reference[&format!("{name}.embedding")])?;
        let difference = relative_difference(&found, &expected);
        println!("{name}: the embedding is off by {difference:.1e} of its largest value");
        assert!(difference < 1e-4, "{name} is off by {difference:e}");
        assert_eq!(values(&network.embed(image)?)?, found, "{name} alone");
    }
    assert!(network.embed(&images[0].narrow(2, 0, 100)?).is_err());
    Ok(())
}
