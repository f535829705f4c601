use super::*;
use crate::Interconnect;
use gen_core::{ComponentFootprint, Footprint};

fn gpu(gib: u64, compute_capability: (u32, u32)) -> Accelerator {
    Accelerator { kind: DeviceKind::Cuda, ordinal: 0, name: "test".into(), total_bytes: gib * GIB, compute_capability }
}

fn policy(accelerators: Vec<Accelerator>, host_gib: u64, settings: Settings) -> DevicePolicy {
    let machine =
        Machine { accelerators, interconnect: Interconnect::Pcie, host_bytes: host_gib * GIB, cpu_bf16: false };
    DevicePolicy::new(machine, settings).unwrap()
}

/// A model of Z-Image's size in bf16: 12.3 GB denoiser, 8 GB text encoder, 0.17 GB VAE.
fn z_image() -> Footprint {
    let part = |role, bytes: u64, quantizable_bytes| ComponentFootprint {
        role,
        parameters: bytes / 2,
        bytes,
        quantizable_bytes,
    };
    Footprint {
        components: vec![
            part(Role::TextEncoder, 8_040_000_000, 7_200_000_000),
            part(Role::Denoiser, 12_300_000_000, 12_000_000_000),
            part(Role::Vae, 170_000_000, 0),
        ],
    }
}

fn needs<'a>(footprint: &'a Footprint, quants: &'a [Quant]) -> ModelNeeds<'a> {
    ModelNeeds { footprint, precision: Precision::Bf16, quants, ships_quantized: false }
}

const BOTH: &[Quant] = &[Quant::Q8, Quant::Nf4];

#[test]
fn a_gpu_is_preferred_and_its_memory_chooses_the_profile() {
    assert_eq!(policy(vec![], 24, Settings::default()).profile(), Profile::Cpu);
    assert_eq!(policy(vec![gpu(16, (8, 6))], 24, Settings::default()).profile(), Profile::GpuMax);
    assert_eq!(policy(vec![gpu(12, (8, 6))], 24, Settings::default()).profile(), Profile::LowVram);
    let budget = Settings { vram_budget_gb: Some(8.0), ..Settings::default() };
    assert_eq!(policy(vec![gpu(80, (9, 0))], 24, budget).profile(), Profile::LowVram);
}

#[test]
fn a_profile_without_its_device_is_refused() {
    let machine = Machine { accelerators: vec![], interconnect: Interconnect::Pcie, host_bytes: GIB, cpu_bf16: false };
    let settings = Settings { profile: Some(Profile::GpuMax), ..Settings::default() };
    assert_eq!(DevicePolicy::new(machine, settings).unwrap_err().name, "INLINE_PROFILE");
}

#[test]
fn the_ladder_takes_the_first_rung_that_fits() {
    let model = z_image();
    for (gib, rung) in [(48, Rung::FullResident), (16, Rung::Int8Resident), (10, Rung::Nf4Resident)] {
        let plan = policy(vec![gpu(gib, (8, 6))], 64, Settings::default()).plan(&needs(&model, BOTH)).unwrap();
        assert_eq!(plan.rung, rung, "{gib} GiB");
    }
    let plain = policy(vec![gpu(16, (8, 6))], 64, Settings::default()).plan(&needs(&model, &[])).unwrap();
    assert_eq!(plain.rung, Rung::SequentialOffload);
    assert_eq!(plain.placement(Role::Denoiser).offload, OffloadPolicy::Sequential);
}

#[test]
fn a_quantized_checkpoint_is_not_quantized_again() {
    let model = z_image();
    let needs = ModelNeeds { ships_quantized: true, ..needs(&model, BOTH) };
    let plan = policy(vec![gpu(16, (8, 6))], 64, Settings::default()).plan(&needs).unwrap();
    assert_eq!(plan.placement(Role::Denoiser).quant, None);
}

#[test]
fn what_cannot_fit_is_refused_with_sizes_and_a_way_out() {
    let model = z_image();
    let refusal = policy(vec![], 12, Settings::default()).plan(&needs(&model, &[])).unwrap_err();
    assert_eq!(refusal.needed_mb, 12_300);
    assert!(refusal.to_string().contains("nf4"), "{refusal}");
    let tiny = policy(vec![], 4, Settings::default()).plan(&needs(&model, BOTH)).unwrap_err();
    assert!(tiny.available_mb < tiny.needed_mb);
}

#[test]
fn offload_needs_host_memory_and_permission() {
    let model = z_image();
    let no_host = policy(vec![gpu(16, (8, 6))], 16, Settings::default()).plan(&needs(&model, &[]));
    assert!(no_host.is_err());
    let forbidden = Settings { allow_cpu_offload: false, ..Settings::default() };
    let refusal = policy(vec![gpu(16, (8, 6))], 64, forbidden).plan(&needs(&model, &[])).unwrap_err();
    assert!(refusal.advice.contains("INLINE_ALLOW_CPU_OFFLOAD") || refusal.advice.contains("ships that way"));
}

#[test]
fn old_cuda_cards_compute_in_f16_but_their_vae_does_not() {
    let old = policy(vec![gpu(16, (7, 5))], 64, Settings::default());
    assert_eq!(old.dtype(Role::Denoiser), Precision::F16);
    assert_eq!(old.dtype(Role::Vae), Precision::F32);
    assert_eq!(policy(vec![gpu(16, (8, 0))], 64, Settings::default()).dtype(Role::Vae), Precision::Bf16);
}

#[test]
fn cpus_compute_in_bf16_only_where_it_is_fast() {
    let mut machine =
        Machine { accelerators: vec![], interconnect: Interconnect::Pcie, host_bytes: GIB, cpu_bf16: false };
    assert_eq!(DevicePolicy::new(machine.clone(), Settings::default()).unwrap().dtype(Role::Denoiser), Precision::F32);
    machine.cpu_bf16 = true;
    assert_eq!(DevicePolicy::new(machine, Settings::default()).unwrap().dtype(Role::Denoiser), Precision::Bf16);
}

#[test]
fn only_the_denoiser_is_split_over_gpus() {
    let two = vec![gpu(24, (9, 0)), Accelerator { ordinal: 1, ..gpu(24, (9, 0)) }];
    let plan = policy(two, 64, Settings::default()).plan(&needs(&z_image(), BOTH)).unwrap();
    assert_eq!(plan.placement(Role::Denoiser).devices, [0, 1]);
    assert_eq!(plan.placement(Role::Denoiser).parallel.pipefusion, 2);
    assert_eq!(plan.placement(Role::Vae).devices, [0]);
}
