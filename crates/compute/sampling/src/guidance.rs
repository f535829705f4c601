//! Combining conditional and unconditional predictions.

use gen_core::GuidanceRecipe;

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
    /// Whether an unconditional prediction is needed at all.
    pub fn is_on(&self) -> bool {
        match self.recipe {
            GuidanceRecipe::Extrapolate => self.scale > 0.0,
            GuidanceRecipe::Interpolate => self.scale != 1.0,
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
    }
}
