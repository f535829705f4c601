//! A feed-forward block of many experts, a few of which each token goes to (Shazeer et al. 2017).

use kernels::linear::Epilogue;
use kernels::{Ctx, Result};
use weights::Weights;

use super::config::Experts;
use super::layer::{multiply, packed, unpacked};
use crate::{Activation, GatedMlp, Linear};

pub(super) struct SparseMlp {
    router: Linear,
    experts: Vec<GatedMlp>,
    settings: Experts,
}

impl SparseMlp {
    pub(super) fn new(mlp: &Weights, dim: usize, settings: Experts, activation: Activation) -> weights::Result<Self> {
        let expert = |index| {
            let [gate, up, down] =
                ["gate_proj", "up_proj", "down_proj"].map(|name| mlp.pp("experts").pp(index).pp(name));
            GatedMlp::new(&gate, &up, &down, [dim, settings.ffn], activation)
        };
        let experts = (0..settings.count).map(expert).collect::<weights::Result<Vec<_>>>()?;
        // The choice is made in full precision, like that of the reference.
        let exact = mlp.to_dtype(candle_core::DType::F32).with_quant(None);
        let router = Linear::new(&exact.pp("gate"), dim, settings.count, false)?;
        Ok(Self { router, experts, settings })
    }

    /// Adds the block's output for each row of `x` to that of `hidden`, expert after expert, so that a row's sum does not
    /// depend on the others.
    pub(super) fn add_to(&self, x: &[f32], dim: usize, hidden: &mut [f32]) -> Result<()> {
        let rows = x.len() / dim;
        let mut scores = vec![0f32; rows * self.settings.count];
        multiply(packed(&self.router)?, x, rows, &mut scores, false)?;
        let mut takers: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()];
        for (row, scores) in scores.chunks_exact(self.settings.count).enumerate() {
            for (expert, weight) in self.choose(scores) {
                takers[expert].push((row, weight));
            }
        }
        for (expert, takers) in self.experts.iter().zip(takers).filter(|(_, takers)| !takers.is_empty()) {
            let (pair, down, activation) = expert.packed().ok_or_else(unpacked)?;
            let own: Vec<f32> = takers.iter().flat_map(|(row, _)| x[row * dim..(row + 1) * dim].to_vec()).collect();
            let mut inner = vec![0f32; takers.len() * pair.outputs()];
            let epilogue = Epilogue::activation(activation.into());
            pair.forward(Ctx::global(), (&own).into(), takers.len(), (&mut inner).into(), &epilogue)?;
            let mut out = vec![0f32; takers.len() * dim];
            multiply(down, &inner, takers.len(), &mut out, false)?;
            for ((row, weight), out) in takers.iter().zip(out.chunks_exact(dim)) {
                let hidden = &mut hidden[row * dim..(row + 1) * dim];
                hidden.iter_mut().zip(out).for_each(|(hidden, out)| *hidden += weight * out);
            }
        }
        Ok(())
    }

    /// The experts of a row with their weights: the softmax of all, of which the largest are taken.
    fn choose(&self, scores: &[f32]) -> Vec<(usize, f32)> {
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights: Vec<(usize, f32)> = scores.iter().map(|s| (s - highest).exp()).enumerate().collect();
        let all: f32 = weights.iter().map(|(_, weight)| weight).sum();
        weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        weights.truncate(self.settings.chosen);
        let chosen: f32 = weights.iter().map(|(_, weight)| weight).sum();
        let total = if self.settings.normalised { chosen } else { all };
        weights.iter_mut().for_each(|(_, weight)| *weight /= total);
        weights
    }
}
