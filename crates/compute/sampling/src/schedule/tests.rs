use super::*;
use gen_core::GuidanceRecipe;
use serde_json::Value;

fn fixture(name: &str) -> Value {
    let path = format!("{}/../../../fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn recipe(schedule: ScheduleRecipe) -> DiffusionRecipe {
    let guidance = GuidanceRecipe::Extrapolate;
    DiffusionRecipe { latent_channels: 16, latent_factor: 8, patch: 2, schedule, guidance }
}

fn floats(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn assert_close(got: &[f32], expected: &[f32], tolerance: f32, what: &Value) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() <= tolerance, "{what}: {got:?} is not {expected:?}");
    }
}

#[test]
fn the_default_equals_the_pipelines_sigmas_and_first_steps() {
    let tables = fixture("schedule.json");
    let tables = tables.as_array().unwrap();
    assert!(tables.len() > 5);
    for table in tables {
        let steps = table["steps"].as_u64().unwrap() as usize;
        let recipe = recipe(ScheduleRecipe::FlowMatch { shift: table["shift"].as_f64().unwrap() as f32 });
        let got = sigmas(ScheduleKind::default(), &recipe, (512, 512), None, steps).unwrap();
        assert_close(&got, &floats(&table["sigmas"]), 1.2e-7, table);
        for pair in table["first_step_by_strength"].as_array().into_iter().flatten() {
            let (strength, first) = (pair[0].as_f64().unwrap() as f32, pair[1].as_u64().unwrap() as usize);
            assert_eq!(first_step(steps, strength), first, "{steps} steps, strength {strength}");
        }
    }
}

#[test]
fn every_name_equals_the_reference_schedulers_table() {
    let tables = fixture("samplers.json");
    let tables = tables["schedules"].as_array().unwrap();
    for kind in ScheduleKind::ALL {
        assert!(tables.iter().filter(|table| table["name"] == kind.as_str()).count() >= 5, "{kind}");
    }
    let dynamic =
        ScheduleRecipe::DynamicFlowMatch { base_shift: 0.5, max_shift: 1.15, base_tokens: 256, max_tokens: 4096 };
    for table in tables {
        let kind = table["name"].as_str().unwrap().parse().unwrap();
        let steps = table["steps"].as_u64().unwrap() as usize;
        let (recipe, size) = match table.get("tokens") {
            // A token covers 16 pixels.
            Some(tokens) => {
                let side = |i: usize| tokens[i].as_u64().unwrap() as u32 * 16;
                (recipe(dynamic.clone()), (side(0), side(1)))
            }
            None => {
                let shift = table["shift"].as_f64().unwrap() as f32;
                (recipe(ScheduleRecipe::FlowMatch { shift }), (512, 512))
            }
        };
        let got = sigmas(kind, &recipe, size, None, steps).unwrap();
        assert_close(&got, &floats(&table["sigmas"]), 1e-6, table);
    }
}

#[test]
fn names_are_those_of_the_contract() {
    let names: Vec<_> = ScheduleKind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(names, gen_core::KNOWN_SCHEDULERS);
    for kind in ScheduleKind::ALL {
        assert_eq!(kind.as_str().parse::<ScheduleKind>().unwrap(), kind);
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
    assert!("linear".parse::<ScheduleKind>().unwrap_err().to_string().contains("sgm_uniform"));
}

#[test]
fn a_request_can_override_the_shift_but_not_break_the_schedule() {
    let recipe = recipe(ScheduleRecipe::FlowMatch { shift: 3.0 });
    for kind in ScheduleKind::ALL {
        let with = |shift| sigmas(kind, &recipe, (512, 512), shift, 8);
        assert_eq!(with(Some(3.0)).unwrap(), with(None).unwrap());
        assert_ne!(with(Some(1.0)).unwrap(), with(None).unwrap());
        for extreme in [f32::MIN_POSITIVE, 1e-30, 1e30, f32::MAX] {
            match with(Some(extreme)) {
                Ok(sigmas) => assert!(kind != ScheduleKind::Simple && sigmas[0] <= 1.0 && sigmas[1] < sigmas[0]),
                Err(error) => assert!(error.to_string().contains("scheduler_shift"), "{kind} {extreme}"),
            }
        }
        for steps in 1..=200 {
            let sigmas = sigmas(kind, &recipe, (512, 512), None, steps).unwrap();
            assert_eq!((sigmas.len(), sigmas[0], sigmas[steps]), (steps + 1, 1.0, 0.0), "{kind} {steps}");
        }
    }
}

#[test]
fn no_strength_means_no_steps() {
    assert_eq!(first_step(8, 0.0), 8);
    assert_eq!(first_step(8, 1.0), 0);
    // Anything above runs at least one.
    assert_eq!(first_step(8, 0.01), 7);
}
