//! The measuring loop: samples, checks, audits and usage.

use std::time::{Duration, Instant};

use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::spin_hint;

use super::usage::{Meter, Usage, of_this_thread};
use super::{Detours, Figures, Pace, Plan, Samples, Work};
use crate::alloc;
use crate::error::BenchError;

/// Clock readings for the timer's cost, which is their median.
const TIMER_READINGS: usize = 2_001;
/// Maximum number of checks to measure the cost of one, their mean processor time. They end early once they
/// have taken more than `CHECK_TIME_MAX_NS` together.
const CHECK_REPEATS: u64 = 16;
const CHECK_TIME_MAX_NS: u64 = 1_000_000;
/// An open loop sleeps until this long before a sample is due, and then polls the clock. The kernel's
/// oversleep on a quiet machine is shorter.
const WATCH: Duration = Duration::from_micros(150);

/// Result of a run.
#[derive(Debug)]
pub struct Measured {
    /// Times of the samples.
    pub samples: Samples,
    /// Payload bytes of a call.
    pub bytes: u64,
    /// Number of wrong values, those of the warm-up and of audits included.
    pub wrong: u64,
    /// Number of samples with compared values. A closed loop compares all; an open loop those that leave time
    /// before the next is due, and once more at its end.
    pub checked: u64,
    /// Usage of this thread. Its allocations are those of the calls alone. Its processor time is that of calls
    /// and preparations, without the estimated time of checks; 0 in an open loop, which polls the clock.
    pub client: Usage,
    /// Usage of the other end from the first sample to the last, without audits; its memory is that at the end.
    pub server: Usage,
    /// Time from the first sample to the last, checks included, audits excluded.
    pub wall: Duration,
    /// Reads after the warm-up that did not succeed at once, those of audits included.
    pub detours: Detours,
}

impl Measured {
    /// Figures of the run. Rates are over the sum of the sample times; those of an open loop over the wall time.
    pub fn figures(&self, pace: Pace) -> Figures {
        match pace {
            Pace::Closed => self.samples.figures(self.bytes),
            Pace::Open(_) => self.samples.figures_over(self.bytes, self.wall),
        }
    }

    /// Divides a total of the run by the number of calls, at least 1.
    pub fn per_call(&self, total: u64) -> f64 {
        total as f64 / self.samples.calls().max(1) as f64
    }
}

/// Measures `work` by a plan.
///
/// # Errors
/// The error of the first call that fails, or of the meter.
pub fn run(
    plan: &Plan,
    work: &mut dyn Work,
    meter: &mut dyn Meter,
) -> Result<Measured, BenchError> {
    work.begin();
    let measured = measure(plan, work, meter);
    work.end();
    measured
}

fn measure(
    plan: &Plan,
    work: &mut dyn Work,
    meter: &mut dyn Meter,
) -> Result<Measured, BenchError> {
    let mut wrong = 0;
    for _ in 0..plan.warmup {
        work.prepare();
        work.sample()?;
        wrong += work.check();
    }
    wrong += work.audit()?;
    let mut state = Run {
        check_cpu_ns: check_cost(work),
        detours: work.detours(),
        done: 0,
        checked: 0,
        out: Measured {
            samples: Samples::new(plan.timer_cost),
            bytes: work.bytes(),
            wrong,
            checked: 0,
            client: Usage::default(),
            server: Usage::default(),
            wall: Duration::ZERO,
            detours: Detours::default(),
        },
    };
    let end = Deadline::after(plan.duration);
    while state.done < plan.iters && (state.done == 0 || !end.passed()) {
        let left = plan.iters - state.done;
        let most = match plan.audit_every {
            0 => left,
            n => n.min(left),
        };
        state.stretch(plan, work, meter, most, end)?;
        state.out.wrong += work.audit()?;
    }
    Ok(state.finish(plan, work))
}

/// State of a run.
struct Run {
    out: Measured,
    /// Processor time of one check, ns.
    check_cpu_ns: u64,
    detours: Detours,
    done: u64,
    checked: u64,
}

