//! A fixed pool of threads for loops over independent pieces of work.
//!
//! One loop runs at a time; its pieces are handed out by a counter, the calling thread takes part, and a loop started
//! from inside a piece runs on the spot. A worker that the system has not scheduled yet is never waited for, so more
//! threads than cores cost little. What a piece computes must not depend on the thread that runs it; then no result
//! depends on the number of threads.

use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Set in the state while workers may still join the loop.
const OPEN: u64 = 1 << 31;
/// Low bits of the state: workers inside the loop.
const ACTIVE: u64 = OPEN - 1;
/// High bits of the state: number of the loop.
const EPOCH: u32 = 32;
/// Polls before a waiting thread sleeps: some tens of microseconds, as long as the gap between two layers.
const SPINS: u32 = 1500;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The loop at hand. The pointer is valid while a worker is counted in the state.
#[derive(Clone)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
    caller: Option<Thread>,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Job>,
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    wake: Condvar,
    spins: u32,
}

// SAFETY: `job` is written only by the thread that holds `turn`, while the state is closed and no worker is active;
// workers read it only while they are counted as active.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` points to a `Sync` closure that outlives every active worker.
unsafe impl Send for Shared {}

/// A fixed set of threads, see the [module](self).
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

impl Pool {
    /// A pool in which `threads` threads work, the calling one included; at least one.
    ///
    /// Fewer are used where the system refuses to start more.
    pub fn new(threads: usize) -> Pool {
        let threads = threads.clamp(1, 4096);
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job { body: &|_| {}, tasks: 0, caller: None }),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            gate: Mutex::new(()),
            wake: Condvar::new(),
            // Spinning on a core that another thread of ours needs would only slow that one down.
            spins: if threads > cores { 0 } else { SPINS },
        });
        let workers = (1..threads)
            .map_while(|index| {
                let shared = shared.clone();
                let started = thread::Builder::new().name(format!("kernels-{index}")).spawn(move || shared.work());
                started.inspect_err(|error| tracing::warn!(target: "kernels", "no thread {index}: {error}")).ok()
            })
            .collect();
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    /// The pool of this process: `INLINE_THREADS` threads, or as many as there are cores.
    pub fn global() -> &'static Arc<Pool> {
        static GLOBAL: OnceLock<Arc<Pool>> = OnceLock::new();
        GLOBAL.get_or_init(|| Arc::new(Pool::new(threads_wanted(std::env::var("INLINE_THREADS").ok().as_deref()))))
    }

    /// Threads that take part in a loop.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(i)` for every `i` below `tasks`, each once, in no particular order, and returns when all are done.
    ///
    /// A panic in a piece is passed on after the others have ended.
    pub fn run(&self, tasks: usize, body: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() || INSIDE.get() {
            (0..tasks).for_each(body);
            return;
        }
        let _turn = lock(&self.turn);
        self.shared.lead(tasks, &body);
    }

    /// Cuts `0..items` into ranges of at most `grain` and runs `body` for each of them.
    pub fn run_ranges(&self, items: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
        let grain = grain.max(1);
        self.run(items.div_ceil(grain), |piece| body(piece * grain..((piece + 1) * grain).min(items)));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.gate));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has passed its panic on already.
            let _ = worker.join();
        }
    }
}

/// The count that the variable names, or that of the cores.
fn threads_wanted(variable: Option<&str>) -> usize {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    match variable.map(|text| text.trim().parse::<usize>()) {
        None => cores,
        Some(Ok(threads)) if (1..=4096).contains(&threads) => threads,
        Some(_) => {
            tracing::warn!(target: "kernels", "INLINE_THREADS must be a number from 1 to 4096; using {cores}");
            cores
        }
    }
}

