//! One model, many answers: whoever waits for logits joins the next pass, and one of those who wait computes it for all.
//!
//! There is no thread of its own: a lone answer runs at full speed on its caller's. A pass starts when every open answer
//! waits for one, or shortly after the first does, so that a slow reader holds nobody up. What an answer gets does not
//! depend on its company, bit for bit, as the decoder promises.

use crate::prefixes::Prefixes;
use core_llm::{CancelFlag, Error, Result};
use layers::decoder::{Decoder, KvCache, Piece};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tokens of a prompt that are computed at once, so that a long one needs no more memory than this many and lets others
/// advance.
const PROMPT_CHUNK: usize = 512;
/// How long those who wait hold a pass up for those who don't yet.
const PATIENCE: Duration = Duration::from_micros(500);

/// A decoder that many answers share.
pub(crate) struct Batch {
    decoder: Decoder,
    state: Mutex<State>,
    changed: Condvar,
    prefixes: Mutex<Prefixes>,
}

#[derive(Default)]
struct State {
    /// Answers that are being made.
    open: usize,
    next_id: u64,
    waiting: Vec<Job>,
    done: HashMap<u64, Outcome>,
    /// Whether somebody computes a pass.
    leading: bool,
}

type Outcome = Result<(KvCache, Vec<f32>)>;

/// The next tokens of an answer.
struct Job {
    id: u64,
    tokens: Vec<u32>,
    cache: KvCache,
    keep: usize,
    cancel: CancelFlag,
}

impl Batch {
    pub(crate) fn new(decoder: Decoder) -> Arc<Self> {
        let (state, prefixes) = (Mutex::default(), Mutex::default());
        Arc::new(Self { decoder, state, changed: Condvar::new(), prefixes })
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Begins an answer that will not grow beyond `room` tokens.
    pub(crate) fn open(self: &Arc<Self>, room: usize, cancel: &CancelFlag) -> Session {
        let mut state = self.lock();
        state.open += 1;
        state.next_id += 1;
        let cache = self.decoder.sequence(room);
        Session { batch: Arc::clone(self), id: state.next_id, cache, tokens: Vec::new(), cancel: cancel.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a pass leaves counters and lists whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The logits of the last `keep` tokens of a job.
    fn run(&self, job: Job) -> Outcome {
        let id = job.id;
        let since = Instant::now();
        let mut state = self.lock();
        state.waiting.push(job);
        loop {
            if let Some(outcome) = state.done.remove(&id) {
                return outcome;
            }
            let waited = since.elapsed();
            let ready = state.waiting.len() >= state.open || waited >= PATIENCE;
            if !state.leading && ready && !state.waiting.is_empty() {
                state.leading = true;
                let jobs = std::mem::take(&mut state.waiting);
                drop(state);
                let lead = Lead { batch: self, ids: jobs.iter().map(|job| job.id).collect() };
                let outcomes = self.pass(jobs);
                self.lock().done.extend(outcomes);
                drop(lead);
                state = self.lock();
                continue;
            }
            // Whoever leads wakes the others when it is done; before that only the time may have to be looked at.
            state = if state.leading {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let left = PATIENCE.saturating_sub(waited).max(Duration::from_micros(20));
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Computes what several answers wait for.
    fn pass(&self, jobs: Vec<Job>) -> Vec<(u64, Outcome)> {
        let (mut jobs, cancelled): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| !job.cancel.is_cancelled());
        let mut outcomes: Vec<(u64, Outcome)> = cancelled.iter().map(|job| (job.id, Err(Error::Cancelled))).collect();
        if jobs.is_empty() {
            return outcomes;
        }
        // The flag of one must not stop the others.
        let cancel = if let [only] = jobs.as_slice() { only.cancel.clone() } else { CancelFlag::new() };
        let piece = |job: &mut Job| -> (Vec<u32>, KvCache, usize) {
            (std::mem::take(&mut job.tokens), std::mem::take(&mut job.cache), job.keep)
        };
        let mut parts: Vec<_> = jobs.iter_mut().map(piece).collect();
        let pieces = parts.iter_mut().map(|(tokens, cache, keep)| Piece { tokens, cache, keep: *keep });
        let result = self.decoder.forward(&mut pieces.collect::<Vec<_>>(), &cancel);
        match result {
            Ok(logits) => {
                let mut rows = logits.as_slice();
                for (job, (tokens, cache, keep)) in jobs.iter().zip(parts) {
                    let own = keep.min(tokens.len()) * self.decoder.config().vocabulary;
                    let (first, rest) = rows.split_at(own);
                    rows = rest;
                    outcomes.push((job.id, Ok((cache, first.to_vec()))));
                }
            }
            Err(error) => {
                let error = Error::from(error);
                outcomes.extend(jobs.iter().map(|job| (job.id, Err(error.clone()))));
            }
        }
        outcomes
    }
}

/// Ends a pass whatever becomes of it, so that nobody waits for one that panicked.
struct Lead<'a> {
    batch: &'a Batch,
    ids: Vec<u64>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = self.batch.lock();
        state.leading = false;
        if std::thread::panicking() {
            for id in &self.ids {
                state.done.insert(*id, Err(Error::Backend("the computation panicked".into())));
            }
        }
        drop(state);
        self.batch.changed.notify_all();
    }
}

/// An answer's place in the batch.
pub(crate) struct Session {
    batch: Arc<Batch>,
    id: u64,
    cache: KvCache,
    /// All tokens that the cache holds.
    tokens: Vec<u32>,
    cancel: CancelFlag,
}

impl Session {
    /// Reads the prompt and gives the logits after it. What earlier prompts began with as well is not computed again.
    ///
    /// # Errors
    /// The work was cancelled, or the backend failed.
    pub(crate) fn prompt(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let known = self.prefixes().find(tokens, self.cache.is_stretched());
        self.cache.reuse(known);
        self.tokens = tokens[..self.cache.len()].to_vec();
        let mut rest = &tokens[self.cache.len()..];
        while rest.len() > PROMPT_CHUNK {
            self.advance(&rest[..PROMPT_CHUNK], 0)?;
            rest = &rest[PROMPT_CHUNK..];
        }
        let logits = self.advance(rest, 1)?;
        self.keep_prefix();
        Ok(logits)
    }

    /// Appends tokens and gives the logits after each of the last `keep`, one after another.
    ///
    /// # Errors
    /// As [`Self::prompt`].
    pub(crate) fn advance(&mut self, tokens: &[u32], keep: usize) -> Result<Vec<f32>> {
        let cache = std::mem::take(&mut self.cache);
        let job = Job { id: self.id, tokens: tokens.to_vec(), cache, keep, cancel: self.cancel.clone() };
        let (cache, logits) = self.batch.run(job)?;
        self.cache = cache;
        self.tokens.extend_from_slice(tokens);
        Ok(logits)
    }

    /// Tokens so far.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Takes the last tokens back.
    pub(crate) fn take_back(&mut self, count: usize) {
        self.tokens.truncate(self.tokens.len().saturating_sub(count));
        self.cache.truncate(self.tokens.len());
    }

    /// Whether nobody else is being answered.
    pub(crate) fn is_alone(&self) -> bool {
        self.batch.lock().open == 1
    }

    fn keep_prefix(&self) {
        self.prefixes().keep(&self.tokens, self.cache.is_stretched(), self.cache.full_blocks());
    }

    fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.batch.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.cache.len() == self.tokens.len() {
            self.keep_prefix();
        }
        let mut state = self.batch.lock();
        state.open -= 1;
        drop(state);
        self.batch.changed.notify_all();
    }
}
