//! GGUF files: what is in them, and that no damage gets further than an error.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use weights::{Checkpoint, KeyPlan, StoredDtype, Weights};

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A file with a text, a list, and a matrix of two rows of one block each.
fn file() -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(1u64.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "llama");
    text(&mut out, "list");
    out.extend(9u32.to_le_bytes());
    out.extend(4u32.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    out.extend([7u32, 8].into_iter().flat_map(u32::to_le_bytes));
    text(&mut out, "matrix");
    out.extend(2u32.to_le_bytes());
    out.extend([32u64, 2].into_iter().flat_map(u64::to_le_bytes));
    out.extend(8u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    for row in 0..2u8 {
        out.extend([0x00, 0x3c]);
        out.extend((0..32).map(|k| k + row));
    }
    out
}

fn open(path: &Path, bytes: &[u8]) -> weights::Result<Checkpoint> {
    std::fs::write(path, bytes).unwrap();
    Checkpoint::open(path)
}

#[test]
fn metadata_and_blocks_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = open(&dir.path().join("model.gguf"), &file()).unwrap();
    let metadata = checkpoint.gguf().unwrap();
    assert_eq!(metadata.text("general.architecture"), Some("llama"));
    assert_eq!(metadata.array("list").unwrap().len(), 2);
    let info = checkpoint.info("matrix").unwrap();
    assert_eq!((info.dtype, info.shape.as_slice(), info.elements()), (StoredDtype::Q8_0, &[2, 32][..], 64));
    let weights = Weights::new(Arc::new(checkpoint), &KeyPlan::identity(), DType::F32, Device::Cpu).unwrap();
    let row: Vec<f32> = (0..32u8).map(|k| f32::from(k + 1)).collect();
    assert_eq!(weights.get_rows_f32([2, 32], "matrix", [1]).unwrap(), row);
    assert_eq!(weights.stored_rows([2, 32], "matrix").unwrap().1.len(), 68);
}

#[test]
fn damage_is_an_error_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (path, whole) = (dir.path().join("model.gguf"), file());
    for len in 1..whole.len() {
        assert!(open(&path, &whole[..len]).is_err(), "cut off at {len}");
    }
    // Any byte may be anything; what still opens must be readable.
    for at in 4..whole.len() - 68 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Ok(checkpoint) = open(&path, &bytes) {
                checkpoint
                    .tensors()
                    .for_each(|info| assert_eq!(checkpoint.raw(&info.name).unwrap().len(), info.bytes()));
            }
        }
    }
}
