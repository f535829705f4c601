//! Progress on a terminal as a bar, elsewhere as plain lines.

use engine_graph::{Event, Observer, Phase};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

const WIDTH: u64 = 1000;

pub(crate) struct Bar {
    bar: Option<ProgressBar>,
    /// What was last printed as a line.
    line: Mutex<Option<(String, Phase)>>,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = terminal.then(|| {
            let bar = ProgressBar::new(WIDTH);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, line: Mutex::default() }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Bar {
    fn event(&self, event: Event<'_>) {
        let Event::Progress { node_id, progress } = event else { return };
        if let Some(bar) = &self.bar {
            bar.set_position((progress.fraction * WIDTH as f32) as u64);
            bar.set_message(progress.status.clone());
            return;
        }
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Some((node_id.to_owned(), progress.phase));
        if *line != now {
            eprintln!("{node_id}: {}", progress.status);
            *line = now;
        }
    }
}
