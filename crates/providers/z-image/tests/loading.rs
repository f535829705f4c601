//! Every layout that a checkpoint comes in gives the same model, and everything else is refused when it is opened.

#![allow(clippy::unwrap_used)] // in the tests' helpers too

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::tiny_folder;
use conformance::headers::{header_list, write_header_only};
use conformance::recipe::{Format, Mapped, Named, fixtures, read_comfy_map, write_folder, write_safetensors};
use gen_core::{
    AdapterKind, AdapterSpec, CancelFlag, Denoiser, DiffusionModel, Error, Image, Latents, LoadSpec, Precision, Quant,
    Role, StepContext, TextEncoder, Vae, WeightsSource,
};
use z_image::{ZImageModel, provider_registry, z_image, z_image_turbo};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo")
}

/// In f32, as the default differs from machine to machine.
fn spec(source: WeightsSource) -> LoadSpec {
    LoadSpec::new(source).with_precision(Precision::F32)
}

fn dir(path: &Path) -> LoadSpec {
    spec(WeightsSource::Dir(path.to_owned()))
}

fn open(spec: &LoadSpec) -> Result<ZImageModel, Error> {
    ZImageModel::open(&z_image_turbo(), spec)
}

/// The tiny checkpoint as original single files below `root`, the network's names behind `prefix`.
fn single_files(root: &Path, prefix: &str, format: Format) -> LoadSpec {
    let maps = read_comfy_map(&fixtures().join("z-image-tiny")).unwrap();
    let file = |folder: &str, part: &str, prefix: &str| {
        let tensors: Vec<Mapped> =
            maps[part].iter().map(|t| Mapped { name: format!("{prefix}{}", t.name), ..t.clone() }).collect();
        let path = root.join(folder).join("z.safetensors");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_safetensors(&path, &tensors, format).unwrap();
        WeightsSource::File(path)
    };
    let text = file("text_encoders", "text_encoder", "");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(demo().join("tokenizer").join(name), root.join("text_encoders").join(name)).unwrap();
    }
    // What shapes can't tell of a tiny VAE; the released one's groups are the default.
    let vae = file("vae", "vae", "");
    fs::copy(fixtures().join("z-image-tiny/vae/config.json"), root.join("vae/config.json")).unwrap();
    spec(file("diffusion_models", "transformer", prefix))
        .with_component(Role::TextEncoder, text)
        .with_component(Role::Vae, vae)
}

/// One prediction and one picture.
fn result_of(spec: &LoadSpec) -> (Latents, Image) {
    let model = open(spec).unwrap();
    let cancel = CancelFlag::new();
    let caption = model.text_encoder(&cancel).unwrap().encode("a red apple", &cancel).unwrap();
    let values = (0..16 * 4 * 6).map(|i| (i as f32 * 0.37).sin()).collect();
    let latents = Latents::new(vec![1, 16, 4, 6], values).unwrap();
    let context = StepContext { cancel: &cancel, step: 1 };
    let velocity = model.denoiser(&cancel).unwrap().predict(&latents, 0.7, &[&caption], &context).unwrap();
    (velocity, model.vae(&cancel).unwrap().decode(&latents, &cancel).unwrap())
}

#[test]
fn every_layout_gives_the_same_model() {
    for format in [Format::F32, Format::F16, Format::Bf16] {
        let folder = tiny_folder(format);
        let want = result_of(&dir(folder.path()));
        let sharded = tempfile::tempdir().unwrap();
        write_folder(&fixtures().join("z-image-tiny"), sharded.path(), format, 3).unwrap();
        assert!(result_of(&dir(sharded.path())) == want, "sharded {format:?}");
        for prefix in ["", "model.diffusion_model."] {
            let root = tempfile::tempdir().unwrap();
            assert!(result_of(&single_files(root.path(), prefix, format)) == want, "single {prefix} {format:?}");
        }
    }
}

