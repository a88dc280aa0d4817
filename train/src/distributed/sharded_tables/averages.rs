//! Exponential moving averages of tables, with the bits of those of dense parameters.

use super::ShardedTables;
use crate::ema;

impl ShardedTables {
    /// Starts moving averages at the current values.
    pub(crate) fn start_means(&mut self) {
        self.means = Some(self.groups.iter().map(|group| group.values.clone()).collect());
    }

    /// Moves the averages towards the current values, like
    /// [`Ema::update`](crate::ema::Ema::update).
    pub(crate) fn update_means(&mut self, value_weight: f32) {
        for (mean, group) in self.means.iter_mut().flatten().zip(&self.groups) {
            ema::move_towards(mean, &group.values, value_weight);
        }
    }
}
