//! Loaded components, shared by every model that has them and dropped when others need the room.

use crate::lock;
use core_llm::TextLlm;
use gen_core::{CancelFlag, Denoiser, Result, TextEmbedder, TextEncoder, Vae};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a run that waits for room looks at its cancel flag.
const POLL: Duration = Duration::from_millis(10);

/// A component in memory. Whoever holds a clone has it in use.
#[derive(Clone)]
pub(crate) enum Component {
    TextEncoder(Arc<dyn TextEncoder>),
    Denoiser(Arc<dyn Denoiser>),
    Vae(Arc<dyn Vae>),
    Language(Arc<dyn TextLlm>),
    Embedder(Arc<dyn TextEmbedder>),
}

impl Component {
    /// Whether nobody but the pool holds it. Only meaningful under the pool's lock, where no new clones are made.
    fn is_idle(&self) -> bool {
        let holders = match self {
            Self::TextEncoder(component) => Arc::strong_count(component),
            Self::Denoiser(component) => Arc::strong_count(component),
            Self::Vae(component) => Arc::strong_count(component),
            Self::Language(component) => Arc::strong_count(component),
            Self::Embedder(component) => Arc::strong_count(component),
        };
        holders == 1
    }
}

/// What a component is and how much room it takes.
pub(crate) struct Wanted<'a> {
    /// Its fingerprint.
    pub(crate) key: &'a str,
    /// Bytes that it will hold.
    pub(crate) bytes: u64,
}

struct Held {
    key: String,
    bytes: u64,
    /// `None` while it is being loaded.
    component: Option<Component>,
}

/// Keeps components within the device's capacity: least recently used ones go first, one that a run uses never does.
pub(crate) struct ComponentPool {
    capacity: u64,
    /// Least recently used first.
    held: Mutex<Vec<Held>>,
    changed: Condvar,
}

impl ComponentPool {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, held: Mutex::default(), changed: Condvar::new() }
    }

    /// The component, loaded if need be. Waits while another run loads it, and while components in use take the room:
    /// no run holds one component and waits for another, so the room comes.
    ///
    /// # Errors
    /// What `load` gives, and [`gen_core::Error::Cancelled`] while waiting.
    pub(crate) fn get(
        &self,
        wanted: &Wanted<'_>,
        cancel: &CancelFlag,
        load: impl FnOnce() -> Result<Component>,
    ) -> Result<Component> {
        let mut held = lock(&self.held);
        loop {
            cancel.check()?;
            if let Some(index) = held.iter().position(|h| h.key == wanted.key) {
                if let Some(component) = held[index].component.clone() {
                    let entry = held.remove(index);
                    held.push(entry);
                    return Ok(component);
                }
            } else if self.make_room(&mut held, wanted.bytes) {
                break;
            }
            held = self.changed.wait_timeout(held, POLL).map_or_else(|e| e.into_inner().0, |(held, _)| held);
        }
        held.push(Held { key: wanted.key.to_owned(), bytes: wanted.bytes, component: None });
        drop(held);
        let loading = Loading { pool: self, key: wanted.key };
        let start = Instant::now();
        let component = load()?;
        metrics::histogram!("inline_model_load_seconds").record(start.elapsed());
        metrics::counter!("inline_model_loads_total").increment(1);
        loading.done(&component);
        Ok(component)
    }

    /// [`Self::get`], or `None` where that would wait.
    pub(crate) fn get_without_waiting(
        &self,
        wanted: &Wanted<'_>,
        cancel: &CancelFlag,
        load: impl FnOnce() -> Result<Component>,
    ) -> Result<Option<Component>> {
        let at_hand = {
            let mut held = lock(&self.held);
            match held.iter().find(|h| h.key == wanted.key) {
                Some(entry) => entry.component.is_some(),
                None => self.make_room(&mut held, wanted.bytes),
            }
        };
        if at_hand { self.get(wanted, cancel, load).map(Some) } else { Ok(None) }
    }

    /// Drops idle components until `bytes` more fit. What doesn't fit into an empty pool gets it for itself: the plan
    /// allowed it.
    fn make_room(&self, held: &mut Vec<Held>, bytes: u64) -> bool {
        let fits = |held: &[Held]| held.iter().map(|h| h.bytes).sum::<u64>() + bytes <= self.capacity;
        while !fits(held) {
            let idle = held.iter().position(|h| h.component.as_ref().is_some_and(Component::is_idle));
            let Some(index) = idle else { return held.is_empty() };
            let dropped = held.remove(index);
            tracing::info!(component = %dropped.key, mb = dropped.bytes >> 20, "dropped to make room");
        }
        true
    }

    /// Drops a component that nobody uses.
    pub(crate) fn drop_idle(&self, key: &str) {
        lock(&self.held).retain(|h| h.key != key || !h.component.as_ref().is_some_and(Component::is_idle));
        self.changed.notify_all();
    }

    /// Bytes of all components that are held or being loaded.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.held).iter().map(|h| h.bytes).sum()
    }
}