/// A mutex that guards no data can't be left in a bad state by a panic.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The calling thread's side of a loop.
    fn lead(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes; this function returns after the last worker has left the loop.
        let body: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body) };
        // SAFETY: the caller holds the turn and the state is closed with nobody active, so nobody reads the job.
        unsafe { *self.job.get() = Job { body, tasks, caller: Some(thread::current()) } };
        self.next.store(0, Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) >> EPOCH).wrapping_add(1) & u64::from(u32::MAX);
        self.state.store(epoch << EPOCH | OPEN, Ordering::SeqCst);
        self.wake_up(tasks - 1);

        INSIDE.set(true);
        // SAFETY: the job was just written by this thread and its body is alive.
        let own = catch_unwind(AssertUnwindSafe(|| self.take_pieces(unsafe { &*body }, tasks)));
        INSIDE.set(false);
        if own.is_err() {
            // Nobody shall start another piece.
            self.next.store(tasks, Ordering::Relaxed);
        }
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut polls = 0;
        while self.state.load(Ordering::Acquire) & ACTIVE != 0 {
            if polls < self.spins {
                polls += 1;
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
        let theirs = self.panicked.swap(false, Ordering::Relaxed);
        match own {
            Err(panic) => resume_unwind(panic),
            Ok(()) if theirs => panic!("a kernel thread panicked"),
            Ok(()) => {}
        }
    }

    fn wake_up(&self, wanted: usize) {
        let sleeping = self.sleepers.load(Ordering::SeqCst);
        if sleeping == 0 {
            return;
        }
        // Taking the lock means that who counted itself as a sleeper is really waiting.
        drop(lock(&self.gate));
        (0..wanted.min(sleeping)).for_each(|_| self.wake.notify_one());
    }

    fn take_pieces(&self, body: &(dyn Fn(usize) + Sync), tasks: usize) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= tasks {
                return;
            }
            body(piece);
        }
    }

    /// A worker's life.
    fn work(&self) {
        INSIDE.set(true);
        let mut seen = 0;
        while let Some(state) = self.await_loop(seen) {
            if self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = state >> EPOCH;
            // SAFETY: this thread is counted as active, so the job stays as it is.
            let job = unsafe { (*self.job.get()).clone() };
            // SAFETY: as above, the body is alive until this thread leaves the loop.
            let result = catch_unwind(AssertUnwindSafe(|| self.take_pieces(unsafe { &*job.body }, job.tasks)));
            if result.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            let before = self.state.fetch_sub(1, Ordering::AcqRel);
            if before & OPEN == 0
                && before & ACTIVE == 1
                && let Some(caller) = job.caller
            {
                caller.unpark();
            }
        }
    }

    /// The state of an open loop that this worker has not been in, or `None` at the end of the pool.
    fn await_loop(&self, seen: u64) -> Option<u64> {
        let fresh = || {
            let state = self.state.load(Ordering::SeqCst);
            (state & OPEN != 0 && state >> EPOCH != seen).then_some(state)
        };
        for _ in 0..self.spins.max(1) {
            if let Some(state) = fresh() {
                return Some(state);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            std::hint::spin_loop();
        }
        let mut gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(state) = fresh() {
                break Some(state);
            }
            gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

/// A pointer into an output that the pieces of one loop write at disjoint places.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T>(*mut T);

// SAFETY: whoever dereferences it promises that no two pieces touch the same element.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        SharedMut(slice.as_mut_ptr())
    }

    /// For an input that may be the output as well.
    pub(crate) fn from_ptr(start: *mut T) -> Self {
        SharedMut(start)
    }

    pub(crate) fn get(self) -> *mut T {
        self.0
    }

    /// A part of the output.
    ///
    /// # Safety
    /// The part lies inside the slice that this was made from, which is still borrowed, and nobody else uses the part.
    pub(crate) unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_piece_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 3, 17] {
            let pool = Pool::new(threads);
            for round in 0..200 {
                let counts: Vec<AtomicU32> = (0..round % 23).map(|_| AtomicU32::new(0)).collect();
                pool.run(counts.len(), |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn nested_loops_run_on_the_spot_and_loops_from_several_threads_take_turns() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(5, |_| {
                            pool.run(7, |_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 50 * 5 * 7);
    }

    #[test]
    fn sleeping_workers_wake_up_again() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(20));
            let sum = AtomicUsize::new(0);
            pool.run(100, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, |i| assert!(i != 3))));
            assert!(result.is_err());
        }
        let count = AtomicUsize::new(0);
        pool.run(8, |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn ranges_cover_all_items() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        pool.run_ranges(10, 3, |range| {
            sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }

    #[test]
    fn the_thread_count_comes_from_the_variable_if_it_is_a_sane_number() {
        assert_eq!(threads_wanted(Some("3")), 3);
        let cores = threads_wanted(None);
        assert_eq!([threads_wanted(Some("0")), threads_wanted(Some("many"))], [cores, cores]);
    }
}
