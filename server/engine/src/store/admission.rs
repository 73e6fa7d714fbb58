//! Admission by frequency: a key without a row gets one at its n-th push.
//!
//! Pushes are counted in a count-min sketch with conservative update (Estan and Varghese 2002): four
//! counters a key, of which the smallest counts. Keys that share all four are counted together, so a
//! key may be admitted early. Each counted push halves eight counters in turn: all of them within
//! 131,072 pushes. A key that is pushed n times within far fewer is admitted, or a few pushes later if one
//! of its counters was halved meanwhile.

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::mutants::{self, Mutant};

use super::sparse::SparseShard;

/// Number of counters of a sketch, one byte each: 1 MiB for each table and applier with an admission
/// threshold.
const COUNTERS: usize = 1 << 20;
/// Number of counters that count one key.
const HASHES: usize = 4;
/// Number of counters that one push halves, so that old pushes lose their weight.
const HALVED: usize = 8;

/// Count-min sketch of the pushes of keys without a row, for one table on one applier.
#[derive(Debug)]
pub(super) struct Admission {
    /// Number of the push of a key that creates its row, at least 2.
    pushes: u8,
    counters: Box<[u8]>,
    /// Index of the next counter to halve.
    sweep: usize,
}

impl Admission {
    /// Creates the sketch for admission at a key's push number `pushes`. `None` for 0 and 1: keys are
    /// admitted at their first push, without counting.
    pub(super) fn new(pushes: u8) -> Option<Self> {
        (pushes > 1).then(|| Self {
            pushes,
            counters: vec![0; COUNTERS].into(),
            sweep: 0,
        })
    }

    /// Counts a push of a key without a row. Returns whether the key's count has reached the threshold: the
    /// caller then creates the row.
    pub(super) fn count(&mut self, key: u64) -> bool {
        for counter in &mut self.counters[self.sweep..self.sweep + HALVED] {
            *counter /= 2;
        }
        self.sweep = (self.sweep + HALVED) % COUNTERS;
        let hash = mix64(key ^ 0x6164_6d69_7373_696f);
        let (first, step) = (hash as u32 as usize, (hash >> 32) as usize | 1);
        let at: [usize; HASHES] = std::array::from_fn(|n| first.wrapping_add(n * step) % COUNTERS);
        let least = at.map(|n| self.counters[n]).into_iter().min().unwrap_or(0);
        let counted = least.saturating_add(1);
        for n in at {
            self.counters[n] = self.counters[n].max(counted);
        }
        counted >= self.pushes
    }
}

impl SparseShard {
    /// Whether the table has an admission threshold: a key gets its row at a later push than its first one.
    pub const fn counts_pushes(&self) -> bool {
        self.admission.is_some()
    }

    /// Whether a push of a key is applied: the key has a row, this push reaches the threshold, or the table has
    /// no threshold. Counts the push if the key has no row. Creates no row.
    pub fn admit(&mut self, key: u64) -> bool {
        self.find(key).is_some()
            || mutants::on(Mutant::AdmitAtOnce)
            || self.admission.as_mut().is_none_or(|a| a.count(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearly all keys are admitted at their third push and all soon after it; few of those pushed once are
    /// admitted, however many there are.
    #[test]
    fn frequent_keys_are_admitted_in_time() {
        let mut admission = Admission::new(3).unwrap();
        let (mut early, mut late, mut others) = (0, 0, 1 << 32);
        for key in 0..2_000 {
            let admitted = (1..=6).find(|_| {
                let admitted = admission.count(key);
                for _ in 0..50 {
                    others += 1;
                    early += u32::from(admission.count(others));
                }
                admitted
            });
            late += u32::from(admitted.unwrap() > 3);
        }
        assert!(late < 40, "{late} of 2,000 keys were admitted late");
        assert!(early < 60, "{early} of 300,000 keys were admitted at once");
        assert!(Admission::new(1).is_none() && Admission::new(0).is_none());
    }
}
