//! The autoencoder against diffusers' AutoencoderKL, stage by stage, on weights from the recipe.

#![allow(clippy::unwrap_used)] // in the tests' helpers too

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use conformance::recipe::{Format, fixtures, write_folder};
use layers::vae::{AutoencoderKl, VaeConfig, VaeDefaults};
use runtime_base::{CancelFlag, Error};
use weights::{Checkpoint, KeyPlan, Weights};

const DEFAULTS: VaeDefaults = VaeDefaults { norm_groups: 4, scaling_factor: 0.3611, shift_factor: 0.1159 };

fn relative_error(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.dims(), want.dims());
    let host = |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let (got, want) = (host(got), host(want));
    norm(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

fn tiny(dtype: DType) -> (tempfile::TempDir, Weights) {
    let dir = tempfile::tempdir().unwrap();
    write_folder(&fixtures().join("z-image-tiny"), dir.path(), Format::F32, 1).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("vae")).unwrap();
    let weights = Weights::new(Arc::new(checkpoint), &KeyPlan::identity(), dtype, Device::Cpu).unwrap();
    (dir, weights)
}

fn golden() -> std::collections::HashMap<String, Tensor> {
    candle_core::safetensors::load(fixtures().join("z-image-tiny/vae.safetensors"), &Device::Cpu).unwrap()
}

#[test]
fn encodes_and_decodes_like_the_reference() {
    let golden = golden();
    for (dtype, limit) in [(DType::F32, 1e-5), (DType::BF16, 2e-2)] {
        let (_dir, weights) = tiny(dtype);
        let config = VaeConfig::new(&weights, None, DEFAULTS).unwrap();
        assert_eq!(config.block_out_channels, [16, 32, 32, 32]);
        assert_eq!((config.layers_per_block, config.latent_channels, config.factor()), (2, 16, 8));
        let vae = AutoencoderKl::new(&weights, config).unwrap();
        assert_eq!(weights.unused(), [""; 0]);
        let cancel = CancelFlag::new();
        let moments = vae.encode(&golden["pixels"].to_dtype(dtype).unwrap(), &cancel).unwrap().unwrap();
        let both = Tensor::cat(&[moments.mean, moments.log_variance], 1).unwrap();
        let error = relative_error(&both, &golden["moments"]);
        assert!(error < limit, "moments in {dtype:?}: {error}");
        let image = vae.decode(&golden["latents"].to_dtype(dtype).unwrap(), &cancel).unwrap();
        let error = relative_error(&image, &golden["image"]);
        assert!(error < limit, "image in {dtype:?}: {error}");
        println!("{dtype:?}: moments {:.1e}, image {error:.1e}", relative_error(&both, &golden["moments"]));
    }
}

#[test]
fn cancelling_stops_both_halves() {
    let (_dir, weights) = tiny(DType::F32);
    let config = VaeConfig::new(&weights, None, DEFAULTS).unwrap();
    let vae = AutoencoderKl::new(&weights, config).unwrap();
    let cancel = CancelFlag::new();
    cancel.cancel();
    let decoded: Error = vae.decode(&golden()["latents"], &cancel).unwrap_err().into();
    assert_eq!(decoded, Error::Cancelled);
    let encoded: Error = vae.encode(&golden()["pixels"], &cancel).unwrap_err().into();
    assert_eq!(encoded, Error::Cancelled);
}

#[test]
fn groups_that_do_not_fit_name_the_config() {
    let (_dir, weights) = tiny(DType::F32);
    let error = VaeConfig::new(&weights, None, VaeDefaults { norm_groups: 5, ..DEFAULTS }).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
    let config = serde_json::json!({ "norm_num_groups": 8, "scaling_factor": 0.5, "shift_factor": null });
    let read = VaeConfig::new(&weights, Some(&config), DEFAULTS).unwrap();
    assert_eq!((read.norm_groups, read.scaling_factor, read.shift_factor), (8, 0.5, 0.0));
    assert!(VaeConfig::new(&weights.pp("encoder"), None, DEFAULTS).is_err());
}

#[test]
fn decoding_falls_back_on_nothing() {
    let (_dir, weights) = tiny(DType::BF16);
    let vae = AutoencoderKl::new(&weights, VaeConfig::new(&weights, None, DEFAULTS).unwrap()).unwrap();
    let before = layers::fallbacks();
    vae.decode(&golden()["latents"].to_dtype(DType::BF16).unwrap(), &CancelFlag::new()).unwrap();
    assert_eq!(layers::fallbacks(), before);
}
