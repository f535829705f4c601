//! Real files: layouts that must be told apart, and files that must be refused.

use conformance::{headers, recipe};
use runtime_base::Quant;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weights::{Checkpoint, Error, Layout, Weights, identify, plan_for};

fn refusal(path: &Path) -> String {
    match Checkpoint::open(path) {
        Err(error @ Error::Weights { .. }) => error.to_string(),
        Err(other) => panic!("expected a weights error, got {other:?}"),
        Ok(_) => panic!("{path:?} was accepted"),
    }
}

#[test]
fn true_size_headers_are_identified_in_milliseconds() {
    let dir = tempfile::tempdir().unwrap();
    for (list, family, layout, parameters) in [
        ("z_image_transformer_diffusers", "z_image", Layout::Diffusers, 6_154_908_736),
        ("z_image_transformer_comfy", "z_image", Layout::Original, 6_154_908_736),
        ("qwen3_4b", "qwen3", Layout::Diffusers, 4_022_468_096),
        ("flux_vae_diffusers", "autoencoder_kl", Layout::Diffusers, 83_819_683),
        ("flux_vae_ldm", "autoencoder_kl", Layout::Original, 83_819_683),
    ] {
        let path = dir.path().join("model.safetensors");
        headers::write_header_only(&path, &headers::header_list(list).unwrap().tensors, "BF16").unwrap();
        let start = Instant::now();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found = identify(&checkpoint);
        let took = start.elapsed();
        assert_eq!(found.len(), 1, "{list}: {found:?}");
        assert_eq!((found[0].family, found[0].layout, found[0].parameters), (family, layout, parameters), "{list}");
        assert!(took < Duration::from_millis(500), "{list} took {took:?}");
    }
}

/// Every canonical tensor of the tiny model, read through the original layout, equals the one read directly.
#[test]
fn the_original_layout_gives_the_same_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = recipe::fixtures().join("z-image-tiny");
    let folder = dir.path().join("diffusers");
    recipe::write_folder(&fixture, &folder, recipe::Format::F32, 1).unwrap();
    let maps = recipe::read_comfy_map(&fixture).unwrap();
    for (part, prefix) in [("transformer", "model.diffusion_model."), ("vae", ""), ("vae", "first_stage_model.")] {
        let mut single = maps[part].clone();
        single.iter_mut().for_each(|tensor| tensor.name = format!("{prefix}{}", tensor.name));
        let path = dir.path().join("single.safetensors");
        recipe::write_safetensors(&path, &single, recipe::Format::F32).unwrap();

        let original = Arc::new(Checkpoint::open(&path).unwrap());
        let found = identify(&original);
        assert_eq!(found[0].layout, Layout::Original, "{part}");
        let plan = plan_for(&found[0], &original).unwrap();
        let view = |c: &Arc<Checkpoint>, plan| {
            Weights::new(Arc::clone(c), plan, candle_core::DType::F32, candle_core::Device::Cpu).unwrap()
        };
        let original = view(&original, &plan);
        let direct = Arc::new(Checkpoint::open(&folder.join(part)).unwrap());
        let direct = view(&direct, &weights::KeyPlan::identity());
        let names: Vec<_> = direct.names().map(str::to_owned).collect();
        assert_eq!(names, original.names().collect::<Vec<_>>(), "{part}");
        for name in names {
            let shape = direct.shape(&name).unwrap().to_vec();
            let (a, b) = (direct.get_f32_vec(&shape, &name).unwrap(), original.get_f32_vec(&shape, &name).unwrap());
            assert!(a == b, "{part}: {name} differs");
        }
        assert!(original.unused().is_empty());
    }
}

#[test]
fn a_rehearsal_checks_everything_and_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    headers::write_header_only(&path, &headers::header_list("z_image_transformer_diffusers").unwrap().tensors, "BF16")
        .unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let plan = weights::KeyPlan::identity();
    let view = Weights::new(checkpoint, &plan, candle_core::DType::F32, candle_core::Device::Cpu).unwrap();
    let dry = view.dry_run();
    assert!(dry.is_dry_run() && dry.pp("layers.0").is_dry_run() && !view.is_dry_run());
    let start = Instant::now();
    // 3.6 GB as f32, if it were read
    for layer in (0..30).map(|i| dry.pp("layers").pp(i)) {
        let zeros = layer.get(&[10240, 3840], "feed_forward.w1.weight").unwrap();
        assert_eq!((zeros.dims(), zeros.dtype()), ([10240, 3840].as_slice(), candle_core::DType::F32));
        layer.for_each_rows([3840, 10240], "feed_forward.w2.weight", 64, |_, _| panic!("rows were read")).unwrap();
        assert!(layer.get_f32_vec(&[3841], "attention_norm1.weight").is_err());
        assert!(layer.get(&[3840], "attention_norm9.weight").is_err());
    }
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    let unused = dry.unused();
    assert!(unused.contains(&"layers.7.feed_forward.w3.weight".to_owned()));
    assert!(!unused.contains(&"layers.7.feed_forward.w2.weight".to_owned()));
    assert!(view.unused().contains(&"layers.7.feed_forward.w2.weight".to_owned()));
}

