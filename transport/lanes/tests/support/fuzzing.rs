//! Shared code of all fuzzers: a seeded source of numbers and the mutations of an input. Each crate
//! includes this file by its path: it is no part of any library.

/// Longest input: over the limit before authentication, so that inputs reach the limits.
pub(crate) const INPUT_BYTES_MAX: usize = 6 << 10;

/// xorshift64*: small, seeded, the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    /// Seeds one execution of one target: these numbers repeat a failure.
    pub(crate) fn of(seed: u64, target: &str, exec: u64) -> Self {
        let name = target.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        let state = (seed ^ name).wrapping_add(exec.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut random = Self(state | 1);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn under(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Values at which lengths and varints change their encoding.
pub(crate) const EDGES: &[u64] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x3fff,
    0x4000,
    0xffff,
    0x1_0000,
    0xf_ffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 47,
    1 << 63,
    u64::MAX,
];

/// Applies one mutation to `input`.
pub(crate) fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.under(input.len());
    let end = at + random.under((input.len() - at).min(32) + 1);
    match random.under(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.under(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => input.insert(at, random.next() as u8),
        3 => drop(input.drain(at..end)),
        4 => input.truncate(at),
        5 => {
            let again = input[at..end].to_vec();
            input.splice(at..at, again);
        }
        6 => {
            // The end of another seed after the start of this one.
            let other = &corpus[random.under(corpus.len())];
            let from = random.under(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        7 => {
            // A fixed-width number with a boundary value.
            let bytes = EDGES[random.under(EDGES.len())].to_le_bytes();
            let width = (1 << random.under(4)).min(input.len() - at);
            input[at..at + width].copy_from_slice(&bytes[..width]);
        }
        _ => {
            // A varint with a boundary value, in place of a byte.
            let mut value = EDGES[random.under(EDGES.len())];
            let mut varint = Vec::new();
            while value >= 0x80 {
                varint.push(value as u8 | 0x80);
                value >>= 7;
            }
            varint.push(value as u8);
            input.splice(at..end.min(at + 1), varint);
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}

pub(crate) fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}
