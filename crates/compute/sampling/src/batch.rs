//! Jobs of several threads in shared forward passes.

use crate::forward::{Active, forward};
use crate::job::{SampleJob, SampleService, StepReport};
use gen_core::{CancelFlag, Error, Latents, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a waiting caller looks at its cancel flags.
const POLL: Duration = Duration::from_millis(10);

/// Runs the jobs of all callers in one thread of its own, and those that can share a forward pass in one.
///
/// Jobs share a pass when model key and latent shape are the same; prompts, sigmas, guidance, seeds and samplers may
/// differ, so a job joins those under way at its first step (continuous batching). Passes go round: the job that was
/// served longest ago is next, with whichever others can join, so a long job and a stream of short ones can't starve each
/// other. A caller that cancels returns
/// at once; the pass under way stops when nobody waits for it any more, and goes on for the others otherwise. An error
/// of a shared pass is traced to its job by running each alone.
pub struct BatchingSampler {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    max_rows: usize,
}

#[derive(Default)]
struct State {
    /// Served longest ago first.
    waiting: VecDeque<Seat>,
    running: Option<Running>,
    closed: bool,
}

/// A job, and the way back to its caller.
struct Seat {
    active: Active,
    index: usize,
    caller: Sender<(usize, Event)>,
    /// Set when the caller has left, for whatever reason.
    gone: CancelFlag,
}

enum Event {
    Step(StepReport),
    End(Result<Latents>),
}

/// The pass under way: whose it is, and what stops it.
struct Running {
    gone: Vec<CancelFlag>,
    stop: CancelFlag,
}

impl BatchingSampler {
    /// Starts the thread. A pass has at most `max_rows` rows; a guided job takes two of them.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(max_rows: usize) -> Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), wake: Condvar::new(), max_rows: max_rows.max(1) });
        let theirs = Arc::clone(&shared);
        let worker = std::thread::Builder::new().name("sampler".into()).spawn(move || theirs.work());
        let worker = worker.map_err(|e| Error::Backend(format!("the sampler's thread can't start: {e}")))?;
        Ok(Self { shared, worker: Some(worker) })
    }
}

impl Drop for BatchingSampler {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(worker) = self.worker.take() {
            // A panic of the worker has been reported by the panic hook.
            let _ = worker.join();
        }
    }
}

impl SampleService for BatchingSampler {
    fn sample(&self, job: SampleJob, on_step: &mut dyn FnMut(StepReport)) -> Result<Latents> {
        let mut rows = self.sample_all(vec![job], &mut |_, report| on_step(report))?;
        rows.pop().ok_or_else(|| Error::Backend("the sampler gave no latents".into()))
    }

    fn sample_all(&self, jobs: Vec<SampleJob>, on_step: &mut dyn FnMut(usize, StepReport)) -> Result<Vec<Latents>> {
        let actives = jobs.into_iter().map(Active::new).collect::<Result<Vec<_>>>()?;
        let cancels: Vec<CancelFlag> = actives.iter().map(|active| active.cancel().clone()).collect();
        for (index, active) in actives.iter().enumerate() {
            on_step(index, active.report(None));
        }
        let (caller, events) = channel();
        let leaving = Leaving { shared: &self.shared, gone: CancelFlag::new() };
        // All under one lock, so that they start in one pass.
        let mut state = self.shared.lock();
        for (index, active) in actives.into_iter().enumerate() {
            let seat = Seat { active, index, caller: caller.clone(), gone: leaving.gone.clone() };
            state.waiting.extend(seat.unless_ended());
        }
        drop((state, caller));
        self.shared.wake.notify_one();
        collect(&events, &cancels, on_step)
    }
}

/// Receives until every job has ended or one has failed or been cancelled.
fn collect(
    events: &Receiver<(usize, Event)>,
    cancels: &[CancelFlag],
    on_step: &mut dyn FnMut(usize, StepReport),
) -> Result<Vec<Latents>> {
    let mut ended: Vec<Option<Latents>> = vec![None; cancels.len()];
    while ended.iter().any(Option::is_none) {
        for cancel in cancels {
            cancel.check()?;
        }
        match events.recv_timeout(POLL) {
            Ok((index, Event::Step(report))) => on_step(index, report),
            Ok((index, Event::End(latents))) => ended[index] = Some(latents?),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Backend("the sampler has stopped".into())),
        }
    }
    Ok(ended.into_iter().flatten().collect())
}

