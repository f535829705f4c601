//! The network against diffusers, stage by stage, on weights from the recipe.

#![allow(clippy::unwrap_used)] // in the tests' helpers too

mod common;

use candle_core::{DType, Tensor};
use common::{close, golden, tiny_folder, view};
use conformance::recipe::Format;
use gen_core::{CancelFlag, Error};
use z_image::ZImageConfig;
use z_image::sequence::{caption_rope, image_rope, pad, padded, patchify};
use z_image::transformer::{Ropes, ZImageTransformer};

fn network(dtype: DType) -> (tempfile::TempDir, ZImageTransformer) {
    let dir = tiny_folder(Format::F32);
    let weights = view(&dir.path().join("transformer"), dtype);
    let network = ZImageTransformer::new(&weights, ZImageConfig::new(&weights, None).unwrap()).unwrap();
    assert_eq!(weights.unused(), [""; 0]);
    (dir, network)
}

fn rows(x: &Tensor, count: usize) -> Tensor {
    x.narrow(x.rank() - 2, 0, count).unwrap()
}

#[test]
fn geometry_comes_from_the_tensors() {
    let (_dir, network) = network(DType::F32);
    let want = ZImageConfig {
        dim: 256,
        layers: 2,
        refiner_layers: 2,
        heads: 2,
        kv_heads: 2,
        head_dim: 128,
        ffn_dim: 682,
        caption_dim: 96,
        modulation_dim: 256,
        time_frequencies: 256,
        time_hidden: 1024,
        patch: 2,
        latent_channels: 16,
        axes: [32, 48, 48],
        rope_theta: 256.0,
        time_scale: 1000.0,
        norm_eps: 1e-5,
    };
    assert_eq!(*network.config(), want);
}

#[test]
fn every_stage_equals_the_reference() {
    let g = golden("z-image-tiny", "denoiser");
    let (_dir, network) = network(DType::F32);
    let (config, cancel, limit) = (network.config(), CancelFlag::new(), 1e-5);
    let time = g["t"].to_vec1::<f32>().unwrap()[0];
    let tokens = g["cap_feats"].dim(0).unwrap();

    let embedded = network.embed_time(time).unwrap();
    close("time", &embedded, &g["t_embed"], limit);

    let image = image_rope(config, tokens, [3, 5]);
    let caption = caption_rope(config, tokens);
    let both = image.concat(&caption);
    let table = |values: &[f32]| Tensor::new(values, network.device()).unwrap();
    close("rope cos", &table(both.cos()), &g["rope_cos"], 1e-6);
    close("rope sin", &table(both.sin()), &g["rope_sin"], 1e-6);

    let refined = network.refine_caption(&g["cap_feats"], &caption, &cancel).unwrap();
    assert_eq!(refined.dims(), [1, padded(tokens), config.dim]);
    let stages = network.stages();
    let patches = patchify(&g["latents"].squeeze(0).unwrap(), 2).unwrap();
    let x = stages.image_embedder.forward(&patches).unwrap();
    // The reference embeds padded patches and replaces the padding afterwards.
    close("image embedder", &x, &rows(&g["x_embed"], 15), limit);
    let x = pad(&x, stages.image_pad).unwrap();
    let x = stages.noise_refiner[0].forward(&x, &image, Some(&embedded)).unwrap();
    close("first noise refiner", &x, &g["noise_refiner_0"], limit);
    let c = network.embed_caption(&g["cap_feats"]).unwrap();
    let c = stages.context_refiner[0].forward(&c, &caption, None).unwrap();
    close("first context refiner", &c, &g["context_refiner_0"], limit);

    let x = stages.noise_refiner[1].forward(&x, &image, Some(&embedded)).unwrap();
    let hidden = Tensor::cat(&[&x, &refined], 1).unwrap();
    let hidden = stages.layers[0].forward(&hidden, &both, Some(&embedded)).unwrap();
    close("first layer", &hidden, &g["layer_0"], limit);

    let ropes = Ropes::new(config, tokens, [6, 10]);
    let output = network.forward(&g["latents"].squeeze(0).unwrap(), time, &refined, &ropes, &cancel).unwrap();
    close("output", &output, &g["output"], limit);
}

#[test]
fn half_precisions_stay_near() {
    let g = golden("z-image-tiny", "denoiser");
    // No kernel serves f16, so that is also the whole network on Candle's own operations.
    for (dtype, falls_back) in [(DType::BF16, false), (DType::F16, true)] {
        let (_dir, network) = network(dtype);
        let (config, cancel) = (network.config(), CancelFlag::new());
        let time = g["t"].to_vec1::<f32>().unwrap()[0];
        let tokens = g["cap_feats"].dim(0).unwrap();
        let before = layers::fallbacks();
        let caption = g["cap_feats"].to_dtype(dtype).unwrap();
        let refined = network.refine_caption(&caption, &caption_rope(config, tokens), &cancel).unwrap();
        let ropes = Ropes::new(config, tokens, [6, 10]);
        let output = network.forward(&g["latents"].squeeze(0).unwrap(), time, &refined, &ropes, &cancel).unwrap();
        close(&format!("output in {dtype:?}"), &output, &g["output"], 2e-2);
        assert_eq!(layers::fallbacks() > before, falls_back, "{dtype:?}");
    }
}

#[test]
fn cancelling_stops_between_blocks() {
    let g = golden("z-image-tiny", "denoiser");
    let (_dir, network) = network(DType::F32);
    let cancel = CancelFlag::new();
    let rope = caption_rope(network.config(), 54);
    let refined = network.refine_caption(&g["cap_feats"], &rope, &cancel).unwrap();
    cancel.cancel();
    let stopped: Error = network.refine_caption(&g["cap_feats"], &rope, &cancel).unwrap_err().into();
    assert_eq!(stopped, Error::Cancelled);
    let ropes = Ropes::new(network.config(), 54, [6, 10]);
    let latents = g["latents"].squeeze(0).unwrap();
    let stopped: Error = network.forward(&latents, 0.5, &refined, &ropes, &cancel).unwrap_err().into();
    assert_eq!(stopped, Error::Cancelled);
}

#[test]
fn contradictory_configs_are_refused() {
    let dir = tiny_folder(Format::F32);
    let weights = view(&dir.path().join("transformer"), DType::F32);
    for config in [r#"{"axes_dims": [32, 48, 40]}"#, r#"{"axes_dims": [64, 64]}"#, r#"{"axes_dims": "no"}"#] {
        let config = serde_json::from_str(config).unwrap();
        let read = ZImageConfig::new(&weights, Some(&config));
        assert_eq!(read.is_err(), config["axes_dims"].is_array(), "{config}");
    }
    let config = serde_json::from_str(r#"{"axes_dims": [64, 32, 32], "rope_theta": 10000.0, "t_scale": 1.0}"#).unwrap();
    let read = ZImageConfig::new(&weights, Some(&config)).unwrap();
    assert_eq!((read.axes, read.rope_theta, read.time_scale), ([64, 32, 32], 10000.0, 1.0));
}
