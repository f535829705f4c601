//! A product's program on the CPU bundle: a picture, then a text, then a prepared snapshot.
//!
//! `cargo run -p runtime-cpu --example consumer -- MODEL_DIR TEXT_MODEL_DIR WORK_DIR`

use runtime_cpu as runtime;
use std::error::Error;
use std::path::PathBuf;

use runtime::core_llm::{LoadSpec as LlmSpec, Message, PrepareSpec, StreamEvent, TextLlmRequest};
use runtime::gen_core::{GenerationOutput, GenerationRequest, LoadSpec, Progress, Quant, WeightsSource};

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [dir, path, work] = paths.as_slice() else {
        return Err("usage: consumer MODEL_DIR TEXT_MODEL_DIR WORK_DIR".into());
    };
    let (dir, path) = (dir.clone(), path.clone());

    let catalog = runtime::catalog()?;
    assert_eq!(catalog.platform(), runtime::PLATFORM);
    let spec = LoadSpec::new(WeightsSource::Dir(dir)).with_quant(Quant::Q8);
    let generator = catalog.media().load("z_image_turbo", &spec)?;
    let request = GenerationRequest { prompt: "a red apple".into(), width: 512, height: 512, ..Default::default() };
    generator.validate(&request)?;
    match generator.generate(&request, &mut |_: Progress| {})? {
        GenerationOutput::Images(images) => {
            println!("{} picture(s), {}x{}", images.len(), images[0].width(), images[0].height())
        }
        _ => return Err("a picture was asked for".into()),
    }

    let llm = catalog.text().load_for_model(&LlmSpec::dense(&path))?;
    llm.generate(&TextLlmRequest::new(vec![Message::user("Explain diffusion in one sentence.")], 128), &mut |e| {
        if let StreamEvent::Token { text, .. } = e {
            print!("{text}")
        }
    })?;
    println!();
    catalog.preparers().prepare_snapshot(&PrepareSpec::dense(path, work.join("out")))?;
    Ok(())
}
