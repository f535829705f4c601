//! Sinusoidal embedding of a time.

use candle_core::{Device, Result, Tensor};

/// Cosines, then sines, of `t * max_period^(-i / half)` for `i` below `half = dim / 2`: `(1, dim)` in f32, with a
/// zero at the end for an odd `dim` (Ho, Jain and Abbeel 2020, in the order of GLIDE). Computed in f32 as models are
/// trained.
pub fn timestep_embedding(t: f32, dim: usize, max_period: f64, device: &Device) -> Result<Tensor> {
    let half = dim / 2;
    let rate = -max_period.ln() as f32;
    let angle = |i: usize| f64::from(t * f64::from(rate * i as f32 / half as f32).exp() as f32);
    let mut values: Vec<f32> = (0..half).map(|i| angle(i).cos() as f32).collect();
    values.extend((0..half).map(|i| angle(i).sin() as f32));
    values.resize(dim, 0.0);
    Tensor::from_vec(values, (1, dim), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_come_first_and_slow_down() {
        let row =
            timestep_embedding(3.0, 9, 100.0, &Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for i in 0..4 {
            let angle = 3.0 * 100f64.powf(-(i as f64) / 4.0);
            assert!((f64::from(row[i]) - angle.cos()).abs() < 1e-6);
            assert!((f64::from(row[4 + i]) - angle.sin()).abs() < 1e-6);
        }
        assert_eq!(row[8], 0.0);
    }
}
