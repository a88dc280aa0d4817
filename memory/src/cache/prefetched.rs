//! Values that were read before their lookup.

use std::collections::{BTreeMap, HashMap};

use super::{OwnedValue, ValueKey};

/// Prefetched values before their first lookup. In the cache, they could be dropped before it: a
/// full cache prefers values that were read often.
#[derive(Debug, Default)]
pub(super) struct Prefetched {
    /// Each value with its number.
    values: HashMap<ValueKey, (u64, OwnedValue)>,
    /// The keys by number: the oldest first.
    order: BTreeMap<u64, ValueKey>,
    next: u64,
    bytes: u64,
}

impl Prefetched {
    /// Adds a value, and drops the oldest ones above the limit.
    pub(super) fn push(&mut self, key: ValueKey, value: OwnedValue, limit_bytes: u64) {
        self.take(&key);
        self.bytes += value.bytes() as u64;
        self.values.insert(key, (self.next, value));
        self.order.insert(self.next, key);
        self.next += 1;
        while self.bytes > limit_bytes
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.take(&oldest);
        }
    }

    pub(super) fn take(&mut self, key: &ValueKey) -> Option<OwnedValue> {
        let (number, value) = self.values.remove(key)?;
        self.order.remove(&number);
        self.bytes -= value.bytes() as u64;
        Some(value)
    }

    pub(super) fn contains(&self, key: &ValueKey) -> bool {
        self.values.contains_key(key)
    }
}