#[test]
fn matrices_of_blocks_take_the_memory_of_their_quantization() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = [("layers.0.w", vec![4, 6]), ("layers.0.norm", vec![6]), ("head.w", vec![4, 6])];
    let tensors = tensors.map(|(name, shape)| (name.to_owned(), shape).into());
    recipe::write_safetensors(&path, &tensors, recipe::Format::F32).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let held = |quant: Option<Quant>| {
        let plan = weights::KeyPlan::identity();
        let view = Weights::new(checkpoint.clone(), &plan, candle_core::DType::F32, candle_core::Device::Cpu).unwrap();
        let dry = view.with_quant(quant).dry_run();
        let block = dry.blocks().pp("layers").pp(0);
        assert_eq!((dry.quant(), block.quant()), (None, quant));
        block.get(&[6], "norm").unwrap();
        block.for_each_rows([4, 6], "w", 1, |_, _| Ok(())).unwrap();
        dry.pp("head").for_each_rows([4, 6], "w", 1, |_, _| Ok(())).unwrap();
        ["layers.0.w", "layers.0.norm", "head.w"].map(|name| (dry.held_bytes(name), dry.quantizable_bytes(name)))
    };
    assert_eq!(held(None), [(96, 96), (24, 0), (96, 0)]);
    assert_eq!(held(Some(Quant::Q8)), [(24 + 4 * 8, 0), (24, 0), (96, 0)]);
}

#[test]
fn a_random_view_serves_any_shape_up_to_its_size() {
    let view = Weights::random(64, candle_core::DType::F32, candle_core::Device::Cpu);
    let values = view.pp("layers.3").get(&[8, 8], "weight").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(values.iter().all(|v| v.abs() <= 0.05) && values.iter().any(|v| *v != values[0]));
    assert_eq!(view.get_f32_vec(&[3], "bias").unwrap(), values[..3]);
    let mut rows = 0;
    view.for_each_rows([16, 4], "weight", 5, |range, _| {
        rows += range.len();
        Ok(())
    })
    .unwrap();
    assert_eq!(rows, 16);
    assert!(view.get(&[65], "weight").is_err());
}

#[test]
fn shards_are_one_checkpoint_and_a_missing_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = recipe::fixtures().join("z-image-tiny");
    recipe::write_folder(&fixture, dir.path(), recipe::Format::Bf16, 3).unwrap();
    let folder = dir.path().join("transformer");
    let whole = Checkpoint::open(&folder).unwrap();
    assert_eq!(identify(&whole)[0].family, "z_image");
    let shard = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let shard = shard.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).max().unwrap();
    std::fs::remove_file(&shard).unwrap();
    let message = refusal(&folder);
    assert!(message.contains(shard.file_name().unwrap().to_str().unwrap()), "{message}");
}

#[test]
fn foreign_and_damaged_files_are_refused_for_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    for (bytes, expected) in [
        (&b""[..], "empty"),
        (b"GGUF\x03\0\0\0", "cut off"),
        (b"PK\x03\x04 archive/data.pkl", "pickle"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff{}", "safetensors"),
        (b"\x10\0\0\0\0\0\0\0not json at all", "safetensors"),
        (b"\x01", "safetensors"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let message = refusal(&path);
        assert!(message.contains(expected), "{message:?} does not mention {expected:?}");
    }
    assert!(refusal(&dir.path().join("absent.safetensors")).contains("can't be opened"));

    let tensor = recipe::Mapped::from(("a".to_owned(), vec![4usize, 4]));
    recipe::write_safetensors(&path, &[tensor], recipe::Format::F32).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(refusal(&path).contains("cut off"));
    std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    assert!(refusal(&path).contains("bytes too many"));
}

#[test]
fn a_wrong_shape_and_a_missing_tensor_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensor = recipe::Mapped::from(("layer.weight".to_owned(), vec![4usize, 6]));
    recipe::write_safetensors(&path, &[tensor], recipe::Format::F16).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let plan = weights::KeyPlan::identity();
    let weights = Weights::new(checkpoint, &plan, candle_core::DType::F32, candle_core::Device::Cpu).unwrap();
    let wrong = weights.pp("layer").get(&[6, 4], "weight").unwrap_err().to_string();
    assert!(wrong.contains("layer.weight") && wrong.contains("[4, 6]") && wrong.contains("[6, 4]"), "{wrong}");
    let missing = weights.get(&[1], "bias").unwrap_err().to_string();
    assert!(missing.contains("bias") && missing.contains("missing"), "{missing}");

    let mut rows = Vec::new();
    weights
        .for_each_rows([4, 6], "layer.weight", 3, |range, block| {
            let weights::RowBlock::F32(values) = block else { panic!("f16 comes as f32") };
            assert_eq!(values.len(), range.len() * 6);
            rows.extend_from_slice(&values);
            Ok(())
        })
        .unwrap();
    assert_eq!(rows, weights.get_f32_vec(&[4, 6], "layer.weight").unwrap());

    let cancel = runtime_base::CancelFlag::new();
    let weights = weights.with_cancel(&cancel);
    cancel.cancel();
    assert_eq!(weights.get(&[4, 6], "layer.weight").unwrap_err(), Error::Cancelled);
}
