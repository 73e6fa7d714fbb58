//! Random expression trees: their text, and their value for one element.

use std::fmt;

use proptest::prelude::*;
use proptest::strategy::Union;

use crate::number::Number;

/// Expression as a tree. Booleans and numbers share the type; strategies keep them apart.
#[derive(Debug, Clone)]
pub(crate) enum Tree {
    Input(usize),
    Parameter(usize),
    Index,
    Literal(String),
    Unary(&'static str, Box<Self>),
    Binary(&'static str, Box<Self>, Box<Self>),
    If(Box<Self>, Box<Self>, Box<Self>),
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic());
        match self {
            Self::Input(input) => f.write_str(["x", "y", "z"][*input]),
            Self::Parameter(parameter) => write!(f, "p{parameter}"),
            Self::Index => f.write_str("index"),
            Self::Literal(text) => f.write_str(text),
            Self::Unary(name, a) if *name == "not" => write!(f, "(not {a})"),
            Self::Unary(name, a) if word(name) => write!(f, "{name}({a})"),
            Self::Unary(name, a) => write!(f, "({name} {a})"),
            Self::Binary(name, a, b) if word(name) && !matches!(*name, "and" | "or") => {
                write!(f, "{name}({a}, {b})")
            }
            // A minus sign before `^` belongs to the power.
            Self::Binary("^", a, b) => write!(f, "(({a}) ^ {b})"),
            Self::Binary(name, a, b) => write!(f, "({a} {name} {b})"),
            Self::If(c, a, b) => write!(f, "if({c}, {a}, {b})"),
        }
    }
}

/// Value of a subexpression.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<T> {
    Number(T),
    Boolean(bool),
}

impl<T: Number> Value<T> {
    pub(crate) fn number(self) -> T {
        match self {
            Self::Number(number) => number,
            Self::Boolean(truth) => T::of_truth(truth),
        }
    }

    fn truth(self) -> bool {
        match self {
            Self::Boolean(truth) => truth,
            Self::Number(number) => panic!("{number:?} used as a boolean"),
        }
    }
}

impl Tree {
    /// Walks the tree for one element.
    pub(crate) fn value<T: Number>(
        &self,
        inputs: [T; 3],
        parameters: &[T],
        index: u64,
    ) -> Value<T> {
        let walk = |tree: &Self| tree.value(inputs, parameters, index);
        match self {
            Self::Input(input) => Value::Number(inputs[*input]),
            Self::Parameter(parameter) => Value::Number(parameters[*parameter]),
            Self::Index => Value::Number(T::of_index(index)),
            Self::Literal(text) => Value::Number(T::of_text(text)),
            Self::Unary("not", a) => Value::Boolean(!walk(a).truth()),
            Self::Unary("is_nan", a) => Value::Boolean(walk(a).number().is_nan()),
            Self::Unary(name, a) => Value::Number(T::unary(name, walk(a).number())),
            Self::Binary("and", a, b) => Value::Boolean(walk(a).truth() & walk(b).truth()),
            Self::Binary("or", a, b) => Value::Boolean(walk(a).truth() | walk(b).truth()),
            Self::Binary("^", a, b) if matches!(&**b, Self::Literal(text) if text == "2") => {
                let a = walk(a).number();
                Value::Number(T::binary("*", a, a))
            }
            Self::Binary(name, a, b) => {
                let (a, b) = (walk(a).number(), walk(b).number());
                match *name {
                    "<" => Value::Boolean(a < b),
                    "<=" => Value::Boolean(a <= b),
                    ">" => Value::Boolean(a > b),
                    ">=" => Value::Boolean(a >= b),
                    "==" => Value::Boolean(a == b),
                    "!=" => Value::Boolean(a != b),
                    _ => Value::Number(T::binary(name, a, b)),
                }
            }
            Self::If(c, a, b) => {
                let (then, otherwise) = (walk(a), walk(b));
                if walk(c).truth() { then } else { otherwise }
            }
        }
    }
}

/// Levels of operations in a random tree.
const DEPTH: usize = 4;
/// Parameters that random trees read.
pub(crate) const PARAMETERS: usize = 3;

fn binary(
    names: &'static [&'static str],
    operand: &BoxedStrategy<Tree>,
) -> impl Strategy<Value = Tree> + use<> {
    (
        proptest::sample::select(names),
        operand.clone(),
        operand.clone(),
    )
        .prop_map(|(name, a, b)| Tree::Binary(name, a.into(), b.into()))
}

fn unary(
    names: &'static [&'static str],
    operand: &BoxedStrategy<Tree>,
) -> impl Strategy<Value = Tree> + use<> {
    (proptest::sample::select(names), operand.clone())
        .prop_map(|(name, a)| Tree::Unary(name, a.into()))
}

fn select(
    condition: &BoxedStrategy<Tree>,
    branch: &BoxedStrategy<Tree>,
) -> impl Strategy<Value = Tree> + use<> {
    (condition.clone(), branch.clone(), branch.clone())
        .prop_map(|(c, a, b)| Tree::If(c.into(), a.into(), b.into()))
}

/// Trees of numbers and of booleans for the type's operations.
pub(crate) fn trees<T: Number>() -> BoxedStrategy<Tree> {
    let mut leaves = vec![
        (0..3_usize).prop_map(Tree::Input).boxed(),
        (0..3_usize).prop_map(Tree::Input).boxed(),
        (0..PARAMETERS).prop_map(Tree::Parameter).boxed(),
        proptest::sample::select(T::LITERALS)
            .prop_map(|text| Tree::Literal(text.to_owned()))
            .boxed(),
    ];
    if T::HAS_INDEX {
        leaves.push(Just(Tree::Index).boxed());
    }
    let leaf = Union::new(leaves).boxed();
    let comparisons = &["<", "<=", ">", ">=", "==", "!="];
    let mut number = leaf.clone();
    let mut boolean = binary(comparisons, &leaf).boxed();
    for _ in 1..DEPTH {
        let mut booleans = vec![
            binary(comparisons, &number).boxed(),
            binary(&["and", "or"], &boolean).boxed(),
            unary(&["not"], &boolean).boxed(),
            select(&boolean, &boolean).boxed(),
        ];
        if T::FLOAT {
            booleans.push(unary(&["is_nan"], &number).boxed());
        }
        let numbers = [
            (1, leaf.clone()),
            (4, binary(&["+", "-", "*"], &number).boxed()),
            (2, binary(T::BINARY, &number).boxed()),
            (3, unary(T::UNARY, &number).boxed()),
            (1, select(&boolean, &number).boxed()),
        ];
        number = Union::new_weighted(numbers.to_vec()).boxed();
        boolean = Union::new(booleans).boxed();
    }
    prop_oneof![4 => number, 1 => boolean].boxed()
}
