//! The ComfyUI node classes that this importer knows: what each becomes, and its widgets in order.

/// What a node of a class becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Denoiser, text encoder and VAE from one file.
    Checkpoint,
    /// A denoiser.
    DiffusionModel,
    /// A text encoder.
    TextEncoder,
    /// A VAE.
    Vae,
    /// The schedule's time shift, set on the model on its way to the sampler.
    Shift,
    /// Text to conditioning.
    EncodeText,
    /// Conditioning of zeros.
    ZeroOut,
    /// Latents to start from.
    EmptyLatent,
    /// The whole denoise loop.
    Sampler,
    /// The denoise loop with chosen first and last steps.
    SamplerAdvanced,
    /// Latents to a picture.
    Decode,
    /// A picture to latents.
    Encode,
    /// A picture that the user brings.
    LoadImage,
    /// Keeps a picture.
    Save,
    /// Shows a picture.
    Preview,
    /// A value: a text or a number.
    Constant,
    /// Hands its input on.
    Reroute,
    /// Words for the reader.
    Note,
}

/// A class that is known.
pub(crate) struct Class {
    pub role: Role,
    /// Names of the widgets in the order in which the UI format writes their values, control widgets left out.
    pub widgets: &'static [&'static str],
}

/// Widgets whose value is followed by that of a control widget.
pub(crate) const CONTROLLED: [&str; 2] = ["seed", "noise_seed"];
/// The name under which a control widget's value is kept.
pub(crate) const CONTROL: &str = "control_after_generate";
/// What a control widget can hold.
pub(crate) const CONTROL_VALUES: [&str; 5] = ["fixed", "increment", "decrement", "randomize", "increment-wrap"];

/// Looks a class up.
pub(crate) fn find(name: &str) -> Option<Class> {
    use Role::*;
    let (role, widgets): (Role, &'static [&'static str]) = match name {
        "CheckpointLoaderSimple" => (Checkpoint, &["ckpt_name"]),
        "UNETLoader" => (DiffusionModel, &["unet_name", "weight_dtype"]),
        "UnetLoaderGGUF" => (DiffusionModel, &["unet_name"]),
        "DiffusionModelLoader" | "DiffusionModelLoaderKJ" => (DiffusionModel, &["model_name", "weight_dtype"]),
        "CLIPLoader" => (TextEncoder, &["clip_name", "type", "device"]),
        "CLIPLoaderGGUF" => (TextEncoder, &["clip_name", "type"]),
        "VAELoader" => (Vae, &["vae_name"]),
        "ModelSamplingAuraFlow" | "ModelSamplingSD3" => (Shift, &["shift"]),
        "CLIPTextEncode" => (EncodeText, &["text"]),
        "ConditioningZeroOut" => (ZeroOut, &[]),
        "EmptyLatentImage" | "EmptySD3LatentImage" | "EmptyFlux2LatentImage" => {
            (EmptyLatent, &["width", "height", "batch_size"])
        }
        "KSampler" => (Sampler, &["seed", "steps", "cfg", "sampler_name", "scheduler", "denoise"]),
        "KSamplerAdvanced" => (
            SamplerAdvanced,
            &[
                "add_noise",
                "noise_seed",
                "steps",
                "cfg",
                "sampler_name",
                "scheduler",
                "start_at_step",
                "end_at_step",
                "return_with_leftover_noise",
            ],
        ),
        "VAEDecode" | "VAEDecodeTiled" => (Decode, &[]),
        "VAEEncode" | "VAEEncodeTiled" => (Encode, &[]),
        "LoadImage" => (LoadImage, &["image"]),
        "SaveImage" => (Save, &["filename_prefix"]),
        "PreviewImage" => (Preview, &[]),
        "PrimitiveNode"
        | "PrimitiveString"
        | "PrimitiveStringMultiline"
        | "PrimitiveInt"
        | "PrimitiveFloat"
        | "PrimitiveBoolean" => (Constant, &["value"]),
        "StringConstant" | "String Literal" => (Constant, &["string"]),
        "Reroute" | "Reroute (rgthree)" => (Reroute, &[]),
        "Note" | "MarkdownNote" => (Note, &[]),
        _ => return None,
    };
    Some(Class { role, widgets })
}

/// Why nodes of an unknown class aren't mapped.
pub(crate) fn why_not(name: &str) -> &'static str {
    let has = |part: &str| name.contains(part);
    if name.starts_with("workflow>") || name.starts_with("workflow/") {
        "group nodes aren't read; in ComfyUI, ungroup it or convert it to a subgraph"
    } else if has("Lora") || has("LoRA") {
        "no primitive applies adapters yet; bypass it in ComfyUI to import without it"
    } else if has("ControlNet") {
        "no primitive takes control pictures yet"
    } else if ["DualCLIPLoader", "TripleCLIPLoader", "QuadrupleCLIPLoader"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        "load/text-encoder loads one text encoder, not several"
    } else if name == "FluxGuidance" {
        "the sample node has no distilled guidance"
    } else if name.starts_with("SamplerCustom") || name.starts_with("KSampler") {
        "only KSampler, and KSamplerAdvanced over all its steps, have a counterpart"
    } else if has("Upscale") || has("ImageScale") || has("Resize") {
        "no node resizes pictures or latents"
    } else if has("Inpaint") || has("Mask") {
        "no primitive takes masks"
    } else {
        "no node of this engine does the same"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_what_is_missing() {
        for (name, part) in [
            ("LoraLoaderModelOnly", "adapters"),
            ("ControlNetApplyAdvanced", "control"),
            ("DualCLIPLoaderGGUF", "one text encoder"),
            ("SamplerCustomAdvanced", "KSampler"),
            ("workflow>mine", "ungroup"),
            ("LatentUpscaleBy", "resizes"),
            ("VAEEncodeForInpaint", "masks"),
            ("Frobnicate", "does the same"),
        ] {
            assert!(find(name).is_none() && why_not(name).contains(part), "{name}: {}", why_not(name));
        }
    }
}
