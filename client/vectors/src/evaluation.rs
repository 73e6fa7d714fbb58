//! Cost and gradient of a problem with data that all workers share: one worker runs the solver, every worker
//! evaluates its part.
//!
//! ```text
//! solver (rank 0)                               the other workers
//! evaluate(w): number, slot of w -> calls       serve(): sees the number, pulls w
//!              its own part                              its part -> gradient of the rank, cost, done
//! sums gradients and costs in rank order
//! ```
//! The gradients lie like the vectors, so that their sum is a function at the data. It is made in rank
//! order: the result has the same bits in each run and on any number of servers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tidewater_protocol::limits::{CLOCK_DEADLINE, COORDINATOR_LOOK};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{Optimizer, PushOp};
use tidewater_runtime::clock::{self, Deadline};

use crate::float::Float;
use crate::space::{Vector, VectorId, VectorSpace};
use tidewater::{ClientError, Expression, FunctionArgs, PullOptions, Table, TableBuilder};

/// Polls of a table between sleeps, and the sleep.
const POLLS: u32 = 100;
const SLEEP: Duration = Duration::from_micros(50);
/// Longest time until all workers have made their end.
const MEETING: Duration = Duration::from_secs(600);
/// Longer than any job.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Second number of an answer: the part failed.
const FAILED: i64 = 1;
/// Slot of the call that ends the workers' service.
const END: i64 = -1;

/// A problem's evaluation by all workers of a job.
///
/// `part(weights, gradient)` adds the gradient of this worker's data to `gradient` (zeroes at first) and
/// returns the cost of its data. Every worker makes one with the same names; rank 0 evaluates, the
/// others [serve](Evaluation::serve).
///
/// ```
/// use tidewater::{JoinOptions, SyncMode};
/// use tidewater_vectors::{Evaluation, VectorSpace};
///
/// # fn main() -> Result<(), tidewater::ClientError> {
/// // Two workers hold one summand each of |w - 1|^2 + |w - 3|^2.
/// let job = JoinOptions::embedded(1, 2).join()?.into_job().expect("a worker");
/// let work = |rank: u32| {
///     let space = VectorSpace::<f64>::new(job.client_of(rank, SyncMode::Asp)?, "v", 4)?;
///     let centre = f64::from(2 * rank + 1);
///     let part = move |w: &[f64], gradient: &mut [f64]| {
///         for (g, w) in gradient.iter_mut().zip(w) {
///             *g += 2.0 * (w - centre);
///         }
///         w.iter().map(|w| (w - centre) * (w - centre)).sum::<f64>()
///     };
///     let mut evaluation = Evaluation::new(&space, part)?;
///     if rank > 0 {
///         return evaluation.serve();
///     }
///     let (cost, gradient) = evaluation.evaluate(&space.filled(2.0)?)?;
///     assert_eq!((cost, gradient.pull()?), (8.0, vec![0.0; 4]));
///     evaluation.finish()
/// };
/// std::thread::scope(|scope| {
///     let other = scope.spawn(|| work(1));
///     work(0)?;
///     other.join().expect("no panic")
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Evaluation<T, F> {
    space: VectorSpace<T>,
    part: F,
    /// Row 0: number of the call, slot and generation of its vector.
    calls: Table<i64>,
    /// Row r: last call that rank r has answered.
    done: Table<i64>,
    costs: Table<f64>,
    gradients: Vec<Table<T>>,
    add: Expression<T>,
    number: i64,
    /// Number before the first call.
    base: i64,
    /// Whether the service of the others has been ended.
    finished: bool,
    /// Last point with its cost and gradient: solvers ask for both one after the other. The handle of the
    /// point makes a change in place copy first, so that an equal handle is the same point.
    last: Option<(Vector<T>, f64, Vector<T>)>,
    timeout: Duration,
    /// Number of evaluations so far.
    evaluations: u64,
}

impl<T: Float, F: FnMut(&[T], &mut [T]) -> f64> Evaluation<T, F> {
    /// Makes this worker's end. All workers of the job call it.
    ///
    /// # Errors
    /// The coordinator's refusal when tables do not fit; a deadline.
    pub fn new(space: &VectorSpace<T>, part: F) -> Result<Self, ClientError> {
        let workers = space.client().workers().max(1);
        let name = |what: &str| format!("{}/{what}", space.name());
        let rows = |what: &str, rows: u32| {
            TableBuilder::rows::<i64>(&name(what), rows.into(), 3).partitions(1)
        };
        let costs = TableBuilder::rows::<f64>(&name("costs"), workers.into(), 1);
        let costs = costs.optimizer(Optimizer::None).finite_check(false);
        let dim = space.dim();
        let mut client = space.client();
        let calls = client.create_table(rows("calls", 1).spec())?;
        let done = client.create_table(rows("done", workers).spec())?;
        let costs = client.create_table(costs.partitions(1).spec())?;
        let gradients = (0..workers)
            .map(|rank| {
                client.create_table(
                    space
                        .builder(&name(&format!("gradient/{dim}/{rank}")))
                        .spec(),
                )
            })
            .collect::<Result<_, _>>()?;
        // Numbers go on from an earlier use of the names. The row of calls is stable between the
        // barriers: the earlier use ended at every worker before the first; rank 0 calls after the second.
        client.barrier(&name("evaluation"), MEETING)?;
        let mut call = [0; 3];
        client.pull_rows(&calls, &[0], &mut call, PullOptions::default())?;
        client.barrier(&name("evaluation"), MEETING)?;
        drop(client);
        Ok(Self {
            space: space.clone(),
            part,
            calls,
            done,
            costs,
            gradients,
            add: Expression::parse("x + y")?,
            number: call[0],
            base: call[0],
            finished: false,
            last: None,
            timeout: CLOCK_DEADLINE,
            evaluations: 0,
        })
    }

