//! The fit ladder: the first way of holding a model that fits.

use gen_core::{Footprint, Precision, Quant, Role};
use serde::{Deserialize, Serialize};

/// Bytes of an int8 weight, beside its per-channel scale.
const INT8_BYTES: f64 = 1.0;
/// Bytes of an NF4 weight with its block scales: 0.28 of bf16.
const NF4_BYTES: f64 = 0.56;

/// A way of holding a model, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// As the device computes, all resident.
    FullResident,
    /// Big weights in int8, all resident.
    Int8Resident,
    /// Big weights in NF4, all resident.
    Nf4Resident,
    /// One component at a time on the device.
    SequentialOffload,
}

impl Rung {
    /// All rungs, best first.
    pub const ALL: [Self; 4] = [Self::FullResident, Self::Int8Resident, Self::Nf4Resident, Self::SequentialOffload];

    /// The quantization that the rung applies while loading.
    pub fn quant(self) -> Option<Quant> {
        match self {
            Self::Int8Resident => Some(Quant::Q8),
            Self::Nf4Resident => Some(Quant::Nf4),
            Self::FullResident | Self::SequentialOffload => None,
        }
    }

    /// Name for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::FullResident => "full precision, resident",
            Self::Int8Resident => "int8, resident",
            Self::Nf4Resident => "nf4, resident",
            Self::SequentialOffload => "one component at a time",
        }
    }
}

/// What the ladder must know of a model.
#[derive(Debug, Clone)]
pub struct ModelNeeds<'a> {
    /// Resident bytes per component at `precision`, counted from headers.
    pub footprint: &'a Footprint,
    /// The precision that the footprint was counted for.
    pub precision: Precision,
    /// Quantizations that the provider can apply.
    pub quants: &'a [Quant],
    /// The checkpoint is quantized already; it is never quantized again.
    pub ships_quantized: bool,
}

/// A model that no rung can hold here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this model needs {needed_mb} MB at its smallest ({smallest}) and this machine can give it {available_mb} MB; {advice}"
)]
pub struct WontFit {
    /// Megabytes (10^6 bytes) of the smallest rung.
    pub needed_mb: u64,
    /// Megabytes that may be used.
    pub available_mb: u64,
    /// The smallest rung.
    pub smallest: &'static str,
    /// What to do.
    pub advice: String,
}

impl ModelNeeds<'_> {
    /// Whether the model may be held that way at all.
    pub fn allows(&self, rung: Rung) -> bool {
        rung.quant().is_none_or(|quant| !self.ships_quantized && self.quants.contains(&quant))
    }

    /// Device bytes while the model runs on `rung`, without activations.
    pub fn device_bytes(&self, rung: Rung) -> u64 {
        match rung {
            Rung::FullResident => self.footprint.total(),
            Rung::Int8Resident => self.quantized_total(INT8_BYTES),
            Rung::Nf4Resident => self.quantized_total(NF4_BYTES),
            Rung::SequentialOffload => self.largest_component().1,
        }
    }

    /// The component that needs most, and its bytes.
    pub fn largest_component(&self) -> (Option<Role>, u64) {
        let largest = self.footprint.components.iter().max_by_key(|c| c.bytes);
        (largest.map(|c| c.role), largest.map_or(0, |c| c.bytes))
    }

    fn quantized_total(&self, bytes_per_weight: f64) -> u64 {
        let element = self.precision.bytes() as f64;
        self.footprint
            .components
            .iter()
            .map(|c| {
                let quantized = c.quantizable_bytes as f64 / element * bytes_per_weight;
                c.bytes.saturating_sub(c.quantizable_bytes) + quantized.ceil() as u64
            })
            .sum()
    }
}
