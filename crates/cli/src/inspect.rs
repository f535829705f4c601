//! `inline inspect`: what a checkpoint is, from its header.

use crate::args::SettingsArgs;
use crate::{Failure, Result, setup};
use engine_device::ModelNeeds;
use gen_core::{ComponentFootprint, Footprint, LoadSpec, Precision, Quant, Role, WeightsSource};
use serde_json::json;
use std::path::Path;
use weights::Identity;

/// A component in a few words.
pub(crate) fn label(identity: &Identity) -> String {
    let variant = identity.variant.as_deref().map(|v| format!(" {v}")).unwrap_or_default();
    let role = identity.role.map_or_else(|| "adapter".to_owned(), |role| role.to_string());
    format!("{}{variant} {role}", identity.family)
}

pub(crate) fn run(settings: &SettingsArgs, path: &Path, json: bool) -> Result<()> {
    let found = weights::look_into(path).map_err(|problem| {
        let name = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        // Messages about a file begin with its name already.
        Failure(if problem.starts_with(&name) { problem } else { format!("{name}: {problem}") })
    })?;
    let policy = setup::policy(settings)?;
    let precision = policy.dtype(Role::Denoiser);
    let (footprint, quants) = footprint(path, &found, precision);
    let needs = ModelNeeds { footprint: &footprint, precision, quants: &quants, ships_quantized: false };
    let rung = policy.plan(&needs);
    let bytes = |role: Option<Role>| role.map_or(0, |role| footprint.bytes(role));
    if json {
        let components: Vec<_> = found
            .iter()
            .map(|identity| {
                let mut component = json!(identity);
                component["residentBytes"] = json!(bytes(identity.role));
                component
            })
            .collect();
        let report = json!({
            "components": components,
            "precision": precision.to_string(),
            "residentBytes": footprint.total(),
            "rung": rung.as_ref().ok().map(|plan| plan.rung),
            "problem": rung.as_ref().err().map(ToString::to_string),
        });
        println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::of)?);
        return Ok(());
    }
    for identity in &found {
        let dtypes: Vec<_> = identity.dtypes.iter().map(|(dtype, n)| format!("{dtype} {}", count(*n))).collect();
        let geometry: Vec<_> = identity.geometry.iter().map(|(key, value)| format!("{key} {value}")).collect();
        println!("{}", label(identity));
        println!(
            "  layout      {:?}{}",
            identity.layout,
            if identity.prefix.is_empty() { String::new() } else { format!(", below {}", identity.prefix) }
        );
        println!("  parameters  {} ({})", count(identity.parameters), dtypes.join(", "));
        println!("  geometry    {}", if geometry.is_empty() { "not known".to_owned() } else { geometry.join(", ") });
        println!(
            "  on disk     {:.2} GB, resident {:.2} GB in {precision}",
            giga(identity.bytes),
            giga(bytes(identity.role))
        );
    }
    match rung {
        Ok(plan) => println!("here          {}, {:.2} GB", plan.rung.describe(), giga(plan.device_bytes)),
        Err(refusal) => println!("here          {refusal}"),
    }
    Ok(())
}

/// Resident bytes as the provider will hold them, if it can open the checkpoint as it lies; else counted from the header.
fn footprint(path: &Path, found: &[Identity], precision: Precision) -> (Footprint, Vec<Quant>) {
    let registry = runtime_cpu::media::provider_registry().ok();
    let provider = registry.as_ref().and_then(|registry| {
        let family = found.iter().find(|i| i.role == Some(Role::Denoiser))?.family;
        registry.generators().find(|entry| entry.descriptor.family == family)
    });
    if let (Some(registry), Some(entry)) = (&registry, provider) {
        let quants = entry.descriptor.capabilities.quants.clone();
        let spec = LoadSpec::new(WeightsSource::from_path(path)).with_precision(precision);
        if let Ok(footprint) = registry.footprint(&entry.descriptor.id, &spec) {
            return (footprint, quants);
        }
        return (counted(found, precision), quants);
    }
    (counted(found, precision), Vec::new())
}

fn counted(found: &[Identity], precision: Precision) -> Footprint {
    let components = found.iter().filter_map(|identity| {
        let bytes = identity.resident_bytes(precision);
        let quantizable_bytes = if identity.role == Some(Role::Vae) { 0 } else { bytes };
        Some(ComponentFootprint { role: identity.role?, parameters: identity.parameters, bytes, quantizable_bytes })
    });
    Footprint { components: components.collect() }
}

fn giga(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

fn count(n: u64) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}
