//! Durations in a few numbers.

use serde_json::{Value, json};
use std::time::Duration;

/// Durations of one kind.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The duration that `share` of all don't exceed (nearest rank), in milliseconds.
    pub fn quantile(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let rank = (share * self.0.len() as f64).ceil() as usize;
        let time = self.0.get(rank.max(1) - 1).copied().unwrap_or_default();
        (time.as_secs_f64() * 1e6).round() / 1e3
    }

    /// Median, tail and worst, in milliseconds.
    pub fn summary(&mut self) -> Value {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| self.quantile(share));
        json!({"count": self.len(), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": max})
    }
}

/// Prints a part's line.
pub fn print(part: &str, figures: Value) {
    let mut line = json!({"part": part});
    if let (Some(line), Value::Object(figures)) = (line.as_object_mut(), figures) {
        line.extend(figures);
    }
    println!("{line}");
}
