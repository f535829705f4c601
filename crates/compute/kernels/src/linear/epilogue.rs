//! What is done to a product while it is still in the cache: bias, activation, gating, residual.

use half::bf16;

use super::pack::Geometry;
use super::{PANEL, PackedLinear};
use crate::error::{KernelError, Result, exact, product};
use crate::math;
use crate::pool::SharedMut;
use crate::simd::{Element, Kernel, Simd};
use crate::values::{Values, ValuesMut};

/// A function applied to every element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// None.
    #[default]
    Identity,
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
    /// `x * sigmoid(1.702 x)`, as CLIP has it.
    QuickGelu,
}

/// A factor per output column, shared by groups of consecutive rows (the samples of a batch).
#[derive(Debug, Clone, Copy)]
pub struct Gate<'a> {
    /// `(groups, outputs)`.
    pub values: &'a [f32],
    /// Rows that share one group's factors.
    pub rows: usize,
}

/// What is added at the end.
#[derive(Debug, Clone, Copy, Default)]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// What the output holds before.
    InPlace,
    /// Values of the output's shape.
    From(Values<'a>),
}

/// `out = residual + gate * activation(x W^T + b)`; for a gated layer the activation is that of its first half.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// Applied first.
    pub activation: Activation,
    /// Then multiplied by.
    pub gate: Option<Gate<'a>>,
    /// Then added.
    pub residual: Residual<'a>,
}

impl<'a> Epilogue<'a> {
    /// Only an activation.
    pub fn activation(activation: Activation) -> Self {
        Epilogue { activation, ..Epilogue::default() }
    }

    /// Checks the sizes and binds the output.
    pub(super) fn plan<'o>(&self, layer: &'o PackedLinear, rows: usize, out: ValuesMut<'o>) -> Result<Finish<'o>>
    where
        'a: 'o,
    {
        let outputs = layer.geometry.outputs;
        if let Some(gate) = self.gate {
            if gate.rows == 0 {
                return Err(KernelError::Shape { what: "gate", why: "it must cover at least one row".into() });
            }
            exact("gate", product("gate", &[rows.div_ceil(gate.rows), outputs])?, gate.values.len())?;
        }
        if let Residual::From(values) = self.residual {
            exact("residual", rows * outputs, values.len())?;
        }
        Ok(Finish::new(*self, layer, out))
    }
}

#[derive(Clone, Copy)]
enum Target {
    F32(SharedMut<f32>),
    Bf16(SharedMut<bf16>),
}

/// A checked epilogue with its output.
pub(crate) struct Finish<'a> {
    epilogue: Epilogue<'a>,
    bias: Option<&'a [f32]>,
    gated: bool,
    outputs: usize,
    out: Target,
    /// The output is too large to be in a cache when it is read.
    streams: bool,
}

/// Outputs of this size are streamed to memory: to read their lines first, as a store does, costs as much again.
const STREAMED_BYTES: usize = 4 << 20;

/// One block of a product: `rows` rows of one panel, and where it goes.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// `[rows][PANEL]`.
    pub(crate) sums: *const f32,
    pub(crate) panel: usize,
    /// Row of the product, which finds its gate.
    pub(crate) row: usize,
    /// Where the first row's first column goes.
    pub(crate) start: usize,
    /// Elements of the output from one row to the next.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

impl<'a> Finish<'a> {
    /// Without any check.
    pub(super) fn new(epilogue: Epilogue<'a>, layer: &'a PackedLinear, out: ValuesMut<'a>) -> Self {
        let in_place = matches!(epilogue.residual, Residual::InPlace);
        let streams = !in_place && out.bytes() >= STREAMED_BYTES;
        let out = match out {
            ValuesMut::F32(values) => Target::F32(SharedMut::new(values)),
            ValuesMut::Bf16(values) => Target::Bf16(SharedMut::new(values)),
        };
        let Geometry { gated, outputs, .. } = layer.geometry;
        Finish { epilogue, bias: layer.bias.as_deref(), gated, outputs, out, streams }
    }

    /// Ends one block.
    ///
    /// # Safety
    /// The block's sums are valid, its rows and panel lie within the output, and no other thread has the same block.
    pub(crate) unsafe fn block(&self, isa: crate::Isa, block: Block) {
        // SAFETY: by the contract above.
        unsafe {
            match self.out {
                Target::F32(out) => crate::simd::dispatch(isa, EndBlock { finish: self, out: out.get(), block }),
                Target::Bf16(out) => crate::simd::dispatch(isa, EndBlock { finish: self, out: out.get(), block }),
            }
        }
    }
}

impl Finish<'_> {
    /// To be called by a thread that has ended blocks, before another one reads them.
    pub(crate) fn publish(&self) {
        if self.streams {
            crate::simd::publish();
        }
    }
}

struct EndBlock<'a, O> {
    finish: &'a Finish<'a>,
    out: *mut O,
    block: Block,
}

