//! A cache of the last few values.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The `capacity` most recently used values by key.
pub(crate) struct Recent<K, V> {
    entries: Mutex<VecDeque<(K, V)>>,
    capacity: usize,
}

impl<K: PartialEq, V: Clone> Recent<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: Mutex::default(), capacity }
    }

    /// The value of `key`, made if it isn't there. Two threads may make the same value at once; neither waits.
    pub(crate) fn get_or_make<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let mut entries = self.lock();
        if let Some(at) = entries.iter().position(|(known, _)| *known == key) {
            if let Some(entry) = entries.remove(at) {
                entries.push_back(entry);
            }
            if let Some((_, value)) = entries.back() {
                return Ok(value.clone());
            }
        }
        drop(entries);
        let value = make()?;
        let mut entries = self.lock();
        while entries.len() >= self.capacity {
            entries.pop_front();
        }
        entries.push_back((key, value.clone()));
        Ok(value)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(K, V)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let recent = Recent::new(2);
        let get = |key: u32| {
            let mut made = false;
            let value = recent.get_or_make(key, || {
                made = true;
                Ok::<_, ()>(key * 10)
            });
            (value.unwrap(), made)
        };
        assert_eq!([get(1), get(2), get(1), get(3)], [(10, true), (20, true), (10, false), (30, true)]);
        assert_eq!([get(1), get(2)], [(10, false), (20, true)]);
        assert_eq!(recent.get_or_make(9, || Err("no")), Err("no"));
    }
}
