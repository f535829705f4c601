//! How one denoise step is split over several GPUs.

use crate::Interconnect;
use std::str::FromStr;

/// Degrees of each kind of split; they multiply to the number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parallel {
    /// Layers in stages, patches flowing through them (Fang et al. 2024, PipeFusion): little traffic, fits PCIe.
    pub pipefusion: usize,
    /// Attention heads exchanged for tokens (Jacobs et al. 2023, DeepSpeed-Ulysses): much traffic, wants NVLink.
    pub ulysses: usize,
}

/// A split that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParallelError {
    /// The text is not a list of known degrees.
    #[error("'{0}' is not a split; write degrees such as pipefusion=2,ulysses=2")]
    Syntax(String),
    /// The degrees don't multiply to the number of GPUs.
    #[error("the degrees multiply to {world} but there are {gpus} GPUs; choose degrees whose product is {gpus}")]
    WorldSize {
        /// Product of the degrees.
        world: usize,
        /// GPUs present.
        gpus: usize,
    },
}

impl Parallel {
    /// No split.
    pub const NONE: Self = Self { pipefusion: 1, ulysses: 1 };

    /// The split that suits `gpus` GPUs wired by `interconnect`.
    pub fn automatic(gpus: usize, interconnect: Interconnect) -> Self {
        match (gpus, interconnect) {
            (0 | 1, _) => Self::NONE,
            (n, Interconnect::Pcie) => Self { pipefusion: n, ulysses: 1 },
            (n, Interconnect::Nvlink) => Self { pipefusion: 1, ulysses: n },
        }
    }

    /// Worker processes needed.
    pub fn world_size(self) -> usize {
        self.pipefusion.saturating_mul(self.ulysses)
    }

    /// Refuses degrees that don't use every GPU once.
    pub fn check(self, gpus: usize) -> Result<Self, ParallelError> {
        let world = self.world_size();
        if world == gpus.max(1) { Ok(self) } else { Err(ParallelError::WorldSize { world, gpus }) }
    }
}

impl FromStr for Parallel {
    type Err = ParallelError;

    fn from_str(text: &str) -> Result<Self, ParallelError> {
        let bad = || ParallelError::Syntax(text.to_owned());
        let mut split = Self::NONE;
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (name, degree) = part.split_once('=').ok_or_else(bad)?;
            let degree = degree.trim().parse::<usize>().ok().filter(|d| *d > 0).ok_or_else(bad)?;
            let name = name.trim();
            if seen.contains(&name) {
                return Err(bad());
            }
            seen.push(name);
            match name {
                "pipefusion" => split.pipefusion = degree,
                "ulysses" => split.ulysses = degree,
                _ => return Err(bad()),
            }
        }
        Ok(split)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_checks_the_world_size() {
        let split: Parallel = "ulysses=2, pipefusion=3".parse().unwrap();
        assert_eq!(split, Parallel { pipefusion: 3, ulysses: 2 });
        assert!(split.check(6).is_ok());
        assert_eq!(split.check(4), Err(ParallelError::WorldSize { world: 6, gpus: 4 }));
        for bad in ["", "ulysses", "ulysses=0", "ulysses=2,ulysses=2", "tensor=2", "ulysses=-1"] {
            assert!(bad.parse::<Parallel>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_wiring_chooses_the_split() {
        assert_eq!(Parallel::automatic(1, Interconnect::Nvlink), Parallel::NONE);
        assert_eq!(Parallel::automatic(4, Interconnect::Pcie).pipefusion, 4);
        assert_eq!(Parallel::automatic(4, Interconnect::Nvlink).ulysses, 4);
    }
}
