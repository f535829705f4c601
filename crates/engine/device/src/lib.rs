//! The device policy: the only place that decides where and how a component of a model lives.
//!
//! A [`Machine`] is what there is, [`Settings`] are what the user wants, and a [`DevicePolicy`] turns both and a model's
//! footprint into a [`Plan`]: one [`Placement`] a role, or a refusal that says what is needed, what there is, and which
//! rung would fit. Capacities are totals and never what happens to be free, so that a plan is stable and may feed a cache key.

mod ladder;
mod machine;
mod parallel;
mod policy;
mod settings;

pub use ladder::{ModelNeeds, Rung, WontFit};
pub use machine::{Accelerator, DeviceKind, Interconnect, Machine};
pub use parallel::{Parallel, ParallelError};
pub use policy::{DeviceInfo, DevicePolicy, Placement, Plan};
pub use settings::{Profile, Settings, SettingsError};

/// One gigabyte as memory is counted here: 2^30 bytes.
pub const GIB: u64 = 1 << 30;
/// Memory kept back for activations, 2.5 GiB.
pub const ACTIVATION_HEADROOM: u64 = 5 * GIB / 2;
