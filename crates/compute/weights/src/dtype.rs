//! Number formats on disk.

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
}

impl StoredDtype {
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

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether it holds real numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4m3 | Self::F8E5m2)
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
            _ => return None,
        })
    }
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
