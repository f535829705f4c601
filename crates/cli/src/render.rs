//! `inline render`: one prompt, a few pictures.

use crate::args::{RenderArgs, SettingsArgs};
use crate::progress::Bar;
use crate::run::write_new;
use crate::{Failure, Result, setup};
use engine_graph::{Graph, Node, random_seed};
use engine_runs::run_once;
use gen_core::CancelFlag;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(crate) fn run(settings: &SettingsArgs, args: &RenderArgs) -> Result<()> {
    let nodes = setup::local_nodes(settings)?;
    let node_type = args.node.clone().unwrap_or_else(|| nodes.default_image_node().to_owned());
    let first = match args.seed.as_deref().unwrap_or("-1") {
        // Below 2^53, so that every JSON reader keeps it.
        "-1" => random_seed(),
        text => {
            text.parse().map_err(|_| Failure(format!("--seed {text}: use a whole number from 0 to 2^64-1, or -1")))?
        }
    };
    if let Some(image) = args.image.as_ref().filter(|path| !path.is_file()) {
        return Err(Failure(format!("--image: there is no file {}", image.display())));
    }
    let bar = Bar::new();
    for index in 0..args.count {
        let seed = first.wrapping_add(u64::from(index));
        let graph = graph(args, &node_type, seed)?;
        let takes = run_once(&nodes, &graph, "image", &bar, CancelFlag::new());
        let takes = takes.map_err(|error| Failure::of(plain(&error)))?;
        for (_, take) in takes {
            let path = match &args.output {
                Some(path) => {
                    let path = numbered(path, index, args.count);
                    std::fs::write(&path, &take.bytes)
                        .map_err(|e| Failure(format!("{} can't be written: {e}", path.display())))?;
                    path
                }
                None => {
                    write_new(Path::new("."), &format!("{}-{seed}", slug(&args.prompt)), take.extension, &take.bytes)?
                }
            };
            bar.finish();
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// The message without the node's name, which the user of this command never gave.
fn plain(error: &engine_runs::OnceError) -> String {
    match error {
        engine_runs::OnceError::Graph(error) => error.message.clone(),
        engine_runs::OnceError::Run(engine_graph::RunError::Node { error, .. }) => error.to_string(),
        engine_runs::OnceError::Run(error) => error.to_string(),
    }
}

fn graph(args: &RenderArgs, node_type: &str, seed: u64) -> Result<Graph> {
    let mut node = Node::new("image", node_type).param("seed", seed).input("prompt", "prompt", "text");
    let number = |flag: &str, text: &String| -> Result<Value> {
        let value = text.parse::<f64>().ok().filter(|v| v.is_finite());
        value.map(|v| json!(v)).ok_or_else(|| Failure(format!("{flag} {text}: use a number")))
    };
    for (key, value) in [("width", args.width), ("height", args.height), ("steps", args.steps)] {
        if let Some(value) = value {
            node = node.param(key, value);
        }
    }
    if let Some(text) = &args.guidance {
        node = node.param("guidance", number("--guidance", text)?);
    }
    if let Some(text) = &args.strength {
        node = node.param("strength", number("--strength", text)?);
    }
    if let Some(text) = &args.negative {
        node = node.param("negative_prompt", text.as_str());
    }
    let mut all = vec![Node::new("prompt", "input/text").param("text", args.prompt.as_str())];
    if let Some(path) = &args.image {
        let path = path.to_str().ok_or_else(|| Failure("--image: the path is not Unicode; rename the file".into()))?;
        all.push(Node::new("picture", "input/image").param("asset", json!({"ref": "path", "path": path})));
        node = node.input("image", "picture", "image");
    }
    all.push(node);
    Ok(Graph::new(all))
}

/// `apple.png` for one picture, `apple-1.png`, `apple-2.png` … for several.
fn numbered(path: &Path, index: u32, count: u32) -> PathBuf {
    if count == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(|| "png".into(), |e| e.to_string_lossy());
    path.with_file_name(format!("{stem}-{}.{extension}", index + 1))
}

/// The prompt as a file name.
fn slug(prompt: &str) -> String {
    let words: String = prompt.to_lowercase().chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
    let name = words.split_whitespace().collect::<Vec<_>>().join("-");
    let name: String = name.chars().take(48).collect();
    if name.is_empty() { "picture".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_the_prompt_and_numbered() {
        assert_eq!(slug("A red apple, please!"), "a-red-apple-please");
        assert_eq!(slug("🍎"), "picture");
        assert_eq!(numbered(Path::new("x/apple.png"), 1, 3), Path::new("x/apple-2.png"));
        assert_eq!(numbered(Path::new("x/apple.png"), 0, 1), Path::new("x/apple.png"));
    }
}
