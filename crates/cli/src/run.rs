//! `inline run`: a graph without a server; `inline import`: a graph from a ComfyUI workflow.

use crate::args::{ImportArgs, RunArgs, SettingsArgs};
use crate::progress::Bar;
use crate::{Failure, Result, setup};
use engine_graph::{Graph, Limits};
use engine_runs::run_once;
use gen_core::CancelFlag;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

fn read_input(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_end(&mut bytes).map(|_| ()),
        _ => std::fs::read(path).map(|read| bytes = read),
    };
    read.map_err(|e| Failure(format!("{} can't be read: {e}", path.display())))?;
    Ok(bytes)
}

pub(crate) fn run(settings: &SettingsArgs, args: &RunArgs) -> Result<()> {
    let graph = Graph::from_slice(&read_input(&args.graph)?, &Limits::default()).map_err(Failure::of)?;
    let nodes = setup::local_nodes(settings)?;
    let bar = Bar::new();
    let takes = run_once(&nodes, &graph, &args.target, &bar, CancelFlag::new()).map_err(Failure::of)?;
    bar.finish();
    std::fs::create_dir_all(&args.out).map_err(|e| Failure(format!("{} can't be made: {e}", args.out.display())))?;
    for (node_id, take) in takes {
        let name: String =
            node_id.chars().map(|c| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect();
        println!("{}", write_new(&args.out, &name, take.extension, &take.bytes)?.display());
    }
    Ok(())
}

/// Writes a file that wasn't there before: `name.png`, else `name-2.png` and so on. Takes are never overwritten.
pub(crate) fn write_new(dir: &Path, name: &str, extension: &str, bytes: &[u8]) -> Result<PathBuf> {
    for number in 1u32.. {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = dir.join(format!("{name}{suffix}.{extension}"));
        match std::fs::File::create_new(&path) {
            Ok(mut file) => {
                let written = file.write_all(bytes).and_then(|()| file.sync_all());
                return match written {
                    Ok(()) => Ok(path),
                    Err(e) => {
                        let _ = std::fs::remove_file(&path);
                        Err(Failure(format!("{} can't be written: {e}", path.display())))
                    }
                };
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Failure(format!("{} can't be written: {e}", path.display()))),
        }
    }
    Err(Failure(format!("{} is full of {name} files", dir.display())))
}

pub(crate) fn import(args: &ImportArgs) -> Result<()> {
    let imported = engine_import::import(&read_input(&args.workflow)?).map_err(Failure::of)?;
    for note in &imported.notes {
        eprintln!("note: {note}");
    }
    for unmapped in &imported.unmapped {
        eprintln!("left out: {unmapped}");
    }
    for target in &imported.targets {
        eprintln!("target: {target}");
    }
    let text = serde_json::to_string_pretty(&imported.graph.to_value()).map_err(Failure::of)?;
    match &args.output {
        Some(path) => {
            std::fs::write(path, text + "\n").map_err(|e| Failure(format!("{} can't be written: {e}", path.display())))
        }
        None => {
            println!("{text}");
            Ok(())
        }
    }
}
