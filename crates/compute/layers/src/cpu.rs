//! The way from tensors to the CPU kernels, and the record of work that had to take Candle's own operations instead.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{CpuStorage, DType, Device, Error, Layout, Result, Shape, Storage, Tensor, bail};
use half::bf16;
use kernels::{Values, ValuesMut};
use runtime_base::Precision;

static FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// Number of operations on the CPU so far that no kernel served and that ran as Candle's own. Each is logged with
/// target `kernels` at debug level.
pub fn fallbacks() -> u64 {
    FALLBACKS.load(Ordering::Relaxed)
}

/// The number format that this CPU computes best in, for those who weren't told one: bf16 where it multiplies that
/// itself (AMX, AVX512-BF16), f32 elsewhere.
pub fn best_cpu_precision() -> Precision {
    match kernels::Isa::active() {
        kernels::Isa::AmxBf16 | kernels::Isa::Avx512Bf16 => Precision::Bf16,
        _ => Precision::F32,
    }
}

/// Whether kernels exist for tensors of this type on this device.
pub(crate) fn serves(device: &Device, dtype: DType) -> bool {
    device.is_cpu() && matches!(dtype, DType::F32 | DType::BF16)
}

/// Whether kernels serve `x`; if it is on the CPU and they don't, that is counted.
pub(crate) fn serves_tensor(operation: &'static str, x: &Tensor) -> bool {
    let served = serves(x.device(), x.dtype());
    if !served {
        note(operation, x);
    }
    served
}

/// Counts an operation on `x` that runs as Candle's own, if that is on the CPU.
pub(crate) fn note(operation: &'static str, x: &Tensor) {
    if x.device().is_cpu() {
        let count = FALLBACKS.fetch_add(1, Ordering::Relaxed) + 1;
        let (shape, dtype) = (x.dims(), x.dtype());
        tracing::debug!(target: "kernels", operation, ?shape, ?dtype, count, "no kernel serves this; Candle does");
    }
}

/// `values` for a while.
pub(crate) fn reborrow<'a>(values: &'a mut ValuesMut<'_>) -> ValuesMut<'a> {
    match values {
        ValuesMut::F32(values) => ValuesMut::F32(values),
        ValuesMut::Bf16(values) => ValuesMut::Bf16(values),
    }
}

/// Hands the elements of `x`, row-major, to something that makes no tensor of them.
pub(crate) fn read<T>(x: &Tensor, f: impl FnOnce(Values<'_>) -> kernels::Result<T>) -> Result<T> {
    let dense = x.contiguous()?;
    let (storage, layout) = dense.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    f(slice(values(&storage)?, range)).map_err(Error::wrap)
}

/// Runs a kernel over the elements of `inputs`, row-major, into a new tensor of `shape`, every element of which it
/// writes. The inputs lie on the CPU in f32 or bf16; one that isn't contiguous is copied first.
pub(crate) fn compute(
    inputs: &[&Tensor],
    shape: impl Into<Shape>,
    dtype: DType,
    kernel: impl FnOnce(&[Values<'_>], ValuesMut<'_>) -> kernels::Result<()>,
) -> Result<Tensor> {
    let dense = inputs.iter().map(|x| x.contiguous()).collect::<Result<Vec<_>>>()?;
    let dense: Vec<&Tensor> = dense.iter().collect();
    run(&dense, shape.into(), dtype, |inputs, out| {
        let part = |(values, layout): &(_, &Layout)| {
            slice(*values, layout.start_offset()..layout.start_offset() + layout.shape().elem_count())
        };
        kernel(&inputs.iter().map(part).collect::<Vec<_>>(), out)
    })
}

/// The same for a kernel that takes strides: it gets whole buffers with the layouts of the inputs in them. The result
/// has the type of the first input.
pub(crate) fn compute_strided(
    inputs: &[&Tensor],
    shape: impl Into<Shape>,
    kernel: impl FnOnce(&[(Values<'_>, &Layout)], ValuesMut<'_>) -> kernels::Result<()>,
) -> Result<Tensor> {
    run(inputs, shape.into(), inputs.first().map_or(DType::F32, |x| x.dtype()), kernel)
}

/// `x`, copied only if the elements of its rows aren't next to each other.
pub(crate) fn rows_together(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}

#[allow(unsafe_code)] // the one place where kernels are given their outputs
fn room<T: bytemuck::Pod>(shape: &Shape) -> Vec<T> {
    // SAFETY: a kernel writes all of its output before it reads any; if it fails, the output is dropped unread.
    unsafe { kernels::unwritten(shape.elem_count()) }
}

fn run(
    inputs: &[&Tensor],
    shape: Shape,
    dtype: DType,
    kernel: impl FnOnce(&[(Values<'_>, &Layout)], ValuesMut<'_>) -> kernels::Result<()>,
) -> Result<Tensor> {
    let guards: Vec<_> = inputs.iter().map(|x| x.storage_and_layout()).collect();
    let buffers = guards.iter().map(|(storage, layout)| Ok((values(storage)?, *layout)));
    let buffers = buffers.collect::<Result<Vec<_>>>()?;
    match dtype {
        DType::F32 => {
            let mut out = room::<f32>(&shape);
            kernel(&buffers, (&mut out).into()).map_err(Error::wrap)?;
            Tensor::from_vec(out, &shape, &Device::Cpu)
        }
        DType::BF16 => {
            let mut out = room::<bf16>(&shape);
            kernel(&buffers, (&mut out).into()).map_err(Error::wrap)?;
            Tensor::from_vec(out, &shape, &Device::Cpu)
        }
        other => bail!("no kernel writes {other:?}"),
    }
}

fn values(storage: &Storage) -> Result<Values<'_>> {
    match storage {
        Storage::Cpu(CpuStorage::F32(data)) => Ok(Values::F32(data)),
        Storage::Cpu(CpuStorage::BF16(data)) => Ok(Values::Bf16(data)),
        other => bail!("no kernel reads {:?} on {:?}", other.dtype(), other.device().location()),
    }
}

/// A part of `values`.
pub(crate) fn slice<'a>(values: Values<'a>, range: Range<usize>) -> Values<'a> {
    match values {
        Values::F32(values) => Values::F32(&values[range]),
        Values::Bf16(values) => Values::Bf16(&values[range]),
    }
}

/// A part of `values`, for a while.
pub(crate) fn slice_mut<'a>(values: &'a mut ValuesMut<'_>, range: Range<usize>) -> ValuesMut<'a> {
    match values {
        ValuesMut::F32(values) => ValuesMut::F32(&mut values[range]),
        ValuesMut::Bf16(values) => ValuesMut::Bf16(&mut values[range]),
    }
}

/// The elements of a small tensor as f32 on the host: gates, scales and other vectors.
pub(crate) fn vector(x: &Tensor) -> Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}
