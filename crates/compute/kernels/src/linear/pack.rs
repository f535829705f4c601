//! Weights packed for the kernels, streamed in row by row.
//!
//! A panel holds 32 output columns over the whole inner dimension, so one panel is one stream through memory:
//!
//! - f32: `[k][32]`;
//! - bf16: `[k / 32][2][16 pairs of k][16 columns][2]`, two AMX tiles a step. A row of a tile is also one vector of
//!   AVX512-BF16, and sixteen columns of two consecutive k for everything else, so every instruction set shares it.
//!
//! A gated layer (two weights of equal shape, `first` and `second`) puts 16 columns of each into a panel, so the
//! product is taken while both halves are at hand.

use half::bf16;

use super::{PANEL, PackedLinear, TILE_K};
use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::memory::Bytes;
use crate::pool::SharedMut;
use crate::values::Values;

/// How weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// Brain floats.
    Bf16,
}

/// Columns of each weight in a panel of a gated layer.
const HALF: usize = PANEL / 2;

/// Sizes of a packed layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) gated: bool,
    pub(crate) format: WeightFormat,
}

impl Geometry {
    /// Rows of the weights as they are stored in files: those of `first`, then those of `second`.
    pub(crate) fn rows(&self) -> usize {
        self.outputs * if self.gated { 2 } else { 1 }
    }

    /// Outputs that one panel makes.
    pub(crate) fn panel_outputs(&self) -> usize {
        if self.gated { HALF } else { PANEL }
    }

    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel_outputs())
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        match self.format {
            WeightFormat::F32 => self.inputs * PANEL * 4,
            WeightFormat::Bf16 => self.inputs.div_ceil(TILE_K) * TILE_K * PANEL * 2,
        }
    }

    /// Panel and column of a row.
    pub(crate) fn place(&self, row: usize) -> (usize, usize) {
        if !self.gated {
            (row / PANEL, row % PANEL)
        } else if row < self.outputs {
            (row / HALF, row % HALF)
        } else {
            let row = row - self.outputs;
            (row / HALF, HALF + row % HALF)
        }
    }
}

/// Takes the rows of a layer in order, in pieces of any size, and packs them as they come.
pub struct PackedLinearBuilder {
    geometry: Geometry,
    bytes: Bytes,
    filled: usize,
}

impl PackedLinearBuilder {
    /// A layer with `outputs` rows of `inputs` weights.
    pub fn new(format: WeightFormat, outputs: usize, inputs: usize) -> Result<Self> {
        Self::with(Geometry { inputs, outputs, gated: false, format })
    }

    /// Two weights of `outputs` rows of `inputs` each, multiplied with each other: `activation(first x) * (second x)`.
    /// All rows of `first` come before those of `second`.
    pub fn gated(format: WeightFormat, outputs: usize, inputs: usize) -> Result<Self> {
        Self::with(Geometry { inputs, outputs, gated: true, format })
    }

    fn with(geometry: Geometry) -> Result<Self> {
        let padded = |size: usize, to: usize| size.div_ceil(to).checked_mul(to);
        let (outputs, inputs) = (padded(geometry.outputs, PANEL), padded(geometry.inputs, TILE_K));
        let (Some(outputs), Some(inputs)) = (outputs, inputs) else {
            return Err(KernelError::Overflow { what: "weights" });
        };
        product("weights", &[outputs, inputs, 8])?;
        let bytes = Bytes::zeroed(geometry.panels() * geometry.panel_bytes());
        Ok(PackedLinearBuilder { geometry, bytes, filled: 0 })
    }

    /// The next rows, row-major; the length is a multiple of the layer's inputs.
    pub fn push(&mut self, ctx: &Ctx, rows: Values<'_>) -> Result<()> {
        let inputs = self.geometry.inputs;
        let count = rows.len().checked_div(inputs).unwrap_or(0);
        exact("weight rows", count * inputs, rows.len())?;
        if count > self.geometry.rows() - self.filled {
            return Err(KernelError::Length {
                what: "weight rows",
                need: (self.geometry.rows() - self.filled) * inputs,
                got: rows.len(),
            });
        }
        match rows {
            Values::F32(rows) => self.scatter(ctx, rows, count, |x| x, bf16::from_f32),
            Values::Bf16(rows) => self.scatter(ctx, rows, count, bf16::to_f32, |x| x),
        }
        self.filled += count;
        Ok(())
    }

    fn scatter<T: Copy + Sync>(
        &mut self,
        ctx: &Ctx,
        rows: &[T],
        count: usize,
        to_f32: impl Fn(T) -> f32 + Sync,
        to_bf16: impl Fn(T) -> bf16 + Sync,
    ) {
        let (geometry, filled) = (self.geometry, self.filled);
        let (inputs, panel_bytes) = (geometry.inputs, geometry.panel_bytes());
        let first_half = filled / HALF;
        let halves = (filled + count).div_ceil(HALF) - first_half;
        let out = SharedMut::new(self.bytes.slice_mut::<u8>());
        // Sixteen rows that fall into one half of a panel are written together, tile row by tile row. Rows of `second`
        // need not start at a multiple of sixteen, so a half is found row by row.
        ctx.pool().run_ranges(halves, 4, |range| {
            for half in range {
                let start = ((first_half + half) * HALF).max(filled);
                let end = ((first_half + half + 1) * HALF).min(filled + count);
                let row = |r: usize| &rows[(r - filled) * inputs..][..inputs];
                for block in (0..inputs).step_by(TILE_K) {
                    let width = TILE_K.min(inputs - block);
                    for r in start..end {
                        let (panel, column) = geometry.place(r);
                        let values = &row(r)[block..block + width];
                        // SAFETY: rows are distinct, so no two pieces write the same element, and every element
                        // written lies in its panel.
                        unsafe {
                            let base = out.get().add(panel * panel_bytes);
                            match geometry.format {
                                WeightFormat::F32 => {
                                    let base = base.cast::<f32>().add(block * PANEL + column);
                                    for (i, &value) in values.iter().enumerate() {
                                        base.add(i * PANEL).write(to_f32(value));
                                    }
                                }
                                WeightFormat::Bf16 => {
                                    let base = base.cast::<bf16>().add(bf16_index(block, column));
                                    for (i, &value) in values.iter().enumerate() {
                                        base.add(i / 2 * PANEL + i % 2).write(to_bf16(value));
                                    }
                                }
                            }
                        }
                    }
                }
            }
        });
    }

    /// The layer, once all rows have come.
    pub fn finish(self) -> Result<PackedLinear> {
        let geometry = self.geometry;
        exact("weight rows", geometry.rows() * geometry.inputs, self.filled * geometry.inputs)?;
        Ok(PackedLinear { geometry, bytes: self.bytes, bias: None })
    }
}

/// Index of `(k, column)` within a bf16 panel.
pub(crate) fn bf16_index(k: usize, column: usize) -> usize {
    let (step, within) = (k / TILE_K, k % TILE_K);
    step * TILE_K * PANEL + column / HALF * TILE_K * HALF + within / 2 * PANEL + column % HALF * 2 + within % 2
}
