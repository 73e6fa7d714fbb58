//! Initial values: the stream that may never change, its shape, and its independence of order.

use proptest::prelude::*;
use tidewater_kernels::KernelError;
use tidewater_kernels::init::{check, fill_row};
use tidewater_protocol::table::{DType, Init};

use crate::{f32s, f64s};

const SYMMETRIC: Init = Init::Uniform {
    low: -1.0,
    high: 1.0,
};
const STANDARD: Init = Init::Normal {
    mean: 0.0,
    std: 1.0,
};

fn row(init: &Init, seed: u64, key: u64, dtype: DType, dim: usize) -> Vec<u8> {
    let mut row = vec![0xff; dim * dtype.size()];
    fill_row(init, seed, key, dtype, &mut row);
    row
}

/// Bits of saved models. A change here makes untouched rows come back different: it needs a new
/// name for the new stream, never a new number in this table.
///
/// The uniform column and, to 15 digits, the normal one come from a second implementation in
/// another language with the platform's logarithm and cosine.
#[test]
fn golden_values() {
    let golden = [
        (
            (0, 0, 0),
            0x3fe8_5a71_6359_89fa_u64,
            -0.397_667_538_444_182_23,
        ),
        ((0, 0, 1), 0x3fcb_00db_d8bc_57a8, -0.310_395_478_801_738),
        ((1, 0, 0), 0x3fe9_4283_af38_fa00, -0.113_680_197_044_969_55),
        ((0, 1, 0), 0xbfd1_a6ff_9203_8d9c, 1.386_844_427_102_837_7),
        ((42, 7, 5), 0xbfee_4b4d_3b72_0c2c, 0.033_024_915_248_132_52),
        (
            (u64::MAX, u64::MAX, 129),
            0xbfed_05ea_a2e4_10fa,
            0.390_881_037_142_728_8,
        ),
        (
            (0xdead_beef, 1 << 63, 64),
            0x3fe5_6ad0_82d7_5e96,
            -0.048_828_386_722_982_41,
        ),
        (
            (7, 123_456_789_012_345, 3),
            0x3fde_4af7_ff9a_b9b0,
            -2.374_522_151_686_893,
        ),
    ];
    for (((seed, key, column), uniform, normal), bits) in golden.into_iter().zip(NORMAL_BITS) {
        let at = |init| f64s(&row(&init, seed, key, DType::F64, 130))[column];
        assert_eq!(
            at(SYMMETRIC).to_bits(),
            uniform,
            "uniform of {seed} {key} {column}"
        );
        let got: f64 = at(STANDARD);
        assert!((got - normal).abs() < 4e-15, "{got:?} is not {normal:?}");
        assert_eq!(
            got.to_bits(),
            bits,
            "normal of {seed} {key} {column}: {:#x}",
            got.to_bits()
        );
        let narrow = f32s(&row(&STANDARD, seed, key, DType::F32, 130))[column];
        assert_eq!(narrow.to_bits(), (got as f32).to_bits());
    }
}

/// The normal draws of `golden_values`, to the last bit.
const NORMAL_BITS: [u64; 8] = [
    0xbfd9_7362_8c13_1c04,
    0xbfd3_dd84_ff91_e709,
    0xbfbd_1a25_3882_cf85,
    0x3ff6_3083_c830_bea5,
    0x3fa0_e8a4_45e3_46fb,
    0x3fd9_0431_e5c9_e4aa,
    0xbfa9_0008_c82e_ecc6,
    0xc002_ff05_7848_fb68,
];

/// 100,000 draws of each kind folded into a word: a change of one bit of any draw is detected.
#[test]
fn golden_digests() {
    let digest = |init, dtype| {
        let rows = (0..1000).flat_map(|key| row(&init, 9, key, dtype, 100));
        rows.fold(0u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    };
    let golden = [
        (SYMMETRIC, DType::F32, 0x44db_d25b_ae6d_6a96),
        (SYMMETRIC, DType::F64, 0xd20e_7d7d_4c38_262e),
        (STANDARD, DType::F32, 0x1b7a_3dc5_1c26_6e02),
        (STANDARD, DType::F64, 0xa60b_7336_46e1_dd7b),
    ];
    for (init, dtype, want) in golden {
        let got = digest(init, dtype);
        assert_eq!(got, want, "{init:?} {dtype:?}: {got:#x}");
    }
}

#[test]
fn golden_integers() {
    let first = |init, dtype| row(&init, 42, 7, dtype, 6);
    let uniform = Init::Uniform {
        low: 0.0,
        high: 1000.0,
    };
    let want = first(uniform, DType::I32);
    let want: Vec<i32> = want
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(want[5], 26);
    let wide = first(uniform, DType::I64);
    let wide: Vec<i64> = wide
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(wide, want.into_iter().map(i64::from).collect::<Vec<_>>());
}

#[test]
fn constants() {
    assert_eq!(row(&Init::Zeros, 1, 2, DType::F32, 3), [0; 12]);
    assert_eq!(
        f32s(&row(&Init::Constant(0.1), 1, 2, DType::F32, 5)),
        [0.1f32; 5]
    );
    assert_eq!(
        row(&Init::Constant(-2.0), 1, 2, DType::I64, 1),
        (-2i64).to_le_bytes()
    );
}

proptest! {
    /// A value does not depend on the order in which keys come, the length of the row, or earlier
    /// draws.
    #[test]
    fn order_does_not_matter(
        seed in any::<u64>(), keys in prop::collection::vec(any::<u64>(), 1..20),
        dim in 1usize..40, normal in any::<bool>(),
    ) {
        let init = if normal { STANDARD } else { SYMMETRIC };
        let forth: Vec<_> =
            keys.iter().map(|&key| row(&init, seed, key, DType::F64, dim)).collect();
        let back: Vec<_> =
            keys.iter().rev().map(|&key| row(&init, seed, key, DType::F64, dim + 7)).collect();
        for (short, long) in forth.iter().zip(back.iter().rev()) {
            prop_assert_eq!(short, &long[..short.len()]);
        }
    }

    #[test]
    fn uniform_keeps_its_bounds(
        seed in any::<u64>(), key in any::<u64>(), low in -1e3..1e3f64, ulps in 1u32..4,
    ) {
        // A range of a few f32: every second draw rounds to a bound.
        let high = f64::from(f32::from_bits((low as f32).abs().to_bits() + ulps));
        let low = (low as f32).abs();
        let init = Init::Uniform { low: low.into(), high };
        prop_assert_eq!(check(&init, DType::F32), Ok(()));
        for x in f32s(&row(&init, seed, key, DType::F32, 64)) {
            prop_assert!(x >= low && f64::from(x) < high, "{} not in [{}, {})", x, low, high);
        }
    }

    /// No content of a hostile table spec causes a panic.
    #[test]
    fn any_parameters_do_no_harm(a in any::<f64>(), b in any::<f64>(), seed in any::<u64>()) {
        let inits = [
            Init::Constant(a),
            Init::Uniform { low: a, high: b },
            Init::Normal { mean: a, std: b },
        ];
        for init in inits {
            for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
                let bytes = row(&init, seed, 1, dtype, 9);
                let finite = match dtype {
                    DType::F32 => f32s(&bytes).iter().all(|x| x.is_finite()),
                    DType::F64 => f64s(&bytes).iter().all(|x| x.is_finite()),
                    DType::I32 | DType::I64 => true,
                };
                prop_assert!(finite || check(&init, dtype).is_err(), "{:?} {:?}", init, dtype);
            }
        }
    }
}

