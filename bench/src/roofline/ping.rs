//! A shared-memory ping-pong: bytes there and back between two threads that poll a cache line each.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tidewater_protocol::limits::DATA_DEADLINE;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{Arc, spin_hint};

use crate::error::BenchError;
use crate::measure::Work;

const ASK: usize = 0;
const ANSWER: usize = 128;
const BODY: usize = 256;
/// Word that the asker writes to make the other thread sleep, and that this thread answers with.
const REST: u64 = u64::MAX;
/// Polls between two yields of the core, which both threads may share.
const YIELD_EVERY: u32 = 256;

/// A ping of `to` bytes with an answer of `back` bytes.
#[derive(Debug)]
pub struct Ping {
    memory: Arc<Region>,
    there: Vec<u8>,
    back: Vec<u8>,
    calls: u64,
    count: u64,
    wake: Option<Sender<()>>,
    other: Option<JoinHandle<()>>,
}

impl Ping {
    /// Starts the other thread, which sleeps until the measurement begins. A sample is `calls` pings.
    ///
    /// # Errors
    /// If memory or a thread cannot be allocated.
    pub fn new(to: usize, back: usize, calls: u64) -> Result<Self, BenchError> {
        let failed = |source| BenchError::system("start a ping", source);
        let bytes = BODY + to.max(back).next_multiple_of(64);
        let memory = Region::anonymous(bytes).map_err(|e| failed(std::io::Error::other(e)))?;
        let memory = Arc::new(memory);
        let (wake, woken) = channel();
        let theirs = Arc::clone(&memory);
        let other = std::thread::Builder::new()
            .name("bench-ping".into())
            .spawn(move || answer(&theirs, &woken, to, back))
            .map_err(failed)?;
        Ok(Self {
            memory,
            there: vec![1; to],
            back: vec![0; back],
            calls,
            count: 0,
            wake: Some(wake),
            other: Some(other),
        })
    }
}

/// Waits until the word at byte `at` differs from `old`, and yields the core now and then. Returns the new
/// word, or [`REST`] after [`DATA_DEADLINE`].
fn watch(memory: &Region, at: usize, old: u64) -> u64 {
    let Ok(words) = memory.words(at, 8) else {
        return REST;
    };
    let mut polls = 0_u32;
    let mut deadline = None;
    loop {
        let now = words.load_acquire(0);
        if now != old {
            return now;
        }
        spin_hint();
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(YIELD_EVERY) {
            std::thread::yield_now();
            let deadline = deadline.get_or_insert_with(|| Deadline::after(DATA_DEADLINE));
            if deadline.passed() {
                return REST;
            }
        }
    }
}

fn answer(memory: &Region, woken: &Receiver<()>, to: usize, back: usize) {
    let (mut there, answer) = (vec![0; to], vec![2; back]);
    let Ok(words) = memory.words_mut(0, memory.len()) else {
        return;
    };
    while woken.recv().is_ok() {
        let mut last = words.as_read().load_acquire(ANSWER);
        loop {
            let now = watch(memory, ASK, last);
            if now == REST {
                break;
            }
            words.as_read().copy_out(BODY, &mut there);
            std::hint::black_box(&there);
            words.copy_in(BODY, &answer);
            words.store_release(ANSWER, now);
            last = now;
        }
        words.store_release(ANSWER, REST);
    }
}

impl Work for Ping {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.there.len().max(self.back.len()) as u64
    }

    fn begin(&mut self) {
        if let (Ok(words), Some(wake)) = (self.memory.words_mut(0, BODY), &self.wake) {
            words.store_release(ANSWER, self.count);
            words.store_release(ASK, self.count);
            // A thread that is gone answers nothing; `sample` reports that.
            let _ = wake.send(());
        }
    }

    fn end(&mut self) {
        if let Ok(words) = self.memory.words_mut(0, BODY) {
            words.store_release(ASK, REST);
            let deadline = Deadline::after(DATA_DEADLINE);
            while words.as_read().load_acquire(ANSWER) != REST && !deadline.passed() {
                std::thread::yield_now();
            }
        }
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let words = self.memory.words_mut(0, self.memory.len());
        let words = words.map_err(|e| BenchError::system("look at a ping's memory", e))?;
        for _ in 0..self.calls {
            words.copy_in(BODY, &self.there);
            words.store_release(ASK, self.count + 1);
            let answered = watch(&self.memory, ANSWER, self.count);
            if answered == REST {
                let name = "the other end of a ping";
                return Err(BenchError::process(name, "it does not answer"));
            }
            self.count = answered;
            words.as_read().copy_out(BODY, &mut self.back);
        }
        Ok(())
    }

    fn check(&mut self) -> u64 {
        let wrong = self.back.iter().filter(|b| **b != 2).count() as u64;
        self.back.fill(0);
        wrong
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(other) = self.other.take() {
            let _ = other.join();
        }
    }
}
