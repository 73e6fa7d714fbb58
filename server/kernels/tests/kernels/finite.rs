//! NaN and infinity are detected in every lane.

use tidewater_kernels::RowKernel;
use tidewater_protocol::table::{DType, Optimizer};

use crate::{bytes32, bytes64};

#[test]
fn every_lane_is_looked_at() {
    for dim in 1..=130 {
        let narrow = RowKernel::new(&Optimizer::None, DType::F32, dim).unwrap();
        let wide = RowKernel::new(&Optimizer::None, DType::F64, dim).unwrap();
        let mut row = vec![0.0f64; dim];
        for lane in 0..dim {
            row[lane] = [f64::MIN_POSITIVE, -0.0, -1.0, f64::MAX][lane % 4];
        }
        let mut row32: Vec<f32> = row.iter().map(|&x| x.clamp(-1.0, 3e38) as f32).collect();
        assert!(narrow.all_finite(&bytes32(&row32)) && wide.all_finite(&bytes64(&row)));
        for lane in 0..dim {
            // Quiet and signalling NaN of both signs, the infinities.
            for bits in [0x7fc0_0000u32, 0xff80_0001, 0x7f80_0000, 0xff80_0000] {
                let kept = std::mem::replace(&mut row32[lane], f32::from_bits(bits));
                assert!(
                    !narrow.all_finite(&bytes32(&row32)),
                    "{bits:x} in {lane} of {dim}"
                );
                row32[lane] = kept;
            }
            for bits in [0x7ff8 << 48, (0xfff0 << 48) + 1, 0x7ff0 << 48, 0xfff0 << 48] {
                let kept = std::mem::replace(&mut row[lane], f64::from_bits(bits));
                assert!(
                    !wide.all_finite(&bytes64(&row)),
                    "{bits:x} in {lane} of {dim}"
                );
                row[lane] = kept;
            }
        }
    }
}

#[test]
fn integers_are_finite() {
    for dtype in [DType::I32, DType::I64] {
        let kernel = RowKernel::new(&Optimizer::None, dtype, 8).unwrap();
        assert!(kernel.all_finite(&vec![0xff; kernel.row_bytes()]));
    }
}
