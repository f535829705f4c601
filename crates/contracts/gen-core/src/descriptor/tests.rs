use super::*;
use crate::{CancelFlag, Image};
use std::sync::Arc;

fn descriptor() -> ModelDescriptor {
    ModelDescriptor {
        id: "z_image_turbo".into(),
        name: "Z-Image Turbo".into(),
        family: "z_image".into(),
        backend: "candle".into(),
        modality: Modality::Image,
        capabilities: Capabilities {
            size: SizeRule { min: 16, max: 2048, multiple: 16, default: 1024 },
            max_count: 4,
            default_steps: 8,
            max_steps: 100,
            true_cfg: true,
            default_true_cfg: 0.0,
            distilled_guidance: false,
            conditioning: vec![ConditioningKind::Reference],
            adapters: vec![],
            samplers: vec!["euler".into()],
            schedulers: vec!["simple".into()],
            guidance_methods: vec!["cfg".into()],
            quants: vec![],
        },
        required_components: vec![Role::Denoiser, Role::Vae],
    }
}

fn refused_field(change: impl FnOnce(&mut GenerationRequest)) -> &'static str {
    let mut request =
        GenerationRequest { prompt: "a red apple".into(), cancel: CancelFlag::new(), ..Default::default() };
    change(&mut request);
    match descriptor().validate(&request) {
        Err(Error::InvalidRequest { field, .. }) => field,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn the_default_request_is_accepted() {
    descriptor().validate(&GenerationRequest::default()).unwrap();
}

#[test]
fn every_unusable_value_is_refused_by_its_field() {
    for size in [0, 15, 1544, 65536] {
        assert_eq!(refused_field(|r| r.width = size), "width");
        assert_eq!(refused_field(|r| r.height = size), "height");
    }
    assert_eq!(refused_field(|r| r.count = 0), "count");
    assert_eq!(refused_field(|r| r.count = 5), "count");
    assert_eq!(refused_field(|r| r.steps = Some(0)), "steps");
    assert_eq!(refused_field(|r| r.true_cfg = Some(f32::NAN)), "true_cfg");
    assert_eq!(refused_field(|r| r.true_cfg = Some(-1.0)), "true_cfg");
    assert_eq!(refused_field(|r| r.guidance = Some(3.5)), "guidance");
    assert_eq!(refused_field(|r| r.cfg_normalization = f32::INFINITY), "cfg_normalization");
    assert_eq!(refused_field(|r| r.sampler = Some("ddim".into())), "sampler");
    assert_eq!(refused_field(|r| r.scheduler_shift = Some(0.0)), "scheduler_shift");
    assert_eq!(refused_field(|r| r.strength = Some(1.5)), "strength");
    assert_eq!(refused_field(|r| r.frames = Some(9)), "frames");
}

#[test]
fn steering_inputs_must_be_listed_and_sane() {
    let image = Arc::new(Image::new(1, 1, vec![0; 3]).unwrap());
    let reference = |strength| ConditioningInput::Reference { image: image.clone(), strength };
    assert_eq!(refused_field(|r| r.conditioning = vec![ConditioningInput::Mask(image.clone())]), "conditioning");
    assert_eq!(refused_field(|r| r.conditioning = vec![reference(-0.1)]), "strength");
    assert_eq!(refused_field(|r| r.conditioning = vec![reference(f32::NAN)]), "strength");
    assert_eq!(refused_field(|r| r.conditioning = vec![reference(0.5), reference(0.5)]), "conditioning");
}

#[test]
fn the_sweep_finds_what_is_malformed() {
    descriptor().check().unwrap();
    let breakages: [fn(&mut ModelDescriptor); 8] = [
        |d| d.id = "Z-Image".into(),
        |d| d.family = String::new(),
        |d| d.name = " padded ".into(),
        |d| d.capabilities.size.min = 0,
        |d| d.capabilities.size.default = 4096,
        |d| d.capabilities.size.max = 2050,
        |d| d.capabilities.samplers = vec!["euler".into(), "euler".into()],
        |d| d.capabilities.schedulers = vec!["made_up".into()],
    ];
    for (index, break_it) in breakages.into_iter().enumerate() {
        let mut broken = descriptor();
        break_it(&mut broken);
        assert!(broken.check().is_err(), "breakage {index} went unnoticed");
    }
}
