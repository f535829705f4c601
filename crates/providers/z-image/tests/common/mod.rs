//! What the parity tests share: the reference's tensors and the error measure.

#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use conformance::recipe::{Format, fixtures, write_folder};
use weights::{Checkpoint, KeyPlan, Weights};

/// Tensors of a fixture file.
pub type Golden = HashMap<String, Tensor>;

pub fn golden(fixture: &str, file: &str) -> Golden {
    let path = fixtures().join(fixture).join(format!("{file}.safetensors"));
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// Norm of the difference over the norm of what is wanted.
pub fn relative_error(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.elem_count(), want.elem_count(), "{:?} against {:?}", got.shape(), want.shape());
    let host = |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let (got, want) = (host(got), host(want));
    norm(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

/// Asserts the bound on a stage's error, and prints it for those who look.
pub fn close(stage: &str, got: &Tensor, want: &Tensor, limit: f64) {
    let error = relative_error(got, want);
    println!("{stage}: {error:.1e}");
    assert!(error <= limit, "{stage}: relative error {error:.2e} is above {limit:.0e}");
}

/// The tiny checkpoint of `fixtures/z-image-tiny` as a diffusers folder.
pub fn tiny_folder(format: Format) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_folder(&fixtures().join("z-image-tiny"), dir.path(), format, 1).unwrap();
    dir
}

pub fn view(path: &Path, dtype: DType) -> Weights {
    let checkpoint = Arc::new(Checkpoint::open(path).unwrap());
    Weights::new(checkpoint, &KeyPlan::identity(), dtype, Device::Cpu).unwrap()
}
