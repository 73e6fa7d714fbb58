//! Loops over slices, for each shape of operands.

/// Operand of a kernel: one value for each element, or one for all.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a, T> {
    Slice(&'a [T]),
    Scalar(T),
}

pub(crate) type Unary<T> = fn(&mut [T], &[T]);
pub(crate) type Binary<T> = fn(&mut [T], Source<'_, T>, Source<'_, T>);
/// The first operand is a slice in every use.
pub(crate) type Ternary<T> = fn(&mut [T], &[T], Source<'_, T>, Source<'_, T>);

/// Writes `f(a)` for each element.
pub(crate) fn each<T: Copy>(out: &mut [T], a: &[T], f: impl Fn(T) -> T) {
    for (out, &a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
}

/// Writes `f(a, b)` for each element.
pub(crate) fn pairs<T: Copy>(
    out: &mut [T],
    a: Source<'_, T>,
    b: Source<'_, T>,
    f: impl Fn(T, T) -> T,
) {
    match (a, b) {
        (Source::Slice(a), Source::Slice(b)) => {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = f(a, b);
            }
        }
        (Source::Slice(a), Source::Scalar(b)) => each(out, a, |a| f(a, b)),
        (Source::Scalar(a), Source::Slice(b)) => each(out, b, |b| f(a, b)),
        (Source::Scalar(a), Source::Scalar(b)) => out.fill(f(a, b)),
    }
}

/// Writes `f(a, b, c)` for each element.
pub(crate) fn triples<T: Copy>(
    out: &mut [T],
    a: &[T],
    b: Source<'_, T>,
    c: Source<'_, T>,
    f: impl Fn(T, T, T) -> T,
) {
    match (b, c) {
        (Source::Slice(b), Source::Slice(c)) => {
            for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = f(a, b, c);
            }
        }
        (Source::Slice(b), Source::Scalar(c)) => {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = f(a, b, c);
            }
        }
        (Source::Scalar(b), Source::Slice(c)) => {
            for ((out, &a), &c) in out.iter_mut().zip(a).zip(c) {
                *out = f(a, b, c);
            }
        }
        (Source::Scalar(b), Source::Scalar(c)) => each(out, a, |a| f(a, b, c)),
    }
}
