//! From machine, settings and footprint to placements.

use crate::{
    ACTIVATION_HEADROOM, Accelerator, DeviceKind, GIB, Machine, ModelNeeds, Parallel, Profile, Rung, Settings,
    SettingsError, WontFit,
};
use gen_core::{OffloadPolicy, Precision, Quant, Role};
use serde::Serialize;

/// Where and how one component lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Kind of device.
    pub device: DeviceKind,
    /// Numbers of the devices, one unless the work is split.
    pub devices: Vec<usize>,
    /// Number format of the computation.
    pub dtype: Precision,
    /// Quantization applied while loading.
    pub quant: Option<Quant>,
    /// Whether the component may stay when another one runs.
    pub offload: OffloadPolicy,
    /// How a step is split over `devices`.
    pub parallel: Parallel,
}

/// How a model will be held: decided before anything is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The rung of the ladder.
    pub rung: Rung,
    /// Device bytes of the weights.
    pub device_bytes: u64,
    policy: DevicePolicy,
}

/// What `/v1/health` says of the device; megabytes are 2^20 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceInfo {
    /// Kind of the main device.
    pub kind: DeviceKind,
    /// Active profile.
    pub profile: Profile,
    /// Memory budget of the GPU.
    pub vram_budget_mb: Option<u64>,
    /// Free memory of the GPU.
    pub vram_free_mb: Option<u64>,
    /// Free host memory.
    pub ram_free_mb: u64,
}

/// The only owner of placement.
#[derive(Debug, Clone, PartialEq)]
pub struct DevicePolicy {
    machine: Machine,
    settings: Settings,
    profile: Profile,
    parallel: Parallel,
}

impl Eq for DevicePolicy {}

impl DevicePolicy {
    /// Builds the policy; a setting that contradicts the machine is refused.
    pub fn new(machine: Machine, settings: Settings) -> Result<Self, SettingsError> {
        let automatic = match machine.accelerators.first() {
            None => Profile::Cpu,
            Some(gpu) if budget(gpu, &settings) >= 16 * GIB => Profile::GpuMax,
            Some(_) => Profile::LowVram,
        };
        let profile = settings.profile.unwrap_or(automatic);
        if profile != Profile::Cpu && machine.accelerators.is_empty() {
            return Err(SettingsError {
                name: "INLINE_PROFILE",
                message: format!("{profile} needs a GPU that this build can drive, and there is none; use cpu"),
            });
        }
        let gpus = if profile == Profile::Cpu { 0 } else { machine.accelerators.len() };
        let parallel = match settings.parallel {
            Some(split) => {
                split.check(gpus).map_err(|e| SettingsError { name: "INLINE_PARALLEL", message: e.to_string() })?
            }
            None => Parallel::automatic(gpus, machine.interconnect),
        };
        Ok(Self { machine, settings, profile, parallel })
    }

    /// The active profile.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The GPU that single-device work runs on, if the profile uses one.
    fn gpu(&self) -> Option<&Accelerator> {
        self.machine.accelerators.first().filter(|_| self.profile != Profile::Cpu)
    }

    /// Memory for weights and activations: the device's total, or the user's budget.
    pub fn capacity(&self) -> u64 {
        self.gpu().map_or(self.machine.host_bytes, |gpu| budget(gpu, &self.settings))
    }

    /// Number format of `role`. A VAE is never f16, whose range its activations leave.
    pub fn dtype(&self, role: Role) -> Precision {
        match self.gpu() {
            Some(gpu) if gpu.kind == DeviceKind::Cuda && gpu.compute_capability < (8, 0) => {
                if role == Role::Vae {
                    Precision::F32
                } else {
                    Precision::F16
                }
            }
            Some(_) => Precision::Bf16,
            None if self.machine.cpu_bf16 => Precision::Bf16,
            None => Precision::F32,
        }
    }

