//! Layer-wise learning rate decay: lower layers, nearer to the input, get lower learning rates.

/// The learning-rate factor of each parameter, by its name.
///
/// A numbered level such as `encoder.layer.3` is a layer of the stack `encoder.layer`. The top
/// layer of a stack has factor 1. Each lower layer has `decay` times the factor of the layer above.
/// Embeddings (names with `embed` outside numbered levels) count as the layer below layer 0 of the
/// stack whose path shares the most leading levels with theirs. All other parameters (heads,
/// poolers) have factor 1.
pub(crate) fn layer_rates(names: &[&str], decay: f64) -> Vec<f64> {
    if decay == 1.0 {
        return vec![1.0; names.len()];
    }
    let mut stacks: Vec<(&str, usize)> = Vec::new();
    for (stack, layer) in names.iter().filter_map(|name| numbered_level(name)) {
        match stacks.iter_mut().find(|(existing, _)| *existing == stack) {
            Some((_, height)) => *height = (*height).max(layer + 1),
            None => stacks.push((stack, layer + 1)),
        }
    }
    let height_of = |stack: &str| stacks.iter().find(|(s, _)| *s == stack).map_or(0, |(_, h)| *h);
    let height_of_nearest_stack = |name: &str| {
        let shared_levels =
            |stack: &str| name.split('.').zip(stack.split('.')).take_while(|(a, b)| a == b).count();
        let nearest = stacks.iter().max_by_key(|(stack, height)| (shared_levels(stack), *height));
        nearest.map_or(0, |(_, height)| *height)
    };
    let layers_below_top = |name: &str| match numbered_level(name) {
        Some((stack, layer)) => height_of(stack) - 1 - layer,
        None if name.contains("embed") => height_of_nearest_stack(name),
        None => 0,
    };
    names.iter().map(|name| decay.powf(layers_below_top(name) as f64)).collect()
}

/// The path before the first numbered level, and the level's number; `None` without such a level.
fn numbered_level(name: &str) -> Option<(&str, usize)> {
    let mut start = 0;
    for level in name.split('.') {
        if start > 0
            && let Ok(number) = level.parse()
        {
            return Some((&name[..start - 1], number));
        }
        start += level.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fall_from_the_head_to_the_embeddings() {
        let names = [
            "text.embeddings.word.weight",
            "text.layer.0.dense.weight",
            "text.layer.2.dense.weight",
            "image.blocks.1.weight",
            "image.patch_embed.weight",
            "head.weight",
        ];
        assert_eq!(layer_rates(&names[..3], 0.5), [0.125, 0.25, 1.0]);
        assert_eq!(layer_rates(&names, 0.5), [0.125, 0.25, 1.0, 1.0, 0.25, 1.0]);
        assert_eq!(layer_rates(&names, 1.0), [1.0; 6]);
    }
}
