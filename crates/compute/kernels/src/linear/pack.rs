//! Weights packed for the kernels, streamed in row by row.
//!
//! A panel holds 32 output columns over the whole inner dimension, so one panel is one stream through memory:
//!
//! - f32: `[k][32]`;
//! - bf16: `[k / 32][2][16 pairs of k][16 columns][2]`, two AMX tiles a step. A row of a tile is also one vector of
//!   AVX512-BF16, and sixteen columns of two consecutive k for everything else, so every instruction set shares it.
//!
//! `Int8` and the GGUF formats are described where they are multiplied.
//!
//! A gated layer (two weights of equal shape, `first` and `second`) puts 16 columns of each into a panel, so the
//! product is taken while both halves are at hand.

use half::bf16;

use super::{PANEL, PackedLinear, TILE_K, WeightFormat, int8, quant};
use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::memory::Bytes;
use crate::pool::SharedMut;
use crate::simd::Element;
use crate::values::Values;

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
        self.format.bytes(self.format.padded(self.inputs))
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
    /// Factors and sums of the columns of int8 weights.
    factors: Vec<f32>,
    column_sums: Vec<i32>,
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
        if !geometry.inputs.is_multiple_of(geometry.format.block()) {
            let why = format!("{} inputs are no whole blocks of {:?}", geometry.inputs, geometry.format);
            return Err(KernelError::Shape { what: "weights", why });
        }
        if geometry.format == WeightFormat::Int8 && geometry.inputs > int8::MOST_INPUTS {
            let why = format!("{} inputs are too many for 8 bits; {} are possible", geometry.inputs, int8::MOST_INPUTS);
            return Err(KernelError::Shape { what: "weights", why });
        }
        let padded = |size: usize, to: usize| size.div_ceil(to).checked_mul(to);
        let (outputs, inputs) = (padded(geometry.outputs, PANEL), padded(geometry.inputs, 2 * TILE_K));
        let (Some(outputs), Some(inputs)) = (outputs, inputs) else {
            return Err(KernelError::Overflow { what: "weights" });
        };
        product("weights", &[outputs, inputs, 8])?;
        let bytes = Bytes::zeroed(geometry.panels() * geometry.panel_bytes());
        let columns = if geometry.format == WeightFormat::Int8 { geometry.panels() * PANEL } else { 0 };
        let (factors, column_sums) = (vec![0.0; columns], vec![0; columns]);
        Ok(PackedLinearBuilder { geometry, bytes, filled: 0, factors, column_sums })
    }

    /// How the weights will be kept.
    pub fn format(&self) -> WeightFormat {
        self.geometry.format
    }

    /// The next rows, row-major; the length is a multiple of the layer's inputs.
    pub fn push(&mut self, ctx: &Ctx, rows: Values<'_>) -> Result<()> {
        let inputs = self.geometry.inputs;
        if self.geometry.format.is_blocks() {
            let why = format!("{:?} takes blocks as they are in a file, not floats", self.geometry.format);
            return Err(KernelError::Shape { what: "weight rows", why });
        }
        let count = rows.len().checked_div(inputs).unwrap_or(0);
        exact("weight rows", count * inputs, rows.len())?;
        if count > self.geometry.rows() - self.filled {
            return Err(KernelError::Length {
                what: "weight rows",
                need: (self.geometry.rows() - self.filled) * inputs,
                got: rows.len(),
            });
        }
        match (rows, self.geometry.format) {
            (Values::F32(rows), WeightFormat::Int8) => self.scatter_int8(ctx, rows, count),
            (Values::Bf16(rows), WeightFormat::Int8) => self.scatter_int8(ctx, rows, count),
            (Values::F32(rows), _) => self.scatter(ctx, rows, count, |x| x, bf16::from_f32),
            (Values::Bf16(rows), _) => self.scatter(ctx, rows, count, bf16::to_f32, |x| x),
        }
        self.filled += count;
        Ok(())
    }

    /// The next rows as blocks of a GGUF file, of the layer's own format.
    pub fn push_blocks(&mut self, ctx: &Ctx, blocks: &[u8]) -> Result<()> {
        let (geometry, filled) = (self.geometry, self.filled);
        let format = geometry.format;
        let Some(block_bytes) = format.file_block_bytes() else {
            let why = format!("{format:?} takes floats, not blocks");
            return Err(KernelError::Shape { what: "weight rows", why });
        };
        let row_bytes = geometry.inputs / format.block() * block_bytes;
        let count = blocks.len().checked_div(row_bytes).unwrap_or(0);
        exact("weight rows", count * row_bytes, blocks.len())?;
        if count > geometry.rows() - filled {
            let need = (geometry.rows() - filled) * row_bytes;
            return Err(KernelError::Length { what: "weight rows", need, got: blocks.len() });
        }
        let out = SharedMut::new(self.bytes.slice_mut::<u8>());
        ctx.pool().run_ranges(count, 8, |range| {
            for row in range {
                let (panel, column) = geometry.place(filled + row);
                for (i, block) in blocks[row * row_bytes..][..row_bytes].chunks_exact(block_bytes).enumerate() {
                    // SAFETY: rows are distinct columns of their panels.
                    unsafe {
                        let at = panel * geometry.panel_bytes() + format.bytes(i * format.block());
                        quant::weave(format, block, out.get().add(at), column);
                    }
                }
            }
        });
        self.filled += count;
        Ok(())
    }

    fn scatter_int8<T: Element>(&mut self, ctx: &Ctx, rows: &[T], count: usize) {
        let (geometry, filled, inputs) = (self.geometry, self.filled, self.geometry.inputs);
        let out = SharedMut::new(self.bytes.slice_mut::<i8>());
        let (factors, sums) = (SharedMut::new(&mut self.factors), SharedMut::new(&mut self.column_sums));
        ctx.pool().run_ranges(count, 8, |range| {
            let mut line = vec![0i8; inputs];
            for row in range {
                let (panel, column) = geometry.place(filled + row);
                let factor = int8::quantize(ctx.isa(), &rows[row * inputs..][..inputs], &mut line);
                // SAFETY: rows are distinct columns of their panels.
                unsafe {
                    let base = out.get().add(panel * geometry.panel_bytes());
                    line.iter().enumerate().for_each(|(k, &value)| base.add(int8::index(k, column)).write(value));
                    factors.get().add(panel * PANEL + column).write(factor);
                    sums.get().add(panel * PANEL + column).write(line.iter().map(|&x| i32::from(x)).sum());
                }
            }
        });
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
                                _ => {}
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
        let (bytes, factors, column_sums) = (self.bytes, self.factors, self.column_sums);
        Ok(PackedLinear { geometry, bytes, bias: None, factors, column_sums })
    }
}

/// Index of `(k, column)` within a bf16 panel.
pub(crate) fn bf16_index(k: usize, column: usize) -> usize {
    let (step, within) = (k / TILE_K, k % TILE_K);
    step * TILE_K * PANEL + column / HALF * TILE_K * HALF + within / 2 * PANEL + column % HALF * 2 + within % 2
}
