//! From settings to an engine's parts.

use crate::args::SettingsArgs;
use crate::{Failure, Result};
use engine_device::{DevicePolicy, Machine, Settings};
use engine_nodes::{AssetSource, ModelLibrary, Nodes, NodesConfig};
use engine_runs::{Media, PathAccess};
use sampling::{InlineSampler, SampleService};
use std::path::PathBuf;
use std::sync::Arc;

/// The device policy of these settings on this machine.
pub(crate) fn policy(settings: &SettingsArgs) -> Result<DevicePolicy> {
    let wanted = Settings::from_env(|name| match name {
        "INLINE_PROFILE" => settings.profile.clone(),
        "INLINE_VRAM_BUDGET_GB" => settings.vram_budget_gb.clone(),
        "INLINE_ALLOW_CPU_OFFLOAD" => settings.allow_cpu_offload.clone(),
        "INLINE_SMART_MEMORY" => settings.smart_memory.clone(),
        "INLINE_PARALLEL" => settings.parallel.clone(),
        _ => None,
    });
    let wanted = wanted.map_err(Failure::of)?;
    DevicePolicy::new(Machine::host(layers::best_cpu_precision() == gen_core::Precision::Bf16), wanted)
        .map_err(Failure::of)
}

/// Checkpoints that settings name, by family.
fn overrides(settings: &SettingsArgs) -> Result<Vec<(&'static str, PathBuf)>> {
    match &settings.zimage_model {
        None => Ok(Vec::new()),
        Some(path) if path.exists() => Ok(vec![("z_image", path.clone())]),
        Some(path) => Err(Failure(format!("INLINE_ZIMAGE_MODEL: there is nothing at {}", path.display()))),
    }
}

/// The nodes over this build's providers and the user's models.
pub(crate) fn nodes(
    settings: &SettingsArgs,
    assets: Arc<dyn AssetSource>,
    sampler: Arc<dyn SampleService>,
) -> Result<Nodes> {
    let config = NodesConfig {
        providers: Arc::new(runtime_cpu::media::provider_registry().map_err(Failure::of)?),
        text: Arc::new(runtime_cpu::text_registry().map_err(Failure::of)?),
        policy: policy(settings)?,
        library: Arc::new(ModelLibrary::new(&settings.models_dir, overrides(settings)?)),
        assets,
        sampler,
    };
    Nodes::new(config).map_err(Failure::of)
}

/// The nodes for a command that runs graphs itself: files may be named by path, as the user's own shell could read them.
pub(crate) fn local_nodes(settings: &SettingsArgs) -> Result<Nodes> {
    nodes(settings, Arc::new(Media::without_store(&settings.data_dir, PathAccess::Any)), Arc::new(InlineSampler))
}
