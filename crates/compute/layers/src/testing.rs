//! What the unit tests of this crate share.

use candle_core::{DType, Device, Tensor};

/// Reproducible numbers in -1..1.
pub(crate) fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Norm of the difference over the norm of what is wanted.
pub(crate) fn relative_error(got: &Tensor, want: &Tensor) -> f64 {
    let host = |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let (got, want) = (host(got), host(want));
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied()).max(1e-30)
}