    /// Chooses the rung for a model. The capacity less the activation headroom must hold the weights; offloaded weights
    /// must fit in host memory beside it.
    pub fn plan(&self, needs: &ModelNeeds<'_>) -> Result<Plan, WontFit> {
        let room = self.capacity().saturating_sub(ACTIVATION_HEADROOM);
        let fits = |rung: Rung| {
            if !needs.allows(rung) {
                return false;
            }
            let host_fits = match rung {
                // On a CPU the components that wait are on disk; beside a GPU they wait in host memory.
                Rung::SequentialOffload if self.gpu().is_some() => {
                    self.settings.allow_cpu_offload && needs.footprint.total() <= self.machine.host_bytes
                }
                _ => true,
            };
            host_fits && needs.device_bytes(rung) <= room
        };
        // Without smart memory a small GPU doesn't keep quantized weights resident.
        let resident_quants =
            self.profile != Profile::LowVram || self.settings.smart_memory && self.capacity() >= 6 * GIB;
        let rung = Rung::ALL.into_iter().find(|rung| fits(*rung) && (rung.quant().is_none() || resident_quants));
        match rung {
            Some(rung) => Ok(Plan { rung, device_bytes: needs.device_bytes(rung), policy: self.clone() }),
            None => Err(self.wont_fit(needs, room)),
        }
    }

    fn wont_fit(&self, needs: &ModelNeeds<'_>, room: u64) -> WontFit {
        let allowed = Rung::ALL.into_iter().filter(|rung| needs.allows(*rung));
        let smallest = allowed.min_by_key(|rung| needs.device_bytes(*rung)).unwrap_or(Rung::SequentialOffload);
        let would_fit = Rung::ALL.into_iter().find(|rung| !needs.allows(*rung) && needs.device_bytes(*rung) <= room);
        let advice = match would_fit {
            Some(rung) => format!("it would fit as {}, so use a checkpoint that ships that way", rung.describe()),
            None if self.gpu().is_some() && !self.settings.allow_cpu_offload => {
                "set INLINE_ALLOW_CPU_OFFLOAD=1, or use a smaller model".to_owned()
            }
            None => "use a smaller model or a machine with more memory".to_owned(),
        };
        WontFit {
            needed_mb: needs.device_bytes(smallest) / 1_000_000,
            available_mb: room / 1_000_000,
            smallest: smallest.describe(),
            advice,
        }
    }

    /// What the API says of the device.
    pub fn info(&self) -> DeviceInfo {
        const MIB: u64 = 1 << 20;
        DeviceInfo {
            kind: self.gpu().map_or(DeviceKind::Cpu, |gpu| gpu.kind),
            profile: self.profile,
            vram_budget_mb: self.gpu().map(|gpu| budget(gpu, &self.settings) / MIB),
            vram_free_mb: None,
            ram_free_mb: Machine::host_free_bytes() / MIB,
        }
    }
}

fn budget(gpu: &Accelerator, settings: &Settings) -> u64 {
    settings.vram_budget_gb.map_or(gpu.total_bytes, |gb| (gb * GIB as f64) as u64)
}

impl Plan {
    /// Where and how the component of `role` lives.
    pub fn placement(&self, role: Role) -> Placement {
        let quant = if role == Role::Vae { None } else { self.rung.quant() };
        let dtype = match quant {
            // int8 weights are computed with in bf16, whatever the device's own choice.
            Some(Quant::Q8) if self.policy.gpu().is_some() => Precision::Bf16,
            _ => self.policy.dtype(role),
        };
        let devices = match self.policy.gpu() {
            None => vec![0],
            Some(gpu) if role != Role::Denoiser || self.policy.parallel == Parallel::NONE => vec![gpu.ordinal],
            Some(_) => self.policy.machine.accelerators.iter().map(|gpu| gpu.ordinal).collect(),
        };
        Placement {
            device: self.policy.gpu().map_or(DeviceKind::Cpu, |gpu| gpu.kind),
            parallel: if devices.len() > 1 { self.policy.parallel } else { Parallel::NONE },
            devices,
            dtype,
            quant,
            offload: match self.rung {
                Rung::SequentialOffload => OffloadPolicy::Sequential,
                _ => OffloadPolicy::Resident,
            },
        }
    }
}

#[cfg(test)]
mod tests;
