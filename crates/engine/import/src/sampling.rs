//! What the settings of ComfyUI's samplers are in ours. Every convention that differs is converted here.

/// The settings of a `sample` node that need translation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub steps: u64,
    /// The share of the steps that runs, when not all do.
    pub strength: Option<f64>,
    /// Guidance, when it is on.
    pub cfg: Option<f64>,
    pub sampler: &'static str,
    pub scheduler: &'static str,
}

/// Guidance scale, `None` for off.
///
/// ComfyUI interpolates, `negative + cfg * (positive - negative)`, and skips the negative prompt at 1. The `cfg` of our
/// `sample` node extrapolates, `positive + cfg * (positive - negative)`, and is off at 0: ours is one less.
///
/// # Errors
/// Below 1 the picture is pulled towards the negative prompt, which has no counterpart.
pub(crate) fn guidance(cfg: f64) -> Result<Option<f64>, String> {
    if (cfg - 1.0).abs() < 1e-9 {
        return Ok(None);
    }
    if cfg < 1.0 {
        return Err(format!(
            "cfg {cfg} is below 1, which favours the negative prompt; set it to 1 to turn guidance off"
        ));
    }
    // Rounded, so that 4.1 becomes 3.1 and not 3.0999999999999996.
    Ok(Some(((cfg - 1.0) * 1e6).round() / 1e6))
}

/// Steps and strength for ComfyUI's `steps` and `denoise`.
///
/// ComfyUI always runs `steps` steps, the last ones of a schedule of `steps / denoise`. Our `sample` node is given the
/// schedule's steps and runs the last `steps * strength`, rounded up.
///
/// # Errors
/// A denoise that runs no step, and one so small that the schedule would have no end.
pub(crate) fn denoise(steps: u64, denoise: f64) -> Result<(u64, Option<f64>), String> {
    const LONGEST: f64 = 10_000.0;
    if denoise > 0.9999 {
        return Ok((steps, None));
    }
    let schedule = (steps as f64 / denoise).floor();
    if denoise <= 0.0 || schedule > LONGEST {
        return Err(format!("denoise {denoise} leaves no steps to run; raise it"));
    }
    // Rounded down in the fourth place, so that the share never reaches one step more.
    let run = steps as f64;
    let mut strength = (run / schedule * 1e4).floor() / 1e4;
    if strength * schedule > run {
        strength -= 1e-4;
    }
    Ok((schedule as u64, (schedule > run).then_some(strength)))
}

/// Our name of a sampler.
pub(crate) fn sampler(name: &str) -> Option<&'static str> {
    Some(match name {
        "euler" => "euler",
        "euler_ancestral" => "euler_ancestral",
        "heun" => "heun",
        "dpmpp_2m" => "dpmpp_2m",
        "dpmpp_2m_sde" => "dpmpp_2m_sde",
        "dpmpp_sde" => "dpmpp_sde",
        "uni_pc" => "unipc",
        "lcm" => "lcm",
        "ddim" => "ddim",
        _ => return None,
    })
}

/// Our name of a sigma schedule.
pub(crate) fn scheduler(name: &str) -> Option<&'static str> {
    ["simple", "normal", "karras", "exponential", "sgm_uniform", "beta"].into_iter().find(|known| *known == name)
}

/// Whether a sampler draws noise between steps.
pub(crate) fn is_stochastic(sampler: &str) -> bool {
    matches!(sampler, "euler_ancestral" | "dpmpp_2m_sde" | "dpmpp_sde" | "lcm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guidance_is_one_less_and_off_at_one() {
        assert_eq!(guidance(1.0), Ok(None));
        assert_eq!(guidance(4.0), Ok(Some(3.0)));
        assert_eq!(guidance(4.1), Ok(Some(3.1)));
        assert!(guidance(0.0).unwrap_err().contains("below 1"));
        // Both formulas on one prediction.
        let (positive, negative) = (3.0, 1.0);
        let theirs = negative + 7.5 * (positive - negative);
        let ours = positive + guidance(7.5).unwrap().unwrap() * (positive - negative);
        assert_eq!(theirs, ours);
    }

    #[test]
    fn denoise_runs_the_same_number_of_steps_of_the_same_schedule() {
        assert_eq!(denoise(20, 1.0), Ok((20, None)));
        assert_eq!(denoise(20, 0.5), Ok((40, Some(0.5))));
        for steps in 1..=60 {
            for percent in 5..100u32 {
                let wanted = f64::from(percent) / 100.0;
                let (schedule, strength) = denoise(steps, wanted).unwrap();
                assert_eq!(schedule, (steps as f64 / wanted) as u64);
                // The first step of an image-to-image schedule, as diffusers counts it.
                let share = (schedule as f64 * strength.unwrap_or(1.0)).min(schedule as f64);
                let first = (schedule as f64 - share).max(0.0) as u64;
                assert_eq!(schedule - first, steps, "{steps} steps, denoise {wanted}");
            }
        }
        for bad in [0.0, -1.0, 1e-300] {
            assert!(denoise(20, bad).is_err());
        }
    }

    #[test]
    fn names_that_mean_the_same_are_known() {
        assert_eq!(sampler("uni_pc"), Some("unipc"));
        assert_eq!((sampler("uni_pc_bh2"), scheduler("ddim_uniform")), (None, None));
        for name in ["euler", "euler_ancestral", "heun", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_sde", "lcm", "ddim"] {
            assert_eq!(sampler(name), Some(name));
        }
        for name in ["simple", "normal", "karras", "exponential", "sgm_uniform", "beta"] {
            assert_eq!(scheduler(name), Some(name));
        }
    }
}