#[test]
fn files_of_the_program_are_a_model_too() {
    let mut files: Vec<(&'static str, &'static [u8])> = Vec::new();
    for folder in ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"] {
        for entry in fs::read_dir(demo().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap());
            files.push((name.leak(), fs::read(path).unwrap().leak()));
        }
    }
    let embedded = spec(WeightsSource::Embedded(files.leak()));
    assert!(result_of(&embedded) == result_of(&dir(&demo())));
    let (one, two) = (open(&embedded).unwrap(), open(&embedded).unwrap());
    assert_eq!(one.fingerprint(), two.fingerprint());
    let half = open(&embedded.clone().with_precision(Precision::Bf16)).unwrap();
    assert_ne!(half.fingerprint(), one.fingerprint());
    let unsaid = open(&LoadSpec { precision: None, ..embedded.clone() }).unwrap();
    let best = open(&embedded.with_precision(layers::best_cpu_precision())).unwrap();
    assert_eq!(unsaid.fingerprint(), best.fingerprint());
}

#[test]
fn a_file_cast_to_half_precision_on_disk_is_close_to_the_full_one() {
    let (full, half) = (tiny_folder(Format::F32), tiny_folder(Format::F16));
    let (a, b) = (result_of(&dir(full.path())).0, result_of(&dir(half.path())).0);
    let worst = a.data().iter().zip(b.data()).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(worst > 0.0 && worst < 2e-2, "{worst}");
}

#[test]
fn true_sizes_are_measured_from_headers_in_no_time() {
    let root = tempfile::tempdir().unwrap();
    let header = |name: &str, list: &str| {
        let path = root.path().join(format!("{name}.safetensors"));
        write_header_only(&path, &header_list(list).unwrap().tensors, "BF16").unwrap();
        WeightsSource::File(path)
    };
    for network in ["z_image_transformer_diffusers", "z_image_transformer_comfy"] {
        let spec = LoadSpec::new(header("network", network))
            .with_component(Role::TextEncoder, header("text", "qwen3_4b"))
            .with_component(Role::Vae, header("vae", "flux_vae_ldm"))
            .with_component(Role::Tokenizer, WeightsSource::Dir(demo().join("tokenizer")))
            .with_precision(Precision::Bf16);
        let start = Instant::now();
        let model = open(&spec).unwrap();
        let took = start.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        let size = |role: Role| model.footprint().components.iter().find(|c| c.role == role).unwrap().clone();
        assert_eq!(size(Role::Denoiser).parameters, 6_154_908_736);
        assert_eq!(model.footprint().bytes(Role::Denoiser), 2 * 6_154_908_736);
        assert!(size(Role::Denoiser).quantizable_bytes > size(Role::Denoiser).bytes * 9 / 10);
        assert_eq!(size(Role::Vae).parameters, 83_819_683);
        // 35 of 36 layers, the table of 151936 rows on disk
        let layer = 100_930_816;
        let (table, text) = (151_936 * 2560, size(Role::TextEncoder));
        assert_eq!((text.parameters, text.bytes), (35 * layer + table, 2 * 35 * layer));
        let recipe = model.recipe();
        assert_eq!((recipe.latent_channels, recipe.latent_factor, recipe.patch), (16, 8, 2));
        let full = open(&spec.clone().with_precision(Precision::F32)).unwrap();
        assert_eq!(full.footprint().total(), 2 * model.footprint().total());
    }
}

