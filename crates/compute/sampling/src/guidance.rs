//! Combining conditional and unconditional predictions.

use gen_core::{Error, GenerationRequest, GuidanceRecipe, Result};

/// Classifier-free guidance (Ho & Salimans 2022) with the two refinements of Z-Image's reference pipeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// Which formula `scale` belongs to.
    pub recipe: GuidanceRecipe,
    /// Guidance scale.
    pub scale: f32,
    /// Cap on the result's norm, as a multiple of the conditional prediction's; 0 for none.
    pub normalization: f32,
    /// Guidance is dropped where `1 - sigma` is past this; above 1 it is never dropped.
    pub truncation: f32,
}

impl Guidance {
    /// What a request asks for, with `default_scale` where it names none.
    ///
    /// Without a guidance method the request's normalization and truncation apply as they are. `cfg` allows neither;
    /// `cfg_norm` only the first, capping at the conditional prediction's own norm where nothing else is said;
    /// `cfg_trunc` only the second.
    ///
    /// # Errors
    /// A method that isn't known, or a refinement that the named method doesn't have.
    pub fn of(recipe: GuidanceRecipe, request: &GenerationRequest, default_scale: f32) -> Result<Self> {
        let scale = request.true_cfg.unwrap_or(default_scale);
        let (mut normalization, truncation) = (request.cfg_normalization, request.cfg_truncation);
        let method = request.guidance_method.as_deref();
        let (norm, trunc) = match method {
            None => (true, true),
            Some("cfg") => (false, false),
            Some("cfg_norm") => (true, false),
            Some("cfg_trunc") => (false, true),
            Some(other) => return Err(Error::invalid("guidance_method", format!("'{other}' is not known"))),
        };
        if normalization > 0.0 && !norm {
            return Err(Error::invalid("cfg_normalization", "belongs to the guidance method cfg_norm"));
        }
        if truncation < 1.0 && !trunc {
            return Err(Error::invalid("cfg_truncation", "belongs to the guidance method cfg_trunc"));
        }
        if method == Some("cfg_norm") && normalization == 0.0 {
            normalization = 1.0;
        }
        Ok(Self { recipe, scale, normalization, truncation })
    }

    /// Whether an unconditional prediction is needed at all.
    pub fn is_on(&self) -> bool {
        match self.recipe {
            GuidanceRecipe::Extrapolate => self.scale > 0.0,
            GuidanceRecipe::Interpolate => self.scale > 1.0,
        }
    }

    /// Whether an unconditional prediction is needed at `sigma`.
    pub fn is_on_at(&self, sigma: f32) -> bool {
        // The model's time as the reference computes it, over a scale of 1000.
        let time = (1000.0 - sigma * 1000.0) / 1000.0;
        self.is_on() && !(self.truncation <= 1.0 && time > self.truncation)
    }

    /// Replaces `positive` by the guided prediction. Both are one row of the same length.
    pub fn apply(&self, positive: &mut [f32], negative: &[f32]) {
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let limit = norm(positive) * f64::from(self.normalization);
        for (p, n) in positive.iter_mut().zip(negative) {
            *p = match self.recipe {
                GuidanceRecipe::Extrapolate => *p + self.scale * (*p - n),
                GuidanceRecipe::Interpolate => n + self.scale * (*p - n),
            };
        }
        if self.normalization > 0.0 {
            let guided = norm(positive);
            if guided > limit {
                let factor = (limit / guided) as f32;
                positive.iter_mut().for_each(|p| *p *= factor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guidance(recipe: GuidanceRecipe, scale: f32) -> Guidance {
        Guidance { recipe, scale, normalization: 0.0, truncation: 1.0 }
    }

    #[test]
    fn both_formulas_match_hand_calculation() {
        let mut row = [3.0, -1.0];
        guidance(GuidanceRecipe::Extrapolate, 2.0).apply(&mut row, &[1.0, 0.0]);
        assert_eq!(row, [7.0, -3.0]);
        let mut row = [3.0, -1.0];
        guidance(GuidanceRecipe::Interpolate, 2.0).apply(&mut row, &[1.0, 0.0]);
        assert_eq!(row, [5.0, -2.0]);
    }

    #[test]
    fn normalization_caps_the_norm_and_keeps_the_direction() {
        let capped = Guidance { normalization: 1.0, ..guidance(GuidanceRecipe::Extrapolate, 2.0) };
        let mut row = [3.0, 4.0];
        capped.apply(&mut row, &[0.0, 0.0]);
        assert!((row[0] - 3.0).abs() < 1e-6 && (row[1] - 4.0).abs() < 1e-6, "{row:?}");
        let loose = Guidance { normalization: 10.0, ..capped };
        let mut row = [3.0, 4.0];
        loose.apply(&mut row, &[0.0, 0.0]);
        assert_eq!(row, [9.0, 12.0]);
    }

    #[test]
    fn truncation_drops_guidance_late() {
        let late = Guidance { truncation: 0.5, ..guidance(GuidanceRecipe::Extrapolate, 4.0) };
        assert!(late.is_on_at(0.6) && !late.is_on_at(0.4));
        assert!(!guidance(GuidanceRecipe::Extrapolate, 0.0).is_on());
        assert!(!guidance(GuidanceRecipe::Interpolate, 1.0).is_on());
        assert!(!guidance(GuidanceRecipe::Interpolate, 0.0).is_on());
        let early = Guidance { truncation: 0.0, ..late };
        assert!(early.is_on_at(1.0) && !early.is_on_at(0.99));
    }

    #[test]
    fn a_method_allows_its_own_refinement_only() {
        let of = |method: Option<&str>, normalization, truncation| {
            let request = GenerationRequest {
                guidance_method: method.map(str::to_owned),
                cfg_normalization: normalization,
                cfg_truncation: truncation,
                ..GenerationRequest::default()
            };
            Guidance::of(GuidanceRecipe::Extrapolate, &request, 4.0)
                .map(|g| (g.scale, g.normalization, g.truncation))
                .map_err(|e| e.to_string().split(':').next().unwrap().to_owned())
        };
        assert_eq!(of(None, 0.5, 0.7), Ok((4.0, 0.5, 0.7)));
        assert_eq!(of(Some("cfg"), 0.0, 1.0), Ok((4.0, 0.0, 1.0)));
        assert_eq!(of(Some("cfg_norm"), 0.0, 1.0), Ok((4.0, 1.0, 1.0)));
        assert_eq!(of(Some("cfg_norm"), 0.5, 1.0), Ok((4.0, 0.5, 1.0)));
        assert_eq!(of(Some("cfg_trunc"), 0.0, 0.6), Ok((4.0, 0.0, 0.6)));
        assert_eq!(of(Some("cfg"), 0.5, 1.0), Err("cfg_normalization".into()));
        assert_eq!(of(Some("cfg_norm"), 0.0, 0.6), Err("cfg_truncation".into()));
        assert_eq!(of(Some("apg"), 0.0, 1.0), Err("guidance_method".into()));
    }
}
