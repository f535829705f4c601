//! Linear layers. Which implementation serves, and how weights are held, is decided here, once, when they are read.

use candle_core::{DType, Device, Result, Tensor, bail};
use kernels::linear::{Epilogue, PackedLinear, PackedLinearBuilder, Residual, WeightFormat};
use kernels::{Ctx, Values};
use runtime_base::Quant;
use weights::{RowBlock, StoredDtype, Weights};

use crate::error::backend;
use crate::{Activation, cpu};

/// One matrix, or a gated pair of them: `activation(x first^T) * (x second^T)`.
struct Matrix {
    storage: Storage,
    inputs: usize,
    outputs: usize,
}

enum Storage {
    /// Packed for the CPU kernels.
    Packed(PackedLinear),
    /// Plain tensors for Candle: `(outputs, inputs)`, or `(2 outputs, inputs)` for a pair, and the bias.
    Dense(Tensor, Option<Tensor>),
}

impl Matrix {
    /// Reads the rows of `parts` (with the number of rows of each), one after another.
    fn read(parts: &[(&Weights, usize)], inputs: usize, bias: bool, gated: bool) -> weights::Result<Self> {
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        let outputs = if gated { rows / 2 } else { rows };
        let (device, dtype) = parts.first().map_or((&Device::Cpu, DType::F32), |(w, _)| (w.device(), w.dtype()));
        let quant = parts.iter().find_map(|(weights, _)| weights.quant());
        let served = cpu::serves(device, dtype);
        let blocks = same_blocks(parts).filter(|_| served);
        let format = match (quant, dtype) {
            _ if blocks.is_some() => blocks.unwrap_or(WeightFormat::F32),
            (None, DType::BF16) => WeightFormat::Bf16,
            (None, _) => WeightFormat::F32,
            (Some(Quant::Q8), _) if served => WeightFormat::Int8,
            (Some(other), _) => {
                let message = format!("weights can't be held in {other:?} for {dtype:?} arithmetic on this device");
                return Err(weights::Error::Unsupported(message));
            }
        };
        let storage = if parts.iter().any(|(weights, _)| weights.is_dry_run()) {
            rehearse(parts, inputs, bias)?
        } else if served {
            let builder = if gated { PackedLinearBuilder::gated } else { PackedLinearBuilder::new };
            let layer = pack(parts, builder(format, outputs, inputs).map_err(backend)?, inputs)?;
            Storage::Packed(if bias { add_bias(layer, parts)? } else { layer })
        } else {
            let stack = |tensors: Vec<weights::Result<Tensor>>| {
                Tensor::cat(&tensors.into_iter().collect::<weights::Result<Vec<_>>>()?, 0).map_err(backend)
            };
            let weight = stack(parts.iter().map(|(w, rows)| w.get(&[*rows, inputs], "weight")).collect())?;
            let bias = bias.then(|| stack(parts.iter().map(|(w, rows)| w.get(&[*rows], "bias")).collect()));
            Storage::Dense(weight, bias.transpose()?)
        };
        Ok(Self { storage, inputs, outputs })
    }

    /// `gate` is the activation of a gated pair; `onto` is added to the result, which then has its type.
    fn forward(&self, x: &Tensor, gate: Option<Activation>, onto: Option<&Tensor>) -> Result<Tensor> {
        let mut shape = x.dims().to_vec();
        match shape.last_mut() {
            Some(last) if *last == self.inputs => *last = self.outputs,
            _ => bail!("a linear layer with {} inputs got {:?}", self.inputs, x.shape()),
        }
        if let Some(onto) = onto.filter(|onto| onto.dims() != shape) {
            bail!("a linear layer gives {shape:?}, which can't be added to {:?}", onto.shape());
        }
        let rows = x.elem_count() / self.inputs.max(1);
        let dtype = onto.unwrap_or(x).dtype();
        match &self.storage {
            Storage::Packed(layer) => {
                let inputs: Vec<&Tensor> = std::iter::once(x).chain(onto).collect();
                cpu::compute(&inputs, shape, dtype, |v, out| {
                    let residual = v.get(1).map_or(Residual::None, |onto| Residual::From(*onto));
                    let activation = gate.map(Into::into).unwrap_or_default();
                    let epilogue = Epilogue { activation, residual, ..Epilogue::default() };
                    layer.forward(Ctx::global(), v[0], rows, out, &epilogue)
                })
            }
            Storage::Dense(weight, bias) => {
                cpu::note("linear", x);
                let mut y = x.to_dtype(weight.dtype())?.reshape((rows, self.inputs))?.matmul(&weight.t()?)?;
                if let Some(bias) = bias {
                    y = y.broadcast_add(bias)?;
                }
                if let Some(activation) = gate {
                    let (first, second) = (y.narrow(1, 0, self.outputs)?, y.narrow(1, self.outputs, self.outputs)?);
                    y = (activation.forward_candle(&first.contiguous()?)? * second)?;
                }
                let y = y.reshape(shape)?.to_dtype(dtype)?;
                onto.map_or(Ok(y.clone()), |onto| onto + &y)
            }
        }
    }
}