#[test]
fn a_missing_component_says_what_and_where() {
    let folder = tiny_folder(Format::F32);
    let missing = |removed: &str, role: Role| {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder.path()).unwrap().map(Result::unwrap).filter(|e| e.path().is_dir()) {
            if entry.file_name() != removed {
                fs::create_dir_all(copy.path().join(entry.file_name())).unwrap();
                for file in fs::read_dir(entry.path()).unwrap().map(Result::unwrap) {
                    fs::copy(file.path(), copy.path().join(entry.file_name()).join(file.file_name())).unwrap();
                }
            }
        }
        match open(&dir(copy.path())).err().unwrap() {
            Error::MissingComponent { role: found, path, message } => {
                assert_eq!(found, role);
                assert!(path.to_string_lossy().contains(removed) || message.contains(removed), "{path:?} {message}");
            }
            other => panic!("{removed}: {other}"),
        }
    };
    missing("text_encoder", Role::TextEncoder);
    missing("vae", Role::Vae);
    missing("tokenizer", Role::Tokenizer);

    let root = tempfile::tempdir().unwrap();
    let spec = single_files(root.path(), "", Format::F32);
    fs::remove_file(root.path().join("text_encoders/tokenizer.json")).unwrap();
    let message = open(&spec).err().unwrap().to_string();
    assert!(message.contains("tokenizer.json") && message.contains("text_encoders"), "{message}");
    // a folder of the encoder's name, as its snapshot would be
    fs::create_dir(root.path().join("text_encoders/z")).unwrap();
    fs::copy(demo().join("tokenizer/tokenizer.json"), root.path().join("text_encoders/z/tokenizer.json")).unwrap();
    let alone = result_of(&spec);
    assert!(alone == result_of(&dir(folder.path())), "without a template, turns are written as Qwen3 has them");
    let bare = LoadSpec::new(spec.source.clone());
    assert!(matches!(open(&bare), Err(Error::MissingComponent { role: Role::TextEncoder, .. })));
}

/// The tiny checkpoint with the tensors of one part changed.
fn altered(part: &str, change: impl FnOnce(&mut Vec<Named>)) -> (tempfile::TempDir, LoadSpec) {
    let folder = tiny_folder(Format::F32);
    let list = fixtures().join("z-image-tiny").join(part).join("tensors.json");
    let mut tensors = conformance::recipe::read_tensor_list(&list).unwrap();
    change(&mut tensors);
    let stem = if part == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
    let path = folder.path().join(part).join(format!("{stem}.safetensors"));
    let tensors: Vec<Mapped> = tensors.into_iter().map(Mapped::from).collect();
    write_safetensors(&path, &tensors, Format::F32).unwrap();
    let spec = dir(folder.path());
    (folder, spec)
}

#[test]
fn a_damaged_or_foreign_checkpoint_names_the_tensor() {
    for (part, tensor) in [
        ("transformer", "layers.1.feed_forward.w2.weight"),
        ("transformer", "t_embedder.mlp.2.bias"),
        ("text_encoder", "model.layers.1.mlp.up_proj.weight"),
        ("text_encoder", "model.layers.0.post_attention_layernorm.weight"),
        ("vae", "encoder.down_blocks.2.resnets.0.conv1.bias"),
    ] {
        let (_folder, spec) = altered(part, |tensors| tensors.retain(|(name, _)| name != tensor));
        let canonical = tensor.trim_start_matches("model.");
        match open(&spec).err().unwrap() {
            Error::Weights { tensor: Some(named), .. } => assert!(named.contains(canonical), "{named}"),
            other => panic!("{tensor}: {other}"),
        }
        let (_folder, spec) = altered(part, |tensors| {
            tensors.iter_mut().find(|(name, _)| name == tensor).unwrap().1[0] += 1;
        });
        assert!(matches!(open(&spec), Err(Error::Weights { tensor: Some(_), .. })), "{tensor} of another shape");
        let (_folder, spec) = altered(part, |tensors| tensors.push((format!("{tensor}_extra"), vec![3])));
        let message = open(&spec).err().unwrap().to_string();
        assert!(message.contains("_extra"), "{message}");
    }
}

#[test]
fn a_truncated_file_and_a_component_of_another_model_are_refused() {
    for file in ["transformer/diffusion_pytorch_model", "text_encoder/model", "vae/diffusion_pytorch_model"] {
        let folder = tiny_folder(Format::F32);
        let path = folder.path().join(file).with_extension("safetensors");
        let bytes = fs::read(&path).unwrap();
        for keep in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&path, &bytes[..keep]).unwrap();
            assert!(matches!(open(&dir(folder.path())), Err(Error::Weights { .. })), "{file} cut to {keep}");
        }
    }
    let folder = tiny_folder(Format::F32);
    let path = folder.path().join("tokenizer/tokenizer.json");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(open(&dir(folder.path())), Err(Error::Weights { .. })));

    let folder = tiny_folder(Format::F32);
    let swapped = dir(folder.path()).with_component(Role::TextEncoder, WeightsSource::Dir(demo()));
    let message = open(&swapped).err().unwrap().to_string();
    assert!(message.contains("128") && message.contains("96"), "{message}");
    let vae = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    let message = open(&LoadSpec::new(WeightsSource::File(vae))).err().unwrap().to_string();
    assert!(message.contains("vae"), "{message}");
}

