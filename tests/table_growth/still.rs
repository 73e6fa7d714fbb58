//! Causes of a slow pull outside of Tidewater: threads that waited for a core, and stalled cores.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tidewater_runtime::clock;
use tidewater_runtime::sync::{AtomicBool, Ordering};

/// Time that threads of this process waited for a core, caused by the machine.
pub(crate) struct Queue(Vec<std::fs::File>);

impl Queue {
    pub(crate) fn of(threads: impl Fn(&str) -> bool) -> Self {
        let mut files = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let path = task.unwrap().path();
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            if threads(name.trim()) {
                files.push(std::fs::File::open(path.join("schedstat")).unwrap());
            }
        }
        Self(files)
    }

    /// Opens the counter of this thread.
    pub(crate) fn mine() -> Self {
        Self(vec![
            std::fs::File::open("/proc/thread-self/schedstat").unwrap(),
        ])
    }

    /// Microseconds so far, sum of all threads.
    pub(crate) fn waited(&self) -> u32 {
        let mut text = [0; 64];
        let each = self.0.iter().map(|file| {
            let len = std::os::unix::fs::FileExt::read_at(file, &mut text, 0).unwrap_or(0);
            let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
            let field = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
            field.unwrap_or(0) / 1_000
        });
        each.sum::<u64>() as u32
    }
}

/// Pages first touched by threads of this name so far. Each is a wait for the system, and on a virtual
/// machine perhaps for its host.
pub(crate) fn fresh_pages(threads: impl Fn(&str) -> bool) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let pages = tasks.map(|task| {
        let path = task.unwrap().path().join("stat");
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let (name, rest) = stat.rsplit_once(") ").unwrap_or_default();
        let name = name.split_once('(').unwrap_or_default().1;
        let pages = rest.split(' ').nth(7).and_then(|n| n.parse::<u64>().ok());
        if threads(name) { pages.unwrap() } else { 0 }
    });
    pages.sum()
}

/// Time that a bystander sleeps at once.
const NAP: Duration = Duration::from_millis(1);
/// Minimum delay of its timer that counts.
const NOTABLE: Duration = Duration::from_micros(500);

/// Times in which cores stalled, of all cores.
pub(crate) struct Stops(Vec<(Instant, Instant)>);

impl Stops {
    /// Longest stall of a single core in this time.
    pub(crate) fn within(&self, start: Instant, end: Instant) -> Duration {
        let shared = |&(from, to): &(Instant, Instant)| {
            to.min(end).saturating_duration_since(from.max(start))
        };
        self.0.iter().map(shared).max().unwrap_or_default()
    }

    /// Longest stall of any core.
    pub(crate) fn longest(&self) -> Duration {
        let lengths = self.0.iter().map(|(from, to)| *to - *from);
        lengths.max().unwrap_or_default()
    }
}

/// A thread on each core that sleeps and wakes up without any dependency: no lock, no untouched
/// memory. If its timer is late, but other threads did not have the core, the core stalled. A virtual
/// machine's host took it away, or had to find memory.
pub(crate) struct Bystanders {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<(Instant, Instant)>>>,
}

impl Bystanders {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = sched_getaffinity(None).unwrap();
        let cores = (0..CpuSet::MAX_CPU).filter(|&core| cores.is_set(core));
        let threads = cores.map(|core| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(core);
                sched_setaffinity(None, &only).unwrap();
                watch(&stop)
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }

    pub(crate) fn finish(self) -> Stops {
        self.stop.store(true, Ordering::Release);
        let seen = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap());
        Stops(seen.flatten().collect())
    }
}

fn watch(stop: &AtomicBool) -> Vec<(Instant, Instant)> {
    let queue = Queue::mine();
    let mut stops = Vec::with_capacity(1 << 12);
    let mut waited = queue.waited();
    while !stop.load(Ordering::Acquire) {
        let start = clock::now();
        std::thread::sleep(NAP);
        let end = clock::now();
        let before = std::mem::replace(&mut waited, queue.waited());
        let queued = Duration::from_micros(u64::from(waited.wrapping_sub(before)));
        let late = (end - start).saturating_sub(NAP + queued);
        if late >= NOTABLE {
            // The timer was due after the nap; then the core stalled; then other threads had it.
            stops.push((start + NAP, start + NAP + late));
        }
    }
    stops
}
