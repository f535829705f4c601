//! GGUF files (the format's specification is ggml's `gguf.md`): typed metadata, then tensors, some of them in blocks.

use crate::StoredDtype;
use std::collections::BTreeMap;
use std::ops::Range;

/// Arrays of arrays are refused below this depth.
const MAX_DEPTH: usize = 2;
/// Dimensions that a tensor has at most.
const MAX_DIMS: usize = 4;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Any integer.
    Int(i64),
    /// Any float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// Several values of one kind.
    Array(Vec<GgufValue>),
}

/// The metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufMetadata(BTreeMap<String, GgufValue>);

impl GgufMetadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.0.get(key)
    }

    /// All keys with their values, ordered.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(GgufValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A number, integer or not.
    pub fn number(&self, key: &str) -> Option<f64> {
        match self.get(key) {
            Some(GgufValue::Int(value)) => Some(*value as f64),
            Some(GgufValue::Float(value)) => Some(*value),
            _ => None,
        }
    }

    /// A count or an id.
    pub fn count(&self, key: &str) -> Option<usize> {
        match self.get(key) {
            Some(GgufValue::Int(value)) => usize::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A truth value.
    pub fn truth(&self, key: &str) -> Option<bool> {
        match self.get(key) {
            Some(GgufValue::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// An array.
    pub fn array(&self, key: &str) -> Option<&[GgufValue]> {
        match self.get(key) {
            Some(GgufValue::Array(values)) => Some(values),
            _ => None,
        }
    }

    /// An array of texts.
    pub fn texts(&self, key: &str) -> Option<Vec<&str>> {
        self.array(key)?
            .iter()
            .map(|value| match value {
                GgufValue::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// A tensor's entry.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: StoredDtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<usize>,
}

/// What stands before the tensors' bytes.
pub(crate) struct Header {
    pub(crate) metadata: GgufMetadata,
    pub(crate) tensors: Vec<Entry>,
    /// Where the tensors' bytes begin.
    pub(crate) data: usize,
}

/// Reads the header of a file; errors are sentences without the file's name.
pub(crate) fn read_header(bytes: &[u8]) -> Result<Header, String> {
    let mut reader = Reader { bytes, at: 0 };
    let magic = reader.take(4)?;
    if magic != b"GGUF" {
        return Err("is not a GGUF file".into());
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(format!("is GGUF of version {version}; versions 2 and 3 can be read, so convert the model again"));
    }
    let (tensor_count, pair_count) = (reader.count()?, reader.count()?);
    let mut metadata = GgufMetadata::default();
    for _ in 0..pair_count {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind, 0).map_err(|message| format!("{message} (in '{key}')"))?;
        if metadata.0.insert(key.clone(), value).is_some() {
            return Err(format!("is damaged: it has '{key}' twice"));
        }
    }
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        entries.push(reader.tensor()?);
    }
    let alignment = metadata.count("general.alignment").unwrap_or(32);
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(format!("is damaged: it aligns tensors to {alignment} bytes"));
    }
    let data = reader.at.next_multiple_of(alignment);
    let tensors = entries.into_iter().map(|(name, dtype, shape, offset)| {
        let outside = || format!("is cut off or damaged: the bytes of '{name}' lie outside; copy or download it again");
        let elements = shape.iter().try_fold(1usize, |total, size| total.checked_mul(*size)).ok_or_else(outside)?;
        let (block, _) = dtype.block();
        if !shape.last().copied().unwrap_or(1).is_multiple_of(block) {
            return Err(format!("is damaged: rows of '{name}' are no whole blocks of {dtype}"));
        }
        let start = data.checked_add(offset).ok_or_else(outside)?;
        let length = dtype.bytes_of(elements).ok_or_else(outside)?;
        let end = start.checked_add(length).filter(|end| *end <= bytes.len()).ok_or_else(outside)?;
        if offset % alignment != 0 {
            return Err(format!("is damaged: '{name}' is not aligned"));
        }
        Ok(Entry { name, dtype, shape, range: start..end })
    });
    Ok(Header { tensors: tensors.collect::<Result<_, _>>()?, metadata, data })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or("is cut off or damaged; copy or download it again")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things that take a byte each at least, so that no count makes room for more than there can be.
    fn count(&mut self) -> Result<usize, String> {
        let count = self.u64()?;
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            return Err(format!("is cut off or damaged: it counts {count} things in {left} bytes"));
        }
        Ok(count as usize)
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.count()?;
        let bytes = self.take(length)?;
        // Tokens of some vocabularies are pieces of characters.
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<GgufValue, String> {
        Ok(match kind {
            0 => GgufValue::Int(i64::from(self.array::<1>()?[0])),
            1 => GgufValue::Int(i64::from(i8::from_le_bytes(self.array()?))),
            2 => GgufValue::Int(i64::from(u16::from_le_bytes(self.array()?))),
            3 => GgufValue::Int(i64::from(i16::from_le_bytes(self.array()?))),
            4 => GgufValue::Int(i64::from(self.u32()?)),
            5 => GgufValue::Int(i64::from(i32::from_le_bytes(self.array()?))),
            6 => GgufValue::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => GgufValue::Bool(self.array::<1>()?[0] != 0),
            8 => GgufValue::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let kind = self.u32()?;
                let count = self.count()?;
                let values = (0..count).map(|_| self.value(kind, depth + 1));
                GgufValue::Array(values.collect::<Result<_, _>>()?)
            }
            10 => GgufValue::Int(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => GgufValue::Int(i64::from_le_bytes(self.array()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("is damaged: there is no kind {other} of metadata at this place")),
        })
    }

    fn tensor(&mut self) -> Result<(String, StoredDtype, Vec<usize>, usize), String> {
        let name = self.text()?;
        let dims = self.u32()? as usize;
        if dims > MAX_DIMS {
            return Err(format!("is damaged: '{name}' has {dims} dimensions"));
        }
        let size = |reader: &mut Self| usize::try_from(reader.u64()?).map_err(|_| format!("'{name}' is too large"));
        let mut shape = (0..dims).map(|_| size(self)).collect::<Result<Vec<_>, _>>()?;
        // The fastest dimension comes first in the file.
        shape.reverse();
        let kind = self.u32()?;
        let dtype = StoredDtype::from_ggml(kind).ok_or_else(|| {
            let kind = ggml_name(kind);
            let known = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K";
            format!("holds '{name}' as {kind}, which can't be read; use a file of the model in {known}")
        })?;
        let offset = size(self)?;
        Ok((name, dtype, shape, offset))
    }
}

/// The name of a number format of ggml that isn't read here.
fn ggml_name(kind: u32) -> String {
    let name = match kind {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("number format {kind}"),
    };
    name.to_owned()
}
