//! A product's program on the CPU bundle: a picture, a text, a prepared snapshot.
//!
//! `cargo run -p runtime-cpu --example consumer -- MODEL_DIR [TEXT_MODEL_DIR]`
//!
//! `MODEL_DIR` is a diffusers folder, such as `assets/demo`. Without a language model of its own the program lets the
//! pipeline's text encoder speak; the demo model's was never taught to, so its words mean nothing.

use std::error::Error;
use std::path::PathBuf;

use runtime::core_llm::{LoadSpec as LlmSpec, Message, PrepareSpec, StreamEvent, TextLlmRequest};
use runtime::gen_core::{GenerationOutput, GenerationRequest, LoadSpec, Progress, Quant, WeightsSource};
use runtime_cpu as runtime;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let dir = arguments.next().ok_or("usage: consumer MODEL_DIR [TEXT_MODEL_DIR]")?;
    let path = arguments.next().unwrap_or_else(|| dir.join("text_encoder"));

    let catalog = runtime::catalog()?;
    assert_eq!(catalog.platform(), runtime::PLATFORM);
    let spec = LoadSpec::new(WeightsSource::Dir(dir)).with_quant(Quant::Q8);
    let generator = catalog.media().load("z_image_turbo", &spec)?;
    let request = GenerationRequest { prompt: "a red apple".into(), width: 512, height: 512, ..Default::default() };
    generator.validate(&request)?;
    match generator.generate(&request, &mut |_: Progress| {})? {
        GenerationOutput::Images(images) => {
            for image in images {
                println!("a picture of {} x {} pixels", image.width(), image.height());
            }
        }
        _ => return Err("a picture was asked for".into()),
    }

    let llm = catalog.text().load_for_model(&LlmSpec::dense(&path))?;
    let question = vec![Message::user("Explain diffusion in one sentence.")];
    llm.generate(&TextLlmRequest::new(question, 128), &mut |e| {
        if let StreamEvent::Token { text, .. } = e {
            print!("{text}");
        }
    })?;
    println!();

    let out = tempfile::tempdir()?;
    catalog.preparers().prepare_snapshot(&PrepareSpec::dense(&path, out.path().join("snapshot")))?;
    println!("a snapshot of {} files", std::fs::read_dir(out.path().join("snapshot"))?.count());
    Ok(())
}
