//! Feature maps of a frozen MobileNetV2, which take the place of pixels.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::mobilenet::{IMAGE_SIZE, MAP_CHANNELS, MAP_SIZE, MobileNet, WEIGHTS_FILE};
use engram_models::reveal::RevealConfig;
use half::f16;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::images::Images;
use crate::error::Result;

/// Maximum number of images whose maps are computed together.
const IMAGES_PER_BATCH: usize = 64;

/// The network, and the maps of the latest views.
pub struct FeatureMaps {
    network: Arc<MobileNet>,
    /// Maps `[C, 7, 7]` by image and view.
    cache: Cache<(usize, u32), Arc<[f16]>, ByteWeighter>,
}

/// Weighs a map by its size in bytes.
#[derive(Clone)]
struct ByteWeighter;

impl Weighter<(usize, u32), Arc<[f16]>> for ByteWeighter {
    fn weight(&self, _: &(usize, u32), map: &Arc<[f16]>) -> u64 {
        size_of_val::<[f16]>(map) as u64
    }
}

impl FeatureMaps {
    /// The maps of one collection of images. The cache holds up to `cached_bytes` of maps; 0 for no
    /// cache.
    pub fn new(network: Arc<MobileNet>, cached_bytes: u64) -> Self {
        // An estimate: the cache grows beyond it.
        let views = 1 << 10;
        Self { network, cache: Cache::with_weighter(views, cached_bytes, ByteWeighter) }
    }

    /// Reads the network of a run; `None` for a model that takes pixels.
    ///
    /// # Errors
    /// The errors of [`MobileNet::read`]
    pub fn network_of(run: &Path, config: &RevealConfig) -> Result<Option<Arc<MobileNet>>> {
        let takes_maps = config.image.num_channels == MAP_CHANNELS;
        let read = || MobileNet::read(&run.join(WEIGHTS_FILE));
        Ok(takes_maps.then(read).transpose()?.map(Arc::new))
    }

    /// The network's own embeddings of views of images, of length 1.
    ///
    /// # Errors
    /// The errors of [`Images::pixels`]
    pub fn embeddings(&self, images: &Images, views: &[(usize, u32)]) -> Result<Vec<Vec<f32>>> {
        let mut embeddings = Vec::new();
        for views in views.chunks(IMAGES_PER_BATCH) {
            embeddings.extend(self.network.embed(&pixels(images, views)?)?.to_vec2::<f32>()?);
        }
        for embedding in &mut embeddings {
            let length = embedding.iter().map(|value| value * value).sum::<f32>().sqrt();
            embedding.iter_mut().for_each(|value| *value /= length.max(f32::MIN_POSITIVE));
        }
        Ok(embeddings)
    }

    /// The maps of views of images, `[N, C, 7, 7]`, rounded to 16 bits. `views` holds the index and
    /// view of each image.
    ///
    /// # Errors
    /// The errors of [`Images::pixels`]
    pub fn of(&self, images: &Images, views: &[(usize, u32)]) -> Result<Tensor> {
        let mut maps: Vec<Option<Arc<[f16]>>> =
            views.iter().map(|view| self.cache.get(view)).collect();
        let missing: Vec<usize> = (0..views.len()).filter(|row| maps[*row].is_none()).collect();
        for rows in missing.chunks(IMAGES_PER_BATCH) {
            let requested: Vec<(usize, u32)> = rows.iter().map(|row| views[*row]).collect();
            let computed = self.network.maps(&pixels(images, &requested)?)?.to_dtype(DType::F16)?;
            for (index, row) in rows.iter().enumerate() {
                let map: Arc<[f16]> = computed.get(index)?.flatten_all()?.to_vec1()?.into();
                self.cache.insert(views[*row], Arc::clone(&map));
                maps[*row] = Some(map);
            }
        }
        let values = maps.iter().flatten().flat_map(|map| map.iter().map(|value| value.to_f32()));
        let shape = (views.len(), MAP_CHANNELS, MAP_SIZE, MAP_SIZE);
        Ok(Tensor::from_vec(values.collect::<Vec<f32>>(), shape, &Device::Cpu)?)
    }
}

/// The pixels of views, `[N, 3, S, S]`.
fn pixels(images: &Images, views: &[(usize, u32)]) -> Result<Tensor> {
    let shape = (views.len(), 3, IMAGE_SIZE, IMAGE_SIZE);
    Ok(Tensor::from_vec(images.pixels(views)?, shape, &Device::Cpu)?)
}