/// Moments of 10^6 draws; bounds are five standard errors.
#[test]
fn moments() {
    let draws = |init| -> Vec<f64> {
        (0..10_000)
            .flat_map(|key| f64s(&row(&init, 3, key, DType::F64, 100)))
            .collect()
    };
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let variance = |x: &[f64]| {
        let centre = mean(x);
        x.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / x.len() as f64
    };
    let uniform = draws(SYMMETRIC);
    assert!(mean(&uniform).abs() < 5.0 * 0.577e-3, "{}", mean(&uniform));
    assert!((variance(&uniform) - 1.0 / 3.0).abs() < 5.0 * 0.298e-3);

    let normal = draws(Init::Normal {
        mean: 2.0,
        std: 3.0,
    });
    assert!(
        (mean(&normal) - 2.0).abs() < 5.0 * 3e-3,
        "{}",
        mean(&normal)
    );
    assert!((variance(&normal).sqrt() - 3.0).abs() < 5.0 * 2.2e-3);
    let beyond = |sigmas: f64| {
        normal
            .iter()
            .filter(|&&x| (x - 2.0).abs() > 3.0 * sigmas)
            .count() as f64
            / 1e6
    };
    assert!((beyond(1.0) - 0.317_311).abs() < 5.0 * 0.000_47);
    assert!((beyond(3.0) - 0.002_700).abs() < 5.0 * 0.000_052);

    // Neighbours in a row (which share a block) and in a column are independent.
    let correlation = |step: usize| {
        let pairs = normal.iter().zip(&normal[step..]);
        pairs.map(|(x, y)| (x - 2.0) * (y - 2.0)).sum::<f64>() / 9e6
    };
    for step in [1, 2, 100] {
        assert!(
            correlation(step).abs() < 5e-3,
            "{step}: {}",
            correlation(step)
        );
    }
}

#[test]
fn distributions_without_values_are_refused() {
    let uniform = |low, high| Init::Uniform { low, high };
    let normal = |mean, std| Init::Normal { mean, std };
    let refused = [
        (Init::Constant(f64::NAN), DType::F64),
        (Init::Constant(1e39), DType::F32),
        (Init::Constant(0.5), DType::I32),
        (Init::Constant(2_147_483_648.0), DType::I32),
        (Init::Constant(9_223_372_036_854_775_808.0), DType::I64),
        (uniform(1.0, 1.0), DType::F64),
        (uniform(1.0, 0.0), DType::F32),
        (uniform(f64::MIN, f64::MAX), DType::F64),
        (uniform(1.0 + 1e-9, 1.0 + 2e-9), DType::F32),
        (uniform(0.5, 3.0), DType::I64),
        (normal(0.0, -1.0), DType::F32),
        (normal(f64::INFINITY, 1.0), DType::F32),
        (normal(0.0, 1e38), DType::F32),
    ];
    for (init, dtype) in refused {
        assert!(
            matches!(check(&init, dtype), Err(KernelError::Init { .. })),
            "{init:?} {dtype:?}"
        );
    }
    let accepted = [
        (Init::Zeros, DType::I64),
        (Init::Constant(-7.0), DType::I64),
        (uniform(-5.0, 5.0), DType::I32),
        (uniform(1.0 + 1e-9, 1.0 + 2e-9), DType::F64),
        (normal(0.0, 0.0), DType::F32),
        (normal(0.0, 1e37), DType::F32),
    ];
    for (init, dtype) in accepted {
        assert_eq!(check(&init, dtype), Ok(()), "{init:?} {dtype:?}");
    }
}
