//! Evaluates programs over slices, one operation on one chunk at a time.
//!
//! A chunk of each register has [`CHUNK_BYTES`], so that intermediate results stay in the first cache. The last
//! operation writes to the output.

use std::mem;

use tidewater_protocol::mutants::{Mutant, on};

use crate::element::{Arithmetic, Element};
use crate::error::ProgramError;
use crate::loops::Source;
use crate::partial::Partial;
use crate::plan::{Argument, Kernel, Plan, Stream};
use crate::program::Program;
use crate::reduction::Reduction;
use crate::sums::Sums;
use crate::{INPUTS_MAX, OPERATIONS_MAX};

/// Bytes of a register.
const CHUNK_BYTES: usize = 4096;
/// Bytes after a register that are not used.
const PADDING_BYTES: usize = 1088;
/// Independent extremes of a reduction: a number of vectors of every processor.
const LANES: usize = 16;

// A register for each operation, the index, a scalar and truth values: the memory of the worst program.
const _: () = assert!((OPERATIONS_MAX + 3) * (CHUNK_BYTES + PADDING_BYTES) < 2 << 20);

/// Computes a program over slices. Owns its registers, so that calls do not allocate.
///
/// Its memory is 5 KiB for each intermediate result that is needed at the same time, at most about 1.3 MiB.
///
/// ```
/// use tidewater_expression::{Evaluator, Program};
/// use tidewater_protocol::table::DType;
///
/// let program = Program::parse("max(p0 * x + y, 0)", DType::F32)?;
/// let mut evaluator = Evaluator::<f32>::new(&program, &[-2.0])?;
/// let mut out = [0.0; 3];
/// evaluator.map(&[&[1.0, 2.0, 3.0], &[1.0, 5.0, 9.0]], 0, &mut out);
/// assert_eq!(out, [0.0, 1.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Evaluator<T> {
    plan: Plan<T>,
    registers: Vec<Vec<T>>,
    /// Inputs that the program needs.
    inputs: usize,
    /// Copy of the target's chunk in [`Evaluator::map_in_place`]; empty before its first call.
    target: Vec<T>,
}

/// Slices of the inputs that one pass over the steps computes.
#[derive(Debug, Clone, Copy)]
struct Chunk<'a, T> {
    inputs: [&'a [T]; INPUTS_MAX],
    /// Absolute index of the first element.
    first_index: u64,
    len: usize,
}

impl<'a, T> Chunk<'a, T> {
    /// Returns the chunk at offset `at` of inputs of `count` elements.
    fn at(inputs: &[&'a [T]], first_index: u64, at: usize, count: usize) -> Self {
        let len = (count - at).min(chunk_elements::<T>());
        let mut chunk = Self {
            inputs: [&[]; INPUTS_MAX],
            first_index: first_index.wrapping_add(at as u64),
            len,
        };
        for (part, input) in chunk.inputs.iter_mut().zip(inputs) {
            *part = &input[at..at + len];
        }
        chunk
    }
}

/// Allocates a register. Allocators put registers of 4 KiB one after the other, where a load from one waits
/// for stores to the next at the same offset into a page ("4K aliasing"); the padding separates them.
fn register<T: Arithmetic>() -> Vec<T> {
    let mut register = Vec::with_capacity((CHUNK_BYTES + PADDING_BYTES) / size_of::<T>());
    register.resize(chunk_elements::<T>(), T::ZERO);
    register
}

const fn chunk_elements<T>() -> usize {
    CHUNK_BYTES / size_of::<T>()
}

impl<T: Element> Evaluator<T> {
    /// Prepares a program with the parameters of a call; computes what depends on these alone.
    ///
    /// # Errors
    /// The program is for another element type or needs another number of parameters, or the type cannot
    /// hold a parameter.
    pub fn new(program: &Program, parameters: &[f64]) -> Result<Self, ProgramError> {
        if program.dtype() != T::TYPE {
            return Err(ProgramError::WrongDType {
                program: program.dtype(),
                elements: T::TYPE,
            });
        }
        if program.parameters() != parameters.len() {
            return Err(ProgramError::ParameterCount {
                needed: program.parameters(),
                given: parameters.len(),
            });
        }
        let converted = parameters.iter().enumerate().map(|(parameter, &value)| {
            T::from_parameter(value).ok_or(ProgramError::Parameter {
                parameter,
                value,
                dtype: T::TYPE,
            })
        });
        let plan = Plan::new(program, &converted.collect::<Result<Vec<T>, _>>()?)?;
        Ok(Self {
            registers: (0..plan.registers).map(|_| register()).collect(),
            plan,
            inputs: program.inputs(),
            target: Vec::new(),
        })
    }

