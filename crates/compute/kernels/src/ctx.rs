//! What a kernel runs with: an instruction set and a pool of threads.

use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::isa::Isa;
use crate::pool::Pool;

/// An instruction set that this machine is known to have, and the threads to use.
#[derive(Clone)]
pub struct Ctx {
    isa: Isa,
    pool: Arc<Pool>,
}

impl Ctx {
    /// An explicit choice, for tests and measurements; an error where this machine lacks the instruction set.
    pub fn new(isa: Isa, threads: usize) -> Result<Ctx> {
        Ok(Ctx { isa: isa.require()?, pool: Arc::new(Pool::new(threads)) })
    }

    /// What this process uses: [`Isa::active`] and [`Pool::global`].
    pub fn global() -> &'static Ctx {
        static GLOBAL: OnceLock<Ctx> = OnceLock::new();
        GLOBAL.get_or_init(|| Ctx { isa: Isa::active(), pool: Pool::global().clone() })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The same threads with another instruction set.
    pub fn with_isa(&self, isa: Isa) -> Result<Ctx> {
        Ok(Ctx { isa: isa.require()?, pool: self.pool.clone() })
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    /// One context per instruction set that this machine has, on two threads.
    pub(crate) fn contexts() -> Vec<Ctx> {
        Isa::available().iter().map(|&isa| Ctx::new(isa, 2).unwrap()).collect()
    }

    /// Reproducible numbers in -1..1.
    pub(crate) fn noise(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
        (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// Largest difference over the largest wanted magnitude.
    pub(crate) fn relative_error(got: &[f32], want: &[f32]) -> f32 {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().all(|x| x.is_finite()), "not finite");
        let scale = want.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
        got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / scale
    }
}