/// A load under way. Dropped before it is done, by an error or a panic, it gives the room back.
struct Loading<'a> {
    pool: &'a ComponentPool,
    key: &'a str,
}

impl Loading<'_> {
    fn done(&self, component: &Component) {
        let mut held = self.pool.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = held.iter_mut().find(|h| h.key == self.key) {
            entry.component = Some(component.clone());
        }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        lock(&self.pool.held).retain(|h| h.key != self.key || h.component.is_some());
        self.pool.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gen_core::{Conditioning, Error};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{scope, sleep};

    struct Nothing;

    impl TextEncoder for Nothing {
        fn encode(&self, _: &str, _: &CancelFlag) -> Result<Conditioning> {
            Err(Error::Cancelled)
        }

        fn resident_bytes(&self) -> u64 {
            0
        }
    }

    fn component() -> Result<Component> {
        Ok(Component::TextEncoder(Arc::new(Nothing)))
    }

    fn get(pool: &ComponentPool, key: &str, bytes: u64) -> Result<Component> {
        pool.get(&Wanted { key, bytes }, &CancelFlag::new(), component)
    }

    fn keys(pool: &ComponentPool) -> Vec<String> {
        lock(&pool.held).iter().map(|h| h.key.clone()).collect()
    }

    #[test]
    fn what_was_used_last_stays_and_what_is_in_use_always_does() {
        let pool = ComponentPool::new(10);
        let in_use = get(&pool, "a", 4).unwrap();
        for key in ["b", "c", "b", "d"] {
            get(&pool, key, 3).unwrap();
        }
        assert_eq!(keys(&pool), ["a", "b", "d"]);
        assert_eq!(pool.bytes(), 10);
        drop(in_use);
        get(&pool, "huge", 100).unwrap();
        assert_eq!(keys(&pool), ["huge"]);
        pool.drop_idle("huge");
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn a_component_is_loaded_once_for_all() {
        let (pool, loads) = (ComponentPool::new(10), AtomicUsize::new(0));
        scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let load = || {
                        sleep(Duration::from_millis(30));
                        loads.fetch_add(1, Ordering::Relaxed);
                        component()
                    };
                    pool.get(&Wanted { key: "a", bytes: 1 }, &CancelFlag::new(), load).unwrap();
                });
            }
        });
        assert_eq!(loads.into_inner(), 1);
    }

    #[test]
    fn who_waits_for_room_gets_it_or_can_be_cancelled() {
        let pool = ComponentPool::new(10);
        let in_use = get(&pool, "a", 8).unwrap();
        let cancel = CancelFlag::new();
        let no_wait = pool.get_without_waiting(&Wanted { key: "b", bytes: 8 }, &cancel, component).unwrap();
        assert!(no_wait.is_none());
        scope(|scope| {
            let cancelled = scope.spawn(|| pool.get(&Wanted { key: "b", bytes: 8 }, &cancel, component).map(|_| ()));
            let patient = scope.spawn(|| get(&pool, "c", 8).map(|_| ()));
            sleep(Duration::from_millis(30));
            assert_eq!(keys(&pool), ["a"]);
            cancel.cancel();
            assert!(matches!(cancelled.join().unwrap(), Err(Error::Cancelled)));
            drop(in_use);
            patient.join().unwrap().unwrap();
        });
        assert_eq!(keys(&pool), ["c"]);
    }

    #[test]
    fn a_load_that_fails_leaves_no_trace() {
        let pool = ComponentPool::new(10);
        let failed = pool.get(&Wanted { key: "a", bytes: 5 }, &CancelFlag::new(), || Err(Error::Cancelled));
        assert!(failed.is_err() && pool.bytes() == 0);
        assert!(get(&pool, "a", 5).is_ok());
    }
}
