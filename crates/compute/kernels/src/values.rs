//! The two element types that activations come in.

use half::bf16;

/// Values to read: f32 or bf16.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// Brain floats.
    Bf16(&'a [bf16]),
}

impl Values<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::Bf16(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [f32]> for Values<'a> {
    fn from(values: &'a [f32]) -> Self {
        Values::F32(values)
    }
}

impl<'a> From<&'a [bf16]> for Values<'a> {
    fn from(values: &'a [bf16]) -> Self {
        Values::Bf16(values)
    }
}

impl<'a> From<&'a Vec<f32>> for Values<'a> {
    fn from(values: &'a Vec<f32>) -> Self {
        Values::F32(values)
    }
}

impl<'a> From<&'a Vec<bf16>> for Values<'a> {
    fn from(values: &'a Vec<bf16>) -> Self {
        Values::Bf16(values)
    }
}

/// Values to write: f32 or bf16.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// Brain floats.
    Bf16(&'a mut [bf16]),
}

impl ValuesMut<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            ValuesMut::F32(values) => values.len(),
            ValuesMut::Bf16(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            ValuesMut::F32(values) => size_of_val(*values),
            ValuesMut::Bf16(values) => size_of_val(*values),
        }
    }
}

impl<'a> From<&'a mut [f32]> for ValuesMut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        ValuesMut::F32(values)
    }
}

impl<'a> From<&'a mut [bf16]> for ValuesMut<'a> {
    fn from(values: &'a mut [bf16]) -> Self {
        ValuesMut::Bf16(values)
    }
}

impl<'a> From<&'a mut Vec<f32>> for ValuesMut<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        ValuesMut::F32(values)
    }
}

impl<'a> From<&'a mut Vec<bf16>> for ValuesMut<'a> {
    fn from(values: &'a mut Vec<bf16>) -> Self {
        ValuesMut::Bf16(values)
    }
}