impl Run {
    /// Runs samples until the next audit: one in any case, at most `most` in all, no further one after `end`.
    /// Reads the usage of both ends around them.
    fn stretch(
        &mut self,
        plan: &Plan,
        work: &mut dyn Work,
        meter: &mut dyn Meter,
        most: u64,
        end: Deadline,
    ) -> Result<(), BenchError> {
        let checked = self.checked;
        let peer = meter.peer()?;
        let thread = of_this_thread();
        let begin = clock::now();
        match plan.pace {
            Pace::Closed => self.closed(work, most, end)?,
            Pace::Open(rate) => self.open(work, most, end, begin, rate)?,
        }
        self.out.wall += clock::now() - begin;
        let mut used = of_this_thread().since(thread);
        let checks = (self.checked - checked) * self.check_cpu_ns;
        used.cpu_ns = used.cpu_ns.saturating_sub(checks);
        self.out.client.cpu_ns += used.cpu_ns;
        let used = meter.peer()?.since(peer);
        self.out.server = Usage {
            resident: used.resident,
            ..self.out.server.plus(used)
        };
        Ok(())
    }

    fn closed(&mut self, work: &mut dyn Work, most: u64, end: Deadline) -> Result<(), BenchError> {
        for _ in 0..most {
            work.prepare();
            let from = clock::now();
            let to = self.one(work, from)?;
            self.check(work);
            if end <= Deadline::at(to) {
                break;
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        work: &mut dyn Work,
        most: u64,
        end: Deadline,
        begin: Instant,
        rate: f64,
    ) -> Result<(), BenchError> {
        let mut check_time = Duration::ZERO;
        work.prepare();
        for n in 0..most {
            let due = begin + Duration::from_secs_f64(n as f64 / rate);
            wait_until(due);
            let to = self.one(work, due)?;
            let next = begin + Duration::from_secs_f64((n + 1) as f64 / rate);
            if end <= Deadline::at(next) {
                break;
            }
            // A late loop skips checks: their time would be counted as the server's.
            if to + 2 * check_time < next {
                self.check(work);
                work.prepare();
                check_time = clock::now() - to;
            }
        }
        self.check(work);
        Ok(())
    }

    /// Makes one sample and records its time since `from`; returns its end.
    #[inline]
    fn one(&mut self, work: &mut dyn Work, from: Instant) -> Result<Instant, BenchError> {
        let allocations = alloc::of_thread();
        work.sample()?;
        let to = clock::now();
        self.out.client.allocations += alloc::of_thread() - allocations;
        self.out.samples.record(from, to, work.calls());
        self.done += 1;
        Ok(to)
    }

    fn check(&mut self, work: &mut dyn Work) {
        self.out.wrong += work.check();
        self.checked += 1;
    }

    fn finish(mut self, plan: &Plan, work: &mut dyn Work) -> Measured {
        self.out.checked = self.checked;
        if plan.pace != Pace::Closed {
            self.out.client.cpu_ns = 0;
        }
        self.out.detours = work.detours().since(self.detours);
        self.out
    }
}

/// Mean processor time of a check of `work`, ns. Checks repeatedly and ignores the results.
fn check_cost(work: &mut dyn Work) -> u64 {
    // The first check warms the cache.
    work.check();
    let before = of_this_thread();
    for n in 1..=CHECK_REPEATS {
        work.check();
        let used = of_this_thread().since(before).cpu_ns;
        if n == CHECK_REPEATS || used > CHECK_TIME_MAX_NS {
            return used / n;
        }
    }
    0
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(clock::now());
    if left > WATCH {
        std::thread::sleep(left - WATCH);
    }
    while clock::now() < due {
        spin_hint();
    }
}

/// Cost of one clock reading: the median time between two successive ones.
pub fn timer_cost() -> Duration {
    let mut gaps: Vec<Duration> = (0..TIMER_READINGS)
        .map(|_| {
            let before = clock::now();
            clock::now() - before
        })
        .collect();
    gaps.sort_unstable();
    gaps[TIMER_READINGS / 2]
}