    /// Evaluates parts for rank 0 until it finishes. If `part` panics or a call fails, rank 0 gets an
    /// error that names this worker.
    ///
    /// # Errors
    /// The end of the job, the loss of a server; a call of another program on the same names.
    pub fn serve(&mut self) -> Result<(), ClientError> {
        loop {
            let call = self.next_call()?;
            if call[1] == END {
                return self.report([call[0], 0, 0]);
            }
            let (slot, generation) = (call[1] as u32, call[2] as u64);
            let id = VectorId { slot, generation };
            tracing::debug!(number = call[0], ?id, "evaluates");
            let answered = catch_unwind(AssertUnwindSafe(|| self.answer_at(slot, call[0])));
            let failed = match answered {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => Ok(error),
                Err(panic) => Err(panic),
            };
            // The row is how rank 0 learns of it. This worker's own error matters more than one of the report.
            if let Err(error) = self.report([call[0], FAILED, 0]) {
                tracing::warn!(%error, "cannot report a failed evaluation");
            }
            match failed {
                Ok(error) => return Err(error),
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    /// Answers a call at the vector in `slot`.
    fn answer_at(&mut self, slot: u32, number: i64) -> Result<(), ClientError> {
        let name = format!("{}/{slot}", self.space.name());
        let table = self.space.client().open_table::<T>(&name)?;
        self.answer(&table, number)
    }

    /// Assigns this worker's row of `done`.
    fn report(&self, row: [i64; 3]) -> Result<(), ClientError> {
        let mut client = self.space.client();
        let rank = [u64::from(client.rank().0)];
        let ticket = client.push_rows(&self.done, &rank, &row, PushOp::Assign)?;
        client.wait_applied(&ticket)
    }

    /// Waits for a call with a new number.
    fn next_call(&mut self) -> Result<[i64; 3], ClientError> {
        let known = self.number;
        let mut call = [0; 3];
        let table = self.calls;
        // The solver may do other work for any time; the end of the job ends the wait.
        self.poll(Deadline::after(FOREVER), |space| {
            let mut client = space.client();
            client.pull_rows(&table, &[0], &mut call, PullOptions::default())?;
            Ok(call[0] != known)
        })?;
        self.number = call[0];
        Ok(call)
    }

    /// Polls until `ready` returns true. Fails when the job ends, or at the deadline.
    fn poll(
        &self,
        deadline: Deadline,
        mut ready: impl FnMut(&VectorSpace<T>) -> Result<bool, ClientError>,
    ) -> Result<(), ClientError> {
        let (mut polls, mut check_at) = (0_u32, Deadline::after(COORDINATOR_LOOK));
        while !ready(&self.space)? {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                self.space.client().progress()?;
                std::thread::sleep(SLEEP);
            }
            if check_at.passed() {
                check_at = Deadline::after(COORDINATOR_LOOK);
                self.space.client().check_job()?;
                if deadline.passed() {
                    let (op, missing) = ("evaluate", self.missing()?);
                    return Err(ClientError::Deadline { op, missing });
                }
            }
        }
        Ok(())
    }

    /// Names the workers that have not answered the last call.
    fn missing(&self) -> Result<String, ClientError> {
        let done = self.answers()?;
        let rows = done.chunks_exact(3).enumerate();
        let late = rows.filter(|(_, row)| row[0] != self.number);
        let ranks: Vec<String> = late.map(|(rank, _)| rank.to_string()).collect();
        Ok(format!("an answer of worker {}", ranks.join(", ")))
    }

    /// Rows of `done`: of each worker the last call, and whether it failed.
    fn answers(&self) -> Result<Vec<i64>, ClientError> {
        let ranks: Vec<u64> = (0..self.gradients.len() as u64).collect();
        let mut done = vec![0; ranks.len() * 3];
        let mut client = self.space.client();
        client.pull_rows(&self.done, &ranks, &mut done, PullOptions::default())?;
        Ok(done)
    }

    /// Evaluates this worker's part at the elements of a table, and publishes gradient, cost and number.
    fn answer(&mut self, weights: &Table<T>, number: i64) -> Result<(), ClientError> {
        let dim = self.space.dim() as usize;
        let mut at = vec![T::default(); dim];
        let mut gradient = vec![T::default(); dim];
        let pulled = PullOptions::default();
        self.space
            .client()
            .pull_range(weights, 0, &mut at, pulled)?;
        let cost = (self.part)(&at, &mut gradient);
        let mut client = self.space.client();
        let rank = client.rank().0;
        let mine = &self.gradients[rank as usize];
        let row = [u64::from(rank)];
        let mut ticket = client.push_range(mine, 0, &gradient, PushOp::Assign)?;
        ticket.merge(&client.push_rows(&self.costs, &row, &[cost], PushOp::Assign)?);
        // The number says that the others can be read.
        client.wait_applied(&ticket)?;
        let ticket = client.push_rows(&self.done, &row, &[number, 0, 0], PushOp::Assign)?;
        client.wait_applied(&ticket)
    }

    /// Cost and gradient at `weights`, summed over all workers in rank order. The last result is kept: a
    /// second call for the same vector evaluates nothing.
    ///
    /// # Errors
    /// [`ClientError::Argument`] on another worker than rank 0; the failure of an earlier operation of
    /// the space; the end of the job.
    pub fn evaluate(&mut self, weights: &Vector<T>) -> Result<(f64, Vector<T>), ClientError> {
        self.space.check()?;
        if !weights.is_of(&self.space) {
            return Err(ClientError::Argument {
                op: "evaluate",
                table: self.space.name().to_owned(),
                what: "the vector is of another space, which the other workers do not see".into(),
            });
        }
        if let Some((point, cost, gradient)) = &self.last
            && point == weights
        {
            return Ok((*cost, gradient.clone()));
        }
        if self.finished {
            return Err(ClientError::Argument {
                op: "evaluate",
                table: self.space.name().to_owned(),
                what: "the evaluation is finished; make another".into(),
            });
        }
        let rank = self.space.client().rank().0;
        if rank != 0 {
            return Err(ClientError::Argument {
                op: "evaluate",
                table: self.space.name().to_owned(),
                what: format!("this is rank {rank}; rank 0 evaluates and the others serve"),
            });
        }
        self.evaluations += 1;
        let started = clock::now();
        let id = weights.id();
        let number = self.number + 1;
        self.number = number;
        // The elements are complete before the others see the number.
        self.space.client().flush()?;
        self.call([number, i64::from(id.slot), id.generation as i64])?;
        self.answer(&weights.table(), number)?;
        if let Some(rank) = self.wait_for(0..self.gradients.len())? {
            return Err(ClientError::Environment(
                format!("the evaluation failed at worker {rank}; its own error says why").into(),
            ));
        }
        let mut costs = vec![0.0; self.gradients.len()];
        let ranks: Vec<u64> = (0..costs.len() as u64).collect();
        let gradient = Vector::of_table(&self.space, &self.gradients[0])?;
        let mut client = self.space.client();
        client.pull_rows(&self.costs, &ranks, &mut costs, PullOptions::default())?;
        let others = match on(Mutant::GradientOfOneWorker) {
            true => &[],
            false => &self.gradients[1..],
        };
        for other in others {
            let args = FunctionArgs {
                inputs: &[&gradient.table(), other],
                ..FunctionArgs::default()
            };
            // Later operations come after it; its refusal is found by the next wait.
            let _ticket = client.update(&gradient.table(), &self.add, &args)?;
        }
        // Workers overwrite their gradients at the next call.
        client.flush()?;
        drop(client);
        let cost = costs.iter().sum();
        tracing::debug!(number, cost, took = ?started.elapsed(), "evaluated");
        self.last = Some((weights.clone(), cost, gradient.clone()));
        Ok((cost, gradient))
    }

    fn call(&self, call: [i64; 3]) -> Result<(), ClientError> {
        let mut client = self.space.client();
        let ticket = client.push_rows(&self.calls, &[0], &call, PushOp::Assign)?;
        client.wait_applied(&ticket)
    }

    /// Waits until `ranks` have answered the last call, or some worker has failed. Returns the rank of
    /// that one.
    fn wait_for(&self, ranks: std::ops::Range<usize>) -> Result<Option<usize>, ClientError> {
        let mut failed = None;
        self.poll(Deadline::after(self.timeout), |_| {
            let done = self.answers()?;
            let mut rows = done.chunks_exact(3);
            failed = rows.position(|row| row[1] == FAILED && row[0] > self.base);
            let mut rows = done.chunks_exact(3).take(ranks.end).skip(ranks.start);
            Ok(failed.is_some() || rows.all(|row| row[0] == self.number))
        })?;
        Ok(failed)
    }

    /// Sets the longest time that rank 0 waits for the parts of an evaluation (default 30 min).
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Number of evaluations so far: passes over the data.
    pub const fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Ends the service of the other workers, and waits until they have left it. Without it they serve
    /// until the job ends. The tables of the evaluation stay for the next one of the space.
    ///
    /// # Errors
    /// A deadline that names the workers still serving; the end of the job.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.last = None;
        self.number += 1;
        self.call([self.number, END, 0])?;
        // A worker that failed has left its service already.
        self.wait_for(1..self.gradients.len()).map(drop)
    }
}