    /// Computes one output for each element. `first_index` is the absolute index of the first element.
    ///
    /// The bits do not depend on how a caller cuts the slices.
    ///
    /// # Panics
    /// If fewer inputs are passed than the program needs, or one has another length than `out`.
    pub fn map(&mut self, inputs: &[&[T]], first_index: u64, out: &mut [T]) {
        let inputs = self.checked(inputs, self.inputs, out.len());
        let count = out.len();
        for (number, out) in out.chunks_mut(chunk_elements::<T>()).enumerate() {
            let at = number * chunk_elements::<T>();
            self.map_chunk(&Chunk::at(inputs, first_index, at, count), out);
        }
    }

    /// Computes one output for each element in the place of input x; `others` are y and z. The bits are those
    /// of [`Self::map`]. The first call allocates 4 KiB.
    ///
    /// # Panics
    /// If fewer inputs are passed than the program needs, or one has another length than `target`.
    pub fn map_in_place(&mut self, target: &mut [T], others: &[&[T]], first_index: u64) {
        let others = self.checked(others, self.inputs.saturating_sub(1), target.len());
        let count = target.len();
        let mut copy = mem::take(&mut self.target);
        for (number, out) in target.chunks_mut(chunk_elements::<T>()).enumerate() {
            let at = number * chunk_elements::<T>();
            let chunk = Chunk::at(others, first_index, at, count);
            copy.clear();
            copy.extend_from_slice(out);
            let [y, z, _] = chunk.inputs;
            let inputs = [&copy[..], y, z];
            self.map_chunk(&Chunk { inputs, ..chunk }, out);
        }
        self.target = copy;
    }

    /// Reduces the values of `count` elements and combines the result with `into`.
    ///
    /// The bits of a floating point sum depend on how the elements are cut into calls: element i of a call
    /// belongs to lane i modulo 16 (F32) or 8 (F64). They are reproducible if each block of a table is one
    /// call into a partial result of its own, and those are combined in order. All other reductions, and
    /// sums of integers, do not depend on the cut.
    ///
    /// # Panics
    /// If fewer inputs are passed than the program needs, one has another length than `count`, or `into` is
    /// a partial result of another reduction or element type.
    pub fn reduce(
        &mut self,
        inputs: &[&[T]],
        first_index: u64,
        count: usize,
        reduction: Reduction,
        into: &mut Partial,
    ) {
        assert!(
            into.reduction() == reduction && into.dtype() == T::TYPE,
            "{reduction:?} over {:?} reduced into {:?} over {:?}",
            T::TYPE,
            into.reduction(),
            into.dtype()
        );
        let inputs = self.checked(inputs, self.inputs, count);
        let starts = (0..count).step_by(chunk_elements::<T>());
        let chunks = starts.map(|at| Chunk::at(inputs, first_index, at, count));
        match reduction {
            Reduction::Sum => {
                let mut sums = T::Sums::default();
                chunks.for_each(|chunk| self.sum_chunk(&chunk, &mut sums));
                into.add_total(sums.total());
            }
            Reduction::Min => {
                let best = self.extreme(chunks, T::GREATEST, T::smaller);
                into.add_extreme(best.widened(), count as u64);
            }
            Reduction::Max => {
                let least = match on(Mutant::MaximumFromZero) {
                    true => T::ZERO,
                    false => T::LEAST,
                };
                let best = self.extreme(chunks, least, T::larger);
                into.add_extreme(best.widened(), count as u64);
            }
            Reduction::And => {
                let mut all = true;
                for chunk in chunks {
                    let values = self.values(&chunk);
                    all &= values
                        .iter()
                        .fold(true, |all, value| all & (*value != T::ZERO));
                }
                into.add_all(all);
            }
        }
    }

