//! What the machine has.

use serde::{Deserialize, Serialize};

/// Kinds of compute device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The host processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An Apple GPU.
    Mps,
}

/// How several GPUs are wired together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interconnect {
    /// Through the host's bus.
    Pcie,
    /// Directly.
    Nvlink,
}

/// A GPU, as the bundle that can drive it reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accelerator {
    /// CUDA or Apple.
    pub kind: DeviceKind,
    /// Its number.
    pub ordinal: usize,
    /// Its name, for messages.
    pub name: String,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// CUDA compute capability; `(0, 0)` elsewhere.
    pub compute_capability: (u32, u32),
}

/// Everything that a placement can depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// GPUs that this build can drive, in order.
    pub accelerators: Vec<Accelerator>,
    /// How they are wired.
    pub interconnect: Interconnect,
    /// Total host memory in bytes, within any container limit.
    pub host_bytes: u64,
    /// Whether the CPU path is fast in bf16 (AMX or AVX512-BF16 kernels).
    pub cpu_bf16: bool,
}

impl Machine {
    /// The host alone. `cpu_bf16` comes from the bundle, which knows what its kernels can do.
    pub fn host(cpu_bf16: bool) -> Self {
        Self { accelerators: Vec::new(), interconnect: Interconnect::Pcie, host_bytes: host_memory().total, cpu_bf16 }
    }

    /// The same machine with GPUs.
    pub fn with_accelerators(mut self, accelerators: Vec<Accelerator>, interconnect: Interconnect) -> Self {
        self.accelerators = accelerators;
        self.interconnect = interconnect;
        self
    }

    /// Host memory that is free at the moment, for display only: plans never depend on it.
    pub fn host_free_bytes() -> u64 {
        host_memory().free
    }
}

struct HostMemory {
    total: u64,
    free: u64,
}

fn host_memory() -> HostMemory {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let limits = system.cgroup_limits();
    // A container's limit binds before the machine's memory does.
    match limits.filter(|l| l.total_memory > 0) {
        Some(l) => HostMemory {
            total: l.total_memory.min(system.total_memory()),
            free: l.free_memory.min(system.available_memory()),
        },
        None => HostMemory { total: system.total_memory(), free: system.available_memory() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_memory_and_not_more_free_than_total() {
        let machine = Machine::host(false);
        assert!(machine.host_bytes > 64 << 20);
        let free = Machine::host_free_bytes();
        assert!(free > 0 && free <= machine.host_bytes);
    }
}