/// Says that a caller has left when it does, with a result, an error or a panic.
struct Leaving<'a> {
    shared: &'a Shared,
    gone: CancelFlag,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.gone.cancel();
        let state = self.shared.lock();
        if let Some(running) = &state.running
            && running.gone.iter().all(CancelFlag::is_cancelled)
        {
            running.stop.cancel();
        }
    }
}

impl Seat {
    /// Tells the caller of an outcome; the seat, when there is more to do.
    fn settle(self, outcome: Outcome) -> Option<Self> {
        // A send fails when the caller has left, and then nobody needs to know.
        match outcome {
            Ok(None) => {}
            Ok(Some(report)) => drop(self.caller.send((self.index, Event::Step(report)))),
            Err(error) => {
                // The denoiser is let go before anyone is told.
                let Self { active, index, caller, .. } = self;
                drop(active);
                drop(caller.send((index, Event::End(Err(error)))));
                return None;
            }
        }
        self.unless_ended()
    }

    fn unless_ended(self) -> Option<Self> {
        if self.active.pending().is_some() {
            return Some(self);
        }
        drop(self.caller.send((self.index, Event::End(Ok(self.active.into_latents())))));
        None
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((mut seats, stop)) = self.next_pass() {
            let outcomes = pass(&mut seats, self.max_rows, &stop);
            let mut state = self.lock();
            state.running = None;
            let settled = seats.into_iter().zip(outcomes).filter_map(|(seat, outcome)| seat.settle(outcome));
            state.waiting.extend(settled);
        }
    }

    /// Waits for jobs and takes those of the next pass out of the queue; `None` when the sampler is dropped.
    fn next_pass(&self) -> Option<(Vec<Seat>, CancelFlag)> {
        let mut state = self.lock();
        loop {
            state.waiting.retain(|seat| !seat.gone.is_cancelled());
            let seats = choose(&mut state.waiting, self.max_rows);
            if !seats.is_empty() {
                let stop = CancelFlag::new();
                let gone = seats.iter().map(|seat| seat.gone.clone()).collect();
                state.running = Some(Running { gone, stop: stop.clone() });
                return Some((seats, stop));
            }
            if state.closed {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes the job that was served longest ago, and all that can join it, oldest first.
fn choose(waiting: &mut VecDeque<Seat>, max_rows: usize) -> Vec<Seat> {
    let Some(first) = waiting.pop_front() else { return Vec::new() };
    let mut rows = first.active.rows();
    let mut seats = vec![first];
    let mut index = 0;
    while let Some(seat) = waiting.get(index) {
        let more = seat.active.rows();
        if seat.active.fits(&seats[0].active) && rows + more <= max_rows {
            rows += more;
            seats.extend(waiting.remove(index));
        } else {
            index += 1;
        }
    }
    seats
}

type Outcome = Result<Option<StepReport>>;

/// One forward pass; when a shared one fails, one for each job alone.
fn pass(seats: &mut [Seat], max_rows: usize, stop: &CancelFlag) -> Vec<Outcome> {
    if let [seat] = seats {
        let alone = guarded(&mut [&mut seat.active], max_rows, stop);
        return alone.unwrap_or_else(|error| vec![Err(error)]);
    }
    tracing::debug!(jobs = seats.len(), "a shared forward pass");
    let mut actives: Vec<&mut Active> = seats.iter_mut().map(|seat| &mut seat.active).collect();
    match guarded(&mut actives, max_rows, stop) {
        Ok(outcomes) => outcomes,
        Err(_) => seats.iter_mut().flat_map(|seat| pass(std::slice::from_mut(seat), max_rows, stop)).collect(),
    }
}

/// [`forward`], with a panic of the denoiser as an error: other callers' jobs live in this thread, too.
fn guarded(jobs: &mut [&mut Active], max_rows: usize, stop: &CancelFlag) -> Result<Vec<Outcome>> {
    let outcome = catch_unwind(AssertUnwindSafe(|| forward(jobs, max_rows, stop)));
    outcome.unwrap_or_else(|_| Err(Error::Backend("the denoiser panicked".into())))
}
