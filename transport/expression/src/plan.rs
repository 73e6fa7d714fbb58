//! Turns a program with its parameters into the steps of an evaluator.
//!
//! Operations on scalars alone are computed here, a product that one sum reads is fused with it (without
//! contraction: both operations round), and results share registers where their lives do not overlap.

use crate::element::Arithmetic;
use crate::error::ProgramError;
use crate::kernels::{Triple, binary, counted, ternary, unary};
use crate::loops::{Binary, Source, Ternary, Unary};
use crate::operation::{Kind, Operand, Operation};
use crate::program::Program;

/// Operand with a value for each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Register(usize),
    Input(usize),
}

/// Operand with a value for each element, or one for all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<T> {
    Stream(Stream),
    Scalar(T),
}

/// Work of a step on one chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kernel<T> {
    Index,
    Fill(T),
    Unary(Unary<T>, Stream),
    Binary(Binary<T>, Argument<T>, Argument<T>),
    Ternary(Ternary<T>, Stream, Argument<T>, Argument<T>),
}

/// Kernel and the register of its result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<T> {
    pub(crate) kernel: Kernel<T>,
    pub(crate) register: usize,
}

/// Steps of a program; the last one computes the result unless that is an input.
#[derive(Debug, Clone)]
pub(crate) struct Plan<T> {
    pub(crate) steps: Vec<Step<T>>,
    pub(crate) registers: usize,
    pub(crate) result: Stream,
    /// Factors of the last step, if that is a product of two streams.
    pub(crate) product: Option<(Stream, Stream)>,
    /// Whether results are numbers, which can be NaN; truth values end as 1 and 0.
    pub(crate) numbers: bool,
}

/// Operand of a node.
#[derive(Debug, Clone, Copy)]
enum Value<T> {
    Scalar(T),
    Input(usize),
    Index,
    Node(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Plain(Operation),
    Triple(Triple),
}

/// Operation with at least one operand that is no scalar.
#[derive(Debug, Clone, Copy)]
struct Node<T> {
    action: Action,
    operands: [Value<T>; 3],
    arity: usize,
}

impl<T: Copy> Node<T> {
    fn operands(&self) -> &[Value<T>] {
        &self.operands[..self.arity]
    }
}

impl<T: Arithmetic> Plan<T> {
    pub(crate) fn new(program: &Program, parameters: &[T]) -> Result<Self, ProgramError> {
        let (mut nodes, result) = nodes(program, parameters)?;
        let mut live = live(&nodes, result);
        fuse(&mut nodes, &mut live);
        Layout::new(&nodes, &live, result).plan(program.kind() == Kind::Number)
    }
}

/// Resolves operands and computes what depends on scalars alone; returns the rest and the result.
fn nodes<T: Arithmetic>(
    program: &Program,
    parameters: &[T],
) -> Result<(Vec<Node<T>>, Value<T>), ProgramError> {
    let mut nodes = Vec::new();
    let mut values: Vec<Value<T>> = Vec::with_capacity(program.instructions().len());
    let resolve = |values: &[Value<T>], operand| match operand {
        Operand::Value(index) => values[usize::from(index)],
        Operand::Input(index) => Value::Input(index.into()),
        Operand::Parameter(index) => Value::Scalar(parameters[usize::from(index)]),
        Operand::Constant(index) => {
            Value::Scalar(T::from_constant(program.constants()[usize::from(index)]))
        }
        Operand::Index => Value::Index,
    };
    for (number, instruction) in program.instructions().iter().enumerate() {
        let operation = instruction.operation;
        let mut operands = [Value::Index; 3];
        for (slot, &operand) in operands.iter_mut().zip(instruction.operands()) {
            *slot = resolve(&values, operand);
        }
        let missing = || ProgramError::NeedsFloat {
            operation: number,
            dtype: program.dtype(),
        };
        values.push(match (operation, operands) {
            (Operation::Select, [Value::Scalar(condition), then, otherwise]) => {
                if condition.is_true() { then } else { otherwise }
            }
            (_, [Value::Scalar(a), ..]) if operation.arity() == 1 => {
                let mut out = [a];
                unary::<T>(operation).ok_or_else(missing)?(&mut out, &[a]);
                Value::Scalar(out[0])
            }
            (_, [Value::Scalar(a), Value::Scalar(b), _]) if operation.arity() == 2 => {
                let mut out = [a];
                let kernel = binary::<T>(operation).ok_or_else(missing)?;
                kernel(&mut out, Source::Scalar(a), Source::Scalar(b));
                Value::Scalar(out[0])
            }
            _ => {
                nodes.push(Node {
                    action: match operation {
                        Operation::Select => Action::Triple(Triple::Select),
                        _ => Action::Plain(operation),
                    },
                    operands,
                    arity: operation.arity(),
                });
                Value::Node(nodes.len() - 1)
            }
        });
    }
    let result = resolve(&values, program.result());
    Ok((nodes, result))
}

/// Returns which nodes the result depends on.
fn live<T: Copy>(nodes: &[Node<T>], result: Value<T>) -> Vec<bool> {
    let mut live = vec![false; nodes.len()];
    if let Value::Node(last) = result {
        live[last] = true;
    }
    for (number, node) in nodes.iter().enumerate().rev() {
        for operand in node.operands() {
            if let Value::Node(read) = *operand {
                live[read] |= live[number];
            }
        }
    }
    live
}

/// Fuses each product that one sum or difference alone reads.
fn fuse<T: Copy>(nodes: &mut [Node<T>], live: &mut [bool]) {
    let mut readers = vec![0; nodes.len()];
    for (node, _) in nodes.iter().zip(&*live).filter(|(_, live)| **live) {
        for operand in node.operands() {
            if let Value::Node(read) = *operand {
                readers[read] += 1;
            }
        }
    }
    for number in 0..nodes.len() {
        let [left, right, _] = nodes[number].operands;
        let product = |value| match value {
            Value::Node(read)
                if readers[read] == 1
                    && nodes[read].action == Action::Plain(Operation::Multiply) =>
            {
                Some(read)
            }
            _ => None,
        };
        let (read, other, triple) = match (nodes[number].action, product(left), product(right)) {
            _ if !live[number] => continue,
            (Action::Plain(Operation::Add), Some(read), _) => (read, right, Triple::MultiplyAdd),
            (Action::Plain(Operation::Add), None, Some(read)) => (read, left, Triple::MultiplyAdd),
            (Action::Plain(Operation::Subtract), Some(read), _) => {
                (read, right, Triple::MultiplySubtract)
            }
            (Action::Plain(Operation::Subtract), None, Some(read)) => {
                (read, left, Triple::SubtractProduct)
            }
            _ => continue,
        };
        let [a, b, _] = nodes[read].operands;
        let (a, b) = match a {
            Value::Scalar(_) => (b, a),
            _ => (a, b),
        };
        live[read] = false;
        nodes[number] = Node {
            action: Action::Triple(triple),
            operands: [a, b, other],
            arity: 3,
        };
    }
}

/// Assigns registers to nodes.
struct Layout<'a, T> {
    nodes: &'a [Node<T>],
    live: &'a [bool],
    result: Value<T>,
    /// Last node that reads the result of each node.
    last_reader: Vec<usize>,
    /// Register of each node that is planned.
    register_of: Vec<usize>,
    /// Register of the index, if a node reads it.
    index: Option<usize>,
    free: Vec<usize>,
    registers: usize,
}

