//! Ctrl-C stops the answer that is being made; where there is none it ends the program, as everywhere.

use crate::{Failure, Result};
use runtime_cpu::core_llm::CancelFlag;
use std::sync::{Arc, Mutex, PoisonError};

/// Exit code of a program that was interrupted, by custom 128 and the signal's number.
const INTERRUPTED: i32 = 130;

/// The answer that an interrupt stops.
#[derive(Clone, Default)]
pub(super) struct Interrupts(Arc<Mutex<Option<CancelFlag>>>);

impl Interrupts {
    /// Takes interrupts from now on.
    ///
    /// # Errors
    /// The system gives no signals.
    pub(super) fn watch() -> Result<Self> {
        let interrupts = Self::default();
        let watched = interrupts.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::of)?;
        let wait = move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    watched.interrupt();
                }
            });
        };
        std::thread::Builder::new().name("interrupts".into()).spawn(wait).map_err(Failure::of)?;
        Ok(interrupts)
    }

    /// Makes `cancel` what an interrupt stops, until the guard is dropped.
    pub(super) fn stop(&self, cancel: &CancelFlag) -> Stopping<'_> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cancel.clone());
        Stopping(self)
    }

    fn interrupt(&self) {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // A second one means it.
            Some(cancel) if !cancel.is_cancelled() => cancel.cancel(),
            _ => std::process::exit(INTERRUPTED),
        }
    }
}

pub(super) struct Stopping<'a>(&'a Interrupts);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
