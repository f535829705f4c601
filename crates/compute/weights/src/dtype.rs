//! Number formats on disk.

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// A number format on disk.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredDtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4m3,
    F8E5m2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    /// Blocks of GGUF, as the kernels' weight formats have them.
    #[serde(rename = "q8_0")]
    Q8_0,
    #[serde(rename = "q4_0")]
    Q4_0,
    #[serde(rename = "q4_1")]
    Q4_1,
    #[serde(rename = "q5_0")]
    Q5_0,
    #[serde(rename = "q5_1")]
    Q5_1,
    #[serde(rename = "q4_k")]
    Q4K,
    #[serde(rename = "q5_k")]
    Q5K,
    #[serde(rename = "q6_k")]
    Q6K,
}

impl StoredDtype {
    /// The format of a GGUF header, if it can be read.
    pub(crate) fn from_ggml(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            24 => Self::I8,
            25 => Self::I16,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// For formats of blocks, Candle's name.
    fn ggml(self) -> Option<GgmlDType> {
        Some(match self {
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q4_0 => GgmlDType::Q4_0,
            Self::Q4_1 => GgmlDType::Q4_1,
            Self::Q5_0 => GgmlDType::Q5_0,
            Self::Q5_1 => GgmlDType::Q5_1,
            Self::Q4K => GgmlDType::Q4K,
            Self::Q5K => GgmlDType::Q5K,
            Self::Q6K => GgmlDType::Q6K,
            _ => return None,
        })
    }

    /// Whether numbers come in blocks with factors of their own.
    pub fn is_blocks(self) -> bool {
        self.ggml().is_some()
    }

    /// The format of a safetensors header, if it is one that tensors of models come in.
    pub(crate) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        use safetensors::Dtype as D;
        Some(match dtype {
            D::F64 => Self::F64,
            D::F32 => Self::F32,
            D::F16 => Self::F16,
            D::BF16 => Self::Bf16,
            D::F8_E4M3 => Self::F8E4m3,
            D::F8_E5M2 => Self::F8E5m2,
            D::I64 => Self::I64,
            D::I32 => Self::I32,
            D::I16 => Self::I16,
            D::I8 => Self::I8,
            D::U64 => Self::U64,
            D::U32 => Self::U32,
            D::U16 => Self::U16,
            D::U8 => Self::U8,
            D::BOOL => Self::Bool,
            _ => return None,
        })
    }

    /// Elements of a block and its bytes; a block of most formats is one element.
    pub fn block(self) -> (usize, usize) {
        let bytes = match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::I8 | Self::U8 | Self::Bool => 1,
            blocks => return blocks.ggml().map_or((1, 1), |kind| (kind.block_size(), kind.type_size())),
        };
        (1, bytes)
    }

    /// Bytes of so many elements, which are whole blocks; `None` if no memory holds them.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        let (block, bytes) = self.block();
        (elements / block).checked_mul(bytes)
    }

    /// Whether it holds real numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4m3 | Self::F8E5m2) || self.is_blocks()
    }

    /// `bytes` as `f32`, borrowed where they already are; `None` for formats that aren't real numbers.
    /// `bytes` must be whole elements.
    pub(crate) fn to_f32(self, bytes: &[u8]) -> Option<Cow<'_, [f32]>> {
        fn map<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Cow<'_, [f32]> {
            // chunks_exact yields slices of N bytes, so the conversion can't fail.
            Cow::Owned(bytes.chunks_exact(N).map(|b| convert(b.try_into().unwrap_or([0; N]))).collect())
        }
        Some(match self {
            Self::F32 => match bytemuck::try_cast_slice(bytes) {
                Ok(values) if cfg!(target_endian = "little") => Cow::Borrowed(values),
                _ => map(bytes, f32::from_le_bytes),
            },
            Self::F64 => map(bytes, |b| f64::from_le_bytes(b) as f32),
            Self::F16 => map(bytes, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => map(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F8E4m3 => map(bytes, |[b]: [u8; 1]| f8_e4m3(b)),
            // E5M2 is the upper half of an f16.
            Self::F8E5m2 => map(bytes, |[b]: [u8; 1]| f16::from_bits(u16::from(b) << 8).to_f32()),
            blocks => return blocks.ggml().and_then(|kind| dequantize(kind, bytes)).map(Cow::Owned),
        })
    }

    /// `values` in this format of blocks; `None` for other formats and for values that are no whole blocks.
    pub fn quantize(self, values: &[f32]) -> Option<Vec<u8>> {
        let tensor = Tensor::new(values, &Device::Cpu).ok()?;
        let quantized = QTensor::quantize(&tensor, self.ggml()?).ok()?;
        quantized.data().ok().map(Cow::into_owned)
    }
}

fn dequantize(kind: GgmlDType, bytes: &[u8]) -> Option<Vec<f32>> {
    let elements = bytes.len() / kind.type_size() * kind.block_size();
    let blocks = qtensor_from_ggml(kind, bytes, vec![elements], &Device::Cpu).ok()?;
    blocks.dequantize(&Device::Cpu).and_then(|values| values.to_vec1()).ok()
}

/// Decodes the "fn" variant of E4M3: no infinities, one NaN, largest value 448 (Micikevicius et al. 2022).
fn f8_e4m3(bits: u8) -> f32 {
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    match (exponent, bits & 0x7f) {
        (_, 0x7f) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

impl fmt::Display for StoredDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8_e4m3",
            Self::F8E5m2 => "f8_e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_decode_to_their_published_values() {
        let e4m3 = |b: u8| StoredDtype::F8E4m3.to_f32(&[b]).unwrap()[0];
        assert_eq!(e4m3(0x7e), 448.0);
        assert_eq!(e4m3(0x38), 1.0);
        assert_eq!(e4m3(0xb8), -1.0);
        assert_eq!(e4m3(0x01), 2f32.powi(-9));
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let e5m2 = |b: u8| StoredDtype::F8E5m2.to_f32(&[b]).unwrap()[0];
        assert_eq!(e5m2(0x7b), 57344.0);
        assert_eq!(e5m2(0x3c), 1.0);
        assert_eq!(e5m2(0x7c), f32::INFINITY);
    }

    #[test]
    fn integers_are_not_real_numbers() {
        assert!(StoredDtype::I8.to_f32(&[1]).is_none());
    }
}