    /// Checks the number and lengths of inputs; returns those that the program reads.
    fn checked<'i>(&self, inputs: &'i [&'i [T]], needed: usize, count: usize) -> &'i [&'i [T]] {
        assert!(
            inputs.len() >= needed,
            "{} inputs for a program that needs {needed}",
            inputs.len()
        );
        let inputs = &inputs[..needed];
        for (number, input) in inputs.iter().enumerate() {
            assert_eq!(input.len(), count, "elements of input {number}");
        }
        inputs
    }

    fn map_chunk(&mut self, chunk: &Chunk<'_, T>, out: &mut [T]) {
        match self.plan.result {
            Stream::Input(input) => out.copy_from_slice(chunk.inputs[input]),
            Stream::Register(_) => {
                let last = self.plan.steps.len() - 1;
                self.run(last, chunk);
                self.execute(last, chunk, out);
            }
        }
        if self.plan.numbers {
            T::canonicalize(out);
        }
    }

    /// Runs the first `steps` steps into their registers.
    fn run(&mut self, steps: usize, chunk: &Chunk<'_, T>) {
        for step in 0..steps {
            let register = self.plan.steps[step].register;
            let mut out = mem::take(&mut self.registers[register]);
            self.execute(step, chunk, &mut out[..chunk.len]);
            self.registers[register] = out;
        }
    }

    fn execute(&self, step: usize, chunk: &Chunk<'_, T>, out: &mut [T]) {
        match self.plan.steps[step].kernel {
            Kernel::Index => {
                for (offset, out) in out.iter_mut().enumerate() {
                    *out = T::from_index(chunk.first_index.wrapping_add(offset as u64));
                }
            }
            Kernel::Fill(value) => out.fill(value),
            Kernel::Unary(kernel, a) => kernel(out, self.stream(a, chunk)),
            Kernel::Binary(kernel, a, b) => {
                kernel(out, self.source(a, chunk), self.source(b, chunk));
            }
            Kernel::Ternary(kernel, a, b, c) => kernel(
                out,
                self.stream(a, chunk),
                self.source(b, chunk),
                self.source(c, chunk),
            ),
        }
    }

    fn stream<'c>(&'c self, stream: Stream, chunk: &Chunk<'c, T>) -> &'c [T] {
        match stream {
            Stream::Register(register) => &self.registers[register][..chunk.len],
            Stream::Input(input) => chunk.inputs[input],
        }
    }

    fn source<'c>(&'c self, argument: Argument<T>, chunk: &Chunk<'c, T>) -> Source<'c, T> {
        match argument {
            Argument::Stream(stream) => Source::Slice(self.stream(stream, chunk)),
            Argument::Scalar(scalar) => Source::Scalar(scalar),
        }
    }

    /// Computes the values of a chunk, without a copy if the program is an input.
    fn values<'c>(&'c mut self, chunk: &Chunk<'c, T>) -> &'c [T] {
        self.run(self.plan.steps.len(), chunk);
        self.stream(self.plan.result, chunk)
    }

    /// Adds the values of a chunk; the products of a program that ends with one are not stored.
    fn sum_chunk(&mut self, chunk: &Chunk<'_, T>, sums: &mut T::Sums) {
        match self.plan.product {
            Some((a, b)) => {
                self.run(self.plan.steps.len() - 1, chunk);
                sums.add_products(self.stream(a, chunk), self.stream(b, chunk));
            }
            None => sums.add(self.values(chunk)),
        }
    }

    fn extreme<'i>(
        &mut self,
        chunks: impl Iterator<Item = Chunk<'i, T>>,
        neutral: T,
        better: impl Fn(T, T) -> T,
    ) -> T
    where
        T: 'i,
    {
        let mut lanes = [neutral; LANES];
        for chunk in chunks {
            let (blocks, rest) = self.values(&chunk).as_chunks::<LANES>();
            let mut current = lanes;
            for block in blocks {
                for (lane, &value) in current.iter_mut().zip(block) {
                    *lane = better(*lane, value);
                }
            }
            for (lane, &value) in current.iter_mut().zip(rest) {
                *lane = better(*lane, value);
            }
            lanes = current;
        }
        lanes.into_iter().fold(neutral, better)
    }
}
