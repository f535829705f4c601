//! `inline models`: what this build can load, and what the models folder offers for each node.

use crate::args::SettingsArgs;
use crate::{Failure, Result, setup};
use serde_json::json;

pub(crate) fn run(settings: &SettingsArgs, json: bool) -> Result<()> {
    let catalog = runtime_cpu::catalog().map_err(Failure::of)?;
    let nodes = setup::local_nodes(settings)?;
    let scan = nodes.library().scan();
    let registry = nodes.registry();
    let offered = registry.iter().filter(|node| !node.hidden);
    if json {
        let snapshot: serde_json::Value = serde_json::from_str(&catalog.snapshot().to_json()).map_err(Failure::of)?;
        let files: Vec<_> = scan
            .files
            .iter()
            .map(|file| {
                let (components, problem) = match &file.content {
                    Ok(found) => (json!(found), None),
                    Err(problem) => (json!([]), Some(problem)),
                };
                json!({"category": file.category, "name": file.name, "bytes": file.bytes, "components": components, "problem": problem})
            })
            .collect();
        let default = nodes.default_image_node();
        let nodes: Vec<_> = offered.map(|node| json!({"type": node.node_type, "title": node.title})).collect();
        let all = json!({"catalog": snapshot, "nodes": nodes, "defaultNode": default, "files": files});
        println!("{}", serde_json::to_string_pretty(&all).map_err(Failure::of)?);
        return Ok(());
    }
    let snapshot = catalog.snapshot();
    println!("generators: {}", snapshot.generator_ids.join(", "));
    println!("language models: {}", snapshot.text_llm_ids.join(", "));
    println!("\nnodes (render uses {}):", nodes.default_image_node());
    for node in offered {
        println!("  {:<28} {}", node.node_type, node.title);
    }
    println!("\n{}:", nodes.library().dir().display());
    if scan.files.is_empty() {
        println!("  no models; put checkpoints into diffusion_models/, text_encoders/ and vae/");
    }
    for file in &scan.files {
        let what = match &file.content {
            Ok(found) => found.iter().map(crate::inspect::label).collect::<Vec<_>>().join(", "),
            Err(problem) => format!("unusable: {problem}"),
        };
        println!("  {}/{}: {what}", file.category, file.name);
    }
    println!(
        "\nThe demo model was trained on Microsoft Fluent Emoji, Copyright (c) Microsoft Corporation, MIT License."
    );
    Ok(())
}
