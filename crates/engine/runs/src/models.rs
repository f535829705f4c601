//! The node types as served, kept up with the models folder.

use crate::nodes::NodeSet;
use engine_graph::NodeRegistry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The node types as of a look at the models folder.
#[derive(Debug, Clone)]
pub struct ServedNodes {
    /// The types.
    pub registry: Arc<NodeRegistry>,
    /// Changes with the types and with the model files behind them.
    pub version: Arc<str>,
}

/// Looks at the models folder when asked to. A look that began after one asked is as good as one's own, so any number
/// of askers cost two looks at most.
pub(crate) struct ModelsWatch {
    nodes: Arc<dyn NodeSet>,
    looks: Mutex<Looks>,
    looked: Condvar,
}

struct Looks {
    /// Looks that have begun, and that have ended.
    begun: u64,
    ended: u64,
    served: ServedNodes,
}

impl ModelsWatch {
    /// Nothing is looked at yet: until the first look, the types are served as they are known.
    pub(crate) fn new(nodes: Arc<dyn NodeSet>) -> Self {
        let served = ServedNodes { registry: nodes.registry(), version: nodes.registry_version().into() };
        Self { nodes, looks: Mutex::new(Looks { begun: 0, ended: 0, served }), looked: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The types as of the last look.
    pub(crate) fn served(&self) -> ServedNodes {
        self.lock().served.clone()
    }

    /// The types as of a look that begins now or later; of an earlier one when that takes longer than `patience`. Blocking.
    pub(crate) fn look(&self, patience: Duration) -> ServedNodes {
        let deadline = Instant::now() + patience;
        let mut looks = self.lock();
        let wanted = looks.begun + 1;
        while looks.ended < wanted {
            if looks.begun == looks.ended {
                looks.begun += 1;
                drop(looks);
                self.look_now();
                looks = self.lock();
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            looks = self.looked.wait_timeout(looks, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        looks.served.clone()
    }

    fn look_now(&self) {
        // A look that panics has ended too, or everyone would wait for it.
        let ended = EndLook(self);
        self.nodes.refresh();
        let served = ServedNodes { registry: self.nodes.registry(), version: self.nodes.registry_version().into() };
        self.lock().served = served;
        drop(ended);
    }
}

struct EndLook<'a>(&'a ModelsWatch);

impl Drop for EndLook<'_> {
    fn drop(&mut self) {
        self.0.lock().ended += 1;
        self.0.looked.notify_all();
    }
}
