//! Pulls and pushes of a table as [`Work`] of the measuring core.

use std::collections::VecDeque;
use std::fmt;
use std::ops::DerefMut;

use serde::{Deserialize, Serialize};
use tidewater::{PullOptions, PullTicket, Ticket};

use crate::error::BenchError;
use crate::measure::{Detours, Work};
use crate::workload::{Workload, poison};

/// Direction of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Reads from the servers.
    Pull,
    /// Writes to the servers.
    Push,
}

impl Op {
    /// Name of this direction on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
        }
    }
}

/// How the calls of a sample overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Each call ends before the next begins: a pull with its values, a push when it is applied.
    Alone,
    /// At most this many calls are in flight; the sample ends with the last one. Range pulls run one after the
    /// other: the benchmark uses asynchronous pulls of rows only.
    Window(usize),
}

/// Destination memory of a pull.
trait Memory: DerefMut<Target = [f32]> + fmt::Debug {}

impl<M: DerefMut<Target = [f32]> + fmt::Debug> Memory for M {}

/// Memory of a pull, and the index of the batch that was pulled into it last; `None` since it was overwritten.
#[derive(Debug)]
struct Destination {
    memory: Box<dyn Memory>,
    batch: Option<usize>,
}

/// Calls on a table under measurement.
#[derive(Debug)]
pub struct Calls<'s, 'c> {
    workload: &'s mut Workload<'c>,
    op: Op,
    options: PullOptions,
    style: Style,
    calls: u64,
    /// One for each pull that may be in flight; empty for pushes.
    destinations: Vec<Destination>,
    pulls: VecDeque<(PullTicket, usize)>,
    pushes: VecDeque<Ticket>,
    /// Number of calls so far.
    turn: usize,
    /// Batch of the next call: `turn` modulo the number of batches, without the division.
    next: usize,
    /// Turns of the calls since the last sample was prepared; the workload has not counted their pushes yet.
    uncounted: std::ops::Range<usize>,
}

impl<'s, 'c> Calls<'s, 'c> {
    /// Creates samples of `calls` calls each.
    pub fn new(
        workload: &'s mut Workload<'c>,
        op: Op,
        options: PullOptions,
        style: Style,
        calls: u64,
    ) -> Self {
        let depth = match style {
            Style::Window(depth) if workload.pulls_later() => depth.max(1),
            _ => 1,
        };
        let destinations = match op {
            Op::Pull => (0..depth)
                .map(|_| Destination {
                    memory: Box::new(workload.destination()),
                    batch: None,
                })
                .collect(),
            Op::Push => Vec::new(),
        };
        Self {
            workload,
            op,
            options,
            style,
            calls,
            destinations,
            pulls: VecDeque::with_capacity(depth),
            pushes: VecDeque::with_capacity(depth.max(match style {
                Style::Window(depth) => depth,
                Style::Alone => 1,
            })),
            turn: 0,
            next: 0,
            uncounted: 0..0,
        }
    }

    /// Replaces the destinations of all pulls by registered memory, which a NIC may write.
    ///
    /// # Errors
    /// If the client cannot register memory.
    pub fn register_destinations(mut self) -> Result<Self, BenchError> {
        for destination in &mut self.destinations {
            destination.memory = Box::new(self.workload.registered_destination()?);
        }
        Ok(self)
    }

    #[inline]
    fn next_batch(&mut self) -> usize {
        let batch = self.next;
        self.turn += 1;
        self.next += 1;
        if self.next == self.workload.batches() {
            self.next = 0;
        }
        batch
    }

    fn pull_alone(&mut self) -> Result<(), BenchError> {
        let mut destinations = std::mem::take(&mut self.destinations);
        let destination = &mut destinations[0];
        // Once, not in each call.
        let out: &mut [f32] = &mut destination.memory;
        let last = &mut destination.batch;
        let done = (0..self.calls).try_for_each(|_| {
            let batch = self.next_batch();
            *last = Some(batch);
            self.workload.pull(batch, out, self.options)
        });
        self.destinations = destinations;
        done
    }

    fn pull_window(&mut self) -> Result<(), BenchError> {
        let depth = self.destinations.len();
        for n in 0..self.calls as usize {
            if self.pulls.len() == depth {
                self.finish_oldest()?;
            }
            let batch = self.next_batch();
            let ticket = self.workload.start_pull(batch, self.options)?;
            // The oldest pull has finished: its destination is free.
            self.destinations[n % depth].batch = Some(batch);
            self.pulls.push_back((ticket, n % depth));
        }
        while !self.pulls.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<(), BenchError> {
        if let Some((ticket, destination)) = self.pulls.pop_front() {
            let out = &mut self.destinations[destination].memory;
            self.workload.finish_pull(ticket, out)?;
        }
        Ok(())
    }

    fn push_all(&mut self, depth: usize) -> Result<(), BenchError> {
        for _ in 0..self.calls {
            if self.pushes.len() == depth
                && let Some(ticket) = self.pushes.pop_front()
            {
                self.workload.wait(&ticket)?;
            }
            let batch = self.next_batch();
            let ticket = self.workload.push(batch)?;
            self.pushes.push_back(ticket);
        }
        while let Some(ticket) = self.pushes.pop_front() {
            self.workload.wait(&ticket)?;
        }
        Ok(())
    }
}

impl Work for Calls<'_, '_> {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.workload.spec().bytes()
    }

    fn prepare(&mut self) {
        for destination in &mut self.destinations {
            poison(&mut destination.memory, self.turn);
            destination.batch = None;
        }
        self.uncounted = self.turn..self.turn;
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        match (self.op, self.style) {
            (Op::Pull, Style::Window(_)) if self.workload.pulls_later() => self.pull_window()?,
            (Op::Pull, _) => self.pull_alone()?,
            (Op::Push, Style::Alone) => self.push_all(1)?,
            (Op::Push, Style::Window(depth)) => self.push_all(depth.max(1))?,
        }
        self.uncounted.end = self.turn;
        Ok(())
    }

    /// Checks the last pull of each destination. Pushes are only counted for the next audit; returns 0 for them.
    fn check(&mut self) -> u64 {
        if self.op == Op::Push {
            let batches = self.workload.batches();
            for turn in self.uncounted.clone() {
                self.workload.count_push(turn % batches, 1);
            }
            self.uncounted = self.turn..self.turn;
            return 0;
        }
        let wrong = |destination: &Destination| {
            Some(self.workload.wrong(destination.batch?, &destination.memory))
        };
        self.destinations.iter().filter_map(wrong).sum()
    }

    fn audit(&mut self) -> Result<u64, BenchError> {
        self.check();
        match self.op {
            Op::Pull => Ok(0),
            Op::Push => self.workload.audit(),
        }
    }

    fn detours(&self) -> Detours {
        self.workload.detours()
    }
}
