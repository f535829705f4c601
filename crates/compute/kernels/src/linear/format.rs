//! How weights are kept in memory.

use super::{PANEL, TILE_K};

/// How weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// Brain floats.
    Bf16,
    /// 8-bit integers with one factor an output, made from floats as they are pushed. Activations are rounded to 8 bits
    /// as well, each row by its own factor, and products are exact integers: the same on every instruction set.
    Int8,
    /// GGUF: blocks of 32, 8 bits and a factor. With all formats of GGUF activations are rounded to 8 bits in blocks too,
    /// by the format's own definition, and products within a block are exact integers.
    Q8_0,
    /// GGUF: blocks of 32, 4 bits and a factor.
    Q4_0,
    /// GGUF: blocks of 32, 4 bits, a factor and a minimum.
    Q4_1,
    /// GGUF: blocks of 32, 5 bits and a factor.
    Q5_0,
    /// GGUF: blocks of 32, 5 bits, a factor and a minimum.
    Q5_1,
    /// GGUF: blocks of 256, 4 bits, factors and offsets of 32.
    Q4K,
    /// GGUF: blocks of 256, 5 bits, factors and offsets of 32.
    Q5K,
    /// GGUF: blocks of 256, 6 bits, factors of 16.
    Q6K,
}

/// The formats by name: GGUF ones as they are called there, in lower case.
const NAMES: [(&str, WeightFormat); 11] = [
    ("f32", WeightFormat::F32),
    ("bf16", WeightFormat::Bf16),
    ("int8", WeightFormat::Int8),
    ("q8_0", WeightFormat::Q8_0),
    ("q4_0", WeightFormat::Q4_0),
    ("q4_1", WeightFormat::Q4_1),
    ("q5_0", WeightFormat::Q5_0),
    ("q5_1", WeightFormat::Q5_1),
    ("q4_k", WeightFormat::Q4K),
    ("q5_k", WeightFormat::Q5K),
    ("q6_k", WeightFormat::Q6K),
];

impl std::str::FromStr for WeightFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let format = NAMES.into_iter().find(|(known, _)| *known == name);
        format.map(|(_, format)| format).ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            format!("there is no weight format {name:?}, only {names}")
        })
    }
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = NAMES.iter().find(|(_, format)| format == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl WeightFormat {
    /// Weights of a block; a row is whole blocks.
    pub fn block(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => 1,
            WeightFormat::Q8_0 | WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q5_0 | WeightFormat::Q5_1 => {
                32
            }
            WeightFormat::Q4K | WeightFormat::Q5K | WeightFormat::Q6K => 256,
        }
    }

    /// Bytes of a block in a GGUF file, or `None` for a format that floats are pushed in.
    pub fn file_block_bytes(self) -> Option<usize> {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => None,
            WeightFormat::Q8_0 => Some(34),
            WeightFormat::Q4_0 => Some(18),
            WeightFormat::Q4_1 => Some(20),
            WeightFormat::Q5_0 => Some(22),
            WeightFormat::Q5_1 => Some(24),
            WeightFormat::Q4K => Some(144),
            WeightFormat::Q5K => Some(176),
            WeightFormat::Q6K => Some(210),
        }
    }

    /// Whether it is one of the GGUF formats.
    pub fn is_blocks(self) -> bool {
        self.file_block_bytes().is_some()
    }

    /// The inner size with its padding.
    pub(crate) fn padded(self, inputs: usize) -> usize {
        match self {
            WeightFormat::Bf16 => inputs.next_multiple_of(TILE_K),
            WeightFormat::Int8 => inputs.next_multiple_of(2 * TILE_K),
            _ => inputs,
        }
    }

    /// Bytes of a panel up to inner element `k`, a multiple of 256 or the padded end.
    pub(crate) fn bytes(self, k: usize) -> usize {
        match self {
            WeightFormat::F32 => k * PANEL * 4,
            WeightFormat::Bf16 => k * PANEL * 2,
            WeightFormat::Int8 => k * PANEL,
            blocks => k / blocks.block() * super::quant::packed_bytes(blocks),
        }
    }
}
