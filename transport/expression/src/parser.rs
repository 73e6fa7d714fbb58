//! Precedence-climbing parser that emits a program without building a tree.

use tidewater_protocol::table::DType;

use crate::error::ExpressionError;
use crate::lexer::{Lexer, Token};
use crate::operation::{Instruction, Kind, Mismatch, Operand, Operation};
use crate::program::{Program, index_is_exact};
use crate::{CONSTANTS_MAX, NESTING_MAX, OPERATIONS_MAX, PARAMETERS_MAX, TEXT_BYTES_MAX};

/// Binding strength of operators; a larger one binds tighter.
mod strength {
    pub(super) const LOWEST: u8 = 1;
    pub(super) const OR: u8 = 1;
    pub(super) const AND: u8 = 2;
    pub(super) const NOT: u8 = 3;
    pub(super) const COMPARISON: u8 = 4;
    pub(super) const SUM: u8 = 5;
    pub(super) const PRODUCT: u8 = 6;
    pub(super) const SIGN: u8 = 7;
    pub(super) const POWER: u8 = 8;
}

/// Operator between two operands.
#[derive(Clone, Copy)]
struct Infix {
    operation: Operation,
    strength: u8,
    /// `a > b` is computed as `b < a`.
    swapped: bool,
}

impl Infix {
    fn of(token: Token<'_>) -> Option<Self> {
        let (Token::Symbol(text) | Token::Name(text)) = token else {
            return None;
        };
        let (operation, strength) = match text {
            "or" => (Operation::Or, strength::OR),
            "and" => (Operation::And, strength::AND),
            "<" | ">" => (Operation::Less, strength::COMPARISON),
            "<=" | ">=" => (Operation::LessOrEqual, strength::COMPARISON),
            "==" => (Operation::Equal, strength::COMPARISON),
            "!=" => (Operation::NotEqual, strength::COMPARISON),
            "+" => (Operation::Add, strength::SUM),
            "-" => (Operation::Subtract, strength::SUM),
            "*" => (Operation::Multiply, strength::PRODUCT),
            "/" => (Operation::Divide, strength::PRODUCT),
            "^" => (Operation::Power, strength::POWER),
            _ => return None,
        };
        Some(Self {
            operation,
            strength,
            swapped: matches!(text, ">" | ">="),
        })
    }
}

/// Subexpression that the program computes.
#[derive(Debug, Clone, Copy)]
struct Node {
    operand: Operand,
    kind: Kind,
    /// Byte offset of its first token.
    position: usize,
}

impl Program {
    /// Parses an expression for elements of type `dtype`; the crate's documentation has the grammar.
    ///
    /// # Errors
    /// The text is no expression, or the element type cannot compute it. Every error has the byte position.
    pub fn parse(text: &str, dtype: DType) -> Result<Self, ExpressionError> {
        parse(text, dtype)
    }
}

fn parse(text: &str, dtype: DType) -> Result<Program, ExpressionError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ExpressionError::TooLong { bytes: text.len() });
    }
    let mut lexer = Lexer::new(text);
    let (position, token) = lexer.next_token()?;
    let mut parser = Parser {
        dtype,
        lexer,
        token,
        position,
        nesting: 0,
        constants: Vec::new(),
        instructions: Vec::new(),
    };
    let result = parser.expression(strength::LOWEST)?;
    if parser.token != Token::End {
        return Err(parser.unexpected("an operator or the end of the text"));
    }
    let program = Program::validated(dtype, parser.constants, parser.instructions, result.operand);
    Ok(program.unwrap_or_else(|error| panic!("the parser made an invalid program: {error}")))
}

struct Parser<'a> {
    dtype: DType,
    lexer: Lexer<'a>,
    /// Token that the next step consumes.
    token: Token<'a>,
    /// Byte offset of `token`.
    position: usize,
    nesting: usize,
    constants: Vec<u64>,
    instructions: Vec<Instruction>,
}

impl<'a> Parser<'a> {
    fn advance(&mut self) -> Result<(), ExpressionError> {
        (self.position, self.token) = self.lexer.next_token()?;
        Ok(())
    }

    fn unexpected(&self, expected: &'static str) -> ExpressionError {
        ExpressionError::Unexpected {
            position: self.position,
            expected,
            found: self.token.quoted(),
        }
    }

    fn expect(&mut self, symbol: &'static str, name: &'static str) -> Result<(), ExpressionError> {
        if self.token != Token::Symbol(symbol) {
            return Err(self.unexpected(name));
        }
        self.advance()
    }

