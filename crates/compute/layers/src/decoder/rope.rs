//! Rotary frequencies with the scaling that a config asks for, as transformers computes it.

use std::f64::consts::TAU;

use serde_json::Value;

/// How far a pair of elements turns from token to token.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// One frequency a pair of elements of a head.
    pub frequencies: Vec<f64>,
    /// Multiplies sines and cosines.
    pub factor: f64,
}

/// The settings of one kind of layer.
pub(super) struct Settings<'a> {
    /// Elements of a head that are rotated.
    pub(super) dim: usize,
    pub(super) theta: f64,
    /// `rope_scaling` or `rope_parameters` of a config.
    pub(super) scaling: Option<&'a Value>,
    pub(super) max_positions: f64,
    /// The context of training where scaling extends it, if the config names it at its top level.
    pub(super) original: Option<f64>,
}

impl Settings<'_> {
    fn number(&self, key: &str) -> Option<f64> {
        self.scaling.and_then(|s| s.get(key)).and_then(Value::as_f64)
    }

    fn need(&self, key: &str) -> Result<f64, String> {
        self.number(key).filter(|v| *v > 0.0).ok_or_else(|| format!("has rope scaling without {key}"))
    }

    fn list(&self, key: &str, count: usize) -> Result<Vec<f64>, String> {
        let list = self.scaling.and_then(|s| s.get(key)).and_then(Value::as_array);
        let list: Option<Vec<f64>> = list.map(|l| l.iter().filter_map(Value::as_f64).collect());
        let list = list.filter(|l| l.len() == count && l.iter().all(|f| *f > 0.0));
        list.ok_or_else(|| format!("has rope scaling without {count} numbers as {key}"))
    }

    fn original(&self) -> f64 {
        self.number("original_max_position_embeddings").or(self.original).unwrap_or(self.max_positions)
    }

    /// The rotation, and the one of stretched sequences where the scaling tells the two apart.
    pub(super) fn rotations(&self) -> Result<(Rotation, Option<Rotation>), String> {
        let base = crate::RopeTable::frequencies(self.dim, self.theta);
        let plain = |frequencies: Vec<f64>| Ok((Rotation { frequencies, factor: 1.0 }, None));
        let kind = self.scaling.and_then(|s| s.get("rope_type").or_else(|| s.get("type"))).and_then(Value::as_str);
        match kind {
            // Dynamic scaling begins where the trained context ends, which is as far as sequences go here.
            None | Some("default" | "dynamic" | "none") => plain(base),
            Some("linear") => {
                let factor = self.need("factor")?;
                plain(base.into_iter().map(|f| f / factor).collect())
            }
            // Low frequencies are divided, high ones kept, those between blended.
            Some("llama3") => {
                let (factor, low) = (self.need("factor")?, self.need("low_freq_factor")?);
                let high = self.need("high_freq_factor")?;
                let context = self.need("original_max_position_embeddings")?;
                let scale = |frequency: f64| {
                    let turns = context * frequency / TAU;
                    let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (blend + (1.0 - blend) / factor)
                };
                plain(base.into_iter().map(scale).collect())
            }
            // As GGUF files hold Llama 3's: a divisor for each frequency.
            Some("factors") => {
                let list = self.list("factors", base.len())?;
                plain(base.iter().zip(list).map(|(f, by)| f / by).collect())
            }
            Some("yarn") => self.yarn(base),
            Some("longrope" | "su") => self.longrope(base),
            Some(other) => Err(format!("uses rope scaling '{other}', which is not supported")),
        }
    }

    /// YaRN (Peng et al. 2023).
    fn yarn(&self, base: Vec<f64>) -> Result<(Rotation, Option<Rotation>), String> {
        let factor = self.need("factor")?;
        let dim = self.dim as f64;
        let original = self.original();
        let turning = |turns: f64| dim * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) =
            (turning(self.number("beta_fast").unwrap_or(32.0)), turning(self.number("beta_slow").unwrap_or(1.0)));
        let truncate = self.scaling.and_then(|s| s.get("truncate")).and_then(Value::as_bool);
        if truncate != Some(false) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let blend = |(i, f): (usize, f64)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        };
        let frequencies = base.into_iter().enumerate().map(blend).collect();
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let given = match (self.number("mscale"), self.number("mscale_all_dim")) {
            (Some(one), Some(all)) if one != 0.0 && all != 0.0 => scale(one) / scale(all),
            _ => scale(1.0),
        };
        Ok((Rotation { frequencies, factor: self.number("attention_factor").unwrap_or(given) }, None))
    }

    /// LongRoPE (Ding et al. 2024): factors for short sequences, and others for stretched ones.
    fn longrope(&self, base: Vec<f64>) -> Result<(Rotation, Option<Rotation>), String> {
        let original = self.original();
        let stretch = self.number("factor").unwrap_or(self.max_positions / original);
        let given = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
        let factor = self.number("attention_factor").unwrap_or(given);
        let rotation = |key: &str| {
            let list = self.list(key, base.len())?;
            Ok::<_, String>(Rotation { frequencies: base.iter().zip(list).map(|(f, by)| f / by).collect(), factor })
        };
        Ok((rotation("short_factor")?, Some(rotation("long_factor")?)))
    }
}
