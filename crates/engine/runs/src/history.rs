//! The events of one run that watchers can still be sent, and the pace of its progress.

use engine_graph::Phase;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Progress events that are kept; with ten a second, watchers may be half a minute behind before they get a snapshot.
const KEPT_PROGRESS: usize = 256;

/// An event as it is sent: JSON with its number.
#[derive(Debug, Clone)]
pub struct RunEvent {
    /// Its number within the run. Numbers grow, also over restarts.
    pub seq: u64,
    /// The frame's text.
    pub json: Arc<str>,
    /// Whether it is the last one.
    pub terminal: bool,
}

/// Every event but progress, which is only kept for a while.
#[derive(Debug, Default)]
pub(crate) struct History {
    milestones: Vec<RunEvent>,
    progress: VecDeque<RunEvent>,
    /// Number of the last progress event that is no longer kept.
    forgotten: u64,
}

impl History {
    pub(crate) fn add_milestone(&mut self, event: RunEvent) {
        self.milestones.push(event);
    }

    pub(crate) fn add_progress(&mut self, event: RunEvent) {
        self.progress.push_back(event);
        if self.progress.len() > KEPT_PROGRESS
            && let Some(oldest) = self.progress.pop_front()
        {
            self.forgotten = oldest.seq;
        }
    }

    /// No progress is worth sending any more: the run has ended.
    pub(crate) fn forget_progress(&mut self) {
        if let Some(last) = self.progress.back() {
            self.forgotten = last.seq;
        }
        self.progress = VecDeque::new();
    }

    /// Number of the last progress event that can't be sent any more.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The first event numbered above `after`, where progress must also be numbered above `progress_after`.
    pub(crate) fn next(&self, after: u64, progress_after: u64) -> Option<&RunEvent> {
        let milestone = self.milestones.get(self.milestones.partition_point(|event| event.seq <= after));
        let floor = after.max(progress_after);
        let progress = self.progress.get(self.progress.partition_point(|event| event.seq <= floor));
        match (milestone, progress) {
            (Some(milestone), Some(progress)) => Some(if milestone.seq < progress.seq { milestone } else { progress }),
            (milestone, progress) => milestone.or(progress),
        }
    }
}

/// Reports within a phase are sent this often at most.
const INTERVAL: Duration = Duration::from_millis(100);
/// New phases are sent at once, until there have been this many more than one an interval.
const BURST: f32 = 20.0;

/// Thins out progress: a new phase goes out at once, reports within a phase ten times a second, and the last report that
/// was held back goes out when its time has come.
#[derive(Debug)]
pub(crate) struct Pace {
    sent: Option<(Instant, String, Phase)>,
    held: Option<(String, Value)>,
    allowance: f32,
    counted: Instant,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { sent: None, held: None, allowance: BURST, counted: now }
    }

    /// Takes a report; gives it back when it is to be sent now.
    pub(crate) fn offer(&mut self, now: Instant, node_id: &str, phase: Phase, event: Value) -> Option<Value> {
        let (too_soon, same) = match &self.sent {
            None => (false, false),
            Some((at, node, sent)) => (now - *at < INTERVAL, node == node_id && *sent == phase),
        };
        let waited = (now - self.counted).as_secs_f32() / INTERVAL.as_secs_f32();
        self.allowance = (self.allowance + waited).min(BURST);
        self.counted = now;
        if too_soon && (same || self.allowance < 1.0) {
            self.held = Some((node_id.to_owned(), event));
            return None;
        }
        self.allowance -= 1.0;
        self.held = None;
        self.sent = Some((now, node_id.to_owned(), phase));
        Some(event)
    }

    /// The report that was held back, when its time has come.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Value> {
        let (at, ..) = self.sent.as_ref()?;
        if now - *at < INTERVAL {
            return None;
        }
        let (node_id, event) = self.held.take()?;
        if let Some((at, node, _)) = &mut self.sent {
            (*at, *node) = (now, node_id);
        }
        Some(event)
    }

    /// The node has ended: what it reported before is of no interest.
    pub(crate) fn drop_of(&mut self, node_id: &str) {
        if self.held.as_ref().is_some_and(|(node, _)| node == node_id) {
            self.held = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(seq: u64) -> RunEvent {
        RunEvent { seq, json: seq.to_string().into(), terminal: false }
    }

    #[test]
    fn milestones_stay_and_progress_goes() {
        let mut history = History::default();
        history.add_milestone(event(1));
        for seq in 2..=(KEPT_PROGRESS as u64 + 5) {
            history.add_progress(event(seq));
        }
        history.add_milestone(event(1000));
        assert_eq!(history.forgotten(), 5);
        let mut seen = Vec::new();
        let mut after = 0;
        while let Some(event) = history.next(after, 0) {
            after = event.seq;
            seen.push(after);
        }
        assert_eq!((seen[0], seen[1], seen.len()), (1, 6, KEPT_PROGRESS + 2));
        assert_eq!(history.next(1, 900).unwrap().seq, 1000);
    }

    #[test]
    fn phases_go_at_once_steps_are_thinned_and_the_last_one_follows() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::new(start);
        assert!(pace.offer(at(0), "a", Phase::Sample, json!(1)).is_some());
        assert!(pace.offer(at(10), "a", Phase::Sample, json!(2)).is_none());
        assert!(pace.offer(at(20), "a", Phase::Sample, json!(3)).is_none());
        assert_eq!(pace.due(at(50)), None);
        assert_eq!(pace.due(at(100)), Some(json!(3)));
        assert_eq!(pace.due(at(300)), None);
        assert!(pace.offer(at(310), "a", Phase::Sample, json!(4)).is_some());
        assert!(pace.offer(at(320), "a", Phase::Decode, json!(5)).is_some());
        assert!(pace.offer(at(330), "a", Phase::Decode, json!(6)).is_none());
        pace.drop_of("a");
        assert_eq!(pace.due(at(500)), None);
    }

    #[test]
    fn a_thousand_short_phases_are_about_ten_a_second_too() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let phases = [Phase::Encode, Phase::Decode];
        let sent = (0..1000).filter(|i| {
            let now = start + Duration::from_millis(2 * i);
            pace.offer(now, "a", phases[*i as usize % 2], json!(i)).is_some()
        });
        let sent = sent.count();
        assert!((20..=45).contains(&sent), "{sent} in two seconds");
    }
}