impl<O: Element> Kernel for EndBlock<'_, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        // SAFETY: the caller's contract; see `Finish::block`.
        unsafe {
            match self.finish.epilogue.activation {
                Activation::Identity => self.rows::<V, Identity>(),
                Activation::Silu => self.rows::<V, Silu>(),
                Activation::GeluTanh => self.rows::<V, GeluTanh>(),
                Activation::GeluErf => self.rows::<V, GeluErf>(),
                Activation::QuickGelu => self.rows::<V, QuickGelu>(),
            }
        }
    }
}

/// An activation as a type: a closure is not sure to be inlined, and only what is inlined is compiled for the instruction
/// set at hand.
trait Function {
    /// # Safety
    /// The CPU has `V`'s instruction set.
    unsafe fn apply<V: Simd>(x: V) -> V;
}

macro_rules! functions {
    ($($name:ident = $x:ident => $y:expr;)*) => { $(
        struct $name;

        impl Function for $name {
            #[inline(always)]
            unsafe fn apply<V: Simd>($x: V) -> V {
                // SAFETY: by the contract of the trait.
                #[allow(unused_unsafe)]
                unsafe { $y }
            }
        }
    )* };
}

functions! {
    Identity = x => x;
    Silu = x => math::silu(x);
    GeluTanh = x => math::gelu_tanh(x);
    GeluErf = x => math::gelu_erf(x);
    QuickGelu = x => math::quick_gelu(x);
}

impl<O: Element> EndBlock<'_, O> {
    #[inline(always)]
    unsafe fn rows<V: Simd, F: Function>(&self) {
        // SAFETY: the caller's contract.
        unsafe { if self.finish.gated { self.gated_rows::<V, F, true>() } else { self.gated_rows::<V, F, false>() } }
    }

    #[inline(always)]
    unsafe fn gated_rows<V: Simd, F: Function, const GATED: bool>(&self) {
        let Block { panel, start, stride, rows, .. } = self.block;
        let width = if GATED { PANEL / 2 } else { PANEL };
        let column = panel * width;
        let columns = width.min(self.finish.outputs - column);
        for i in 0..rows {
            let at = start + i * stride + column;
            // SAFETY: sums hold whole panels; everything else is read and written for whole vectors, or the last columns,
            // within the row, whose sizes `plan` has checked.
            unsafe {
                let out = self.out.add(at);
                if self.finish.streams && columns == 2 * V::LANES && (out as usize).is_multiple_of(64) {
                    let first = self.value::<V, F, GATED>(i, at, 0, V::LANES);
                    let second = self.value::<V, F, GATED>(i, at, V::LANES, V::LANES);
                    O::stream_two(first, second, out);
                    continue;
                }
                for c in (0..columns).step_by(V::LANES) {
                    let len = V::LANES.min(columns - c);
                    O::store(self.value::<V, F, GATED>(i, at, c, len), out.add(c), len);
                }
            }
        }
    }

    /// Sums from column `c` of a row on, with their bias.
    ///
    /// # Safety
    /// The columns lie within the panel.
    #[inline(always)]
    unsafe fn sum<V: Simd>(&self, i: usize, c: usize) -> V {
        let Block { sums, panel, .. } = self.block;
        // SAFETY: by the contract above.
        unsafe {
            let sum = V::load(sums.add(i * PANEL + c));
            match self.finish.bias {
                Some(bias) => sum.add(V::load(bias.as_ptr().add(panel * PANEL + c))),
                None => sum,
            }
        }
    }

    /// Columns `c..c + len` of row `i`, which starts at `at` in the output.
    ///
    /// # Safety
    /// The columns lie within the row.
    #[inline(always)]
    unsafe fn value<V: Simd, F: Function, const GATED: bool>(&self, i: usize, at: usize, c: usize, len: usize) -> V {
        let Block { panel, row, .. } = self.block;
        let Finish { epilogue, outputs, .. } = self.finish;
        // SAFETY: by the contract above.
        unsafe {
            let mut y = F::apply(self.sum::<V>(i, c));
            if GATED {
                y = y.mul(self.sum::<V>(i, c + PANEL / 2));
            }
            if let Some(gate) = epilogue.gate {
                let column = panel * if GATED { PANEL / 2 } else { PANEL };
                let factors = gate.values.as_ptr().add((row + i) / gate.rows * outputs + column + c);
                y = y.mul(<f32 as Element>::load::<V>(factors, len));
            }
            match epilogue.residual {
                Residual::None => y,
                Residual::InPlace => y.add(O::load::<V>(self.out.add(at + c), len)),
                Residual::From(Values::F32(from)) => y.add(f32::load::<V>(from.as_ptr().add(at + c), len)),
                Residual::From(Values::Bf16(from)) => y.add(bf16::load::<V>(from.as_ptr().add(at + c), len)),
            }
        }
    }
}
