//! What the user asked for; an explicit setting beats every heuristic.

use crate::Parallel;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A class of machine with its own defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// A GPU with 16 GB or more.
    GpuMax,
    /// A smaller GPU.
    #[serde(rename = "lowvram")]
    LowVram,
    /// No GPU.
    Cpu,
}

impl Profile {
    /// The name used in settings and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GpuMax => "gpu-max",
            Self::LowVram => "lowvram",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        [Self::GpuMax, Self::LowVram, Self::Cpu].into_iter().find(|p| p.as_str() == text).ok_or_else(|| SettingsError {
            name: "INLINE_PROFILE",
            message: format!("'{text}' is not a profile; use gpu-max, lowvram or cpu"),
        })
    }
}

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct SettingsError {
    /// The setting's environment variable.
    pub name: &'static str,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Device settings. `None` leaves the choice to the policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `INLINE_PROFILE`.
    pub profile: Option<Profile>,
    /// `INLINE_VRAM_BUDGET_GB`: counts as the device's total memory.
    pub vram_budget_gb: Option<f64>,
    /// `INLINE_ALLOW_CPU_OFFLOAD`: whether weights may wait in host memory.
    pub allow_cpu_offload: bool,
    /// `INLINE_SMART_MEMORY`: on small GPUs keep int8 weights resident where they fit.
    pub smart_memory: bool,
    /// `INLINE_PARALLEL`.
    pub parallel: Option<Parallel>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { profile: None, vram_budget_gb: None, allow_cpu_offload: true, smart_memory: true, parallel: None }
    }
}

impl Settings {
    /// Reads the settings from their environment variables through `lookup`; empty values count as absent.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let get = |name: &str| lookup(name).filter(|v| !v.trim().is_empty());
        let mut settings = Self::default();
        if let Some(text) = get("INLINE_PROFILE") {
            settings.profile = Some(text.parse()?);
        }
        if let Some(text) = get("INLINE_VRAM_BUDGET_GB") {
            let budget = text.parse::<f64>().ok().filter(|gb| gb.is_finite() && *gb > 0.0);
            settings.vram_budget_gb = Some(budget.ok_or_else(|| SettingsError {
                name: "INLINE_VRAM_BUDGET_GB",
                message: format!("'{text}' is not a positive number of gigabytes"),
            })?);
        }
        for (name, flag) in [
            ("INLINE_ALLOW_CPU_OFFLOAD", &mut settings.allow_cpu_offload),
            ("INLINE_SMART_MEMORY", &mut settings.smart_memory),
        ] {
            if let Some(text) = get(name) {
                *flag = parse_flag(name, &text)?;
            }
        }
        if let Some(text) = get("INLINE_PARALLEL") {
            let parallel = text.parse::<Parallel>();
            settings.parallel =
                Some(parallel.map_err(|e| SettingsError { name: "INLINE_PARALLEL", message: e.to_string() })?);
        }
        Ok(settings)
    }
}

fn parse_flag(name: &'static str, text: &str) -> Result<bool, SettingsError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(SettingsError { name, message: format!("'{text}' is neither on nor off; use 1 or 0") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_env(|name| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn reads_every_variable() {
        let settings = from(&[
            ("INLINE_PROFILE", "lowvram"),
            ("INLINE_VRAM_BUDGET_GB", "7.5"),
            ("INLINE_ALLOW_CPU_OFFLOAD", "0"),
            ("INLINE_SMART_MEMORY", "off"),
            ("INLINE_PARALLEL", "pipefusion=2,ulysses=2"),
        ])
        .unwrap();
        assert_eq!(settings.profile, Some(Profile::LowVram));
        assert_eq!(settings.vram_budget_gb, Some(7.5));
        assert!(!settings.allow_cpu_offload && !settings.smart_memory);
        assert_eq!(settings.parallel, Some(Parallel { pipefusion: 2, ulysses: 2 }));
        assert_eq!(from(&[("INLINE_PROFILE", "")]).unwrap(), Settings::default());
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for (name, value) in [
            ("INLINE_PROFILE", "huge"),
            ("INLINE_VRAM_BUDGET_GB", "-1"),
            ("INLINE_VRAM_BUDGET_GB", "NaN"),
            ("INLINE_SMART_MEMORY", "maybe"),
            ("INLINE_PARALLEL", "rings=3"),
        ] {
            assert_eq!(from(&[(name, value)]).unwrap_err().name, name, "{value}");
        }
    }
}