/// Asks for everything, so that it is checked, and keeps nothing.
fn rehearse(parts: &[(&Weights, usize)], inputs: usize, bias: bool) -> weights::Result<Storage> {
    for (weights, rows) in parts {
        weights.for_each_rows([*rows, inputs], "weight", BLOCK, |_, _| Ok(()))?;
        if bias {
            weights.get(&[*rows], "bias")?;
        }
    }
    Tensor::zeros((0, inputs), DType::F32, &Device::Cpu).map(|weight| Storage::Dense(weight, None)).map_err(backend)
}

/// Rows that are read and packed at a time: a few megabytes.
const BLOCK: usize = 1 << 20;

fn pack(parts: &[(&Weights, usize)], mut builder: PackedLinearBuilder, inputs: usize) -> weights::Result<PackedLinear> {
    for (weights, rows) in parts {
        if builder.format().is_blocks() {
            let (_, blocks) = weights.stored_rows([*rows, inputs], "weight")?;
            builder.push_blocks(Ctx::global(), blocks).map_err(backend)?;
            continue;
        }
        weights.for_each_rows([*rows, inputs], "weight", BLOCK / inputs.max(1), |_, block| {
            let values = match &block {
                RowBlock::F32(values) => Values::F32(values),
                RowBlock::Bf16(values) => Values::Bf16(values),
            };
            builder.push(Ctx::global(), values).map_err(backend)
        })?;
    }
    builder.finish().map_err(backend)
}

/// The format of blocks that all parts are stored in, if they are: then they are held as they are.
fn same_blocks(parts: &[(&Weights, usize)]) -> Option<WeightFormat> {
    let mut formats = parts.iter().map(|(weights, _)| weights.stored_blocks("weight"));
    let first = formats.next()??;
    let format = match first {
        StoredDtype::Q8_0 => WeightFormat::Q8_0,
        StoredDtype::Q4_0 => WeightFormat::Q4_0,
        StoredDtype::Q4_1 => WeightFormat::Q4_1,
        StoredDtype::Q5_0 => WeightFormat::Q5_0,
        StoredDtype::Q5_1 => WeightFormat::Q5_1,
        StoredDtype::Q4K => WeightFormat::Q4K,
        StoredDtype::Q5K => WeightFormat::Q5K,
        StoredDtype::Q6K => WeightFormat::Q6K,
        _ => return None,
    };
    formats.all(|format| format == Some(first)).then_some(format)
}

fn add_bias(layer: PackedLinear, parts: &[(&Weights, usize)]) -> weights::Result<PackedLinear> {
    let mut bias = Vec::new();
    for (weights, rows) in parts {
        bias.extend(weights.get_f32_vec(&[*rows], "bias")?);
    }
    layer.with_bias((&bias).into()).map_err(backend)
}

/// `y = x W^T + b`.
pub struct Linear(Matrix);

