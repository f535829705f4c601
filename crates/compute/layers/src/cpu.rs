//! The way from tensors to the CPU kernels, and the record of work that had to take Candle's own operations instead.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{CpuStorage, DType, Device, Error, Result, Shape, Storage, Tensor, bail};
use half::bf16;
use kernels::{Values, ValuesMut};

static FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// Number of operations on the CPU so far that no kernel served and that ran as Candle's own. Each is logged with target
/// `kernels` at debug level.
pub fn fallbacks() -> u64 {
    FALLBACKS.load(Ordering::Relaxed)
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
        tracing::debug!(target: "kernels", operation, shape = ?x.dims(), dtype = ?x.dtype(), count, "no kernel: candle");
    }
}

/// `values` for a while.
pub(crate) fn reborrow<'a>(values: &'a mut ValuesMut<'_>) -> ValuesMut<'a> {
    match values {
        ValuesMut::F32(values) => ValuesMut::F32(values),
        ValuesMut::Bf16(values) => ValuesMut::Bf16(values),
    }
}

/// Runs a kernel over the elements of `inputs`, which lie on the CPU in f32 or bf16, into a new tensor of `shape`.
pub(crate) fn compute(
    inputs: &[&Tensor],
    shape: impl Into<Shape>,
    dtype: DType,
    kernel: impl FnOnce(&[Values<'_>], ValuesMut<'_>) -> kernels::Result<()>,
) -> Result<Tensor> {
    let shape = shape.into();
    with_values(inputs, |values| match dtype {
        DType::F32 => {
            let mut out = vec![0f32; shape.elem_count()];
            kernel(values, (&mut out).into()).map_err(Error::wrap)?;
            Tensor::from_vec(out, &shape, &Device::Cpu)
        }
        DType::BF16 => {
            let mut out = vec![bf16::ZERO; shape.elem_count()];
            kernel(values, (&mut out).into()).map_err(Error::wrap)?;
            Tensor::from_vec(out, &shape, &Device::Cpu)
        }
        other => bail!("no kernel writes {other:?}"),
    })
}

/// Hands the elements of `inputs`, row-major, to `f`; a tensor that isn't contiguous is copied first.
pub(crate) fn with_values<T>(inputs: &[&Tensor], f: impl FnOnce(&[Values<'_>]) -> Result<T>) -> Result<T> {
    let dense = inputs.iter().map(|x| x.contiguous()).collect::<Result<Vec<_>>>()?;
    let guards: Vec<_> = dense.iter().map(Tensor::storage_and_layout).collect();
    let values = guards
        .iter()
        .map(|(storage, layout)| {
            let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
            match &**storage {
                Storage::Cpu(CpuStorage::F32(data)) => Ok(Values::F32(&data[range])),
                Storage::Cpu(CpuStorage::BF16(data)) => Ok(Values::Bf16(&data[range])),
                other => bail!("no kernel reads {:?} on {:?}", other.dtype(), other.device().location()),
            }
        })
        .collect::<Result<Vec<_>>>()?;
    f(&values)
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
