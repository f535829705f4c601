//! What the engine costs beside the model: the provider and an engine in one process, in turns, with the same settings.

use crate::stats::{Times, print};
use crate::{Result, graph};
use engine_device::{DevicePolicy, Machine, Settings};
use engine_nodes::{ModelLibrary, Nodes, NodesConfig, demo};
use engine_runs::{Engine, EngineOptions, Media, PathAccess, RunStatus, Store};
use gen_core::{GenerationOutput, GenerationRequest, Generator, LoadSpec, Precision};
use sampling::BatchingSampler;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};

/// As in `inline serve`.
const MAX_ROWS: usize = 8;
/// Sides and steps of what is drawn: the least that the model draws, its usual size, and a larger one.
const SETTINGS: [(u32, u32); 3] = [(64, 1), (128, 9), (256, 9)];

/// Prints the medians of both and their difference.
pub fn measure(repeat: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let precision = layers::best_cpu_precision();
    let spec = LoadSpec::new(demo::source()).with_precision(precision);
    let provider = runtime_cpu::catalog()?.media().load("z_image_turbo", &spec)?;
    let engine = runtime.block_on(engine(dir.path(), precision))?;
    for (side, steps) in SETTINGS {
        let (mut bare, mut encoded, mut whole) = (Times::default(), Times::default(), Times::default());
        for index in 0..repeat + 3 {
            let seed = 7_000_000 + index as u64;
            // A new one for each, or the engine would remember how it is encoded.
            let prompt = format!("a red apple and {index} pears on {side} plates");
            let pair = picture(&*provider, &prompt, [side, steps], seed)?;
            let params = json!({"seed": seed, "steps": steps, "width": side, "height": side});
            let run = through(&runtime, &engine, &graph(&prompt, &params))?;
            // The first ones load.
            if index >= 3 {
                bare.push(pair.0);
                encoded.push(pair.1);
                whole.push(run);
            }
        }
        let difference = whole.quantile(0.5) - bare.quantile(0.5);
        let figures = json!({
            "side": side, "steps": steps, "overhead_ms": (difference * 1e3).round() / 1e3,
            "provider": bare.summary(), "provider_and_png": encoded.summary(), "engine": whole.summary(),
        });
        print("overhead", figures);
    }
    runtime.block_on(engine.stop())?;
    runtime.shutdown_background();
    Ok(())
}

/// A picture by the provider alone: the time to its pixels, and to its PNG.
fn picture(provider: &dyn Generator, prompt: &str, size: [u32; 2], seed: u64) -> Result<(Duration, Duration)> {
    let [side, steps] = size;
    let request = GenerationRequest {
        prompt: prompt.to_owned(),
        width: side,
        height: side,
        steps: Some(steps),
        seed,
        ..GenerationRequest::default()
    };
    let start = Instant::now();
    let GenerationOutput::Images(images) = provider.generate(&request, &mut |_| {})? else {
        return Err("the provider gave no picture".into());
    };
    let bare = start.elapsed();
    let image = images.first().ok_or("the provider gave no picture")?;
    engine_runs::picture::encode_png(image, "", "")?;
    Ok((bare, start.elapsed()))
}

/// The same as a run: from the submission to its stored end.
fn through(runtime: &Runtime, engine: &Engine, graph: &Value) -> Result<Duration> {
    let start = Instant::now();
    let state = runtime.block_on(async {
        let run = engine.submit(graph, "m", None, None).await?;
        Ok::<_, crate::Failure>(engine.wait(&run.run_id).await?)
    })?;
    let took = start.elapsed();
    match state {
        Some(state) if state.status == RunStatus::Done && state.takes.len() == 1 => Ok(took),
        other => Err(format!("the run failed: {other:?}").into()),
    }
}

/// An engine as `inline serve` makes it.
async fn engine(dir: &Path, precision: Precision) -> Result<Arc<Engine>> {
    let store = Store::open(&dir.join("data")).await?;
    let media = Arc::new(Media::new(&dir.join("data"), store.clone(), Handle::current(), PathAccess::None));
    let nodes = Nodes::new(NodesConfig {
        providers: Arc::new(runtime_cpu::media::provider_registry()?),
        text: Arc::new(runtime_cpu::text_registry()?),
        policy: DevicePolicy::new(Machine::host(precision == Precision::Bf16), Settings::default())?,
        library: Arc::new(ModelLibrary::new(dir.join("models"), Vec::new())),
        assets: Arc::clone(&media) as _,
        sampler: Arc::new(BatchingSampler::new(MAX_ROWS)?),
    })?;
    Ok(Engine::start(store, media, Arc::new(nodes), EngineOptions::default()).await?)
}
