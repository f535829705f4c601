//! Linear layers: `y = epilogue(x W^T + b)` with weights packed once.

#[cfg(target_arch = "x86_64")]
mod amx;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod dot_bf16;
mod driver;
mod epilogue;
pub(crate) mod float;
mod format;
mod int8;
mod pack;
mod quant;
#[cfg(test)]
mod tests;

use half::bf16;

pub(crate) use driver::{Ahead, Place};
pub use epilogue::{Activation, Epilogue, Gate, Residual};
pub(crate) use epilogue::{Block, Finish};
pub use format::WeightFormat;
pub use pack::PackedLinearBuilder;

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::memory::{Bytes, Scratch};
use crate::values::{Values, ValuesMut};
use pack::Geometry;

/// Output columns that are packed together.
pub(crate) const PANEL: usize = 32;
/// Inner size of a bf16 tile, the unit that packed bf16 weights are padded to.
pub(crate) const TILE_K: usize = 32;

/// A linear layer whose weights are packed for the kernels of every instruction set.
///
/// A row of the result depends on its own row of `x` only: the order of accumulation is the same for any number of rows
/// and of threads, bit for bit. It differs between instruction sets.
pub struct PackedLinear {
    geometry: Geometry,
    bytes: Bytes,
    bias: Option<Vec<f32>>,
    /// Factors and sums of the columns of int8 weights.
    factors: Vec<f32>,
    column_sums: Vec<i32>,
}

impl PackedLinear {
    /// Packs `(outputs, inputs)` row-major weights that are in memory already; see [`PackedLinearBuilder`] to stream them.
    pub fn new(ctx: &Ctx, format: WeightFormat, weights: Values<'_>, outputs: usize, inputs: usize) -> Result<Self> {
        exact("weights", product("weights", &[outputs, inputs])?, weights.len())?;
        let mut builder = PackedLinearBuilder::new(format, outputs, inputs)?;
        builder.push(ctx, weights)?;
        builder.finish()
    }

    /// Packs a gated pair: `y = activation(x first^T) * (x second^T)`, both `(outputs, inputs)`.
    pub fn gated(
        ctx: &Ctx,
        format: WeightFormat,
        first: Values<'_>,
        second: Values<'_>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Self> {
        let need = product("weights", &[outputs, inputs])?;
        exact("first weights", need, first.len())?;
        exact("second weights", need, second.len())?;
        let mut builder = PackedLinearBuilder::gated(format, outputs, inputs)?;
        builder.push(ctx, first)?;
        builder.push(ctx, second)?;
        builder.finish()
    }

    /// Adds a bias: one value a row of the weights (for a gated layer those of `first`, then those of `second`).
    pub fn with_bias(mut self, bias: Values<'_>) -> Result<Self> {
        let rows = self.geometry.rows();
        exact("bias", rows, bias.len())?;
        // Kept in the order of the packed columns, so that kernels read it like a row of the product.
        let mut placed = vec![0f32; self.geometry.panels() * PANEL];
        for row in 0..rows {
            let (panel, column) = self.geometry.place(row);
            placed[panel * PANEL + column] = match bias {
                Values::F32(values) => values[row],
                Values::Bf16(values) => values[row].to_f32(),
            };
        }
        self.bias = Some(placed);
        Ok(self)
    }

    /// Length of a row of `x`.
    pub fn inputs(&self) -> usize {
        self.geometry.inputs
    }

    /// Length of a row of the result.
    pub fn outputs(&self) -> usize {
        self.geometry.outputs
    }

    /// Whether it is a pair of weights.
    pub fn is_gated(&self) -> bool {
        self.geometry.gated
    }

    /// How the weights are kept.
    pub fn format(&self) -> WeightFormat {
        self.geometry.format
    }

    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        let floats = self.bias.as_ref().map_or(0, |bias| bias.len()) + self.factors.len() + self.column_sums.len();
        self.bytes.len() + floats * 4
    }

    /// Copies one row of the weights out, as an embedding that shares its table with an output layer needs.
    pub fn copy_row(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let geometry = self.geometry;
        exact("weight row", geometry.inputs, to.len())?;
        if row >= geometry.rows() {
            let why = format!("there is no row {row} in {}", geometry.rows());
            return Err(KernelError::Shape { what: "weight row", why });
        }
        let (panel, column) = geometry.place(row);
        let start = panel * geometry.panel_bytes();
        match geometry.format {
            WeightFormat::F32 => {
                let panel = &self.bytes.slice::<f32>()[start / 4..];
                to.iter_mut().enumerate().for_each(|(k, value)| *value = panel[k * PANEL + column]);
            }
            WeightFormat::Bf16 => {
                let panel = &self.bytes.slice::<bf16>()[start / 2..];
                to.iter_mut().enumerate().for_each(|(k, value)| *value = panel[pack::bf16_index(k, column)].to_f32());
            }
            WeightFormat::Int8 => {
                let (panel_bytes, factor) = (&self.bytes.slice::<i8>()[start..], self.factors[panel * PANEL + column]);
                let value = |k: usize| f32::from(panel_bytes[int8::index(k, column)]) * factor;
                to.iter_mut().enumerate().for_each(|(k, to)| *to = value(k));
            }
            format => {
                let mut space = Scratch::of::<u8>(size_of::<quant::Chunk>());
                let space = space.ptr::<u8>().cast::<quant::Chunk>();
                for (chunk, to) in to.chunks_mut(quant::CHUNK).enumerate() {
                    let from = self.panel(panel, chunk * quant::CHUNK);
                    // SAFETY: a chunk is whole blocks of the panel, and scratch is aligned to 64 bytes.
                    let chunk = unsafe {
                        quant::unpack(crate::Isa::active(), format, from, to.len(), space);
                        &*space
                    };
                    to.iter_mut().enumerate().for_each(|(k, value)| *value = chunk.value(format, k, column));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn panels(&self) -> usize {
        self.geometry.panels()
    }

    /// A panel from inner element `k` (a multiple of `TILE_K`) on.
    pub(crate) fn panel(&self, panel: usize, k: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(panel * self.geometry.panel_bytes() + self.geometry.format.bytes(k))
    }

    /// The end of a product that writes wherever its blocks say; the caller has checked all sizes.
    pub(crate) fn finish_strided<'a>(
        &'a self,
        activation: Activation,
        residual: Option<Values<'a>>,
        out: ValuesMut<'a>,
    ) -> Finish<'a> {
        let residual = residual.map_or(Residual::None, Residual::From);
        Finish::new(Epilogue { activation, gate: None, residual }, self, out)
    }

    /// `out = epilogue(x W^T + b)` for `rows` rows: `x` is `(rows, inputs)`, `out` is `(rows, outputs)`, both row-major.
    ///
    /// With bf16 arithmetic (AMX or AVX512-BF16, and bf16 weights) f32 inputs are rounded to bf16; sums are f32 always.
    pub fn forward(
        &self,
        ctx: &Ctx,
        x: Values<'_>,
        rows: usize,
        out: ValuesMut<'_>,
        epilogue: &Epilogue<'_>,
    ) -> Result<()> {
        exact("x", product("x", &[rows, self.geometry.inputs])?, x.len())?;
        exact("out", product("out", &[rows, self.geometry.outputs])?, out.len())?;
        product("x", &[rows.saturating_add(PANEL), self.geometry.inputs + TILE_K, 4])?;
        let finish = epilogue.plan(self, rows, out)?;
        if rows > 0 && self.geometry.outputs > 0 {
            driver::multiply(ctx, self, x, rows, &finish);
        }
        Ok(())
    }
}
