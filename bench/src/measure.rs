//! The loop that measures one case.

use std::time::Duration;

use serde::Serialize;
use tidewater_client::{Client, PullOptions, Ticket};
use tidewater_transport::clock::{self, Deadline};

use crate::args::{Mode, OpChoice, Options, TableChoice};
use crate::error::BenchError;
use crate::report::Row;
use crate::stats::Samples;
use crate::subject::{Extent, Kind, Subject};

/// Bytes of a window: more would measure how fast the machine makes room.
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Samples of pushes between two checks of the values.
const CHECK_EVERY: u64 = 256;

/// What is measured of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Each call alone, or in groups one after the other.
    Latency,
    /// Windows of calls.
    Bandwidth,
}

impl What {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
        }
    }
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// From the servers.
    Pull,
    /// To the servers.
    Push,
}

impl Op {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
        }
    }
}

/// One section of the report: an operation on a kind of table.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// Direction.
    pub op: Op,
    /// Kind of table.
    pub kind: Kind,
    /// How pulls read.
    pub mode: Mode,
}

/// The sections that the options ask for.
pub fn sections(options: &Options) -> Vec<Section> {
    let kinds: &[Kind] = match options.table {
        TableChoice::Dense => &[Kind::Dense],
        TableChoice::Rows => &[Kind::Rows],
        TableChoice::Sparse => &[Kind::Sparse],
        TableChoice::All => &[Kind::Dense, Kind::Rows, Kind::Sparse],
    };
    let ops: &[Op] = match options.op {
        OpChoice::Pull => &[Op::Pull],
        OpChoice::Push => &[Op::Push],
        OpChoice::All => &[Op::Pull, Op::Push],
    };
    let mode = options.mode;
    let of_op = |&op: &Op| kinds.iter().map(move |&kind| Section { op, kind, mode });
    ops.iter().flat_map(of_op).collect()
}

/// Measures one size of one section.
///
/// # Errors
/// What the first call that fails fails with.
pub fn run(
    client: &mut Client,
    what: What,
    section: Section,
    size: u64,
    options: &Options,
    timer_cost: Duration,
) -> Result<Row, BenchError> {
    let extent = Extent {
        size,
        batch: options.batch,
        seed: options.seed,
    };
    let calls = match what {
        What::Latency => options.group,
        What::Bandwidth => options
            .window
            .min((WINDOW_BYTES_MAX / extent.bytes()).max(1)),
    };
    let mut case = Case {
        subject: Subject::new(client, section.kind, extent, options.plant_wrong)?,
        section,
        pull: PullOptions::default().mode(section.mode.pull_mode()),
        calls,
        overlapped: what == What::Bandwidth,
        tickets: Vec::with_capacity(calls as usize),
        wrong: 0,
    };
    for _ in 0..options.warmup {
        case.sample(&mut Samples::new(timer_cost))?;
    }
    case.check_pushes()?;
    let before = case.subject.retries_and_fallbacks();
    let mut samples = Samples::new(timer_cost);
    let end = Deadline::after(options.duration);
    let most = options.iters.unwrap_or(u64::MAX);
    for n in 1..=most {
        case.sample(&mut samples)?;
        if n % CHECK_EVERY == 0 {
            case.check_pushes()?;
        }
        if end.passed() {
            break;
        }
    }
    let after = case.subject.retries_and_fallbacks();
    case.check_pushes()?;
    case.subject.release()?;
    Ok(Row {
        op: section.op,
        table: section.kind,
        mode: (section.op == Op::Pull).then_some(section.mode),
        size,
        bytes_per_call: extent.bytes(),
        calls_per_sample: calls,
        figures: samples.figures(extent.bytes()),
        wrong: case.wrong,
        retries: after.0 - before.0,
        fallbacks: after.1 - before.1,
    })
}

/// A case under way.
struct Case<'a> {
    subject: Subject<'a>,
    section: Section,
    pull: PullOptions,
    calls: u64,
    /// Whether all pushes of a sample are under way together.
    overlapped: bool,
    tickets: Vec<Ticket>,
    wrong: u64,
}

impl Case<'_> {
    /// Makes and times one group of calls.
    fn sample(&mut self, samples: &mut Samples) -> Result<(), BenchError> {
        match self.section.op {
            Op::Pull => self.pulls(samples),
            Op::Push => self.pushes(samples),
        }
    }

    fn pulls(&mut self, samples: &mut Samples) -> Result<(), BenchError> {
        self.subject.poison();
        let from = clock::now();
        for _ in 0..self.calls {
            self.subject.pull(self.pull)?;
        }
        samples.record(from, clock::now(), self.calls);
        self.wrong += self.subject.wrong();
        Ok(())
    }

    fn pushes(&mut self, samples: &mut Samples) -> Result<(), BenchError> {
        let from = clock::now();
        for _ in 0..self.calls {
            let ticket = self.subject.push()?;
            if self.overlapped {
                self.tickets.push(ticket);
            } else {
                self.subject.wait(&ticket)?;
            }
        }
        for ticket in self.tickets.drain(..) {
            self.subject.wait(&ticket)?;
        }
        samples.record(from, clock::now(), self.calls);
        Ok(())
    }

    /// The values after the pushes so far; pulls are checked one by one.
    fn check_pushes(&mut self) -> Result<(), BenchError> {
        if self.section.op == Op::Push {
            self.wrong += self.subject.wrong_after_pushes()?;
        }
        Ok(())
    }
}
