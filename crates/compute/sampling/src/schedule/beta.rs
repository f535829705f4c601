//! Quantiles of the symmetric beta distribution that the beta schedule is named for.

/// Both parameters of the distribution (Lee et al. 2024, "Beta Sampling is All You Need").
const SHAPE: f64 = 0.6;
/// The logarithm of Euler's beta function at both parameters: `2 ln Gamma(0.6) - ln Gamma(1.2)`.
const LN_BETA: f64 = 0.881_841_806_141_785_9;

/// The value below which a share `p` of Beta(0.6, 0.6) lies.
pub(super) fn quantile(p: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 {
        return p.clamp(0.0, 1.0);
    }
    // The distribution is its own mirror image; near 0 a double has more digits than near 1.
    if p > 0.5 {
        return 1.0 - quantile(1.0 - p);
    }
    let (mut low, mut high) = (0.0, 0.5);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if share(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The distribution function at `x` in `(0, 0.5]`: the regularized incomplete beta function by its continued fraction
/// (DLMF 8.17.22), evaluated from the front by Lentz's method.
fn share(x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut fraction = 1.0;
    let (mut c, mut d) = (1.0, 0.0);
    for n in 0..200 {
        let m = f64::from(n / 2);
        let term = match n {
            0 => 1.0,
            _ if n % 2 == 0 => m * (SHAPE - m) * x / ((SHAPE + 2.0 * m - 1.0) * (SHAPE + 2.0 * m)),
            _ => -(SHAPE + m) * (2.0 * SHAPE + m) * x / ((SHAPE + 2.0 * m) * (SHAPE + 2.0 * m + 1.0)),
        };
        d = 1.0 / away(1.0 + term * d);
        c = away(1.0 + term / c);
        let factor = c * d;
        fraction *= factor;
        if (factor - 1.0).abs() < 1e-15 {
            break;
        }
    }
    // Lentz starts from 1 + the fraction.
    let front = (SHAPE * x.ln() + SHAPE * (-x).ln_1p() - LN_BETA).exp() / SHAPE;
    front * (fraction - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_inverse_and_symmetric() {
        assert_eq!((quantile(0.0), quantile(1.0)), (0.0, 1.0));
        assert!((quantile(0.5) - 0.5).abs() < 1e-12);
        // From SciPy's beta.ppf.
        for (p, x) in
            [(0.001, 1.855_873_851_745_199e-5), (0.1, 0.039_584_405_588_780_85), (0.3, 0.234_017_003_875_235_72)]
        {
            assert!((quantile(p) / x - 1.0).abs() < 1e-10, "{p}");
        }
        for p in [0.001, 0.1, 0.3, 0.49] {
            assert!((share(quantile(p)) - p).abs() < 1e-12, "{p}");
            assert!((quantile(p) + quantile(1.0 - p) - 1.0).abs() < 1e-12, "{p}");
        }
    }
}