    /// Parses operators that bind at least as tightly as `least`. Between two levels of nesting it calls
    /// itself at most once for each strength.
    fn expression(&mut self, least: u8) -> Result<Node, ExpressionError> {
        let mut left = self.prefix()?;
        while let Some(infix) = Infix::of(self.token).filter(|infix| infix.strength >= least) {
            let position = self.position;
            self.advance()?;
            if infix.operation == Operation::Power && self.square()? {
                left = self.emit(Operation::Multiply, &[left, left], position)?;
                continue;
            }
            let right = if infix.operation == Operation::Power {
                self.nested(position, |parser| parser.expression(strength::POWER))?
            } else {
                self.expression(infix.strength + 1)?
            };
            let operands = if infix.swapped {
                [right, left]
            } else {
                [left, right]
            };
            left = Node {
                position: left.position,
                ..self.emit(infix.operation, &operands, position)?
            };
        }
        Ok(left)
    }

    /// Consumes the exponent 2, so that a square is a product: faster, and there for integers.
    fn square(&mut self) -> Result<bool, ExpressionError> {
        let is_two = matches!(self.token, Token::Number(text)
            if number_bits(text, false, self.dtype) == number_bits("2", false, self.dtype));
        let square = is_two && !self.power_follows()?;
        if square {
            self.advance()?;
        }
        Ok(square)
    }

    /// Whether `^` follows the current token.
    fn power_follows(&self) -> Result<bool, ExpressionError> {
        let mut ahead = self.lexer;
        Ok(ahead.next_token()?.1 == Token::Symbol("^"))
    }

