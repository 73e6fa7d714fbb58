//! An unrelated process that takes memory.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidewater_runtime::clock;

/// Variable with bytes and milliseconds.
const WHAT: &str = "TIDEWATER_TEST_STRANGER";
/// Bytes touched at a time.
const STEP_BYTES: usize = 64 << 10;

/// The process. It ends when the value is dropped.
pub(crate) struct Stranger(Child);

impl Stranger {
    /// Starts a process that takes `bytes` bytes, evenly over `time`.
    pub(crate) fn start(bytes: u64, time: Duration) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["stranger::takes_memory", "--exact", "--ignored"])
            .env(WHAT, format!("{bytes} {}", time.as_millis()))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other test starts it, in a process of its own"]
fn takes_memory() {
    let what = std::env::var(WHAT).unwrap_or_else(|_| "1048576 10".into());
    let (bytes, millis) = what.split_once(' ').unwrap();
    let time = Duration::from_millis(millis.parse().unwrap());
    // Zeros cost nothing until they are touched.
    let mut memory = vec![0_u8; bytes.parse().unwrap()];
    let steps = memory.len().div_ceil(STEP_BYTES) as u32;
    let start = clock::now();
    for (step, bytes) in memory.chunks_mut(STEP_BYTES).enumerate() {
        bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let due = time / steps * step as u32;
        std::thread::sleep(due.saturating_sub(clock::now() - start));
    }
    let pages = memory.len().div_ceil(4096);
    assert_eq!(memory.iter().filter(|&&byte| byte == 1).count(), pages);
}
