//! Runners for the types of this module, and ears for what a run does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use engine_graph::*;

/// A picture of one pixel, and the story of how it was made.
#[derive(Debug)]
pub struct Picture(pub String);

/// Gives every output a value that tells type, params and inputs, so that equal outputs mean equal work.
pub struct Teller;

impl NodeRunner for Teller {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let node = context.node();
        let mut story = format!("{}{}", node.node_type(), serde_json::to_string(&context.params().to_json()).unwrap());
        for input in node.inputs() {
            let values: Vec<_> = context.inputs().list(&input.port).iter().map(tell).collect();
            story.push_str(&format!("<{}:{}>", input.port, values.join("|")));
        }
        context.phase(Phase::Preparing, 0.5, "Telling");
        Ok(node.descriptor().outputs.iter().fold(Outputs::new(), |outputs, port| {
            outputs.with(&port.id, value(port.kind, format!("{story}.{}", port.id)))
        }))
    }
}

pub fn value(kind: PortKind, story: String) -> Value {
    match kind {
        PortKind::Text => Value::text(story),
        PortKind::ImageList => Value::Images((0..2).map(|i| value(PortKind::Image, format!("{story}{i}"))).collect()),
        kind => Value::object(kind, Picture(story)),
    }
}

pub fn tell(value: &Value) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        Value::Images(images) => images.iter().map(tell).collect::<Vec<_>>().join("|"),
        object => object.downcast::<Picture>().expect("a picture").0.clone(),
    }
}

/// Tells stories for every type of the registry.
pub fn tellers() -> RunnerSet {
    super::registry().iter().fold(RunnerSet::new(), |set, node| set.with(&node.node_type, Teller))
}

/// Writes down what happens, in order.
#[derive(Default)]
pub struct Log(pub Mutex<Vec<String>>);

impl Log {
    pub fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    pub fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Log {
    fn event(&self, event: Event<'_>) {
        self.add(match event {
            Event::Started { node_id } => format!("start {node_id}"),
            Event::Progress { node_id, progress } => format!("{} {node_id} {}", progress.phase, progress.fraction),
            Event::Preview { node_id, .. } => format!("preview {node_id}"),
            Event::Done { node_id, cached: false } => format!("done {node_id}"),
            Event::Done { node_id, cached: true } => format!("cached {node_id}"),
            Event::Failed { node_id, error } => format!("failed {node_id}: {error}"),
        });
    }
}

impl OutputSink for Log {
    fn save(&self, output: &NodeOutput<'_>) -> Result<(), NodeError> {
        for (port, kind, _) in output.takes() {
            self.add(format!("take {} {port} {kind} cached={}", output.node.id(), output.cached));
        }
        Ok(())
    }
}

/// Keeps everything.
#[derive(Default)]
pub struct Memory {
    pub kept: Mutex<HashMap<NodeKey, Arc<Outputs>>>,
    pub gets: AtomicUsize,
}

impl NodeCache for Memory {
    fn get(&self, key: &NodeKey, _: &ValidNode) -> Option<Arc<Outputs>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.kept.lock().unwrap().get(key).cloned()
    }

    fn put(&self, key: &NodeKey, _: &ValidNode, outputs: &Arc<Outputs>) {
        self.kept.lock().unwrap().insert(*key, Arc::clone(outputs));
    }
}

/// A runner from a closure.
pub struct With<F>(pub F);

impl<F: Fn(&NodeContext<'_>) -> Result<Outputs, NodeError> + Send + Sync> NodeRunner for With<F> {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        (self.0)(context)
    }
}
