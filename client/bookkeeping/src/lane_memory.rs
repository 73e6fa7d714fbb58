//! Sizes of the rings of a client's lanes, and with them of its mailboxes and largest frames.

use std::ffi::OsString;

use tidewater_protocol::layout::session::{lane_bytes, ring_within};
use tidewater_protocol::limits::{RING_BYTES_DEFAULT, RING_BYTES_MAX, RING_BYTES_MIN};

/// Sizes that a client cannot have: the text has the numbers and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LaneMemoryError(String);

/// Sizes requested for a client's lanes, by options or environment: bytes of a ring, and a budget for all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneMemory {
    /// Requested bytes of each ring; `None` if they follow from the budget.
    pub ring_bytes: Option<usize>,
    /// Most bytes that all lanes of a client may take; `None` for no bound.
    pub budget: Option<usize>,
}

impl LaneMemory {
    /// No request: rings have their default size, and there is no budget.
    pub const NONE: Self = Self {
        ring_bytes: None,
        budget: None,
    };

    /// Takes the sizes in bytes from the options, or else from `TIDEWATER_RING_BYTES` and `TIDEWATER_MEMORY_BUDGET`.
    ///
    /// # Errors
    /// A variable is no number, or the ring is no power of two in its limits.
    pub fn of(
        ring_bytes: Option<usize>,
        budget: Option<usize>,
        vars: &[(OsString, OsString)],
    ) -> Result<Self, LaneMemoryError> {
        let number = |name: &str| {
            let Some((_, value)) = vars.iter().find(|(key, _)| key == name) else {
                return Ok(None);
            };
            let bytes = value.to_str().and_then(|text| text.parse().ok());
            let wrong = || LaneMemoryError(format!("{name}={value:?} is no number of bytes"));
            bytes.map(Some).ok_or_else(wrong)
        };
        let memory = Self {
            ring_bytes: ring_bytes.or(number("TIDEWATER_RING_BYTES")?),
            budget: budget.or(number("TIDEWATER_MEMORY_BUDGET")?),
        };
        match memory.ring_bytes {
            Some(bytes)
                if !bytes.is_power_of_two()
                    || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) =>
            {
                Err(LaneMemoryError(format!(
                    "ring_bytes is {bytes}; a ring has a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes"
                )))
            }
            _ => Ok(memory),
        }
    }

    /// Bytes of each ring for a client with `lanes` lanes: the requested size, the largest that the budget allows, or
    /// the default.
    ///
    /// # Errors
    /// The requested rings, or without a request the smallest ones, exceed the budget.
    pub fn ring_of(self, lanes: usize) -> Result<usize, LaneMemoryError> {
        let wrong = |what: String| Err(LaneMemoryError(what));
        if let Some(bytes) = self.ring_bytes {
            let needed = lanes.saturating_mul(lane_bytes(bytes));
            return match self.budget {
                Some(budget) if needed > budget => wrong(format!(
                    "{lanes} lanes with rings of {bytes} bytes take {needed} bytes, and memory_budget is \
                     {budget}; raise it, or give a smaller ring_bytes or none"
                )),
                _ => Ok(bytes),
            };
        }
        let Some(budget) = self.budget else {
            return Ok(RING_BYTES_DEFAULT);
        };
        ring_within(budget, lanes).map_or_else(
            || {
                let needed = lanes.saturating_mul(lane_bytes(RING_BYTES_MIN));
                wrong(format!(
                    "memory_budget is {budget} bytes, and {lanes} lanes take {needed} with the smallest \
                     rings; raise it, or start servers with fewer appliers"
                ))
            },
            Ok,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ring_bytes: Option<usize>, budget: Option<usize>) -> LaneMemory {
        LaneMemory { ring_bytes, budget }
    }

    #[test]
    fn ring_follows_from_lanes_and_budget() {
        let ring = |memory: LaneMemory, lanes| memory.ring_of(lanes).unwrap();
        assert_eq!(ring(of(None, None), 4_000), RING_BYTES_DEFAULT);
        assert_eq!(ring(of(None, Some(16 << 20)), 3), RING_BYTES_DEFAULT);
        assert_eq!(ring(of(None, Some(16 << 20)), 64), 32 << 10);
        assert_eq!(ring(of(Some(16 << 20), None), 64), 16 << 20);
        let refused = |memory: LaneMemory, lanes| memory.ring_of(lanes).unwrap_err().to_string();
        let text = refused(of(None, Some(1 << 20)), 64);
        let least = 64 * lane_bytes(RING_BYTES_MIN);
        assert!(
            text.contains(&format!("1048576 bytes, and 64 lanes take {least}")),
            "{text}"
        );
        let text = refused(of(Some(1 << 20), Some(16 << 20)), 4);
        let needed = 4 * lane_bytes(1 << 20);
        assert!(text.contains(&format!("take {needed} bytes")), "{text}");
        for bytes in [0, 1 << 13, 3 << 16, 1 << 25] {
            let error = LaneMemory::of(Some(bytes), None, &[]).unwrap_err();
            assert!(error.to_string().contains("power of two"), "{error}");
        }
    }

    #[test]
    fn options_come_before_the_environment() {
        let var = |name: &str, value: &str| (name.into(), value.into());
        let vars = [
            var("TIDEWATER_RING_BYTES", "65536"),
            var("TIDEWATER_MEMORY_BUDGET", "1000000"),
        ];
        let both = LaneMemory::of(None, Some(7), &vars).unwrap();
        assert_eq!(both, of(Some(65536), Some(7)));
        let vars = [var("TIDEWATER_MEMORY_BUDGET", "16 MiB")];
        let error = LaneMemory::of(None, None, &vars).unwrap_err().to_string();
        assert!(error.contains("TIDEWATER_MEMORY_BUDGET"), "{error}");
    }
}