impl Linear {
    /// Reads `weight` `(outputs, inputs)` and, if asked for, `bias` `(outputs)`.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(weights: &Weights, inputs: usize, outputs: usize, bias: bool) -> weights::Result<Self> {
        Matrix::read(&[(weights, outputs)], inputs, bias, false).map(Self)
    }

    /// Several layers on one input as one, whose output holds theirs one after another; each part comes with the
    /// number of its outputs.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn fused(parts: &[(&Weights, usize)], inputs: usize, bias: bool) -> weights::Result<Self> {
        Matrix::read(parts, inputs, bias, false).map(Self)
    }

    /// `(…, inputs)` to `(…, outputs)`, in the type of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x, None, None)
    }

    /// `onto + forward(x)`, in the type of `onto`.
    pub fn forward_onto(&self, x: &Tensor, onto: &Tensor) -> Result<Tensor> {
        self.0.forward(x, None, Some(onto))
    }

    /// Length of an input row.
    pub fn inputs(&self) -> usize {
        self.0.inputs
    }

    /// Length of an output row.
    pub fn outputs(&self) -> usize {
        self.0.outputs
    }

    /// The packed weights, to run on values without making a tensor.
    pub(crate) fn packed(&self) -> Option<&PackedLinear> {
        match &self.0.storage {
            Storage::Packed(layer) => Some(layer),
            Storage::Dense(..) => None,
        }
    }
}

/// A feed-forward block with a gate (Shazeer 2020): `down(activation(gate(x)) * up(x))`.
pub struct GatedMlp {
    pair: Matrix,
    down: Linear,
    activation: Activation,
}

impl GatedMlp {
    /// Reads `gate` and `up`, both `(hidden, dim)`, and `down` `(dim, hidden)`, none with a bias.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(
        gate: &Weights,
        up: &Weights,
        down: &Weights,
        [dim, hidden]: [usize; 2],
        activation: Activation,
    ) -> weights::Result<Self> {
        let pair = Matrix::read(&[(gate, hidden), (up, hidden)], dim, false, true)?;
        Ok(Self { pair, down: Linear::new(down, hidden, dim, false)?, activation })
    }

    /// The same with `gate` and `up` as one matrix, `(2 hidden, dim)`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn fused(
        gate_up: &Weights,
        down: &Weights,
        [dim, hidden]: [usize; 2],
        activation: Activation,
    ) -> weights::Result<Self> {
        let pair = Matrix::read(&[(gate_up, 2 * hidden)], dim, false, true)?;
        Ok(Self { pair, down: Linear::new(down, hidden, dim, false)?, activation })
    }

    /// The packed weights with the activation, to run on values without making a tensor.
    pub(crate) fn packed(&self) -> Option<(&PackedLinear, &PackedLinear, Activation)> {
        match &self.pair.storage {
            Storage::Packed(pair) => Some((pair, self.down.packed()?, self.activation)),
            Storage::Dense(..) => None,
        }
    }

    /// `(…, dim)` to `(…, dim)`, in the type of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.pair.forward(x, Some(self.activation), None)?)
    }

    /// `onto + forward(x)`, in the type of `onto`.
    pub fn forward_onto(&self, x: &Tensor, onto: &Tensor) -> Result<Tensor> {
        self.down.forward_onto(&self.pair.forward(x, Some(self.activation), None)?, onto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, relative_error};

    #[test]
    fn only_blocks_are_quantized_and_come_close() {
        for dtype in [DType::F32, DType::BF16] {
            let weights = Weights::random(96 * 200, dtype, Device::Cpu);
            let small = weights.clone().with_quant(Some(Quant::Q8));
            let x = noise(&[3, 96], 1).to_dtype(dtype).unwrap();
            let linear = |weights: &Weights| Linear::new(weights, 96, 200, true).unwrap().forward(&x).unwrap();
            let mlp = |weights: &Weights| {
                let mlp = GatedMlp::new(weights, weights, weights, [96, 200], Activation::Silu).unwrap();
                mlp.forward(&x).unwrap()
            };
            assert_eq!(relative_error(&linear(&small), &linear(&weights)), 0.0);
            for (got, want) in [(linear(&small.blocks()), linear(&weights)), (mlp(&small.blocks()), mlp(&weights))] {
                let error = relative_error(&got, &want);
                assert!(error > 1e-5 && error < 2e-2, "{dtype:?}: {error}");
            }
            let other = weights.clone().with_quant(Some(Quant::Nf4)).blocks();
            assert!(Linear::new(&other, 96, 200, false).is_err());
        }
    }
}
