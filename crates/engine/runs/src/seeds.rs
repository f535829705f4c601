//! Drawing the random seeds of a run.

use engine_graph::{Graph, ParamValue, ValidGraph};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Every JSON reader keeps whole numbers of so many bits exactly.
const SEED_BITS: u32 = 53;

/// The graph with every random seed replaced by one drawn from `run_id`, or `None` when there is none. The same run draws the
/// same seeds again, so that trying it a second time can't give a second, different take; and the graph that a take
/// carries gives the same take again.
pub(crate) fn draw(graph: &Graph, valid: &ValidGraph, run_id: &str) -> Option<Graph> {
    let random = |value: &ParamValue| matches!(value, ParamValue::Seed(seed) if seed.value().is_none());
    let mut drawn: HashMap<&str, Vec<&str>> = HashMap::new();
    for node in valid.nodes() {
        let keys: Vec<&str> = node.params().iter().filter(|(_, value)| random(value)).map(|(key, _)| key).collect();
        if !keys.is_empty() {
            drawn.insert(node.id(), keys);
        }
    }
    if drawn.is_empty() {
        return None;
    }
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        for key in drawn.get(node.id.as_str()).into_iter().flatten() {
            node.params.insert((*key).to_owned(), json!(seed(run_id, &node.id, key)));
        }
    }
    Some(graph)
}

fn seed(run_id: &str, node_id: &str, key: &str) -> u64 {
    let mut hash = Sha256::new();
    for part in [run_id, node_id, key] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let bytes = hash.finalize();
    let first = bytes.iter().take(8).fold(0u64, |number, byte| (number << 8) | u64::from(*byte));
    first >> (u64::BITS - SEED_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_nodes_differ_and_a_run_repeats_itself() {
        let seeds = [seed("a", "n", "seed"), seed("b", "n", "seed"), seed("a", "m", "seed"), seed("an", "", "seed")];
        for (i, one) in seeds.iter().enumerate() {
            assert!(*one < 1 << 53);
            assert!(seeds[i + 1..].iter().all(|other| other != one));
        }
        assert_eq!(seeds[0], seed("a", "n", "seed"));
    }
}