    /// Runs `parse` one level deeper; `position` is that of the token which opens the level.
    fn nested<R>(
        &mut self,
        position: usize,
        parse: impl FnOnce(&mut Self) -> Result<R, ExpressionError>,
    ) -> Result<R, ExpressionError> {
        if self.nesting == NESTING_MAX {
            return Err(ExpressionError::TooDeep { position });
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// Parses an operand with the signs before it.
    fn prefix(&mut self) -> Result<Node, ExpressionError> {
        let position = self.position;
        match self.token {
            Token::Symbol("-") => {
                self.advance()?;
                if let Some(constant) = self.negative_number(position)? {
                    return Ok(constant);
                }
                let inner = self.nested(position, |parser| parser.expression(strength::SIGN))?;
                self.emit(Operation::Negate, &[inner], position)
            }
            Token::Name("not") => {
                self.advance()?;
                let inner = self.nested(position, |parser| parser.expression(strength::NOT))?;
                self.emit(Operation::Not, &[inner], position)
            }
            Token::Symbol("(") => {
                self.advance()?;
                let inner = self.nested(position, |parser| parser.expression(strength::LOWEST))?;
                self.expect(")", "an operator or `)`")?;
                Ok(Node { position, ..inner })
            }
            Token::Number(text) => {
                self.advance()?;
                self.number(text, position, false)
            }
            Token::Name(name) => self.name(name),
            Token::Symbol(_) | Token::End => {
                Err(self.unexpected("a number, an input, a parameter, a function or `(`"))
            }
        }
    }

    /// Parses the number after a minus sign, so that the least integer can be written. In `-2 ^ 2` the power
    /// comes first: that is no negative number.
    fn negative_number(&mut self, position: usize) -> Result<Option<Node>, ExpressionError> {
        let Token::Number(text) = self.token else {
            return Ok(None);
        };
        if self.power_follows()? {
            return Ok(None);
        }
        self.advance()?;
        self.number(text, position, true).map(Some)
    }

    fn number(
        &mut self,
        text: &str,
        position: usize,
        negative: bool,
    ) -> Result<Node, ExpressionError> {
        let bits = number_bits(text, negative, self.dtype).ok_or(ExpressionError::Number {
            position,
            text: if negative {
                format!("-{text}")
            } else {
                text.to_owned()
            },
            dtype: self.dtype,
        })?;
        self.constant(bits, position)
    }

    /// Parses a name and, if it is a function, its arguments.
    fn name(&mut self, name: &'a str) -> Result<Node, ExpressionError> {
        let position = self.position;
        if let Some(operation) = Operation::from_function(name) {
            self.advance()?;
            return self.call(operation, position);
        }
        let operand = match name {
            "x" => Operand::Input(0),
            "y" => Operand::Input(1),
            "z" => Operand::Input(2),
            "index" if index_is_exact(self.dtype) => Operand::Index,
            "index" => {
                return Err(ExpressionError::InexactIndex {
                    position,
                    dtype: self.dtype,
                });
            }
            "inf" | "nan" => {
                let bits = float_bits(name, self.dtype).ok_or(ExpressionError::NeedsFloat {
                    position,
                    operation: if name == "inf" { "inf" } else { "nan" },
                    dtype: self.dtype,
                })?;
                self.advance()?;
                return self.constant(bits, position);
            }
            _ => Operand::Parameter(parameter_number(name).ok_or_else(|| {
                ExpressionError::UnknownName {
                    position,
                    name: name.to_owned(),
                }
            })?),
        };
        self.advance()?;
        Ok(Node {
            operand,
            kind: Kind::Number,
            position,
        })
    }

    fn call(&mut self, operation: Operation, position: usize) -> Result<Node, ExpressionError> {
        self.expect("(", "`(` after the name of a function")?;
        let arguments = self.nested(position, |parser| {
            let mut arguments = Vec::with_capacity(operation.arity());
            while parser.token != Token::Symbol(")") || !arguments.is_empty() {
                arguments.push(parser.expression(strength::LOWEST)?);
                if parser.token != Token::Symbol(",") {
                    break;
                }
                parser.advance()?;
            }
            Ok(arguments)
        })?;
        self.expect(")", "an operator, `,` or `)`")?;
        if arguments.len() != operation.arity() {
            return Err(ExpressionError::ArgumentCount {
                position,
                function: operation.name(),
                expected: operation.arity(),
                found: arguments.len(),
            });
        }
        self.emit(operation, &arguments, position)
    }

    fn constant(&mut self, bits: u64, position: usize) -> Result<Node, ExpressionError> {
        let known = self.constants.iter().position(|&known| known == bits);
        let index = known.unwrap_or(self.constants.len());
        if index == CONSTANTS_MAX {
            return Err(ExpressionError::TooManyConstants { position });
        }
        if known.is_none() {
            self.constants.push(bits);
        }
        Ok(Node {
            operand: Operand::Constant(index as u8),
            kind: Kind::Number,
            position,
        })
    }

    /// Appends an operation, or finds the equal one that is there already.
    fn emit(
        &mut self,
        operation: Operation,
        nodes: &[Node],
        position: usize,
    ) -> Result<Node, ExpressionError> {
        let kinds: Vec<Kind> = nodes.iter().map(|node| node.kind).collect();
        let kind = operation.result(self.dtype, &kinds);
        let kind = kind.map_err(|mismatch| match mismatch {
            Mismatch::NeedsFloat => ExpressionError::NeedsFloat {
                position,
                operation: operation.name(),
                dtype: self.dtype,
            },
            Mismatch::Operand { operand, expected } => ExpressionError::WrongKind {
                position: nodes[operand].position,
                expected,
                found: nodes[operand].kind,
            },
        })?;
        let operands: Vec<Operand> = nodes.iter().map(|node| node.operand).collect();
        let instruction = Instruction::new(operation, &operands);
        let known = self
            .instructions
            .iter()
            .position(|known| *known == instruction);
        let index = known.unwrap_or(self.instructions.len());
        if index == OPERATIONS_MAX {
            return Err(ExpressionError::TooManyOperations { position });
        }
        if known.is_none() {
            self.instructions.push(instruction);
        }
        Ok(Node {
            operand: Operand::Value(index as u8),
            kind,
            position,
        })
    }
}

/// Returns the number of a parameter `p0` to `p15`; other spellings are no parameters.
fn parameter_number(name: &str) -> Option<u8> {
    (0..PARAMETERS_MAX as u8).find(|number| name == format!("p{number}"))
}

/// Returns the bits of a number in the element type; `None` if the type cannot hold it.
fn number_bits(text: &str, negative: bool, dtype: DType) -> Option<u64> {
    if dtype.is_float() {
        let bits = float_bits(text, dtype)?;
        let infinite = float_bits("inf", dtype)?;
        let sign = 1 << (8 * dtype.size() - 1);
        return (bits != infinite).then_some(if negative { bits | sign } else { bits });
    }
    let magnitude = text.parse::<i128>().ok()?;
    let value = i64::try_from(if negative { -magnitude } else { magnitude }).ok()?;
    match dtype {
        DType::I32 => i32::try_from(value)
            .ok()
            .map(|value| u64::from(value as u32)),
        _ => Some(value as u64),
    }
}

/// Returns the bits of a text that Rust's float parser reads, rounded once; `None` for integer types.
fn float_bits(text: &str, dtype: DType) -> Option<u64> {
    match dtype {
        DType::F32 if text == "nan" => Some(u64::from(crate::NAN_F32.to_bits())),
        DType::F64 if text == "nan" => Some(crate::NAN_F64.to_bits()),
        DType::F32 => text.parse::<f32>().ok().map(|value| value.to_bits().into()),
        DType::F64 => text.parse::<f64>().ok().map(f64::to_bits),
        DType::I32 | DType::I64 => None,
    }
}
