//! Compares the published MobileNetV2 with stored embeddings and values of a feature map.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use engram_models::Result;
use engram_models::mobilenet::{MAP_CHANNELS, MAP_SIZE, MobileNet, WEIGHTS_FILE};

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

    // PyTorch's values for the cat, by channel, row and column.
    let maps = network.maps(&Tensor::cat(&images, 0)?)?;
    assert_eq!(maps.dims(), [4, MAP_CHANNELS, MAP_SIZE, MAP_SIZE]);
    for (place, expected) in [
        ([0, 0, 0], 1.69074),
        ([319, 3, 4], -1.35394),
        ([320, 0, 0], 1.37905),
        ([417, 2, 5], 0.1427),
        ([550, 6, 1], -0.87018),
        ([703, 6, 6], -0.18561),
        ([100, 5, 2], 0.68788),
    ] {
        let found = maps.get(0)?.get(place[0])?.get(place[1])?.get(place[2])?.to_scalar::<f32>()?;
        assert!((found - expected).abs() < 2e-4, "{place:?}: {found}");
    }
    assert_eq!(values(&network.maps(&images[2])?)?, values(&maps.narrow(0, 2, 1)?)?, "alone");
    Ok(())
}