impl<'a, T: Arithmetic> Layout<'a, T> {
    fn new(nodes: &'a [Node<T>], live: &'a [bool], result: Value<T>) -> Self {
        let mut layout = Self {
            nodes,
            live,
            result,
            last_reader: vec![0; nodes.len()],
            register_of: vec![0; nodes.len()],
            index: None,
            free: Vec::new(),
            registers: 0,
        };
        let mut reads_index = matches!(result, Value::Index);
        for (number, node) in nodes.iter().enumerate().filter(|&(number, _)| live[number]) {
            for operand in node.operands() {
                match *operand {
                    Value::Node(read) => layout.last_reader[read] = number,
                    Value::Index => reads_index = true,
                    Value::Scalar(_) | Value::Input(_) => {}
                }
            }
        }
        if reads_index {
            layout.index = Some(layout.take_register());
        }
        layout
    }

    fn take_register(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.registers += 1;
            self.registers - 1
        })
    }

    fn argument(&self, value: Value<T>) -> Argument<T> {
        match value {
            Value::Scalar(scalar) => Argument::Scalar(scalar),
            Value::Input(input) => Argument::Stream(Stream::Input(input)),
            Value::Node(read) => Argument::Stream(Stream::Register(self.register_of[read])),
            Value::Index => Argument::Stream(Stream::Register(self.index.unwrap_or_default())),
        }
    }

    fn stream(&self, value: Value<T>) -> Stream {
        match self.argument(value) {
            Argument::Stream(stream) => stream,
            Argument::Scalar(scalar) => unreachable!("an operation on {scalar:?} alone is folded"),
        }
    }

    fn kernel(&self, node: &Node<T>) -> Result<Kernel<T>, ProgramError> {
        let [a, b, c] = node.operands;
        let missing = ProgramError::NeedsFloat {
            operation: 0,
            dtype: T::TYPE,
        };
        Ok(match node.action {
            Action::Triple(triple) => Kernel::Ternary(
                ternary(triple),
                self.stream(a),
                self.argument(b),
                self.argument(c),
            ),
            Action::Plain(operation) if node.arity == 1 => {
                Kernel::Unary(unary(operation).ok_or(missing)?, self.stream(a))
            }
            Action::Plain(operation) => Kernel::Binary(
                binary(operation).ok_or(missing)?,
                self.argument(a),
                self.argument(b),
            ),
        })
    }

    fn plan(mut self, numbers: bool) -> Result<Plan<T>, ProgramError> {
        let mut steps = Vec::new();
        steps.extend(self.index.map(|register| Step {
            kernel: Kernel::Index,
            register,
        }));
        let mut product = None;
        for (number, node) in self.nodes.iter().enumerate() {
            if !self.live[number] {
                continue;
            }
            // Taken before the operands' registers are free: a step never writes what it reads.
            let register = self.take_register();
            let kernel = self.kernel(node)?;
            product = match kernel {
                Kernel::Binary(_, Argument::Stream(a), Argument::Stream(b))
                    if node.action == Action::Plain(Operation::Multiply) =>
                {
                    Some((a, b))
                }
                _ => None,
            };
            steps.push(Step { kernel, register });
            self.register_of[number] = register;
            for operand in node.operands() {
                if let Value::Node(read) = *operand
                    && self.last_reader[read] == number
                    && !self.free.contains(&self.register_of[read])
                {
                    self.free.push(self.register_of[read]);
                }
            }
        }
        let mut result = match self.result {
            Value::Scalar(scalar) => {
                let register = self.take_register();
                steps.push(Step {
                    kernel: Kernel::Fill(scalar),
                    register,
                });
                Stream::Register(register)
            }
            value => self.stream(value),
        };
        if !numbers {
            let register = self.take_register();
            steps.push(Step {
                kernel: Kernel::Unary(counted(), result),
                register,
            });
            result = Stream::Register(register);
        }
        Ok(Plan {
            steps,
            registers: self.registers,
            result,
            product,
            numbers,
        })
    }
}
