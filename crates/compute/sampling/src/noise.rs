//! Gaussian noise equal to `torch.randn` with a CPU generator, so that seeds carry over.

use gen_core::{Latents, Result};
use std::f64::consts::TAU;

const N: usize = 624;
const M: usize = 397;

/// PyTorch's CPU generator: MT19937 (Matsumoto & Nishimura 1998) seeded with the low 32 bits of the seed.
///
/// Draws continue where the last one ended, as with a `torch.Generator`. Values differ from torch's own by rounding in
/// `ln`, `sqrt`, `cos` and `sin` only: less than 1e-6.
#[derive(Clone)]
pub struct TorchRng {
    state: [u32; N],
    index: usize,
    /// The second value of the last pair, which torch keeps for the next small draw.
    spare: Option<f64>,
}

impl TorchRng {
    /// The generator after `manual_seed(seed)`.
    pub fn new(seed: u64) -> Self {
        let mut state = [0u32; N];
        state[0] = seed as u32;
        for i in 1..N {
            let previous = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Self { state, index: N, spare: None }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.index == N {
            self.refill();
        }
        let mut y = self.state[self.index];
        self.index += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn refill(&mut self) {
        for i in 0..N {
            let bits = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let twist = if bits & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (bits >> 1) ^ twist;
        }
        self.index = 0;
    }

    /// A uniform number in `[0, 1)` with 24 random bits.
    fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() & ((1 << 24) - 1)) as f32 * (1.0 / (1 << 24) as f32)
    }

    /// A uniform number in `[0, 1)` with 53 random bits.
    fn uniform_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32());
        let low = u64::from(self.next_u32());
        ((high << 32 | low) & ((1 << 53) - 1)) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// `torch.randn(shape)`: standard normal values, row-major.
    ///
    /// # Errors
    /// The shape has more elements than fit in memory.
    pub fn randn(&mut self, shape: &[usize]) -> Result<Latents> {
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).unwrap_or(usize::MAX);
        if elements > isize::MAX as usize / 4 {
            return Err(gen_core::Error::Backend(format!("noise of shape {shape:?} is too large")));
        }
        let mut values = vec![0f32; elements];
        self.fill(&mut values);
        Latents::new(shape.to_vec(), values)
    }

    /// Draws `torch.randn(values.len())` into `values`.
    pub(crate) fn fill(&mut self, values: &mut [f32]) {
        let len = values.len();
        if len < 16 {
            values.iter_mut().for_each(|v| *v = self.normal_f64() as f32);
            return;
        }
        values.iter_mut().for_each(|v| *v = self.uniform_f32());
        values.chunks_exact_mut(16).for_each(box_muller_16);
        if !len.is_multiple_of(16) {
            // The tail is drawn anew together with the values before it, so that a block is always whole.
            let tail = &mut values[len - 16..];
            tail.iter_mut().for_each(|v| *v = self.uniform_f32());
            box_muller_16(tail);
        }
    }

    /// One value of the path for small tensors: pairs in double precision, the sine half kept for the next call.
    fn normal_f64(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let u1 = self.uniform_f64();
        let u2 = self.uniform_f64();
        let radius = (-2.0 * (-u2).ln_1p()).sqrt();
        let theta = TAU * u1;
        self.spare = Some(radius * theta.sin());
        radius * theta.cos()
    }
}

/// The Box-Muller transform of 8 pairs `(i, i + 8)` in place.
fn box_muller_16(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(8);
    for (a, b) in first.iter_mut().zip(second) {
        let radius = (-2.0 * f64::from(1.0 - *a).ln()).sqrt();
        // The angle is rounded to f32 as torch does; the rest is exact enough to be nearer to every build of it.
        let theta = f64::from(std::f32::consts::TAU * *b);
        (*a, *b) = ((radius * theta.cos()) as f32, (radius * theta.sin()) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries `seed/AxBxC` of the reference's table.
    #[test]
    fn equals_torch_within_1e6() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/noise.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let table = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut checked = 0;
        for (name, tensor) in table.tensors() {
            let (seed, shape) = name.split_once('/').unwrap();
            let expected: Vec<f32> =
                tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let mut rng = TorchRng::new(seed.parse().unwrap());
            let draws: Vec<Vec<usize>> = match shape.strip_prefix("draws ") {
                Some(list) => list.split(',').map(|n| vec![n.trim().parse().unwrap()]).collect(),
                None => vec![shape.split('x').map(|n| n.parse().unwrap()).collect()],
            };
            let got: Vec<f32> = draws.iter().flat_map(|shape| rng.randn(shape).unwrap().into_data()).collect();
            assert_eq!(got.len(), expected.len(), "{name}");
            for (index, (g, e)) in got.iter().zip(&expected).enumerate() {
                assert!((g - e).abs() <= 1e-6, "{name}[{index}]: {g} is not {e}");
            }
            checked += 1;
        }
        assert!(checked > 20, "only {checked} tables");
    }
}
