//! The demo model, compiled into the binary.

use gen_core::WeightsSource;

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../../../assets/demo/", $path)) as &[u8])),*]
    };
}

static FILES: &[(&str, &[u8])] = files![
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
];

/// Name under which takes record it.
pub const NAME: &str = "inline-demo";

/// Id of the generator that opens it.
pub(crate) const GENERATOR: &str = "z_image_turbo";

/// The licence and attribution of the data that it was trained on; shown by `inline models`.
pub const ATTRIBUTION: &str = include_str!("../../../../assets/demo/LICENSE");

/// The model as a folder of embedded files.
pub fn source() -> WeightsSource {
    WeightsSource::Embedded(FILES)
}
