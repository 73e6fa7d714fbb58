//! Payload of a SETTINGS frame: the rule of a table, with new hyper-parameters.
//!
//! ```text
//! +0  u64 code of the rule     +8  5 x f64 hyper-parameters, unused ones +0
//! ```
//! A value has one encoding. The decoder checks the code and that unused places are zero; whether the
//! numbers are in range depends on the table, see
//! [`TableSpec::check_change`](crate::table::TableSpec::check_change).

use super::word_at;
use crate::table::Optimizer;
use crate::table::optimizer::PARAMETERS_MAX;

/// Bytes of a SETTINGS frame's payload.
pub const SETTINGS_BYTES: usize = 8 + 8 * PARAMETERS_MAX;

/// Wire code of an optimizer rule; momentum in Nesterov's form has a code of its own.
const fn code(optimizer: &Optimizer) -> u64 {
    match optimizer {
        Optimizer::None => 0,
        Optimizer::Sgd { .. } => 1,
        Optimizer::Momentum {
            nesterov: false, ..
        } => 2,
        Optimizer::Momentum { nesterov: true, .. } => 3,
        Optimizer::AdaGrad { .. } => 4,
        Optimizer::Adam { .. } => 5,
        Optimizer::Ftrl { .. } => 6,
        Optimizer::RmsProp { .. } => 7,
        Optimizer::AdamW { .. } => 8,
        Optimizer::RowAdaGrad { .. } => 9,
        Optimizer::AmsGrad { .. } => 10,
        Optimizer::AdaDelta { .. } => 11,
        Optimizer::ProximalSgd { .. } => 12,
        Optimizer::ProximalAdaGrad { .. } => 13,
    }
}

/// Encodes an optimizer rule with its hyper-parameters as the payload of a SETTINGS frame. [`decode`] refuses that of
/// [`Optimizer::None`].
pub fn encode(optimizer: &Optimizer) -> [u8; SETTINGS_BYTES] {
    let mut bytes = [0; SETTINGS_BYTES];
    let numbers = optimizer.parameters().map(|p| p.value.to_bits());
    let words = [code(optimizer)].into_iter().chain(numbers);
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Decodes the payload of a SETTINGS frame; `None` for another length, an unknown code or that of [`Optimizer::None`].
/// Also `None` for a value other than +0 in a place that the rule does not use. Ranges are not checked.
pub fn decode(bytes: &[u8]) -> Option<Optimizer> {
    if bytes.len() != SETTINGS_BYTES {
        return None;
    }
    let number = |n: usize| f64::from_bits(word_at(bytes, 8 + 8 * n));
    let [a, b, c, d, e] = std::array::from_fn(number);
    let momentum = |nesterov| Optimizer::Momentum {
        lr: a,
        mu: b,
        nesterov,
    };
    let optimizer = match word_at(bytes, 0) {
        1 => Optimizer::Sgd { lr: a },
        2 => momentum(false),
        3 => momentum(true),
        4 => Optimizer::AdaGrad { lr: a, eps: b },
        5 => Optimizer::Adam {
            lr: a,
            beta1: b,
            beta2: c,
            eps: d,
        },
        6 => Optimizer::Ftrl {
            alpha: a,
            beta: b,
            l1: c,
            l2: d,
        },
        7 => Optimizer::RmsProp {
            lr: a,
            decay: b,
            eps: c,
        },
        8 => Optimizer::AdamW {
            lr: a,
            beta1: b,
            beta2: c,
            eps: d,
            weight_decay: e,
        },
        9 => Optimizer::RowAdaGrad { lr: a, eps: b },
        10 => Optimizer::AmsGrad {
            lr: a,
            beta1: b,
            beta2: c,
            eps: d,
        },
        11 => Optimizer::AdaDelta {
            lr: a,
            rho: b,
            eps: c,
        },
        12 => Optimizer::ProximalSgd { lr: a, l1: b },
        13 => Optimizer::ProximalAdaGrad {
            lr: a,
            eps: b,
            l1: c,
        },
        _ => return None,
    };
    // Refuses a number that the rule does not have.
    (encode(&optimizer) == bytes).then_some(optimizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_encoding() {
        let of = |code: u64, numbers: [f64; PARAMETERS_MAX]| {
            let numbers = numbers.map(f64::to_bits);
            let words = [code].into_iter().chain(numbers);
            words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let counts = [1, 2, 2, 2, 4, 4, 3, 5, 2, 4, 3, 2, 3];
        for (code, count) in (1..).zip(counts) {
            let mut numbers = [0.0; PARAMETERS_MAX];
            for (n, number) in numbers.iter_mut().take(count).enumerate() {
                *number = 0.5 + n as f64;
            }
            let bytes = of(code, numbers);
            let optimizer = decode(&bytes).unwrap();
            assert_eq!(encode(&optimizer)[..], bytes, "{optimizer:?}");
            if let Some(unused) = numbers.get_mut(count) {
                *unused = -0.0;
                assert_eq!(decode(&of(code, numbers)), None, "{optimizer:?}");
            }
        }
        for code in [0, 14, u64::MAX] {
            assert_eq!(decode(&of(code, [0.0; PARAMETERS_MAX])), None);
        }
        assert_eq!(decode(&[]), None);
    }
}