#[test]
fn what_the_family_cannot_do_is_refused_at_open() {
    let folder = tiny_folder(Format::F32);
    let source = || WeightsSource::Dir(folder.path().to_owned());
    let adapter = AdapterSpec { path: "x.safetensors".into(), scale: 1.0, kind: AdapterKind::Dora };
    for spec in [
        dir(folder.path()).with_quant(Quant::Nvfp4),
        dir(folder.path()).with_control(source()),
        dir(folder.path()).with_extra_control(source()),
        dir(folder.path()).with_ip_adapter(source()),
        dir(folder.path()).with_adapters(vec![adapter]),
    ] {
        assert!(matches!(open(&spec), Err(Error::Unsupported(_))));
    }
}

#[test]
fn a_cancelled_load_stops_and_does_no_harm() {
    let folder = tiny_folder(Format::F32);
    let model = open(&dir(folder.path())).unwrap();
    let cancel = CancelFlag::new();
    let encoder = model.text_encoder(&cancel).unwrap();
    cancel.cancel();
    assert!(matches!(model.text_encoder(&cancel), Err(Error::Cancelled)));
    assert!(matches!(model.denoiser(&cancel), Err(Error::Cancelled)));
    assert!(matches!(model.vae(&cancel), Err(Error::Cancelled)));
    // A component that was loaded under the flag works on.
    assert!(encoder.encode("a red apple", &CancelFlag::new()).is_ok());
    assert!(matches!(encoder.encode("a red apple", &cancel), Err(Error::Cancelled)));
}

#[test]
fn prompts_at_and_past_the_limit() {
    let folder = tiny_folder(Format::F32);
    let encoder = open(&dir(folder.path())).unwrap().text_encoder(&CancelFlag::new()).unwrap();
    let encode = |prompt: &str| encoder.encode(prompt, &CancelFlag::new());
    for prompt in ["", " ", "🍎🚀 一个红苹果", "\u{0}", "<|im_end|>"] {
        assert!(encode(prompt).unwrap().tokens() > 0, "{prompt:?}");
    }
    assert_ne!(encode("a").unwrap().fingerprint(), encode("b").unwrap().fingerprint());
    assert_eq!(encode("a").unwrap().fingerprint(), encode("a").unwrap().fingerprint());
    let around = encode("").unwrap().tokens();
    let word = |count: usize| "!\n".repeat(count);
    let per_word = encode(&word(2)).unwrap().tokens() - encode(&word(1)).unwrap().tokens();
    let fits = (512 - around) / per_word;
    assert!(encode(&word(fits.saturating_sub(2))).is_ok());
    match encode(&word(10_000)) {
        Err(Error::InvalidRequest { field: "prompt", message }) => {
            assert!(message.contains("512") && message.contains("tokens"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_family_registers_two_well_formed_models() {
    for descriptor in [z_image(), z_image_turbo()] {
        descriptor.check().unwrap();
    }
    let registry = provider_registry().unwrap();
    let ids: Vec<_> = registry.generators().map(|entry| entry.descriptor.id.clone()).collect();
    assert_eq!(ids, ["z_image", "z_image_turbo"]);
    let folder = tiny_folder(Format::F32);
    let footprint = registry.footprint("z_image", &dir(folder.path())).unwrap();
    assert_eq!(footprint, *open(&dir(folder.path())).unwrap().footprint());
    assert!(registry.load("z_image", &dir(folder.path())).is_ok());
    assert!(registry.load("z_image", &dir(&folder.path().join("nowhere"))).is_err());
}
